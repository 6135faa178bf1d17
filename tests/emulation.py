"""What `--device emulated` runs: the Metal kernels in the harness, in the place of the CPU's own, so that the op tests run as on mps.

FAST mode, which checks results and no accesses: tests/metal has those.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

active = False  # whether the CPU's ops are Metal's just now


def compile_by_harness() -> None:
    """Shaders are compiled for the CPU from now on."""
    import metal_emu

    from lowbit_tensor.metal import library

    library.compile_shader = lambda source: metal_emu.compile_shader(source, check=False)


@contextmanager
def registered() -> Iterator[None]:
    """The ops of the CPU are those of mps inside."""
    global active
    from lowbit_tensor.metal import OPS

    library = torch.library.Library("lowbit", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel", UserWarning)
        for name, op in OPS.items():
            library.impl(name, _without_float64(op), "CPU")
    active = True
    try:
        yield
    finally:
        active = False
        library._destroy()


def _without_float64(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op where no tensor of float64 can be, as on mps."""

    def run(*args: Any) -> Any:
        assert torch.float64 not in [a.dtype if isinstance(a, torch.Tensor) else a for a in args], "mps has no float64: mark it cpu_only"
        return op(*args)

    return run
