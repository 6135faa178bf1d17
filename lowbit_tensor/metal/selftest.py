"""A kernel is compared with the reference before its first result is used: compilers of shaders have miscompiled such code."""

from __future__ import annotations

import platform
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .. import packing
from ..format import Format
from ..ops import dequantize, embedding, grouped, linear, matmul, parameter_grad, quantize
from . import launch

OUTPUTS, LENGTH, GROUP_SIZE, EXPERTS = 19, 132, 32, 3  # off the tiles in every direction
ROWS = (1, 2, 4, 8, 40)  # each takes another kernel
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest result: wrong kernels are wrong by far more
Key = tuple[str, torch.dtype, int, int]

_LOCK = threading.RLock()
_OUTCOMES: dict[Key, tuple[bool, str]] = {}


def weight_parts(bits: int, *lead: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random codes and parameters of a weight `[*lead, OUTPUTS, LENGTH]`, the same at every call."""
    generator = torch.Generator().manual_seed(bits)
    fmt = Format(bits, GROUP_SIZE, LENGTH)
    codes = torch.randint(0, fmt.max_code + 1, (*lead, OUTPUTS, LENGTH), generator=generator)
    scales = torch.rand((*lead, OUTPUTS, fmt.groups), generator=generator) + 0.5
    return packing.pack(codes, bits), (scales / fmt.max_code).half(), -0.5 * scales.half()


def _floats(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def _experts(rows: int) -> Tensor:
    return torch.arange(rows) * 7 % EXPERTS


Sample = Callable[[torch.dtype, int, int], tuple[Any, ...]]
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Sample]] = {
    "linear": (
        launch.linear,
        linear.reference,
        lambda d, b, m: (_floats(d, m, LENGTH), *weight_parts(b), _floats(d, OUTPUTS), b, GROUP_SIZE),
    ),
    "matmul": (launch.matmul, matmul.reference, lambda d, b, m: (_floats(d, m, OUTPUTS), *weight_parts(b), b, GROUP_SIZE, LENGTH)),
    "grouped_linear": (
        launch.grouped_linear,
        grouped.grouped_linear,
        lambda d, b, m: (_floats(d, m, LENGTH), *weight_parts(b, EXPERTS), _experts(m), b, GROUP_SIZE),
    ),
    "grouped_matmul": (
        launch.grouped_matmul,
        grouped.grouped_matmul,
        lambda d, b, m: (_floats(d, m, OUTPUTS), *weight_parts(b, EXPERTS), _experts(m), b, GROUP_SIZE, LENGTH),
    ),
    "dequantize": (launch.dequantize, dequantize.reference, lambda d, b, m: (*weight_parts(b), b, GROUP_SIZE, LENGTH, d)),
    "embedding": (
        launch.embedding,
        embedding.reference,
        lambda d, b, m: (torch.arange(m) % OUTPUTS, *weight_parts(b), b, GROUP_SIZE, LENGTH, d),
    ),
    "parameter_grad": (
        launch.parameter_grad,
        parameter_grad.reference,
        lambda d, b, m: (_floats(torch.float32, OUTPUTS, LENGTH), weight_parts(b)[0], b, GROUP_SIZE),
    ),
    "encode": (
        launch.encode,
        quantize.encode_reference,
        lambda d, b, m: (_floats(d, OUTPUTS, LENGTH), *weight_parts(b)[1:], b, GROUP_SIZE),
    ),
    "pack": (launch.pack, packing.pack, lambda d, b, m: (packing.unpack(weight_parts(b)[0], b, LENGTH), b)),
    "unpack": (launch.unpack, packing.unpack, lambda d, b, m: (weight_parts(b)[0], b, LENGTH)),
}


def trusted(op: str, dtype: torch.dtype, bits: int, rows: int, device: torch.device) -> bool:
    """Whether the kernel that serves this call gave the reference's result; found out once, and said with the numbers where it did not."""
    key = (op, dtype, bits, next((m for m in ROWS if rows <= m), ROWS[-1]))
    if (known := _OUTCOMES.get(key)) is not None:
        return known[0]
    with _LOCK:
        if key not in _OUTCOMES:
            _OUTCOMES[key] = compare(key, device)
            if not _OUTCOMES[key][0]:
                warnings.warn(f"lowbit_tensor: {_OUTCOMES[key][1]}; the plain reference serves in its place", stacklevel=4)
        return _OUTCOMES[key][0]


def distrusted() -> list[str]:
    """What was found of the kernels that the plain reference serves in place of, in this process so far."""
    with _LOCK:
        return [found for right, found in _OUTCOMES.values() if not right]


def compare(key: Key, device: torch.device) -> tuple[bool, str]:
    """(whether it is right, what was found) of one kernel on one device."""
    op, dtype, bits, rows = key
    kernel, reference, sample = CASES[op]
    args = sample(dtype, bits, rows)
    expected = reference(*args)
    what = f"{op} of {bits} bits, {str(dtype).removeprefix('torch.')}, {rows} rows"
    try:
        got = kernel(*(a.to(device) if isinstance(a, Tensor) else a for a in args))
    except (SyntaxError, RuntimeError, ValueError) as error:  # text, launch, more threads than the device has registers for
        return False, f"{what} does not run: {str(error)[:300]}"
    for a, b in zip(_tuple(got), _tuple(expected), strict=True):
        if not a.dtype.is_floating_point and not torch.equal(a.cpu(), b):
            return False, f"{what} gives {(a.cpu() != b).sum().item()} of {b.numel()} bytes that differ from the reference's"
        difference, largest = (a.cpu().double() - b.double()).abs().max().item(), b.double().abs().max().item()
        if not difference <= TOLERANCE[dtype] * largest:
            return False, f"{what} differs by {difference:.3g} from the reference, whose largest value is {largest:.3g}"
    return True, f"{what} is right"


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def keys() -> Iterator[Key]:
    """One of every kernel that the ops launch."""
    for op in CASES:
        for bits in range(1, 9):
            for dtype in (torch.float32,) if op in ("pack", "unpack", "parameter_grad") else tuple(TOLERANCE):
                for rows in ROWS if op == "linear" else (1, 40) if op == "grouped_linear" else (40,):
                    yield op, dtype, bits, rows


def machine() -> dict[str, str]:
    """What a report says of the machine: system, chip, versions."""
    return {"system": platform.platform(), "processor": platform.processor(), "mac": platform.mac_ver()[0], "torch": torch.__version__}
