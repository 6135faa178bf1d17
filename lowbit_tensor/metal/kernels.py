"""The kernels there are: which file, which template arguments, which threads. Every name that launch.py asks for is made here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

SHADERS = Path(__file__).with_name("shaders")
TYPES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}
BITS = range(1, 9)
IN = (1, 2, 4, 8)  # rows of x that one pass of the matrix-vector kernel takes: powers of two, to compile few


@dataclass(frozen=True)
class Kernel:
    """A template of a shader file and the threads of a threadgroup, which its attribute declares as the maximum."""

    file: str
    arguments: tuple[str, ...]  # the kinds of its template arguments
    threads: int


KERNELS = {
    "rows": Kernel("rows", ("type", "bits", "in"), 64),
    "tiles": Kernel("tiles", ("type", "bits", "flag", "flag"), 128),
    "add_parts": Kernel("tiles", ("type",), 256),
    "dequantize": Kernel("weights", ("type", "bits", "flag"), 256),
    "unpack": Kernel("weights", ("bits",), 256),
    "pack": Kernel("weights", ("bits",), 256),
    "encode": Kernel("weights", ("type", "bits"), 256),
    "group_sums": Kernel("weights", ("bits",), 32),
}
VALUES: dict[str, tuple[str, ...]] = {
    "type": tuple(TYPES.values()),
    "bits": tuple(map(str, BITS)),
    "in": tuple(map(str, IN)),
    "flag": ("false", "true"),
}


def name_of(kernel: str, *arguments: object) -> str:
    """The host name of an instantiation, such as `rows_half_4_1`. Raises ValueError for one that is not in the list."""
    values = [str(a).lower() if isinstance(a, bool) else str(a) for a in arguments]
    kinds = KERNELS[kernel].arguments
    if len(values) != len(kinds) or not all(value in VALUES[kind] for value, kind in zip(values, kinds, strict=True)):
        raise ValueError(f"{kernel}: expected template arguments of {kinds}, got {values}")
    return "_".join([kernel, *values])


def instances() -> list[str]:
    """The host names of all instantiations."""
    return [name_of(kernel, *values) for kernel, k in KERNELS.items() for values in product(*(VALUES[kind] for kind in k.arguments))]


def kernel_of(name: str) -> str:
    """The kernel that a host name is an instantiation of."""
    return next(kernel for kernel in KERNELS if name.startswith(kernel + "_"))


def source_of(*names: str) -> str:
    """The text to compile for instantiations of one file: what they share, the file, and one line for each name."""
    kernels = [kernel_of(name) for name in names]
    files = {KERNELS[kernel].file for kernel in kernels}
    if len(files) != 1:
        raise ValueError(f"source_of: expected kernels of one file, got {sorted(files)}")
    lines = [_instantiation(name, kernel) for name, kernel in zip(names, kernels, strict=True)]
    texts = [(SHADERS / f"{file}.metal").read_text(encoding="ascii") for file in ("codec", *files)]
    return "\n".join([*texts, *lines, ""])


def _instantiation(name: str, kernel: str) -> str:
    arguments = ", ".join(name.removeprefix(kernel + "_").split("_"))
    return f'template [[host_name("{name}")]] [[kernel]] decltype({kernel}<{arguments}>) {kernel}<{arguments}>;'
