"""`lowbit::embedding`: rows of the float weight."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from samples import (
    BAD_WEIGHTS,
    FLOAT64,
    FLOATS,
    GRADIENT_CASES,
    GRADIENT_IDS,
    GROUP_SIZES,
    WIDTHS,
    Weight,
    assert_same_gradients,
    assert_within,
    grid,
    random_weight,
    strided,
    value_bound,
)
from torch import Tensor


def run(indices: Tensor, weight: Weight, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ops.lowbit.embedding(indices, *weight.all, dtype)


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUP_SIZES, out=FLOATS, params=FLOATS, shape=((8, 256), (1, 130), (50, 77))))
def test_values(bits: int, group: int, out: torch.dtype, params: torch.dtype, shape: tuple[int, int], device: torch.device) -> None:
    weight = random_weight(shape, bits, group, params, device)
    indices = torch.randint(0, shape[0], (2, 5))
    rows = run(indices.to(device), weight, out)
    assert rows.dtype == out
    assert_within(rows, weight.exact()[indices], value_bound(weight, out)[indices])


@pytest.mark.parametrize("out", (*FLOATS, FLOAT64), ids=str)
def test_rows_are_those_of_the_float_weight(out: torch.dtype, device: torch.device) -> None:
    weight = random_weight((20, 70), 5, 16, device=device)
    indices = torch.randint(0, 20, (33,), device=device)
    assert torch.equal(run(indices, weight, out), torch.ops.lowbit.dequantize(*weight.all, out)[indices])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_indices_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    weight = random_weight((6, 70), 3, 16, device=device)
    indices = torch.randint(0, 6, shape, device=device)
    assert torch.equal(run(indices.to(dtype), weight), torch.ops.lowbit.dequantize(*weight.all, torch.float32)[indices])


@pytest.mark.parametrize("indices", [[0, 6], [-1, 0], [2**40, 1]], ids=str)
def test_indices_out_of_range(indices: list[int], device: torch.device) -> None:
    weight = random_weight((6, 64), 4, 16, device=device)
    with pytest.raises(IndexError, match=f"indices of 0 to 5, got {min(indices)} to {max(indices)}"):
        run(torch.tensor(indices, device=device), weight)


def test_no_row_to_choose(device: torch.device) -> None:
    weight = random_weight((0, 64), 4, 16, device=device)
    assert run(torch.empty(0, dtype=torch.int64, device=device), weight).shape == (0, 64)
    with pytest.raises(IndexError, match="got 0 to 0"):
        run(torch.zeros(1, dtype=torch.int64, device=device), weight)


def test_strides_do_not_matter(device: torch.device) -> None:
    """Case 112."""
    weight = random_weight((6, 70), 3, 16, device=device)
    apart = replace(weight, **{name: strided(getattr(weight, name)) for name in ("packed", "scales", "zeros")})
    indices = torch.randint(0, 6, (3, 4), device=device)
    assert torch.equal(run(indices.t().contiguous().t(), apart), run(indices, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bool], ids=str)
def test_indices_of_another_dtype(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"int32 or int64 indices .*got {dtype} and"):
        run(torch.zeros(2, dtype=dtype), random_weight((6, 64), 4, 16))


def test_integer_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match=r"floating-point dtype, got .*torch\.int32"):
        run(torch.zeros(2, dtype=torch.int64), random_weight((6, 64), 4, 16), torch.int32)


def test_weight_of_three_dimensions() -> None:
    with pytest.raises(ValueError, match=r"packed of 2 dimensions, got \[2, 6, 32\]"):
        run(torch.zeros(2, dtype=torch.int64), random_weight((2, 6, 64), 4, 16))


@pytest.mark.parametrize(("changes", "error", "text"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_parts_that_make_no_weight(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    """Case 130."""
    with pytest.raises(error, match=text):
        run(torch.zeros(2, dtype=torch.int64), random_weight((4, 100), 3, 16).broken(changes))


@pytest.mark.parametrize("shape", [(), (0,), (2, 5)], ids=str)
@pytest.mark.parametrize("out", FLOATS, ids=str)
@pytest.mark.parametrize(("bits", "group", "params"), GRADIENT_CASES, ids=GRADIENT_IDS)
def test_gradients(bits: int, group: int, params: torch.dtype, out: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    """Rows chosen twice add up, rows not chosen have none."""
    weight, plain = (w.leaves() for w in [random_weight((6, 70), bits, group, params, device)] * 2)
    indices = torch.randint(0, 5, shape, device=device)
    grad = torch.randn(*shape, 70, device=device).to(out)
    got = torch.autograd.grad(run(indices, weight, out), (weight.scales, weight.zeros), grad)
    expected = torch.autograd.grad(plain.plain()[indices], (plain.scales, plain.zeros), grad.float())
    assert_same_gradients(got, expected, [params, params])
    assert not got[0][5].any()
