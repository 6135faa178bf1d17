"""One function an op: plain tensors in, the native kernel, plain tensors out. Arguments are checked by ops/."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..format import group_count, row_bytes
from ..ops import embedding as embedding_op
from ..ops import grouped as grouped_op
from .library import LIBRARY, MAX_ROWS, threads

KINDS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}  # as in csrc/lowbit.h
PANEL = 1 << 19  # weights decoded at a time for many rows: they stay in the second cache until they are multiplied


def covers(group_size: int, length: int) -> bool:
    """Whether the kernels take groups of this size: 16, 32, multiples of 64 and whole rows."""
    return group_size in (16, 32) or group_size % 64 == 0 or group_count(length, group_size) <= 1


class _Weight:
    """The parts of a weight `[rows, length]`, contiguous, as the library takes them."""

    def __init__(self, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, length: int) -> None:
        self.packed, self.scales, self.zeros = packed.contiguous(), scales.contiguous(), zeros.contiguous()
        self.rows, self.length, self.bits = packed.shape[:-1].numel(), length, bits
        self.group_size, self.kind = min(group_size, max(length, 1)), KINDS[scales.dtype]
        self.row_bytes = row_bytes(length, bits)
        self.parameter_bytes = group_count(length, group_size) * scales.element_size()

    def arguments(self, first: int = 0, rows: int | None = None) -> tuple[Any, ...]:
        """Pointers and sizes of rows from `first` on."""
        parameters = first * self.parameter_bytes
        pointers = (
            self.packed.data_ptr() + first * self.row_bytes,
            self.scales.data_ptr() + parameters,
            self.zeros.data_ptr() + parameters,
        )
        return *pointers, self.rows if rows is None else rows, self.length, self.group_size, self.bits, self.kind


def linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int, group_size: int) -> Tensor:
    """x `[..., K]` @ W.T + bias: few rows straight from the packed weight, many by panels of decoded rows."""
    lead, length = x.shape[:-1], x.shape[-1]
    result = x.new_empty((*lead, packed.shape[0]))
    if result.numel():
        y, w = result.view(lead.numel(), packed.shape[0]), _Weight(packed, scales, zeros, bits, group_size, length)
        rows = x.reshape(lead.numel(), length).contiguous()
        if lead.numel() <= MAX_ROWS:
            _few(rows, w, bias, y)
        else:
            _panels(rows, w, bias, y)
    return result


def matmul(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int) -> Tensor:
    """x `[..., N]` @ W, with sums in float32."""
    lead = x.shape[:-1]
    result = x.new_zeros((*lead, in_features), dtype=torch.float32)
    if result.numel():
        y, w = result.view(lead.numel(), in_features), _Weight(packed, scales, zeros, bits, group_size, in_features)
        rows = x.reshape(lead.numel(), packed.shape[0]).float()
        for first, panel in _decoded(w, torch.float32):
            y.addmm_(rows[:, first : first + panel.shape[0]], panel)
    return result.to(x.dtype)


def grouped_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, expert: Tensor, bits: int, group_size: int) -> Tensor:
    """Row m of x `[M, K]` times the transposed matrix `expert[m]`."""

    def product(rows: Tensor, e: int) -> Tensor:
        return linear(rows, packed[e], scales[e], zeros[e], None, bits, group_size)

    return grouped_op.by_expert("grouped_linear", x, packed, expert, packed.shape[1], product)


def grouped_matmul(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, expert: Tensor, bits: int, group_size: int, in_features: int
) -> Tensor:
    """Row m of x `[M, N]` times the matrix `expert[m]`."""

    def product(rows: Tensor, e: int) -> Tensor:
        return matmul(rows, packed[e], scales[e], zeros[e], bits, group_size, in_features)

    return grouped_op.by_expert("grouped_matmul", x, packed, expert, in_features, product)


def dequantize(packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype) -> Tensor:
    """The float weight `[..., N, K]`."""
    if dtype == torch.float64:
        return dequantize(packed, scales, zeros, bits, group_size, in_features, torch.float32).double()
    out = packed.new_empty((*packed.shape[:-1], in_features), dtype=dtype)
    if out.numel():
        w = _Weight(packed, scales, zeros, bits, group_size, in_features)
        _decode(None, w.rows, w.arguments(), out)
    return out


def embedding(
    indices: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype
) -> Tensor:
    """Rows `indices` of the float weight. Raises IndexError out of range."""
    embedding_op.check_range(indices, packed.shape[0])
    out = packed.new_empty((*indices.shape, in_features), dtype=torch.float32 if dtype == torch.float64 else dtype)
    if out.numel():
        w, flat = _Weight(packed, scales, zeros, bits, group_size, in_features), indices.reshape(-1).to(torch.int64).contiguous()
        _decode(flat, flat.shape[0], w.arguments(), out)
    return out.to(dtype)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes known to be in range to bytes."""
    lead, length = codes.shape[:-1], codes.shape[-1]
    packed = codes.new_empty((*lead, row_bytes(length, bits)), dtype=torch.uint8)
    if packed.numel():
        codes = codes.to(torch.uint8).contiguous()
        _library().lowbit_pack(codes.data_ptr(), lead.numel(), length, bits, packed.data_ptr(), threads())
    return packed


def unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    """Bytes to uint8 codes `[..., length]`."""
    lead, packed = packed.shape[:-1], packed.contiguous()
    codes = packed.new_empty((*lead, length))
    if codes.numel():
        _library().lowbit_unpack(packed.data_ptr(), lead.numel(), length, bits, codes.data_ptr(), threads())
    return codes


def _few(x: Tensor, w: _Weight, bias: Tensor | None, y: Tensor) -> None:
    if bias is not None:
        bias = bias.to(torch.float32 if bias.dtype == torch.float64 else bias.dtype).contiguous()
    pointer, kind = (None, 0) if bias is None else (bias.data_ptr(), KINDS[bias.dtype])
    _library().lowbit_linear(x.data_ptr(), KINDS[x.dtype], x.shape[0], *w.arguments(), pointer, kind, y.data_ptr(), threads())


def _panels(x: Tensor, w: _Weight, bias: Tensor | None, y: Tensor) -> None:
    """Panels in bfloat16 for bfloat16 x, as the bound (b) allows, else in float32; sums in float32."""
    dtype = torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32
    x = x.to(dtype)
    for first, panel in _decoded(w, dtype):
        part = y[:, first : first + panel.shape[0]]
        if bias is None:
            part.copy_(x @ panel.t())
        else:
            part.copy_((x @ panel.t()).float() + bias[first : first + panel.shape[0]].float())


def _decoded(w: _Weight, dtype: torch.dtype) -> Any:
    """(first row, decoded rows `[n, length]`) of one panel after the other, in the same memory."""
    step = max(16, PANEL // max(w.length, 1))
    memory = w.packed.new_empty((min(step, w.rows), w.length), dtype=dtype)
    for first in range(0, w.rows, step):
        rows = min(step, w.rows - first)
        _decode(None, rows, w.arguments(first, rows), memory)
        yield first, memory[:rows]


def _decode(indices: Tensor | None, count: int, weight: tuple[Any, ...], out: Tensor) -> None:
    pointer = None if indices is None else indices.data_ptr()
    _library().lowbit_decode(pointer, count, *weight, out.data_ptr(), KINDS[out.dtype], threads())


def _library() -> Any:
    assert LIBRARY is not None  # or the reference would serve
    return LIBRARY
