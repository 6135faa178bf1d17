"""What benchmarks/cpu.py multiplies by, and the ways that need no other package: ours, and a dense layer.

Each way has so many copies of its weight that they come from memory, not from a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import lowbit_tensor as lb

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16


@dataclass(frozen=True)
class Case:
    """Which weight `[n, k]`, for activations of `dtype`, with so many threads; its copies take at least `memory` bytes."""

    n: int
    k: int
    bits: int
    group_size: int
    dtype: torch.dtype
    threads: int
    memory: int

    @cached_property
    def codes(self) -> Tensor:
        return torch.randint(0, 2**self.bits, (self.n, self.k), dtype=torch.uint8)

    @cached_property
    def scales(self) -> Tensor:
        """Of three bits, so that scale times zero point is exact in float16."""
        return torch.randint(4, 8, (self.n, self.k // self.group_size)).float() / 256

    @cached_property
    def zero_points(self) -> Tensor:
        return torch.randint(0, 2**self.bits, (self.n, self.k // self.group_size), dtype=torch.uint8)

    def dense(self, rows: int | None = None) -> Tensor:
        """The first rows of the weight that codes, scales and zero points stand for."""
        codes, scales, points = (part[:rows].float() for part in (self.codes, self.scales, self.zero_points))
        return ((codes.unflatten(1, (-1, self.group_size)) - points[..., None]) * scales[..., None]).flatten(1)

    def copies(self, first: Any, nbytes: int, again: Callable[[], Any]) -> list[Any]:
        """The first and as many more as `memory` asks, one more at least."""
        return [first, *(again() for _ in range(max(2, -(-self.memory // nbytes)) - 1))]


@dataclass(frozen=True)
class Way:
    """One way to multiply: `products` take activations, one function a copy of the weight; a copy has `nbytes`."""

    nbytes: int
    products: list[Callable[[Any], Any]]
    activations: Callable[[Tensor], Any] = lambda x: x  # what the products take, of a tensor [rows, k]
    result: Callable[[Any], Tensor] = lambda y: y
    weight: Callable[[int], Tensor] | None = None  # the first rows of what is multiplied by, where that is not the case's


def torch_way(case: Case, parts: tuple[Tensor, ...], multiply: Callable[..., Tensor], weight: Callable[[int], Tensor] | None = None) -> Way:
    def product(parts: tuple[Tensor, ...]) -> Callable[[Tensor], Tensor]:
        return lambda x: multiply(x, *parts)

    nbytes = sum(p.nbytes for p in parts)
    copies = case.copies(parts, nbytes, lambda: tuple(p.clone() for p in parts))
    return Way(nbytes, [product(parts) for parts in copies], weight=weight)


def ours(case: Case) -> Way:
    """The op that `F.linear` of a low-bit weight calls."""
    parts = (lb.pack(case.codes, case.bits), case.scales.half(), (-case.scales * case.zero_points).half())
    return torch_way(case, parts, lambda x, p, s, z: torch.ops.lowbit.linear(x, p, s, z, None, case.bits, case.group_size))


def dense(case: Case) -> Way:
    """`F.linear` of a weight in the activations' dtype."""
    weight = torch.randn(case.n, case.k).to(case.dtype)
    return torch_way(case, (weight,), F.linear, lambda rows: weight[:rows])
