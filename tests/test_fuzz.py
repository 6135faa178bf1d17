"""Damaged files and pickles: whatever is done to their bytes, they are refused or give tensors that lie within their bytes."""

from __future__ import annotations

import io
import pickle
import random
import signal
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import lowbit_tensor as lb

CASES = 500
TOKENS = (b"0", b"9", b"-", b"e9", b"99999999999", b'"', b"{", b"[", b"null", b"true", b",", b":", b"\\u0000")
# 2,000 by default, 100,000 with --full
SEEDS = [pytest.param(i, id=f"seed{i}", marks=() if i < 2 else pytest.mark.full) for i in range(100)]
REFUSALS = (
    ValueError,
    TypeError,
    RuntimeError,
    pickle.UnpicklingError,
    EOFError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    AssertionError,
)


def weights() -> dict[str, torch.Tensor]:
    a, b = (lb.LowBitWeightTensor.from_float(torch.randn(shape), bits, 32) for shape, bits in (((6, 70), 5), ((4, 64), 3)))
    return {"a.weight": a, "b.weight": b, "bias": torch.randn(3), "tied.weight": a}


def damaged(data: bytes, reach: int, rng: random.Random) -> bytes:
    """A few bytes, within the first `reach`, changed, taken out or put in; or the end cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        i, kind = rng.randrange(max(1, min(reach, len(out)))), rng.random()
        if kind < 0.4:
            out[i : i + 1] = bytes([rng.randrange(256)])
        elif kind < 0.6:
            out[i : i + 1] = rng.choice(TOKENS)
        elif kind < 0.75:
            del out[i : i + rng.randrange(1, 9)]
        elif kind < 0.9:
            out[i:i] = rng.randbytes(rng.randrange(1, 9))
        else:
            out = out[: rng.randrange(max(1, len(out)))]
    return bytes(out)


def use(tensors: object) -> None:
    """Reads every byte of what was accepted; sizes must agree with the storages."""
    for w in tensors.values() if isinstance(tensors, dict) else ():
        if isinstance(w, lb.LowBitWeightTensor):
            for inner in (w.packed, w.scales, w.zeros):
                assert inner.numel() * inner.element_size() <= inner.untyped_storage().nbytes()
            assert w.codes().shape == w.dequantize().shape == w.shape


@contextmanager
def no_hang(seconds: int = 2) -> Iterator[None]:
    """Ends the test where one case takes longer: a guard against endless loops, no measure of speed."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize("number", SEEDS)
def test_damaged_files(number: int, seed: int, tmp_path: Path) -> None:
    """Case 127."""
    rng = random.Random(f"{seed} {number}")
    lb.save_file(weights(), tmp_path / "m.safetensors", metadata={"note": "x"})
    data = (tmp_path / "m.safetensors").read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    refused = 0
    for _ in range(CASES):
        (tmp_path / "d.safetensors").write_bytes(damaged(data, header if rng.random() < 0.8 else len(data), rng))
        with no_hang():
            try:
                use(lb.load_file(tmp_path / "d.safetensors"))
            except ValueError as error:
                assert "d.safetensors" in str(error)
                refused += 1
    assert refused > CASES / 2


@pytest.mark.parametrize("number", SEEDS)
def test_damaged_pickles(number: int, seed: int) -> None:
    """Case 130: PyTorch's own reader may raise many things; none of them a crash, and nothing wrong is accepted."""
    rng = random.Random(f"{seed} {number}")
    file = io.BytesIO()
    torch.save(weights(), file)
    data, refused = file.getvalue(), 0
    start = data.find(b"rebuild") - 200
    for _ in range(CASES):
        middle = damaged(data[start : start + 900], 900, rng) if rng.random() < 0.7 else data[start : start + 900]
        with no_hang(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                use(torch.load(io.BytesIO(data[:start] + middle + data[start + 900 :]), weights_only=True))
            except REFUSALS:
                refused += 1
    assert refused > CASES / 4
