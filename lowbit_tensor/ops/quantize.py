"""`lowbit::quantize` and `lowbit::encode`: a float weight to codes, with parameters to be found or given."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import quantize as quantizers
from ..format import Format
from ..quantize.scheme import Scheme
from .checks import check_devices, check_weight
from .registry import register


def check(op: str, w: Tensor) -> None:
    """Raises TypeError for no float weight, ValueError for one without dimensions."""
    if not w.is_floating_point():
        raise TypeError(f"lowbit::{op}: expected a floating-point weight, got {w.dtype}")
    if w.dim() == 0:
        raise ValueError(f"lowbit::{op}: expected a weight [..., K], got {list(w.shape)}")


def reference(
    w: Tensor, bits: int, group_size: int, method: str, scale_dtype: torch.dtype, symmetric: bool, integral_zero: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`[..., N, K]` to packed codes, scales and zeros. Raises ValueError with the place where the weight is not finite."""
    check("quantize", w)
    fmt, scheme = Format(bits, group_size, w.shape[-1]), Scheme(bits, symmetric, integral_zero)
    quantizers.check_finite(w, "w")
    return quantizers.quantize(w, fmt, method, scheme, scale_dtype)


def encode_reference(w: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int) -> Tensor:
    """The packed nearest codes of `w` `[..., N, K]` for `scales` and `zeros` `[..., N, G]`."""
    fmt = check_encode(w, scales, zeros, bits, group_size)
    quantizers.check_finite(w, "w")
    return quantizers.encode(w, scales, zeros, fmt)


def check_encode(w: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int) -> Format:
    """The format; raises TypeError or ValueError for arguments that do not fit each other."""
    check("encode", w)
    check_devices("lowbit::encode", w, scales, zeros)
    fmt = Format(bits, group_size, w.shape[-1])
    rows = w.new_empty((*w.shape[:-1], fmt.row_bytes), dtype=torch.uint8, device="meta")
    check_weight("lowbit::encode", rows, scales, zeros, bits, fmt.group_size, fmt.in_features)
    return fmt


def _fake(
    w: Tensor, bits: int, group_size: int, method: str, scale_dtype: torch.dtype, symmetric: bool, integral_zero: bool
) -> tuple[Tensor, Tensor, Tensor]:
    check("quantize", w)
    quantizers.check_method(method)
    quantizers.check_scale_dtype(scale_dtype)
    fmt, _ = Format(bits, group_size, w.shape[-1]), Scheme(bits, symmetric, integral_zero)
    parameters = [w.new_empty((*w.shape[:-1], fmt.groups), dtype=scale_dtype) for _ in range(2)]
    return w.new_empty((*w.shape[:-1], fmt.row_bytes), dtype=torch.uint8), parameters[0], parameters[1]


def _fake_encode(w: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int) -> Tensor:
    fmt = check_encode(w, scales, zeros, bits, group_size)
    return w.new_empty((*w.shape[:-1], fmt.row_bytes), dtype=torch.uint8)


register(
    "quantize",
    "(Tensor w, int bits, int group_size, str method, ScalarType scale_dtype, bool symmetric, bool integral_zero)"
    " -> (Tensor, Tensor, Tensor)",
    kernel=reference,
    fake=_fake,
)
register(
    "encode", "(Tensor w, Tensor scales, Tensor zeros, int bits, int group_size) -> Tensor", kernel=encode_reference, fake=_fake_encode
)
