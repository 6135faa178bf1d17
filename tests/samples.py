"""What the op tests share: random weights with their exact values, grids with a pairwise default, comparisons of gradients."""

import itertools
import random
from dataclasses import dataclass, replace
from typing import Any

import emulation
import pytest
import torch
from oracle import parts64, weight64
from torch import Tensor

WIDTHS = range(1, 9)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
HALVES = (torch.float16, torch.bfloat16)
NO_FLOAT64 = pytest.mark.cpu_only("mps has no float64")
FLOAT64 = pytest.param(torch.float64, marks=NO_FLOAT64)
GROUP_SIZES = (16, 32, 64, 128, 256, -1, 1, 3, 100, 1000)
BAD_WEIGHTS = {
    "short-codes": ({"packed": lambda t: t[..., :-1]}, ValueError, r"packed \[\.\.\., 38\].*got \[.*37\]"),
    "few-scales": ({"scales": lambda t: t[..., :-1]}, ValueError, r"scales and zeros \[.*7\].*got .*6\]"),
    "few-zeros": ({"zeros": lambda t: t[..., :-1]}, ValueError, r"scales and zeros \[.*7\].*got .*6\]"),
    "rows-of-scales": ({"scales": lambda t: torch.cat([t, t])}, ValueError, "scales and zeros"),
    "codes-of-int32": ({"packed": lambda t: t.int()}, TypeError, "uint8, got int32"),
    "zeros-of-another-dtype": ({"zeros": lambda t: t.bfloat16()}, TypeError, "float16 and bfloat16"),
    "parameters-of-float64": ({"scales": lambda t: t.double(), "zeros": lambda t: t.double()}, TypeError, "float64 and float64"),
    "group-0": ({"group_size": lambda _: 0}, ValueError, "group_size: expected 1"),
    "group-of-a-row": ({"group_size": lambda _: -1}, ValueError, "group_size"),
    "9-bits": ({"bits": lambda _: 9}, ValueError, "bits: expected 1 to 8, got 9"),
    "0-bits": ({"bits": lambda _: 0}, ValueError, "bits: expected 1 to 8, got 0"),
}  # of a weight [..., 100] of 3 bits and group 16: what is wrong, the error, what it says

GRADIENT_CASES = ((1, 16, torch.float32), (3, 100, torch.float16), (5, 7, torch.bfloat16), (8, -1, torch.float32))
GRADIENT_IDS = ("1bit-group16-float32", "3bits-group100-float16", "5bits-group7-bfloat16", "8bits-row-float32")


@dataclass(frozen=True)
class Weight:
    """The parts of a weight `[..., N, K]`."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor
    bits: int
    group_size: int
    length: int

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.packed, self.scales, self.zeros

    @property
    def layout(self) -> tuple[int, int]:
        return self.bits, self.group_size

    @property
    def all(self) -> tuple[Any, ...]:
        return *self.parts, *self.layout, self.length

    def exact(self) -> Tensor:
        """`scale * code + zero` in float64."""
        return weight64(*self.all)

    def exact_parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """(scale, code, zero) of every element in float64."""
        return parts64(*self.all)

    def leaves(self) -> "Weight":
        """The same with scales and zeros of their own that take a gradient."""
        return replace(self, **{name: getattr(self, name).detach().clone().requires_grad_() for name in ("scales", "zeros")})

    def plain(self) -> Tensor:
        """The float weight in autograd's own terms, float32."""
        _, code, _ = self.exact_parts()
        group = torch.arange(self.length, device=self.packed.device) // self.group_size
        return self.scales.float()[..., group] * code.float().to(self.packed.device) + self.zeros.float()[..., group]

    def broken(self, changes: dict[str, Any]) -> "Weight":
        return replace(self, **{name: change(getattr(self, name)) for name, change in changes.items()})


def random_weight(shape: tuple[int, ...], bits: int, group_size: int, dtype: torch.dtype = torch.float16, device: Any = "cpu") -> Weight:
    """All codes alike likely, values of order 1, scales and zeros of both signs; `group_size` -1 is a whole row."""
    *rows, length = shape
    group_size = length if group_size == -1 else group_size
    packed = torch.randint(0, 256, (*rows, -(-length * bits // 8)), dtype=torch.uint8)
    if length * bits % 8:
        packed[..., -1] &= 2 ** (length * bits % 8) - 1
    sizes = 0.5 + torch.rand(2, *rows, -(-length // group_size))
    scales, zeros = (sizes * torch.randn(sizes.shape).sign()).to(dtype)
    scales = scales / (2**bits - 1)
    return Weight(packed.to(device), scales.to(device), zeros.to(device), bits, group_size, length)


def grid(**axes: Any) -> dict[str, Any]:
    """Arguments of `parametrize`: every combination, marked `full` but for a choice in which each pair of values occurs.

    Combinations with float64 are for the CPU only.
    """
    combinations = list(itertools.product(*axes.values()))
    seen: set[Any] = set()
    chosen = set()
    for i in random.Random(0).sample(range(len(combinations)), len(combinations)):
        pairs = set(itertools.combinations(enumerate(combinations[i]), 2))
        if pairs - seen:
            seen |= pairs
            chosen.add(i)
    marks = [[pytest.mark.full] * (i not in chosen) + [NO_FLOAT64] * (torch.float64 in values) for i, values in enumerate(combinations)]
    ids = ["-".join(map(_short, axes, values)) for values in combinations]
    return {
        "argnames": tuple(axes),
        "argvalues": [pytest.param(*values, id=name, marks=mark) for values, name, mark in zip(combinations, ids, marks, strict=True)],
    }


def _short(name: str, value: Any) -> str:
    return f"{name}{'x'.join(map(str, value)) if isinstance(value, tuple) else str(value).removeprefix('torch.')}"


def assert_within(y: Tensor, y64: Tensor, bound: Tensor) -> None:
    assert y.shape == y64.shape
    info = torch.finfo(y.dtype)
    bound = bound + info.smallest_normal * info.eps / 2  # what rounding to a subnormal costs, whatever the value
    gap = (y.detach().cpu().double() - y64).abs()
    assert bool((gap <= bound).all()), f"off by {(gap / bound).max():.3g} times the bound"


def on_metal(t: Tensor) -> bool:
    """Whether our Metal kernels serve the ops on t's device: on mps, and on the CPU with `--device emulated`."""
    return t.device.type == "mps" or emulation.active


def rounded(x: Tensor, weight: Tensor) -> Tensor:
    """What bound (b) adds to (a) for x @ weight, the weight in float64: decoded weights are rounded to the dtype of x."""
    eps = torch.finfo(x.dtype).eps if x.dtype in HALVES else 0
    return eps / 2 * (x.detach().cpu().double().abs() @ weight.abs())


def assert_same_gradients(got: list[Tensor], expected: list[Tensor], dtypes: list[torch.dtype], first: Tensor | float = 0) -> None:
    """Each of its argument's dtype, equal up to the sums' float32 and one rounding to that dtype; the first one up to `first` more."""
    for i, (g, e, dtype) in enumerate(zip(got, expected, dtypes, strict=True)):
        assert (g.dtype, g.shape) == (dtype, e.shape), f"gradient {i}"
        gap, size = (g.cpu().double() - e.cpu().double()).abs(), e.cpu().double().abs()
        bound = torch.finfo(dtype).eps * size + 1e-5 * (size.max() if e.numel() else 0) + (0 if i else first)
        assert bool((gap <= bound).all()), f"gradient {i}: off by {gap.max():.3g}, {(gap - bound).max():.3g} too much"


def strided(t: Tensor) -> Tensor:
    """The same values, neither rows nor columns next to each other, with other data between."""
    buffer = t.new_ones((*(2 * size for size in t.shape[:-1]), 2 * t.shape[-1] + 5))
    view = buffer[(*(slice(None, None, 2) for _ in t.shape[:-1]), slice(5, None, 2))]
    view.copy_(t)
    return view


def value_bound(weight: Weight, dtype: torch.dtype) -> Tensor:
    """Bound (a) for one element: no sum, x = 1."""
    scale, code, zero = weight.exact_parts()
    return torch.finfo(dtype).eps / 2 * weight.exact().abs() + 8 * 2.0**-24 * ((scale * code).abs() + zero.abs())


def run(weight: Weight, dtype: torch.dtype) -> Tensor:
    return torch.ops.lowbit.dequantize(*weight.all, dtype)
