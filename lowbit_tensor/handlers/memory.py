"""Copies, moves, new tensors and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from .. import packing, quantize
from ..tensor import DTYPES, INNER, LowBitWeightTensor
from .table import function, operator
from .views import LOST, lead_dim, map_inner, rewrap, stored_dim

FORMAT = "bits group_size in_features transposed"


@operator("copy", "clone")
def clone(op: Any, w: LowBitWeightTensor, memory_format: Any = None) -> LowBitWeightTensor:
    return map_inner(w, torch.clone)


@operator("copy", "_to_copy")
def to_copy(
    op: Any, w: LowBitWeightTensor, *, dtype: torch.dtype | None = None, device: Any = None, non_blocking: bool = False, **layout: Any
) -> LowBitWeightTensor:
    """Changes the logical dtype and the device; codes, scales and zeros keep their values and dtypes."""
    dtype = dtype or w.dtype
    if dtype not in DTYPES:
        raise TypeError(
            f"to: expected float16, bfloat16, float32 or float64 for a LowBitWeightTensor, got {dtype}; codes() gives the codes"
        )
    return map_inner(w, lambda t: t.to(device or t.device, non_blocking=non_blocking, copy=True), dtype=dtype)


@operator("copy", "index")
def index(op: Any, w: LowBitWeightTensor, indices: Sequence[Any]) -> LowBitWeightTensor:
    if w.transposed or sum(i.dim() if i is not None and i.dtype == torch.bool else 1 for i in indices) > w.dim() - 1:
        raise NotImplementedError(f"{op}: expected indices of rows of a LowBitWeightTensor that is not transposed; use w.dequantize()")
    return map_inner(w, lambda t: op(t, indices))


@operator("copy", "index_select")
def index_select(op: Any, w: LowBitWeightTensor, dim: int, indices: Tensor) -> LowBitWeightTensor:
    return index(torch.ops.aten.index.Tensor, w, [*[None] * (dim % w.dim()), indices])


@operator("copy", "cat")
def cat(op: Any, tensors: Sequence[Tensor], dim: int = 0) -> LowBitWeightTensor:
    first = next(t for t in tensors if isinstance(t, LowBitWeightTensor))
    stored = stored_dim(first, dim)
    if stored == first.packed.dim() - 1:
        return _join_columns(_alike("cat", tensors, first, "bits group_size transposed"))
    parts = _alike("cat", tensors, first)
    return rewrap(first, **{name: torch.cat([getattr(t, name) for t in parts], stored) for name in INNER})


@operator("copy", "stack")
def stack(op: Any, tensors: Sequence[Tensor], dim: int = 0) -> LowBitWeightTensor:
    first = next(t for t in tensors if isinstance(t, LowBitWeightTensor))
    parts, new = _alike("stack", tensors, first), lead_dim(op, first, dim, first.dim() + 1)
    return rewrap(first, **{name: torch.stack([getattr(t, name) for t in parts], new) for name in INNER})


def _alike(name: str, tensors: Sequence[Tensor], first: LowBitWeightTensor, fields: str = FORMAT) -> list[LowBitWeightTensor]:
    """`tensors`, all low-bit and of one format. Raises NotImplementedError otherwise."""
    parts = [t for t in tensors if isinstance(t, LowBitWeightTensor) and same_format(t, first, fields) and t.dtype == first.dtype]
    if len(parts) != len(tensors) or len({t.scales.dtype for t in parts}) != 1:
        raise NotImplementedError(f"{name}: expected LowBitWeightTensors of one format and dtype; use w.dequantize()")
    return parts


def _join_columns(parts: list[LowBitWeightTensor]) -> LowBitWeightTensor:
    first = parts[0]
    if any(t.in_features % t.group_size for t in parts[:-1]):
        raise ValueError(
            f"cat: expected all parts but the last to be whole groups of {first.group_size} columns, "
            f"got {[t.in_features for t in parts]}; use w.dequantize()"
        )
    codes = torch.cat([packing.unpack(t.packed, t.bits, t.in_features) for t in parts], -1)
    scales, zeros = (torch.cat([getattr(t, name) for t in parts], -1) for name in ("scales", "zeros"))
    return rewrap(first, packed=packing.pack_unchecked(codes, first.bits), scales=scales, zeros=zeros, in_features=codes.shape[-1])


def same_format(w: LowBitWeightTensor, other: LowBitWeightTensor, fields: str = FORMAT) -> bool:
    """Whether both have the same bits, groups, row length and orientation; their dtypes may differ."""
    return all(getattr(w, f) == getattr(other, f) for f in fields.split())


@operator("copy", "_pin_memory")
def pin_memory(op: Any, w: LowBitWeightTensor, device: Any = None) -> LowBitWeightTensor:
    return map_inner(w, lambda t: t.pin_memory())


@operator("query", "is_pinned")
def is_pinned(op: Any, w: LowBitWeightTensor, device: Any = None) -> bool:
    return all(getattr(w, name).is_pinned() for name in INNER)


@operator("query", "_assert_tensor_metadata")
def assert_metadata(op: Any, w: LowBitWeightTensor, *args: Any, dtype: torch.dtype | None = None, **layout: Any) -> None:
    """What an exported program asks before a cast."""
    if dtype is not None and dtype != w.dtype:
        raise RuntimeError(f"expected a weight of {dtype}, got {w.dtype}")


@operator("query", "equal")
def equal(op: Any, a: Tensor, b: Tensor) -> bool:
    """Equal inner tensors make equal weights; so do different ones that stand for the same values."""
    if isinstance(a, LowBitWeightTensor) and isinstance(b, LowBitWeightTensor) and a.shape == b.shape and same_format(a, b):
        if all(torch.equal(getattr(a, name), getattr(b, name)) for name in INNER):
            return True
    return torch.equal(*(t.dequantize() if isinstance(t, LowBitWeightTensor) else t for t in (a, b)))


@operator("new", "empty_like", "zeros_like")
def new_like(op: Any, w: LowBitWeightTensor, **options: Any) -> Tensor:
    return _new(op, w, w.shape, **options)


@operator("new", "new_empty", "new_zeros")
def new(op: Any, w: LowBitWeightTensor, size: Sequence[int], **options: Any) -> Tensor:
    return _new(op, w, size, **options)


def _new(op: Any, w: LowBitWeightTensor, size: Sequence[int], dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    """Low-bit for the weight's own shape and a float dtype, plain otherwise; zeros where only emptiness was asked for do no harm."""
    dtype, device = dtype or w.dtype, device or w.device
    if tuple(size) != tuple(w.shape) or dtype not in DTYPES or w.transposed:
        return torch.zeros(tuple(size), dtype=dtype, device=device)
    make = torch.zeros_like if "zeros" in op.__name__ else torch.empty_like
    return map_inner(w, lambda t: make(t, device=device), dtype=dtype)


@operator("write", "copy_")
def copy_(op: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(target, LowBitWeightTensor):
        value: Any = source  # low-bit, or this handler would not have been asked
        return target.copy_(value.dequantize(target.dtype if target.is_floating_point() else None))
    write(target, source)
    return target


def write(target: LowBitWeightTensor, source: Tensor) -> None:
    """Bytes of the same format are copied where the target's parameters can hold the source's; all else is re-quantized with `minmax`.

    Raises before anything is written where shapes do not broadcast or the values cannot be quantized.
    """
    if target._origin is LOST:
        raise NotImplementedError("expected a view of rows of whole columns, got rows of a copy of columns: write to the rows first cut")
    _write(target, source)
    while target._origin is not None:  # a copy of columns: on to the weight it came from
        target = _write_back(target, *target._origin)


def _write_back(columns: LowBitWeightTensor, w: LowBitWeightTensor, start: int) -> LowBitWeightTensor:
    """Puts a copy of columns in its place in `w`, from column `start`; returns `w`."""
    codes = packing.unpack(w.packed, w.bits, w.in_features)
    codes[..., start : start + columns.in_features] = packing.unpack(columns.packed, w.bits, columns.in_features)
    _overwrite(w.packed, packing.pack_unchecked(codes, w.bits))
    first = start // w.group_size
    for name in ("scales", "zeros"):
        part = getattr(columns, name)
        _overwrite(getattr(w, name)[..., first : first + part.shape[-1]], part)
    return w


def _write(target: LowBitWeightTensor, source: Tensor) -> None:
    if isinstance(source, LowBitWeightTensor):
        holds = torch.promote_types(source.scales.dtype, target.scales.dtype) == target.scales.dtype
        if holds and source.shape == target.shape and same_format(source, target):
            for name in INNER:
                _overwrite(getattr(target, name), getattr(source, name))
            return
        source = source.dequantize(torch.float32)
    values = source.detach().to(target.device).expand(target.shape)
    values = values.mT if target.transposed else values
    values = values if values.is_floating_point() else values.float()
    parts = torch.ops.lowbit.quantize(values, target.bits, target.group_size, "minmax", target.scales.dtype, False, False)
    if target.scales.dtype != torch.float32 and not is_compiling():
        quantize.check_not_vanished(values, parts[1], target.format)
    for name, part in zip(INNER, parts, strict=True):
        _overwrite(getattr(target, name), part)


def _overwrite(inner: Tensor, value: Tensor) -> None:
    """Counts as a change, which it would not by itself below autograd: a backward pass that still needs the old bytes raises."""
    with torch.no_grad():
        inner.copy_(value)
    if not inner.is_inference() and not is_compiling():
        increment_version(inner)


@function(Tensor.__setitem__)
def set_item(target: Tensor, index: Any, value: Any) -> None:
    """`target[index] = value`, for integers and slices; what other indices give is a copy, and writing to it would be lost."""
    if not isinstance(target, LowBitWeightTensor):
        target[index] = value.dequantize() if isinstance(value, LowBitWeightTensor) else value
        return
    if not all(isinstance(i, int | slice | type(...) | None) for i in (index if isinstance(index, tuple) else (index,))):
        raise NotImplementedError("w[...] = value: expected integers and slices of a LowBitWeightTensor; use w.copy_(value)")
    with torch.no_grad():
        part: Any = target[index]
        write(part, value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float32))


@function(Tensor.apply_, Tensor.map_, Tensor.__dlpack__, torch._C._to_dlpack, Tensor.numpy, Tensor.__array__, Tensor.tolist)
def no_memory(*args: Any, **kwargs: Any) -> None:
    raise NotImplementedError("a LowBitWeightTensor has no memory of floats that this could reach: use w.dequantize()")


@function(Tensor.data.__set__)  # type: ignore[attr-defined]
def set_data(target: LowBitWeightTensor, source: Tensor) -> None:
    """`target.data = source`: PyTorch would swap the wrapper's metadata and leave the codes as they were."""
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
            Tensor.data.__set__(target, source)  # type: ignore[attr-defined]
