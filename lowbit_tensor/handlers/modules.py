"""What `torch.nn.Module` asks of a parameter beside its ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from ..tensor import LowBitWeightTensor
from .table import function


@function(torch._has_compatible_shallow_copy_type)
def compatible(weight: Tensor, converted: Tensor) -> bool:
    """Asked by `Module.to` before it swaps a weight for the converted one: what is trained stays, and so do attributes of others."""
    if isinstance(weight, LowBitWeightTensor) and isinstance(converted, LowBitWeightTensor):
        for name in ("scales", "zeros"):
            if getattr(weight, name).requires_grad:
                setattr(converted, name, _moved(getattr(weight, name), getattr(converted, name).detach()))
                converted.__dict__["_kept"] = True  # until `detach`, which makes the parameter
        converted.__dict__.update({name: value for name, value in weight.__dict__.items() if name not in converted.__dict__})
    with torch._C.DisableTorchFunctionSubclass():
        return torch._has_compatible_shallow_copy_type(weight, converted)


def _moved(leaf: Tensor, value: Tensor) -> Tensor:
    """`leaf` with another value, on which an optimizer goes on; a new one where PyTorch cannot put `value` in its place."""
    if not torch._has_compatible_shallow_copy_type(leaf, value):
        return value.requires_grad_()
    grad, leaf.grad = leaf.grad, None
    leaf.data = value
    leaf.grad = None if grad is None else grad.to(value.device)
    return leaf


def _mark_buffer(module: nn.Module, name: str, buffer: Any) -> None:
    """A registered low-bit buffer, and what is made of it by `.half()`, `.detach()` and the like, is no parameter."""
    if isinstance(buffer, LowBitWeightTensor):
        buffer._role = "buffer"


register_module_buffer_registration_hook(_mark_buffer)
