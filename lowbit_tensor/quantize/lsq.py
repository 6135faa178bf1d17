"""Least squares: search over clipping, then alternate between nearest codes and the best (scale, zero) for them."""

from __future__ import annotations

import torch
from torch import Tensor

from .scheme import Scheme, least_squares, nearest_codes, range_parameters, squared_error

# Shares of the group's range to start from, by width: the fewer the codes, the more of the tails it pays to clip.
CLIPS = {
    1: (1.0, 0.6),
    2: (1.0, 0.9, 0.8, 0.7, 0.6),
    3: (1.0, 0.92, 0.84, 0.76),
    4: (1.0, 0.95, 0.9, 0.85),
    5: (1.0, 0.96, 0.92),
    6: (1.0, 0.97),
    7: (1.0,),
    8: (1.0,),
}
STEPS = 8


def fit(groups: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """(scale, zero) `[n, 1]` of float32 `groups` `[n, size]`; never a larger squared error than `minmax`.

    Each start is refined by alternating least squares (Lloyd's algorithm with equal steps), which cannot raise the error; the best is kept.
    """
    low, high = groups.aminmax(dim=-1, keepdim=True)
    best_scale, best_zero = range_parameters(low, high, scheme)
    codes = nearest_codes(groups, best_scale, best_zero, scheme.max_code)
    best = squared_error(groups, codes, best_scale, best_zero)
    middle = low / 2 + high / 2
    for clip in CLIPS[scheme.bits]:
        scale, zero = range_parameters(torch.lerp(middle, low, clip), torch.lerp(middle, high, clip), scheme)
        for _ in range(STEPS):
            codes = nearest_codes(groups, scale, zero, scheme.max_code)
            scale, zero = least_squares(groups, codes, scale, zero, scheme)
        codes = nearest_codes(groups, scale, zero, scheme.max_code)
        error = squared_error(groups, codes, scale, zero)
        better = error < best  # False for NaN
        best = torch.where(better, error, best)
        best_scale, best_zero = torch.where(better, scale, best_scale), torch.where(better, zero, best_zero)
    return best_scale, best_zero
