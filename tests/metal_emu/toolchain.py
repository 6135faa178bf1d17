"""Finds the compilers, builds the runtime and the kernel libraries, and keeps both in a cache by the hash of all that goes in."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
RUNTIME = sorted((HERE / "runtime").glob("*.cpp"))
OLDEST_CLANG, NEWEST_CLANG = 17, 22
INSTALL = "the Metal harness needs clang 17 or newer: `pip install ziglang`, or a system one (`apt-get install clang-19`)"

LANGUAGE = ["-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc"]
MACHINE = ["-march=x86-64-v3"] if platform.machine() in ("x86_64", "AMD64") else []
FLAGS = [
    *LANGUAGE,
    *MACHINE,
    *("-g1", "-gdwarf-4", "-fPIC"),
    "-fno-optimize-sibling-calls",  # the runtime tells the line by its return address
    # As a GPU computes: no contraction of a * b + c, no wider bfloat, no double, and garbage in what is not initialised.
    *("-ffp-contract=off", "-fno-strict-aliasing", "-ftrivial-auto-var-init=pattern"),
    *("-Xclang", "-fbfloat16-excess-precision=none", "-Xclang", "-cl-ext=+all,-cl_khr_fp64,-__opencl_c_fp64"),
    *("-Werror=uninitialized", "-Werror=sometimes-uninitialized", "-Werror=return-type"),
    *("-Wimplicit-float-conversion", "-Wimplicit-int-float-conversion", "-Wpre-c++17-compat"),
    *("-Wno-unknown-pragmas", "-Wno-unused-value", "-Wno-gcc-compat", "-Wno-psabi", "-fno-color-diagnostics", "-ferror-limit=30"),
]
# What a GPU would do silently. (Shifts are modulo the width, as in OpenCL.)
UNDEFINED = ("array-bounds", "alignment", "integer-divide-by-zero")
CHECK = [
    *("-O1", "-fno-vectorize", "-fno-slp-vectorize", "-fsanitize=thread"),
    *("-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-read-before-write=1"),
    *(f for what in UNDEFINED for f in ("-Xclang", f"-fsanitize={what}", "-Xclang", f"-fsanitize-recover={what}")),
    *("-Xclang", "-fsanitize-minimal-runtime"),
]


class Missing(RuntimeError):
    """A compiler is not there; the message says what to install."""


def run(command: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, errors="replace")


def _version(command: list[str]) -> int:
    found = re.search(r"clang version (\d+)", run([*command, "--version"]).stdout)
    return int(found[1]) if found else 0


def _ziglang() -> str | None:
    spec = importlib.util.find_spec("ziglang")
    return str(Path(spec.origin).parent / "zig") if spec and spec.origin else None


def _system_clang() -> str | None:
    for name in (*(f"clang-{v}" for v in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)), "clang"):
        if (path := shutil.which(name)) and _version([path]) >= OLDEST_CLANG:
            return path
    return None


@cache
def clang() -> list[str]:
    """The command of a clang new enough: of the system, else of the wheel ziglang."""
    if path := _system_clang():
        return [path]
    if zig := _ziglang():
        return [zig, "clang"]
    raise Missing(INSTALL)


@cache
def cxx() -> list[str]:
    """The command of a host C++17 compiler, which also links."""
    for name in ("g++", "c++", "clang++"):
        if path := shutil.which(name):
            return [path]
    if zig := _ziglang():
        return [zig, "c++", "-target", f"{platform.machine()}-linux-gnu"]  # what Python itself links to, not zig's own choice
    raise Missing("the Metal harness needs a C++ compiler: `apt-get install g++`, or `pip install ziglang`")


def cache_folder() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lowbit-metal"
    folder = Path(os.environ.get("LOWBIT_METAL_CACHE") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The file of that name in the cache, else built under another name first: several processes may do so at once."""
    target = cache_folder() / name
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            build(Path(folder) / name)
            os.replace(Path(folder) / name, target)
    return target


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:20]


@cache
def harness_digest() -> str:
    """Changes when the harness or a compiler does."""
    code = [p for p in HERE.glob("*.py") if p.name != "cases.py" and not p.name.startswith("test_")]
    files = sorted([*code, *(p for p in INCLUDE.rglob("*") if p.is_file()), *(HERE / "runtime").iterdir()])
    return digest(*(p.read_text() for p in files), run([*clang(), "--version"]).stdout, cxx(), FLAGS, CHECK)


@cache
def runtime() -> Path:
    """The shared library of the simulated GPU."""
    parts = [p.read_text() for p in sorted((HERE / "runtime").iterdir())]
    command = [*cxx(), "-O2", "-g", "-std=c++17", "-ffp-contract=off", "-fPIC", "-shared", "-pthread"]

    def build(target: Path) -> None:
        done = run([*command, *map(str, RUNTIME), f"-Wl,-soname,{target.name}", "-o", str(target)])
        if done.returncode:
            raise RuntimeError(f"the Metal harness's runtime does not compile:\n{done.stderr}")

    return cached(f"runtime-{digest(command, *parts)}.so", build)


def preprocess(source: str, metal_version: int) -> str:
    """The text with macros and includes expanded; only Metal's own headers are there. SyntaxError if that fails."""
    defines = [f"-D__METAL_VERSION__={metal_version}", "-D__METAL__=1", "-D__METAL_MACOS__=1", "-D__HAVE_BFLOAT__=1"]
    done = run([*clang(), "-E", *LANGUAGE, "-nostdinc", *defines, f"-I{INCLUDE}", "-"], f'#line 1 "program_source"\n{source}')
    if done.returncode:
        raise SyntaxError(done.stderr)
    return done.stdout


def _flags(check: bool, more: list[str]) -> list[str]:
    return [*FLAGS, *(CHECK if check else ["-O2"]), *more, "-isystem", str(INCLUDE)]


def compile_library(code: str, check: bool, target: Path, more: list[str]) -> str:
    """Compiles rewritten text, with more flags, into a shared library; returns the warnings. SyntaxError if it fails."""
    written, compiled = target.with_suffix(".clcpp"), target.with_suffix(".o")
    written.write_text(code)
    done = run([*clang(), *_flags(check, more), "-c", str(written), "-o", str(compiled)])
    if done.returncode:
        raise SyntaxError(done.stderr)
    link = [*cxx(), "-shared", "-o", str(target), str(compiled), str(runtime()), "-Wl,-rpath,$ORIGIN", "-lm"]
    linked = run(link)
    if linked.returncode:
        raise SyntaxError(linked.stderr)
    return done.stderr


def intermediate_code(code: str, check: bool, more: list[str]) -> str:
    """LLVM's text of what compile_library compiles."""
    return run([*clang(), *_flags(check, more), "-S", "-emit-llvm", "-o", "-", "-"], code).stdout


def syntax_tree(code: str) -> tuple[str, str]:
    """(clang's syntax tree of rewritten text, its warnings)"""
    done = run([*clang(), *FLAGS, "-isystem", str(INCLUDE), "-fsyntax-only", "-Xclang", "-ast-dump", "-"], code)
    return done.stdout, done.stderr
