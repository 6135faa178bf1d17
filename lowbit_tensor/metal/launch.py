"""One function an op: plain tensors in, the right kernel with the right grid, plain tensors out. Arguments are checked by ops/."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import quantize as quantizers
from ..format import Format, group_count, row_bytes
from ..ops import embedding as embedding_op
from ..quantize.scheme import Scheme
from .geometry import DEFAULT, OUT, SIMDS, TILE, pass_of, splits_of
from .kernels import KERNELS, TYPES, name_of
from .library import kernel

KINDS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}  # as in shaders/codec.metal; -1 for none
batch_invariant = False  # set_batch_invariant


def set_batch_invariant(on: bool) -> None:
    """Whether a row's result must not depend on how many other rows there are; few rows are slower then."""
    global batch_invariant
    batch_invariant = bool(on)


def linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int, group_size: int) -> Tensor:
    """x `[..., K]` @ W.T + bias."""
    lead, length, outputs = x.shape[:-1], x.shape[-1], packed.shape[0]
    result = x.new_empty((*lead, outputs))  # what an op returns is no view: users write to it in place
    y = result.view(lead.numel(), outputs)
    if y.numel():
        weight = _Weight(packed, scales, zeros, bits, group_size, length)
        rows = x.reshape(lead.numel(), length).contiguous()
        if lead.numel() <= DEFAULT.last_rows and not batch_invariant:
            _rows(rows, weight, bias, None, y)
        else:
            _tiles(rows, weight, bias, y, forward=True)
    return result


def matmul(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int) -> Tensor:
    """x `[..., N]` @ W."""
    lead = x.shape[:-1]
    result = x.new_empty((*lead, in_features))
    y = result.view(lead.numel(), in_features)
    if y.numel():
        rows = x.reshape(lead.numel(), x.shape[-1]).contiguous()
        _tiles(rows, _Weight(packed, scales, zeros, bits, group_size, in_features), None, y, forward=False)
    return result


def grouped_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, expert: Tensor, bits: int, group_size: int) -> Tensor:
    """Row m of x `[M, K]` times the transposed matrix `expert[m]`; not a number where there is no such expert, which costs no waiting."""
    y = x.new_empty((x.shape[0], packed.shape[1]))
    if not packed.shape[0]:
        return y.fill_(torch.nan)
    if y.numel():
        weight = _Weight(packed, scales, zeros, bits, group_size, x.shape[1])
        if x.shape[0] <= DEFAULT.last_rows and not batch_invariant:
            _rows(x.contiguous(), weight, None, _experts(expert, weight.experts), y)
        else:
            _grouped_tiles(x.contiguous(), weight, expert, y, forward=True)
    return y


def grouped_matmul(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, expert: Tensor, bits: int, group_size: int, in_features: int
) -> Tensor:
    """Row m of x `[M, N]` times the matrix `expert[m]`; not a number where there is no such expert."""
    y = x.new_empty((x.shape[0], in_features))
    if not packed.shape[0]:
        return y.fill_(torch.nan)
    if y.numel():
        _grouped_tiles(x.contiguous(), _Weight(packed, scales, zeros, bits, group_size, in_features), expert, y, forward=False)
    return y


def dequantize(packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype) -> Tensor:
    """The float weight `[..., N, K]`."""
    out = packed.new_empty((*packed.shape[:-1], in_features), dtype=dtype)
    if out.numel():
        _decode(None, _Weight(packed, scales, zeros, bits, group_size, in_features), out, packed.shape[:-1].numel())
    return out


def embedding(
    indices: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, in_features: int, dtype: torch.dtype
) -> Tensor:
    """Rows `indices` of the float weight. Raises IndexError out of range, which waits for the device."""
    embedding_op.check_range(indices, packed.shape[0])
    out = packed.new_empty((*indices.shape, in_features), dtype=dtype)
    if out.numel():
        flat = indices.reshape(-1).to(torch.int64).contiguous()
        _decode(flat, _Weight(packed, scales, zeros, bits, group_size, in_features), out, flat.shape[0])
    return out


def parameter_grad(grad: Tensor, packed: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    """(sum of grad * code, sum of grad) over each group, float32."""
    lead, length = grad.shape[:-1], grad.shape[-1]
    groups = group_count(length, group_size)
    sums = [grad.new_empty((*lead, groups), dtype=torch.float32) for _ in range(2)]
    if sums[0].numel():
        grad, packed = grad.float().contiguous(), packed.contiguous()
        sizes = (lead.numel(), length, _size(group_size, length), _align(packed, bits, length))
        _call("group_sums", (bits,), grad, packed, *sums, *sizes, threads=(groups * 32, lead.numel()))
    return sums[0], sums[1]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes known to be in range to bytes."""
    lead, length = codes.shape[:-1], codes.shape[-1]
    packed = codes.new_empty((*lead, row_bytes(length, bits)), dtype=torch.uint8)
    if packed.numel():
        _call("pack", (bits,), codes.to(torch.uint8).contiguous(), packed, lead.numel(), length, threads=_runs(length, lead.numel()))
    return packed


def unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    """Bytes to uint8 codes `[..., length]`."""
    lead, packed = packed.shape[:-1], packed.contiguous()
    codes = packed.new_empty((*lead, length))
    if codes.numel():
        _call("unpack", (bits,), packed, codes, lead.numel(), length, _align(packed, bits, length), threads=_runs(length, lead.numel()))
    return codes


def encode(w: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int) -> Tensor:
    """The packed nearest codes of `w` `[..., N, K]`."""
    lead, length = w.shape[:-1], w.shape[-1]
    packed = w.new_empty((*lead, row_bytes(length, bits)), dtype=torch.uint8)
    if packed.numel():
        sizes = (lead.numel(), length, _size(group_size, length), KINDS[scales.dtype])
        parts = (w.contiguous(), _bytes(scales), _bytes(zeros), packed)
        _call("encode", (_type(w.dtype), bits), *parts, *sizes, threads=_runs(length, lead.numel()))
    return packed


def quantize(
    w: Tensor, bits: int, group_size: int, method: str, scale_dtype: torch.dtype, symmetric: bool, integral_zero: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters found on the device by the quantizer's own tensor arithmetic, codes by our kernel."""
    fmt, scheme = Format(bits, group_size, w.shape[-1]), Scheme(bits, symmetric, integral_zero)

    def encoded(block: Tensor, scales: Tensor, zeros: Tensor, fmt: Format) -> Tensor:
        return encode(block, scales, zeros, fmt.bits, fmt.group_size)

    return quantizers.quantize(w, fmt, method, scheme, scale_dtype, encode_block=encoded)


class _Weight:
    """The parts of a weight as kernels take them: contiguous, with the sizes that follow."""

    def __init__(self, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, length: int) -> None:
        self.packed, self.scales, self.zeros = packed.contiguous(), _bytes(scales), _bytes(zeros)
        self.bits, self.length, self.outputs = bits, length, packed.shape[-2] if packed.dim() > 1 else 1
        self.experts = packed.shape[0] if packed.dim() == 3 else 0
        self.group_size, self.kind, self.align = _size(group_size, length), KINDS[scales.dtype], _align(self.packed, bits, length)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.packed, self.scales, self.zeros


def _rows(x: Tensor, w: _Weight, bias: Tensor | None, expert: Tensor | None, y: Tensor) -> None:
    """Few rows: with experts one at a time, else as many at once as the weights can be read for."""
    at_once = 1 if expert is not None else pass_of(x.shape[0])
    wide_x = w.length % 4 == 0 and x.storage_offset() % 4 == 0
    sizes = (
        x.shape[0],
        w.outputs,
        w.length,
        w.group_size,
        w.kind,
        _kind(bias),
        w.align,
        int(wide_x),
        w.experts if expert is not None else 0,
    )
    grid = (-(-w.outputs // (OUT * SIMDS)) * KERNELS["rows"].threads, -(-x.shape[0] // at_once), 1)
    tensors = (x, *w.parts, _or(_bias(bias), w.packed), _or(expert, _nothing(x, torch.int32)), y)
    _call("rows", (_type(x.dtype), w.bits, at_once), *tensors, *sizes, threads=grid)


def _tiles(x: Tensor, w: _Weight, bias: Tensor | None, y: Tensor, forward: bool) -> None:
    tiles = (-(-y.shape[1] // TILE), -(-y.shape[0] // TILE))
    splits = 1 if batch_invariant else splits_of(tiles[0] * tiles[1], x.shape[1])
    parts = y.new_empty((splits, *y.shape), dtype=torch.float32) if splits > 1 else _nothing(y, torch.float32)
    none = _nothing(x, torch.int32)
    sizes = (y.shape[0], w.outputs, w.length, w.group_size, w.kind, _kind(bias), w.align, 0, splits)
    tensors = (x, *w.parts, _or(_bias(bias), w.packed), none, none, y, parts)
    _call(
        "tiles", (_type(x.dtype), w.bits, forward, False), *tensors, *sizes, threads=(tiles[0] * KERNELS["tiles"].threads, tiles[1], splits)
    )
    if splits > 1:
        add = (parts, _or(_bias(bias), w.packed), y, *y.shape, splits, _kind(bias))
        _call("add_parts", (_type(y.dtype),), *add, threads=(-(-y.shape[1] // 256) * 256, y.shape[0]))


def _grouped_tiles(x: Tensor, w: _Weight, expert: Tensor, y: Tensor, forward: bool) -> None:
    """Rows sorted by expert, so that each expert has tiles of its own; the device finds them, nothing waits for it."""
    y.fill_(torch.nan)
    found, order = _experts(expert, w.experts).sort(stable=True)
    offsets = torch.searchsorted(found, torch.arange(w.experts + 1, dtype=torch.int32, device=x.device), out_int32=True)
    tiles = -(-x.shape[0] // TILE) + min(w.experts, x.shape[0])  # at most one part-filled tile an expert
    sizes = (x.shape[0], w.outputs, w.length, w.group_size, w.kind, -1, w.align, w.experts, 1)
    tensors = (x, *w.parts, w.packed, order.to(torch.int32), offsets, y, _nothing(y, torch.float32))
    grid = (-(-y.shape[1] // TILE) * KERNELS["tiles"].threads, tiles, 1)
    _call("tiles", (_type(x.dtype), w.bits, forward, True), *tensors, *sizes, threads=grid)


def _experts(expert: Tensor, count: int) -> Tensor:
    """Numbers of experts as kernels take them; one that does not exist stays one that does not."""
    return expert.clamp(-1, count).to(torch.int32).contiguous()


def _decode(indices: Tensor | None, w: _Weight, out: Tensor, rows: int) -> None:
    tensors = (_or(indices, _nothing(out, torch.int64)), *w.parts, out)
    sizes = (rows, w.length, w.group_size, w.kind, w.align)
    _call("dequantize", (_type(out.dtype), w.bits, indices is not None), *tensors, *sizes, threads=_runs(w.length, rows))


def _call(name: str, arguments: tuple[Any, ...], *values: Any, threads: tuple[int, ...]) -> None:
    group = (KERNELS[name].threads, *[1] * (len(threads) - 1))
    kernel(name_of(name, *arguments))(*values, threads=threads, group_size=group)


def _runs(length: int, rows: int) -> tuple[int, int]:
    """A thread a run of 8 codes, whole threadgroups of 256."""
    return -(-length // (8 * 256)) * 256, rows


def _align(packed: Tensor, bits: int, length: int) -> int:
    """What the address of every run is a multiple of, up to 4: the storage is, so its offset, the rows and the runs decide."""
    return math.gcd(4, packed.storage_offset(), row_bytes(length, bits), bits)


def _bytes(parameters: Tensor) -> Tensor:
    """Parameters as a kernel for all their dtypes takes them."""
    parameters = parameters.contiguous()
    return parameters.as_strided((parameters.numel(),), (1,)).view(torch.uint8)  # a dimension of size 1 may have any stride


def _bias(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else _bytes(bias)


def _kind(bias: Tensor | None) -> int:
    return -1 if bias is None else KINDS[_checked(bias.dtype)]


def _type(dtype: torch.dtype) -> str:
    return TYPES[_checked(dtype)]


def _checked(dtype: torch.dtype) -> torch.dtype:
    """Raises TypeError for what Metal has no type for."""
    if dtype not in TYPES:
        raise TypeError(f"mps: expected float32, float16 or bfloat16, got {dtype}")
    return dtype


def _size(group_size: int, length: int) -> int:
    """A group larger than the row is the row: sums of sizes stay within 32 bits."""
    return min(group_size, max(length, 1))


def _or(t: Tensor | None, other: Tensor) -> Tensor:
    """What a kernel is given where it reads nothing: Metal wants every slot bound."""
    return other if t is None else t.contiguous()


_NOTHING: dict[tuple[torch.device, torch.dtype], Tensor] = {}


def _nothing(like: Tensor, dtype: torch.dtype) -> Tensor:
    key = (like.device, dtype)
    if key not in _NOTHING:
        _NOTHING[key] = torch.empty(1, dtype=dtype, device=like.device)
    return _NOTHING[key]
