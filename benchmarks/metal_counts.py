"""What the Metal kernels cost a weight, counted in the harness: `python benchmarks/metal_counts.py` prints the tables of docs/metal.md.

Bytes, SIMD operations and barriers are counted while the kernels run; loads and arithmetic follow from the text of the shaders. No time
is measured: that takes a Mac (benchmarks/mps.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import metal_emu
from samples import random_weight

from lowbit_tensor.metal import launch, library
from lowbit_tensor.metal.geometry import OUT

N, K, GROUP = 32, 4096, 64
BANDWIDTH = {"M1": 68, "M2": 100, "M3": 100, "M4": 120, "M1 Max": 400, "M2 Max": 400, "M3 Max": 400, "M4 Max": 546}  # GB/s, as published


def counted(rows: int, bits: int) -> dict[str, int]:
    """Counts of one launch of `linear` with float16 activations and parameters, every run at an aligned address."""
    library.clear()
    library.compile_shader = lambda source: metal_emu.compile_shader(source, check=True)
    weight = random_weight((N, K), bits, GROUP)
    launch.linear(torch.ones(rows, K, dtype=torch.float16), *weight.parts, None, *weight.layout)
    return dict(metal_emu.counts)


def loads_a_run(bits: int) -> int:
    """Loads of codes for 8 weights, as `load_run` in shaders/codec.metal makes them where addresses allow the widest."""
    return {1: 1, 2: 1, 4: 1, 6: 3, 8: 2}.get(bits, bits)


def joins_a_run(bits: int) -> int:
    """Shifts and ors that make two words of what was loaded, and of the words codes 4 to 7."""
    joined = 2 * sum(1 for i in range(loads_a_run(bits)) if i and not (bits == 8) and (i * (8 * bits // loads_a_run(bits)) % 32))
    return joined + (0 if bits == 8 else 1 if bits <= 4 else 3)


def matvec_row(bits: int) -> str:
    """One row of x: per weight, everything that is done for it."""
    counts, weights = counted(1, bits), N * K
    loaded, ideal = counts["device_bytes_loaded"] / weights, bits / 8 + 4 / GROUP
    x_loads = 2 / (8 * OUT)
    loads = loads_a_run(bits) / 8 + 2 / 8 + x_loads
    multiply_adds = 1 + 2 / 8
    others = 1 + 1 + joins_a_run(bits) / 8 + 2 / OUT
    simd = counts["simd_operations"] / weights
    bound = " | ".join(f"{BANDWIDTH[chip] / ideal:.0f}" for chip in ("M1", "M4", "M4 Max"))
    return f"| {bits} | {ideal:.4f} | {loaded:.4f} | {loads:.3f} | {multiply_adds:.2f} | {others:.2f} | {simd:.4f} | {bound} |"


def batch_row(bits: int) -> str:
    """Bytes a weight and SIMD operations a weight and row of x, for several rows."""
    cells = []
    for rows in (1, 4, 8, 16, 32):
        counts = counted(rows, bits)
        cells.append(f"{counts['device_bytes_loaded'] / (N * K):.3f}, {counts['barriers']}")
    return f"| {bits} | " + " | ".join(cells) + " |"


def tables() -> list[str]:
    """The lines of both tables."""
    torch.manual_seed(0)
    return [
        "| bits | bytes at least | bytes loaded | loads | multiply-adds | others | SIMD sums | M1 | M4 | M4 Max |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(matvec_row(bits) for bits in range(1, 9)),
        "",
        "| bits | M = 1 | M = 4 | M = 8 | M = 16 | M = 32 |",
        "|---|---|---|---|---|---|",
        *(batch_row(bits) for bits in range(1, 9)),
    ]


if __name__ == "__main__":
    print("\n".join(tables()))
