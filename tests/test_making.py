"""`from_float` and `from_codes`: what they take, and what they say of the rest."""

from __future__ import annotations

import pytest
import torch
from weights import make

import lowbit_tensor as lb


def test_from_codes() -> None:
    """Case 10: codes come back in the logical shape."""
    codes, scales, zeros = torch.randint(0, 8, (5, 70)), torch.randn(5, 3), torch.randn(5, 3)
    w = lb.LowBitWeightTensor.from_codes(codes, scales, zeros, bits=3, group_size=32, dtype=torch.bfloat16)
    assert torch.equal(w.codes(), codes.to(torch.uint8)) and w.dtype == torch.bfloat16
    group = torch.arange(70) // 32
    torch.testing.assert_close(w.dequantize(torch.float32), scales[:, group] * codes + zeros[:, group])


BAD_CODES = {
    "codes as a list": (dict(codes=[[1]]), TypeError),
    "code out of range": (dict(codes=torch.full((2, 8), 8)), ValueError),
    "float codes": (dict(codes=torch.zeros(2, 8)), TypeError),
    "scales of another shape": (dict(scales=torch.ones(2, 2)), ValueError),
    "zeros of another dtype": (dict(zeros=torch.ones(2, 1).half()), TypeError),
    "scales not finite": (dict(scales=torch.full((2, 1), torch.inf)), ValueError),
    "float64 parameters": (dict(scales=torch.ones(2, 1).double(), zeros=torch.ones(2, 1).double()), TypeError),
    "one dimension": (dict(codes=torch.zeros(8, dtype=torch.int64)), ValueError),
    "9 bits": (dict(bits=9), ValueError),
    "integer dtype": (dict(dtype=torch.int32), TypeError),
}


@pytest.mark.parametrize("name", BAD_CODES)
def test_from_codes_checks(name: str) -> None:
    good = dict(codes=torch.zeros(2, 8, dtype=torch.int64), scales=torch.ones(2, 1), zeros=torch.ones(2, 1), bits=3, group_size=8)
    change, error = BAD_CODES[name]
    with pytest.raises(error):
        lb.LowBitWeightTensor.from_codes(**(good | change))


BAD_FLOATS = {
    "symmetric as text": (dict(symmetric="x"), TypeError),
    "integral_zero as a number": (dict(integral_zero=2), TypeError),
    "integers": (dict(w=torch.ones(2, 8, dtype=torch.int8)), TypeError),
    "one dimension": (dict(w=torch.ones(8)), ValueError),
    "no tensor": (dict(w=[[1.0]]), TypeError),
    "0 bits": (dict(bits=0), ValueError),
    "9 bits": (dict(bits=9), ValueError),
    "bits of a float": (dict(bits=4.0), TypeError),
    "group 0": (dict(group_size=0), ValueError),
    "group -5": (dict(group_size=-5), ValueError),
    "group 2**40": (dict(group_size=2**40), ValueError),
    "group 2**64": (dict(group_size=2**64), ValueError),
    "group 3.5": (dict(group_size=3.5), TypeError),
    "group as text": (dict(group_size="64"), TypeError),
    "unknown method": (dict(method="magic"), ValueError),
    "scale_dtype int": (dict(scale_dtype=torch.int8), TypeError),
    "1 symmetric bit with integral zero": (dict(bits=1, symmetric=True, integral_zero=True), ValueError),
    "NaN": (dict(w=torch.tensor([[1.0, torch.nan]])), ValueError),
}


@pytest.mark.parametrize("name", BAD_FLOATS)
def test_from_float_checks(name: str) -> None:
    """Cases 34, 43."""
    change, error = BAD_FLOATS[name]
    with pytest.raises(error):
        lb.LowBitWeightTensor.from_float(**({"w": torch.randn(2, 8), "bits": 4} | change))


KINDS_OF_ARGUMENTS = {
    "dequantize": lambda: make().dequantize("float16"),
    "pack": lambda: lb.pack([1], 3),
    "unpack": lambda: lb.unpack([1], 3, 2),
    "dequantize_": lambda: lb.dequantize_(5),
    "trainable_parameters": lambda: lb.trainable_parameters(3),
    "packed_nbytes": lambda: lb.packed_nbytes(3),
    "save_file": lambda: lb.save_file([make()], "m.safetensors"),
}


@pytest.mark.parametrize("name", KINDS_OF_ARGUMENTS)
def test_arguments_of_another_kind(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}: expected"):
        KINDS_OF_ARGUMENTS[name]()


def test_dimensions_out_of_range() -> None:
    with pytest.raises(IndexError, match="expected a dimension of -2 to 1, got 5"):
        make().transpose(0, 5)


def test_place_of_what_is_not_finite() -> None:
    w = torch.randn(3, 5000, 100)
    w[1, 4321, 17] = torch.inf
    with pytest.raises(ValueError, match=r"w\[1, 4321, 17\] is inf"):
        lb.LowBitWeightTensor.from_float(w, 4)


def test_low_bit_weights_are_not_quantized_again() -> None:
    with pytest.raises(TypeError, match="plain tensor"):
        lb.LowBitWeightTensor.from_float(make(), 4)
