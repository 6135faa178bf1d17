"""Arithmetic: functional ops give plain tensors, in-place ops re-quantize into the existing bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..tensor import LowBitWeightTensor
from .memory import write
from .table import function, operator

FUNCTIONAL = """
abs add all allclose amax amin aminmax any bitwise_not clamp cos cumsum div dot eq exp full_like ge gt histc isfinite isinf isnan le
linalg_qr linalg_vector_norm _linalg_svd log lt max mean min mul ne neg norm ones_like pow reciprocal relu round rsub sigmoid sign sin
sort sqrt std sub sum tanh topk var where
""".split()
IN_PLACE = "add_ addcdiv_ addcmul_ clamp_ div_ fill_ lerp_ mul_ neg_ normal_ sub_ uniform_ zero_".split()


def dequantized(tree: Any) -> Any:
    """Every low-bit tensor in a tree of arguments as a plain one."""
    return tree_map_only(LowBitWeightTensor, lambda w: w.dequantize(), tree)


def _on_dequantized(func: Any) -> None:
    """Registers a function of torch that is to run on the dequantized weight, with the gradient to its other operands kept."""

    @function(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*dequantized(args), **dequantized(kwargs))


for _func in (torch.einsum, torch.tensordot, torch.inner, torch.baddbmm, torch.nn.functional.bilinear):
    _on_dequantized(_func)


@operator("arithmetic", *FUNCTIONAL)
def functional(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*dequantized(args), **dequantized(kwargs))


@operator("in-place", *IN_PLACE)
def in_place(op: Any, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    value = dequantized(target)
    op(value, *dequantized(args), **dequantized(kwargs))
    if isinstance(target, LowBitWeightTensor):
        write(target, value)
    return target
