"""The backend for CPUs: native kernels for the dispatch key of `cpu`, or, where the library is missing, the reason said once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import packing as codec
from ..ops import dequantize, embedding, grouped, linear, matmul, packing
from ..ops.registry import LIBRARY
from . import launch
from . import library as native
from .launch import covers
from .library import active, sets, use
from .quick import quick_linear

__all__ = ["OPS", "active", "covers", "launch", "native", "quick_linear", "sets", "use"]

Op = Callable[..., Any]
_SAID: set[str] = set()


def _backed(check: Op, kernel: Op, reference: Op, layout: Callable[..., tuple[int, int]]) -> Op:
    """The op with its checks: `kernel`, or `reference` where that is asked for, or said once to be all there is.

    `layout(*args)` gives (group size, row length).
    """

    def run(*args: Any) -> Any:
        check(*args)
        if active() == native.REFERENCE:
            if native.LIBRARY is None:
                _say(f"lowbit_tensor: no native kernels for the CPU, {native.REASON}; the plain reference serves, which is slow")
            return reference(*args)
        group_size, length = layout(*args)
        if not covers(group_size, length):
            _say(f"lowbit_tensor: groups of {group_size} take the plain reference, which is slow; kernels take 16, 32 and multiples of 64")
            return reference(*args)
        return kernel(*args)

    return run


def _say(text: str) -> None:
    if text not in _SAID:
        _SAID.add(text)
        warnings.warn(text, stacklevel=4)


def _unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    return codec.unpack(packed, bits, length).contiguous()


OPS: dict[str, Op] = {
    "linear": _backed(linear.check, launch.linear, linear.reference, lambda x, p, s, z, b, bits, group: (group, x.shape[-1])),
    "matmul": _backed(matmul.check, launch.matmul, matmul.reference, lambda x, p, s, z, bits, group, length: (group, length)),
    "grouped_linear": _backed(
        grouped.check_linear, launch.grouped_linear, grouped.grouped_linear, lambda x, p, s, z, e, bits, group: (group, x.shape[-1])
    ),
    "grouped_matmul": _backed(
        grouped.check_matmul, launch.grouped_matmul, grouped.grouped_matmul, lambda x, p, s, z, e, bits, group, length: (group, length)
    ),
    "dequantize": _backed(
        dequantize.check, launch.dequantize, dequantize.reference, lambda p, s, z, bits, group, length, dtype: (group, length)
    ),
    "embedding": _backed(
        embedding.check, launch.embedding, embedding.reference, lambda i, p, s, z, bits, group, length, dtype: (group, length)
    ),
    "pack": _backed(codec.check_values, launch.pack, codec.pack_unchecked, lambda codes, bits: (64, 0)),
    "unpack": _backed(packing.check_unpack, launch.unpack, _unpack, lambda packed, bits, length: (64, 0)),
}


def register(library: torch.library.Library = LIBRARY) -> None:
    """Puts the kernels in the place of the reference."""
    for name, op in OPS.items():
        library.impl(name, op, "CPU")


register()
