"""What the Metal kernels cost a weight, counted in the harness: `python benchmarks/metal_counts.py` prints the tables of docs/metal.md.

No time is measured: that takes a Mac (benchmarks/mps.py). Bytes are counted as lanes ask for them, arithmetic in the optimised code of
clang, where a bitfield extract of Apple's GPUs is a shift and a mask.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import metal_emu
from samples import random_weight

from lowbit_tensor.metal import launch, library

N, K, GROUP = 32, 4096, 64
WEIGHTS = N * K
# GB/s as published, and float32 operations a second of the GPU in TFLOPS, of which a multiply-add is two
CHIPS = {"M1": (68.25, 2.6), "M4": (120, 4.3), "M4 Max": (546, 18.4)}
ROWS = (1, 2, 4, 8, 16)
OPERATIONS = ("float_operations", "integer_operations", "long_operations", "conversions")


def counted(rows: int, bits: int) -> dict[str, float]:
    """Counts a weight of one launch of `linear`: float16 activations and parameters, every run at an address of the widest load."""
    weight, x = random_weight((N, K), bits, GROUP), torch.ones(rows, K, dtype=torch.float16)
    found: dict[str, float] = {}
    compile_shader = library.compile_shader
    for options in ({"check": True}, {"check": False, "count_operations": True}):
        library.clear()
        library.compile_shader = lambda source, options=options: metal_emu.compile_shader(source, **options)
        launch.linear(x, *weight.parts, None, *weight.layout)
        found |= {name: count / WEIGHTS for name, count in metal_emu.counts.items() if count}
    library.compile_shader = compile_shader
    library.clear()
    return found


def at_least(bits: int) -> float:
    """Bytes of a weight in memory: its code, and its share of a float16 scale and zero."""
    return bits / 8 + 4 / GROUP


def instructions(counts: dict[str, float]) -> float:
    """About how many a weight takes: a multiply-add is one, a shift and a mask are one, 64-bit arithmetic is two each."""
    return sum(f * counts.get(name, 0) for f, name in zip((0.5, 0.5, 2, 1), OPERATIONS, strict=True))


def limit(chip: str, counts: dict[str, float], least: float) -> str:
    """Billions of weights a second: the lower of what the bandwidth and what the arithmetic allow."""
    bandwidth, flops = CHIPS[chip]
    by_memory, by_arithmetic = bandwidth / least, flops * 1e3 / 2 / instructions(counts)
    return f"{min(by_memory, by_arithmetic):.0f} {'memory' if by_memory < by_arithmetic else 'arithmetic'}"


def one_row(bits: int) -> str:
    counts, least = counted(1, bits), at_least(bits)
    operations = " | ".join(f"{counts[name]:.2f}" for name in OPERATIONS)
    bounds = " | ".join(limit(chip, counts, least) for chip in CHIPS)
    return f"| {bits} | {least:.4f} | {counts['device_bytes_loaded']:.4f} | {operations} | {counts['simd_operations']:.4f} | {bounds} |"


def several_rows(bits: int) -> str:
    """Instructions a weight and row: what decoding costs is shared by up to 8 rows."""
    cells = [instructions(counted(rows, bits)) / rows for rows in ROWS]
    return f"| {bits} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"


def tables() -> tuple[str, str]:
    """Both tables of docs/metal.md."""
    first = ["bits", "bytes in memory", "bytes asked for", "float", "integer", "64-bit", "conversions", "SIMD sums"]
    heads = [[*first, *(f"{chip} limit" for chip in CHIPS)], ["bits", *(f"M = {rows}" for rows in ROWS)]]
    made = []
    for head, row in zip(heads, (one_row, several_rows), strict=True):
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *(row(bits) for bits in range(1, 9))]
        made.append("\n".join(lines))
    return made[0], made[1]


if __name__ == "__main__":
    print("\n\n".join(tables()))
