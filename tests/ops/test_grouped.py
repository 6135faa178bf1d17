"""`lowbit::grouped_linear` and `lowbit::grouped_matmul`: each row with the matrix of its expert."""

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

from lowbit_tensor.ops import grouped

OPS = ("grouped_linear", "grouped_matmul")
SIZES = ((1, 2, 8, 256), (40, 3, 5, 77), (0, 2, 1, 130))  # M, E, N, K
both = pytest.mark.parametrize("op", OPS)


def run(op: str, x: Tensor, weight: Weight, expert: Tensor) -> Tensor:
    length = [weight.length] if op == "grouped_matmul" else []
    return getattr(torch.ops.lowbit, op)(x, *weight.parts, expert, *weight.layout, *length)


def plain(op: str, x: Tensor, w: Tensor, expert: Tensor) -> Tensor:
    """The same with a float weight `[E, N, K]`."""
    chosen = w[expert.long()]
    return (x[:, None] @ (chosen.mT if op == "grouped_linear" else chosen)).squeeze(1)


def random_rows(op: str, m: int, weight: Weight, dtype: torch.dtype = torch.float32) -> Tensor:
    width = weight.length if op == "grouped_linear" else weight.packed.shape[1]
    return torch.randn(m, width, device=weight.packed.device).to(dtype)


def check(op: str, x: Tensor, weight: Weight, expert: Tensor) -> None:
    y, rows = run(op, x, weight, expert), expert.cpu().long()
    y64 = plain(op, x.cpu().double(), weight.exact(), rows)
    parts = tuple(part[rows] if op == "grouped_linear" else part[rows].mT for part in weight.exact_parts())
    assert y.dtype == x.dtype
    bound = linear_bound(x[:, None], y64[:, None], parts, x.dtype).squeeze(1)
    # Tiled kernels: those of Metal, and the CPU's for more than 16 rows of bfloat16.
    if (len(x) > 16 and op == "grouped_linear") or (on_metal(x) and op == "grouped_matmul"):
        bound = bound + rounding(op, x, weight, rows)
    assert_within(y, y64, bound)


def rounding(op: str, x: Tensor, weight: Weight, expert: Tensor) -> Tensor:
    """What bound (b) adds to (a)."""
    chosen = weight.exact().detach()[expert.cpu()]
    return rounded(x[:, None], chosen.mT if op == "grouped_linear" else chosen).squeeze(1)


@pytest.mark.parametrize(**grid(op=OPS, bits=WIDTHS, group=GROUP_SIZES, x=FLOATS, params=FLOATS, size=SIZES))
def test_values(op: str, bits: int, group: int, x: torch.dtype, params: torch.dtype, size: tuple[int, ...], device: torch.device) -> None:
    m, e, n, k = size
    weight = random_weight((e, n, k), bits, group, params, device)
    check(op, random_rows(op, m, weight, x), weight, torch.randint(0, e, (m,), device=device))


@both
@pytest.mark.parametrize("expert", [[2, 2, 2, 2], [3, 2, 1, 0], [0, 3, 0, 3]], ids=["one", "all", "some"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_choices_of_experts(op: str, expert: list[int], dtype: torch.dtype, device: torch.device) -> None:
    weight = random_weight((4, 5, 70), 3, 16, device=device)
    check(op, random_rows(op, 4, weight), weight, torch.tensor(expert, dtype=dtype, device=device))


@both
@pytest.mark.parametrize("expert", [[0, 3], [-1, 0], [2**40, 0]], ids=str)
def test_expert_out_of_range(op: str, expert: list[int], device: torch.device) -> None:
    weight = random_weight((3, 5, 64), 4, 16, device=device)
    wrong = next(e for e in expert if not 0 <= e < 3)
    x, experts = random_rows(op, 2, weight), torch.tensor(expert, device=device)
    if on_metal(x):  # where nothing waits for the device
        y = run(op, x, weight, experts)
        assert y.isnan().all(1).tolist() == y.isnan().any(1).tolist() == [e == wrong for e in expert]
        return
    with pytest.raises(IndexError, match=f"lowbit::{op}: expected experts of 0 to 2, got {wrong}"):
        run(op, x, weight, experts)


@both
def test_strides_do_not_matter(op: str, device: torch.device) -> None:
    """Case 112."""
    weight = random_weight((3, 5, 70), 3, 16, device=device)
    apart = replace(weight, **{name: strided(getattr(weight, name)) for name in ("packed", "scales", "zeros")})
    x, expert = random_rows(op, 6, weight), torch.randint(0, 3, (6,), device=device)
    assert torch.equal(run(op, strided(x), apart, strided(expert)), run(op, x, weight, expert))


@both
@pytest.mark.parametrize("x", [torch.float64, torch.int64], ids=str)
def test_activations_of_another_dtype(op: str, x: torch.dtype) -> None:
    """Case 49."""
    weight = random_weight((3, 5, 64), 4, 16, torch.bfloat16)
    with pytest.raises(TypeError, match=f"got x of {str(x).removeprefix('torch.')} with parameters of bfloat16"):
        run(op, random_rows(op, 2, weight, x), weight, torch.tensor([0, 1]))


@both
@pytest.mark.parametrize(("changes", "error", "text"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_parts_that_make_no_weight(op: str, changes: dict[str, Any], error: type[Exception], text: str) -> None:
    """Case 130."""
    weight = random_weight((2, 4, 100), 3, 16)
    with pytest.raises(error, match=text):
        run(op, random_rows(op, 2, weight), weight.broken(changes), torch.tensor([0, 1]))


@both
@pytest.mark.parametrize("shape", [(2, 63), (2, 1, 64), (64,), ()], ids=str)
def test_activations_of_another_shape(op: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"lowbit::{op}: expected .*got"):
        run(op, torch.ones(shape), random_weight((3, 5, 64), 8, 16), torch.tensor([0, 1]))


@both
@pytest.mark.parametrize("expert", [[0], [0, 1, 2], [[0, 1]]], ids=str)
def test_experts_of_another_shape(op: str, expert: list[Any]) -> None:
    weight = random_weight((3, 5, 64), 4, 16)
    with pytest.raises(ValueError, match=r"int64 expert \[2\], got"):
        run(op, random_rows(op, 2, weight), weight, torch.tensor(expert))


@both
def test_weight_of_two_dimensions(op: str) -> None:
    weight = random_weight((5, 64), 4, 16)
    with pytest.raises(ValueError, match=r"packed of 3 dimensions, got \[5, 32\]"):
        run(op, torch.ones(2, 64), weight, torch.tensor([0, 1]))


@both
@pytest.mark.parametrize("x", FLOATS, ids=str)
@pytest.mark.parametrize(("bits", "group", "params"), GRADIENT_CASES, ids=GRADIENT_IDS)
def test_gradients(op: str, bits: int, group: int, params: torch.dtype, x: torch.dtype, device: torch.device) -> None:
    weight, other = (w.leaves() for w in [random_weight((4, 5, 70), bits, group, params, device)] * 2)
    rows, expert = random_rows(op, 9, weight, x).requires_grad_(), torch.tensor([0, 1, 3, 3, 0, 0, 1, 3, 0], device=device)
    y = run(op, rows, weight, expert)
    grad = torch.randn_like(y)
    got = torch.autograd.grad(y, (rows, weight.scales, weight.zeros), grad)
    expected = torch.autograd.grad(plain(op, rows.float(), other.plain(), expert), (rows, other.scales, other.zeros), grad.float())
    back = "grouped_matmul" if op == "grouped_linear" else "grouped_linear"  # which gives the gradient of x
    more = rounding(back, grad, weight, expert) if on_metal(rows) and back == "grouped_matmul" else 0
    assert_same_gradients(got, expected, [x, params, params], more)
    assert not got[1][2].any()  # no row chose the expert 2


@both
def test_double_backward(op: str, device: torch.device) -> None:
    weight, other = (w.leaves() for w in [random_weight((3, 5, 70), 4, 16, torch.float32, device)] * 2)
    x, expert = random_rows(op, 4, weight).requires_grad_(), torch.tensor([0, 2, 2, 0], device=device)
    got, expected = (
        torch.autograd.grad(torch.autograd.grad(y.square().sum(), x, create_graph=True)[0].square().sum(), (x, w.scales, w.zeros))
        for y, w in ((run(op, x, weight, expert), weight), (plain(op, x, other.plain(), expert), other))
    )
    assert_same_gradients(got, expected, [torch.float32] * 3)


@both
def test_reference_gradients_in_float64(op: str) -> None:
    weight, expert = random_weight((3, 2, 10), 3, 4), torch.tensor([0, 2, 2])
    scales, zeros = (p.double().requires_grad_() for p in (weight.scales, weight.zeros))
    x = random_rows(op, 3, weight, torch.float64).requires_grad_()
    length = [weight.length] if op == "grouped_matmul" else []

    def product(x: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        return getattr(grouped, op)(x, weight.packed, scales, zeros, expert, *weight.layout, *length)

    assert torch.autograd.gradcheck(product, (x, scales, zeros))


@both
def test_autocast_decides_the_dtype(op: str, device: torch.device) -> None:
    weight, expert = random_weight((3, 5, 64), 4, 16, device=device), torch.tensor([0, 2], device=device)
    x = random_rows(op, 2, weight)
    with torch.autocast(device.type, torch.bfloat16):
        y = run(op, x, weight, expert)
    assert torch.equal(y, run(op, x.bfloat16(), weight, expert))
