"""Embeddings: rows of a weight `[N, K]`, looked up or summed by bags."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling

from ..tensor import LowBitWeightTensor
from .table import function, operator


@function(F.embedding)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    _check("embedding", weight, max_norm)
    rows = _rows(input, weight)
    if rows.requires_grad and (scale_grad_by_freq or sparse):
        raise NotImplementedError("embedding: expected neither scale_grad_by_freq nor sparse where scales and zeros are trained")
    return rows if padding_idx is None or not rows.requires_grad else _padded(rows, input, padding_idx % weight.shape[0])


def _padded(rows: Tensor, indices: Tensor, padding: int) -> Tensor:
    """`rows` without the gradient of those at index `padding`."""
    return torch.where((indices == padding)[..., None], rows.detach(), rows)


@operator("embedding", "embedding")
def aten_embedding(op: Any, weight: Tensor, indices: Tensor, *gradient_options: Any) -> Tensor:
    return embedding(indices, weight)


@function(F.embedding_bag)
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Bags of the rows that occur, each decoded once. `scale_grad_by_freq` and `sparse` are of the weight's gradient, which has none."""
    _check("embedding_bag", weight, max_norm)
    if is_compiling():  # which rows occur is not known: all are decoded
        rows, places, padding = weight.dequantize(), input, padding_idx
    else:
        rows, places, padding = _occurring(input, weight, padding_idx)
    if per_sample_weights is not None:
        per_sample_weights = per_sample_weights.to(rows.dtype)
    return F.embedding_bag(places, rows, offsets, None, 2, False, mode, False, per_sample_weights, include_last_offset, padding)


def _occurring(input: Tensor, weight: Tensor, padding_idx: int | None) -> tuple[Tensor, Tensor, int | None]:
    """(the rows that occur, where in them each index of `input` is, where the padding is): the padding's own place comes last."""
    used, places = input.unique(return_inverse=True)
    rows = _rows(used, weight)
    if padding_idx is None:
        return rows, places, None
    rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    return rows, places.masked_fill(input == padding_idx % weight.shape[0], len(used)), len(used)


def _check(name: str, weight: Tensor, max_norm: float | None) -> None:
    w = weight
    if not isinstance(w, LowBitWeightTensor) or w.transposed or w.packed.dim() != 2:
        raise NotImplementedError(f"{name}: expected a low-bit weight [N, K] that is not transposed; use w.dequantize()")
    if max_norm is not None:
        raise NotImplementedError(f"{name}: expected no max_norm, which rewrites rows of the weight; use w.dequantize()")


def _rows(indices: Tensor, weight: Tensor) -> Tensor:
    w: Any = weight
    return torch.ops.lowbit.embedding(indices, w.packed, w.scales, w.zeros, w.bits, w.group_size, w.in_features, w.dtype)
