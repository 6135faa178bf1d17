"""`lowbit::matmul`: the product with the weight as it lies."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from oracle import linear_bound
from samples import (
    BAD_WEIGHTS,
    FLOATS,
    GRADIENT_CASES,
    GRADIENT_IDS,
    GROUP_SIZES,
    WIDTHS,
    Weight,
    assert_same_gradients,
    assert_within,
    grid,
    on_metal,
    random_weight,
    rounded,
    strided,
)
from torch import Tensor

from lowbit_tensor.ops import decode, matmul

SIZES = ((1, 8, 256), (3, 1, 130), (17, 5, 77), (0, 4, 64), (2, 65, 100))  # M, N, K


def run(x: Tensor, weight: Weight) -> Tensor:
    return torch.ops.lowbit.matmul(x, *weight.all)


def check(y: Tensor, x: Tensor, weight: Weight) -> None:
    y64 = x.cpu().double() @ weight.exact()
    assert y.dtype == x.dtype
    bound = linear_bound(x, y64, tuple(part.mT for part in weight.exact_parts()), x.dtype)
    assert_within(y, y64, bound + rounded(x, weight.exact()) if on_metal(x) else bound)


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUP_SIZES, x=FLOATS, params=FLOATS, size=SIZES))
def test_values(bits: int, group: int, x: torch.dtype, params: torch.dtype, size: tuple[int, int, int], device: torch.device) -> None:
    m, n, k = size
    weight = random_weight((n, k), bits, group, params, device)
    rows = torch.randn(m, n, device=device).to(x)
    check(run(rows, weight), rows, weight)


@pytest.mark.parametrize("lead", [(), (2, 3), (2, 1, 3), (2, 0, 3)], ids=str)
def test_leading_dimensions(lead: tuple[int, ...], device: torch.device) -> None:
    weight = random_weight((6, 70), 3, 16, device=device)
    x = torch.randn(*lead, 6, device=device)
    check(run(x, weight), x, weight)


def test_blocks_of_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are decoded a block at a time; here one and two rows of seven."""
    for rows in (1, 2):
        monkeypatch.setattr(decode, "BLOCK", 70 * rows)
        weight, x = random_weight((7, 70), 3, 16, device=device), torch.randn(2, 7, device=device)
        check(run(x, weight), x, weight)


def test_sums_beyond_float16_are_kept(device: torch.device) -> None:
    """Case 46, in the other direction."""
    scales = torch.full((4096, 8), 1e-3, dtype=torch.float16, device=device)
    weight = Weight(torch.full((4096, 8), 255, dtype=torch.uint8, device=device), scales, scales * 0, 8, 1, 8)
    x = torch.full((2, 4096), 30.0, dtype=torch.float16, device=device)
    check(run(x, weight), x, weight)


@pytest.mark.parametrize("bits", WIDTHS)
def test_strides_do_not_matter(bits: int, device: torch.device) -> None:
    """Case 112."""
    weight = random_weight((6, 70), bits, 16, device=device)
    apart = replace(weight, **{name: strided(getattr(weight, name)) for name in ("packed", "scales", "zeros")})
    x = torch.randn(4, 6, device=device)
    assert torch.equal(run(strided(x), apart), run(x, weight))
    assert torch.equal(run(x.t().contiguous().t(), weight), run(x, weight))


def test_empty_weights(device: torch.device) -> None:
    assert run(torch.ones(2, 4, device=device), random_weight((4, 0), 3, 16, device=device)).shape == (2, 0)
    y = run(torch.ones(2, 0, device=device), random_weight((0, 64), 3, 16, device=device))
    assert torch.equal(y, torch.zeros_like(y))


@pytest.mark.parametrize("x", [torch.float64, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("params", FLOATS, ids=str)
def test_activations_of_another_dtype(x: torch.dtype, params: torch.dtype) -> None:
    """Case 49."""
    names = [str(dtype).removeprefix("torch.") for dtype in (x, params)]
    with pytest.raises(TypeError, match="got x of {} with parameters of {}".format(*names)):
        run(torch.ones(2, 4, dtype=x), random_weight((4, 64), 4, 16, params))


@pytest.mark.parametrize(("changes", "error", "text"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_parts_that_make_no_weight(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    """Case 130."""
    with pytest.raises(error, match=text):
        run(torch.ones(2, 4), random_weight((4, 100), 3, 16).broken(changes))


@pytest.mark.parametrize("shape", [(2, 3), (2, 64), (0,), ()], ids=str)
def test_activations_of_another_length(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"x\[\.\.\., 4\], got x\[{', '.join(map(str, shape))}\]; weight 4x64, 4 bits, group 16"):
        run(torch.ones(shape), random_weight((4, 64), 4, 16))


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("x", FLOATS, ids=str)
@pytest.mark.parametrize(("bits", "group", "params"), GRADIENT_CASES, ids=GRADIENT_IDS)
def test_gradients(bits: int, group: int, params: torch.dtype, x: torch.dtype, lead: tuple[int, ...], device: torch.device) -> None:
    weight, plain = (w.leaves() for w in [random_weight((4, 70), bits, group, params, device)] * 2)
    rows = torch.randn(*lead, 4, device=device).to(x).requires_grad_()
    grad = torch.randn(*lead, 70, device=device).to(x)
    got = torch.autograd.grad(run(rows, weight), (rows, weight.scales, weight.zeros), grad)
    expected = torch.autograd.grad(rows.float() @ plain.plain(), (rows, plain.scales, plain.zeros), grad.float())
    assert_same_gradients(got, expected, [x, params, params])


@pytest.mark.parametrize("group", [16, 7, 100, 1], ids=lambda group: f"group{group}")
def test_reference_gradients_in_float64(group: int) -> None:
    weight = random_weight((3, 20), 5, group)
    scales, zeros = (p.double().requires_grad_() for p in (weight.scales, weight.zeros))
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def product(x: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        return matmul.reference(x, weight.packed, scales, zeros, *weight.layout, weight.length)

    assert torch.autograd.gradcheck(product, (x, scales, zeros))


def test_autocast_decides_the_dtype(device: torch.device) -> None:
    weight, x = random_weight((4, 64), 4, 16, device=device), torch.randn(3, 4, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        y = run(x, weight)
    assert torch.equal(y, run(x.bfloat16(), weight))
