"""The ways to multiply by a weight that benchmarks/mps.py compares: ours and others', each on weights of its own making.

Values are random: no speed depends on them. Each way has so many copies of its weight that they come from memory, not from a cache.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowbit_tensor.format import group_count, row_bytes

GROUP_SIZE = 64
DTYPES = (torch.float16, torch.bfloat16)
INNER_TILES = 8  # of PyTorch's int4 layout


@dataclass(frozen=True)
class Weight:
    """Which weight `[n, k]`, for activations of `dtype` on `device`; its copies take at least `memory` bytes."""

    n: int
    k: int
    bits: int
    dtype: torch.dtype
    device: torch.device
    memory: int

    def parameters(self, dtype: torch.dtype) -> Tensor:
        """A random scale or zero for each group."""
        return torch.rand(self.n, group_count(self.k, GROUP_SIZE)).to(self.device, dtype)

    def copies(self, *parts: Tensor) -> list[tuple[Tensor, ...]]:
        """The parts of a weight, cloned as often as `memory` asks, twice at least."""
        count = max(2, -(-self.memory // sum(p.nbytes for p in parts)))
        return [tuple(p.clone() for p in parts) for _ in range(count)]


@dataclass(frozen=True)
class Way:
    """One way to multiply: `products` take activations, one function a copy of the weight; a copy has `nbytes`."""

    nbytes: int
    products: list[Callable[[Any], Any]]
    activations: Callable[[int], Any]  # of so many rows
    finish: Callable[[], None]  # waits until all products are there


def ours(weight: Weight) -> Way:
    """The op that `F.linear` of a low-bit weight calls."""
    packed = torch.randint(0, 256, (weight.n, row_bytes(weight.k, weight.bits)), dtype=torch.uint8).to(weight.device)
    parts = (packed, weight.parameters(torch.float16), weight.parameters(torch.float16))
    return _torch_way(weight, parts, lambda x, p, s, z: torch.ops.lowbit.linear(x, p, s, z, None, weight.bits, GROUP_SIZE))


def dense(weight: Weight) -> Way:
    """`F.linear` of a weight in the activations' dtype."""
    return _torch_way(weight, (torch.randn(weight.n, weight.k).to(weight.device, weight.dtype),), F.linear)


def int4(weight: Weight) -> Way | None:
    """PyTorch's own op: 4 bits."""
    if weight.bits != 4 or weight.n % 8 or weight.k % (16 * INNER_TILES):
        return None
    ops = torch.ops.aten
    if weight.device.type == "cpu":
        codes = torch.randint(0, 16, (weight.n, weight.k), dtype=torch.int32)
        packed, multiply = ops._convert_weight_to_int4pack_for_cpu(codes, INNER_TILES), ops._weight_int4pack_mm_for_cpu
    else:
        pairs = torch.randint(0, 256, (weight.n, weight.k // 2), dtype=torch.uint8).to(weight.device)
        packed, multiply = ops._convert_weight_to_int4pack(pairs, INNER_TILES), ops._weight_int4pack_mm
    parameters = torch.stack([weight.parameters(weight.dtype).t()] * 2, -1).contiguous()
    return _torch_way(weight, (packed, parameters), lambda x, p, s: multiply(x, p, GROUP_SIZE, s))


def torchao(weight: Weight) -> Way | None:
    """The kernels that torchao builds from source: 1 to 7 bits."""
    if weight.bits == 8:
        return None
    codes = torch.randint(0, 2**weight.bits, (weight.n, weight.k), dtype=torch.uint8)
    packed = getattr(torch.ops.torchao, f"_pack_weight_{weight.bits}bit")(codes).to(weight.device)
    multiply = getattr(torch.ops.torchao, f"_linear_fp_act_{weight.bits}bit_weight")
    parts = (packed, weight.parameters(weight.dtype), weight.parameters(weight.dtype))
    return _torch_way(weight, parts, lambda x, p, s, z: multiply(x, p, GROUP_SIZE, s, z))


def mlx(weight: Weight) -> Way | None:
    """MLX's quantized_matmul: 2, 3, 4, 5, 6 and 8 bits. It gathers calls and runs them where `finish` asks for their results."""
    if weight.bits in (1, 7):
        return None
    import mlx.core as mx

    mx.set_default_device(mx.cpu if weight.device.type == "cpu" else mx.gpu)
    dtype = mx.float16 if weight.dtype == torch.float16 else mx.bfloat16
    pending: list[Any] = []

    def make() -> tuple[Any, ...]:
        parts = mx.quantize(mx.random.normal((weight.n, weight.k)).astype(dtype), group_size=GROUP_SIZE, bits=weight.bits)
        mx.eval(*parts)
        return tuple(parts)

    def product(parts: tuple[Any, ...]) -> Callable[[Any], None]:
        options = {"transpose": True, "group_size": GROUP_SIZE, "bits": weight.bits}
        return lambda x: pending.append(mx.quantized_matmul(x, *parts, **options))

    def finish() -> None:
        mx.eval(*pending)
        pending.clear()

    def activations(rows: int) -> Any:
        x = mx.random.normal((rows, weight.k)).astype(dtype)
        mx.eval(x)
        return x

    first = make()
    nbytes = sum(p.nbytes for p in first)
    copies = [first, *(make() for _ in range(max(2, -(-weight.memory // nbytes)) - 1))]
    return Way(nbytes, [product(parts) for parts in copies], activations, finish)


def _torch_way(weight: Weight, parts: tuple[Tensor, ...], multiply: Callable[..., Tensor]) -> Way:
    def product(copy: tuple[Tensor, ...]) -> Callable[[Tensor], Tensor]:
        return lambda x: multiply(x, *copy)

    def activations(rows: int) -> Tensor:
        return torch.randn(rows, weight.k).to(weight.device, weight.dtype)

    nbytes = sum(p.nbytes for p in parts)
    return Way(nbytes, [product(copy) for copy in weight.copies(*parts)], activations, lambda: synchronize(weight.device))


def synchronize(device: torch.device) -> None:
    """Waits for the device; on a CPU there is nothing to wait for."""
    if device.type == "mps":
        torch.mps.synchronize()


RIVALS: dict[str, Callable[[Weight], Way | None]] = {"F.linear": dense, "int4": int4, "MLX": mlx, "torchao": torchao}
NEEDS = {"MLX": "mlx.core", "torchao": "torchao.experimental.ops.mps"}  # what has to be importable


def states(device: torch.device) -> dict[str, str]:
    """Of each rival "there", or why it is left out: each multiplies once, so that none of them fails midway."""
    return {name: _state(name, device) for name in RIVALS}


def _state(name: str, device: torch.device) -> str:
    try:
        if name in NEEDS:
            importlib.import_module(NEEDS[name])
        for dtype in DTYPES:
            way = RIVALS[name](Weight(256, 512, 4, dtype, device, memory=0))
            for rows in (1, 8, 128):
                way.products[0](way.activations(rows))
                way.finish()
    except ImportError as error:
        return f"not installed ({error})"
    except Exception as error:  # whatever others raise is told
        return f"left out, since it fails: {' '.join(str(error).split())[:200]}"
    return "there"
