"""The plain decoder that all references share: packed rows to float weights, unrounded, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..format import group_count
from ..packing import unpack

BLOCK = 1 << 18  # weights decoded at a time, in the cache: all that a reference takes beside its inputs and its result


def decode(packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, length: int, dtype: torch.dtype) -> Tensor:
    """`scale * code + zero` `[..., length]`, computed in `dtype` (float32, or float64 for checks)."""
    weights = unpack(packed, bits, length).to(dtype)
    whole = length // group_size
    for start, stop, size in ((0, whole, group_size), (whole, group_count(length, group_size), length - whole * group_size)):
        if start < stop:
            part = weights[..., start * group_size : start * group_size + (stop - start) * size].unflatten(-1, (stop - start, size))
            part.mul_(scales[..., start:stop, None].to(dtype)).add_(zeros[..., start:stop, None].to(dtype))
    return weights


def row_blocks(rows: int, length: int) -> Iterator[slice]:
    """Slices of rows, each of at most BLOCK weights but at least one row."""
    step = max(1, BLOCK // max(length, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def work_dtype(x: Tensor) -> torch.dtype:
    """What a reference computes in: float32, or float64 where it is called directly with float64 to check gradients."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
