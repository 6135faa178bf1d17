"""The backend for Apple GPUs: our kernels for the dispatch key of `mps`, on every op of `lowbit::`.

Importing it compiles nothing and asks nothing of the machine: shaders are compiled when an op first needs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import packing as codec
from .. import quantize as quantizers
from ..format import Format, group_count
from ..ops import dequantize, embedding, grouped, linear, matmul, packing, parameter_grad, quantize
from ..ops.registry import LIBRARY
from . import launch
from .launch import set_batch_invariant
from .selftest import trusted

__all__ = ["OPS", "covers", "launch", "register", "set_batch_invariant"]

KEY = "MPS"
Op = Callable[..., Any]
_SAID: set[str] = set()


def covers(group_size: int, length: int) -> bool:
    """Whether a run of 8 codes never straddles groups of this size in rows of this length, which the kernels count on."""
    return group_size % 8 == 0 or group_count(length, group_size) <= 1


def backed(name: str, check: Op, kernel: Op, reference: Op, call: Callable[..., tuple[torch.dtype, int, int, int, int]]) -> Op:
    """The op with its checks: `kernel`, or `reference` where `kernel` does not cover the call, which is said once.

    `call(*args)` gives (dtype, bits, rows, group size, row length).
    """

    def run(*args: Any) -> Any:
        check(*args)
        dtype, bits, rows, group_size, length = call(*args)
        if not covers(group_size, length):
            return _slow(f"groups of {group_size}, which are no multiple of 8,", reference, args)
        if not trusted(name, dtype, bits, rows, _device(args)):
            return reference(*args)
        return kernel(*args)

    return run


def _slow(why: str, reference: Op, args: tuple[Any, ...]) -> Any:
    if why not in _SAID:
        _SAID.add(why)
        warnings.warn(f"lowbit_tensor: on mps {why} take the plain reference, which is slow", stacklevel=3)
    return reference(*args)


def _device(args: tuple[Any, ...]) -> torch.device:
    return next(a.device for a in args if isinstance(a, Tensor))


def _check_encode(w: Tensor, *rest: Any) -> None:
    quantize.check_encode(w, *rest)
    quantizers.check_finite(w, "w")


def _quantize(w: Tensor, bits: int, group_size: int, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    quantize.check("quantize", w)
    quantizers.check_finite(w, "w")
    quantizers.check_method(rest[0])
    group_size = Format(bits, group_size, w.shape[-1]).group_size
    if not covers(group_size, w.shape[-1]):
        return _slow(f"groups of {group_size}, which are no multiple of 8,", quantize.reference, (w, bits, group_size, *rest))
    if not trusted("encode", w.dtype, bits, 1, w.device):
        return quantize.reference(w, bits, group_size, *rest)
    return launch.quantize(w, bits, group_size, *rest)


OPS: dict[str, Op] = {
    "linear": backed(
        "linear",
        linear.check,
        launch.linear,
        linear.reference,
        lambda x, packed, scales, zeros, bias, bits, group_size: (x.dtype, bits, x.shape[:-1].numel(), group_size, x.shape[-1]),
    ),
    "matmul": backed(
        "matmul",
        matmul.check,
        launch.matmul,
        matmul.reference,
        lambda x, packed, scales, zeros, bits, group_size, length: (x.dtype, bits, 40, group_size, length),
    ),
    "grouped_linear": backed(
        "grouped_linear",
        grouped.check_linear,
        launch.grouped_linear,
        grouped.grouped_linear,
        lambda x, packed, scales, zeros, expert, bits, group_size: (x.dtype, bits, x.shape[0], group_size, x.shape[1]),
    ),
    "grouped_matmul": backed(
        "grouped_matmul",
        grouped.check_matmul,
        launch.grouped_matmul,
        grouped.grouped_matmul,
        lambda x, packed, scales, zeros, expert, bits, group_size, length: (x.dtype, bits, 40, group_size, length),
    ),
    "dequantize": backed(
        "dequantize",
        dequantize.check,
        launch.dequantize,
        dequantize.reference,
        lambda packed, scales, zeros, bits, group_size, length, dtype: (dtype, bits, 40, group_size, length),
    ),
    "embedding": backed(
        "embedding",
        embedding.check,
        launch.embedding,
        embedding.reference,
        lambda indices, packed, scales, zeros, bits, group_size, length, dtype: (dtype, bits, 40, group_size, length),
    ),
    "parameter_grad": backed(
        "parameter_grad",
        parameter_grad.check,
        launch.parameter_grad,
        parameter_grad.reference,
        lambda grad, packed, bits, group_size: (torch.float32, bits, 40, group_size, grad.shape[-1]),
    ),
    "encode": backed(
        "encode",
        _check_encode,
        launch.encode,
        quantize.encode_reference,
        lambda w, scales, zeros, bits, group_size: (w.dtype, bits, 40, group_size, w.shape[-1]),
    ),
    "pack": backed("pack", codec.check_values, launch.pack, codec.pack_unchecked, lambda codes, bits: (torch.float32, bits, 40, 8, 8)),
    "unpack": backed(
        "unpack", packing.check_unpack, launch.unpack, codec.unpack, lambda packed, bits, length: (torch.float32, bits, 40, 8, 8)
    ),
    "quantize": _quantize,
}


def register(key: str = KEY, library: torch.library.Library = LIBRARY) -> None:
    """Puts the kernels in the place of the reference for a dispatch key."""
    for name, op in OPS.items():
        library.impl(name, op, key)


register()
