"""Constructs of the language that must compile and give the right numbers, in CHECK mode, with nothing to lint."""

from __future__ import annotations

import pytest
import torch

from metal_emu import compile_shader
from metal_emu.cases import kernel, numbers, read

PARAMETERS = """device float* x [[buffer(0)]], device const float4* v [[buffer(1)]], constant float& s [[buffer(2)]],
    device const uint* w [[buffer(3)]], device half* h [[buffer(4)]], device bfloat* b [[buffer(5)]]"""
LIMIT = "[[max_total_threads_per_threadgroup(32)]]"
BODIES, SIGNATURES = read("accepted", PARAMETERS), read("signatures")


@pytest.mark.parametrize("name", BODIES)
def test_a_construct_is_accepted(name: str) -> None:
    case = BODIES[name]
    lib = compile_shader(case.source.replace("\nkernel void", f"\n{LIMIT} kernel void"))
    x, v, w = numbers(32), numbers(128), (0x3C00 << 16) + torch.arange(32, dtype=torch.int32)
    lib.k(x, v, 0.5, w.view(torch.uint32), x.half(), x.bfloat16(), threads=32, group_size=32)
    assert x.tolist() == [eval(case.expect, {"i": i}) for i in range(32)]
    assert lib.lint() == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_accepted(name: str) -> None:
    lib = compile_shader(SIGNATURES[name].source)
    x = torch.zeros(32)
    assert dir(lib) == ["k"]
    lib.k(x, threads=32, group_size=32)
    assert (x == 1).all()


@pytest.mark.parametrize("transpose", ["false", "true"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["float", "half", "bfloat"])
def test_matrices_are_loaded_stored_and_multiplied(dtype: torch.dtype, transpose: str) -> None:
    name = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}[dtype]
    body = f"""simdgroup_{name}8x8 p, q; simdgroup_float8x8 r(1.0f);
        simdgroup_load(p, a, 12, ulong2(3, 1), {transpose}); simdgroup_load(q, a, 12);
        simdgroup_multiply_accumulate(r, p, q, r); simdgroup_store(r, x, 8);"""
    lib = compile_shader(kernel(body, parameters=f"device float* x [[buffer(0)]], device const {name}* a [[buffer(1)]]"))
    x, a = torch.full((8, 8), float("nan")), torch.randint(-8, 8, (9, 12)).to(dtype)
    lib.k(x, a, threads=32, group_size=32)
    p = a[1:9, 3:11].float()
    assert torch.equal(x, (p.T if transpose == "true" else p) @ a[:8, :8].float() + torch.eye(8))


def test_atomics() -> None:
    body = """atomic_fetch_add_explicit(&n[0], 1u, memory_order_relaxed);
        atomic_fetch_max_explicit(&n[1], i, memory_order_relaxed);
        atomic_fetch_add_explicit(f, 0.5f, memory_order_relaxed);"""
    parameters = "device atomic_uint* n [[buffer(0)]], device atomic_float* f [[buffer(1)]]"
    for check in (True, False):
        n, f = torch.zeros(2, dtype=torch.uint32), torch.zeros(1)
        compile_shader(kernel(body, parameters=parameters), check=check).k(n, f, threads=128, group_size=64)
        assert n.tolist() == [128, 127] and f.item() == 64
