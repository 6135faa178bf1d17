"""Kernels with one fault each: CHECK mode reports what it is, and the line."""

from __future__ import annotations

import pytest
import torch

from metal_emu import ShaderError, compile_shader
from metal_emu.cases import kernel, line_of, numbers, read

FAULTS = read("faults")
Y = "device float* x [[buffer(0)]], device const float* y [[buffer(1)]]"


def launch(source: str, threads: int, order: str = "forward") -> None:
    x = numbers(max(threads, 64))
    arguments = [x, numbers(64)] if "buffer(1)" in source else [x]
    compile_shader(source, order=order).k(*arguments, threads=threads, group_size=64)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told(name: str) -> None:
    case = FAULTS[name]
    with pytest.raises(ShaderError, match=case.expect) as error:
        launch(case.source, case.threads)
    assert str(error.value).startswith(f"k: {case.place}: ")


@pytest.mark.parametrize("order", ["reverse", "shuffle"])
def test_faults_are_found_in_every_order(order: str) -> None:
    for case in FAULTS.values():
        with pytest.raises(ShaderError, match="k: program_source:"):
            launch(case.source, case.threads, order)


def test_reading_past_a_view_of_a_larger_storage() -> None:
    storage = numbers(256)
    source = kernel("x[i] = y[i + 1];  // fault", parameters=Y)
    with pytest.raises(ShaderError, match="out-of-bounds read of 4 bytes, 0 bytes after the end of buffer 1") as error:
        compile_shader(source).k(storage[:64], storage[64:128], threads=64, group_size=64)
    assert line_of(source) in str(error.value)


def test_writing_past_a_view_of_a_larger_storage() -> None:
    storage = torch.zeros(128)
    with pytest.raises(ShaderError, match="out-of-bounds write of 4 bytes, 0 bytes after the end of buffer 0"):
        compile_shader(kernel("x[i * 2] = 1;")).k(storage[:32], threads=64, group_size=64)
    assert not storage[32:].any()


def test_a_view_keeps_the_alignment_of_its_offset() -> None:
    lib = compile_shader(kernel("if (i == 0) x[0] = y[0].x;", parameters=Y.replace("float*", "float4*").replace("float4* x", "float* x")))
    storage, x = numbers(64), numbers(1)
    lib.k(x, storage[4:], threads=32, group_size=32)
    assert x.item() == 4
    with pytest.raises(ShaderError, match="misaligned"):
        lib.k(x, storage[1:], threads=32, group_size=32)


def test_reading_more_of_a_constant_than_was_bound() -> None:
    source = kernel("x[i] = float(n[i / 16]);  // fault", parameters="device float* x, constant int* n")
    with pytest.raises(ShaderError, match="out-of-bounds read of 4 bytes, 0 bytes after the end of buffer 1") as error:
        compile_shader(source).k(numbers(), [1, 2], threads=64, group_size=64, arg_casts="int32")
    assert line_of(source) in str(error.value)


def test_a_fault_in_an_inlined_helper_names_both_lines() -> None:
    source = kernel("x[i] = f(x, i);  // caller", "inline float f(device float* p, uint i) { return p[i + 64]; }  // fault")
    with pytest.raises(ShaderError) as error:
        launch(source, 64)
    assert f"{line_of(source)} <- {line_of(source, '// caller')}" in str(error.value)


def test_a_race_tells_where_the_other_lanes_are() -> None:
    case = FAULTS["two calls in two branches"]
    with pytest.raises(ShaderError, match="other lanes of the SIMD-group are at program_source:9"):
        launch(case.source, case.threads)


def test_after_a_fault_the_next_launch_is_clean() -> None:
    with pytest.raises(ShaderError):
        launch(FAULTS["read past the end"].source, 64)
    x = numbers()
    compile_shader(kernel("x[i] = simd_sum(x[i]);")).k(x, threads=64, group_size=64)
    assert x[0] == sum(range(32))


def test_fast_mode_still_finds_divergence() -> None:
    for name in ("two calls in two branches", "two barriers in two branches", "partial SIMD-group", "threadgroup memory above 32 KB"):
        case = FAULTS[name]
        with pytest.raises(ShaderError, match=case.expect):
            compile_shader(case.source, check=False).k(numbers(), threads=case.threads, group_size=64)
