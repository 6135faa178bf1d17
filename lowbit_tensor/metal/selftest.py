"""A kernel is compared with the reference before its first result is used: compilers of shaders have miscompiled such code."""

from __future__ import annotations

import platform
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import packing as codec
from ..format import Format
from ..ops import dequantize, embedding, grouped, linear, matmul, parameter_grad, quantize
from . import launch
from .geometry import DEFAULT, pass_of
from .kernels import IN

OUTPUTS, EXPERTS, GROUP_SIZE = 19, 3, 32  # off the tiles in every direction
# Rows of codes at the widest addresses, deep enough for a sum that is split; and short ones that end within a run. With each, parameters
# of another dtype.
SAMPLES = ((1152, torch.float16), (132, torch.bfloat16), (1152, torch.float32))
ROWS = (1, 2, 4, 8, 12, 40)  # each takes another kernel, or takes it twice
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest result: wrong kernels are wrong by far more
Key = tuple[str, torch.dtype, int, int]  # op, dtype, bits, rows

_LOCK = threading.RLock()
_OUTCOMES: dict[Key, tuple[bool, str]] = {}


@dataclass(frozen=True)
class Sample:
    """What one comparison multiplies with."""

    dtype: torch.dtype
    bits: int
    rows: int
    length: int
    parameters: torch.dtype

    def weight(self, *lead: int) -> tuple[Tensor, Tensor, Tensor]:
        """Random codes and parameters of a weight `[*lead, OUTPUTS, length]`, the same at every call."""
        generator = torch.Generator().manual_seed(self.bits)
        fmt = Format(self.bits, GROUP_SIZE, self.length)
        codes = torch.randint(0, fmt.max_code + 1, (*lead, OUTPUTS, self.length), generator=generator)
        scales = torch.rand((*lead, OUTPUTS, fmt.groups), generator=generator) + 0.5
        return codec.pack(codes, self.bits), (scales / fmt.max_code).to(self.parameters), (-0.5 * scales).to(self.parameters)

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(self.dtype)

    @property
    def expert(self) -> Tensor:
        return torch.arange(self.rows) * 7 % EXPERTS

    @property
    def layout(self) -> tuple[int, int]:
        return self.bits, GROUP_SIZE


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[Sample], tuple[Any, ...]]]] = {
    "linear": (
        launch.linear,
        linear.reference,
        lambda s: (s.floats(s.rows, s.length), *s.weight(), s.floats(OUTPUTS).to(s.parameters), *s.layout),
    ),
    "matmul": (launch.matmul, matmul.reference, lambda s: (s.floats(s.rows, OUTPUTS), *s.weight(), *s.layout, s.length)),
    "grouped_linear": (
        launch.grouped_linear,
        grouped.grouped_linear,
        lambda s: (s.floats(s.rows, s.length), *s.weight(EXPERTS), s.expert, *s.layout),
    ),
    "grouped_matmul": (
        launch.grouped_matmul,
        grouped.grouped_matmul,
        lambda s: (s.floats(s.rows, OUTPUTS), *s.weight(EXPERTS), s.expert, *s.layout, s.length),
    ),
    "dequantize": (launch.dequantize, dequantize.reference, lambda s: (*s.weight(2), *s.layout, s.length, s.dtype)),
    "embedding": (
        launch.embedding,
        embedding.reference,
        lambda s: (torch.arange(s.rows) % OUTPUTS, *s.weight(), *s.layout, s.length, s.dtype),
    ),
    "parameter_grad": (
        launch.parameter_grad,
        parameter_grad.reference,
        lambda s: (s.floats(2, OUTPUTS, s.length).float(), s.weight(2)[0], *s.layout),
    ),
    "encode": (launch.encode, quantize.encode_reference, lambda s: (s.floats(OUTPUTS, s.length), *s.weight()[1:], *s.layout)),
    "pack": (launch.pack, codec.pack, lambda s: (codec.unpack(s.weight()[0], s.bits, s.length), s.bits)),
    "unpack": (launch.unpack, codec.unpack, lambda s: (s.weight()[0], s.bits, s.length)),
}


def trusted(op: str, dtype: torch.dtype, bits: int, rows: int, device: torch.device) -> bool:
    """Whether the kernel that serves this call gave the reference's result; found out once, and said with the numbers where it did not."""
    key = (op, dtype, bits, _rows(rows))
    if (known := _OUTCOMES.get(key)) is not None:
        return known[0]
    with _LOCK:
        if key not in _OUTCOMES:
            _OUTCOMES[key] = compare(key, device)
            if not _OUTCOMES[key][0]:
                warnings.warn(f"lowbit_tensor: {_OUTCOMES[key][1]}; the plain reference serves in its place", stacklevel=4)
        return _OUTCOMES[key][0]


def _rows(rows: int) -> int:
    """The one of ROWS that takes the kernel that `rows` take."""
    if rows > DEFAULT.last_rows or launch.batch_invariant:
        return ROWS[-1]
    return pass_of(rows) if rows <= IN[-1] else ROWS[-2]


def distrusted() -> list[str]:
    """What was found of the kernels that the plain reference serves in place of, in this process so far."""
    with _LOCK:
        return [found for right, found in _OUTCOMES.values() if not right]


def compare(key: Key, device: torch.device) -> tuple[bool, str]:
    """(whether it is right, what was found) of one kernel on one device, for each of SAMPLES."""
    op, dtype, bits, rows = key
    what = f"{op} of {bits} bits, {str(dtype).removeprefix('torch.')}, {rows} rows"
    for length, parameters in SAMPLES:
        wrong = _difference(op, Sample(dtype, bits, rows, length, parameters), device)
        if wrong:
            return False, f"{what} {wrong}"
    return True, f"{what} is right"


def _difference(op: str, sample: Sample, device: torch.device) -> str:
    """What is wrong with one result, empty where nothing is."""
    kernel, reference, arguments = CASES[op]
    args = arguments(sample)
    expected = reference(*args)
    try:
        got = kernel(*(a.to(device) if isinstance(a, Tensor) else a for a in args))
    except (SyntaxError, RuntimeError, ValueError) as error:  # text, launch, more threads than the device has registers for
        return f"does not run: {str(error)[:300]}"
    for a, b in zip(_tuple(got), _tuple(expected), strict=True):
        if not a.dtype.is_floating_point and not torch.equal(a.cpu(), b):
            return f"gives {(a.cpu() != b).sum().item()} of {b.numel()} bytes that differ from the reference's"
        difference, largest = (a.cpu().double() - b.double()).abs().max().item(), b.double().abs().max().item()
        if not difference <= TOLERANCE[sample.dtype] * largest:
            return f"differs by {difference:.3g} from the reference, whose largest value is {largest:.3g}"
    return ""


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def keys() -> Iterator[Key]:
    """One of every kernel that the ops launch."""
    for op in CASES:
        for bits in range(1, 9):
            for dtype in (torch.float32,) if op in ("pack", "unpack", "parameter_grad") else tuple(TOLERANCE):
                for rows in ROWS if op == "linear" else (1, 12, 40) if op == "grouped_linear" else (40,):
                    yield op, dtype, bits, rows


def machine() -> dict[str, str]:
    """What a report says of the machine: system, chip, versions."""
    return {"system": platform.platform(), "processor": platform.processor(), "mac": platform.mac_ver()[0], "torch": torch.__version__}
