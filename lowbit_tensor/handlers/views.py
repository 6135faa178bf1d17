"""Views: low-bit tensors over the same bytes. Rows can be cut anywhere, columns at group borders, where the cut is a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import packing
from ..format import Format
from ..tensor import INNER, LowBitWeightTensor
from .table import operator

Cut = Callable[[Tensor], Tensor]


def rewrap(w: LowBitWeightTensor, **fields: Any) -> LowBitWeightTensor:
    """`_replace`, outside inference mode where `w` was made outside it: PyTorch counts the versions of a view of such a tensor."""
    with torch.inference_mode(mode=w.is_inference()):
        return w._replace(**fields)


def map_inner(w: LowBitWeightTensor, change: Cut, **fields: Any) -> LowBitWeightTensor:
    """`w` with `change` applied to its three inner tensors."""
    return rewrap(w, **{name: change(getattr(w, name)) for name in INNER}, **fields)


@operator("view", "detach", "alias")
def detach(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LowBitWeightTensor:
    return rewrap(args[0])


@operator("view", "t", "transpose", "permute")
def transpose(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LowBitWeightTensor:
    w, order = args[0], list(range(args[0].dim()))
    if func.overloadpacket is torch.ops.aten.permute:
        order = [d % w.dim() for d in args[1]]
    else:
        first, second = args[1:] if len(args) > 1 else (0, len(order) - 1)
        order[first], order[second] = order[second], order[first]
    same, swapped = list(range(w.dim())), [*range(w.dim() - 2), w.dim() - 1, w.dim() - 2]
    if order not in (same, swapped[-w.dim() :]):
        raise NotImplementedError(f"{func}: expected the last two dimensions of a LowBitWeightTensor to be swapped; use w.dequantize()")
    return rewrap(w, transposed=w.transposed != (order != same))


@operator("view", "slice")
def slice_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LowBitWeightTensor:
    return _slice(*args, **kwargs)


def _slice(w: LowBitWeightTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> LowBitWeightTensor:
    stored = _stored_dim(w, dim)
    start, end, step = slice(start, end, step).indices(w.shape[dim])
    if stored != w.packed.dim() - 1:
        return map_inner(w, lambda t: torch.ops.aten.slice(t, stored, start, end, step))
    return columns(w, start, max(end, start), step)


def columns(w: LowBitWeightTensor, start: int, end: int, step: int = 1) -> LowBitWeightTensor:
    """Columns `start` to `end` of the stored weight: itself where that is all, else a copy. Raises ValueError off the group borders."""
    fmt = w.format
    if (start, end, step) == (0, w.in_features, 1):
        return rewrap(w)
    if step != 1 or not (fmt.is_border(start) and fmt.is_border(end)):
        raise ValueError(
            f"columns {start}:{end}:{step}: expected a cut at multiples of the group size {w.group_size} or at {w.in_features}, "
            "in steps of 1; use w.dequantize()"
        )
    codes = packing.unpack(w.packed, w.bits, w.in_features)[..., start:end]
    groups = slice(start // w.group_size, start // w.group_size + Format(w.bits, w.group_size, end - start).groups)
    scales, zeros = (p[..., groups].clone() for p in (w.scales, w.zeros))
    return rewrap(w, packed=packing.pack_unchecked(codes, w.bits), scales=scales, zeros=zeros, in_features=end - start)


@operator("view", "select")
def select(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    w, dim, index = args
    stored = _stored_dim(w, dim)
    if w.transposed or stored == w.packed.dim() - 1:
        raise NotImplementedError(f"{func}: expected a row of a LowBitWeightTensor that is not transposed; use w.dequantize()")
    return map_inner(w, lambda t: t.select(stored, index))


@operator("view", "split", "split_with_sizes")
def split(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[LowBitWeightTensor]:
    w, sizes = args[:2]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    total = w.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - i) for i in range(0, total, max(sizes, 1))] or [0]
    if sum(sizes) != total:
        raise ValueError(f"split: expected sizes that add up to {total}, got {list(sizes)}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [_slice(w, dim, start, start + size) for start, size in zip(starts, sizes, strict=True)]


@operator("view", "unbind")
def unbind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return [select(torch.ops.aten.select.int, (args[0], dim, i), {}) for i in range(args[0].shape[dim])]


@operator("view", "view", "_unsafe_view")
def view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LowBitWeightTensor:
    w, shape = args
    if func is torch.ops.aten.view.dtype or w.transposed or not shape:
        raise NotImplementedError(f"{func}: expected a shape that keeps the rows of a LowBitWeightTensor; use w.dequantize()")
    if shape[-1] not in (w.in_features, -1) or (shape[-1] == -1 and torch.Size(shape[:-1]).numel() * w.in_features != w.numel()):
        raise NotImplementedError(
            f"{func}: expected a shape [..., {w.in_features}] that keeps the rows, got {list(shape)}; use w.dequantize()"
        )
    return map_inner(w, lambda t: t.view(*shape[:-1], t.shape[-1]))


@operator("view", "squeeze", "unsqueeze")
def squeeze(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LowBitWeightTensor:
    """Only leading dimensions come and go: the last two are the rows and their columns."""
    w = args[0]
    if w.transposed or len(args) < 2 or not isinstance(args[1], int):
        raise NotImplementedError(f"{func}: expected one leading dimension of a LowBitWeightTensor; use w.dequantize()")
    grows = func.overloadpacket is torch.ops.aten.unsqueeze
    dim = args[1] % (w.dim() + grows)
    if not grows and w.shape[dim] != 1:
        return rewrap(w)
    if dim > w.dim() - 2:
        raise NotImplementedError(f"{func}: expected a leading dimension of a LowBitWeightTensor, got {args[1]}; use w.dequantize()")
    return map_inner(w, lambda t: t.unsqueeze(dim) if grows else t.squeeze(dim))


def _stored_dim(w: LowBitWeightTensor, dim: int) -> int:
    """The dimension of the inner tensors that `dim` of the logical shape is."""
    if not -w.dim() <= dim < w.dim():
        raise IndexError(f"expected a dimension of {-w.dim()} to {w.dim() - 1}, got {dim}")
    dim %= w.dim()
    return {w.dim() - 1: w.dim() - 2, w.dim() - 2: w.dim() - 1}.get(dim, dim) if w.transposed else dim
