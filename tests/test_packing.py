"""The bit stream: the document's table, every code of every width, and properties against Python integers."""

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import codes_of, pack_row
from torch import Tensor

from lowbit_tensor import pack, unpack

WIDTHS = range(1, 9)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
DOCUMENT = Path(__file__).parents[1] / "docs" / "format.md"
TABLE = {int(bits): bytes.fromhex(row) for bits, row in re.findall(r"^\| ([1-8]) \| ((?:[0-9a-f]{2} ?)+)\|$", DOCUMENT.read_text(), re.M)}

quick = settings(deadline=None, max_examples=60, database=None, derandomize=True)
bits_and_row = st.integers(1, 8).flatmap(lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, 2**bits - 1), max_size=70)))
leads = st.lists(st.integers(0, 3), max_size=3)


def row_of(packed: Tensor) -> bytes:
    return bytes(packed.tolist())


def random_codes(bits: int, *shape: int) -> Tensor:
    return torch.randint(0, 2**bits, shape)


def test_document_has_all_widths() -> None:
    assert sorted(TABLE) == list(WIDTHS)


@pytest.mark.parametrize("bits", WIDTHS)
def test_table_of_the_document(bits: int) -> None:
    codes = torch.arange(8) % 2**bits
    assert row_of(pack(codes, bits)) == TABLE[bits]
    assert unpack(torch.tensor(list(TABLE[bits]), dtype=torch.uint8), bits, 8).tolist() == codes.tolist()


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_code_survives_at_every_place(bits: int) -> None:
    codes = torch.stack([torch.arange(2**bits).repeat(8).roll(place) for place in range(8)])
    packed = pack(codes, bits)
    assert torch.equal(unpack(packed, bits, codes.shape[1]).long(), codes)
    assert torch.equal(codes_of(packed, bits, codes.shape[1]), codes)


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_byte_survives(bits: int) -> None:
    """Case 111: all 256 byte values."""
    packed = torch.arange(256, dtype=torch.uint8).repeat(bits).view(1, -1)
    assert torch.equal(pack(unpack(packed, bits, 256 * 8), bits), packed)


def test_codes_that_straddle_words() -> None:
    """Case 1: three bits, where the codes 10 and 21 of each 32 lie in two words."""
    codes = (torch.arange(32)[:, None] * 7 + torch.arange(64)) % 8
    packed = pack(codes, 3)
    assert torch.equal(codes_of(packed, 3, 64), codes)
    assert torch.equal(unpack(packed, 3, 64).long(), codes)


@pytest.mark.parametrize("shape", [(768, 768), (576, 1536), (96, 32)], ids=["768x768", "576x1536", "96x32"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_round_trip_of_whole_weights(bits: int, shape: tuple[int, int]) -> None:
    """Case 7."""
    codes = random_codes(bits, *shape)
    packed = pack(codes, bits)
    assert packed.shape == (shape[0], shape[1] * bits // 8)
    assert torch.equal(unpack(packed, bits, shape[1]).long(), codes)


def test_eleven_codes_of_five_bits_leave_one_bit_zero() -> None:
    packed = pack(torch.full((11,), 31), 5)
    assert row_of(packed) == b"\xff" * 6 + b"\x7f"


@quick
@given(bits_and_row)
def test_packs_as_one_big_integer(case: tuple[int, list[int]]) -> None:
    bits, row = case
    packed = pack(torch.tensor(row, dtype=torch.int64), bits)
    assert packed.dtype == torch.uint8
    assert row_of(packed) == pack_row(row, bits)
    codes = unpack(packed, bits, len(row))
    assert codes.dtype == torch.uint8
    assert codes.tolist() == row


@quick
@given(bits_and_row)
def test_unused_bits_are_zero(case: tuple[int, list[int]]) -> None:
    bits, row = case
    ones = pack(torch.full((len(row),), 2**bits - 1), bits)
    assert int.from_bytes(row_of(ones), "little") == 2 ** (len(row) * bits) - 1


@quick
@given(st.integers(1, 8), leads, st.integers(0, 40))
def test_leading_dimensions_are_rows(bits: int, lead: list[int], length: int) -> None:
    codes = random_codes(bits, *lead, length)
    packed = pack(codes, bits)
    assert packed.shape == (*lead, -(-length * bits // 8))
    rows = codes.reshape(math.prod(lead), length).tolist()
    assert row_of(packed.flatten()) == b"".join(pack_row(row, bits) for row in rows)
    assert torch.equal(unpack(packed, bits, length).long(), codes)


@quick
@given(st.integers(1, 8), st.integers(1, 40), st.sampled_from(["columns", "rows", "transposed", "expanded", "offset"]))
def test_strides_do_not_matter(bits: int, length: int, layout: str) -> None:
    """Case 112."""
    views = {
        "columns": lambda t: t[:, ::2],
        "rows": lambda t: t[::2, : t.shape[1] // 2],
        "transposed": lambda t: t.t().contiguous().t(),
        "expanded": lambda t: t[:1].expand(3, -1),
        "offset": lambda t: t[1:, 1:],
    }
    codes = views[layout](random_codes(bits, 4, 2 * length))
    packed = pack(codes, bits)
    assert torch.equal(packed, pack(codes.contiguous(), bits))
    buffer = torch.full((2 * packed.shape[0], 2 * packed.shape[1] + 1), 255, dtype=torch.uint8)
    strided = buffer[::2, 1::2]
    strided.copy_(packed)
    assert torch.equal(unpack(strided, bits, codes.shape[1]).long(), codes)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("bits", WIDTHS)
def test_any_integer_dtype(bits: int, dtype: torch.dtype) -> None:
    largest = min(2**bits - 1, torch.iinfo(dtype).max)
    codes = torch.cat([random_codes(bits, 21).clamp(max=largest), torch.tensor([0, largest])])
    assert row_of(pack(codes.to(dtype), bits)) == pack_row(codes.tolist(), bits)


def test_arguments_stay_as_they_are() -> None:
    codes = random_codes(3, 2, 13)
    before = codes.clone()
    packed = pack(codes, 3)
    kept = packed.clone()
    unpack(packed, 3, 13)
    assert torch.equal(codes, before)
    assert torch.equal(packed, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.complex64], ids=str)
def test_codes_must_be_integers(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"integer codes, got {dtype}"):
        pack(torch.zeros(8, dtype=dtype), 4)


@pytest.mark.parametrize("code", ["above", "below"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_codes_out_of_range(bits: int, code: str) -> None:
    value = 2**bits if code == "above" else -1
    with pytest.raises(ValueError, match=f"0 to {2**bits - 1} for {bits} bits, got .*{value}"):
        pack(torch.tensor([[0, 0], [0, value]]), bits)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint64], ids=str)
def test_codes_out_of_range_of_other_dtypes(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="0 to 3 for 2 bits"):
        pack(torch.tensor([0, torch.iinfo(dtype).max], dtype=dtype), 2)


@pytest.mark.parametrize(
    ("bits", "error"), [(0, ValueError), (9, ValueError), (-1, ValueError), (3.5, TypeError), ("4", TypeError), (True, TypeError)], ids=repr
)
def test_bits_that_are_no_width(bits: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="bits: expected"):
        pack(torch.zeros(8, dtype=torch.int64), bits)
    with pytest.raises(error, match="bits: expected"):
        unpack(torch.zeros(8, dtype=torch.uint8), bits, 8)


WRONG_SIZES = {"short": (3, 8), "long": (5, 8), "empty": (0, 1), "unasked": (1, 0), "negative": (4, -8)}


@pytest.mark.parametrize(("size", "length"), WRONG_SIZES.values(), ids=WRONG_SIZES)
def test_wrong_number_of_bytes(size: int, length: int) -> None:
    with pytest.raises(ValueError, match=rf"bytes for {length} codes of 4 bits, got \[2, {size}\]"):
        unpack(torch.zeros(2, size, dtype=torch.uint8), 4, length)


def test_bytes_must_be_uint8() -> None:
    with pytest.raises(TypeError, match=r"uint8 bytes, got torch\.int32"):
        unpack(torch.zeros(4, dtype=torch.int32), 4, 8)


def test_a_single_number_is_no_row() -> None:
    with pytest.raises(ValueError, match="without dimensions"):
        pack(torch.tensor(3), 4)
    with pytest.raises(ValueError, match="bytes for 1 codes"):
        unpack(torch.tensor(3, dtype=torch.uint8), 4, 1)
