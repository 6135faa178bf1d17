"""Round to nearest on the grid that spans a group's minimum and maximum."""

from __future__ import annotations

from torch import Tensor

from .scheme import Scheme, range_parameters


def fit(groups: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """(scale, zero) `[n, 1]` of float32 `groups` `[n, size]`: scale = (max - min) / (2**bits - 1), zero = min."""
    low, high = groups.aminmax(dim=-1, keepdim=True)
    return range_parameters(low, high, scheme)
