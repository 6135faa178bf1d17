"""What went wrong for users of other low-bit weights, each case by its number: shapes, strides, zero points, bytes. Values are held
against codes, scales and zeros that are known from the start, not read back from the weight."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from weights import FLOATS, WIDTHS, check, inner, known, make, same, within_bound

import lowbit_tensor as lb


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that an op leaves unwritten holds NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


# Shapes


@pytest.mark.parametrize("m", [1, 17])
@pytest.mark.parametrize("bits", WIDTHS)
def test_rows_of_4304(bits: int, m: int) -> None:
    """Case 21: no usual group size divides the row, and no zero is in the middle of its group."""
    w, parts = known(bits, 5, 4304, 64)
    x = torch.randn(m, 4304)
    check(F.linear(x, w), x, parts)


@pytest.mark.parametrize("n", [1, 4, 7, 33, 48])
@pytest.mark.parametrize("bits", WIDTHS)
def test_one_row_and_odd_numbers_of_outputs(bits: int, n: int, poisoned: None) -> None:
    """Cases 24 and 132."""
    w, parts = known(bits, n, 4096, 64)
    x = torch.randn(1, 4096).half()
    check(F.linear(x, w), x, parts)
    check(F.linear(x[0], w), x[0], parts)


@pytest.mark.parametrize("n", [32, 96])
@pytest.mark.parametrize("bits", WIDTHS)
def test_weights_that_lie_the_other_way(bits: int, n: int, poisoned: None) -> None:
    """Case 25: a weight laid [K, N], memory filled with NaN before."""
    w, parts = known(bits, 1024, n, 64)
    x = torch.randn(1, 1024)
    check(x @ w, x, tuple(p.mT for p in parts))


@pytest.mark.parametrize("bits", WIDTHS)
def test_groups_of_16_in_a_row_of_1040(bits: int, poisoned: None) -> None:
    """Case 27: any number of rows around the sizes of tiles; and rows as long as a page of memory has scales."""
    w, parts = known(bits, 128, 1040, 16)
    for m in (1, 2, 15, 16, 17, 50):
        x = torch.randn(m, 1040)
        check(F.linear(x, w), x, parts)
    w, parts = known(bits, 3, 32768, 16)
    x = torch.randn(2, 32768)
    check(F.linear(x, w), x, parts)


@pytest.mark.parametrize("bits", WIDTHS)
def test_as_many_rows_as_outputs(bits: int) -> None:
    """Case 117: where x and the weight have one shape, no product may take one for the other."""
    w, parts = known(bits, 53, 2048, 64)
    x, y, turned = torch.randn(53, 2048), torch.randn(53, 53), tuple(p.mT for p in parts)
    for result in (x @ w.t(), torch.mm(x, w.t()), F.linear(x, w), torch.einsum("mk,nk->mn", x, w), (w @ x.t()).t(), F.linear(w, x).t()):
        check(result, x, parts)
    for result in (y @ w, torch.mm(y, w), (w.t() @ y.t()).t()):
        check(result, y, turned)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
def test_devices_are_told_without_a_forward(device: torch.device, bias: bool) -> None:
    """Case 55."""
    linear = nn.Linear(100, 33, bias=bias)
    linear.weight = make(5)
    x, expected = torch.randn(3, 100), (linear.weight.clone(), linear.bias.detach().clone() if bias else None)
    linear.to(device)
    assert linear.weight.device.type == device.type and {t.device.type for t in inner(linear.weight)} == {device.type}
    assert make().to("meta").device == torch.device("meta")
    within_bound(linear(x.to(device)).cpu(), x, *expected)


# Strides


@pytest.mark.parametrize("bits", WIDTHS)
def test_column_major_weights(bits: int) -> None:
    """Case 114: of floats, and of the parts themselves."""
    float_weight, x = torch.randn(33, 100), torch.randn(3, 100)
    by_column = float_weight.t().contiguous().t()
    assert same(lb.LowBitWeightTensor.from_float(by_column, bits, 64), lb.LowBitWeightTensor.from_float(float_weight, bits, 64))
    w, parts = known(bits, 33, 100, 64)
    turned = lb.LowBitWeightTensor(*(t.t().contiguous().t() for t in inner(w)), bits, 64, 100)
    assert not turned.packed.is_contiguous() and turned.shape == w.shape
    check(F.linear(x, turned), x, parts)
    check(x[:, :33] @ turned, x[:, :33], tuple(p.mT for p in parts))
    assert torch.equal(turned.codes().double(), parts[1]) and same(turned.contiguous(), w) and same(pickle.loads(pickle.dumps(turned)), w)


@pytest.mark.parametrize("bits", WIDTHS)
def test_slices_of_a_buffer_as_activations(bits: int) -> None:
    """Case 115."""
    w, parts = known(bits, 33, 100, 64)
    buffer, target = torch.randn(3, 200), torch.full((3, 60), 7.0)
    x = buffer[:, 5:105]
    check(F.linear(x, w), x, parts)
    target[:, 5:38] = F.linear(x, w)
    check(target[:, 5:38], x, parts)
    assert (target[:, :5] == 7).all() and (target[:, 38:] == 7).all()


OUT = {
    "mm": lambda x, w, out: torch.mm(x, w.t(), out=out),
    "matmul": lambda x, w, out: torch.matmul(x, w.t(), out=out),
    "addmm": lambda x, w, out: torch.addmm(torch.ones(33), x, w.t(), out=out),
    "mv": lambda x, w, out: torch.mv(w, x[0], out=out[0]),
    "bmm": lambda x, w, out: torch.bmm(x[None], w.t()[None], out=out[None]),
}


@pytest.mark.parametrize("name", OUT)
def test_products_into_a_slice(name: str) -> None:
    """Cases 115 and 117: the slice holds the product, nothing beside it is written."""
    x, w = torch.randn(3, 100), make()
    results = []
    for weight in (w, w.dequantize()):
        buffer = torch.full((3, 60), 7.0)
        out = OUT[name](x, weight, buffer[:, 5:38])
        assert out.data_ptr() == buffer[:, 5:].data_ptr()
        results.append(buffer)
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-4)
    assert (results[0][:, :5] == 7).all() and (results[0][:, 38:] == 7).all()


# Zero points and bytes


def through_file(w: lb.LowBitWeightTensor, path: Path) -> lb.LowBitWeightTensor:
    lb.save_file({"w": w}, path)
    return lb.load_file(path)["w"]


def empty_copy(w: lb.LowBitWeightTensor) -> lb.LowBitWeightTensor:
    return torch.zeros_like(w).copy_(w)


def through_torch(w: lb.LowBitWeightTensor) -> lb.LowBitWeightTensor:
    buffer = io.BytesIO()
    torch.save(w, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


WAYS = {
    "file": through_file,
    "torch.save": lambda w, path: through_torch(w),
    "pickle": lambda w, path: pickle.loads(pickle.dumps(w)),
    "deepcopy": lambda w, path: copy.deepcopy(w),
    "clone": lambda w, path: w.clone(),
    "half and back": lambda w, path: w.half().float(),
    "bfloat16, to and back": lambda w, path: w.to("cpu", torch.bfloat16).to(torch.float32),
    "copy_": lambda w, path: empty_copy(w),
    "rows cut and joined": lambda w, path: torch.cat(w.split(1)),
    "columns cut and joined": lambda w, path: torch.cat([w[:, 8:], w[:, :8]], 1).split([w.shape[1] - 8, 8], 1)[0],
    "unpacked and packed": lambda w, path: lb.LowBitWeightTensor.from_codes(
        w.codes(), w.scales, w.zeros, bits=w.bits, group_size=w.group_size, dtype=w.dtype
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", WIDTHS)
def test_every_zero_point_survives(bits: int, way: str, path: Path) -> None:
    """Case 16: a group for each of the 2**bits zero points, 0 among them; a step of a power of two, so that all is exact."""
    points = torch.arange(2**bits)
    codes = torch.randint(0, 2**bits, (3, 8 * 2**bits))
    zeros = (-points * 2.0**-6).expand(3, -1).contiguous()
    w = lb.LowBitWeightTensor.from_codes(codes, torch.full_like(zeros, 2.0**-6), zeros, bits=bits, group_size=8)
    expected = (codes - points.repeat_interleave(8)) * 2.0**-6
    got = WAYS[way](w, path).dequantize()
    assert torch.equal(got, expected[:, 8:] if way.startswith("columns") else expected)


@pytest.mark.parametrize("method", lb.METHODS)
@pytest.mark.parametrize("bits", WIDTHS)
def test_zero_points_of_positive_weights(bits: int, method: str, path: Path) -> None:
    """Case 16: their zero point is code 0, and it is 0 that comes back."""
    w = torch.rand(4, 96)
    w[:, [0, 40]] = 0
    w[:, 64:] += 1
    q = through_file(lb.LowBitWeightTensor.from_float(w, bits, 32, method, integral_zero=True), path)
    assert not q.zeros.any() and not q.codes()[:, [0, 40]].any() and not q.dequantize()[:, [0, 40]].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", WIDTHS)
def test_every_byte_survives(bits: int, way: str, path: Path) -> None:
    """Case 111: all 256 values of a byte of codes."""
    packed = torch.arange(256, dtype=torch.uint8).repeat(3, bits)
    scales = torch.ones(3, 256, dtype=torch.float16)
    w = lb.LowBitWeightTensor(packed, scales, torch.zeros_like(scales), bits, 8, 2048)
    got = WAYS[way](w, path).packed
    assert got.dtype == torch.uint8 and torch.equal(got, packed[:, bits:] if way.startswith("columns") else packed)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int32], ids=str)
def test_codes_in_another_dtype_are_refused(dtype: torch.dtype) -> None:
    """Case 111: never in a float dtype, where some bytes would be NaN."""
    w = make()
    with pytest.raises(TypeError, match=rf"packed codes of uint8, got {str(dtype).removeprefix('torch.')}"):
        lb.LowBitWeightTensor(w.packed.to(dtype), w.scales, w.zeros, 4, 64, 100)


@pytest.mark.parametrize("k", [1, 7, 31, 33, 100])
@pytest.mark.parametrize("bits", WIDTHS)
def test_any_row_length_is_written(bits: int, k: int, path: Path) -> None:
    """Case 88: our files have no blocks that a row must fill; what is written is the row, no padding."""
    w, parts = known(bits, 3, k, 32)
    back = through_file(w, path)
    assert back.packed.shape == (3, -(-k * bits // 8)) and torch.equal(back.codes().double(), parts[1]) and same(back, w)
