"""Views: low-bit tensors over the same bytes. Rows can be cut anywhere, columns at group borders, where the cut is a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
def detach(op: Any, w: LowBitWeightTensor) -> LowBitWeightTensor:
    return map_inner(w, Tensor.detach)


@operator("view", "t")
def t(op: Any, w: LowBitWeightTensor) -> LowBitWeightTensor:
    return permute(op, w, list(range(w.dim()))[::-1])


@operator("view", "transpose")
def transpose(op: Any, w: LowBitWeightTensor, dim0: int, dim1: int) -> LowBitWeightTensor:
    order, dim0, dim1 = list(range(w.dim())), _dim(w, dim0), _dim(w, dim1)
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(op, w, order)


@operator("view", "permute")
def permute(op: Any, w: LowBitWeightTensor, dims: Sequence[int]) -> LowBitWeightTensor:
    order, same = [d % w.dim() for d in dims], list(range(w.dim()))
    if order == same:
        return rewrap(w)
    if w.dim() < 2 or order != [*same[:-2], same[-1], same[-2]]:
        raise NotImplementedError(f"{op}: expected the last two dimensions of a LowBitWeightTensor to be swapped; use w.dequantize()")
    return rewrap(w, transposed=not w.transposed)


@operator("view", "slice")
def slice_(
    op: Any, w: LowBitWeightTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> LowBitWeightTensor:
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
def select(op: Any, w: LowBitWeightTensor, dim: int, index: int) -> LowBitWeightTensor:
    stored = _stored_dim(w, dim)
    if stored == w.packed.dim() - 1 or (w.transposed and stored == w.packed.dim() - 2):
        raise NotImplementedError(f"{op}: expected a row of a LowBitWeightTensor, got a column; use w.dequantize()")
    return map_inner(w, lambda t: t.select(stored, index))


@operator("view", "split", "split_with_sizes")
def split(op: Any, w: LowBitWeightTensor, sizes: int | Sequence[int], dim: int = 0) -> list[LowBitWeightTensor]:
    total = w.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - i) for i in range(0, total, max(sizes, 1))] or [0]
    if sum(sizes) != total:
        raise ValueError(f"split: expected sizes that add up to {total}, got {list(sizes)}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [slice_(op, w, dim, start, start + size) for start, size in zip(starts, sizes, strict=True)]


@operator("view", "unbind")
def unbind(op: Any, w: LowBitWeightTensor, dim: int = 0) -> list[LowBitWeightTensor]:
    return [select(op, w, dim, i) for i in range(w.shape[dim])]


@operator("view", "view", "_unsafe_view")
def view(op: Any, w: LowBitWeightTensor, shape: Any) -> LowBitWeightTensor:
    lead = list(shape[:-1]) if op is not torch.ops.aten.view.dtype and not w.transposed and len(shape) else None
    if lead is not None and -1 in lead:
        known = -torch.Size(lead).numel()
        lead[lead.index(-1)] = w.packed.shape[:-1].numel() // max(known, 1)
    if lead is None or shape[-1] not in (w.in_features, -1) or torch.Size(lead).numel() != w.packed.shape[:-1].numel():
        raise NotImplementedError(f"{op}: expected a shape [..., {w.in_features}] that keeps the rows, got {shape}; use w.dequantize()")
    return map_inner(w, lambda t: t.view(*lead, t.shape[-1]))


@operator("view", "unsqueeze")
def unsqueeze(op: Any, w: LowBitWeightTensor, dim: int) -> LowBitWeightTensor:
    stored = _lead_dim(op, w, dim, w.dim() + 1)
    return map_inner(w, lambda t: t.unsqueeze(stored))


@operator("view", "squeeze")
def squeeze(op: Any, w: LowBitWeightTensor, dim: Any = ()) -> LowBitWeightTensor:
    dims = [dim] if isinstance(dim, int) else list(dim) or list(range(w.dim()))
    gone = [_lead_dim(op, w, d, w.dim()) for d in dims if w.shape[d] == 1]
    return map_inner(w, lambda t: t.squeeze(gone)) if gone else rewrap(w)


def _lead_dim(op: Any, w: LowBitWeightTensor, dim: int, dims: int) -> int:
    """A leading dimension, which can come and go: the last two are the rows and their columns."""
    if dim % dims > dims - 3:
        raise NotImplementedError(f"{op}: expected a leading dimension of a LowBitWeightTensor, got {dim}; use w.dequantize()")
    return dim % dims


def _dim(w: LowBitWeightTensor, dim: int) -> int:
    if not -w.dim() <= dim < w.dim():
        raise IndexError(f"expected a dimension of {-w.dim()} to {w.dim() - 1}, got {dim}")
    return dim % w.dim()


def _stored_dim(w: LowBitWeightTensor, dim: int) -> int:
    """The dimension of the inner tensors that `dim` of the logical shape is."""
    dim = _dim(w, dim)
    return {w.dim() - 1: w.dim() - 2, w.dim() - 2: w.dim() - 1}.get(dim, dim) if w.transposed else dim
