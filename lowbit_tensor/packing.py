"""Codes to bytes and back: the executable twin of docs/format.md, section 3. One rule for every width."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .format import check_bits, max_code, row_bytes

RUN = 8  # codes that fill exactly `bits` bytes


def pack(codes: Tensor, bits: int) -> Tensor:
    """Integer codes `[..., K]`, each 0 to 2**bits - 1, to uint8 `[..., ceil(K * bits / 8)]`.

    Raises TypeError for a dtype that is no integer, ValueError for a code out of range or no dimension at all.
    """
    check_values(codes, bits)
    return pack_unchecked(codes, bits)


def check_values(codes: Tensor, bits: int) -> None:
    """What `pack` checks."""
    bits = check_bits(bits)
    check_codes(codes)
    if codes.numel() and has_values(codes):
        low, high = (int(v) for v in codes.to(torch.int64).aminmax())
        if low < 0 or high > max_code(bits):
            raise ValueError(f"pack: expected codes of 0 to {max_code(bits)} for {bits} bits, got {low} to {high}")


def has_values(t: Tensor) -> bool:
    """Whether there is something to look at: meta tensors and those of a FakeTensorMode have a shape only."""
    return not t.is_meta and not isinstance(t, FakeTensor)


def check_spare_bits(packed: Tensor, bits: int, length: int) -> None:
    """Raises ValueError where bits past the end of a row are set: the rows are longer than `length`, or damaged."""
    used = length * bits % 8
    if used and packed.numel() and has_values(packed) and (packed[..., -1] >> used).any():
        raise ValueError(f"packed: expected unused bits of 0 after {length} codes of {bits} bits, got others")


def check_codes(codes: Tensor) -> None:
    """Raises TypeError for what is no tensor of integers, ValueError for no dimension at all."""
    if not isinstance(codes, Tensor):
        raise TypeError(f"pack: expected a tensor of codes, got {type(codes).__name__}")
    if codes.dtype.is_floating_point or codes.dtype.is_complex:
        raise TypeError(f"pack: expected integer codes, got {codes.dtype}")
    if codes.dim() == 0:
        raise ValueError("pack: expected codes [..., K], got a tensor without dimensions")


def pack_unchecked(codes: Tensor, bits: int) -> Tensor:
    """`pack` for codes known to be in range."""
    length = codes.shape[-1]
    work = _work_dtype(codes)
    runs = codes.new_zeros((*codes.shape[:-1], (length + RUN - 1) // RUN, RUN), dtype=work)
    runs.flatten(-2)[..., :length] = codes
    out = runs.new_zeros((*runs.shape[:-1], bits), dtype=torch.uint8)
    for byte in range(bits):
        first, last = 8 * byte // bits, (8 * byte + 7) // bits
        value = torch.zeros_like(runs[..., 0])
        for j in range(first, last + 1):
            shift = j * bits - 8 * byte
            value |= runs[..., j] << shift if shift >= 0 else runs[..., j] >> -shift
        out[..., byte] = value & 0xFF
    return out.flatten(-2)[..., : row_bytes(length, bits)].contiguous()


def unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    """uint8 `[..., ceil(length * bits / 8)]` to uint8 codes `[..., length]`.

    Raises TypeError for another dtype, ValueError where the row is not that long.
    """
    bits = check_bits(bits)
    if not isinstance(packed, Tensor) or packed.dtype != torch.uint8:
        raise TypeError(f"unpack: expected uint8 bytes, got {packed.dtype if isinstance(packed, Tensor) else type(packed).__name__}")
    if packed.dim() == 0 or length < 0 or packed.shape[-1] != row_bytes(length, bits):
        raise ValueError(
            f"unpack: expected [..., {row_bytes(max(length, 0), bits)}] bytes for {length} codes of {bits} bits, got {list(packed.shape)}"
        )
    count = (length + RUN - 1) // RUN
    if count * bits != packed.shape[-1]:
        packed = torch.nn.functional.pad(packed, (0, count * bits - packed.shape[-1]))
    runs = packed.to(_work_dtype(packed)).unflatten(-1, (count, bits)) if count else packed.new_empty((*packed.shape[:-1], 0, bits))
    out = packed.new_empty((*runs.shape[:-1], RUN), dtype=torch.uint8)
    for j in range(RUN):
        byte, shift = divmod(j * bits, 8)
        value = runs[..., byte] >> shift
        if shift + bits > 8:
            value |= runs[..., byte + 1] << (8 - shift)
        out[..., j] = value & max_code(bits)
    return out.flatten(-2)[..., :length]


def _work_dtype(t: Tensor) -> torch.dtype:
    """Bytes are shifted as bytes on the CPU (fastest), as int32 elsewhere: MPS has shifted uint8 wrongly without an error."""
    return torch.uint8 if t.device.type in ("cpu", "meta") else torch.int32
