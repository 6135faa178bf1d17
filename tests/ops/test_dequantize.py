"""`lowbit::dequantize`."""

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
    HALVES,
    WIDTHS,
    Weight,
    assert_same_gradients,
    assert_within,
    grid,
    random_weight,
    run,
    strided,
    value_bound,
)

from lowbit_tensor.ops import decode, dequantize


@pytest.mark.parametrize(
    **grid(bits=WIDTHS, group=GROUP_SIZES, out=(*FLOATS, torch.float64), params=FLOATS, shape=((8, 256), (1, 130), (2, 3, 77)))
)
def test_values(bits: int, group: int, out: torch.dtype, params: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    """Case 9: the grid of bits, groups and dtypes."""
    weight = random_weight(shape, bits, group, params, device)
    w = run(weight, out)
    assert w.dtype == out
    single = torch.float32 if out == torch.float64 else out
    assert_within(w, weight.exact(), value_bound(weight, single))


@pytest.mark.parametrize("params", HALVES, ids=str)
@pytest.mark.parametrize("bits", WIDTHS)
def test_values_of_half_parameters_are_rounded_once(bits: int, params: torch.dtype, device: torch.device) -> None:
    """scale * code is exact in float32, so a fused multiply-add and a product and sum give the same bits."""
    weight = random_weight((64, 200), bits, 16, params, device)
    once = weight.exact().float()
    for out in (torch.float32, *HALVES):
        assert torch.equal(run(weight, out).cpu(), once.to(out))


@pytest.mark.parametrize("params", HALVES, ids=str)
def test_values_over_the_range_of_half_parameters_are_rounded_once(params: torch.dtype, device: torch.device) -> None:
    weight = random_weight((64, 200), 8, 8, params, device)
    powers = [torch.exp2(torch.randint(-12, 12, weight.scales.shape)).to(weight.scales) for _ in range(2)]
    weight = replace(weight, scales=weight.scales * powers[0], zeros=weight.zeros * powers[1])
    assert torch.equal(run(weight, torch.float32).cpu(), weight.exact().float())


@pytest.mark.parametrize("shape", [(64,), (0, 64), (2, 0, 3, 5), (1, 1)], ids=str)
def test_shapes_at_the_edge(shape: tuple[int, ...], device: torch.device) -> None:
    weight = random_weight(shape, 3, 16, device=device)
    assert torch.equal(run(weight, torch.float32).cpu(), weight.exact().float().view(shape))


def test_rows_of_length_zero(device: torch.device) -> None:
    assert run(random_weight((4, 0), 3, 16, device=device), torch.float32).shape == (4, 0)


def test_blocks_of_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are decoded a block at a time; here one and two rows of seven."""
    for rows in (1, 2):
        monkeypatch.setattr(decode, "BLOCK", 70 * rows)
        weight = random_weight((7, 70), 3, 16, device=device)
        assert torch.equal(run(weight, torch.float32).cpu(), weight.exact().float())


@pytest.mark.parametrize("bits", WIDTHS)
def test_strides_do_not_matter(bits: int, device: torch.device) -> None:
    """Case 112."""
    weight = random_weight((2, 5, 70), bits, 16, device=device)
    apart = replace(weight, **{name: strided(getattr(weight, name)) for name in ("packed", "scales", "zeros")})
    assert not apart.packed.is_contiguous()
    assert torch.equal(run(apart, torch.float32), run(weight, torch.float32))


@pytest.mark.parametrize(("changes", "error", "text"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_parts_that_make_no_weight(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    """Case 130: sizes are checked again by the op."""
    weight = random_weight((4, 100), 3, 16).broken(changes)
    with pytest.raises(error, match=text):
        run(weight, torch.float32)


@pytest.mark.parametrize("length", [99 + 3, 0, -100], ids=str)
def test_length_that_does_not_fit(length: int) -> None:
    weight = replace(random_weight((4, 100), 4, 16), length=length)
    with pytest.raises(ValueError, match=f"for {length} columns"):
        run(weight, torch.float32)


def test_codes_without_dimensions() -> None:
    with pytest.raises(ValueError, match="packed"):
        run(Weight(torch.tensor(0, dtype=torch.uint8), torch.ones(1), torch.ones(1), 8, 1, 1), torch.float32)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool], ids=str)
def test_integer_dtype_is_refused(dtype: torch.dtype) -> None:
    """Case 57."""
    with pytest.raises(TypeError, match=f"floating-point dtype, got {dtype}"):
        run(random_weight((4, 64), 4, 16), dtype)


@pytest.mark.parametrize("out", (*FLOATS, FLOAT64), ids=str)
@pytest.mark.parametrize(("bits", "group", "params"), GRADIENT_CASES, ids=GRADIENT_IDS)
def test_gradients(bits: int, group: int, params: torch.dtype, out: torch.dtype, device: torch.device) -> None:
    weight = random_weight((2, 4, 70), bits, group, params, device).leaves()
    grad = torch.randn(2, 4, 70, device=device).to(out)
    got = torch.autograd.grad(run(weight, out), (weight.scales, weight.zeros), grad)
    exact = weight.leaves()
    expected = torch.autograd.grad(exact.plain(), (exact.scales, exact.zeros), grad.float())
    assert_same_gradients(got, expected, [params, params])


def test_gradient_to_one_parameter_alone(device: torch.device) -> None:
    weight = random_weight((4, 64), 4, 16, torch.float32, device)
    weight = replace(weight, zeros=weight.zeros.requires_grad_())
    run(weight, torch.float32).sum().backward()
    assert torch.equal(weight.zeros.grad, torch.full_like(weight.zeros, 16))
    assert weight.scales.grad is None


def test_reference_is_the_op(device: torch.device) -> None:
    weight = random_weight((4, 70), 5, 16, device=device)
    torch.testing.assert_close(run(weight, torch.float32), dequantize.reference(*weight.all, torch.float32), rtol=0, atol=0)
