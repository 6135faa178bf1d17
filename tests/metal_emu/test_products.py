"""Two whole kernels, a matrix-vector product of packed codes and a tiled one with simdgroup_matrix, against float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from metal_emu import compile_shader, counts

KERNELS = Path(__file__).parent / "kernels"
DTYPES = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}
MODES = [(True, "forward"), (True, "shuffle"), (False, "forward"), (False, "reverse"), (False, "shuffle")]
modes = pytest.mark.parametrize(("check", "order"), MODES, ids=[f"{'check' if c else 'fast'}-{o}" for c, o in MODES])
dtypes = pytest.mark.parametrize("name", DTYPES)


def compiled(name: str, check: bool, order: str, seed: int = 0):
    return compile_shader((KERNELS / f"{name}.metal").read_text(), check=check, order=order, seed=seed)


def matvec(library, name: str, n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(the kernel's product, that in float64, the sum of the products' absolute values)"""
    dtype, group = DTYPES[name], 64 if name == "bfloat" else 32
    codes = torch.randint(0, 16, (n, k))
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    scales, zeros = torch.randn(n, k // group).to(dtype), torch.randn(n, k // group).to(dtype)
    w = scales.double().repeat_interleave(group, 1) * codes + zeros.double().repeat_interleave(group, 1)
    x, y = torch.randn(3 * k).to(dtype)[k : 2 * k], torch.full((n,), float("nan"), dtype=dtype)
    getattr(library, f"matvec_{name}_{group}")(x, packed, scales, zeros, y, n, k, threads=(n + 1) // 2 * 64, group_size=64)
    return y, w @ x.double(), w.abs() @ x.double().abs()


@modes
@dtypes
def test_a_matrix_vector_product(name: str, check: bool, order: str) -> None:
    y, exact, size = matvec(compiled("matvec", check, order), name, 37, 192)
    assert ((y.double() - exact).abs() <= torch.finfo(y.dtype).eps / 2 * exact.abs() + 2**-20 * size).all()


@modes
@dtypes
def test_a_tiled_product_of_ragged_shapes(name: str, check: bool, order: str) -> None:
    m, n, k, dtype = 37, 50, 27, DTYPES[name]
    x, w, y = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype), torch.full((m, n), float("nan"), dtype=dtype)
    grid = ((n + 31) // 32 * 128, (m + 31) // 32)
    getattr(compiled("matmul", check, order), f"matmul_{name}")(x, w, y, m, n, k, threads=grid, group_size=(128, 1))
    exact, size = x.double() @ w.double().T, x.double().abs() @ w.double().abs().T
    assert ((y.double() - exact).abs() <= torch.finfo(dtype).eps / 2 * exact.abs() + 2**-20 * size).all()


def test_the_same_bits_in_every_order_and_mode() -> None:
    results = []
    for check, order in MODES:
        for seed in (0, 1):
            torch.manual_seed(0)
            results.append(matvec(compiled("matvec", check, order, seed), "half", 37, 192)[0])
    assert all(torch.equal(results[0], other) for other in results)


def test_counts_of_a_launch() -> None:
    n, k = 8, 192
    matvec(compiled("matvec", True, "forward"), "half", n, k)
    assert counts["device_bytes_stored"] == 2 * n
    assert counts["simd_operations"] == n
    assert counts["barriers"] == counts["matrix_operations"] == counts["threadgroup_memory"] == 0
    # x in halves, a byte twice a pair (once a code), scales and zeros once a pair.
    assert counts["device_bytes_loaded"] >= n * k * 2 + n * k // 2


def test_lines_show_whether_lanes_lie_together() -> None:
    text = """#include <metal_stdlib>
    using namespace metal;
    kernel void together(device float* x [[buffer(0)]], device const float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
      for (int j = 0; j < 4; j++) x[64 * j + i] = y[64 * j + i];
    }
    kernel void apart(device float* x [[buffer(0)]], device const float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
      for (int j = 0; j < 4; j++) x[64 * j + i] = y[4 * i + j];
    }"""
    library, lines = compile_shader(text, count_lines=True), {}
    for name in dir(library):
        getattr(library, name)(torch.empty(256), torch.ones(256), threads=64, group_size=64)
        assert counts["device_bytes_loaded"] == counts["device_bytes_stored"] == 4 * 256
        lines[name] = counts["device_lines_loaded"], counts["device_lines_stored"]
    assert lines == {"together": (16, 16), "apart": (64, 16)}


@pytest.mark.parametrize("check", [True, False], ids=["check", "fast"])
def test_operations_are_counted(check: bool) -> None:
    text = """#include <metal_stdlib>
    using namespace metal;
    kernel void dot_product(device float* y [[buffer(0)]], device const half* x [[buffer(1)]], device const uchar* q [[buffer(2)]],
                            constant int& n [[buffer(3)]], uint i [[thread_position_in_grid]]) {
      float sum = 0;
      for (int k = 0; k < n; k++) sum = fma(float(x[k]), float(q[k] >> 4 ^ 3), sum);
      y[i] = sum;
    }"""
    library = compile_shader(text, check=check, count_operations=True)
    library.dot_product(torch.empty(64), torch.ones(5).half(), torch.ones(5, dtype=torch.uint8), 5, threads=64, group_size=32)
    assert counts["float_operations"] == 64 * 5 * 2 and counts["conversions"] == 64 * 5 * 2
    assert 64 * 5 * 2 <= counts["integer_operations"] <= 64 * 5 * 3 + 64


@pytest.mark.full
@pytest.mark.parametrize("order", ["reverse", "shuffle"])
def test_a_layer_of_real_size(order: str) -> None:
    y, exact, size = matvec(compiled("matvec", False, order), "half", 4096, 4096)
    assert ((y.double() - exact).abs() <= 2**-11 * exact.abs() + 2**-18 * size).all()
