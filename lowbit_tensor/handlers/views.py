"""Views: low-bit tensors over the same bytes. Rows can be cut anywhere, columns at group borders, where the cut is a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import packing
from ..format import Format
from ..tensor import INNER, LowBitWeightTensor
from .table import operator

Cut = Callable[[Tensor], Tensor]
LOST = "lost"


def rewrap(w: LowBitWeightTensor, **fields: Any) -> LowBitWeightTensor:
    """`_replace`, outside inference mode where `w` was made outside it: PyTorch counts the versions of a view of such a tensor."""
    with torch.inference_mode(mode=w.is_inference()):
        return w._replace(**fields)


def map_inner(w: LowBitWeightTensor, change: Cut, **fields: Any) -> LowBitWeightTensor:
    """`w` with `change` applied to its three inner tensors."""
    return rewrap(w, **{name: change(getattr(w, name)) for name in INNER}, **fields)


def as_view(w: LowBitWeightTensor, view: LowBitWeightTensor) -> LowBitWeightTensor:
    """`view`, which shares the bytes of `w`. Where `w` is a copy of columns, writes to rows of it could not reach their origin."""
    whole = view.packed.shape == w.packed.shape
    view._origin = w._origin if whole or w._origin is None else LOST
    return view


def no_parameter(w: LowBitWeightTensor) -> LowBitWeightTensor:
    """`w`, which a module keeps as an attribute when it is assigned, as it does the transpose of a plain parameter."""
    if w._role == "weight":
        w._role = "view"
    return w


@operator("view", "detach", "alias")
def detach(op: Any, w: LowBitWeightTensor) -> LowBitWeightTensor:
    """Keeps what others have put on it; and what is trained, where `Module.to` is about to make a parameter of it."""
    kept = w.__dict__.pop("_kept", False)
    other = map_inner(w, (lambda t: t) if kept else Tensor.detach)
    no_parameter(other).__dict__.update({name: value for name, value in w.__dict__.items() if name not in other.__dict__})
    return other


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
        return no_parameter(as_view(w, rewrap(w)))
    if w.dim() < 2 or order != [*same[:-2], same[-1], same[-2]]:
        raise NotImplementedError(f"{op}: expected the last two dimensions of a LowBitWeightTensor to be swapped; use w.dequantize()")
    return no_parameter(as_view(w, rewrap(w, transposed=not w.transposed)))


@operator("view", "slice")
def slice_(
    op: Any, w: LowBitWeightTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> LowBitWeightTensor:
    stored = stored_dim(w, dim)
    start, end, step = slice(start, end, step).indices(w.shape[dim])
    if stored != w.packed.dim() - 1:
        return as_view(w, map_inner(w, lambda t: torch.ops.aten.slice(t, stored, start, end, step)))
    return columns(w, start, max(end, start), step)


def columns(w: LowBitWeightTensor, start: int, end: int, step: int = 1) -> LowBitWeightTensor:
    """Columns `start` to `end` of the stored weight: itself where that is all, else a copy that knows where it came from.

    Raises ValueError off the group borders.
    """
    fmt = w.format
    if (start, end, step) == (0, w.in_features, 1):
        return as_view(w, rewrap(w))
    if step != 1 or not (fmt.is_border(start) and fmt.is_border(end)):
        raise ValueError(
            f"columns {start}:{end}:{step}: expected a cut at multiples of the group size {w.group_size} or at {w.in_features}, "
            "in steps of 1; use w.dequantize()"
        )
    codes = packing.unpack(w.packed, w.bits, w.in_features)[..., start:end]
    groups = slice(start // w.group_size, start // w.group_size + Format(w.bits, w.group_size, end - start).groups)
    scales, zeros = (p[..., groups].clone() for p in (w.scales, w.zeros))
    copy = rewrap(w, packed=packing.pack_unchecked(codes, w.bits), scales=scales, zeros=zeros, in_features=end - start)
    copy._origin = (w, start)
    return copy


@operator("view", "select")
def select(op: Any, w: LowBitWeightTensor, dim: int, index: int) -> LowBitWeightTensor:
    stored = stored_dim(w, dim)
    if stored == w.packed.dim() - 1 or (w.transposed and stored == w.packed.dim() - 2):
        raise NotImplementedError(f"{op}: expected a row of a LowBitWeightTensor, got a column; use w.dequantize()")
    return as_view(w, map_inner(w, lambda t: t.select(stored, index)))


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
    """Other leading dimensions over the same rows; other rows too, where all of them are whole groups and whole bytes."""
    if op is torch.ops.aten.view.dtype or not len(shape):
        raise NotImplementedError(f"{op}: expected a shape [..., {w.in_features}], got {shape}; use w.dequantize()")
    shape = _sizes(w, shape)
    if w.transposed:
        return _view_of_transpose(op, w, shape)
    fmt = Format(w.bits, w.group_size, shape[-1])
    if shape[-1] != w.in_features and not (fmt.is_whole and w.format.is_whole):
        raise NotImplementedError(
            f"{op}: expected rows of {w.in_features}, or of whole groups of {w.group_size} and whole bytes, got {shape}; use w.dequantize()"
        )
    lasts = dict(zip(INNER, (fmt.row_bytes, fmt.groups, fmt.groups), strict=True))
    parts = {name: getattr(w, name).view(*shape[:-1], last) for name, last in lasts.items()}
    return as_view(w, rewrap(w, **parts, in_features=shape[-1]))


def _view_of_transpose(op: Any, w: LowBitWeightTensor, shape: list[int]) -> LowBitWeightTensor:
    """Other leading dimensions only."""
    if shape[-2:] != list(w.shape[-2:]):
        raise NotImplementedError(f"{op}: expected a LowBitWeightTensor that is not transposed, got a view to {shape}; use w.dequantize()")
    return no_parameter(as_view(w, map_inner(w, lambda t: t.view(*shape[:-2], *t.shape[-2:]))))


def _sizes(w: LowBitWeightTensor, shape: Sequence[int]) -> list[int]:
    """`shape` with its -1 worked out. Raises ValueError where it does not hold as many weights as `w`."""
    sizes = list(shape)
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = w.numel() // max(-math.prod(sizes), 1)
    if min(sizes) < 0 or math.prod(sizes) != w.numel():
        raise ValueError(f"view: expected a shape of {w.numel()} weights, got {list(shape)}")
    return sizes


@operator("view", "expand")
def expand(op: Any, w: LowBitWeightTensor, size: Sequence[int], *, implicit: bool = False) -> LowBitWeightTensor:
    sizes = list(size)
    if w.transposed:
        sizes[-2:] = sizes[:-3:-1]
    if sizes[-1] not in (-1, w.in_features):
        raise NotImplementedError(f"{op}: expected rows of {w.in_features} that stay as they are, got {list(size)}; use w.dequantize()")
    return as_view(w, map_inner(w, lambda t: t.expand(*sizes[:-1], -1)))


@operator("view", "unsqueeze")
def unsqueeze(op: Any, w: LowBitWeightTensor, dim: int) -> LowBitWeightTensor:
    stored = lead_dim(op, w, dim, w.dim() + 1)
    return as_view(w, map_inner(w, lambda t: t.unsqueeze(stored)))


@operator("view", "squeeze")
def squeeze(op: Any, w: LowBitWeightTensor, dim: Any = ()) -> LowBitWeightTensor:
    dims = [dim] if isinstance(dim, int) else list(dim) or list(range(w.dim()))
    gone = [lead_dim(op, w, d, w.dim()) for d in dims if w.shape[d] == 1]
    return as_view(w, map_inner(w, lambda t: t.squeeze(gone)) if gone else rewrap(w))


def lead_dim(op: Any, w: LowBitWeightTensor, dim: int, dims: int) -> int:
    """A dimension that can come and go: any before the columns, which must stay the last of the inner tensors."""
    if not -dims <= dim < dims or dim % dims >= dims - (2 if w.transposed else 1):
        raise NotImplementedError(f"{op}: expected a dimension before a LowBitWeightTensor's columns, got {dim}; use w.dequantize()")
    return dim % dims


def _dim(w: LowBitWeightTensor, dim: int) -> int:
    if not -w.dim() <= dim < w.dim():
        raise IndexError(f"expected a dimension of {-w.dim()} to {w.dim() - 1}, got {dim}")
    return dim % w.dim()


def stored_dim(w: LowBitWeightTensor, dim: int) -> int:
    """The dimension of the inner tensors that `dim` of the logical shape is."""
    dim = _dim(w, dim)
    return {w.dim() - 1: w.dim() - 2, w.dim() - 2: w.dim() - 1}.get(dim, dim) if w.transposed else dim
