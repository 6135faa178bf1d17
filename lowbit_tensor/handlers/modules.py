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
    """Asked by `Module.to` before it swaps a weight for the converted one: attributes that others have put on it go along."""
    if isinstance(weight, LowBitWeightTensor) and isinstance(converted, LowBitWeightTensor):
        converted.__dict__.update({name: value for name, value in weight.__dict__.items() if name not in converted.__dict__})
    with torch._C.DisableTorchFunctionSubclass():
        return torch._has_compatible_shallow_copy_type(weight, converted)


def _mark_buffer(module: nn.Module, name: str, buffer: Any) -> None:
    """A registered low-bit buffer, and what is made of it by `.half()`, `.detach()` and the like, is no parameter."""
    if isinstance(buffer, LowBitWeightTensor):
        buffer._registered = True


register_module_buffer_registration_hook(_mark_buffer)
