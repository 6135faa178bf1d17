"""`lowbit inspect FILE`."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from ..load import load_file
from ..tensor import LowBitWeightTensor, packed_nbytes
from .console import checking_use, megabytes, out


def run(file: Path, source: Path | None) -> None:
    """Prints a table of the tensors, with relative errors where the float source is given."""
    with checking_use():
        for path in (file, source):
            if path is not None and not path.exists():
                raise FileNotFoundError(f"{path}: expected a file or folder, got nothing there")
    tensors, floats = load_file(file), {} if source is None else _source(source)
    table = Table(box=None, pad_edge=False)
    for title, justify in (
        ("tensor", "left"),
        ("shape", "left"),
        ("dtype", "left"),
        ("bits", "right"),
        ("group", "right"),
        ("bytes", "right"),
    ):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    if source is not None:
        table.add_column("error", justify="right", no_wrap=True)
    stored: dict[int, str] = {}
    for name, t in tensors.items():
        first = stored.setdefault(id(t), name)
        dtype = str(t.dtype).removeprefix("torch.")
        row = [name, "x".join(map(str, t.shape)), dtype, *_format(t)]
        row.append(f"{packed_nbytes(t):,}" if first == name else f"as {first}")
        table.add_row(*row, *([_error(name, t, floats)] if source is not None else []))
    out.print(table)
    unique = {id(t): t for t in tensors.values()}.values()
    size, count = sum(map(packed_nbytes, unique)), sum(t.numel() for t in unique)
    low_bit = sum(isinstance(t, LowBitWeightTensor) for t in unique)
    out.print(f"{len(tensors)} tensors, {low_bit} low-bit; {megabytes(size)}, {8 * size / max(count, 1):.3f} bits a weight", markup=False)


def _format(t: Tensor) -> tuple[str, str]:
    return (str(t.bits), str(t.group_size)) if isinstance(t, LowBitWeightTensor) else ("-", "-")


def _source(source: Path) -> dict[str, Tensor]:
    if source.is_file() and source.suffix == ".gguf":
        from ..integrations.transformers import load_model

        return dict(load_model(source)[0].state_dict())
    return load_file(source)


def _error(name: str, t: Tensor, floats: dict[str, Tensor]) -> str:
    """Norm of the difference over the norm of the float tensor."""
    if name not in floats:
        return "not in source"
    w = floats[name]
    if w.shape != t.shape:
        return "x".join(map(str, w.shape)) + " in source"
    difference = t.dequantize(torch.float32) - w.float() if isinstance(t, LowBitWeightTensor) else t.float() - w.float()
    norm = torch.linalg.vector_norm(w, dtype=torch.float64).item()
    return f"{torch.linalg.vector_norm(difference, dtype=torch.float64).item() / norm:.2e}" if norm else "0"
