"""Faults planted in our own shaders and launches: each is caught, by the checker's words or by a wrong result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import metal_emu
import pytest
import torch
from samples import random_weight

from lowbit_tensor.metal import geometry, kernels, launch, library, selftest

pytestmark = [pytest.mark.harness, pytest.mark.filterwarnings("ignore::UserWarning")]
LINEAR_ONE, LINEAR_MANY = ("linear", torch.float32, 5, 1), ("linear", torch.float16, 4, 40)
EXPERTS, DECODE, ENCODE = ("grouped_linear", torch.float32, 4, 40), ("dequantize", torch.float32, 5, 40), ("encode", torch.float32, 3, 40)

# what: (text, its replacement, the case of the self-test that runs it, what is said; None where the result is wrong)
FAULTS: dict[str, tuple[str, str, selftest.Key, str | None]] = {
    "the barrier before multiplying is gone": (
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    multiply_tile",
        "    multiply_tile",
        LINEAR_MANY,
        "race",
    ),
    "the barrier after multiplying is gone": (
        "quarter);\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n  }",
        "quarter);\n  }",
        LINEAR_MANY,
        "race",
    ),
    "a barrier orders device memory only": (
        "store_quarter(quarter, simd_index, outputs);\n  threadgroup_barrier(mem_flags::mem_threadgroup)",
        "store_quarter(quarter, simd_index, outputs);\n  threadgroup_barrier(mem_flags::mem_device)",
        LINEAR_MANY,
        "race",
    ),
    "the guard of the last outputs is gone": ("min(r, N - 1 - n0)", "r", LINEAR_ONE, "out-of-bounds"),
    "the guard of what is written is gone": ("if (row0 + r >= last) return;", "", LINEAR_MANY, "race|out-of-bounds"),
    "one row too many is decoded": ("row < rows && column < K", "row <= rows && column < K", LINEAR_MANY, "out-of-bounds"),
    "a row off by one": (
        "places[r] = row * groups;",
        "places[r] = (row + 1) * groups;",
        LINEAR_ONE,
        "out-of-bounds",
    ),
    "wide loads of a last run that is short": ("if (bytes < BITS)", "if (false)", ("unpack", torch.float32, 5, 40), "out-of-bounds"),
    "codes that lie in the next word": ("BITS > 4 ? high << (32 - 4 * BITS % 32) : 0", "0", DECODE, None),
    "scale and zero swapped": ("to[j] = T(fma(scale, codes[j], zero))", "to[j] = T(fma(zero, codes[j], scale))", DECODE, None),
    "the group of the run before": ("group_of(run * RUN, group_size", "group_of(run * RUN - 1, group_size", DECODE, "out-of-bounds"),
    "sums in half": (
        "dot = fma(codes[j], values[m * RUN + j], dot)",
        "dot = float(half(fma(codes[j], values[m * RUN + j], dot)))",
        LINEAR_ONE,
        None,
    ),
    "a lane keeps its sum": ("simd_sum(sums[m * OUT + r])", "sums[m * OUT + r]", LINEAR_ONE, None),
    "a sum that not all lanes take part in": (
        "const float total = simd_sum",
        "if (lane > 15) return;\n      const float total = simd_sum",
        LINEAR_ONE,
        "simd",
    ),
    "two threads write one byte": (
        "for (int i = 0; i < bytes; i++) run[i]",
        "for (int i = 0; i <= bytes; i++) run[i]",
        ENCODE,
        "race|out-of-bounds",
    ),
    "the expert's offset is forgotten": (
        "device const uchar* codes = packed + rows_before * row_bytes(K, BITS);",
        "device const uchar* codes = packed;",
        EXPERTS,
        None,
    ),
    "wide loads where runs are not aligned": ("align == 4", "true", ("linear", torch.float32, 4, 1), "misaligned"),
    "threadgroup memory that nothing wrote": ("  store_quarter(quarter, simd_index, outputs);\n", "", LINEAR_MANY, "uninitiali[sz]ed"),
}


def outcome(key: selftest.Key, device: torch.device) -> tuple[bool, str]:
    try:
        return selftest.compare(key, device)
    except metal_emu.ShaderError as error:  # pragma: no cover  (a RuntimeError, which `compare` tells)
        return False, str(error)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_in_the_shaders(name: str, kernels: Callable[..., None], device: torch.device) -> None:
    text, other, key, said = FAULTS[name]
    found = []

    def edit(source: str) -> str:
        found.append(text in source)
        return source.replace(text, other)

    assert outcome(key, device)[0], "right without the fault"
    kernels(edit)
    right, message = outcome(key, device)
    assert all(found) and not right
    if said is None:
        assert "differs by" in message
    else:
        import re

        assert re.search(said, message, re.I), message


def swapped(name: str, arguments: tuple[Any, ...], *values: Any, threads: tuple[int, ...]) -> None:
    values = (values[0], values[1], values[3], values[2], *values[4:])
    call(name, arguments, *values, threads=threads)


def short_grid(name: str, arguments: tuple[Any, ...], *values: Any, threads: tuple[int, ...]) -> None:
    call(name, arguments, *values, threads=(max(threads[0] - geometry.TILE * 2, 32), *threads[1:]))


def one_less(name: str, arguments: tuple[Any, ...], *values: Any, threads: tuple[int, ...]) -> None:
    call(name, arguments, *values[:-1], threads=threads)


def other_type(name: str, arguments: tuple[Any, ...], *values: Any, threads: tuple[int, ...]) -> None:
    call(name, ("half", *arguments[1:]), *values, threads=threads)


call = launch._call
LAUNCHES = {
    "arguments swapped": swapped,
    "a grid too small": short_grid,
    "an argument forgotten": one_less,
    "a kernel of another type": other_type,
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_faults_in_the_launches(name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_call", LAUNCHES[name])
    try:
        right = outcome(LINEAR_ONE, device)[0]
    except (TypeError, ValueError):
        right = False
    assert not right


def test_a_missing_instantiation(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does, the harness names the kernel that is not there."""
    source_of = kernels.source_of
    monkeypatch.setattr(library, "source_of", lambda name: source_of("pack_3"))
    with pytest.raises(RuntimeError, match="pack_4"):
        launch.pack(torch.zeros(2, 8, dtype=torch.uint8), 4)


def test_a_failing_kernel_gives_way_to_the_reference(kernels: Callable[..., None], device: torch.device) -> None:
    """Said once, with the numbers; results stay right."""
    from lowbit_tensor.metal import OPS

    kernels(lambda source: source.replace("fma(scale, dot, fma(zero", "fma(zero, dot, fma(zero"))
    weight, x = random_weight((9, 72), 4, 16, device=device), torch.randn(1, 72, device=device)
    with pytest.warns(UserWarning, match=r"linear of 4 bits, float32, 1 rows differs by [\d.e+-]+ from the reference"):
        y = OPS["linear"](x, *weight.parts, None, *weight.layout)
    torch.testing.assert_close(y.cpu().double(), x.cpu().double() @ weight.exact().T, rtol=1e-5, atol=1e-5)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OPS["linear"](x, *weight.parts, None, *weight.layout)
