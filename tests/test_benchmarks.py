"""The benchmarks of kernels run, that for owners of Macs on the CPU too, and say what they measured and what they could not."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import time
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


def run(*args: object, script: str = "mps.py") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(BENCHMARKS / script), *map(str, args)]
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


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("cpu")


def test_quick_run_for_cpus(cpu: Any, tmp_path: Path) -> None:
    done = run("--quick", "--out", tmp_path / "out.json", script="cpu.py")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["quick"] and report["failed"] == {} and report["sections"] == list(cpu.ROWS)
    for name, peer in cpu.PEERS.items():
        state = report["peers"][name]
        assert state == "there" or state.endswith(f"pip install {peer.pip}") or state.startswith("left out"), state
        assert f"- {name}: {state}" in done.stdout
    assert report["peers"]["PyTorch int4 op"] == report["peers"]["PyTorch int8 op"] == "there"
    figures = report["figures"]
    ours = {(f["bits"], f["dtype"], f["rows"]): f for f in figures if f["way"] == "ours"}
    assert set(ours) == {(bits, dtype, rows) for bits in range(1, 9) for dtype in ("float32", "bfloat16") for rows in (1, 4, 8, 128)}
    for (bits, dtype, _), f in ours.items():
        assert f["error"] < (1e-5 if dtype == "float32" else 4e-3) and f["ours"] == 1 and f["threads"] == 1
        nbytes = f["n"] * (f["k"] * bits // 8 + 2 * 2 * f["k"] // 128)
        assert f["gigabytes_per_second"] == pytest.approx(nbytes / f["microseconds"] / 1e3)
    for f in figures:
        assert f["microseconds"] > 0 and f["share"] > 0 and f["dense"] > 0 and f["error"] < 2e-2
        assert f["way"] not in cpu.PEERS or f["ours"] == pytest.approx(
            f["microseconds"] / ours[f["bits"], f["dtype"], f["rows"]]["microseconds"]
        )
    assert sum(f["way"] == "dense" and f["bits"] == 0 for f in figures) == 2 * 4
    tables = done.stdout.split("\n### ")[1:]
    assert [table.split()[0] for table in tables] == ["What", "One", "One", "4", "128", "Each"]
    for table in tables:
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len(lines) > 2 and all(line.count("|") == lines[0].count("|") for line in lines)


def test_one_section_for_cpus(tmp_path: Path) -> None:
    done = run("--quick", "--only", "few", "--out", tmp_path / "out.json", script="cpu.py")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert {f["rows"] for f in report["figures"] if f["way"] == "ours"} == {1, 4, 8} and report["peers"] == {}
    assert done.stdout.count("### ") == 1 and [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_medians_of_cpu_ways(cpu: Any) -> None:
    """Every copy is used before one is used again; a slow way has fewer rounds."""
    plan = dataclasses.replace(cpu.QUICK, rounds=5, seconds=1e-5, budget=0.02)
    calls: list[int] = []
    ways = {
        "swift": (cpu.Way(1, [lambda x, i=i: calls.append(i) for i in range(5)]), None),
        "slow": (cpu.Way(1, [lambda x: time.sleep(0.01)] * 2), None),
    }
    found = cpu.medians(ways, plan)
    assert 0 < found["swift"] < 0.005 and found["slow"] >= 0.01
    assert calls[:6] == [0, 0, 1, 2, 3, 4] and calls[6:] == [i % 5 for i in range(len(calls) - 6)]


def test_copies_for_cpus(cpu: Any) -> None:
    case = cpu.Case(64, 128, 3, 64, torch.float32, 1, memory=2**16)
    way = cpu.ours(case)
    assert way.nbytes == 64 * (48 + 2 * 2 * 2) and len(way.products) == -(-(2**16) // way.nbytes)
    x = torch.randn(3, 128)
    for product in way.products[:2]:
        torch.testing.assert_close(product(x), x @ case.dense().t(), rtol=1e-4, atol=1e-4)


def test_peers_for_cpus(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = importlib.import_module("cpu_peers")
    listed = (BENCHMARKS / "requirements-peers.txt").read_text()
    for peer in cpu.PEERS.values():
        assert all(name in listed for name in peer.pip.split()) and (peer.pip or peer.module == "torch")

    def broken(case: Any) -> Any:
        raise RuntimeError("no such\n  kernel")

    monkeypatch.setitem(cpu.PEERS, "PyTorch int8 op", peers.Peer(broken, (8,), (torch.float32,)))
    monkeypatch.setitem(cpu.PEERS, "other", peers.Peer(broken, (8,), (torch.float32,), module="no_such_package", pip="such"))
    found = cpu.states()
    assert found["PyTorch int8 op"] == "left out, since it fails: RuntimeError: no such kernel"
    assert found["other"] == "not installed (No module named 'no_such_package'): pip install such"


def test_bytes_of_codes(cpu: Any) -> None:
    peers, codes = importlib.import_module("cpu_peers"), torch.randint(0, 4, (3, 8), dtype=torch.uint8)
    packed = torch.from_numpy(peers._bytes_of(codes.numpy(), 2))
    assert torch.equal(torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], -1).flatten(1), codes)
    assert peers._bytes_of(codes.numpy()[:, :5], 2).shape == (3, 2)
