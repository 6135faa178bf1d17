"""`lowbit::embedding`: rows of the float weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import dequantize
from .checks import check_devices, check_dims, check_weight
from .registry import register


def reference(
    indices: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype
) -> Tensor:
    """Rows `indices` (any shape) of the weight `[N, K]` to `[*indices.shape, K]` of `dtype`. Raises IndexError out of range."""
    check_range(indices, packed.shape[0])
    indices = indices.long()
    return dequantize.reference(packed[indices], scales[indices], zeros[indices], bits, group_size, in_features, dtype)


def check_range(indices: Tensor, rows: int) -> None:
    """Raises IndexError for indices that are not of 0 to rows - 1."""
    if indices.numel():
        low, high = (int(i) for i in indices.aminmax())
        if low < 0 or high >= rows:
            raise IndexError(f"lowbit::embedding: expected indices of 0 to {rows - 1}, got {low} to {high}")


def check(
    indices: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype
) -> None:
    """Raises TypeError or ValueError for arguments that do not fit each other."""
    check_dims("lowbit::embedding", "packed", packed, 2)
    check_devices("lowbit::embedding", packed, indices, scales, zeros)
    check_weight("lowbit::embedding", packed, scales, zeros, bits, group_size, in_features)
    if indices.dtype not in (torch.int64, torch.int32) or not dtype.is_floating_point:
        raise TypeError(f"lowbit::embedding: expected int32 or int64 indices and a floating-point dtype, got {indices.dtype} and {dtype}")


def _kernel(
    indices: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype
) -> Tensor:
    check(indices, packed, scales, zeros, bits, group_size, in_features, dtype)
    return reference(indices, packed, scales, zeros, bits, group_size, in_features, dtype)


def _fake(
    indices: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype
) -> Tensor:
    check(indices, packed, scales, zeros, bits, group_size, in_features, dtype)
    return packed.new_empty((*indices.shape, in_features), dtype=dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    indices, packed, scales, _, ctx.bits, ctx.group_size, _, _ = inputs
    ctx.dtype, ctx.shape = scales.dtype, scales.shape
    ctx.save_for_backward(indices, packed)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    indices, packed = ctx.saved_tensors
    flat = indices.reshape(-1).long()
    rows = torch.ops.lowbit.parameter_grad(grad.reshape(flat.shape[0], grad.shape[-1]), packed[flat], ctx.bits, ctx.group_size)
    grad_scales, grad_zeros = (g.new_zeros(ctx.shape).index_add(0, flat, g).to(ctx.dtype) for g in rows)
    return None, None, grad_scales, grad_zeros, None, None, None, None


register(
    "embedding",
    "(Tensor indices, Tensor packed, Tensor scales, Tensor zeros, int bits, int group_size, int in_features, ScalarType dtype) -> Tensor",
    kernel=_kernel,
    fake=_fake,
    setup_context=_setup,
    backward=_backward,
    batches=True,
)
