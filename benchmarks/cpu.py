"""Measures the kernels for CPUs in one run: what the machine allows, ours at every width, and every other package that is installed.

OMP_WAIT_POLICY=PASSIVE python benchmarks/cpu.py --out cpu.json    # takes a quarter of an hour; --quick takes small shapes: a check

All are timed in turn, round by round, on weights that come from memory. The share is that of the bandwidth at which a plain sum reads
memory in the same rounds. `requirements-peers.txt` names the packages; cpu_peers.py drives them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from cpu_peers import ANY, EXACT, PEERS, states
from cpu_ways import Case, Way, dense, ours
from torch import Tensor

import lowbit_tensor as lb
from lowbit_tensor import cpu
from lowbit_tensor.atomic import atomic_file, check_file

BITS = tuple(range(1, 9))
ROWS = {"limits": (1, 4, 8, 128), "decode": (1,), "few": (1, 4, 8), "prefill": (128,)}  # of activations, for each section
WITH_PEERS = (1, 128)
CHECKED = 256  # rows of the weight whose products are compared with float64


@dataclass(frozen=True)
class Plan:
    """What is measured. A round of a way takes about `seconds`; after three rounds one that has taken `budget` seconds is done."""

    shapes: tuple[tuple[int, int], ...]
    groups: tuple[int, ...]
    threads: tuple[int, ...]
    rounds: int
    seconds: float
    budget: float
    memory: int  # bytes of copies of a weight
    read: int  # bytes to read


def threads() -> tuple[int, ...]:
    return tuple(sorted({1, torch.get_num_threads()}))


FULL = Plan(((4096, 4096), (14336, 4096)), (64, 128), threads(), 11, 0.004, 0.12, 300 * 10**6, 512 * 2**20)
QUICK = Plan(((256, 512),), (128,), threads(), 3, 0.0005, 0.01, 2**18, 2**22)


@dataclass(frozen=True)
class Figure:
    """One product `[rows, k] @ [n, k].T` by one way; bits 0: dense. Ratios are of medians of the same rounds."""

    n: int
    k: int
    group_size: int
    dtype: str
    threads: int
    bits: int
    rows: int
    way: str
    microseconds: float
    gigabytes_per_second: float
    share: float  # of the bandwidth read in the same rounds
    dense: float  # time of the dense layer over this one's
    ours: float | None  # this one's time over ours
    error: float  # relative, against float64


def reading(plan: Plan) -> Way:
    """A plain sum over parts of a buffer, one after the other."""
    parts = torch.ones(plan.read // 8, dtype=torch.int64).chunk(16)
    return Way(parts[0].nbytes, [lambda _, part=part: part.sum() for part in parts])


def medians(ways: dict[Any, tuple[Way, Any]], plan: Plan) -> dict[Any, float]:
    """Median seconds a product of each way on its activations, measured in turn, so that the machine's drift meets all alike."""
    timers = {key: _timer(way, x, plan) for key, (way, x) in ways.items()}
    times: dict[Any, list[float]] = {key: [] for key in ways}
    for done in range(plan.rounds):
        for key, timer in timers.items():
            if done < 3 or sum(max(seconds, plan.seconds) for seconds in times[key]) < plan.budget:
                times[key].append(next(timer))
    return {key: statistics.median(values) for key, values in times.items()}


def _timer(way: Way, x: Any, plan: Plan) -> Iterator[float]:
    """Seconds a product, of as many products as take about `seconds`; every copy of the weight is used before one is used again."""
    products = itertools.cycle(way.products)

    def run(count: int) -> float:
        began = time.perf_counter()
        for product in itertools.islice(products, count):
            product(x)
        return (time.perf_counter() - began) / count

    first, taken = (_seconds(way.products[0], x) for _ in range(2))
    began = time.perf_counter()
    for product in way.products[1:]:  # the first use of a copy may prepare it, or bring it to memory
        if taken > first / 2 and time.perf_counter() > began + plan.budget:
            break
        product(x)
    while True:
        count = max(1, round(plan.seconds / taken))
        if taken < plan.seconds:
            run(1)  # others' threads go to sleep, ours wake
        taken = run(count)
        yield taken


def _seconds(product: Callable[[Any], Any], x: Any) -> float:
    began = time.perf_counter()
    product(x)
    return time.perf_counter() - began


def error(way: Way, case: Case, x: Tensor, made: Any) -> float:
    """Relative error of the first columns of the first copy's product."""
    weight = (way.weight or case.dense)(CHECKED).double()
    exact = x.double() @ weight.t()
    found = way.result(way.products[0](made)).double()[:, :CHECKED]
    return float((found - exact).norm() / exact.norm())


def measure(plan: Plan, case: Case, rows: tuple[int, ...], ways: dict[str, Way], read: Way) -> list[Figure]:
    """The figures of all ways, `dense` among them, for each number of rows; peers for one row and for many."""
    xs = {m: torch.randn(m, case.k).to(case.dtype) for m in rows}
    timed: dict[Any, tuple[Way, Any]] = {"read": (read, None)}
    errors = {}
    for name, m in itertools.product(ways, rows):
        if name in ("ours", "dense") or (m in WITH_PEERS and m <= PEERS[name].rows):
            way, x = ways[name], ways[name].activations(xs[m])
            timed[name, m], errors[name, m] = (way, x), error(way, case, xs[m], x)
    times = medians(timed, plan)
    bandwidth = read.nbytes / times["read"] / 1e9

    def figure(name: str, m: int) -> Figure:
        seconds, mine = times[name, m], times.get(("ours", m))
        speed = ways[name].nbytes / seconds / 1e9
        ratios = (speed / bandwidth, times["dense", m] / seconds, None if mine is None else seconds / mine)
        which = (case.n, case.k, case.group_size, str(case.dtype).removeprefix("torch."), case.threads, case.bits, m, name)
        return Figure(*which, seconds * 1e6, speed, *ratios, errors[name, m])

    read_figure = Figure(0, 0, 0, "int64", case.threads, 0, 0, "read", times["read"] * 1e6, bandwidth, 1.0, 1.0, None, 0.0)
    return [read_figure, *(figure(*key) for key in errors)]


def figures(plan: Plan, sections: list[str], peers: list[str], failed: dict[str, str]) -> Iterator[list[Figure]]:
    """The figures of one weight after the other, for each number of threads, shape and dtype of activations."""
    read = reading(plan)
    rows = tuple(sorted({m for section in sections for m in ROWS[section]}))
    with_ours, with_peers = sections != ["limits"], bool({"decode", "prefill"} & {*sections})
    for count, (n, k), dtype in itertools.product(plan.threads, plan.shapes, ANY):
        torch.set_num_threads(count)
        plain = dense(Case(n, k, 0, k, dtype, count, plan.memory))
        if "limits" in sections:
            yield measure(plan, Case(n, k, 0, 0, dtype, count, plan.memory), rows, {"dense": plain}, read)
        for group_size, bits in itertools.product(plan.groups, BITS if with_ours else ()):
            case = Case(n, k, bits, group_size, dtype, count, plan.memory)
            made = {"dense": plain, "ours": ours(case)}
            for name in peers if with_peers else ():
                try:
                    if PEERS[name].takes(case) and (PEERS[name].swift or (n, k, group_size) == (*plan.shapes[0], plan.groups[-1])):
                        made[name] = PEERS[name].make(case)
                except Exception as error:  # whatever others raise is told
                    failed[f"{name}, {bits} bits, {n} x {k}"] = " ".join(str(error).split())[:200]
            yield measure(plan, case, rows, made, read)
            del made  # before the next ones are made


# Tables


def _table(title: str, head: list[Any], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return f"\n### {title}\n\n" + "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


class Report:
    """Tables in Markdown of the figures of one run."""

    def __init__(self, plan: Plan, found: list[Figure]) -> None:
        self.plan, self.found = plan, found
        self.combos = list(itertools.product(plan.shapes, plan.groups))
        self.heads = [f"{n} x {k}, {group}" for (n, k), group in self.combos]

    def pick(self, **wanted: Any) -> list[Figure]:
        return [f for f in self.found if all(getattr(f, name) == value for name, value in wanted.items())]

    def limits(self) -> str:
        rows: list[list[Any]] = []
        for count in self.plan.threads:
            speeds = [f.gigabytes_per_second for f in self.pick(way="read", threads=count)]
            rows.append(["read", "", count, f"{statistics.median(speeds):.1f} GB/s ({min(speeds):.1f} to {max(speeds):.1f})", "", "", ""])
            for (n, k), dtype in itertools.product(self.plan.shapes, ("float32", "bfloat16")):
                found = {f.rows: f for f in self.pick(way="dense", bits=0, threads=count, n=n, k=k, dtype=dtype)}
                flops = 2 * 128 * n * k / found[128].microseconds / 1e3
                one = f"{found[1].microseconds:.0f} us, share {found[1].share:.2f}"
                few = [f"{found[m].microseconds:.0f} us" for m in (4, 8)]
                rows.append([f"F.linear {n} x {k}", dtype, count, one, *few, f"{found[128].microseconds:.0f} us, {flops:.0f} GFLOP/s"])
        return _table("What the machine allows", ["what", "x", "threads", "1 row", "4 rows", "8 rows", "128 rows"], rows)

    def _widths(self, cell: Callable[[dict[int, Figure]], str]) -> list[list[Any]]:
        """A row for each number of threads, dtype and width; a cell of ours, by rows, for each shape and group size."""
        rows = []
        for count, dtype, bits in itertools.product(self.plan.threads, ("float32", "bfloat16"), BITS):
            cells = []
            for (n, k), group in self.combos:
                found = self.pick(way="ours", threads=count, dtype=dtype, bits=bits, n=n, k=k, group_size=group)
                cells.append(cell({f.rows: f for f in found}))
            rows.append([count, dtype, bits, *cells])
        return rows

    def decode(self) -> str:
        head = ["threads", "x", "bits", *self.heads]
        rows = self._widths(lambda f: f"{f[1].microseconds:.0f} us, {f[1].share:.2f}, {f[1].dense:.1f}")
        return _table("One row: microseconds, share of the read bandwidth, times as fast as dense", head, rows) + self.fastest()

    def fastest(self) -> str:
        """The fastest peer at each width: its time over ours, least and most of all shapes, groups and dtypes."""
        rows = []
        for bits, exact in itertools.product(BITS, (True, False)):
            row: list[Any] = [bits, EXACT if exact else "any"]
            for count in self.plan.threads:
                best: list[tuple[float, str]] = []
                for dtype, ((n, k), group) in itertools.product(("float32", "bfloat16"), self.combos):
                    found = self.pick(rows=1, threads=count, dtype=dtype, bits=bits, n=n, k=k, group_size=group)
                    ratios = [(f.ours or 0, f.way) for f in found if f.way in PEERS and (not exact or PEERS[f.way].arithmetic == EXACT)]
                    best += [min(ratios)] if ratios else []
                row.append(f"{min(best)[0]:.2f} ({min(best)[1]}) to {max(best)[0]:.2f}" if best else "none")
            rows.append(row)
        counts = [f"{count} threads" if count > 1 else "1 thread" for count in self.plan.threads]
        return "\n" + _table("One row: time of the fastest other package over ours", ["bits", "arithmetic", *counts], rows)

    def few(self) -> str:
        rows = self._widths(lambda f: " ".join(f"{f[m].microseconds / f[1].microseconds:.2f}" for m in (4, 8)))
        return _table("4 and 8 rows: time over that of one row", ["threads", "x", "bits", *self.heads], rows)

    def prefill(self) -> str:
        rows = self._widths(lambda f: f"{f[128].dense:.2f}")
        return _table("128 rows: times as fast as dense in the same dtype", ["threads", "x", "bits", *self.heads], rows)

    def peers(self) -> str:
        """Every peer on the first shape with the largest groups: its time over ours."""
        (n, k), group = self.combos[len(self.plan.groups) - 1]
        rows = []
        for name, dtype, bits in itertools.product(("ours", *PEERS), ("float32", "bfloat16"), BITS):
            found = {(f.threads, f.rows): f for f in self.pick(way=name, dtype=dtype, bits=bits, n=n, k=k, group_size=group)}
            if found:
                keys = itertools.product(self.plan.threads, WITH_PEERS)
                cells = [f"{found[key].microseconds:.0f} us, {found[key].ours:.2f}" if key in found else "-" for key in keys]
                worst = max(f.error for f in found.values())
                rows.append([name, PEERS[name].arithmetic if name in PEERS else EXACT, dtype, bits, f"{worst:.0e}", *cells])
        head = [f"{m} rows, {count} threads" for count, m in itertools.product(self.plan.threads, WITH_PEERS)]
        return _table(
            f"Each package, {n} x {k}, groups of {group}: time, and over ours", ["way", "arithmetic", "x", "bits", "error", *head], rows
        )

    def text(self, sections: list[str]) -> str:
        parts = [getattr(self, section)() for section in sections]
        return "\n".join([*parts, *([self.peers()] if {"decode", "prefill"} & {*sections} else [])])


def plot(report: Report, path: Path) -> None:
    """Share of the read bandwidth for each width, one row of activations: ours and every peer."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    (n, k), group = report.combos[len(report.plan.groups) - 1]
    figure, axes = plt.subplots(1, len(report.plan.threads), figsize=(6 * len(report.plan.threads), 4), sharey=True, squeeze=False)
    for axis, count in zip(axes[0], report.plan.threads, strict=True):
        for name in ("ours", *PEERS):
            found = report.pick(way=name, threads=count, rows=1, n=n, k=k, group_size=group)
            best = {bits: max(f.share for f in found if f.bits == bits) for bits in sorted({f.bits for f in found})}
            axis.plot(list(best), list(best.values()), "o-" if name == "ours" else ".:", label=name, linewidth=2 if name == "ours" else 1)
        axis.set(xlabel="bits", title=f"{n} x {k}, groups of {group}, {count} thread{'s' * (count > 1)}", ylim=(0, None))
    axes[0][0].set_ylabel("share of the read bandwidth")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def machine() -> dict[str, Any]:
    """What a report says of the machine."""
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
        name = next((value.strip() for key, _, value in lines if key.strip() == "model name"), name)
    about = {"system": platform.system(), "machine": platform.machine(), "processor": name, "cores": os.cpu_count()}
    about |= {"python": platform.python_version(), "torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability()}
    return about | {"kernels": cpu.active(), "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "not set")}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="all figures as JSON, and a plot beside it")
    parser.add_argument("--quick", action="store_true", help="small shapes")
    parser.add_argument("--only", choices=tuple(ROWS), help="one section")
    options = parser.parse_args()
    if options.out:
        check_file(options.out)
    plan, sections = QUICK if options.quick else FULL, [options.only] if options.only else list(ROWS)
    about = {"lowbit_tensor": lb.__version__, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    about |= {**machine(), "quick": options.quick, "sections": sections, "plan": asdict(plan)}
    peers = states() if {"decode", "prefill"} & {*sections} else {}
    print("\n".join(f"- {name}: {value}" for name, value in {**about, **peers}.items()), flush=True)
    found: list[Figure] = []
    failed: dict[str, str] = {}
    for part in figures(plan, sections, [name for name, state in peers.items() if state == "there"], failed):
        found += part
        last = part[-1]
        which = f"{last.threads} threads, {last.n} x {last.k}, {last.dtype}, groups of {last.group_size}, {last.bits} bits"
        print(which, file=sys.stderr, flush=True)
        write(options.out, {**about, "peers": peers, "failed": failed}, found)
    report = Report(plan, found)
    print(report.text(sections))
    if failed:
        print("\nleft out, since they failed:", *(f"- {name}: {why}" for name, why in failed.items()), sep="\n")
    if options.out and "decode" in sections and importlib.util.find_spec("matplotlib"):
        plot(report, options.out.with_suffix(".png"))


def write(path: Path | None, about: dict[str, Any], found: list[Figure]) -> None:
    """All figures as JSON; what is there so far, after each weight."""
    if path:
        with atomic_file(path) as part:
            part.write_text(json.dumps({**about, "figures": [asdict(f) for f in found]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
