"""`lowbit::matmul`: x @ W, the product with the weight as it lies; the gradient of `lowbit::linear` to x."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .checks import check_activations, check_devices, check_dims, check_weight
from .decode import decode, row_blocks, work_dtype
from .parameter_grad import weight_grads
from .registry import register


def check(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int) -> None:
    """Raises TypeError or ValueError for arguments that do not fit each other."""
    check_activations("lowbit::matmul", x, scales.dtype)
    check_dims("lowbit::matmul", "packed", packed, 2)
    check_devices("lowbit::matmul", x, packed, scales, zeros)
    check_weight("lowbit::matmul", packed, scales, zeros, bits, group_size, in_features)
    if x.dim() == 0 or x.shape[-1] != packed.shape[0]:
        raise ValueError(
            f"lowbit::matmul: expected x[..., {packed.shape[0]}], got x{list(x.shape)}; "
            f"weight {packed.shape[0]}x{in_features}, {bits} bits, group {group_size}"
        )


def reference(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int) -> Tensor:
    """x `[..., N]`, weight `[N, K]` in parts to `[..., K]` of x's dtype; sums in float32 (float64 for float64 x)."""
    lead, work = x.shape[:-1], work_dtype(x)
    rows = x.reshape(lead.numel(), packed.shape[0]).to(work)
    result = rows.new_zeros((*lead, in_features))
    out = result.view(lead.numel(), in_features)
    for block in row_blocks(packed.shape[0], in_features):
        out.addmm_(rows[:, block], decode(packed[block], scales[block], zeros[block], bits, group_size, in_features, work))
    return result.to(x.dtype)


def _kernel(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int) -> Tensor:
    check(x, packed, scales, zeros, bits, group_size, in_features)
    return reference(x, packed, scales, zeros, bits, group_size, in_features)


def _fake(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int) -> Tensor:
    check(x, packed, scales, zeros, bits, group_size, in_features)
    return x.new_empty((*x.shape[:-1], in_features))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, packed, scales, zeros, ctx.bits, ctx.group_size, _ = inputs
    ctx.save_for_backward(x if scales.requires_grad or zeros.requires_grad else None, packed, scales, zeros)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, packed, scales, zeros = ctx.saved_tensors
    grad_x = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.ops.lowbit.linear(grad, packed, scales, zeros, None, ctx.bits, ctx.group_size)
    grad_scales, grad_zeros = weight_grads(ctx.needs_input_grad[2:4], x, grad, packed, scales.dtype, ctx.bits, ctx.group_size)
    return grad_x, None, grad_scales, grad_zeros, None, None, None


register(
    "matmul",
    "(Tensor x, Tensor packed, Tensor scales, Tensor zeros, int bits, int group_size, int in_features) -> Tensor",
    kernel=_kernel,
    fake=_fake,
    setup_context=_setup,
    backward=_backward,
    autocast=True,
    product=True,
    batches=True,
)
