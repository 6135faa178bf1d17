"""What a hostile file may cost: a refusal takes at most twice the file's bytes, whatever its header claims."""

from __future__ import annotations

import itertools
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lowbit_tensor as lb

SIZE = 24_000_000
LOAD = """
import os, sys
if pid := os.fork():  # a process that is only executed starts with its parent's peak
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
import resource, lowbit_tensor
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
base = peak()
try:
    lowbit_tensor.load_file(sys.argv[1], mmap=sys.argv[2] == "mmap")
    print("accepted")
except ValueError as error:
    print(peak() - base, str(error)[:200])
"""


def with_settings(path: Path, text: str) -> None:
    """A file of one plain tensor whose metadata holds `text` under the key `lowbit`."""
    header = json.dumps({"__metadata__": {"lowbit": text}, "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0")


def with_shape(path: Path, shape: list[int]) -> None:
    """A file as large as the others whose settings claim another shape."""
    w = lb.LowBitWeightTensor.from_codes(
        torch.zeros(1024, SIZE // 1024, dtype=torch.uint8), torch.ones(1024, 1), torch.zeros(1024, 1), bits=8, group_size=2**20
    )
    lb.save_file({"w": w}, path)
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, found = re.subn(rb'\\"shape\\": *\[[0-9, ]*\]', b'\\\\"shape\\\\":' + json.dumps(shape).encode(), data[8 : 8 + length].rstrip())
    assert found == 1, header
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])


FILES: dict[str, Callable[[Path], None]] = {
    "lists": lambda path: with_settings(path, '{"version": 1, "tensors": [' + "[]," * (SIZE // 3) + "0]}"),
    "numbers": lambda path: with_settings(path, '{"version": 1, "tensors": {"a": {"shape": [' + "9999," * (SIZE // 5) + "0]}}}"),
    "nested": lambda path: with_settings(path, "[" * SIZE),
    "objects": lambda path: with_settings(path, '{"version": 1, "tensors": {"a": [' + "{}," * (SIZE // 3) + "0]}}"),
    "huge shape": lambda path: with_shape(path, [2**40, SIZE // 1024]),
    "another shape": lambda path: with_shape(path, [1023, SIZE // 1024]),
}


FEW = [("lists", "mmap"), ("another shape", "read")]
CASES = [pytest.param(*case, marks=() if case in FEW else pytest.mark.full) for case in itertools.product(FILES, ("mmap", "read"))]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_refusal_takes_at_most_twice_the_file(name: str, mode: str, tmp_path: Path) -> None:
    """Case 127."""
    path = tmp_path / "m.safetensors"
    FILES[name](path)
    done = subprocess.run([sys.executable, "-c", LOAD, str(path), mode], capture_output=True, text=True, check=True, timeout=60)
    extra, _, message = done.stdout.partition(" ")
    assert "m.safetensors" in message, done.stdout
    assert int(extra) <= 2 * path.stat().st_size + 30_000_000, message


def test_a_huge_index_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": [' + "[]," * 2**24 + "0]}")
    done = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path), "mmap"], capture_output=True, text=True, check=True, timeout=60)
    extra, _, message = done.stdout.partition(" ")
    assert "expected JSON of at most" in message and int(extra) <= 2 * index.stat().st_size
