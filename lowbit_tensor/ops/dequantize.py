"""`lowbit::dequantize`: the float weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .checks import check_devices, check_weight
from .decode import decode, row_blocks
from .registry import register


def reference(packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype) -> Tensor:
    """`[..., N, K]` of `dtype`: `scale * code + zero` computed in float32, rounded once."""
    lead = packed.shape[:-1]
    result = torch.empty((*lead, in_features), dtype=dtype, device=packed.device)
    out = result.view(lead.numel(), in_features)
    packed, scales, zeros = (t.reshape(lead.numel(), t.shape[-1]) for t in (packed, scales, zeros))
    for rows in row_blocks(*out.shape):
        out[rows] = decode(packed[rows], scales[rows], zeros[rows], bits, group_size, in_features, torch.float32)
    return result


def check(packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype) -> None:
    """Raises TypeError or ValueError for arguments that do not fit each other."""
    check_devices("lowbit::dequantize", packed, scales, zeros)
    check_weight("lowbit::dequantize", packed, scales, zeros, bits, group_size, in_features)
    if not dtype.is_floating_point:
        raise TypeError(f"lowbit::dequantize: expected a floating-point dtype, got {dtype}; codes() gives the codes")


def _kernel(packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype) -> Tensor:
    check(packed, scales, zeros, bits, group_size, in_features, dtype)
    return reference(packed, scales, zeros, bits, group_size, in_features, dtype)


def _fake(packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype) -> Tensor:
    check(packed, scales, zeros, bits, group_size, in_features, dtype)
    return packed.new_empty((*packed.shape[:-1], in_features), dtype=dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    packed, scales, _, ctx.bits, ctx.group_size, _, _ = inputs
    ctx.dtype = scales.dtype
    ctx.save_for_backward(packed)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (packed,) = ctx.saved_tensors
    grad_scales, grad_zeros = torch.ops.lowbit.parameter_grad(grad, packed, ctx.bits, ctx.group_size)
    return None, grad_scales.to(ctx.dtype), grad_zeros.to(ctx.dtype), None, None, None, None


register(
    "dequantize",
    "(Tensor packed, Tensor scales, Tensor zeros, int bits, int group_size, int in_features, ScalarType dtype) -> Tensor",
    kernel=_kernel,
    fake=_fake,
    setup_context=_setup,
    backward=_backward,
)
