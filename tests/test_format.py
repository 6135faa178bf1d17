"""The format's sizes and what it refuses (docs/format.md, sections 1 and 2)."""

import math

import numpy as np
import pytest

from lowbit_tensor import Format

BAD_VALUES = [0, 2**40, 2**64]
BAD_KINDS = [3.5, "64", True, None, 2.0]


@pytest.mark.parametrize("group_size", [1, 3, 16, 64, 100, 5000, 2**31 - 1])
@pytest.mark.parametrize("bits", range(1, 9))
def test_sizes_follow_the_document(bits: int, group_size: int) -> None:
    for length in (1, 7, 8, 9, 64, 100, 4304):
        fmt = Format(bits, group_size, length)
        codes, groups = math.ceil(length * bits / 8), math.ceil(length / group_size)
        assert (fmt.row_bytes, fmt.groups, fmt.max_code) == (codes, groups, 2**bits - 1)
        assert [fmt.nbytes(5, itemsize) for itemsize in (2, 4)] == [5 * (codes + 4 * groups), 5 * (codes + 8 * groups)]


def test_four_bits_and_group_64_take_four_and_a_half_bits_a_weight() -> None:
    assert 8 * Format(4, 64, 1024).nbytes(256) / (256 * 1024) == 4.5


def test_whole_row_is_kept_as_its_length() -> None:
    fmt = Format(3, -1, 100)
    assert (fmt.group_size, fmt.groups) == (100, 1)
    assert fmt == Format(3, 100, 100)


def test_group_larger_than_the_row_is_one_group_and_keeps_its_size() -> None:
    fmt = Format(4, 1000, 130)
    assert (fmt.group_size, fmt.groups) == (1000, 1)


@pytest.mark.parametrize("group_size", [-1, 64])
def test_row_of_length_zero(group_size: int) -> None:
    fmt = Format(5, group_size, 0)
    assert (fmt.row_bytes, fmt.groups, fmt.nbytes(3)) == (0, 0, 0)
    assert fmt.group_size >= 1


def test_borders_are_group_starts_and_the_end() -> None:
    fmt = Format(4, 64, 150)
    assert [column for column in range(151) if fmt.is_border(column)] == [0, 64, 128, 150]


@pytest.mark.parametrize("group_size", [*BAD_VALUES, -5, -2, 2**31], ids=str)
def test_group_size_out_of_range(group_size: int) -> None:
    """Case 34."""
    with pytest.raises(ValueError, match=f"group_size.*got {group_size}"):
        Format(4, group_size, 64)


@pytest.mark.parametrize("group_size", BAD_KINDS, ids=repr)
def test_group_size_of_another_kind(group_size: object) -> None:
    """Case 34."""
    with pytest.raises(TypeError, match="group_size: expected an integer"):
        Format(4, group_size, 64)


@pytest.mark.parametrize("bits", [*BAD_VALUES, -1, 9], ids=str)
def test_bits_out_of_range(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits: expected 1 to 8, got {bits}"):
        Format(bits, 64, 64)


@pytest.mark.parametrize("bits", BAD_KINDS, ids=repr)
def test_bits_of_another_kind(bits: object) -> None:
    with pytest.raises(TypeError, match="bits: expected an integer"):
        Format(bits, 64, 64)


def test_negative_row_length() -> None:
    with pytest.raises(ValueError, match=r"in_features.*got -1"):
        Format(4, 64, -1)


def test_integers_of_numpy_are_kept_as_int() -> None:
    fmt = Format(np.int32(4), np.int64(64), np.uint8(100))
    assert fmt == Format(4, 64, 100)
    assert {type(value) for value in (fmt.bits, fmt.group_size, fmt.in_features)} == {int}


def test_equal_formats_are_one_key_and_fields_are_frozen() -> None:
    table = {Format(4, -1, 64): "a", Format(4, 64, 64): "b", Format(4, 32, 64): "c"}
    assert table == {Format(4, 64, 64): "b", Format(4, 32, 64): "c"}
    with pytest.raises(AttributeError):
        Format(4, 64, 64).bits = 5


def test_text_names_width_and_group() -> None:
    assert str(Format(3, 64, 100)) == "3 bits, group 64"
