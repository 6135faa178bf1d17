"""A small weight, its exact values, and the bound that a product with it must keep: what the tests of the tensor share."""

from __future__ import annotations

import oracle
import torch
import torch.nn.functional as F
from torch import Tensor

import lowbit_tensor as lb
from lowbit_tensor.tensor import INNER

WIDTHS = range(1, 9)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
Parts = tuple[Tensor, Tensor, Tensor]


def make(bits: int = 4, n: int = 33, k: int = 100, group_size: int = 64, dtype: torch.dtype = torch.float32) -> lb.LowBitWeightTensor:
    return lb.LowBitWeightTensor.from_float(torch.randn(n, k).to(dtype), bits, group_size)


def inner(w: lb.LowBitWeightTensor) -> list[torch.Tensor]:
    return [getattr(w, name) for name in INNER]


def same(a: lb.LowBitWeightTensor, b: lb.LowBitWeightTensor) -> bool:
    return type(a) is type(b) and a.dtype == b.dtype and all(torch.equal(p, q) for p, q in zip(inner(a), inner(b), strict=True))


def weight64(w: lb.LowBitWeightTensor) -> torch.Tensor:
    return oracle.weight64(*inner(w), w.bits, w.group_size, w.in_features)


def within_bound(y: torch.Tensor, x: torch.Tensor, w: lb.LowBitWeightTensor, bias: torch.Tensor | None = None) -> None:
    parts = oracle.parts64(*inner(w), w.bits, w.group_size, w.in_features)
    y64 = F.linear(x.double(), parts[0] * parts[1] + parts[2], None if bias is None else bias.double())
    bound = oracle.linear_bound(x, y64, parts, y.dtype)
    assert ((y.double() - y64).abs() <= bound + (0 if bias is None else 2**-24 * bias.double().abs())).all()


def known(bits: int, n: int, k: int, group_size: int) -> tuple[lb.LowBitWeightTensor, Parts]:
    """A weight with zeros of its own in every group, and the float64 (scale, code, zero) of each element."""
    codes, group = torch.randint(0, 2**bits, (n, k)), torch.arange(k) // group_size
    scales = ((0.5 + torch.rand(n, int(group[-1]) + 1)) / 2**bits).half()
    zeros = torch.randn(scales.shape).half()
    w = lb.LowBitWeightTensor.from_codes(codes, scales, zeros, bits=bits, group_size=group_size, dtype=torch.float32)
    return w, (scales.double()[:, group], codes.double(), zeros.double()[:, group])


def check(y: Tensor, x: Tensor, parts: Parts) -> None:
    """y is x @ W.T of x's dtype, within bound (a) of docs/api.md."""
    y64 = x.double() @ (parts[0] * parts[1] + parts[2]).mT
    assert y.dtype == x.dtype and y.shape == y64.shape
    assert ((y.double() - y64).abs() <= oracle.linear_bound(x, y64, parts, y.dtype)).all()
