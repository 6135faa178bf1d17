"""`F.linear` of few plain rows in eager mode, straight to the library: what PyTorch's dispatcher costs shows on small layers.

All else goes through the op: gradients, autocast, compiling, tracing, modes, transforms, other devices, dtypes, strides and groups.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from . import library
from .launch import KINDS, covers

_MAX_ROWS = library.MAX_ROWS


def quick_linear(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int, group_size: int, in_features: int
) -> Tensor | None:
    """x `[..., in_features]` @ W.T + bias, or None where the op must serve. The parts are those of a weight, and so fit each other."""
    if is_compiling() or type(x) is not Tensor or not x.is_cpu or not library.ready:
        return None
    if torch.is_grad_enabled() and (
        x.requires_grad or scales.requires_grad or zeros.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return None
    if torch._C._len_torch_dispatch_stack() or functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return None
    if torch._C._is_tracing() or torch.is_autocast_enabled("cpu"):
        return None
    shape, kind = x.shape, KINDS.get(x.dtype)
    if kind is None or not shape or shape[-1] != in_features or not packed.is_cpu:
        return None
    rows, outputs = shape.numel() // in_features if in_features else 0, packed.shape[0]
    if not 0 < rows <= _MAX_ROWS or not outputs or not covers(group_size, in_features):
        return None
    if not (x.is_contiguous() and packed.is_contiguous() and scales.is_contiguous() and zeros.is_contiguous()):
        return None
    pointer, bias_kind = None, 0
    if bias is not None:
        bias_kind = KINDS.get(bias.dtype, -1)
        if bias_kind < 0 or bias.shape != (outputs,) or not bias.is_contiguous() or not bias.is_cpu:
            return None
        pointer = bias.data_ptr()
    y = torch.empty((*shape[:-1], outputs), dtype=x.dtype, device="cpu")
    library.LIBRARY.lowbit_linear(  # type: ignore[union-attr]
        x.data_ptr(), kind, rows, packed.data_ptr(), scales.data_ptr(), zeros.data_ptr(), outputs, in_features,
        min(group_size, in_features), bits, KINDS[scales.dtype], pointer, bias_kind, y.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return y
