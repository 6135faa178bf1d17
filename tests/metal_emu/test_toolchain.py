"""Compilers are found or asked for, and what they make is kept once."""

from __future__ import annotations

import importlib.util
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metal_emu import Library, toolchain
from metal_emu.cases import kernel, numbers


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An empty cache, and compilers looked for anew."""
    memories = (toolchain.clang, toolchain.cxx, toolchain.harness_digest)
    monkeypatch.setenv("LOWBIT_METAL_CACHE", str(tmp_path / "cache"))
    for memory in memories:
        memory.cache_clear()
    yield monkeypatch
    for memory in memories:
        memory.cache_clear()


def test_without_a_clang_the_error_says_what_to_install(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(shutil, "which", lambda name: None)
    fresh.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(toolchain.Missing, match="pip install ziglang"):
        toolchain.clang()
    with pytest.raises(toolchain.Missing, match="apt-get install g"):
        toolchain.cxx()


def test_an_old_clang_is_passed_over(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(shutil, "which", lambda name: f"/bin/{name}")
    fresh.setattr(toolchain, "_version", lambda command: 16 if command == ["/bin/clang"] else 0)
    fresh.setattr(toolchain, "_ziglang", lambda: "/wheel/zig")
    assert toolchain.clang() == ["/wheel/zig", "clang"]


def test_a_library_is_compiled_once(fresh: pytest.MonkeyPatch) -> None:
    toolchain.runtime.cache_clear()
    source = kernel("x[i] = 7;")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(Library, [source, source])
    assert first.path == second.path
    fresh.setattr(toolchain, "compile_library", lambda *a: pytest.fail("compiled again"))
    assert Library(source).path == first.path
    assert sorted(p.suffix for p in toolchain.cache_folder().iterdir()) == [".so", ".so"]
    toolchain.runtime.cache_clear()
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        Library(source + "\n")


def test_what_fails_leaves_nothing_behind(fresh: pytest.MonkeyPatch) -> None:
    with pytest.raises(SyntaxError):
        Library(kernel("x[i] = y;"))
    assert not [p for p in toolchain.cache_folder().iterdir() if p.name.startswith("kernels")]


def test_a_library_can_be_launched_on_addresses() -> None:
    x = numbers()
    Library(kernel("x[i] += 1;")).launch("k", {0: (x.data_ptr(), 256)}, (64, 1, 1), (64, 1, 1), order="reverse")
    assert x.tolist() == list(range(1, 65))


COMPILERS = {"system": "_system_clang", "wheel": "_ziglang"}


@pytest.mark.parametrize("name", [name for name, find in COMPILERS.items() if getattr(toolchain, find)()])
def test_every_compiler_that_is_there_serves(fresh: pytest.MonkeyPatch, name: str) -> None:
    for other in set(COMPILERS.values()) - {COMPILERS[name]}:
        fresh.setattr(toolchain, other, lambda: None)
    x = numbers()
    Library(kernel("x[i] = simd_sum(x[i]);")).launch("k", {0: (x.data_ptr(), 256)}, (64, 1, 1), (64, 1, 1))
    assert x[0] == 496
