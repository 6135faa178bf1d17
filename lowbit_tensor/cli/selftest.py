"""`lowbit selftest`: every kernel for Apple GPUs against the plain reference, on the GPU of this machine."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..atomic import atomic_file, check_file
from ..metal import selftest
from ..metal.chip import chip, gpu
from ..metal.selftest import Key
from ..report import aligned
from ..version import __version__
from .console import checking_use, out, progress

FORMAT = 1  # of the report


class WrongKernels(Exception):
    """Kernels differ from the reference, or do not run: exit status 1."""


@dataclass(frozen=True)
class Outcome:
    """What was found of one kernel: `rows` of activations pick it, `text` has the numbers."""

    op: str
    bits: int
    dtype: str
    rows: int
    right: bool
    text: str


def run(report: Path | None, device: torch.device | None = None, keys: Iterable[Key] | None = None) -> None:
    """Prints what was found, after writing it to `report`. Raises WrongKernels where a kernel is not right.

    `device` is this machine's GPU and `keys` all kernels unless given.
    """
    if report is not None:
        with checking_use():
            check_file(report)
    device = gpu() if device is None else device
    machine = {**selftest.machine(), **chip()}
    out.print(f"lowbit {__version__} on {device}: {', '.join(f'{k} {v}' for k, v in machine.items() if v)}", markup=False)
    with progress("Comparing") as bar:
        outcomes = examine(device, list(selftest.keys() if keys is None else keys), bar)
    if report is not None:
        write(report, device, machine, outcomes)
    wrong = [o for o in outcomes if not o.right]
    out.print("\n".join(aligned(summary(outcomes))), markup=False)
    if wrong:
        out.print("\n".join(["", *aligned(failures(wrong))]), markup=False)
        raise WrongKernels(f"expected every kernel to give the reference's results, got {len(wrong)} of {len(outcomes)} that do not")
    out.print(f"all {len(outcomes)} kernels give the reference's results", markup=False)


def examine(device: torch.device, keys: list[Key], progress: Callable[..., None]) -> list[Outcome]:
    """Compares the kernels one after the other; `progress(op, done, total)` is called before each."""
    outcomes = []
    for done, key in enumerate(keys):
        op, dtype, bits, rows = key
        progress(op, done, len(keys))
        outcomes.append(Outcome(op, bits, str(dtype).removeprefix("torch."), rows, *selftest.compare(key, device)))
    return outcomes


def summary(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """An op a row: how many of its kernels are right."""
    counts: dict[str, list[int]] = {}
    for o in outcomes:
        counts.setdefault(o.op, [0, 0])[0 if o.right else 1] += 1
    return [("op", "right", "wrong"), *((op, str(right), str(wrong)) for op, (right, wrong) in counts.items())]


def failures(wrong: list[Outcome]) -> list[tuple[str, ...]]:
    """A wrong kernel a row."""
    rows = ((o.op, str(o.bits), o.dtype, str(o.rows), " ".join(o.text.split())) for o in wrong)
    return [("wrong", "bits", "dtype", "rows", "found"), *rows]


def write(path: Path, device: torch.device, machine: dict[str, str], outcomes: list[Outcome]) -> None:
    """The report, as JSON; `date` is in ISO 8601, of UTC."""
    report = {
        "format": FORMAT,
        "lowbit_tensor": __version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": str(device),
        "machine": machine,
        "right": sum(o.right for o in outcomes),
        "wrong": sum(not o.right for o in outcomes),
        "kernels": [asdict(o) for o in outcomes],
    }
    with atomic_file(path) as part:
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
