"""Prints what a call costs on a 64 x 64 layer, where the arithmetic is nothing: eager and compiled, dense and low-bit.

python benchmarks/overhead.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import lowbit_tensor as lb
from lowbit_tensor.cpu import launch
from lowbit_tensor.ops import linear

ROUNDS, CALLS = 31, 200


def medians(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median microseconds a call of each, measured in turn, so that the machine's drift meets all alike."""
    for call in ways.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - began) / CALLS * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    dense, low = nn.Linear(64, 64), nn.Linear(64, 64)
    low.weight = w = lb.LowBitWeightTensor.from_float(low.weight, 4, 64)
    x = torch.randn(1, 64)
    parts = (x, w.packed, w.scales, w.zeros, None, w.bits, w.group_size)
    compiled = {name: torch.compile(layer, fullgraph=True) for name, layer in (("dense", dense), ("low-bit", low))}
    with torch.no_grad():
        result = medians(
            {
                "F.linear, dense": lambda: F.linear(x, dense.weight),
                "the plain reference": lambda: linear.reference(*parts),
                "the native launch": lambda: launch.linear(*parts),
                "the op `lowbit::linear`": lambda: torch.ops.lowbit.linear(*parts),
                "F.linear, low-bit": lambda: F.linear(x, w),
                "compiled layer, dense": lambda: compiled["dense"](x),
                "compiled layer, low-bit": lambda: compiled["low-bit"](x),
            }
        )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n\n| call | microseconds |\n|---|---|")
    print("\n".join(f"| {name} | {value:.1f} |" for name, value in result.items()))
    print(f"\nF.linear, low-bit over dense: {result['F.linear, low-bit'] / result['F.linear, dense']:.1f}")


if __name__ == "__main__":
    main()
