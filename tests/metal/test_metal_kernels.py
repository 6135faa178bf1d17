"""The list of kernels: every one compiles for every version of the language, keeps our rules, and is launched by an op."""

from __future__ import annotations

import re
from itertools import groupby

import metal_emu
import pytest
import torch

from lowbit_tensor.metal import geometry, kernels, launch, library, selftest

VERSIONS = (310, 320, 400)
NAMES = kernels.instances()
FEW = {kernel: [n for n in NAMES if kernels.kernel_of(n) == kernel] for kernel in kernels.KERNELS}
DEFAULT = {names[len(names) // 2] for names in FEW.values()}


def batches() -> list[object]:
    """Names to compile together: all of one kernel and type in the full run, one of each kernel otherwise."""
    found = [pytest.param([name], 310, id=f"{name}-310") for name in sorted(DEFAULT)]
    key = lambda name: (kernels.kernel_of(name), name.split("_")[len(kernels.kernel_of(name).split("_"))])  # noqa: E731
    for (kernel, first), names in groupby(sorted(NAMES, key=key), key=key):
        some = list(names)
        found += [pytest.param(some, v, id=f"{kernel}-{first}-{v}", marks=pytest.mark.full) for v in VERSIONS]
    return found


@pytest.mark.harness
@pytest.mark.parametrize(("names", "version"), batches())
def test_every_instantiation_compiles_and_keeps_the_rules(names: list[str], version: int) -> None:
    compiled = metal_emu.compile_shader(kernels.source_of(*names), check=False, metal_version=version)
    assert set(dir(compiled)) == set(names)
    assert compiled.lint() == []


def test_names_are_those_that_can_be_made() -> None:
    assert len(NAMES) == len(set(NAMES)) == 3 * 8 * 4 + 3 * 8 * 4 + 3 + 3 * 8 * 2 + 8 + 8 + 3 * 8 + 8
    for wrong in (("rows", "float", 9, 1), ("rows", "double", 4, 1), ("rows", "float", 4), ("pack", 0)):
        with pytest.raises(ValueError, match="expected template arguments"):
            kernels.name_of(*wrong)
    with pytest.raises(ValueError, match="kernels of one file"):
        kernels.source_of("pack_4", "rows_half_4_1")


def test_shaders_are_ascii_and_concatenated() -> None:
    """torch inlines its own headers only, and takes ASCII only."""
    for path in kernels.SHADERS.glob("*.metal"):
        text = path.read_bytes()
        assert text.isascii() and all(len(line) <= 150 for line in text.splitlines()), path.name
        assert b'#include "' not in text and (b"#include" in text) == (path.stem == "codec")
    assert {k.file for k in kernels.KERNELS.values()} | {"codec"} == {path.stem for path in kernels.SHADERS.glob("*.metal")}


def test_constants_of_both_languages_agree() -> None:
    text = "".join(path.read_text() for path in kernels.SHADERS.glob("*.metal"))
    constants = {name: int(value) for name, value in re.findall(r"constant constexpr int (\w+) = (-?\d+);", text)}
    assert (constants["OUT"], constants["SIMDS"], constants["TILE"]) == (geometry.OUT, geometry.SIMDS, geometry.TILE)
    assert {constants["KIND_NONE"], constants["KIND_HALF"], constants["KIND_BFLOAT"]} == {
        -1,
        launch.KINDS[torch.float16],
        launch.KINDS[torch.bfloat16],
    }
    assert constants["THREADS"] == kernels.KERNELS["tiles"].threads == constants["TILE"] ** 2 // constants["RUN"]
    for name, kernel in kernels.KERNELS.items():
        declared = re.search(rf"max_total_threads_per_threadgroup\((\d+)\)\]\] void {name}\(", text)
        assert declared and int(declared[1]) == kernel.threads, name


KEYS = list(selftest.keys())
FULL = pytest.mark.full


@pytest.mark.parametrize(
    "key", [pytest.param(k, id="-".join(map(str, k)).replace("torch.", ""), marks=() if i % 9 == 0 else FULL) for i, k in enumerate(KEYS)]
)
def test_every_kernel_is_launched_and_right(key: selftest.Key, device: torch.device) -> None:
    """What a Mac's self-test runs; together the keys launch every instantiation that an op can ask for."""
    right, text = selftest.compare(key, device)
    assert right, text


@pytest.mark.full
def test_the_keys_of_the_self_test_reach_every_instantiation(device: torch.device) -> None:
    if device.type != "cpu":
        for key in KEYS:
            selftest.compare(key, device)
        return
    metal_emu.log.clear()
    for key in KEYS:
        assert selftest.compare(key, device)[0]
    from test_metal_products import check_linear, random_weight

    for dtype in kernels.TYPES:  # split sums come with deep layers only
        check_linear(torch.randn(17, 1096).to(dtype), random_weight((8, 1096), 4, 64))
    assert {name for name, _, _ in metal_emu.log} == set(NAMES)


def test_a_kernel_is_compiled_once(device: torch.device) -> None:
    first = library.kernel("pack_4")
    assert library.kernel("pack_4") is first
    library.clear()
    assert library.kernel("pack_4") is not first


@pytest.mark.parametrize(("rows", "at_once"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 8), (16, 8)])
def test_rows_a_pass(rows: int, at_once: int) -> None:
    assert geometry.pass_of(rows) == at_once


@pytest.mark.parametrize(
    ("tiles", "depth", "splits"),
    [(1, 256, 1), (1, 1023, 1), (1, 1024, 2), (1, 4096, 8), (1, 65536, 8), (64, 4096, 2), (127, 4096, 2), (128, 4096, 1)],
)
def test_where_sums_are_split(tiles: int, depth: int, splits: int) -> None:
    assert geometry.splits_of(tiles, depth) == splits
