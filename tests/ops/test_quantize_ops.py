"""`lowbit::quantize` and `lowbit::encode`: the engine behind an op, its errors and its shapes without data."""

from typing import Any

import pytest
import torch
from oracle import parts64
from samples import FLOATS, GROUP_SIZES, WIDTHS, grid, random_weight, strided
from torch import Tensor

from lowbit_tensor import METHODS, Format
from lowbit_tensor import quantize as quantizers
from lowbit_tensor.quantize.scheme import Scheme


def quantize(w: Tensor, bits: int = 4, group: int = 16, method: str = "minmax", dtype: Any = torch.float16, *flags: bool) -> list[Tensor]:
    return torch.ops.lowbit.quantize(w, bits, group, method, dtype, *(flags or (False, False)))


def assert_nearest(w: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group: int) -> None:
    """No other code lies nearer to the weight, float32's rounding aside."""
    scale, code, zero = parts64(packed, scales, zeros, bits, group, w.shape[-1])
    values = w.cpu().double()
    best = (scale[..., None] * torch.arange(2**bits) + zero[..., None] - values[..., None]).abs().amin(-1)
    slack = 2.0**-21 * (values.abs() + zero.abs())
    assert bool(((scale * code + zero - values).abs() <= best + slack).all())


def assert_same(got: list[Tensor], expected: tuple[Tensor, ...], w: Tensor, bits: int, group: int) -> None:
    """Bit for bit; on a device, whose compilers may decide otherwise where two codes are equally near, the parameters."""
    assert_nearest(w, *got, bits, group)
    first = 0 if w.device.type == "cpu" else 1
    assert all(torch.equal(g, e) for g, e in zip(got[first:], expected[first:], strict=True))


@pytest.mark.parametrize(**grid(method=METHODS, bits=WIDTHS, group=(16, 3, -1), w=FLOATS, params=FLOATS, shape=((2, 3, 77), (70,))))
def test_quantize_is_the_engine(
    method: str, bits: int, group: int, w: torch.dtype, params: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> None:
    weight = torch.randn(shape, device=device).to(w)
    fmt = Format(bits, group, shape[-1])
    got = quantize(weight, bits, group, method, params)
    expected = quantizers.quantize(weight, fmt, method, Scheme(bits), params)
    assert_same(got, expected, weight, bits, fmt.group_size)
    assert [t.dtype for t in got] == [torch.uint8, params, params]


@pytest.mark.parametrize("flags", [(True, False), (False, True), (True, True)], ids=["symmetric", "integral", "both"])
def test_flags_reach_the_engine(flags: tuple[bool, bool], device: torch.device) -> None:
    w = torch.randn(4, 70, device=device)
    expected = quantizers.quantize(w, Format(3, 16, 70), "lsq", Scheme(3, *flags), torch.float32)
    assert_same(quantize(w, 3, 16, "lsq", torch.float32, *flags), expected, w, 3, 16)


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUP_SIZES, w=(*FLOATS, torch.float64), params=FLOATS, shape=((4, 130), (2, 3, 77))))
def test_encode_takes_the_nearest_codes(
    bits: int, group: int, w: torch.dtype, params: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> None:
    """Scales of both signs, as MLX writes them."""
    given = random_weight(shape, bits, group, params, device)
    weight = torch.randn(shape, device=device).to(w)
    packed = torch.ops.lowbit.encode(weight, given.scales, given.zeros, bits, given.group_size)
    assert_nearest(weight, packed, given.scales, given.zeros, bits, given.group_size)


@pytest.mark.parametrize("bits", WIDTHS)
def test_encode_gives_the_codes_of_a_decoded_weight(bits: int, device: torch.device) -> None:
    weight = random_weight((2, 4, 70), bits, 16, device=device)
    w = torch.ops.lowbit.dequantize(*weight.all, torch.float32)
    assert torch.equal(torch.ops.lowbit.encode(w, weight.scales, weight.zeros, *weight.layout), weight.packed)


def test_encode_with_scale_zero_is_code_zero(device: torch.device) -> None:
    scales, zeros = torch.zeros(2, 2, device=device), torch.full((2, 2), 3.0, device=device)
    assert not torch.ops.lowbit.encode(torch.full((2, 32), 3.0, device=device), scales, zeros, 4, 16).any()


def test_strides_do_not_matter(device: torch.device) -> None:
    """Case 112."""
    w, given = torch.randn(4, 70, device=device), random_weight((4, 70), 3, 16, device=device)
    assert all(torch.equal(a, b) for a, b in zip(quantize(strided(w)), quantize(w), strict=True))
    apart = torch.ops.lowbit.encode(strided(w), strided(given.scales), strided(given.zeros), 3, 16)
    assert torch.equal(apart, torch.ops.lowbit.encode(w, given.scales, given.zeros, 3, 16))


@pytest.mark.parametrize("shape", [(0, 64), (4, 0), (2, 0, 64), (0, 0)], ids=str)
def test_empty_weights(shape: tuple[int, ...], device: torch.device) -> None:
    fmt = Format(4, 16, shape[-1])
    packed, scales, zeros = quantize(torch.empty(shape, device=device))
    assert packed.shape == (*shape[:-1], fmt.row_bytes)
    assert scales.shape == zeros.shape == (*shape[:-1], fmt.groups)
    assert torch.ops.lowbit.encode(torch.empty(shape, device=device), scales, zeros, 4, 16).shape == packed.shape


@pytest.mark.parametrize("group", GROUP_SIZES, ids=lambda group: f"group{group}")
@pytest.mark.parametrize("bits", WIDTHS)
def test_shapes_without_data(bits: int, group: int) -> None:
    real = quantize(torch.randn(2, 3, 77), bits, group, "minmax", torch.bfloat16)
    w = torch.empty(2, 3, 77, device="meta")
    fake = quantize(w, bits, group, "minmax", torch.bfloat16)
    encoded = torch.ops.lowbit.encode(w, fake[1], fake[2], bits, 77 if group == -1 else group)
    assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in real]
    assert (encoded.shape, encoded.dtype, encoded.device.type) == (real[0].shape, torch.uint8, "meta")


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        pytest.param({"w": torch.ones(4, 64, dtype=torch.int32)}, TypeError, r"floating-point weight, got torch\.int32", id="integers"),
        pytest.param({"w": torch.tensor(1.0)}, ValueError, r"a weight \[\.\.\., K\], got \[\]", id="no-dimensions"),
        pytest.param({"bits": 9}, ValueError, "bits: expected 1 to 8, got 9", id="9-bits"),
        pytest.param({"group": 0}, ValueError, "group_size: expected 1", id="group-0"),
        pytest.param({"group": -5}, ValueError, "group_size: expected 1", id="group-minus-5"),
        pytest.param({"method": "best"}, ValueError, f"{', '.join(METHODS)}, got 'best'", id="method"),
        pytest.param({"dtype": torch.float64}, TypeError, r"scale_dtype: .*got torch\.float64", id="scales-float64"),
        pytest.param({"dtype": torch.int8}, TypeError, r"scale_dtype: .*got torch\.int8", id="scales-int8"),
    ],
)
def test_bad_arguments_of_quantize(changes: dict[str, Any], error: type[Exception], text: str, device: str) -> None:
    """Case 34 for the groups."""
    arguments = {"w": torch.ones(4, 64)} | changes
    with pytest.raises(error, match=text):
        quantize(arguments.pop("w").to(device), **arguments)


def test_symmetric_and_integral_leave_no_single_bit() -> None:
    with pytest.raises(ValueError, match="2 bits or more"):
        quantize(torch.ones(4, 64), 1, 16, "minmax", torch.float16, True, True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_weights_that_are_not_finite(value: float, device: torch.device) -> None:
    """Case 43."""
    w = torch.randn(3, 4, 64, device=device)
    w[1, 2, 7] = value
    given = random_weight((3, 4, 64), 4, 16, device=device)
    for op, arguments in ((torch.ops.lowbit.encode, (given.scales, given.zeros, 4, 16)), (quantize, ())):
        with pytest.raises(ValueError, match=rf"w\[1, 2, 7\] is {value}"):
            op(w, *arguments)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("scales", "zeros", "error", "text"),
    [
        pytest.param(torch.ones(4, 3), torch.ones(4, 4), ValueError, r"scales and zeros \[4, 4\].*got .*\[4, 3\]", id="few-scales"),
        pytest.param(torch.ones(4, 4), torch.ones(4, 5), ValueError, r"scales and zeros \[4, 4\].*\[4, 5\]", id="many-zeros"),
        pytest.param(torch.ones(4, 4), torch.ones(4, 4).half(), TypeError, "float32 and float16", id="dtypes-differ"),
        pytest.param(torch.ones(4, 4).long(), torch.ones(4, 4).long(), TypeError, "int64 and int64", id="integers"),
    ],
)
def test_bad_parameters_of_encode(scales: Tensor, zeros: Tensor, error: type[Exception], text: str, device: str) -> None:
    with pytest.raises(error, match=text):
        torch.ops.lowbit.encode(torch.ones(4, 64, device=device), scales.to(device), zeros.to(device), 4, 16)
