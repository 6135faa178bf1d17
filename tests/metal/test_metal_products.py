"""Products in our shaders against float64, within the bounds (a) and (b), at every width, group, dtype and odd shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from oracle import linear_bound
from samples import FLOATS, WIDTHS, Weight, assert_within, grid, random_weight, strided
from torch import Tensor

from lowbit_tensor.metal import launch
from lowbit_tensor.metal.geometry import DEFAULT

GROUPS = (16, 32, 64, 128, 256, -1, 24, 40, 2**31 - 1)
SIZES = (
    (1, 33, 72),
    (1, 1, 264),
    (2, 7, 304),
    (3, 48, 40),
    (5, 3, 136),
    (8, 9, 520),
    (16, 8, 64),
    (17, 33, 100),
    (40, 70, 264),
    (33, 1, 33),
)


def bound(y: Tensor, x: Tensor, weight: Weight, y64: Tensor) -> Tensor:
    """(a), and for tiles with 16-bit activations (b): decoded weights are rounded to the activations' dtype."""
    limit = linear_bound(x, y64, weight.exact_parts(), x.dtype)
    if x.shape[:-1].numel() > DEFAULT.last_rows and x.dtype != torch.float32:
        limit = limit + torch.finfo(x.dtype).eps / 2 * (x.cpu().double().abs() @ weight.exact().abs().mT)
    return limit


def check_linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    y = launch.linear(x, *weight.parts, bias, *weight.layout)
    y64 = x.cpu().double() @ weight.exact().T + (0 if bias is None else bias.cpu().double())
    assert y.dtype == x.dtype
    assert_within(y, y64, bound(y, x, weight, y64))
    return y


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUPS, x=FLOATS, params=FLOATS, size=SIZES))
def test_linear(bits: int, group: int, x: torch.dtype, params: torch.dtype, size: tuple[int, int, int], device: torch.device) -> None:
    m, n, k = size
    weight = random_weight((n, k), bits, group, params, device)
    bias = None if (m + n) % 3 == 0 else torch.randn(n, device=device).to(FLOATS[(m + n) % 3])
    check_linear(torch.randn(m, k, device=device).to(x), weight, bias)


@pytest.mark.parametrize("rows", range(41))
def test_every_number_of_rows(rows: int, device: torch.device) -> None:
    """Cases 27 and 30: no gap between the kernels, from no row to two tiles of them."""
    check_linear(torch.randn(rows, 72, device=device), random_weight((33, 72), 3, 16, device=device))


@pytest.mark.parametrize("outputs", [1, 3, 7, 8, 33, 48, 112])
@pytest.mark.parametrize("rows", [1, 17])
def test_odd_numbers_of_outputs(outputs: int, rows: int, device: torch.device) -> None:
    """Cases 24, 25 and 132."""
    check_linear(
        torch.randn(rows, 72, device=device).half(), random_weight((outputs, 72), 5, 32, device=device), torch.randn(outputs, device=device)
    )


@pytest.mark.parametrize(("length", "group"), [(4304, 64), (4304, 128), (1040, 16), (576, 64), (8, 16), (1, 16), (7, -1)])
@pytest.mark.parametrize("rows", [1, 2, 15, 17])
def test_odd_row_lengths(length: int, group: int, rows: int, device: torch.device) -> None:
    """Cases 21 and 27."""
    check_linear(torch.randn(rows, length, device=device), random_weight((9, length), 6, group, device=device))


def test_many_rows(kernels: Callable[..., None], device: torch.device) -> None:
    """Case 28: beyond what 16 bits number."""
    kernels(check=False)
    check_linear(torch.randn(32769, 16, device=device), random_weight((8, 16), 4, 16, device=device))


@pytest.mark.parametrize("rows", [1, 20])
def test_sums_beyond_float16_are_kept(rows: int, device: torch.device) -> None:
    """Case 46: neither sums nor activations pass through float16."""
    weight = random_weight((8, 4096), 4, 64, torch.float32, device)
    weight.packed.fill_(0xFF)
    weight.scales.fill_(1e-3)
    weight.zeros.zero_()
    y = launch.linear(torch.full((rows, 4096), 30.0, device=device).half(), *weight.parts, None, *weight.layout)
    assert ((y.cpu().float() - 1843.2).abs() <= 1).all()
    big = torch.full((rows, 4096), 1e6, device=device)
    for x in (big, big.bfloat16()):
        y = launch.linear(x, *weight.parts, None, *weight.layout).cpu().float()
        assert ((y / 61.44e6 - 1).abs() < 0.01).all()


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_strides_and_offsets(rows: int, device: torch.device) -> None:
    """Cases 112 and 115: views of larger buffers, at odd addresses."""
    weight = random_weight((9, 72), 4, 16, device=device)
    x = torch.randn(rows, 72, device=device)
    expected = check_linear(x, weight)
    parts = [strided(p) for p in weight.parts]
    assert torch.equal(launch.linear(strided(x), *parts, None, *weight.layout), expected)
    shifted = torch.empty(weight.packed.numel() + 1, dtype=torch.uint8, device=device)[1:].view_as(weight.packed).copy_(weight.packed)
    buffer = torch.empty(rows * 72 + 1, device=device)[1:].view(rows, 72).copy_(x)
    assert torch.equal(launch.linear(buffer, shifted, *weight.parts[1:], None, *weight.layout), expected)
    rows_of = Weight(weight.packed[3:], weight.scales[3:], weight.zeros[3:], 4, 16, 72)
    assert torch.equal(launch.linear(x, *rows_of.parts, None, 4, 16), expected[:, 3:])


@pytest.mark.parametrize("rows", [1, 20])
def test_not_a_number_stays_in_its_row(rows: int, device: torch.device) -> None:
    """Case 45."""
    weight, x = random_weight((33, 72), 4, 16, device=device), torch.randn(rows, 72, device=device)
    x[0, 5] = torch.nan
    y = launch.linear(x, *weight.parts, None, *weight.layout)
    assert y[0].isnan().all() and y[1:].isfinite().all()


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUPS, x=FLOATS, size=((1, 33, 72), (40, 9, 100), (3, 70, 264))))
def test_matmul(bits: int, group: int, x: torch.dtype, size: tuple[int, int, int], device: torch.device) -> None:
    """The product with the weight as it lies, which is the gradient of `linear`."""
    m, n, k = size
    weight = random_weight((n, k), bits, group, device=device)
    rows = torch.randn(m, n, device=device).to(x)
    y, y64 = launch.matmul(rows, *weight.all), rows.cpu().double() @ weight.exact()
    scale, code, zero = weight.exact_parts()
    limit = torch.finfo(x).eps / 2 * y64.abs() + rows.cpu().double().abs() @ (8 * 2.0**-24 * ((scale * code).abs() + zero.abs()))
    if x != torch.float32:
        limit = limit + torch.finfo(x).eps / 2 * (rows.cpu().double().abs() @ weight.exact().abs())
    assert_within(y, y64, limit)


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 75, 300])
@pytest.mark.parametrize(("bits", "params"), [(3, torch.float16), (4, torch.float32)], ids=str)
@pytest.mark.parametrize("forward", [True, False], ids=["linear", "matmul"])
def test_experts(rows: int, bits: int, params: torch.dtype, forward: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in any order, experts without rows, and no number where there is no such expert."""
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **options: new_empty(*args, **options).fill_(7))
    weight = random_weight((6, 33, 72), bits, 16, params, device)
    expert = torch.randint(0, 2 if rows == 300 else 5, (rows,), device=device)  # 300: several tiles an expert
    expert[0] = (6, -1, 2**32)[rows % 3] if rows > 5 else 4
    x = torch.randn(rows, 72 if forward else 33, device=device)
    if forward:
        y = launch.grouped_linear(x, *weight.parts, expert, *weight.layout)
    else:
        y = launch.grouped_matmul(x, *weight.parts, expert, *weight.layout, 72)
    exact = weight.exact()
    for m, e in enumerate(expert.tolist()):
        if not 0 <= e <= 5:
            assert y[m].isnan().all()
        else:
            torch.testing.assert_close(
                y[m].cpu().double(), x[m].cpu().double() @ (exact[e].T if forward else exact[e]), rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("rows", [20, 70])
@pytest.mark.parametrize("splits", [1, 2, 8])
def test_sums_that_are_split(rows: int, splits: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "splits_of", lambda tiles, depth: splits)
    check_linear(torch.randn(rows, 1096, device=device), random_weight((33, 1096), 4, 64, device=device), torch.randn(33, device=device))


@pytest.mark.parametrize("rows", [3, 20])
def test_no_experts(rows: int, device: torch.device) -> None:
    weight = random_weight((0, 33, 72), 4, 16, device=device)
    expert = torch.zeros(rows, dtype=torch.int64, device=device)
    assert launch.grouped_linear(torch.ones(rows, 72, device=device), *weight.parts, expert, *weight.layout).isnan().all()
    assert launch.grouped_matmul(torch.ones(rows, 33, device=device), *weight.parts, expert, *weight.layout, 72).isnan().all()


@pytest.mark.parametrize("rows", [1, 7, 16, 40])
def test_experts_do_not_depend_on_other_rows(rows: int, device: torch.device) -> None:
    weight, x = random_weight((3, 33, 264), 4, 64, device=device), torch.randn(40, 264, device=device)
    expert = torch.arange(40, device=device) % 3
    launch.set_batch_invariant(True)
    try:
        whole = launch.grouped_linear(x, *weight.parts, expert, *weight.layout)
        assert torch.equal(launch.grouped_linear(x[:rows], *weight.parts, expert[:rows], *weight.layout), whole[:rows])
    finally:
        launch.set_batch_invariant(False)


def test_leading_dimensions(device: torch.device) -> None:
    weight = random_weight((33, 72), 4, 16, device=device)
    x, y = torch.randn(2, 3, 72, device=device), torch.randn(2, 3, 33, device=device)
    assert launch.linear(x, *weight.parts, None, *weight.layout).shape == (2, 3, 33)
    assert launch.linear(x[0, 0], *weight.parts, None, *weight.layout).shape == (33,)
    torch.testing.assert_close(launch.matmul(y, *weight.all).cpu().double(), y.cpu().double() @ weight.exact(), rtol=1e-4, atol=1e-4)


def test_parts_of_one_element_with_any_stride(device: torch.device) -> None:
    """A dimension of size 1 counts as contiguous whatever its stride."""
    weight = random_weight((1, 8), 4, 16, device=device)
    scales = torch.ones(1, 3, dtype=torch.float16, device=device)[:, ::3] * 1
    odd = torch.empty(1, 5, dtype=torch.float16, device=device)[:, ::5].copy_(weight.scales)
    bias = torch.randn(5, device=device)[::5]
    assert odd.stride(-1) == 5 and scales.shape == odd.shape
    y = launch.linear(torch.ones(1, 8, device=device), weight.packed, odd, weight.zeros, bias, 4, 16)
    assert torch.equal(y, launch.linear(torch.ones(1, 8, device=device), *weight.parts, bias, 4, 16))


@pytest.mark.parametrize("bias", FLOATS, ids=str)
def test_biases_of_split_sums(bias: torch.dtype, device: torch.device) -> None:
    check_linear(
        torch.randn(20, 1096, device=device), random_weight((9, 1096), 4, 64, device=device), torch.randn(9, device=device).to(bias)
    )
