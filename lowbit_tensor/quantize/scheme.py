"""What all quantizers share: the constraints on (scale, zero) and nearest codes for given parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..format import max_code


@dataclass(frozen=True)
class Scheme:
    """The codes' width and the constraints on (scale, zero); docs/format.md, section 4."""

    bits: int
    symmetric: bool = False
    integral_zero: bool = False

    def __post_init__(self) -> None:
        for name in ("symmetric", "integral_zero"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}: expected True or False, got {getattr(self, name)!r}")
        if self.symmetric and self.integral_zero and self.bits == 1:
            raise ValueError("symmetric with integral_zero: expected 2 bits or more, since the zero of 1 symmetric bit is -scale / 2")

    @property
    def max_code(self) -> int:
        """The largest code."""
        return max_code(self.bits)

    @property
    def middle(self) -> float:
        """The code, not always whole, that stands for 0 in a symmetric scheme."""
        return 0.5 if self.bits == 1 else float(1 << (self.bits - 1))


def nearest_codes(groups: Tensor, scale: Tensor, zero: Tensor, max_code: int) -> Tensor:
    """Codes, as floats, nearest to `groups` `[n, size]` for `scale` and `zero` `[n, 1]`; any code where the scale is 0."""
    codes = (groups - zero).div_(scale).round_().clamp_(0, max_code)
    return codes.nan_to_num_(nan=0.0)  # 0 / 0, in groups whose scale is 0; the clamp has dealt with infinities


def squared_error(groups: Tensor, codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Sum over each group of (scale * code + zero - weight) ** 2, `[n, 1]`."""
    return torch.addcmul(zero, codes, scale).sub_(groups).square_().sum(-1, keepdim=True)


def range_parameters(low: Tensor, high: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """(scale, zero) of the grid that spans `low` to `high`, both `[n, 1]`, within the scheme's constraints."""
    if scheme.symmetric:
        scale = torch.maximum(low.abs(), high.abs()) / (2 ** (scheme.bits - 1) - 0.5)
        return scale, -scheme.middle * scale
    if scheme.integral_zero:
        low, high = low.clamp(max=0), high.clamp(min=0)
    scale = high / scheme.max_code - low / scheme.max_code  # divided first: high - low can overflow
    if scheme.integral_zero:
        return scale, -zero_point(low, scale, scheme) * scale
    return scale, low.clone()


def zero_point(zero: Tensor, scale: Tensor, scheme: Scheme) -> Tensor:
    """The whole number of steps from `zero` up to 0, kept within the codes."""
    return (-zero / scale).round_().clamp_(0, scheme.max_code).nan_to_num_(nan=0.0)


def least_squares(groups: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """(scale, zero) that minimise the squared error for fixed codes; the old ones where the codes do not determine them.

    Ordinary linear regression of the weights on the codes, with the line's height at the zero point fixed where the scheme asks for it.
    """
    if not scheme.symmetric:
        mean_code, mean = codes.mean(-1, keepdim=True), groups.mean(-1, keepdim=True)
        centred = codes - mean_code
        spread = centred.square().sum(-1, keepdim=True)
        slope = (centred * groups).sum(-1, keepdim=True) / spread
        slope = torch.where(spread > 0, slope, scale)
        offset = mean - slope * mean_code
        if not scheme.integral_zero:
            return slope, offset
        scale, zero = slope, offset
    pivot = scheme.middle if scheme.symmetric else zero_point(zero, scale, scheme)
    steps = codes - pivot
    spread = steps.square().sum(-1, keepdim=True)
    slope = (steps * groups).sum(-1, keepdim=True) / spread
    slope = torch.where(spread > 0, slope, scale)
    return slope, -pivot * slope
