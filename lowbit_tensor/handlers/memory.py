"""Copies, moves, new tensors and writes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..tensor import DTYPES, INNER, LowBitWeightTensor
from .table import function, operator
from .views import map_inner, rewrap


@operator("copy", "clone")
def clone(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LowBitWeightTensor:
    return map_inner(args[0], torch.clone)


@operator("copy", "_to_copy")
def to_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LowBitWeightTensor:
    """Changes the logical dtype and the device; codes, scales and zeros keep their values and dtypes."""
    w, dtype = args[0], kwargs.get("dtype") or args[0].dtype
    if dtype not in DTYPES:
        raise TypeError(
            f"to: expected float16, bfloat16, float32 or float64 for a LowBitWeightTensor, got {dtype}; codes() gives the codes"
        )
    move = {name: kwargs[name] for name in ("device", "non_blocking") if kwargs.get(name) is not None}
    inner = {name: getattr(w, name).to(**move) if move else getattr(w, name) for name in INNER}
    inner = {name: t.clone() if t is getattr(w, name) else t for name, t in inner.items()}
    return rewrap(w, **inner, dtype=dtype)


@operator("copy", "index", "index_select")
def index(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LowBitWeightTensor:
    w = args[0]
    reaches = len(args[1]) if func is torch.ops.aten.index.Tensor else args[1] % w.dim() + 1
    if w.transposed or reaches > w.dim() - 1:
        raise NotImplementedError(f"{func}: expected indices of rows of a LowBitWeightTensor that is not transposed; use w.dequantize()")
    return map_inner(w, lambda t: func(t, *args[1:]))


@operator("copy", "cat")
def cat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensors = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    first = next(t for t in tensors if isinstance(t, LowBitWeightTensor))
    alike = all(isinstance(t, LowBitWeightTensor) and same_format(t, first, (t.dtype, t.scales.dtype)) for t in tensors)
    if alike and not first.transposed and dim % first.dim() != first.dim() - 1:
        parts = {name: torch.cat([getattr(t, name) for t in tensors], dim % first.dim()) for name in INNER}
        return rewrap(first, **parts)
    raise NotImplementedError(
        "cat: expected LowBitWeightTensors of one format along rows; use w.dequantize() where they differ or columns are joined"
    )


def same_format(w: LowBitWeightTensor, other: LowBitWeightTensor, dtypes: tuple[torch.dtype, torch.dtype]) -> bool:
    """Whether both have the same bits, groups, row length and orientation, and `other` the given (dtype, scale_dtype)."""
    fields = ("bits", "group_size", "in_features", "transposed")
    return all(getattr(w, f) == getattr(other, f) for f in fields) and (other.dtype, other.scales.dtype) == dtypes


@operator("copy", "_pin_memory")
def pin_memory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LowBitWeightTensor:
    return map_inner(args[0], lambda t: t.pin_memory())


@operator("query", "is_pinned")
def is_pinned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return all(getattr(args[0], name).is_pinned() for name in INNER)


@operator("query", "equal")
def equal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    a, b = args
    both = isinstance(a, LowBitWeightTensor) and isinstance(b, LowBitWeightTensor)
    alike = both and a.shape == b.shape and same_format(a, b, (b.dtype, a.scales.dtype))
    if alike and all(torch.equal(getattr(a, name), getattr(b, name)) for name in INNER):
        return True
    return torch.equal(*(t.dequantize() if isinstance(t, LowBitWeightTensor) else t for t in (a, b)))


@operator("new", "empty_like", "zeros_like", "new_empty", "new_zeros")
def new(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Low-bit for the weight's own shape and a float dtype, plain otherwise."""
    w, like = args[0], func.overloadpacket in (torch.ops.aten.empty_like, torch.ops.aten.zeros_like)
    shape = tuple(w.shape) if like else tuple(args[1])
    dtype, device = kwargs.get("dtype") or w.dtype, kwargs.get("device") or w.device
    if shape != tuple(w.shape) or dtype not in DTYPES or w.transposed:
        return torch.zeros(shape, dtype=dtype, device=device)
    make = torch.empty_like if "empty" in func.__name__ else torch.zeros_like
    return map_inner(w, lambda t: make(t, device=device), dtype=dtype)


@operator("write", "copy_")
def copy_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    target, source = args[:2]
    if not isinstance(target, LowBitWeightTensor):
        return target.copy_(source.dequantize(target.dtype if target.is_floating_point() else None))
    write(target, source)
    return target


def write(target: LowBitWeightTensor, source: Tensor) -> None:
    """Bytes of the same format are copied where the target's parameters can hold the source's; all else is re-quantized with `minmax`.

    Raises before anything is written where shapes do not broadcast or the values cannot be quantized.
    """
    if isinstance(source, LowBitWeightTensor):
        holds = torch.promote_types(source.scales.dtype, target.scales.dtype) == target.scales.dtype
        if holds and source.shape == target.shape and same_format(source, target, (target.dtype, target.scales.dtype)):
            for name in INNER:
                getattr(target, name).data.copy_(getattr(source, name))
            return
        source = source.dequantize(torch.float32)
    values = source.detach().to(target.device).expand(target.shape)
    values = values.mT if target.transposed else values
    values = values if values.is_floating_point() else values.float()
    parts = torch.ops.lowbit.quantize(values, target.bits, target.group_size, "minmax", target.scales.dtype, False, False)
    for name, part in zip(INNER, parts, strict=True):
        getattr(target, name).data.copy_(part)


@function(Tensor.data.__set__)  # type: ignore[attr-defined]
def set_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`target.data = source`: PyTorch would swap the wrapper's metadata and leave the codes as they were."""
    target, source = args
    if not isinstance(target, LowBitWeightTensor):
        target.data = source.dequantize()
        return
    if source.shape != target.shape:
        raise ValueError(f"data: expected the shape {list(target.shape)} of the LowBitWeightTensor, got {list(source.shape)}")
    if isinstance(source, LowBitWeightTensor) and source.device != target.device:
        for name in INNER:  # a move: the new tensors take the place of the old
            setattr(target, name, getattr(source, name).detach())
    else:
        with torch.no_grad():
            write(target, source)
    if isinstance(source, LowBitWeightTensor) and (source.dtype, source.device) != (target.dtype, target.device):
        with torch._C.DisableTorchFunctionSubclass():
            func(target, source)
