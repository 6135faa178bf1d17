"""`lowbit selftest`, with the Metal harness as its GPU: what it finds, says and writes."""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lowbit_tensor as lb
from lowbit_tensor.cli import main, selftest
from lowbit_tensor.metal import chip, library
from lowbit_tensor.metal import selftest as kernels

CPU = torch.device("cpu")
KEYS = [("linear", torch.float16, 4, 1), ("dequantize", torch.bfloat16, 3, 40), ("pack", torch.float32, 5, 40)]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are compiled for the CPU, whose tensors stand for the GPU's."""
    if sys.platform == "darwin":
        pytest.skip("the harness is for Linux; here the GPU itself is there")
    from metal_emu import compile_shader

    library.clear()
    monkeypatch.setattr(library, "compile_shader", compile_shader)
    yield
    library.clear()


@pytest.mark.usefixtures("harness")
def test_right_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    selftest.run(tmp_path / "report.json", CPU, KEYS)
    out = capsys.readouterr().out
    assert out.startswith(f"lowbit {lb.__version__} on cpu: ") and torch.__version__ in out
    assert re.search(r"^linear +1 +0$", out, re.M) and out.endswith("all 3 kernels give the reference's results\n")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["lowbit_tensor"], report["device"], report["right"], report["wrong"]) == (lb.__version__, "cpu", 3, 0)
    assert report["machine"].items() >= kernels.machine().items()
    assert datetime.datetime.fromisoformat(report["date"]).tzinfo is not None
    assert [(k["op"], k["dtype"], k["bits"], k["rows"]) for k in report["kernels"]] == [
        (op, str(dtype).removeprefix("torch."), bits, rows) for op, dtype, bits, rows in KEYS
    ]
    assert report["kernels"][0]["right"] and report["kernels"][0]["text"] == "linear of 4 bits, float16, 1 rows is right"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.usefixtures("harness")
def test_wrong_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One that gives other numbers, one that does not compile, one that wants more threads than there are: all told, the others go on."""
    compile_shader = library.compile_shader

    def planted(source: str) -> object:
        if 'host_name("pack_5")' in source:
            raise SyntaxError("program_source:7:1: error: planted\n  fault")
        return compile_shader(source)

    def greedy(*args: object) -> None:
        raise ValueError("threadgroup size 64 exceeds 32 limit")

    monkeypatch.setattr(library, "compile_shader", planted)
    _, reference, sample = kernels.CASES["dequantize"]
    monkeypatch.setitem(kernels.CASES, "dequantize", (lambda *args: reference(*args) + 1, reference, sample))
    monkeypatch.setitem(kernels.CASES, "unpack", (greedy, *kernels.CASES["unpack"][1:]))
    with pytest.raises(selftest.WrongKernels, match="got 3 of 4 that do not"):
        selftest.run(tmp_path / "report.json", CPU, [*KEYS, ("unpack", torch.float32, 2, 40)])
    out = capsys.readouterr().out
    assert re.search(r"^pack +5 +float32 +40 +pack of 5 bits, float32, 40 rows does not run: .*error: planted fault$", out, re.M)
    assert re.search(r"^dequantize +3 +bfloat16 +40 +.* differs by 1 from the reference, whose largest value is ", out, re.M)
    assert re.search(r"^unpack +2 +float32 +40 +.* exceeds 32 limit$", out, re.M)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [k["right"] for k in report["kernels"]] == [True, False, False, False] and report["wrong"] == 3


def status_of(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    """(exit status, the one line on standard error)"""
    capsys.readouterr()
    status = main(["selftest", *map(str, args)])
    err = capsys.readouterr().err
    assert err.startswith("lowbit: ") and err.count("\n") == 1
    return status, err


def test_wrong_kernels_are_exit_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(selftest, "gpu", lambda: CPU)
    monkeypatch.setattr(kernels, "keys", lambda: iter(KEYS))
    monkeypatch.setattr(kernels, "compare", lambda key, device: (key[0] != "linear", f"{key[0]} on {device}"))
    status, line = status_of(capsys)
    assert status == 1 and "got 1 of 3 that do not" in line


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    status, line = status_of(capsys, "--report", tmp_path / "report.json")
    assert status == 1 and "expected an Apple GPU, got a machine without one" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="the GPU works")
def test_a_gpu_that_can_not_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As in virtual machines: PyTorch says that there is one and fails to allocate on it."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    status, line = status_of(capsys, "--report", tmp_path / "report.json")
    assert status == 1 and "got one that PyTorch cannot use" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["missing/report.json", ""], ids=["no-folder", "a-folder"])
def test_report_that_can_not_be_written(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Told before anything is compared."""
    status, line = status_of(capsys, "--report", tmp_path / target)
    assert status == 2 and str(tmp_path / target) in line


def test_interrupted_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(key: object, device: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "report.json").write_text("earlier")
    monkeypatch.setattr(kernels, "compare", interrupt)
    with pytest.raises(KeyboardInterrupt):
        selftest.run(tmp_path / "report.json", CPU, KEYS)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"report.json": "earlier"}


TOOLS = {
    "sysctl": '[ "$*" = "-n machdep.cpu.brand_string" ] && echo "Apple M3 Max"',
    "system_profiler": 'echo \'{"SPDisplaysDataType": [{"_name": "a display"}, {"sppci_model": "Apple M3 Max", "sppci_cores": "40"}]}\'',
}


@pytest.mark.parametrize(
    "tools, expected",
    [
        (TOOLS, {"chip": "Apple M3 Max", "gpu_cores": "40"}),
        ({}, {}),
        ({"sysctl": "echo unknown key >&2; exit 1", "system_profiler": "echo no JSON"}, {}),
        ({"sysctl": TOOLS["sysctl"], "system_profiler": "exec sleep 60"}, {"chip": "Apple M3 Max"}),
    ],
    ids=["a-mac", "no-tools", "tools-that-fail", "a-tool-that-hangs"],
)
def test_chip(tools: dict[str, str], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(chip, "SECONDS", 1)
    monkeypatch.setattr(chip.shutil, "which", lambda tool: str(tmp_path / tool) if (tmp_path / tool).exists() else None)
    assert chip.chip() == expected


def test_distrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first uses of this process found wrong, for reports of speed."""
    monkeypatch.setattr(kernels, "_OUTCOMES", {})
    monkeypatch.setattr(kernels, "compare", lambda key, device: (key[2] == 4, f"{key[0]} of {key[2]} bits"))
    assert kernels.trusted("linear", torch.float16, 4, 1, CPU)
    with pytest.warns(UserWarning, match="the plain reference serves in its place"):
        assert not kernels.trusted("linear", torch.float16, 3, 1, CPU)
    assert kernels.distrusted() == ["linear of 3 bits"]
