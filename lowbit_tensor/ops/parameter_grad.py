"""`lowbit::parameter_grad`: from the gradient of the float weight to those of scales and zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..format import group_count
from ..packing import unpack
from .checks import check_devices
from .decode import row_blocks, work_dtype
from .registry import register


def reference(grad: Tensor, packed: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    """(sum of grad * code, sum of grad) over each group: grad `[..., K]` to two `[..., G]`, float32 (float64 for float64)."""
    lead, length, work = grad.shape[:-1], grad.shape[-1], work_dtype(grad)
    groups = group_count(length, group_size)
    grad, packed = grad.reshape(lead.numel(), length), packed.reshape(lead.numel(), packed.shape[-1])
    out = grad.new_empty((2, grad.shape[0], groups), dtype=work)
    for rows in row_blocks(*grad.shape):
        block = grad[rows].to(work)
        for k, values in enumerate((block * unpack(packed[rows], bits, length), block)):
            out[k, rows] = torch.nn.functional.pad(values, (0, groups * group_size - length)).unflatten(-1, (groups, group_size)).sum(-1)
    return out[0].view(*lead, groups), out[1].view(*lead, groups)


def weight_grads(
    needed: tuple[bool, ...], left: Tensor, right: Tensor | None, packed: Tensor, dtype: torch.dtype, bits: int, group_size: int
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients to (scales, zeros), where `needed`, of a product whose float weight has the gradient left.T @ right.

    left `[..., N]`, right `[..., K]` (None where nothing is needed), in `dtype`.
    """
    if right is None or not any(needed):
        return None, None
    left, right = (t.reshape(-1, t.shape[-1]).float() for t in (left, right))
    grads = torch.ops.lowbit.parameter_grad(left.t() @ right, packed, bits, group_size)
    return grads[0].to(dtype) if needed[0] else None, grads[1].to(dtype) if needed[1] else None


def _kernel(grad: Tensor, packed: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    check_devices("lowbit::parameter_grad", grad, packed)
    if grad.shape[:-1] != packed.shape[:-1]:
        raise ValueError(
            f"lowbit::parameter_grad: expected grad and packed of the same rows, got {list(grad.shape)} and {list(packed.shape)}"
        )
    return reference(grad.float(), packed, bits, group_size)


def _fake(grad: Tensor, packed: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    shape = (*grad.shape[:-1], group_count(grad.shape[-1], group_size))
    return grad.new_empty(shape, dtype=torch.float32), grad.new_empty(shape, dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    grad, packed, ctx.bits, ctx.group_size = inputs
    ctx.length, ctx.dtype = grad.shape[-1], grad.dtype
    ctx.save_for_backward(packed)


def _backward(ctx: Any, grad_scales: Tensor, grad_zeros: Tensor) -> tuple[Tensor | None, ...]:
    (packed,) = ctx.saved_tensors  # linear in grad, so its gradient is the decoder itself
    grad = torch.ops.lowbit.dequantize(packed, grad_scales, grad_zeros, ctx.bits, ctx.group_size, ctx.length, torch.float32)
    return grad.to(ctx.dtype), None, None, None


register(
    "parameter_grad",
    "(Tensor grad, Tensor packed, int bits, int group_size) -> (Tensor, Tensor)",
    kernel=_kernel,
    fake=_fake,
    setup_context=_setup,
    backward=_backward,
)
