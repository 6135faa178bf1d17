"""The default: at each width the data-free fit that docs/quality.md found best on whole models, the quickest where several are alike."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from . import hqq, lsq, minmax
from .scheme import Scheme

BY_WIDTH = {1: lsq, 2: lsq, 3: lsq, 4: minmax, 5: hqq, 6: hqq, 7: minmax, 8: minmax}
WHOLE_ZERO = (2, 3, 4)  # widths at which a group that spans 0 keeps 0 as a code: with few codes that matters most


def fit(groups: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """(scale, zero) `[n, 1]` of float32 `groups` `[n, size]`: by `BY_WIDTH` (`lsq` where symmetric), the zero as `WHOLE_ZERO` says."""
    method = lsq if scheme.symmetric else BY_WIDTH[scheme.bits]
    if scheme.symmetric or scheme.integral_zero or scheme.bits not in WHOLE_ZERO:
        return method.fit(groups, scheme)
    scale, zero = method.fit(groups, replace(scheme, integral_zero=True))
    low, high = groups.aminmax(dim=-1)
    apart = ((low > 0) | (high < 0)).nonzero().squeeze(-1)  # such a group would waste codes on reaching 0
    if apart.numel():
        scale[apart], zero[apart] = method.fit(groups[apart], scheme)
    return scale, zero
