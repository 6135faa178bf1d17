"""What the tests of files share: a small weight, ways to write files by hand, and to look at their bytes."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from lowbit_tensor import LowBitWeightTensor

NAME = "layer.weight"
PARTS = ("packed", "scales", "zeros")


def weight(
    *shape: int, bits: int = 4, group: int = 16, dtype: torch.dtype = torch.float32, scales: torch.dtype = torch.float16
) -> LowBitWeightTensor:
    return LowBitWeightTensor.from_float(torch.randn(shape or (6, 40), dtype=dtype), bits, group, "minmax", scales)


def mixed() -> dict[str, Tensor]:
    """Low-bit tensors of several formats, float and integer ones."""
    return {
        "a.weight": weight(bits=3),
        "a.bias": torch.randn(6),
        "b.weight": weight(5, 33, bits=7, group=33, dtype=torch.bfloat16, scales=torch.float32),
        "norm": torch.randn(8).half(),
        "steps": torch.tensor(7),
    }


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(got) == sorted(expected)
    for name, t in expected.items():
        other = got[name]
        assert type(other) is type(t) and other.dtype == t.dtype and other.shape == t.shape, name
        if isinstance(t, LowBitWeightTensor):
            assert other.format == t.format and other.scales.dtype == t.scales.dtype, name
            assert all(torch.equal(getattr(other, part), getattr(t, part)) for part in PARTS), name
        else:
            assert torch.equal(other, t), name


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def header(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])


def settings(path: Path) -> dict[str, Any]:
    return json.loads(header(path)["__metadata__"]["lowbit"])


def child(code: str, *args: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return done.stdout.strip()


def write_shards(folder: Path, *shards: tuple[dict[str, Tensor], dict[str, Any] | None]) -> Path:
    """Shards made by hand, each of plain tensors and settings, and their index."""
    weight_map = {}
    for i, (tensors, lowbit) in enumerate(shards):
        metadata = None if lowbit is None else {"lowbit": json.dumps(lowbit)}
        safetensors.torch.save_file(tensors, folder / f"s{i}.safetensors", metadata=metadata)
        weight_map |= dict.fromkeys(tensors, f"s{i}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def parts_of(w: LowBitWeightTensor, name: str = NAME) -> dict[str, Tensor]:
    return {f"{name}.{part}": getattr(w, part) for part in PARTS}


def settings_of(w: LowBitWeightTensor, name: str = NAME, **changes: Any) -> dict[str, Any]:
    entry = {"bits": w.bits, "group_size": w.group_size, "shape": list(w.shape), "dtype": "float32"} | changes
    return {"version": 1, "tensors": {name: entry}}
