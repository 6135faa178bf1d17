"""Half-quadratic quantization: the zero that makes the residual sparse, so that few weights far out do not move all others.

After Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023): minimise the l_p norm (p < 1) of
weight - (scale * code + zero) by splitting off a sparse part e, alternating its shrinkage with the best zero. Here a group is first divided
by its scale, so that residuals are of order 1/2 and the shrinkage acts on them whatever the weights' magnitude.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .scheme import Scheme, nearest_codes, range_parameters, zero_point

P = 0.7  # the norm
BETA = 10.0  # weight of the quadratic term, in units of one step; grows by KAPPA each time
KAPPA = 1.01
STEPS = 20


def fit(groups: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """(scale, zero) `[n, 1]` of float32 `groups` `[n, size]`: the scale of `minmax`, the zero optimized; symmetric groups keep theirs."""
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale, zero = range_parameters(low, high, scheme)
    if scheme.symmetric:
        return scale, zero
    unit = torch.ones_like(scale)
    steps = (groups / scale).nan_to_num_(nan=0.0)  # groups of one value have scale 0 and keep their zero below
    offset = (zero / scale).nan_to_num_(nan=0.0)
    beta = BETA
    for _ in range(STEPS):
        codes = nearest_codes(steps, unit, offset, scheme.max_code)
        gap = steps - codes
        offset = (gap - _shrink(gap - offset, beta)).mean(-1, keepdim=True)
        beta *= KAPPA
    zero = torch.where(scale > 0, offset * scale, zero)
    if scheme.integral_zero:
        zero = -zero_point(zero, scale, scheme) * scale
    return scale, zero


def _shrink(residual: Tensor, beta: float) -> Tensor:
    """The proximal operator of the l_p norm: sign(r) * max(|r| - |r|**(p - 1) / beta, 0)."""
    size = residual.abs()
    return size.sub(size.pow(P - 1) / beta).clamp_(min=0).mul_(residual.sign())
