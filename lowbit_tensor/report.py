"""What `quantize_` did: a row a layer, and a table to print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .config import LowBitConfig
from .tensor import INNER, LowBitWeightTensor


@dataclass(frozen=True)
class QuantizedLayer:
    """One layer that was quantized. `error` is the norm of the weight's error over the weight's norm; None on meta."""

    name: str
    kind: str
    shape: tuple[int, ...]
    config: LowBitConfig
    group_size: int
    scale_dtype: str
    nbytes: int
    float_nbytes: int
    error: float | None
    note: str = ""


@dataclass(frozen=True)
class SkippedLayer:
    """One layer with weights that was left as it was, and why."""

    name: str
    kind: str
    shape: tuple[int, ...]
    reason: str


class QuantizationReport:
    """What was quantized how, what was skipped and why; `print(report)` shows a table, layers of one kind in one line."""

    def __init__(self, quantized: Sequence[QuantizedLayer], skipped: Sequence[SkippedLayer], nbytes: int, parameters: int) -> None:
        self.quantized, self.skipped = list(quantized), list(skipped)
        self.nbytes, self.parameters = nbytes, parameters

    @property
    def bits_per_weight(self) -> float:
        """8 * all bytes / all parameters of the model, embeddings included."""
        return 8 * self.nbytes / max(self.parameters, 1)

    def __str__(self) -> str:
        head = ("layer", "kind", "shape", "bits", "group", "method", "scales", "bytes", "error", "note")
        rows: dict[tuple[str, ...], list[QuantizedLayer]] = {}
        for q in self.quantized:
            c = q.config
            method = c.method + (" symmetric" if c.symmetric else "") + (" integral_zero" if c.integral_zero else "")
            key: tuple[str, ...] = (_family(q.name), q.kind, _shape(q.shape), str(c.bits), str(q.group_size), method, q.scale_dtype, q.note)
            rows.setdefault(key, []).append(q)
        lines: list[tuple[str, ...]] = []
        for key, layers in rows.items():
            errors = [q.error for q in layers if q.error is not None]
            error = f"{sum(errors) / len(errors):.2e}" if errors else "-"
            name = layers[0].name if len(layers) == 1 else f"{key[0]} x{len(layers)}"
            lines.append((name, *key[1:7], f"{sum(q.nbytes for q in layers):,}", error, key[7]))
        skipped: dict[tuple[str, ...], list[SkippedLayer]] = {}
        for s in self.skipped:
            skipped.setdefault((_family(s.name), s.kind, _shape(s.shape), s.reason), []).append(s)
        for (family, *what, reason), left in skipped.items():
            name = left[0].name if len(left) == 1 else f"{family} x{len(left)}"
            lines.append((name, *what, *("-" * 6), f"skipped: {reason}"))
        total = (
            f"{len(self.quantized)} layers quantized, {len(self.skipped)} skipped; "
            f"{self.nbytes:,} bytes, {self.bits_per_weight:.3f} bits a weight"
        )
        return "\n".join([*aligned([head, *lines]), total])

    __repr__ = __str__


def _family(name: str) -> str:
    """The name with every number for `*`, so that the layers of a stack share a line."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", name)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of cells as lines, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def packed_nbytes(t: Tensor) -> int:
    """Bytes of codes, scales and zeros of a low-bit tensor; `nbytes` of any other."""
    if not isinstance(t, Tensor):
        raise TypeError(f"packed_nbytes: expected a tensor, got {type(t).__name__}")
    if isinstance(t, LowBitWeightTensor):
        return sum(getattr(t, name).nbytes for name in INNER)
    return t.nbytes
