"""Products: `lowbit::linear` and `lowbit::matmul`, whichever side the weight stands on."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from ..cpu import quick_linear
from ..ops.checks import ACTIVATIONS
from ..tensor import LowBitWeightTensor
from .table import function, operator

UNSAVED = (
    "lowbit_tensor: torch.jit.save cannot write a traced module that holds a LowBitWeightTensor, and ends the process: "
    "save torch.jit.freeze(traced), or use torch.export"
)


@function(F.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    w = weight
    if type(w) is LowBitWeightTensor and not w.transposed and w.packed.dim() == 2 and not isinstance(input, LowBitWeightTensor):
        out = quick_linear(input, w.packed, w.scales, w.zeros, bias, w.bits, w.group_size, w.in_features)
        return _linear(input, w, bias) if out is None else out
    if weight.dim() > 2:
        raise ValueError(f"linear: expected a weight [N, K], got {list(weight.shape)}; lowbit::grouped_linear takes [E, N, K]")
    return _plus(product(input, weight.mT if weight.dim() > 1 else weight), bias)


def _linear(x: Tensor, w: LowBitWeightTensor, bias: Tensor | None) -> Tensor:
    """Through the op, or, where PyTorch's transforms would lose it, on the dequantized weight."""
    _check("linear", x, w, w.in_features)
    if _transformed():
        return _dense(x, w.dequantize(torch.float32).mT, _plain(bias))
    if bias is None or tuple(bias.shape) == tuple(w.packed.shape[:1]):
        return torch.ops.lowbit.linear(x, w.packed, w.scales, w.zeros, _plain(bias), w.bits, w.group_size)
    return _plus(product(x, w.mT), bias)


def _plus(out: Tensor, bias: Tensor | None) -> Tensor:
    return out if bias is None else (out + _plain(bias)).to(out.dtype)


@operator("product", "linear")
def aten_linear(op: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(input, weight, bias)


def _register(name: str, *dims: int) -> None:
    """Registers a product of two operands; `dims` are the dimensions they must have, any where there are none."""
    names = ("self", "input", "other", "mat2", "vec")

    def strict(a: Tensor, b: Tensor) -> Tensor:
        if dims and (a.dim(), b.dim()) != dims:
            raise ValueError(f"{name}: expected operands of {dims[0]} and {dims[1]} dimensions, got {list(a.shape)} and {list(b.shape)}")
        return product(a, b)

    @function(getattr(torch, name), getattr(Tensor, name))
    def call(*operands: Tensor, out: Tensor | None = None, **named: Any) -> Tensor:
        operands = (*operands, *(named.pop(name) for name in names if name in named))
        if named or len(operands) != 2:
            raise NotImplementedError(
                f"{name}: expected two operands, got {len(operands)} and {', '.join(named) or 'no more'}; use w.dequantize()"
            )
        return _into(name, out, strict(*operands))

    @operator("product", name)
    def aten(op: Any, a: Tensor, b: Tensor) -> Tensor:
        return strict(a, b)


_register("matmul")
_register("mm", 2, 2)
_register("mv", 2, 1)
_register("bmm", 3, 3)


@function(Tensor.__matmul__)
def infix(a: Tensor, b: Tensor) -> Tensor:
    try:
        return product(a, b)
    except TypeError as error:  # which Python would take for an operand that knows no `@`, and drop what it says
        raise ValueError(str(error)) from None


@function(Tensor.__rmatmul__)
def rmatmul(b: Tensor, a: Tensor) -> Tensor:
    return infix(a, b)


@function(torch.addmm, Tensor.addmm)
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None) -> Tensor:
    if out is not None:
        return _into("addmm", out, addmm(input, mat1, mat2, beta=beta, alpha=alpha))
    if not isinstance(mat1, LowBitWeightTensor) and not isinstance(mat2, LowBitWeightTensor):
        return torch.addmm(_plain(input), mat1, mat2, beta=beta, alpha=alpha)
    if mat1.dim() != 2 or mat2.dim() != 2:
        raise ValueError(f"addmm: expected matrices, got {list(mat1.shape)} and {list(mat2.shape)}")
    input = _plain(input)
    if beta == 0:  # what input holds, NaN included, does not count
        return product(mat1, mat2) * alpha if alpha != 1 else product(mat1, mat2)
    if beta == alpha == 1 and input.dim() == 1 and type(mat2) is LowBitWeightTensor and mat2.transposed:
        return linear(mat1, mat2.mT, input)
    return torch.add(input * beta if beta != 1 else input, product(mat1, mat2), alpha=alpha)


@operator("product", "addmm")
def aten_addmm(op: Any, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return addmm(input, mat1, mat2, beta=beta, alpha=alpha)


@function(F.grouped_mm, torch._grouped_mm)
def grouped_mm(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Rows `[M, K]` of experts in order, `offs` where each expert's end, with the matrices `[E, K, N]` of a mixture of experts."""
    if not isinstance(mat_b, LowBitWeightTensor) or mat_b.packed.dim() != 3 or bias is not None or (offs is None) != (mat_a.dim() == 3):
        raise NotImplementedError("grouped_mm: expected x [M, K] with offs and a low-bit [E, K, N] without bias; use w.dequantize()")
    if offs is None:
        out = product(mat_a, mat_b)
    else:
        expert = torch.searchsorted(offs, torch.arange(mat_a.shape[0], device=mat_a.device, dtype=offs.dtype), right=True)
        out = _grouped(mat_a, mat_b, expert.clamp(max=mat_b.packed.shape[0] - 1), "grouped_mm")
    return out if out_dtype is None else out.to(out_dtype)


@operator("product", "_grouped_mm")
def aten_grouped_mm(op: Any, mat_a: Tensor, mat_b: Tensor, *rest: Any, **options: Any) -> Tensor:
    return grouped_mm(mat_a, mat_b, *rest, **options)


def product(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul(a, b)` where at least one is low-bit; differentiable in the other, and in the low-bit one's scales and zeros."""
    if not isinstance(b, LowBitWeightTensor):
        if a.packed.dim() != 2:  # type: ignore[attr-defined]
            return torch.matmul(_plain(a), b)
        if b.dim() < 2:
            return product(b, a.mT) if b.dim() == 1 else torch.matmul(_plain(a), b)
        return product(b.mT, a.mT).mT
    a = _plain(a)
    if b.packed.dim() == 3 and a.dim() == 3 and a.shape[0] == b.packed.shape[0]:
        repeated = b.packed.stride(0) == b.scales.stride(0) == 0  # one matrix, expanded
        return product(a, b.select(0, 0)) if repeated else _batched(a, b)
    if b.packed.dim() != 2:
        return torch.matmul(a, b.dequantize(a.dtype))
    _check("matmul", a, b, b.shape[0])
    if _transformed():
        return _dense(a, b.dequantize(torch.float32))
    if b.transposed:
        return torch.ops.lowbit.linear(a, b.packed, b.scales, b.zeros, None, b.bits, b.group_size)
    return torch.ops.lowbit.matmul(a, b.packed, b.scales, b.zeros, b.bits, b.group_size, b.in_features)


def _into(name: str, out: Tensor | None, result: Tensor) -> Tensor:
    """`result`, or `out` with it written there. Raises ValueError for an `out` of another shape, which PyTorch would give other memory."""
    if out is None:
        return result
    if isinstance(out, LowBitWeightTensor) or out.shape != result.shape:
        raise ValueError(f"{name}: expected a plain out {list(result.shape)}, got {type(out).__name__} {list(out.shape)}")
    return out.copy_(result.detach())


def _batched(a: Tensor, b: LowBitWeightTensor) -> Tensor:
    """a `[E, M, *]` times b `[E, *, *]`: every row with the matrix of its batch."""
    experts, rows, _ = a.shape
    expert = torch.arange(experts, device=a.device).repeat_interleave(rows)
    return _grouped(a.flatten(0, 1), b, expert, "bmm").unflatten(0, (experts, rows))


def _grouped(a: Tensor, b: LowBitWeightTensor, expert: Tensor, name: str) -> Tensor:
    """Row m of a `[M, *]` times the matrix `expert[m]` of b `[E, *, *]`."""
    parts = (b.packed, b.scales, b.zeros, expert, b.bits, b.group_size)
    if b.transposed:
        _check(name, a, b, b.in_features)
        return torch.ops.lowbit.grouped_linear(a, *parts)
    _check(name, a, b, b.packed.shape[-2])
    return torch.ops.lowbit.grouped_matmul(a, *parts, b.in_features)


def _transformed() -> bool:
    """Whether forward-mode differentiation or a transform of `torch.func` other than `vmap` is under way.

    PyTorch's custom ops take no part in those: forward mode would lose the tangents without a word.
    """
    if is_compiling() or (forward_ad._current_level < 0 and functorch.peek_interpreter_stack() is None):
        return False
    levels = functorch.get_interpreter_stack() or ()
    return forward_ad._current_level >= 0 or any(level.key() != functorch.TransformType.Vmap for level in levels)


def _dense(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ w + bias in float32, of x's dtype, in PyTorch's own ops: takes the memory of the whole float weight."""
    y = x.float() @ w
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _check_traced(name: str, w: LowBitWeightTensor) -> None:
    """Raises NotImplementedError for a weight that `torch.jit.trace` takes as an argument: its codes would become constants."""
    if torch._C._get_value_trace(w).node().kind() == "prim::Param":  # type: ignore[attr-defined]
        raise NotImplementedError(f"{name}: expected a traced weight to belong to a module, got it as an argument; use torch.export")
    warnings.warn(UNSAVED, stacklevel=2)


def _plain(t: Any) -> Any:
    return t.dequantize() if isinstance(t, LowBitWeightTensor) else t


def _check(name: str, x: Tensor, w: LowBitWeightTensor, size: int) -> None:
    """Raises TypeError and ValueError in the terms of the call; the op itself sees neither the weight's dtype nor its exact row length."""
    if torch._C._is_tracing():
        _check_traced(name, w)
    if x.dtype not in ACTIVATIONS:
        raise TypeError(f"{name}: expected x of float32, bfloat16 or float16, got x of {x.dtype} with a weight of {w.dtype}")
    if x.dim() == 0 or x.shape[-1] != size:
        rows, columns = w.packed.shape[-2], w.in_features
        raise ValueError(f"{name}: expected x[..., {size}], got x{list(x.shape)}; weight {rows}x{columns}, {w.format}")
