"""The native CPU kernels: every instruction set that the machine has, against float64; their threads, their absence, their choice."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from oracle import codes_of, linear_bound, pack_row
from samples import FLOATS, WIDTHS, Weight, assert_within, grid, random_weight, strided
from torch.utils.flop_counter import FlopCounterMode

import lowbit_tensor as lb
from lowbit_tensor import cpu
from lowbit_tensor.cpu import launch, library
from lowbit_tensor.ops import dequantize as dequantize_op

GROUPS = (16, 32, 64, 128, 256, 192, -1)
SIZES = ((1, 9, 64), (1, 3, 1000), (2, 5, 72), (3, 1, 33), (4, 7, 520), (5, 4, 100), (16, 3, 300), (1, 6, 1), (7, 2, 4304))
SETS = [name for name, usable in library.sets().items() if usable]


@pytest.fixture(params=SETS)
def kernels(request: pytest.FixtureRequest) -> str:
    library.use(request.param)
    yield request.param
    library.use()


def check(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    y = launch.linear(x, *weight.parts, bias, *weight.layout)
    y64 = x.double() @ weight.exact().T + (0 if bias is None else bias.double())
    assert y.dtype == x.dtype
    assert_within(y, y64, linear_bound(x, y64, weight.exact_parts(), x.dtype))
    return y


def test_the_library_is_there() -> None:
    """It is built with the package where there is a compiler; the tests below need it."""
    assert library.LIBRARY is not None, library.REASON
    assert set(library.sets()) == {"avx512_vbmi", "avx512", "avx2", "neon", "scalar"} and "scalar" in SETS
    assert cpu.active() == SETS[0]


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUPS, x=FLOATS, params=FLOATS, size=SIZES))
def test_linear(bits: int, group: int, x: torch.dtype, params: torch.dtype, size: tuple[int, int, int], kernels: str) -> None:
    """Cases 9, 21, 24 and 48, for each instruction set."""
    m, n, k = size
    weight = random_weight((n, k), bits, group, params)
    check(torch.randn(m, k).to(x), weight, torch.randn(n).to(params) if m % 2 else None)


@pytest.mark.parametrize("rows", range(1, 41))
def test_every_number_of_rows(rows: int) -> None:
    """Case 30: no gap between few rows and panels."""
    check(torch.randn(rows, 200), random_weight((33, 200), 3, 64), torch.randn(33))


@pytest.mark.parametrize("bits", WIDTHS)
def test_whole_weights(bits: int, kernels: str) -> None:
    """Values bit for bit those of the reference, bytes those of Python's integers."""
    for length, group, params in ((1000, 64, torch.float16), (33, -1, torch.bfloat16), (72, 16, torch.float16), (200, 192, torch.bfloat16)):
        weight = random_weight((5, length), bits, group, params)
        for dtype in (*FLOATS, torch.float64):
            expected = dequantize_op.reference(*weight.all, dtype if dtype != torch.float64 else torch.float32).to(dtype)
            assert torch.equal(launch.dequantize(*weight.all, dtype), expected)
            ids = torch.tensor([[4, 0], [2, 2]])
            assert torch.equal(launch.embedding(ids, *weight.all, dtype), expected[ids])
        codes = launch.unpack(weight.packed, bits, length)
        assert torch.equal(codes.long(), codes_of(weight.packed, bits, length))
        packed = launch.pack(codes, bits)
        assert [bytes(row.tolist()) for row in packed] == [pack_row(row.tolist(), bits) for row in codes]


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.0, 65504.0, 65520.0, 1e9, 6e-8, 2.9e-8, 6.1e-5, 1.00048828125, float("inf"), float("nan"), -3.14159]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rounding_is_that_of_torch(value: float, dtype: torch.dtype) -> None:
    """The library's own conversions: a weight of one code whose zero is the value."""
    zeros = torch.full((1, 1), value)
    got = launch.dequantize(torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(1, 1), zeros, 8, 64, 1, dtype)
    torch.testing.assert_close(got, zeros.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_all_halves_are_read_exactly(kernels: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
        values = values[values.isfinite()][:, None]
        packed = torch.zeros(len(values), 1, dtype=torch.uint8)
        got = launch.dequantize(packed, torch.zeros_like(values), values, 8, 64, 1, torch.float32)
        assert torch.equal(got, values.float())


def test_strides_and_offsets(kernels: str) -> None:
    """Cases 112 and 115."""
    weight, x = random_weight((9, 200), 5, 64), torch.randn(3, 200)
    expected = check(x, weight)
    assert torch.equal(launch.linear(strided(x), *(strided(p) for p in weight.parts), None, *weight.layout), expected)
    assert torch.equal(launch.linear(x, *(p[3:] for p in weight.parts), None, *weight.layout), expected[:, 3:])


@pytest.mark.parametrize("rows", [1, 20])
def test_sums_beyond_float16_are_kept(rows: int, kernels: str) -> None:
    """Case 46."""
    weight = random_weight((8, 4096), 4, 64, torch.float32)
    weight.packed.fill_(0xFF)
    weight.scales.fill_(1e-3)
    weight.zeros.zero_()
    y = launch.linear(torch.full((rows, 4096), 30.0).half(), *weight.parts, None, *weight.layout)
    assert ((y.float() - 1843.2).abs() <= 1).all()


@pytest.mark.parametrize("rows", [1, 3, 16, 50])
def test_threads_change_no_bit(rows: int) -> None:
    """Case 121: whatever the team, and from 8 Python threads at once."""
    weight, x = random_weight((300, 1024), 4, 64), torch.randn(rows, 1024)
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(launch.linear(x, *weight.parts, None, *weight.layout))
    finally:
        torch.set_num_threads(before)
    pool = [threading.Thread(target=lambda: results.append(launch.linear(x, *weight.parts, None, *weight.layout))) for _ in range(8)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    assert len(results) == 11
    if rows <= library.MAX_ROWS:
        assert all(torch.equal(result, results[0]) for result in results)
    else:  # torch's own product of panels may sum in another order
        assert all(torch.allclose(result, results[0], rtol=1e-5, atol=1e-4) for result in results)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no libgomp: the kernels run on one thread there")
def test_one_pool_of_threads() -> None:
    """The library's libgomp is the copy that torch loaded."""
    check(torch.randn(1, 4096), random_weight((64, 4096), 4, 64))
    with open("/proc/self/maps") as maps:
        assert len({line.split()[-1] for line in maps if "libgomp" in line}) == 1


def test_the_choice_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.use("scalar") == cpu.active() == "scalar" and library.use("reference") == cpu.active() == "reference"
    assert library.use() == SETS[0]
    for wrong in ("avx1024", "neon" if "neon" not in SETS else "avx2", ""):
        with pytest.raises(ValueError, match=r"expected one of .*scalar, reference, got"):
            library.use(wrong)
    script = "import lowbit_tensor.cpu as cpu; print(cpu.active())"
    for name in ("scalar", "reference"):
        monkeypatch.setenv("LOWBIT_CPU", name)
        assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == name


def test_without_the_library_the_reference_serves_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = random_weight((5, 64), 4, 16), torch.randn(2, 64)
    monkeypatch.setattr(library, "LIBRARY", None)
    monkeypatch.setattr(library, "REASON", "it was installed without a C++ compiler")
    monkeypatch.setattr(cpu, "_SAID", set())
    assert library.sets() == {} and library.use() == "reference"
    with pytest.warns(UserWarning, match="no native kernels for the CPU, it was installed without a C.. compiler; the plain reference"):
        y = torch.ops.lowbit.linear(x, *weight.parts, None, *weight.layout)
    torch.testing.assert_close(y.double(), x.double() @ weight.exact().T, rtol=1e-5, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.ops.lowbit.linear(x, *weight.parts, None, *weight.layout)
    monkeypatch.undo()
    assert library.use() == SETS[0]


@pytest.mark.parametrize(
    ("group", "length", "covered"), [(16, 100, True), (48, 100, False), (64, 7, True), (192, 500, True), (7, 100, False), (7, 7, True)]
)
def test_what_the_kernels_cover(group: int, length: int, covered: bool) -> None:
    assert cpu.covers(group, length) == covered


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("rows", [1, 20])
def test_gradients_run_on_the_kernels_too(bits: int, rows: int) -> None:
    weight, x = random_weight((33, 128), bits, 64, torch.float32).leaves(), torch.randn(rows, 128, requires_grad=True)
    y = torch.ops.lowbit.linear(x, *weight.parts, None, *weight.layout)
    got = torch.autograd.grad(y.square().sum(), [x, weight.scales, weight.zeros])
    expected = torch.autograd.grad((x @ weight.plain().T).square().sum(), [x, weight.scales, weight.zeros])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))


@pytest.mark.parametrize("x", FLOATS, ids=str)
@pytest.mark.parametrize("bias", [None, *FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 4, 64), (17, 64), (0, 64)], ids=str)
def test_the_quick_way_is_the_op(x: torch.dtype, bias: torch.dtype | None, shape: tuple[int, ...]) -> None:
    """`F.linear` in eager mode goes straight to the library; the bits are those of the op."""
    w = lb.LowBitWeightTensor.from_float(torch.randn(9, 64), 5, 16)
    rows, shift = torch.randn(shape).to(x), None if bias is None else torch.randn(9).to(bias)
    parts = (w.packed, w.scales, w.zeros, shift, 5, 16)
    assert torch.equal(F.linear(rows, w, shift), torch.ops.lowbit.linear(rows, *parts))
    quick = cpu.quick_linear(rows, *parts[:4], 5, 16, 64)
    assert (quick is not None) == (torch.Size(shape[:-1]).numel() in range(1, 17) and bias != torch.float64)


def test_what_the_quick_way_leaves_to_the_op() -> None:
    """Gradients, autocast, modes, transforms, tracing, strides, other groups."""
    w, x = lb.LowBitWeightTensor.from_float(torch.randn(9, 64), 4, 16), torch.randn(2, 64)

    def quick(x: torch.Tensor = x, w: lb.LowBitWeightTensor = w) -> torch.Tensor | None:
        return cpu.quick_linear(x, w.packed, w.scales, w.zeros, None, w.bits, w.group_size, w.in_features)

    assert quick() is not None
    assert quick(x.clone().requires_grad_()) is None and quick(x.double()) is None and quick(x[:, :32]) is None
    assert quick(torch.randn(64, 2).t()) is None and quick(x.to("meta")) is None
    assert quick(w=lb.LowBitWeightTensor.from_float(torch.randn(9, 64), 4, 24)) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert quick() is None and F.linear(x, w).dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter:
        F.linear(x, w)
    assert counter.get_total_flops() == 2 * 2 * 64 * 9
    assert torch.func.vmap(lambda x: F.linear(x, w))(x).shape == (2, 9)
    with torch.no_grad():
        assert quick(x.clone().requires_grad_()) is not None
    library.use("reference")
    try:
        assert quick() is None
    finally:
        library.use()
