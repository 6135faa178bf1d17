"""`lowbit::pack` and `lowbit::unpack`: the same as the functions, on any device and without data."""

import pytest
import torch
from samples import WIDTHS, random_weight, strided

from lowbit_tensor import pack, unpack


@pytest.mark.parametrize("lead", [(), (3,), (2, 0), (2, 3)], ids=str)
@pytest.mark.parametrize("bits", WIDTHS)
def test_same_as_the_functions(bits: int, lead: tuple[int, ...], device: torch.device) -> None:
    codes = torch.randint(0, 2**bits, (*lead, 37))
    packed = torch.ops.lowbit.pack(codes.to(device), bits)
    assert torch.equal(packed.cpu(), pack(codes, bits))
    back = torch.ops.lowbit.unpack(packed, bits, 37)
    assert torch.equal(back.cpu(), unpack(packed.cpu(), bits, 37))
    assert torch.equal(back.cpu().long(), codes)
    assert back.is_contiguous()


@pytest.mark.parametrize("bits", [4, 8], ids=lambda bits: f"{bits}bits")
def test_bytes_are_those_of_the_cpu(bits: int, device: torch.device) -> None:
    """Case 6."""
    codes = torch.randint(0, 2**bits, (1, 128))
    assert torch.equal(torch.ops.lowbit.pack(codes.to(device), bits).cpu(), pack(codes, bits))


@pytest.mark.parametrize("bits", WIDTHS)
def test_strides_do_not_matter(bits: int, device: torch.device) -> None:
    """Case 112."""
    packed = random_weight((4, 37), bits, 16, device=device).packed
    codes = torch.ops.lowbit.unpack(packed, bits, 37)
    assert torch.equal(torch.ops.lowbit.unpack(strided(packed), bits, 37), codes)
    assert torch.equal(torch.ops.lowbit.pack(strided(codes), bits), packed)


@pytest.mark.parametrize("length", [0, 1, 8, 37])
@pytest.mark.parametrize("bits", WIDTHS)
def test_shapes_without_data(bits: int, length: int) -> None:
    codes = torch.zeros(2, 3, length, dtype=torch.int64, device="meta")
    packed = torch.ops.lowbit.pack(codes, bits)
    assert (packed.device.type, packed.dtype, packed.shape) == ("meta", torch.uint8, (2, 3, -(-length * bits // 8)))
    back = torch.ops.lowbit.unpack(packed, bits, length)
    assert (back.device.type, back.dtype, back.shape) == ("meta", torch.uint8, codes.shape)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("bits", [0, 9, -1], ids=str)
def test_bits_out_of_range(bits: int, device: str) -> None:
    with pytest.raises(ValueError, match=f"bits: expected 1 to 8, got {bits}"):
        torch.ops.lowbit.pack(torch.zeros(8, dtype=torch.int64, device=device), bits)
    with pytest.raises(ValueError, match=f"bits: expected 1 to 8, got {bits}"):
        torch.ops.lowbit.unpack(torch.zeros(8, dtype=torch.uint8, device=device), bits, 8)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_wrong_number_of_bytes(device: str) -> None:
    with pytest.raises(ValueError, match=r"expected \[\.\.\., 4\].*got \[2, 5\]"):
        torch.ops.lowbit.unpack(torch.zeros(2, 5, dtype=torch.uint8, device=device), 4, 8)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_kinds_of_tensors(device: str) -> None:
    with pytest.raises(TypeError, match=r"integer codes, got torch\.float32"):
        torch.ops.lowbit.pack(torch.zeros(8, device=device), 4)
    with pytest.raises(TypeError, match=r"uint8 bytes, got torch\.int32"):
        torch.ops.lowbit.unpack(torch.zeros(4, dtype=torch.int32, device=device), 4, 8)


def test_codes_out_of_range(device: torch.device) -> None:
    with pytest.raises(ValueError, match="0 to 7 for 3 bits, got 0 to 8"):
        torch.ops.lowbit.pack(torch.tensor([0, 8], device=device), 3)
