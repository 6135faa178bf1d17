"""Float weights to codes, scales and zeros: plain tensors, streamed in blocks of rows. One algorithm a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..format import Format
from ..packing import has_values, pack_unchecked
from . import auto, hqq, lsq, minmax
from .scheme import Scheme, nearest_codes

Fit = Callable[[Tensor, Scheme], tuple[Tensor, Tensor]]

FITS: dict[str, Fit] = {"auto": auto.fit, "minmax": minmax.fit, "hqq": hqq.fit, "lsq": lsq.fit}
METHODS = tuple(FITS)
DEFAULT_METHOD = "auto"  # docs/quality.md: the lowest perplexity, not the lowest weight error

SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST = torch.finfo(torch.float32).max / 4
BLOCK = 1 << 18  # weights a block: its float32 temporaries stay in the cache and small beside any weight worth quantizing


Encoder = Callable[[Tensor, Tensor, Tensor, Format], Tensor]


def check_method(method: str) -> str:
    """The name of a quantizer. Raises ValueError for any other."""
    if not isinstance(method, str) or method not in FITS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    return method


def check_scale_dtype(dtype: torch.dtype) -> torch.dtype:
    """A dtype that parameters may have. Raises TypeError for any other."""
    if dtype not in SCALE_DTYPES:
        raise TypeError(f"scale_dtype: expected {', '.join(map(str, SCALE_DTYPES))} or None, got {dtype!r}")
    return dtype


def check_finite(w: Tensor, name: str) -> None:
    """Raises ValueError with the first place where `w` is NaN or infinite, and for weights whose scale times a code could overflow."""
    flat, size = rows_of(w), 0.0
    for rows in row_blocks(*flat.shape) if w.numel() else ():
        block = flat[rows]
        low, high = (v.item() for v in block.aminmax())  # both NaN where any weight is
        if not (math.isfinite(low) and math.isfinite(high)):
            where = block.isfinite().logical_not().nonzero()[0].tolist()
            place = torch.unravel_index(torch.tensor((rows.start + where[0]) * flat.shape[1] + where[1], device="cpu"), w.shape)
            index = ", ".join(str(int(i)) for i in place)
            raise ValueError(f"{name}[{index}] is {block[where[0], where[1]].item()}: expected finite weights")
        size = max(size, -low, high)
    if size > LARGEST:
        raise ValueError(f"{name}: expected weights of at most {LARGEST:.3g}, whose grid float32 can hold, got {size:.3g}")


def quantize(
    w: Tensor, fmt: Format, method: str, scheme: Scheme, scale_dtype: torch.dtype, encode_block: Encoder | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed codes, scales and zeros of a float weight `[..., N, K]`; the codes are the nearest ones for the rounded parameters.

    `encode_block(values, scales, zeros, fmt)` gives the packed nearest codes of a block; a backend may have a faster one.
    Takes no more extra memory than the result and a few blocks. Raises ValueError where `scale_dtype` cannot hold a parameter.
    """
    encode_block = encode_block or _encode_block
    fit = FITS[check_method(method)]
    lead = w.shape[:-1]
    flat = rows_of(w)
    packed = w.new_empty((flat.shape[0], fmt.row_bytes), dtype=torch.uint8)
    scales, zeros = (w.new_empty((flat.shape[0], fmt.groups), dtype=check_scale_dtype(scale_dtype)) for _ in range(2))
    for rows in row_blocks(*flat.shape):
        for columns, groups, part in _parts(fmt):
            values = flat[rows, columns].float().contiguous().reshape(-1, part)
            scale, zero = fit(values, scheme)
            scale, zero = rounded(scale, zero, scale_dtype, scheme)
            scales[rows, groups] = scale.view(-1, groups.stop - groups.start)
            zeros[rows, groups] = zero.view(-1, groups.stop - groups.start)
        packed[rows] = encode_block(flat[rows], scales[rows], zeros[rows], fmt)
    return packed.view(*lead, fmt.row_bytes), scales.view(*lead, fmt.groups), zeros.view(*lead, fmt.groups)


def encode(w: Tensor, scales: Tensor, zeros: Tensor, fmt: Format) -> Tensor:
    """The packed codes nearest to `w` `[..., N, K]` for given parameters `[..., N, G]`."""
    lead, flat = w.shape[:-1], rows_of(w)
    scales, zeros = (p.reshape(flat.shape[0], fmt.groups) for p in (scales, zeros))
    packed = w.new_empty((flat.shape[0], fmt.row_bytes), dtype=torch.uint8)
    for rows in row_blocks(*flat.shape):
        packed[rows] = _encode_block(flat[rows], scales[rows], zeros[rows], fmt)
    return packed.view(*lead, fmt.row_bytes)


def prefers_float32(w: Tensor, scales: Tensor, zeros: Tensor, fmt: Format) -> bool:
    """Whether float32 parameters should not be rounded to float16: it overflows, or the tensor's squared error grows by over a tenth."""
    limit = torch.finfo(torch.float16).max
    if any(largest(p) > limit for p in (scales, zeros)):
        return True
    half_scales, half_zeros = scales.half(), zeros.half()
    if w.dtype == torch.float16 and largest(half_scales.float() * fmt.max_code + half_zeros.float()) > limit:
        return True  # rounded up, the largest weight would be infinite in its own dtype
    return total_error(w, half_scales, half_zeros, fmt) > 1.1 * total_error(w, scales, zeros, fmt)


def check_not_vanished(w: Tensor, scales: Tensor, fmt: Format) -> None:
    """Raises ValueError where a scale of `w` `[..., N, K]` has become 0 in its dtype though its group holds different values."""
    flat = rows_of(w)
    scales = scales.reshape(flat.shape[0], fmt.groups)
    for rows in row_blocks(*flat.shape) if (scales == 0).any() else ():
        for columns, groups, part in _parts(fmt):
            low, high = flat[rows, columns].float().reshape(-1, part).aminmax(dim=-1)
            if ((low < high) & (scales[rows, groups].reshape(-1) == 0)).any():
                raise ValueError(f"scale_dtype: {scales.dtype} cannot hold steps as small as these weights need; expected torch.float32")


def total_error(w: Tensor, scales: Tensor, zeros: Tensor, fmt: Format) -> float:
    """Sum of (scale * code + zero - w) ** 2 over the nearest codes, in blocks; in units of the largest weight, whose square may vanish."""
    flat = rows_of(w)
    scales, zeros = (p.reshape(flat.shape[0], fmt.groups) for p in (scales, zeros))
    unit = largest(w)
    if not unit:
        return 0.0
    total = 0.0
    for rows in row_blocks(*flat.shape):
        for columns, groups, part in _parts(fmt):
            values, scale, zero = _block(flat[rows, columns], scales[rows, groups], zeros[rows, groups], part)
            codes = nearest_codes(values, scale, zero, fmt.max_code)
            total += torch.addcmul(zero, codes, scale).sub_(values).div_(unit).square_().sum().item()
    return total * unit**2


def largest(w: Tensor) -> float:
    """The largest magnitude in `w`, found without a copy of it; 0 where it is empty."""
    if not w.numel():
        return 0.0
    flat = rows_of(w)
    return max(abs(v.item()) for rows in row_blocks(*flat.shape) for v in flat[rows].aminmax())


class _Rows:
    """A tensor `[..., K]` as rows `[R, K]`, to be read in blocks, where its strides allow no view: only the block is copied."""

    def __init__(self, w: Tensor) -> None:
        self.w, self.shape = w, (w.shape[:-1].numel(), w.shape[-1])

    def __getitem__(self, key: slice | tuple[slice, slice]) -> Tensor:
        rows, columns = key if isinstance(key, tuple) else (key, slice(None))
        index = torch.unravel_index(torch.arange(rows.start, rows.stop, device=self.w.device), self.w.shape[:-1])
        return self.w[index][:, columns]


def rows_of(w: Tensor) -> Tensor | _Rows:
    """`w` `[..., K]` as rows `[R, K]`, without a copy of it."""
    if w.dim() <= 2 or w.is_contiguous():
        return w.reshape(w.shape[:-1].numel(), w.shape[-1])
    return _Rows(w)


def row_blocks(rows: int, length: int) -> Iterator[slice]:
    """Slices of rows, each of at most BLOCK elements but at least one row."""
    step = max(1, BLOCK // max(length, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _parts(fmt: Format) -> Iterator[tuple[slice, slice, int]]:
    """(columns, groups, elements a group): the whole groups of a row, then the shorter last one, each with nothing padded."""
    whole = fmt.in_features // fmt.group_size
    if whole:
        yield slice(0, whole * fmt.group_size), slice(0, whole), fmt.group_size
    if rest := fmt.in_features - whole * fmt.group_size:
        yield slice(whole * fmt.group_size, fmt.in_features), slice(whole, whole + 1), rest


def _block(values: Tensor, scales: Tensor, zeros: Tensor, part: int) -> tuple[Tensor, Tensor, Tensor]:
    return values.float().reshape(-1, part), scales.float().reshape(-1, 1), zeros.float().reshape(-1, 1)


def _encode_block(block: Tensor, scales: Tensor, zeros: Tensor, fmt: Format) -> Tensor:
    codes = torch.empty(block.shape, dtype=torch.uint8, device=block.device)
    for columns, groups, part in _parts(fmt):
        values, scale, zero = _block(block[:, columns], scales[:, groups], zeros[:, groups], part)
        codes[:, columns] = nearest_codes(values, scale, zero, fmt.max_code).view(block.shape[0], -1)
    return pack_unchecked(codes, fmt.bits)


def rounded(scale: Tensor, zero: Tensor, dtype: torch.dtype, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Both in `dtype`; symmetric ones stay tied exactly, the larger following from the rounded smaller one by a power of two."""
    if scheme.symmetric and scheme.bits == 1:
        zero = _rounded(zero, dtype)
        return _rounded(-2 * zero.float(), dtype), zero
    scale = _rounded(scale, dtype)
    return scale, _rounded(-scheme.middle * scale.float() if scheme.symmetric else zero, dtype)


def _rounded(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = parameter.to(dtype)
    if has_values(rounded) and not rounded.isfinite().all():
        raise ValueError(
            f"scale_dtype: {dtype} holds values up to {torch.finfo(dtype).max:g}, the weights need {parameter.abs().max().item():g}; "
            "expected torch.float32, or None to choose"
        )
    return rounded
