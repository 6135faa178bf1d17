"""PyTorch's own samples of all its ops, with low-bit weights in the place of float matrices: right, or refused by name; never wrong.

What an op gives for the dequantized weights is the oracle. 700 ops: run in full by `--full`, a tenth of them otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

import lowbit_tensor as lb

LB = lb.LowBitWeightTensor
SAMPLES = 12


def name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


# Write to their input, or, in C++, to an `empty_like` of it: the result is re-quantized.
WRITES = {"cauchy", "exponential", "geometric", "log_normal", "normal.in_place", "uniform", "nn.functional.hinge_embedding_loss"}
SHAPE_ONLY = {"empty_like", "new_empty", "rand_like", "randn_like", "randint_like"}
OPS = [
    pytest.param(op, id=name(op), marks=() if i % 10 == 0 else pytest.mark.full)
    for i, op in enumerate(op_db)
    if not op.name.startswith("sparse.")
]


def low_bit(t: Any, made: list[Any]) -> Any:
    """A float matrix (or more) that can be quantized as a weight of 8 bits, anything else as it is."""
    if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.dtype == torch.float32 and t.dim() >= 2 and t.numel():
        if t.is_contiguous() and t.isfinite().all():
            made.append(LB.from_float(t.detach(), 8, 16))
            return made[-1]
    return t


def dequantized(tree: Any) -> Any:
    return tree_map_only(LB, lambda w: w.dequantize(), tree)


def copies(tree: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.clone, tree)


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        return [t for t in tree_leaves(function(*args, **kwargs)) if isinstance(t, torch.Tensor)]


def agree(got: list[Any], expected: list[Any], shape_only: bool, step: float) -> None:
    assert len(got) == len(expected)
    for a, b in zip(dequantized(got), expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if not shape_only and not b.is_sparse:
            a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, b))
            torch.testing.assert_close(a, b, rtol=1e-3, atol=max(1e-4, step * float(b.abs().max()) if b.numel() else 0), equal_nan=True)


def refused(error: Exception) -> bool:
    """In words of ours."""
    return "expected " in str(error) and isinstance(error, NotImplementedError | TypeError | ValueError)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.filterwarnings("ignore")
def test_every_op(op: Any) -> None:
    for sample in list(op.sample_inputs("cpu", torch.float32, requires_grad=False))[:SAMPLES]:
        for everything in (False, True):
            made: list[Any] = []
            first = tree_map(lambda t: low_bit(t, made), sample.input)  # noqa: B023
            rest = tree_map(lambda t: low_bit(t, made), (sample.args, sample.kwargs)) if everything else (sample.args, sample.kwargs)  # noqa: B023
            if made:
                for function, in_place in ((op.op, False), (op.inplace_variant, True)):
                    if function is not None:
                        compare(function, copies(first), copies(rest), op.name in SHAPE_ONLY, in_place or name(op) in WRITES)


def compare(function: Callable[..., Any], first: Any, rest: Any, shape_only: bool, writes: bool) -> None:
    """One call on low-bit weights and on the dequantized ones; weights change only where that is asked for."""
    plain, (args, kwargs) = dequantized(first), dequantized(rest)
    weights = [w for w in tree_leaves((first, rest)) if isinstance(w, LB)]
    before = [w.dequantize() for w in weights]
    try:
        expected = outcome(function, plain, *args, **kwargs)
    except Exception:  # the sample does not fit this variant, with float tensors either
        return
    try:
        got = outcome(function, first, *rest[0], **rest[1])
    except Exception as error:
        assert refused(error), f"{type(error).__name__}: {error}"
        got = None
    if got is not None:
        agree(got, expected, shape_only, 0.02 if writes else 0)
    if not writes:
        assert all(torch.equal(w.dequantize(), b) for w, b in zip(weights, before, strict=True))
