"""`lowbit::pack` and `lowbit::unpack`: the bit stream."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import packing
from ..format import check_bits, row_bytes
from .registry import register


def check_unpack(packed: Tensor, bits: int, length: int) -> None:
    """Raises TypeError or ValueError for bytes that do not make rows of `length` codes."""
    if packed.dtype != torch.uint8:
        raise TypeError(f"lowbit::unpack: expected uint8 bytes, got {packed.dtype}")
    if packed.dim() == 0 or packed.shape[-1] != row_bytes(length, check_bits(bits)):
        raise ValueError(f"lowbit::unpack: expected [..., {row_bytes(length, bits)}] bytes, got {list(packed.shape)}")


def _unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    return packing.unpack(packed, bits, length).contiguous()


def _fake_pack(codes: Tensor, bits: int) -> Tensor:
    packing.check_codes(codes)
    return codes.new_empty((*codes.shape[:-1], row_bytes(codes.shape[-1], check_bits(bits))), dtype=torch.uint8)


def _fake_unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    check_unpack(packed, bits, length)
    return packed.new_empty((*packed.shape[:-1], length))


register("pack", "(Tensor codes, int bits) -> Tensor", kernel=packing.pack, fake=_fake_pack)
register("unpack", "(Tensor packed, int bits, int length) -> Tensor", kernel=_unpack, fake=_fake_unpack)
