"""The quantizers: shapes, nearest codes, errors in decibels, constraints, the choice of the parameters' dtype, memory."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import parts64, weight64
from torch import Tensor

from lowbit_tensor import METHODS, Format, LowBitWeightTensor
from lowbit_tensor.quantize import hqq, lsq, quantize, total_error
from lowbit_tensor.quantize.auto import BY_WIDTH, WHOLE_ZERO
from lowbit_tensor.quantize.scheme import Scheme, least_squares, nearest_codes

WIDTHS = range(1, 9)
GROUP_SIZES = (1, 3, 16, 64, 100, 1000, -1)
K = 130  # a multiple of no group size but 1 and the row
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
CONSTANTS = (0.0, 9.0, -9.0, 1e-8, 65504.0)

methods = pytest.mark.parametrize("method", METHODS)
widths = pytest.mark.parametrize("bits", WIDTHS, ids=lambda bits: f"{bits}bits")
groups = pytest.mark.parametrize("group", GROUP_SIZES, ids=lambda group: f"group{group}")
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


class Quantized:
    """A weight and what a quantizer made of it."""

    def __init__(self, w: Tensor, bits: int, group: int, method: str, dtype: torch.dtype = torch.float32, **flags: bool) -> None:
        self.w, self.fmt = w.double(), Format(bits, group, w.shape[-1])
        self.packed, self.scales, self.zeros = quantize(w, self.fmt, method, Scheme(bits, **flags), dtype)

    @property
    def all(self) -> tuple[Any, ...]:
        return self.packed, self.scales, self.zeros, self.fmt.bits, self.fmt.group_size, self.fmt.in_features

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return self.packed, self.scales, self.zeros

    def errors(self) -> Tensor:
        return weight64(*self.all) - self.w

    def group_errors(self) -> Tensor:
        """Sum of squared errors of each group, float64 `[..., G]`."""
        squares = torch.nn.functional.pad(self.errors().square(), (0, self.fmt.groups * self.fmt.group_size - self.fmt.in_features))
        return squares.unflatten(-1, (self.fmt.groups, self.fmt.group_size)).sum(-1)


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def decibels(ratio: Tensor | float) -> float:
    return 10 * math.log10(float(ratio))


@methods
@widths
@groups
def test_codes_are_the_nearest_for_the_rounded_parameters(method: str, bits: int, group: int) -> None:
    """Shapes and dtypes are the format's; no other code lies nearer, ties within float32's rounding aside."""
    count = math.ceil(K / (K if group == -1 else group))
    for dtype in DTYPES:
        q = Quantized(torch.randn(2, 2, K) + 0.3, bits, group, method, dtype)
        assert (q.packed.dtype, q.packed.shape) == (torch.uint8, (2, 2, math.ceil(K * bits / 8)))
        assert all((p.dtype, p.shape) == (dtype, (2, 2, count)) for p in (q.scales, q.zeros))
        scale, code, zero = parts64(*q.all)
        best = (scale[..., None] * torch.arange(2**bits) + zero[..., None] - q.w[..., None]).abs().amin(-1)
        assert bool(((scale * code + zero - q.w).abs() <= best + 2.0**-21 * (q.w.abs() + zero.abs())).all())


@widths
@groups
@pytest.mark.parametrize("flags", [{}, {"symmetric": True}, {"integral_zero": True}], ids=["plain", "symmetric", "integral"])
def test_least_squares_is_never_worse_than_minmax(bits: int, group: int, flags: dict[str, bool]) -> None:
    w = torch.cat([torch.randn(3, K), torch.rand(3, K), torch.randn(2, K).pow(3) + 5])
    mine, other = (Quantized(w, bits, group, method, **flags).group_errors() for method in ("lsq", "minmax"))
    assert bool((mine <= other * (1 + 1e-5) + K * (2.0**-22 * w.abs().max()) ** 2).all())


def gaussian_noise(bits: int, method: str) -> float:
    """Mean squared error over the variance, Gaussian weights, groups of 64, float16 parameters."""
    w = torch.randn(2048, 512, generator=torch.Generator().manual_seed(1))
    w_hat = torch.ops.lowbit.dequantize(*Quantized(w, bits, 64, method, torch.float16).all, torch.float32)
    return float((w_hat - w).double().square().mean() / w.double().square().mean())


@pytest.mark.parametrize(("bits", "figure"), [(2, 6.9), (3, 14.3), (4, 20.9), (5, 27.3)], ids=lambda value: str(value))
def test_minmax_has_the_published_signal_to_noise_ratio(bits: int, figure: float) -> None:
    assert abs(-decibels(gaussian_noise(bits, "minmax")) - figure) <= 0.15


@pytest.mark.parametrize(("bits", "gain"), [(2, 2.8), (3, 1.2), (4, 0.75), (5, 0.55)], ids=lambda value: str(value))
def test_least_squares_gains_decibels_over_minmax(bits: int, gain: float) -> None:
    assert decibels(gaussian_noise(bits, "minmax") / gaussian_noise(bits, "lsq")) >= gain


def test_least_squares_of_one_bit_lies_below_the_variance() -> None:
    assert -decibels(gaussian_noise(1, "lsq")) >= 4.4


@methods
@pytest.mark.parametrize("group", GROUP_SIZES[1:], ids=lambda group: f"group{group}")
@pytest.mark.parametrize("flags", [{}, {"symmetric": True}], ids=["plain", "symmetric"])
def test_the_error_falls_as_bits_rise(method: str, group: int, flags: dict[str, bool]) -> None:
    """Case 6. (Groups of one have no error to fall.)"""
    w = torch.randn(32, K)
    errors = [float(Quantized(w, bits, group, method, **flags).errors().square().mean()) for bits in WIDTHS]
    assert errors == sorted(set(errors), reverse=True)


@methods
@widths
@dtypes
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e3], ids=str)
def test_symmetric_zero_is_the_middle_code(method: str, bits: int, dtype: torch.dtype, size: float) -> None:
    """zero == -2**(bits-1) * scale, exactly, also where float16 has few digits left."""
    q = Quantized(size * torch.randn(8, K), bits, 16, method, dtype, symmetric=True)
    middle = 0.5 if bits == 1 else 2 ** (bits - 1)
    assert torch.equal(q.zeros.double(), -middle * q.scales.double())


def test_symmetric_zero_is_the_middle_code_of_a_tiny_row_among_others() -> None:
    """Where the tensor as a whole is served by float16 parameters."""
    q = LowBitWeightTensor.from_float(torch.cat([torch.randn(7, 128), 1e-6 * torch.randn(1, 128)]), 4, symmetric=True)
    assert q.scales.dtype == torch.float16
    assert torch.equal(q.zeros.double(), -8 * q.scales.double())


@widths
def test_symmetric_minmax_scale_is_of_the_largest(bits: int) -> None:
    w = torch.randn(8, 128)
    q = Quantized(w, bits, 16, "minmax", symmetric=True)
    torch.testing.assert_close(q.scales, w.unflatten(-1, (8, 16)).abs().amax(-1) / (2 ** (bits - 1) - 0.5), rtol=1e-6, atol=0)


@methods
def test_symmetric_four_bits_of_a_small_weight(method: str) -> None:
    """Case 18: the error is at most half a step, with the step from the largest."""
    w = torch.rand(2, 2)
    q = LowBitWeightTensor.from_float(w, 4, method=method, symmetric=True)
    step = w.abs().amax(-1, keepdim=True) / 7.5
    assert bool(((q.dequantize() - w).abs() <= step / 2 + 2.0**-10 * w.abs().amax()).all())


@methods
@widths
@dtypes
def test_integral_zero_is_a_whole_number_of_steps(method: str, bits: int, dtype: torch.dtype) -> None:
    w = torch.cat([torch.randn(4, K), torch.rand(2, K) + 1, -torch.rand(2, K) - 1, torch.zeros(1, K)])
    q = Quantized(w, bits, 16, method, dtype, integral_zero=True)
    scale, zero = q.scales.double(), q.zeros.double()
    steps = (-zero / scale).nan_to_num(nan=0.0).round().clamp(0, 2**bits - 1)
    assert bool((scale >= 0).all())
    assert bool(((zero + steps * scale).abs() <= torch.finfo(dtype).eps * (zero.abs() + steps * scale) + 1e-30).all())


@methods
@pytest.mark.parametrize("bits", range(2, 9), ids=lambda bits: f"{bits}bits")
def test_symmetric_and_integral_agree(method: str, bits: int) -> None:
    w = torch.randn(4, K)
    both = Quantized(w, bits, 16, method, symmetric=True, integral_zero=True)
    assert same(both.parts, Quantized(w, bits, 16, method, symmetric=True).parts)


def test_symmetric_and_integral_leave_no_single_bit() -> None:
    with pytest.raises(ValueError, match="2 bits or more"):
        Scheme(1, symmetric=True, integral_zero=True)


@methods
@widths
def test_constant_rows_come_back(method: str, bits: int) -> None:
    """Case 36: rows of one value, together and each alone."""
    rows = torch.tensor(CONSTANTS)[:, None].expand(-1, K)
    for w in (rows, *rows.split(1)):
        q = LowBitWeightTensor.from_float(w, bits, method=method)
        assert q.scales.isfinite().all()
        assert q.zeros.isfinite().all()
        torch.testing.assert_close(q.dequantize(), w, rtol=2.0**-11, atol=0)


@methods
@dtypes
def test_constant_rows_come_back_in_a_given_dtype(method: str, dtype: torch.dtype) -> None:
    """Case 36, within the rounding of the parameters."""
    w = torch.tensor(CONSTANTS)[:, None].repeat(1, K)
    q = LowBitWeightTensor.from_float(w, 3, method=method, scale_dtype=dtype)
    assert torch.equal(q.dequantize(), w.to(dtype).float())


@methods
@widths
@pytest.mark.parametrize("flags", [{}, {"symmetric": True}, {"integral_zero": True}], ids=["plain", "symmetric", "integral"])
def test_zeros_are_exact(method: str, bits: int, flags: dict[str, bool]) -> None:
    """Case 37."""
    q = LowBitWeightTensor.from_float(torch.zeros(64, 128), bits, method=method, **flags)
    assert torch.equal(q.dequantize(), torch.zeros(64, 128))


@methods
@pytest.mark.parametrize("bits", [8, 4], ids=lambda bits: f"{bits}bits")
def test_tiny_float16_weights(method: str, bits: int) -> None:
    """Case 39: float16 parameters can't hold the step, so float32 ones are chosen."""
    w = (1e-6 * torch.randn(16, 256)).half()
    q = LowBitWeightTensor.from_float(w, bits, method=method)
    assert q.scales.dtype == torch.float32
    assert (q.dequantize(torch.float32) - w.float()).std() < 0.15 * w.float().std()


@methods
@pytest.mark.parametrize("size", [1e-15, 1e-25, 1e-36], ids=str)
def test_weights_whose_squares_vanish(method: str, size: float) -> None:
    """Case 40's kind: squared errors below float32's range must still tell float16 parameters from float32 ones."""
    w = size * torch.randn(16, 256)
    q = LowBitWeightTensor.from_float(w, 4, method=method)
    assert ((q.dequantize() - w).double() / size).std() < 0.15


@methods
@widths
def test_steps_near_the_end_of_float32(method: str, bits: int) -> None:
    """Case 40: steps of about 1e-40, and of about 1e37."""
    for size in (1e-40 * 2**bits, 1e-45, 1e38):
        q = Quantized(size * (2 * torch.rand(4, K) - 1), bits, 16, method)
        assert torch.isfinite(torch.cat([q.scales, q.zeros])).all()
        assert weight64(*q.all).abs().max() <= 2 * q.w.abs().max()


@methods
def test_weights_beyond_float16(method: str) -> None:
    """Case 51: float32 parameters are chosen; float16 ones, if asked for, are refused."""
    w = 1e5 * torch.randn(8, 128)
    q = LowBitWeightTensor.from_float(w, 4, method=method)
    assert q.scales.dtype == torch.float32
    assert (q.dequantize() - w).std() < 0.15 * w.std()
    with pytest.raises(ValueError, match=r"scale_dtype: torch\.float16 holds values up to 65504, the weights need"):
        LowBitWeightTensor.from_float(w, 4, method=method, scale_dtype=torch.float16)


@methods
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("place", [(0, 0), (3, 129), (2, 64)], ids=str)
def test_weights_that_are_not_finite(method: str, value: float, place: tuple[int, int]) -> None:
    """Case 43: the error names the place."""
    w = torch.randn(4, K)
    w[place] = value
    with pytest.raises(ValueError, match=rf"w\[{place[0]}, {place[1]}\] is {value}: expected finite weights"):
        LowBitWeightTensor.from_float(w, 4, method=method)


@methods
@widths
def test_groups_of_one_are_exact(method: str, bits: int) -> None:
    """Case 33."""
    w = torch.randn(8, 32)
    assert torch.equal(LowBitWeightTensor.from_float(w, bits, 1, method).dequantize(), w)
    half = LowBitWeightTensor.from_float(w, bits, 1, method, scale_dtype=torch.float16)
    torch.testing.assert_close(half.dequantize(), w, rtol=2.0**-11, atol=0)


@methods
@widths
def test_the_same_weight_gives_the_same_bits(method: str, bits: int) -> None:
    """Case 123."""
    w = torch.randn(16, K)
    assert same(Quantized(w, bits, 16, method).parts, Quantized(w.clone(), bits, 16, method).parts)


@methods
@widths
@pytest.mark.parametrize("group", [16, 64, 100, 1000], ids=lambda group: f"group{group}")
def test_nothing_padded_counts(method: str, bits: int, group: int) -> None:
    """Case 31: the last, shorter group is as if it stood alone, whatever lies behind the row."""
    buffer = torch.full((4, 2 * K), float("nan"))
    buffer[:, :K] = torch.randn(4, K) + 10  # a padded 0 would widen the range
    w, start = buffer[:, :K], K // group * group
    whole, tail = Quantized(w, bits, group, method), Quantized(w[:, start:], bits, group, method)
    assert torch.equal(whole.scales[:, -1:], tail.scales)
    assert torch.equal(whole.zeros[:, -1:], tail.zeros)
    assert torch.equal(parts64(*whole.all)[1][:, start:], parts64(*tail.all)[1])


@methods
@pytest.mark.parametrize("layout", ["rows", "transposed", "columns", "expanded", "middle", "offset"])
def test_strides_do_not_matter(method: str, layout: str) -> None:
    """Case 112."""
    a = torch.randn(8, 6, 70)
    views = {
        "rows": a[0][::2, :],
        "transposed": a[0].t(),
        "columns": a[0][:, ::2],
        "expanded": a[0][:1].expand(5, -1),
        "middle": a[:, ::2, :],
        "offset": a[3, 1:, 7:],
    }
    w = views[layout]
    assert same(Quantized(w, 3, 16, method).parts, Quantized(w.contiguous(), 3, 16, method).parts)


@methods
def test_rows_do_not_depend_on_their_neighbours(method: str) -> None:
    w = torch.randn(700, 1000)  # more than a block
    part, whole = Quantized(w[500:505], 3, 64, method), Quantized(w, 3, 64, method)
    assert same(part.parts, tuple(t[500:505] for t in whole.parts))


@methods
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_weights_of_another_dtype_are_taken_as_float32(method: str, dtype: torch.dtype) -> None:
    w = torch.randn(4, K).to(dtype)
    assert same(Quantized(w, 3, 16, method).parts, Quantized(w.float(), 3, 16, method).parts)


@methods
def test_the_weight_stays_as_it_is(method: str) -> None:
    w = torch.randn(4, K)
    before = w.clone()
    Quantized(w, 3, 16, method)
    assert torch.equal(w, before)


@pytest.mark.parametrize("shape", [(0, 64), (4, 0), (0, 0)], ids=str)
@methods
def test_empty_weights(method: str, shape: tuple[int, int]) -> None:
    q = LowBitWeightTensor.from_float(torch.empty(shape), 4, 16, method)
    assert q.dequantize().shape == shape


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=f"{', '.join(METHODS)}, got 'best'"):
        Quantized(torch.ones(4, 64), 4, 16, "best")
    with pytest.raises(TypeError, match=r"scale_dtype: .*got torch\.float64"):
        Quantized(torch.ones(4, 64), 4, 16, "minmax", torch.float64)


def error_growth(w: Tensor, bits: int, method: str) -> float:
    """The tensor's squared error with parameters rounded to float16 over that with float32 ones, in float64."""
    fine = Quantized(w, bits, 64, method)
    scales, zeros = fine.scales.half().double(), fine.zeros.half().double()
    coarse = [p.repeat_interleave(64, -1) for p in (scales, zeros)]
    codes = ((fine.w - coarse[1]) / coarse[0]).round().clamp(0, 2**bits - 1)
    return float((coarse[0] * codes + coarse[1] - fine.w).square().sum() / fine.errors().square().sum())


@methods
def test_float32_parameters_are_chosen_where_the_error_grows_by_a_tenth(method: str) -> None:
    chosen = {True: 0, False: 0}
    for offset in [0.0, *torch.logspace(1, 4.5, 24).tolist()]:
        w = torch.randn(64, 128) + offset
        grows = error_growth(w, 4, method)
        if abs(grows - 1.1) > 1e-3:
            dtype = LowBitWeightTensor.from_float(w, 4, 64, method).scales.dtype
            assert (dtype == torch.float32) == (grows > 1.1), f"offset {offset}, the error grows {grows} times"
            chosen[grows > 1.1] += 1
    assert min(chosen.values()) >= 5


@pytest.mark.parametrize(
    ("low", "dtype"),
    [(-65504.0, torch.float16), (-65510.0, torch.float32), (-65536.0, torch.float32)],
    ids=["holds", "rounds", "overflows"],
)
def test_float32_parameters_are_chosen_where_a_zero_exceeds_float16(low: float, dtype: torch.dtype) -> None:
    """|zero| above 65504, though the step of 4096 hides the rounding."""
    w = torch.linspace(low, low + 15 * 4096, 640).repeat(4, 1)
    assert LowBitWeightTensor.from_float(w, 4, -1, "minmax").scales.dtype == dtype


@pytest.mark.parametrize(("step", "dtype"), [(65504.0, torch.float16), (65536.0, torch.float32)], ids=["holds", "overflows"])
def test_float32_parameters_are_chosen_where_a_scale_exceeds_float16(step: float, dtype: torch.dtype) -> None:
    w = torch.linspace(0, step, 100).repeat(4, 1)
    assert LowBitWeightTensor.from_float(w, 1, -1, "minmax").scales.dtype == dtype


@dtypes
@methods
def test_a_given_dtype_is_kept(method: str, dtype: torch.dtype) -> None:
    assert LowBitWeightTensor.from_float(torch.randn(4, K) + 100, 4, method=method, scale_dtype=dtype).scales.dtype == dtype


@widths
def test_total_error_is_that_of_float64(bits: int) -> None:
    q = Quantized(torch.randn(6, K), bits, 16, "minmax", torch.float16)
    total = total_error(q.w.float(), q.scales, q.zeros, q.fmt)
    torch.testing.assert_close(float(total), float(q.errors().square().sum()), rtol=1e-4, atol=0)


def test_least_squares_is_the_regression_of_weights_on_codes() -> None:
    w, scheme = torch.randn(5, 40), Scheme(3)
    codes = torch.randint(0, 8, (5, 40)).float()
    one = torch.ones(5, 1)
    slope, offset = least_squares(w, codes, one, one, scheme)
    for row in range(5):
        design = torch.stack([codes[row], torch.ones(40)], -1).double()
        best = torch.linalg.lstsq(design, w[row].double()[:, None]).solution.flatten()
        torch.testing.assert_close(torch.stack([slope[row, 0], offset[row, 0]]).double(), best, rtol=1e-4, atol=1e-5)


def test_least_squares_keeps_a_step_that_the_codes_leave_open() -> None:
    w, codes = torch.full((1, 8), 3.0), torch.full((1, 8), 2.0)
    slope, offset = least_squares(w, codes, torch.tensor([[0.5]]), torch.tensor([[7.0]]), Scheme(3))
    assert (float(slope), float(offset)) == (0.5, 2.0)


def test_nearest_codes_of_steps_of_both_signs() -> None:
    w = torch.tensor([[-9.0, 0.0, 0.6, 1.4, 9.0]])
    assert nearest_codes(w, torch.tensor([[1.0]]), torch.tensor([[0.0]]), 3).tolist() == [[0, 0, 1, 1, 3]]
    assert nearest_codes(w, torch.tensor([[-1.0]]), torch.tensor([[1.0]]), 3).tolist() == [[3, 1, 0, 0, 0]]
    assert nearest_codes(w * 0 + 5, torch.tensor([[0.0]]), torch.tensor([[5.0]]), 3).tolist() == [[0] * 5]


def test_half_quadratic_zero_resists_a_weight_far_out() -> None:
    """The median error of the many is smaller than with `minmax`, whose grid is the same but for the zero."""
    w = torch.randn(64, 64)
    w[:, 0] = 12
    mine, other = (Quantized(w, 3, 64, method).errors()[:, 1:].abs().median() for method in ("hqq", "minmax"))
    assert mine < other


def peak_bytes(trace: Path, action: Any) -> int:
    """The most memory that PyTorch's allocator held during `action` beyond what it held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    profiler.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    held = torch.tensor([e["args"]["Bytes"] for e in sorted(events, key=lambda e: e["ts"])]).cumsum(0)
    return int(held.max())


def test_peak_bytes_sees_what_is_freed_again(tmp_path: Path) -> None:
    at_once = peak_bytes(tmp_path / "trace.json", lambda: torch.ones(1 << 20).add(1).sum())
    in_turn = peak_bytes(tmp_path / "trace.json", lambda: [torch.ones(1 << 20).sum() for _ in range(4)])
    assert (at_once >> 20, in_turn >> 20) == (8, 4)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [pytest.param(m, torch.float32, id=f"{m}-64MB-float32", marks=() if m in ("minmax", "lsq") else pytest.mark.full) for m in METHODS]
    + [pytest.param(m, torch.bfloat16, id=f"{m}-32MB-bfloat16", marks=() if m == "hqq" else pytest.mark.full) for m in METHODS],
)
def test_quantizing_takes_at_most_one_and_a_half_times_the_weight(
    method: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 118: beyond the weight itself, the result of 8 bits included. The number of steps does not change the peak."""
    monkeypatch.setattr(hqq, "STEPS", 1)
    monkeypatch.setattr(lsq, "STEPS", 1)
    w = torch.randn(4096, 4096, dtype=dtype)
    peak = peak_bytes(tmp_path / "trace.json", lambda: LowBitWeightTensor.from_float(w, 8, method=method))
    assert w.numel() <= peak <= 1.5 * w.nbytes


def test_strides_that_allow_no_view_are_not_copied(tmp_path: Path) -> None:
    """A stack of experts seen from the side: read in blocks, with the same result as its contiguous copy."""
    w = torch.randn(512, 8, 1024).transpose(0, 1)
    expected = LowBitWeightTensor.from_float(w.contiguous(), 4, 64, "minmax")
    peak = peak_bytes(tmp_path / "trace.json", lambda: LowBitWeightTensor.from_float(w, 4, 64, "minmax"))
    assert peak <= 1.5 * w.nbytes
    assert torch.equal(LowBitWeightTensor.from_float(w, 4, 64, "minmax").packed, expected.packed)
    w[3, 7, 5] = torch.nan
    with pytest.raises(ValueError, match=r"w\[3, 7, 5\] is nan"):
        LowBitWeightTensor.from_float(w, 4)


@pytest.mark.parametrize("bits", [2, 3, 4], ids=lambda b: f"{b}bits")
def test_auto_keeps_zero_as_a_value_where_codes_are_few(bits: int) -> None:
    """A group that spans 0 has 0 among its values; one that does not spends no codes on reaching it."""
    w = torch.randn(64, 128)
    w[:, 64:] = 5 + 0.1 * w[:, 64:]
    q = LowBitWeightTensor.from_float(w, bits, 64, "auto")
    steps = -q.zeros.float() / q.scales.float()
    spanning = steps[:, 0]
    assert (spanning - spanning.round()).abs().max() < 2e-2 and 0 <= spanning.round().min() <= spanning.round().max() <= 2**bits - 1
    method = BY_WIDTH[bits].__name__.rpartition(".")[2]
    free = LowBitWeightTensor.from_float(w, bits, 64, method)
    assert torch.equal(q.codes()[:, 64:], free.codes()[:, 64:]) and torch.equal(q.scales[:, 1], free.scales[:, 1])


@pytest.mark.parametrize("bits", range(1, 9), ids=lambda b: f"{b}bits")
def test_auto_is_the_method_of_its_width(bits: int) -> None:
    w = torch.randn(16, 64)
    method = BY_WIDTH[bits].__name__.rpartition(".")[2]
    expected = LowBitWeightTensor.from_float(w, bits, 64, method, integral_zero=bits in WHOLE_ZERO)
    assert torch.equal(LowBitWeightTensor.from_float(w, bits).dequantize(), expected.dequantize())


def test_the_largest_float16_stays_finite():
    """A step rounded up would make the largest weight infinite in its own dtype; fitted grids may end beyond the weights."""
    w = torch.tensor([[65504.0, -65504.0, 3.0, 0.0]]).half()
    for bits in range(1, 9):
        got = LowBitWeightTensor.from_float(w, bits, 4, "minmax").dequantize()
        assert got.isfinite().all(), (bits, got)
