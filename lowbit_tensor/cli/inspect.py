"""`lowbit inspect FILE`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..load import load_file
from ..report import aligned, packed_nbytes
from ..tensor import LowBitWeightTensor
from .console import checking_use, megabytes, out


def run(file: Path, source: Path | None) -> None:
    """Prints a table of the tensors, with relative errors where the float source is given."""
    with checking_use():
        for path in (file, source):
            if path is not None and not path.exists():
                raise FileNotFoundError(f"{path}: expected a file or folder, got nothing there")
    tensors, floats = load_file(file), {} if source is None else _source(source)
    head = ("tensor", "shape", "dtype", "bits", "group", "bytes")
    rows = [head if source is None else (*head, "error")]
    stored: dict[int, str] = {}
    for name, t in tensors.items():
        first = stored.setdefault(id(t), name)
        size = f"{packed_nbytes(t):,}" if first == name else f"as {first}"
        row = (name, "x".join(map(str, t.shape)), str(t.dtype).removeprefix("torch."), *_format(t), size)
        rows.append(row if source is None else (*row, _error(name, t, floats)))
    out.print("\n".join(aligned(rows)), markup=False)
    unique = {id(t): t for t in tensors.values()}.values()
    nbytes, count = sum(map(packed_nbytes, unique)), sum(t.numel() for t in unique)
    low_bit = sum(isinstance(t, LowBitWeightTensor) for t in unique)
    out.print(
        f"{len(tensors)} tensors, {low_bit} low-bit; {megabytes(nbytes)}, {8 * nbytes / max(count, 1):.3f} bits a weight", markup=False
    )


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
