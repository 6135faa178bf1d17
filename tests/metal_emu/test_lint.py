"""The rules for our kernels: each breach is told with its line."""

from __future__ import annotations

import re

import pytest
import torch

from metal_emu import compile_shader
from metal_emu.cases import kernel, line_of, numbers, read

BREACHES = read("breaches")
LIMIT = "[[max_total_threads_per_threadgroup(64)]]"


def limited(source: str) -> str:
    return source.replace("\nkernel void", f"\n{LIMIT} kernel void")


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_told(name: str) -> None:
    case = BREACHES[name]
    messages = compile_shader(limited(case.source), check=False).lint()
    assert len(messages) == 1 and re.search(case.expect, messages[0]), messages
    assert messages[0].startswith(f"{case.place}: ")


def test_breaches_of_metal_4() -> None:
    source = limited(kernel("if constexpr (true) x[i] = 1;\nauto f = [](float a) { return a; };\nx[i] = f(x[i]);"))
    messages = compile_shader(source, check=False, metal_version=400).lint()
    assert ["C++17" in messages[0], "a lambda" in messages[1]] == [True, True] and len(messages) == 2


def test_the_declared_maximum_is_what_is_launched() -> None:
    source = kernel("x[i] = 1;")
    assert "does not declare max_total_threads_per_threadgroup" in compile_shader(source).lint()[0]
    lib = compile_shader(limited(source))
    lib.k(numbers(), threads=64, group_size=64)
    assert lib.lint() == []
    lib.k(torch.zeros(64), threads=64, group_size=32)
    assert lib.lint() == [f"{line_of(source, 'kernel void')}: 'k' declares threadgroups of 64 threads and is launched with 32"]
