"""Every op: `torch.library.opcheck` on several samples, and tensors on different devices refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from samples import Weight, random_weight

from lowbit_tensor import METHODS


def indices(*shape: int) -> torch.Tensor:
    return torch.randint(0, 3, shape)


def samples(weight: Weight, grad: bool) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """(op, what is special, arguments) for the weight `[3, 70]`, and one of three experts."""
    experts = random_weight((3, 5, 70), weight.bits, weight.group_size, weight.scales.dtype)
    if grad:
        weight, experts = weight.leaves(), experts.leaves()

    def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape).to(dtype).requires_grad_(grad)

    yield "linear", "bias", (x(2, 4, 70), *weight.parts, x(3), *weight.layout)
    yield "linear", "bfloat16", (x(4, 70, dtype=torch.bfloat16), *weight.parts, None, *weight.layout)
    yield "linear", "row", (x(70), *weight.parts, None, *weight.layout)
    yield "linear", "no-rows", (x(0, 70), *weight.parts, x(3), *weight.layout)
    yield "matmul", "3d", (x(2, 4, 3), *weight.all)
    yield "matmul", "float16", (x(4, 3, dtype=torch.float16), *weight.all)
    yield "grouped_linear", "rows", (x(6, 70), *experts.parts, indices(6), *experts.layout)
    yield "grouped_matmul", "rows", (x(6, 5), *experts.parts, indices(6), *experts.layout, 70)
    yield "dequantize", "float32", (*weight.all, torch.float32)
    yield "dequantize", "experts-bfloat16", (*experts.all, torch.bfloat16)
    yield "embedding", "2d", (indices(2, 4), *weight.all, torch.float32)
    yield "embedding", "int32", (indices(4).int(), *weight.all, torch.float16)
    yield "parameter_grad", "2d", (x(3, 70), weight.packed, *weight.layout)
    yield "parameter_grad", "experts-bfloat16", (x(3, 5, 70, dtype=torch.bfloat16), experts.packed, *experts.layout)


def plain_samples(weight: Weight) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """The same for the ops without a gradient."""
    for method in METHODS:
        yield "quantize", method, (torch.randn(3, 70), *weight.layout, method, torch.float16, False, False)
    yield "quantize", "row-symmetric", (torch.randn(2, 3, 70).bfloat16(), weight.bits, -1, "minmax", torch.bfloat16, True, False)
    yield "encode", "2d", (torch.randn(3, 70), weight.scales, weight.zeros, *weight.layout)
    yield "pack", "int64", (torch.randint(0, 2**weight.bits, (3, 70)), weight.bits)
    yield "pack", "uint8", (torch.randint(0, 2**weight.bits, (2, 3, 7), dtype=torch.uint8), weight.bits)
    yield "unpack", "2d", (weight.packed, weight.bits, 70)


def cases() -> list[Any]:
    short, long = random_weight((3, 70), 3, 16, torch.float32), random_weight((3, 70), 8, 100, torch.float16)
    found = {
        "8bits-plain": [*samples(long, False), *plain_samples(long)],
        "3bits-grad": [*samples(short, True), *plain_samples(short)],
    }
    return [pytest.param(op, arguments, id=f"{op}-{what}-{kind}") for kind, some in found.items() for op, what, arguments in some]


def tensor_places() -> list[Any]:
    """Every tensor but the first of every op that takes more than one."""
    weight = random_weight((3, 70), 4, 16)
    first = {op: arguments for op, _, arguments in [*plain_samples(weight), *reversed(list(samples(weight, False)))]}
    return [
        pytest.param(op, arguments, place, id=f"{op}-{place}")
        for op, arguments in first.items()
        for place in range(1, len(arguments))
        if isinstance(arguments[place], torch.Tensor)
    ]


def test_every_op_has_a_sample() -> None:
    names = {name.removeprefix("lowbit::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("lowbit::")}
    assert names == {case.values[0] for case in cases()}


@pytest.mark.parametrize(("op", "arguments"), cases())
def test_opcheck(op: str, arguments: tuple[Any, ...]) -> None:
    results = torch.library.opcheck(getattr(torch.ops.lowbit, op).default, arguments)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("where", ["meta", "cpu"])
@pytest.mark.parametrize(("op", "arguments", "place"), tensor_places())
def test_tensors_on_different_devices(op: str, arguments: tuple[Any, ...], place: int, where: str) -> None:
    """Case 63: refused before anything runs, whichever of the two is elsewhere."""
    mixed = [a.to("meta") if isinstance(a, torch.Tensor) and (i == place) == (where == "meta") else a for i, a in enumerate(arguments)]
    with pytest.raises(ValueError, match=f"lowbit::{op}: expected all tensors on .*, got one on"):
        getattr(torch.ops.lowbit, op)(*mixed)
