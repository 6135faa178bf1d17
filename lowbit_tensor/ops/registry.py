"""How an op is made: its schema, reference, fake, gradient and autocast rule, put together in one call.

The reference serves every device through CompositeExplicitAutograd; a backend registers its kernel for its own key and so comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

LIBRARY = torch.library.Library("lowbit", "DEF")
AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "mps": "AutocastMPS"}


def register(
    name: str,
    arguments: str,
    *,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    autocast: bool = False,
    batches: bool = False,
    product: bool = False,
) -> None:
    """Defines `lowbit::name`; with `autocast` its first argument is cast to autocast's dtype where that is on.

    `product`: each output is a sum over the last dimension of `x`, which is what `torch.utils.flop_counter` counts.
    `batches`: the first argument may have any leading dimensions, so `torch.func.vmap` over it alone is one call.
    """
    LIBRARY.define(name + arguments, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"lowbit::{name}", fake, lib=LIBRARY)
    if backward is not None:
        torch.library.register_autograd(f"lowbit::{name}", backward, setup_context=setup_context, lib=LIBRARY)
    if batches:
        torch.library.register_vmap(f"lowbit::{name}", _vmap(name), lib=LIBRARY)
    if product:
        register_flop_formula(getattr(torch.ops.lowbit, name))(_flops)
    if autocast:
        for device, key in AUTOCAST.items():
            LIBRARY.impl(name, _autocast(name, device), key)


def _flops(x_shape: Sequence[int], *shapes: Any, out_shape: Sequence[int], **_: Any) -> int:
    return 2 * math.prod(x_shape) * out_shape[-1]


def _vmap(name: str) -> Callable[..., tuple[Tensor, int]]:
    def batched(info: Any, in_dims: tuple[int | None, ...], x: Tensor, *rest: Any) -> tuple[Tensor, int]:
        if in_dims[0] is None or any(d is not None for d in in_dims[1:]):
            raise NotImplementedError(f"lowbit::{name}: expected vmap over the first argument alone, got in_dims {in_dims}")
        return getattr(torch.ops.lowbit, name).default(x.movedim(in_dims[0], 0), *rest), 0

    return batched


def _autocast(name: str, device: str) -> Callable[..., Tensor]:
    def cast(x: Tensor, *rest: Any) -> Tensor:
        op = getattr(torch.ops.lowbit, name).default
        with torch.amp.autocast(device, enabled=False):
            return op(x.to(torch.get_autocast_dtype(device)) if x.is_floating_point() and x.dtype != torch.float64 else x, *rest)

    return cast
