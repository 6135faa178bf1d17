"""The format of a low-bit weight and every size that follows from it (docs/format.md). Integers only."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

MAX_BITS = 8
MAX_GROUP_SIZE = 2**31 - 1


def check_bits(bits: Any) -> int:
    """`bits` as an int. Raises TypeError for what is no integer, ValueError outside 1..8."""
    value = _integer("bits", bits)
    if not 1 <= value <= MAX_BITS:
        raise ValueError(f"bits: expected 1 to {MAX_BITS}, got {bits}")
    return value


def check_group_size(group_size: Any) -> int:
    """`group_size` as an int, -1 (a whole row) included. Raises TypeError for what is no integer, ValueError out of range."""
    value = _integer("group_size", group_size)
    if value != -1 and not 1 <= value <= MAX_GROUP_SIZE:
        raise ValueError(f"group_size: expected 1 to 2**31 - 1, or -1 for a whole row, got {group_size}")
    return value


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r} of type {type(value).__name__}") from None


def row_bytes(length: int, bits: int) -> int:
    """Bytes of a row of `length` codes: ceil(length * bits / 8)."""
    return (length * bits + 7) // 8


def group_count(length: int, group_size: int) -> int:
    """Groups of a row of `length` codes: ceil(length / group_size)."""
    return (length + group_size - 1) // group_size


def max_code(bits: int) -> int:
    """The largest code, 2**bits - 1."""
    return (1 << bits) - 1


@dataclass(frozen=True)
class Format:
    """Bits, group size and row length of a weight; hashable.

    `group_size` -1 becomes `in_features` (at least 1). Raises TypeError or ValueError for values outside docs/format.md.
    """

    bits: int
    group_size: int
    in_features: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", check_bits(self.bits))
        if (length := _integer("in_features", self.in_features)) < 0:
            raise ValueError(f"in_features: expected at least 0, got {length}")
        object.__setattr__(self, "in_features", length)
        group_size = check_group_size(self.group_size)
        object.__setattr__(self, "group_size", max(length, 1) if group_size == -1 else group_size)

    @property
    def row_bytes(self) -> int:
        """Bytes of a packed row."""
        return row_bytes(self.in_features, self.bits)

    @property
    def groups(self) -> int:
        """Groups, and so scales, of a row."""
        return group_count(self.in_features, self.group_size)

    @property
    def max_code(self) -> int:
        """The largest code."""
        return max_code(self.bits)

    def is_border(self, column: int) -> bool:
        """Whether a group starts at `column`, or the row ends there."""
        return column % self.group_size == 0 or column == self.in_features

    @property
    def is_whole(self) -> bool:
        """Whether a row is whole groups and whole bytes, so that rows laid end to end are a row too."""
        return self.in_features % self.group_size == 0 and self.in_features * self.bits % 8 == 0

    def nbytes(self, rows: int, itemsize: int = 2) -> int:
        """Bytes of `rows` rows, codes and parameters of `itemsize` bytes each."""
        return rows * (self.row_bytes + 2 * self.groups * itemsize)

    def __str__(self) -> str:
        return f"{self.bits} bits, group {self.group_size}"
