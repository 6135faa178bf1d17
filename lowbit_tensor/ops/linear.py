"""`lowbit::linear`: x @ W.T + bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .checks import check_activations, check_devices, check_dims, check_weight
from .decode import decode, row_blocks, work_dtype
from .parameter_grad import weight_grads
from .registry import register


def check(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int, group_size: int) -> None:
    """Raises TypeError or ValueError for arguments that do not fit each other."""
    check_activations("lowbit::linear", x, scales.dtype)
    check_dims("lowbit::linear", "packed", packed, 2)
    check_devices("lowbit::linear", x, packed, scales, zeros, bias)
    if x.dim() == 0:
        raise ValueError("lowbit::linear: expected x [..., K], got a tensor without dimensions")
    check_weight("lowbit::linear", packed, scales, zeros, bits, group_size, x.shape[-1])
    if bias is not None and (tuple(bias.shape) != (packed.shape[0],) or not bias.is_floating_point()):
        raise ValueError(f"lowbit::linear: expected a float bias [{packed.shape[0]}], got {list(bias.shape)} of {bias.dtype}")


def reference(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int, group_size: int) -> Tensor:
    """x `[..., K]`, weight `[N, K]` in parts, bias `[N]` to `[..., N]` of x's dtype; sums in float32 (float64 for float64 x)."""
    lead, length, work = x.shape[:-1], x.shape[-1], work_dtype(x)
    rows = x.reshape(lead.numel(), length).to(work)
    result = rows.new_empty((*lead, packed.shape[0]))  # what an op returns is no view: users write to it in place
    out = result.view(lead.numel(), packed.shape[0])
    for block in row_blocks(packed.shape[0], length):
        weights = decode(packed[block], scales[block], zeros[block], bits, group_size, length, work)
        out[:, block] = rows @ weights.t()
    if bias is not None:
        out += bias.to(work)
    return result.to(x.dtype)


def _kernel(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int, group_size: int) -> Tensor:
    check(x, packed, scales, zeros, bias, bits, group_size)
    return reference(x, packed, scales, zeros, bias, bits, group_size)


def _fake(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int, group_size: int) -> Tensor:
    check(x, packed, scales, zeros, bias, bits, group_size)
    return x.new_empty((*x.shape[:-1], packed.shape[0]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, packed, scales, zeros, bias, ctx.bits, ctx.group_size = inputs
    ctx.length, ctx.bias_dtype = x.shape[-1], None if bias is None else bias.dtype
    ctx.save_for_backward(x if scales.requires_grad or zeros.requires_grad else None, packed, scales, zeros)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, packed, scales, zeros = ctx.saved_tensors
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.ops.lowbit.matmul(grad, packed, scales, zeros, ctx.bits, ctx.group_size, ctx.length)
    if ctx.needs_input_grad[4]:
        grad_bias = grad.flatten(0, -2).sum(0, dtype=torch.float32).to(ctx.bias_dtype) if grad.dim() > 1 else grad.to(ctx.bias_dtype)
    grad_scales, grad_zeros = weight_grads(ctx.needs_input_grad[2:4], grad, x, packed, scales.dtype, ctx.bits, ctx.group_size)
    return grad_x, None, grad_scales, grad_zeros, grad_bias, None, None


register(
    "linear",
    "(Tensor x, Tensor packed, Tensor scales, Tensor zeros, Tensor? bias, int bits, int group_size) -> Tensor",
    kernel=_kernel,
    fake=_fake,
    setup_context=_setup,
    backward=_backward,
    autocast=True,
    product=True,
    batches=True,
)
