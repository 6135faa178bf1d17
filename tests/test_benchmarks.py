"""The benchmark for owners of Macs runs, here on the CPU, and says what it measured and what it could not."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("mps")


@pytest.fixture
def rivals(mps: Any) -> Any:
    return importlib.import_module("mps_rivals")


def run(*args: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(BENCHMARKS / "mps.py"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_quick_run_on_the_cpu(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--quick", "--out", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no GPU is measured") and "torchao not installed" in done.stdout
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["device"], report["quick"], report["bandwidth"], report["distrusted"]) == ("cpu", True, None, [])
    ours = [f for f in report["kernels"] if f["way"] == "ours"]
    cells = {(f["bits"], f["dtype"], f["rows"]) for f in ours}
    assert cells == {(bits, dtype, rows) for bits in range(1, 9) for dtype in ("float16", "bfloat16") for rows in (1, 4, 32)}
    for f in report["kernels"]:
        assert f["microseconds"] > 0 and f["share"] is None
    for f in ours:
        nbytes = f["n"] * (f["k"] * f["bits"] // 8 + 2 * 2 * f["k"] // 64)
        assert f["gigabytes_per_second"] == pytest.approx(nbytes / f["microseconds"] / 1e3)
        assert f["teraflops"] == pytest.approx(2 * f["n"] * f["k"] * f["rows"] / f["microseconds"] / 1e6)
    assert {f["way"] for f in report["kernels"]} >= {"ours", "F.linear", "int4"}
    assert {f["bits"] for f in report["kernels"] if f["way"] == "int4"} == {4}
    assert [m["bits"] for m in report["models"]] == [None, *range(1, 9)]
    sizes = [m["bytes_per_token"] for m in report["models"]]
    assert sizes[1:] == sorted(sizes[1:]) and sizes[0] > sizes[-1] and all(m["tokens_per_second"] > 0 for m in report["models"])
    table = [line for line in done.stdout.splitlines() if line.startswith("| 256 x 512 ")]
    assert len(table) == len(ours) and all(line.count("|") == table[0].count("|") for line in table)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is a GPU")
def test_without_a_gpu(tmp_path: Path) -> None:
    done = run("--out", tmp_path / "out.json")
    assert done.returncode == 1 and not list(tmp_path.iterdir())
    assert done.stderr.startswith("benchmarks/mps.py: expected an Apple GPU, got a machine without one") and done.stderr.count("\n") == 1


def test_bandwidth_of_chips(mps: Any) -> None:
    def of(chip: str, **cores: str) -> float | None:
        return mps.bandwidth({"chip": chip, **cores})

    assert (of("Apple M1"), of("Apple M1 Pro"), of("Apple M1 (Virtual)"), of("Apple M3 Ultra")) == (68.25, 200, 68.25, 819)
    assert (of("Apple M3 Max", gpu_cores="30"), of("Apple M3 Max", gpu_cores="40"), of("Apple M3 Max")) == (300, 400, None)
    assert (of("Apple M4 Max", gpu_cores="32"), of("Apple M4 Max", gpu_cores="40")) == (410, 546)
    assert (of("Apple M9"), of("Intel(R) Core(TM) i7"), mps.bandwidth({})) == (None, None, None)


def test_weights_do_not_come_from_a_cache(rivals: Any) -> None:
    weight = rivals.Weight(64, 128, 3, torch.float16, torch.device("cpu"), memory=2**16)
    way = rivals.ours(weight)
    assert way.nbytes == 64 * (48 + 2 * 2 * 2) and len(way.products) == -(-(2**16) // way.nbytes)
    calls: list[int] = []
    products = [lambda x, i=i: calls.append(i) for i in range(5)]
    timer = importlib.import_module("mps")._timer(rivals.Way(1, products, lambda rows: None, lambda: None), 1, 1e-5)
    assert next(timer) > 0 and next(timer) > 0
    assert calls == [i % 5 for i in range(len(calls))] and len(calls) > 5


@pytest.mark.parametrize("name", ["ours", "F.linear", "int4"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_ways_multiply(name: str, dtype: torch.dtype, rivals: Any) -> None:
    weight = rivals.Weight(64, 256, 4, dtype, torch.device("cpu"), memory=0)
    way = rivals.ours(weight) if name == "ours" else rivals.RIVALS[name](weight)
    y = way.products[1](way.activations(3))
    assert y.shape == (3, 64) and y.dtype == dtype and y.isfinite().all()


def stand_in_for_mlx(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A module with the names of MLX that are used; returns what it was asked for, as (bits, rows)."""
    core, package, asked = types.ModuleType("mlx.core"), types.ModuleType("mlx"), []

    class Array:
        nbytes = 100

        def __init__(self, shape: tuple[int, ...]) -> None:
            self.shape = shape

        def astype(self, dtype: str) -> Array:
            return self

    def quantized_matmul(x: Array, w: Array, scales: Array, biases: Array, *, transpose: bool, group_size: int, bits: int) -> Array:
        assert transpose and group_size == 64
        asked.append((bits, x.shape[0]))
        return Array((x.shape[0], w.shape[0]))

    core.float16, core.bfloat16, core.cpu, core.gpu = "float16", "bfloat16", "cpu", "gpu"
    core.random = types.SimpleNamespace(normal=Array)
    core.quantize = lambda w, group_size, bits: (Array(w.shape), Array(w.shape), Array(w.shape))
    core.quantized_matmul, core.eval, core.set_default_device = quantized_matmul, lambda *arrays: None, lambda device: None
    package.core = core
    monkeypatch.setitem(sys.modules, "mlx", package)
    monkeypatch.setitem(sys.modules, "mlx.core", core)
    return asked


def test_mlx(rivals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in_for_mlx(monkeypatch)
    assert rivals.states(torch.device("cpu"))["MLX"] == "there"
    asked.clear()
    for bits in range(1, 9):
        way = rivals.mlx(rivals.Weight(64, 128, bits, torch.bfloat16, torch.device("cpu"), memory=1000))
        if way is not None:
            assert way.nbytes == 300 and len(way.products) == 4
            way.products[3](way.activations(bits))
            way.finish()
    assert asked == [(bits, bits) for bits in (2, 3, 4, 5, 6, 8)]


def test_torchao(rivals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for its ops, which check what they are given as its own do."""
    from torch.library import Library

    with_packing = Library("torchao", "FRAGMENT")

    def multiply(a: torch.Tensor, b: torch.Tensor, group_size: int, s: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        assert b.dtype == torch.uint8 and s.shape == z.shape == (b.shape[0], a.shape[1] // group_size) and s.is_contiguous()
        return a.new_zeros(a.shape[0], b.shape[0])

    for bits in range(1, 8):
        with_packing.define(f"_pack_weight_{bits}bit(Tensor W) -> Tensor")
        with_packing.define(f"_linear_fp_act_{bits}bit_weight(Tensor A, Tensor B, int group_size, Tensor S, Tensor Z) -> Tensor")
        with_packing.impl(f"_pack_weight_{bits}bit", lambda w, bits=bits: w.new_zeros(w.shape[0], w.shape[1] * bits // 8), "CPU")
        with_packing.impl(f"_linear_fp_act_{bits}bit_weight", multiply, "CPU")
    for name in ("torchao", "torchao.experimental", "torchao.experimental.ops", "torchao.experimental.ops.mps"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    try:
        assert rivals.states(torch.device("cpu"))["torchao"] == "there"
        for bits in range(1, 9):
            way = rivals.torchao(rivals.Weight(64, 128, bits, torch.float16, torch.device("cpu"), memory=0))
            assert (way is None) == (bits == 8)
            assert way is None or way.products[0](way.activations(5)).shape == (5, 64)
    finally:
        with_packing._destroy()


def test_a_rival_that_fails_is_left_out(rivals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(weight: Any) -> Any:
        raise RuntimeError("no such\n  kernel")

    monkeypatch.setitem(rivals.RIVALS, "int4", broken)
    found = rivals.states(torch.device("cpu"))
    assert found["int4"] == "left out, since it fails: no such kernel" and found["F.linear"] == "there"
