"""Whole weights and their rows in our shaders: values bit for bit those of the reference, bytes those of the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from oracle import codes_of, pack_row
from samples import FLOATS, WIDTHS, grid, random_weight

from lowbit_tensor.metal import launch
from lowbit_tensor.ops import dequantize as dequantize_op
from lowbit_tensor.ops import parameter_grad as parameter_grad_op

LENGTHS = (72, 100, 33, 8, 1, 264)
GROUPS = (16, 64, 256, -1, 24, 2**31 - 1)


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUPS, dtype=FLOATS, params=FLOATS, length=LENGTHS))
def test_dequantize(bits: int, group: int, dtype: torch.dtype, params: torch.dtype, length: int, device: torch.device) -> None:
    weight = random_weight((9, length), bits, group, params, device)
    got = launch.dequantize(*weight.all, dtype)
    if params == torch.float32:  # scale * code is not exact there: fma and multiply-then-add may differ in the last place
        torch.testing.assert_close(got.cpu().double(), weight.exact(), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    else:
        assert torch.equal(got.cpu(), dequantize_op.reference(*(t.cpu() if isinstance(t, torch.Tensor) else t for t in weight.all), dtype))


@pytest.mark.parametrize(**grid(bits=WIDTHS, dtype=FLOATS, indices=(torch.int64, torch.int32), length=LENGTHS))
def test_embedding(bits: int, dtype: torch.dtype, indices: torch.dtype, length: int, device: torch.device) -> None:
    weight = random_weight((9, length), bits, 16, device=device)
    ids = torch.tensor([[0, 8, 3], [3, 1, 0]], dtype=indices, device=device)
    assert torch.equal(launch.embedding(ids, *weight.all, dtype), launch.dequantize(*weight.all, dtype)[ids.long()])
    for wrong in (9, -1):
        with pytest.raises(IndexError, match="indices of 0 to 8"):
            launch.embedding(torch.tensor([wrong], device=device), *weight.all, dtype)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("length", LENGTHS)
def test_bytes(bits: int, length: int, device: torch.device) -> None:
    """Case 6: the bit stream by Python's integers."""
    codes = torch.randint(0, 2**bits, (5, length), device=device)
    packed = launch.pack(codes, bits)
    assert [bytes(row.tolist()) for row in packed.cpu()] == [pack_row(row.tolist(), bits) for row in codes.cpu()]
    assert torch.equal(launch.unpack(packed, bits, length), codes.to(torch.uint8))


@pytest.mark.parametrize(**grid(bits=WIDTHS, dtype=FLOATS, params=FLOATS, group=GROUPS))
def test_encode(bits: int, dtype: torch.dtype, params: torch.dtype, group: int, device: torch.device) -> None:
    """The bytes that the CPU makes of the same weight and parameters, a scale of 0 included."""
    weight = random_weight((9, 100), bits, group, params, device)
    weight.scales[0] = 0
    w = torch.randn(9, 100, device=device).to(dtype)
    packed = launch.encode(w, weight.scales, weight.zeros, *weight.layout)
    assert torch.equal(packed.cpu(), torch.ops.lowbit.encode(w.cpu(), weight.scales.cpu(), weight.zeros.cpu(), *weight.layout))


@pytest.mark.parametrize("method", ["auto", "minmax", "hqq", "lsq"])
@pytest.mark.parametrize("bits", [2, 4, 5])
@pytest.mark.parametrize("group", [32, -1])
def test_quantize(method: str, bits: int, group: int, device: torch.device) -> None:
    w = torch.randn(7, 100, device=device)
    parts = launch.quantize(w, bits, group, method, torch.float16, False, False)
    expected = torch.ops.lowbit.quantize(w.cpu(), bits, group, method, torch.float16, False, False)
    if device.type == "cpu":
        assert all(torch.equal(a, b) for a, b in zip(parts, expected, strict=True))
    else:  # the device's own arithmetic finds the parameters
        weights = [
            dequantize_op.reference(*(p.cpu() for p in q), bits, 100 if group == -1 else group, 100, torch.float32)
            for q in (parts, expected)
        ]
        errors = [(q - w.cpu()).square().sum() for q in weights]
        assert errors[0] <= 1.01 * errors[1]


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUPS, length=LENGTHS, dtype=FLOATS))
def test_parameter_grad(bits: int, group: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
    weight = random_weight((5, length), bits, group, device=device)
    grad = torch.randn(5, length, device=device).to(dtype)
    got = launch.parameter_grad(grad, weight.packed, *weight.layout)
    expected = parameter_grad_op.reference(grad.cpu().double(), weight.packed.cpu(), *weight.layout)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=1e-5, atol=1e-5 * 2**bits * length)


def test_rows_beyond_two_gigabytes(kernels: Callable[..., None], device: torch.device) -> None:
    """Offsets pass 2**31: a weight of which only the last rows are ever touched."""
    kernels(check=False)
    torch.use_deterministic_algorithms(False)  # which would fill it
    rows, length = 540_000, 4096
    packed = torch.empty(rows, length, dtype=torch.uint8, device=device)
    packed[-2:] = torch.randint(0, 256, (2, length), dtype=torch.uint8, device=device)
    scales, zeros = torch.ones(rows, 1, device=device), torch.zeros(rows, 1, device=device)
    got = launch.embedding(torch.tensor([rows - 1, rows - 2], device=device), packed, scales, zeros, 8, length, length, torch.float32)
    assert torch.equal(got, packed[[rows - 1, rows - 2]].float())
    x = torch.ones(1, length, device=device)
    experts = (packed.view(rows, 1, length), scales[:, None], zeros[:, None])
    y = launch.grouped_linear(x, *experts, torch.tensor([rows - 1], device=device), 8, length)
    assert y.item() == packed[-1].float().sum().item()


def test_codes_of_the_oracle(device: torch.device) -> None:
    weight = random_weight((3, 100), 7, 16, device=device)
    assert torch.equal(launch.unpack(weight.packed, 7, 100).cpu().long(), codes_of(weight.packed, 7, 100))


@pytest.mark.parametrize("length", [72, 100])
def test_experts(length: int, device: torch.device) -> None:
    """Weights of three dimensions: every matrix of them."""
    weight = random_weight((3, 5, length), 5, 16, device=device)
    assert torch.equal(
        launch.dequantize(*weight.all, torch.float32)[2],
        launch.dequantize(*(p[2] for p in weight.parts), *weight.layout, length, torch.float32),
    )
    torch.testing.assert_close(launch.dequantize(*weight.all, torch.float32).cpu().double(), weight.exact(), rtol=1e-6, atol=1e-6)
    grad = torch.randn(3, 5, length, device=device)
    got = launch.parameter_grad(grad, weight.packed, *weight.layout)
    expected = parameter_grad_op.reference(grad.cpu().double(), weight.packed.cpu(), *weight.layout)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("symmetric", "integral"), [(True, False), (False, True)])
def test_schemes(symmetric: bool, integral: bool, device: torch.device) -> None:
    w = torch.randn(7, 100, device=device)
    parts = launch.quantize(w, 4, 32, "minmax", torch.float16, symmetric, integral)
    expected = torch.ops.lowbit.quantize(w.cpu(), 4, 32, "minmax", torch.float16, symmetric, integral)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(parts, expected, strict=True))


@pytest.mark.parametrize("call", ["dequantize", "encode"])
def test_dtypes_that_metal_lacks(call: str, device: torch.device) -> None:
    weight = random_weight((5, 72), 4, 16)
    with pytest.raises(TypeError, match=r"mps: expected float32, float16 or bfloat16, got torch\.float64"):
        if call == "dequantize":
            launch.dequantize(*weight.all, torch.float64)
        else:
            launch.encode(torch.randn(5, 72).double(), *weight.parts[1:], *weight.layout)
