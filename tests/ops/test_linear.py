"""`lowbit::linear` against float64 within the bounds (a) and (b), its errors, gradients and autocast."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from oracle import linear_bound
from samples import (
    BAD_WEIGHTS,
    FLOAT64,
    FLOATS,
    GRADIENT_CASES,
    GRADIENT_IDS,
    GROUP_SIZES,
    NO_FLOAT64,
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

from lowbit_tensor.ops import decode, linear

SIZES = ((1, 8, 256), (3, 1, 130), (17, 5, 77), (0, 4, 64), (2, 3, 520))  # M, N, K


def run(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    return torch.ops.lowbit.linear(x, *weight.parts, bias, *weight.layout)


def check(y: Tensor, x: Tensor, weight: Weight, bias: Tensor | None = None) -> None:
    y64 = x.cpu().double() @ weight.exact().T
    if bias is not None:
        y64 = y64 + bias.cpu().double()
    assert y.dtype == x.dtype
    bound = linear_bound(x, y64, weight.exact_parts(), x.dtype)
    if x.shape[:-1].numel() > 16:  # tiled kernels
        bound = bound + rounded(x, weight.exact().mT)
    assert_within(y, y64, bound)


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUP_SIZES, x=FLOATS, params=FLOATS, size=SIZES))
def test_values(bits: int, group: int, x: torch.dtype, params: torch.dtype, size: tuple[int, int, int], device: torch.device) -> None:
    """Cases 9 and 48: the grid of bits, groups, dtypes and sizes."""
    m, n, k = size
    weight = random_weight((n, k), bits, group, params, device)
    rows = torch.randn(m, k, device=device).to(x)
    check(run(rows, weight), rows, weight)


@pytest.mark.parametrize("bias", (*FLOATS, FLOAT64), ids=str)
@pytest.mark.parametrize("x", FLOATS, ids=str)
def test_bias_of_any_float_dtype(x: torch.dtype, bias: torch.dtype, device: torch.device) -> None:
    weight = random_weight((6, 70), 4, 16, device=device)
    rows, shift = torch.randn(3, 70, device=device).to(x), (10 * torch.randn(6, device=device)).to(bias)
    check(run(rows, weight, shift), rows, weight, shift)


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3), (2, 0, 3), (2, 2, 1, 2)], ids=str)
def test_leading_dimensions(lead: tuple[int, ...], device: torch.device) -> None:
    weight = random_weight((6, 70), 3, 16, device=device)
    x, bias = torch.randn(*lead, 70, device=device), torch.randn(6, device=device)
    check(run(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("m", range(1, 41), ids=lambda m: f"m{m}")
def test_all_small_numbers_of_rows(m: int, device: torch.device) -> None:
    """Case 30."""
    weight = random_weight((32, 128), 5, 64, device=device)
    x = torch.randn(m, 128, device=device)
    check(run(x, weight), x, weight)


@pytest.mark.parametrize("m", [32768, 32769, 34992], ids=lambda m: f"m{m}")
def test_many_rows(m: int, device: torch.device) -> None:
    """Case 28: equals the product done in chunks of 2048."""
    weight = random_weight((64, 64), 4, 64, device=device)
    x = torch.randn(m, 64, device=device)
    y = run(x, weight)
    check(y, x, weight)
    chunks = torch.cat([run(part, weight) for part in x.split(2048)])
    torch.testing.assert_close(y, chunks, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("m", "k"), [(1, 4304), (17, 4304), (2, 1040), (50, 1040), (1, 32768)], ids=str)
def test_long_and_odd_rows(m: int, k: int, device: torch.device) -> None:
    """Cases 21, 22 and 27."""
    weight = random_weight((3, k), 4, 64, device=device)
    x = torch.randn(m, k, device=device).half()
    check(run(x, weight), x, weight)


@pytest.mark.parametrize("n", [1, 4, 7, 33, 48], ids=lambda n: f"n{n}")
def test_odd_numbers_of_outputs(n: int, device: torch.device) -> None:
    """Cases 24 and 132."""
    weight = random_weight((n, 4096), 4, 64, device=device)
    x = torch.randn(1, 4096, device=device).half()
    check(run(x, weight), x, weight)


@pytest.mark.parametrize("m", [1, 241], ids=lambda m: f"m{m}")
def test_sums_beyond_float16_are_kept(m: int, device: torch.device) -> None:
    """Case 46: the sum of x * code is 1,843,200; the result 1843.2 times the rounding of the scale."""
    scales = torch.full((2, 64), 1e-3, dtype=torch.float16, device=device)
    packed = torch.full((2, 2048), 255, dtype=torch.uint8, device=device)
    y = run(torch.full((m, 4096), 30.0, dtype=torch.float16, device=device), Weight(packed, scales, scales * 0, 4, 64, 4096))
    assert (y.cpu().double() - 1843.2).abs().max() <= 1.0  # one step of float16 there
    check(y, torch.full((m, 4096), 30.0, dtype=torch.float16), Weight(packed, scales, scales * 0, 4, 64, 4096))


def test_blocks_of_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are decoded a block at a time; here one and two rows of seven."""
    for rows in (1, 2):
        monkeypatch.setattr(decode, "BLOCK", 70 * rows)
        weight, x = random_weight((7, 70), 3, 16, device=device), torch.randn(2, 70, device=device)
        check(run(x, weight), x, weight)


@pytest.mark.parametrize("bits", WIDTHS)
def test_strides_do_not_matter(bits: int, device: torch.device) -> None:
    """Cases 112 and 115."""
    weight = random_weight((6, 70), bits, 16, device=device)
    apart = replace(weight, **{name: strided(getattr(weight, name)) for name in ("packed", "scales", "zeros")})
    x, bias = torch.randn(4, 70, device=device), torch.randn(6, device=device)
    assert torch.equal(run(strided(x), apart, strided(bias)), run(x, weight, bias))
    assert torch.equal(run(x.t().contiguous().t(), weight, bias), run(x, weight, bias))
    assert torch.equal(run(x[:1].expand(4, -1), weight, bias), run(x[:1].repeat(4, 1), weight, bias))


def test_empty_weights(device: torch.device) -> None:
    no_columns, no_rows = random_weight((4, 0), 3, 16, device=device), random_weight((0, 64), 3, 16, device=device)
    bias = torch.randn(4, device=device)
    assert torch.equal(run(torch.ones(2, 0, device=device), no_columns, bias), bias.expand(2, -1))
    assert run(torch.ones(2, 64, device=device), no_rows).shape == (2, 0)


def test_not_a_number_stays_in_its_row(device: torch.device) -> None:
    """Case 45."""
    x = torch.randn(3, 64, device=device)
    x[1, 5] = float("nan")
    y = run(x, random_weight((4, 64), 4, 16, device=device))
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


@pytest.mark.parametrize("x", [torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("params", FLOATS, ids=str)
def test_activations_of_another_dtype(x: torch.dtype, params: torch.dtype) -> None:
    """Case 49: the error names both dtypes."""
    names = [str(dtype).removeprefix("torch.") for dtype in (x, params)]
    with pytest.raises(TypeError, match="got x of {} with parameters of {}".format(*names)):
        run(torch.ones(2, 64, dtype=x), random_weight((4, 64), 4, 16, params))


@pytest.mark.parametrize(("changes", "error", "text"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_parts_that_make_no_weight(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    """Case 130."""
    with pytest.raises(error, match=text):
        run(torch.ones(2, 100), random_weight((4, 100), 3, 16).broken(changes))


@pytest.mark.parametrize("shape", [(2, 63), (2, 65), (2, 0), ()], ids=str)
def test_activations_of_another_length(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"lowbit::linear: expected .*got"):
        run(torch.ones(shape), random_weight((4, 64), 8, 16))


def test_weight_of_three_dimensions() -> None:
    with pytest.raises(ValueError, match=r"packed of 2 dimensions, got \[2, 4, 32\]"):
        run(torch.ones(2, 64), random_weight((2, 4, 64), 4, 16))


@pytest.mark.parametrize("shape", [(3,), (5,), (1,), (2, 4), ()], ids=str)
def test_bias_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"float bias \[4\], got"):
        run(torch.ones(2, 64), random_weight((4, 64), 4, 16), torch.ones(shape))


@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("x", FLOATS, ids=str)
@pytest.mark.parametrize(("bits", "group", "params"), GRADIENT_CASES, ids=GRADIENT_IDS)
def test_gradients(bits: int, group: int, params: torch.dtype, x: torch.dtype, with_bias: bool, device: torch.device) -> None:
    """Case 100, and the gradients of scales, zeros and bias."""
    weight, plain = (w.leaves() for w in [random_weight((4, 70), bits, group, params, device)] * 2)
    rows = torch.randn(2, 3, 70, device=device).to(x).requires_grad_()
    bias = torch.randn(4, device=device).to(params).requires_grad_() if with_bias else None
    grad = torch.randn(2, 3, 4, device=device).to(x)
    extra = [bias] if with_bias else []
    got = torch.autograd.grad(run(rows, weight, bias), (rows, weight.scales, weight.zeros, *extra), grad)
    y = torch.nn.functional.linear(rows.float(), plain.plain(), bias.float() if with_bias else None)
    expected = torch.autograd.grad(y, (rows, plain.scales, plain.zeros, *extra), grad.float())
    more = rounded(grad, weight.exact().detach()) if on_metal(rows) else 0  # the gradient of x is a `matmul`
    assert_same_gradients(got, expected, [x, params, params, *(b.dtype for b in extra)], more)


@pytest.mark.parametrize("lead", [(), (2, 5), (2, 1, 3), (0,)], ids=str)
def test_gradient_shapes(lead: tuple[int, ...], device: torch.device) -> None:
    """Case 100: grad_x = g @ W for x of 1, 3 and 4 dimensions, and none for no rows."""
    weight = random_weight((4, 70), 4, 16, torch.float32, device).leaves()
    x = torch.randn(*lead, 70, device=device, requires_grad=True)
    bias = torch.randn(4, device=device, requires_grad=True)
    grad = torch.randn(*lead, 4, device=device)
    got = torch.autograd.grad(run(x, weight, bias), (x, bias, weight.scales, weight.zeros), grad)
    flat = grad.reshape(-1, 4)
    assert_same_gradients(got[:2], [grad @ weight.plain().detach(), flat.sum(0)], [torch.float32] * 2)
    assert (got[2].shape, got[3].shape) == (weight.scales.shape, weight.zeros.shape)


@pytest.mark.parametrize("name", ["x", "scales", "zeros", "bias"])
def test_gradient_to_one_argument_alone(name: str, device: torch.device) -> None:
    weight = random_weight((4, 70), 4, 16, torch.float32, device)
    given = {"x": torch.randn(3, 70, device=device), "scales": weight.scales, "zeros": weight.zeros, "bias": torch.randn(4, device=device)}
    given[name] = given[name].clone().requires_grad_()
    alone = replace(weight, scales=given["scales"], zeros=given["zeros"])
    (got,) = torch.autograd.grad(run(given["x"], alone, given["bias"]).square().sum(), given[name])
    y = torch.nn.functional.linear(given["x"], alone.plain(), given["bias"])
    (expected,) = torch.autograd.grad(y.square().sum(), given[name])
    assert_same_gradients([got], [expected], [torch.float32])


def second_derivatives(y: Tensor, inputs: tuple[Tensor, ...], grad: Tensor) -> list[Tensor]:
    """Of a function of the first gradients to x and scales: to x, scales, zeros and the incoming gradient."""
    first = torch.autograd.grad(y, inputs[:2], grad, create_graph=True)
    return list(torch.autograd.grad(sum(g.square().sum() for g in first), (*inputs, grad)))


def test_double_backward(device: torch.device) -> None:
    weight, plain = (w.leaves() for w in [random_weight((4, 70), 4, 16, torch.float32, device)] * 2)
    x, grad = torch.randn(3, 70, device=device, requires_grad=True), torch.randn(3, 4, device=device, requires_grad=True)
    got = second_derivatives(run(x, weight), (x, weight.scales, weight.zeros), grad)
    expected = second_derivatives(torch.nn.functional.linear(x, plain.plain()), (x, plain.scales, plain.zeros), grad)
    assert_same_gradients(got, expected, [torch.float32] * 4)


@pytest.mark.parametrize("group", [16, 7, 100, 1], ids=lambda group: f"group{group}")
def test_reference_gradients_in_float64(group: int) -> None:
    weight = random_weight((3, 20), 3, group)
    scales, zeros = (p.double().requires_grad_() for p in (weight.scales, weight.zeros))
    x, bias = torch.randn(2, 20, dtype=torch.float64, requires_grad=True), torch.randn(3, dtype=torch.float64, requires_grad=True)

    def product(x: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor) -> Tensor:
        return linear.reference(x, weight.packed, scales, zeros, bias, *weight.layout)

    assert torch.autograd.gradcheck(product, (x, scales, zeros, bias))
    assert torch.autograd.gradgradcheck(product, (x, scales, zeros, bias))


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("x", FLOATS, ids=str)
def test_autocast_decides_the_dtype(x: torch.dtype, cast: torch.dtype, device: torch.device) -> None:
    weight = random_weight((4, 64), 4, 16, device=device)
    rows = torch.randn(3, 64, device=device).to(x)
    with torch.autocast(device.type, cast):
        y = run(rows, weight)
    assert torch.equal(y, run(rows.to(cast), weight))


def test_autocast_gradient_has_the_dtype_of_x(device: torch.device) -> None:
    x = torch.randn(3, 64, device=device, requires_grad=True)
    with torch.autocast(device.type, torch.bfloat16):
        y = run(x, random_weight((4, 64), 4, 16, device=device))
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32


@NO_FLOAT64
def test_autocast_leaves_errors(device: torch.device) -> None:
    with torch.autocast(device.type, torch.bfloat16), pytest.raises(TypeError, match="got x of float64"):
        run(torch.ones(3, 64, device=device, dtype=torch.float64), random_weight((4, 64), 4, 16, device=device))


def test_in_inference_mode(device: torch.device) -> None:
    """Case 103."""
    weight, x = random_weight((4, 64), 4, 16, device=device), torch.randn(3, 64, device=device)
    with torch.inference_mode():
        inside = run(x, weight)
    assert torch.equal(inside, run(x, weight))
