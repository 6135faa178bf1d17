"""Killed while writing: a file or folder is whole, the old one or the new one, at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lowbit_tensor as lb
from lowbit_tensor.atomic import atomic_folder

# 20 by default, 200 with --full
MOMENTS = [pytest.param(i, id=f"moment{i}", marks=() if i < 10 else pytest.mark.full) for i in range(100)]


def tensors(value: float) -> dict[str, torch.Tensor]:
    """About 2 MB, all of it made of one value."""
    codes = torch.full((512, 4096), int(value))
    ones = torch.ones(512, 64)
    w = lb.LowBitWeightTensor.from_codes(codes, ones, ones, bits=4, group_size=64)
    return {"w": w, "plain": torch.full((1 << 18,), value)}


def killed_while(write: Callable[[float], None], rng: random.Random) -> None:
    """Runs `write` with 1, 2, 1, 2, ... in a child process until it is killed at a random moment."""
    if not (pid := os.fork()):
        try:
            for i in range(10_000):
                write(1.0 + i % 2)
        finally:
            os._exit(1)
    time.sleep(rng.uniform(0, 0.15))
    os.kill(pid, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def is_whole(loaded: dict[str, torch.Tensor]) -> bool:
    codes, plain = loaded["w"].codes(), loaded["plain"]
    return bool((codes == codes[0, 0]).all() and (plain == float(codes[0, 0])).all())


@pytest.mark.parametrize("moment", MOMENTS)
def test_file(moment: int, seed: int, tmp_path: Path) -> None:
    values = {value: tensors(value) for value in (1.0, 2.0)}
    path = tmp_path / "m.safetensors"
    lb.save_file(values[2.0], path)
    killed_while(lambda value: lb.save_file(values[value], path) and None, random.Random(f"{seed} {moment}"))
    assert is_whole(lb.load_file(path))
    lb.save_file(values[1.0], path)
    assert is_whole(lb.load_file(path))


@pytest.mark.parametrize("moment", MOMENTS)
def test_new_folder(moment: int, seed: int, tmp_path: Path) -> None:
    values, path = tensors(1.0), tmp_path / "model"

    def write(value: float) -> None:
        target = path.with_name(f"model{write.count}")
        write.count += 1
        with atomic_folder(target) as part:
            (part / "config.json").write_text("{}")
            lb.save_file(values, part / "model.safetensors")

    write.count = 0
    killed_while(write, random.Random(f"{seed} {moment}"))
    for folder in tmp_path.glob("model*"):
        assert (folder / "config.json").read_text() == "{}" and is_whole(lb.load_file(folder))
