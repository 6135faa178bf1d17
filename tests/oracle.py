"""An oracle written apart from the code under test: Python integers for the bit stream, float64 for values and products."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def pack_row(codes: list[int], bits: int) -> bytes:
    """The bit stream of docs/format.md as one big integer."""
    stream = sum(code << (k * bits) for k, code in enumerate(codes))
    return stream.to_bytes(math.ceil(len(codes) * bits / 8), "little")


def unpack_row(row: bytes, bits: int, length: int) -> list[int]:
    stream = int.from_bytes(row, "little")
    return [(stream >> (k * bits)) & (2**bits - 1) for k in range(length)]


def codes_of(packed: Tensor, bits: int, length: int) -> Tensor:
    """int64 codes `[..., length]` of uint8 rows."""
    rows = packed.cpu().reshape(-1, packed.shape[-1])
    codes = [unpack_row(bytes(row.tolist()), bits, length) for row in rows]
    return torch.tensor(codes, dtype=torch.int64).reshape(*packed.shape[:-1], length)


def parts64(packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """(scale, code, zero) of every element, float64 `[..., length]`."""
    group = torch.arange(length) // group_size
    return scales.cpu().double()[..., group], codes_of(packed, bits, length).double(), zeros.cpu().double()[..., group]


def weight64(packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, length: int) -> Tensor:
    """The exact weight in float64."""
    scale, code, zero = parts64(packed, scales, zeros, bits, group_size, length)
    return scale * code + zero


def linear_bound(x: Tensor, y64: Tensor, parts: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """Bound (a) of docs/api.md, section 3, for y = x @ W.T."""
    scale, code, zero = parts
    size = (scale * code).abs() + zero.abs()
    return torch.finfo(dtype).eps / 2 * y64.abs() + 8 * 2.0**-24 * (x.cpu().double().abs() @ size.mT)
