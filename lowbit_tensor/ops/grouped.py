"""`lowbit::grouped_linear` and `lowbit::grouped_matmul`: each row with the matrix of its expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import linear, matmul
from .checks import check_activations, check_devices, check_dims, check_weight
from .registry import register


def check(
    op: str, x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, expert: Tensor, bits: int, group_size: int, in_features: int
) -> None:
    """Raises TypeError or ValueError for arguments that do not fit each other."""
    where = f"lowbit::{op}"
    check_activations(where, x, scales.dtype)
    check_dims(where, "x", x, 2)
    check_dims(where, "packed", packed, 3)
    check_devices(where, x, packed, scales, zeros, expert)
    check_weight(where, packed, scales, zeros, bits, group_size, in_features)
    if expert.dtype not in (torch.int64, torch.int32) or tuple(expert.shape) != (x.shape[0],):
        raise ValueError(f"lowbit::{op}: expected int32 or int64 expert [{x.shape[0]}], got {list(expert.shape)} of {expert.dtype}")


def by_expert(op: str, x: Tensor, packed: Tensor, expert: Tensor, width: int, product: Callable[[Tensor, int], Tensor]) -> Tensor:
    """`[M, width]`: product(rows of one expert, its number) for every expert that occurs. Raises IndexError out of range."""
    out = x.new_empty((x.shape[0], width))
    for e in expert.unique().tolist():
        if not 0 <= e < packed.shape[0]:
            raise IndexError(f"lowbit::{op}: expected experts of 0 to {packed.shape[0] - 1}, got {e}")
        rows = (expert == e).nonzero().squeeze(-1)
        out[rows] = product(x[rows], e)
    return out


def grouped_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, expert: Tensor, bits: int, group_size: int) -> Tensor:
    """x `[M, K]`, weights `[E, N, K]` in parts, expert `[M]` to `[M, N]` of x's dtype."""

    def product(rows: Tensor, e: int) -> Tensor:
        return linear.reference(rows, packed[e], scales[e], zeros[e], None, bits, group_size)

    return by_expert("grouped_linear", x, packed, expert, packed.shape[1], product)


def grouped_matmul(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, expert: Tensor, bits: int, group_size: int, in_features: int
) -> Tensor:
    """x `[M, N]`, weights `[E, N, K]` in parts, expert `[M]` to `[M, K]` of x's dtype."""

    def product(rows: Tensor, e: int) -> Tensor:
        return matmul.reference(rows, packed[e], scales[e], zeros[e], bits, group_size, in_features)

    return by_expert("grouped_matmul", x, packed, expert, in_features, product)


def check_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, expert: Tensor, bits: int, group_size: int) -> None:
    """`check` with the arguments of the op."""
    check("grouped_linear", x, packed, scales, zeros, expert, bits, group_size, x.shape[-1] if x.dim() else 0)


def check_matmul(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, expert: Tensor, bits: int, group_size: int, in_features: int
) -> None:
    """`check` with the arguments of the op."""
    check("grouped_matmul", x, packed, scales, zeros, expert, bits, group_size, in_features)
    if x.shape[1] != packed.shape[1]:
        raise ValueError(f"lowbit::grouped_matmul: expected x[M, {packed.shape[1]}], got x{list(x.shape)}")


def _linear_kernel(*args: Any) -> Tensor:
    check_linear(*args)
    return grouped_linear(*args)


def _linear_fake(*args: Any) -> Tensor:
    check_linear(*args)
    return args[0].new_empty((args[0].shape[0], args[1].shape[1]))


def _matmul_kernel(*args: Any) -> Tensor:
    check_matmul(*args)
    return grouped_matmul(*args)


def _matmul_fake(*args: Any) -> Tensor:
    check_matmul(*args)
    return args[0].new_empty((args[0].shape[0], args[-1]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, packed, scales, zeros, expert, ctx.bits, ctx.group_size = inputs[:7]
    ctx.length = x.shape[-1]
    ctx.save_for_backward(x if scales.requires_grad or zeros.requires_grad else None, packed, scales, zeros, expert)


def _parameter_grads(ctx: Any, left: Tensor | None, right: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """As `weight_grads`, with the rows sorted out to their experts: the weight's gradient is `[E, N, K]`."""
    needed = ctx.needs_input_grad[2:4]
    if left is None or right is None or not any(needed):
        return None, None
    _, packed, scales, _, expert = ctx.saved_tensors
    chosen = torch.nn.functional.one_hot(expert.long(), packed.shape[0]).float()
    grad = torch.einsum("me,mn,mk->enk", chosen, left.float(), right.float())
    grads = torch.ops.lowbit.parameter_grad(grad, packed, ctx.bits, ctx.group_size)
    return grads[0].to(scales.dtype) if needed[0] else None, grads[1].to(scales.dtype) if needed[1] else None


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, packed, scales, zeros, expert = ctx.saved_tensors
    grad_x = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.ops.lowbit.grouped_matmul(grad, packed, scales, zeros, expert, ctx.bits, ctx.group_size, ctx.length)
    return grad_x, None, *_parameter_grads(ctx, grad, x), None, None, None


def _matmul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, packed, scales, zeros, expert = ctx.saved_tensors
    grad_x = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.ops.lowbit.grouped_linear(grad, packed, scales, zeros, expert, ctx.bits, ctx.group_size)
    return grad_x, None, *_parameter_grads(ctx, x, grad), None, None, None, None


register(
    "grouped_linear",
    "(Tensor x, Tensor packed, Tensor scales, Tensor zeros, Tensor expert, int bits, int group_size) -> Tensor",
    kernel=_linear_kernel,
    fake=_linear_fake,
    setup_context=_setup,
    backward=_linear_backward,
    autocast=True,
    product=True,
)
register(
    "grouped_matmul",
    "(Tensor x, Tensor packed, Tensor scales, Tensor zeros, Tensor expert, int bits, int group_size, int in_features) -> Tensor",
    kernel=_matmul_kernel,
    fake=_matmul_fake,
    setup_context=_setup,
    backward=_matmul_backward,
    autocast=True,
    product=True,
)
