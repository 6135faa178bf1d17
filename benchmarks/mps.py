"""Measures the kernels for Apple GPUs beside F.linear, PyTorch's int4 op and, where installed, MLX and torchao; then whole models.

python benchmarks/mps.py --out mps.json    # takes minutes; --quick takes small shapes: a check that it runs, not a measure

All are timed as ops, in turn, on weights that come from memory. The first result of each kernel of ours is compared with the plain
reference; one that is wrong is listed. GB/s counts the bytes of codes, scales and zeros; the share is of the chip's published bandwidth.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mps_model
import torch
from mps_rivals import DTYPES, GROUP_SIZE, RIVALS, Way, Weight, ours, states

import lowbit_tensor as lb
from lowbit_tensor.atomic import atomic_file, check_file
from lowbit_tensor.metal import selftest
from lowbit_tensor.metal.chip import chip, gpu

# Published bandwidth in GB/s; where a chip was sold with two, by the least number of GPU cores that has it.
BANDWIDTH: dict[str, dict[int, float]] = {
    "M1": {0: 68.25}, "M1 Pro": {0: 200}, "M1 Max": {0: 400}, "M1 Ultra": {0: 800},
    "M2": {0: 100}, "M2 Pro": {0: 200}, "M2 Max": {0: 400}, "M2 Ultra": {0: 800},
    "M3": {0: 100}, "M3 Pro": {0: 150}, "M3 Max": {0: 300, 40: 400}, "M3 Ultra": {0: 819},
    "M4": {0: 120}, "M4 Pro": {0: 273}, "M4 Max": {0: 410, 40: 546},
    "M5": {0: 153},
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is measured: weights `(n, k)`, rows of activations; a round of a way takes about `seconds`; `memory` bytes defeat caches."""

    shapes: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    rounds: int
    seconds: float
    memory: int
    model: mps_model.Shape


FULL = Plan(
    ((4096, 4096), (4096, 14336), (2048, 2048)), (1, 4, 8, 128, 512), 7, 0.02, 256 * 2**20,
    mps_model.Shape(2048, 8192, 16, 32, 8, 32000, tokens=32, rounds=5),
)  # fmt: skip
QUICK = Plan(((256, 512),), (1, 4, 32), 3, 0.001, 2**18, mps_model.Shape(128, 256, 2, 4, 2, 256, tokens=4, rounds=1))


@dataclass(frozen=True)
class Figure:
    """One product `[rows, k] @ [n, k].T` by one way; `share` of the chip's bandwidth, None where that is not known."""

    n: int
    k: int
    rows: int
    dtype: str
    bits: int
    way: str
    microseconds: float
    gigabytes_per_second: float
    share: float | None
    teraflops: float


def bandwidth(machine: dict[str, str]) -> float | None:
    """GB/s of the machine's chip; None for one that is not in the table, or that does not tell its cores where they decide."""
    found = re.match(r"Apple (M\d+(?: (?:Pro|Max|Ultra))?)\b", machine.get("chip", ""))
    kinds = BANDWIDTH.get(found[1], {}) if found else {}
    if len(kinds) > 1 and "gpu_cores" not in machine:
        return None
    cores = int(machine.get("gpu_cores", 0))
    return max((value for least, value in kinds.items() if cores >= least), default=None)


def medians(ways: dict[str, Way], rows: int, plan: Plan) -> dict[str, float]:
    """Median seconds a product of each way, measured in turn, so that the machine's drift meets all alike."""
    timers = {name: _timer(way, rows, plan.seconds) for name, way in ways.items()}
    rounds = [{name: next(timer) for name, timer in timers.items()} for _ in range(plan.rounds)]
    return {name: statistics.median(times[name] for times in rounds) for name in ways}


def _timer(way: Way, rows: int, seconds: float) -> Iterator[float]:
    """Seconds a product, of as many products as take about `seconds`; every copy of the weight is used before one is used again."""
    x, products = way.activations(rows), itertools.cycle(way.products)

    def run(count: int) -> float:
        began = time.perf_counter()
        for product in itertools.islice(products, count):
            product(x)
        way.finish()
        return time.perf_counter() - began

    run(len(way.products))
    count = 1
    while (taken := run(count)) < seconds / 4:
        count *= 2
    count = max(1, round(count * seconds / taken))
    while True:
        yield run(count) / count


def figures(plan: Plan, device: torch.device, rivals: list[str], published: float | None) -> Iterator[list[Figure]]:
    """The figures of all ways, ours first, for each weight, dtype and number of rows."""
    for (n, k), bits, dtype in itertools.product(plan.shapes, range(1, 9), DTYPES):
        weight = Weight(n, k, bits, dtype, device, plan.memory)
        made = {"ours": ours(weight), **{name: RIVALS[name](weight) for name in rivals}}
        ways = {name: way for name, way in made.items() if way is not None}
        for rows in plan.rows:
            times = medians(ways, rows, plan)
            yield [_figure(weight, rows, name, ways[name].nbytes, seconds, published) for name, seconds in times.items()]
        del made, ways  # before the next ones are made


def _figure(weight: Weight, rows: int, way: str, nbytes: int, seconds: float, published: float | None) -> Figure:
    speed, operations = nbytes / seconds / 1e9, 2 * rows * weight.n * weight.k
    share = None if published is None else speed / published
    dtype = str(weight.dtype).removeprefix("torch.")
    return Figure(weight.n, weight.k, rows, dtype, weight.bits, way, seconds * 1e6, speed, share, operations / seconds / 1e12)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def kernel_table(plan: Plan, device: torch.device, rivals: list[str], published: float | None) -> list[Figure]:
    """Prints a row for each product as it is measured, the rivals' microseconds beside ours."""
    head = ["n x k", "rows", "x", "bits", "ours, us", "GB/s", "share", "TFLOP/s", *(f"{name}, us" for name in rivals)]
    print(f"\n{_line(head)}\n{_line(['---'] * len(head))}", flush=True)
    found = []
    for row in figures(plan, device, rivals, published):
        mine, times = row[0], {f.way: f"{f.microseconds:.1f}" for f in row}
        speed = [f"{mine.gigabytes_per_second:.1f}", percent(mine.share), f"{mine.teraflops:.2f}"]
        cells = [
            f"{mine.n} x {mine.k}",
            mine.rows,
            mine.dtype,
            mine.bits,
            times["ours"],
            *speed,
            *(times.get(name, "-") for name in rivals),
        ]
        print(_line(cells), flush=True)
        found += row
    return found


def model_table(shape: mps_model.Shape, device: torch.device, published: float | None) -> list[dict[str, Any]]:
    """Prints tokens a second at each width; the share is that of the weights' bytes."""
    print(f"\nA Llama of {shape.layers} layers, {shape.hidden} wide, random weights, group {GROUP_SIZE}; head quantized, embedding not\n")
    print(f"{_line(['bits', 'tokens/s', 'MB a token', 'GB/s', 'share'])}\n{_line(['---'] * 5)}", flush=True)
    found = []
    for s in mps_model.speeds(shape, device):
        speed = s.tokens_per_second * s.bytes_per_token / 1e9
        share = None if published is None else speed / published
        bits = "float16" if s.bits is None else s.bits
        print(_line([bits, f"{s.tokens_per_second:.1f}", f"{s.bytes_per_token / 1e6:.1f}", f"{speed:.1f}", percent(share)]), flush=True)
        found.append({**asdict(s), "gigabytes_per_second": speed, "share": share})
    return found


def _line(cells: list[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _said(value: Any) -> str:
    return "; ".join(f"{k} {v}" for k, v in value.items() if v) if isinstance(value, dict) else str(value)


def find(device: str) -> torch.device:
    """The device to measure. Leaves with a message where there is no such GPU."""
    if device == "cpu":
        print("no GPU is measured: on the CPU the op is what is registered for it, and shares are not known")
        return torch.device("cpu")
    try:
        return gpu()
    except RuntimeError as error:
        sys.exit(f"benchmarks/mps.py: {error}; --device cpu runs it without")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="all figures as JSON")
    parser.add_argument("--quick", action="store_true", help="small shapes")
    parser.add_argument("--device", choices=("mps", "cpu"), default="mps")
    options = parser.parse_args()
    if options.out:
        check_file(options.out)
    device, plan = find(options.device), QUICK if options.quick else FULL
    machine, found = {**selftest.machine(), **chip()}, states(device)
    published = bandwidth(machine) if device.type == "mps" else None
    about = {"lowbit_tensor": lb.__version__, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    about |= {"device": str(device), "machine": machine, "bandwidth": published, "quick": options.quick, "rivals": found}
    about |= {"transformers": "there" if importlib.util.find_spec("transformers") else "not installed; no models are measured"}
    print("\n".join(f"{name}: {_said(value)}" for name, value in about.items()))
    kernels = kernel_table(plan, device, [name for name, state in found.items() if state == "there"], published)
    write(options.out, about, kernels, [])  # what is there if the models don't fit
    if about["transformers"] == "there":
        write(options.out, about, kernels, model_table(plan.model, device, published))
    if wrong := selftest.distrusted():
        print("\nthe plain reference was measured in place of kernels that are wrong here:", *wrong, sep="\n")


def write(path: Path | None, about: dict[str, Any], kernels: list[Figure], models: list[dict[str, Any]]) -> None:
    """All figures as JSON, with the kernels that the plain reference was measured in place of."""
    if path:
        report = {**about, "distrusted": selftest.distrusted(), "kernels": [asdict(f) for f in kernels], "models": models}
        with atomic_file(path) as part:
            part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
