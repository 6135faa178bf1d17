"""`lowbit demo`: a real language model at several widths, from one command."""

from __future__ import annotations

import copy
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..atomic import atomic_file, atomic_folder, check_folder
from ..config import LowBitConfig
from ..convert import model_size
from ..integrations import smollm2
from ..integrations.perplexity import encode, perplexity, topics
from ..integrations.transformers import load_model, quantize_model, save_model
from .console import checking_use, out, progress, working
from .generate import continue_prompt

PROMPT = "What is the capital of France, and what is it known for?"
COLUMNS = ("bits", "bits/weight", "in linears", "MB on disk", "perplexity", "tokens/s", "seconds", "sample")


@dataclass(frozen=True)
class Row:
    """One line of the table. `bits` None is the float model; sizes in bytes; `seconds` is what quantizing took."""

    bits: int | None
    bits_per_weight: float
    bits_per_linear_weight: float
    nbytes: int
    perplexity: float
    tokens_per_second: float
    seconds: float
    sample: str

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of COLUMNS."""
        return (
            "float" if self.bits is None else str(self.bits), f"{self.bits_per_weight:.2f}", f"{self.bits_per_linear_weight:.2f}",
            f"{self.nbytes / 1e6:.1f}", f"{self.perplexity:.3f}", f"{self.tokens_per_second:.1f}", f"{self.seconds:.1f}", self.sample,
        )  # fmt: skip


def run(folder: Path, widths: list[int], method: str) -> None:
    """Reads the model, measures it in float and at each width, writes models, table, results and plot under `folder`."""
    with checking_use():
        configs = [LowBitConfig(bits, 64, method) for bits in widths]
        file = smollm2.find()
        folder.mkdir(parents=True, exist_ok=True)
        for config in configs:
            check_folder(_target(folder, config), force=True)
    began = time.perf_counter()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    out.print(f"SmolLM2-135M-Instruct, {method}, group 64; {versions}", markup=False)
    with working(f"Reading {file.name}"):
        model, tokenizer = load_model(file)
        ids = encode(tokenizer, topics(), 2048)
    with progress("Evaluating the model as shipped") as bar:
        shipped = perplexity(model, ids, progress=bar).value
    smollm2.off_grid(model)
    out.print(f"perplexity as shipped {shipped:.3f}; taken off the 4-bit grid of its file it is the float model below", markup=False)
    out.print("".join(cell.ljust(width) for cell, width in zip(COLUMNS, WIDTHS, strict=True)), markup=False)
    rows = [_measure(model, tokenizer, ids, folder / "smollm2-float", None, 0.0)]
    for config in configs:
        quantized = copy.deepcopy(model)
        started = time.perf_counter()
        with progress(f"Quantizing to {config.bits} bits") as bar:
            quantize_model(quantized, config, bar)
        rows.append(_measure(quantized, tokenizer, ids, _target(folder, config), config, time.perf_counter() - started))
        del quantized
    _write(folder, rows, method)
    out.print(
        f"{folder / 'quality.png'}, {folder / 'table.md'}, {folder / 'results.json'}; {time.perf_counter() - began:.0f} s in all",
        markup=False,
    )


WIDTHS = (7, 13, 12, 12, 12, 10, 9, 0)


def _target(folder: Path, config: LowBitConfig) -> Path:
    return folder / f"smollm2-{config.bits}bit"


def _measure(model: Any, tokenizer: Any, ids: torch.Tensor, target: Path, config: LowBitConfig | None, seconds: float) -> Row:
    title = "float" if config is None else f"{config.bits} bits"
    with working(f"Writing {target.name}"), atomic_folder(target, force=True) as part:
        save_model(model, tokenizer, part)
    with progress(f"Evaluating {title}") as bar:
        measured = perplexity(model, ids, progress=bar)
    with working(f"Generating with {title}"):
        run = continue_prompt(model, tokenizer, PROMPT, 40, chat=True)
    linears = torch.nn.ModuleList(m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head")
    (nbytes, count), (linear_bytes, linear_count) = model_size(model), model_size(linears)
    row = Row(
        config.bits if config else None, 8 * nbytes / count, 8 * linear_bytes / linear_count,
        sum(f.stat().st_size for f in target.glob("*.safetensors")), measured.value, run.later, seconds, " ".join(run.text.split()),
    )  # fmt: skip
    out.print("".join(cell.ljust(width) for cell, width in zip(row.cells(), WIDTHS, strict=True)), markup=False)
    return row


def _write(folder: Path, rows: list[Row], method: str) -> None:
    """results.json, table.md and quality.png."""
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
    }
    with atomic_file(folder / "results.json") as part:
        part.write_text(
            json.dumps({"method": method, "group_size": 64, "machine": machine, "rows": [asdict(r) for r in rows]}, indent=2) + "\n"
        )
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(row.cells() for row in rows)]
    with atomic_file(folder / "table.md") as part:
        part.write_text("".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines), encoding="utf-8")
    from .plot import quality_against_size

    points = [("float" if r.bits is None else f"{r.bits} bits", r.nbytes / 1e6, r.perplexity) for r in rows]
    with atomic_file(folder / "quality.png") as part:
        quality_against_size(points, part, f"SmolLM2-135M-Instruct, {method}, group 64")
