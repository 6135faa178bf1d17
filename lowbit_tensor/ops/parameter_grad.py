"""`lowbit::parameter_grad`: from the gradient of the float weight to those of scales and zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..format import check_bits, check_group_size, group_count, row_bytes
from ..packing import unpack
from .checks import check_devices
from .decode import row_blocks, work_dtype
from .registry import register


def reference(grad: Tensor, packed: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    """(sum of grad * code, sum of grad) over each group: grad `[..., K]` to two `[..., G]`, float32 (float64 for float64)."""
    lead, length, work = grad.shape[:-1], grad.shape[-1], work_dtype(grad)
    groups = group_count(length, group_size)
    grad, packed = grad.reshape(lead.numel(), length), packed.reshape(lead.numel(), packed.shape[-1])
    results = [grad.new_empty((*lead, groups), dtype=work) for _ in range(2)]
    sums = [result.view(lead.numel(), groups) for result in results]
    whole = length // group_size
    for rows in row_blocks(*grad.shape):
        block = grad[rows].to(work)
        for out, values in zip(sums, (block * unpack(packed[rows], bits, length), block), strict=True):
            out[rows, :whole] = values[:, : whole * group_size].unflatten(-1, (whole, group_size)).sum(-1)
            if whole < groups:
                out[rows, whole] = values[:, whole * group_size :].sum(-1)
    return results[0], results[1]


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


def check(grad: Tensor, packed: Tensor, bits: int, group_size: int) -> None:
    """Raises TypeError or ValueError for arguments that do not fit each other."""
    check_devices("lowbit::parameter_grad", grad, packed)
    check_bits(bits)
    if check_group_size(group_size) == -1:
        raise ValueError("lowbit::parameter_grad: expected group_size of at least 1, got -1")
    if packed.dtype != torch.uint8:
        raise TypeError(f"lowbit::parameter_grad: expected packed codes of uint8, got {packed.dtype}")
    if grad.dim() == 0 or packed.dim() == 0 or packed.shape[-1] != row_bytes(grad.shape[-1], bits):
        raise ValueError(
            f"lowbit::parameter_grad: expected grad [..., K] and packed [..., ceil(K * {bits} / 8)], "
            f"got {list(grad.shape)} and {list(packed.shape)}"
        )
    if grad.shape[:-1] != packed.shape[:-1]:
        raise ValueError(
            f"lowbit::parameter_grad: expected grad and packed of the same rows, got {list(grad.shape)} and {list(packed.shape)}"
        )


def _kernel(grad: Tensor, packed: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    check(grad, packed, bits, group_size)
    return reference(grad.float(), packed, bits, group_size)


def _fake(grad: Tensor, packed: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    check(grad, packed, bits, group_size)
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
