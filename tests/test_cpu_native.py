"""The CPU kernels in a plain C++ program: every buffer against a guard page, under sanitizers, and for aarch64 under an emulator."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lowbit_tensor.cpu import library

HERE = Path(__file__).resolve().parent
SOURCES = [*sorted((HERE.parent / "lowbit_tensor/cpu/csrc").glob("*.cpp")), *sorted((HERE / "cpu_native").glob("*.cpp"))]
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]
SANITIZERS = ["-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
AARCH64 = ("aarch64-linux-gnu-g++", "qemu-aarch64")
INSTALL = "apt-get install -y g++-aarch64-linux-gnu qemu-user"


def compiler() -> list[str]:
    """The compiler that builds the package."""
    return shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")


def run(*command: str | Path, fails: bool = False) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if (done.returncode != 0) != fails:
        pytest.fail(f"{shlex.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return done.stdout + done.stderr


def build(folder: Path, command: list[str], *flags: str) -> Path:
    """The program of tests/cpu_native over the package's own sources."""

    def compiled(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        run(*command, "-std=c++17", "-Wno-psabi", *OPENMP, *flags, "-c", source, "-o", target)
        return target

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        objects = list(pool.map(compiled, sorted(SOURCES, key=lambda path: -path.stat().st_size)))
    run(*command, *OPENMP, *flags, *objects, "-o", folder / "test_kernels")
    return folder / "test_kernels"


def sets(output: str) -> list[str]:
    """The instruction sets that a run went through."""
    lines = [line.split(": ") for line in output.splitlines() if line.endswith(" cases")]
    assert all(int(count.split()[0]) > 1000 for _, count in lines), output
    return [name for name, _ in lines]


def test_under_sanitizers(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Address and undefined-behaviour sanitizers, and that the program finds what it is there to find."""
    full = request.config.getoption("--full")
    program = build(tmp_path, compiler(), "-O1" if full else "-O0", *SANITIZERS)  # -O0 compiles in a third of the time
    assert sets(run(program, *(["--full"] if full else []))) == [name for name, usable in library.sets().items() if usable]
    for fault, message in {"past": "touched a guard page", "before": "touched a guard page", "value": "expected"}.items():
        assert message in run(program, "--plant", fault, fails=True)


@pytest.mark.full
def test_as_the_package_is_built(tmp_path: Path) -> None:
    assert "scalar" in sets(run(build(tmp_path, compiler(), "-O3"), "--full"))


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "darwin", reason="the emulator runs programs of Linux; a Mac of today runs NEON itself")
def test_aarch64_under_an_emulator(tmp_path: Path) -> None:
    """NEON and plain C++."""
    missing = [tool for tool in AARCH64 if shutil.which(tool) is None]
    assert not missing, f"{' and '.join(missing)} not found: {INSTALL}"
    program = build(tmp_path, ["aarch64-linux-gnu-g++"], "-O3", "-static")
    assert sets(run("qemu-aarch64", program, "--full")) == ["neon", "scalar"]
