"""ggml, the library of llama.cpp, through ctypes on the shared libraries that the package llama-cpp-python holds."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from cpu_ways import Case, Way
from torch import Tensor

P, Z, I, L = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64  # noqa: E741
F32 = 0
SOME = 256  # rows that are quantized
KINDS = {"Q1_0": 41, "Q2_K": 10, "Q3_K": 11, "Q4_0": 2, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "Q8_0": 8}


class Parameters(ctypes.Structure):
    _fields_ = (("mem_size", Z), ("mem_buffer", P), ("no_alloc", ctypes.c_bool))


class Traits(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("block", L), ("interleave", L), ("size", Z), ("quantized", ctypes.c_bool), ("to_float", P))


BASE: dict[str, tuple[Any, list[Any]]] = {
    "ggml_log_set": (None, [P, P]),
    "ggml_init": (P, [Parameters]),
    "ggml_new_tensor_2d": (P, [P, I, L, L]),
    "ggml_mul_mat": (P, [P, P, P]),
    "ggml_new_graph_custom": (P, [P, Z, ctypes.c_bool]),
    "ggml_build_forward_expand": (None, [P, P]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (P, [P, P]),
    "ggml_backend_alloc_ctx_tensors": (P, [P, P]),
    "ggml_backend_tensor_set": (None, [P, P, Z, Z]),
    "ggml_backend_tensor_get": (None, [P, P, Z, Z]),
    "ggml_backend_graph_compute": (I, [P, P]),
    "ggml_backend_buffer_free": (None, [P]),
    "ggml_free": (None, [P]),
    "ggml_quantize_chunk": (Z, [I, P, P, L, L, L, P]),
    "ggml_row_size": (Z, [I, L]),
    "ggml_get_type_traits": (ctypes.POINTER(Traits), [I]),
    "ggml_backend_reg_get_proc_address": (P, [P, ctypes.c_char_p]),
    "ggml_backend_reg_dev_get": (P, [P, Z]),
    "ggml_backend_cpu_buffer_type": (P, []),
    "ggml_backend_buft_name": (ctypes.c_char_p, [P]),
}
CPU: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_cpu_reg": (P, []),
    "ggml_backend_cpu_init": (P, []),
    "ggml_backend_cpu_set_n_threads": (None, [P, I]),
}


@ctypes.CFUNCTYPE(None, I, P, P)
def _quiet(level: int, text: int, data: int) -> None:
    """It tells of each weight."""


@cache
def library() -> Any:
    """Its functions, by their names without `ggml_`. Raises ImportError without the package."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise ImportError("No module named 'llama_cpp'")
    folder, found = Path(spec.origin).parent / "lib", type("Functions", (), {})
    for file, functions in (("libggml-base.so", BASE), ("libggml-cpu.so", CPU)):
        loaded = ctypes.CDLL(str(folder / file), mode=ctypes.RTLD_GLOBAL)
        for name, (result, arguments) in functions.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
            setattr(found, name.removeprefix("ggml_").removeprefix("backend_"), staticmethod(function))
    found.log_set(ctypes.cast(_quiet, P), None)
    return found


def repacked() -> int | None:
    """The buffers whose weights it puts into another order for its fastest kernels, as llama.cpp does by itself."""
    g = library()
    registry = g.cpu_reg()
    address = g.reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    kinds = ctypes.CFUNCTYPE(ctypes.POINTER(P), P)(address)(g.reg_dev_get(registry, 0))
    for i in range(16):
        if not kinds[i]:
            return None
        if g.buft_name(kinds[i]) == b"CPU_REPACK":
            return kinds[i]
    return None


class Context:
    """Tensors and the buffer that holds them; given back with the last product that uses them."""

    def __init__(self, size: int) -> None:
        self.pointer, self.buffer = library().init(Parameters(size, None, True)), None

    def __del__(self) -> None:
        if self.buffer:
            library().buffer_free(self.buffer)
        library().free(self.pointer)


def ggml(name: str, repack: bool = False) -> Callable[[Case], Way]:
    """A product by a weight in its type `name`, quantized by its own quantizer."""

    def make(case: Case) -> Way:
        g, kind, dense = library(), KINDS[name], case.dense(SOME)
        row = torch.empty((SOME, g.row_size(kind, case.k)), dtype=torch.uint8)
        g.quantize_chunk(kind, dense.data_ptr(), row.data_ptr(), 0, SOME, case.k, torch.ones(case.k).data_ptr())
        data = row.repeat(case.n // SOME, 1)  # it takes seconds to quantize all
        nbytes = data.nbytes
        place = repacked() if repack else g.cpu_buffer_type()
        backend = g.cpu_init()
        g.cpu_set_n_threads(backend, case.threads)

        def weight() -> tuple[Context, int]:
            context = Context(4096)
            tensor = g.new_tensor_2d(context.pointer, kind, case.k, case.n)
            context.buffer = g.alloc_ctx_tensors_from_buft(context.pointer, place)
            g.tensor_set(tensor, data.data_ptr(), 0, nbytes)
            return context, tensor

        weights = case.copies(weight(), nbytes, weight)

        def activations(x: Tensor) -> list[tuple[int, int, Context]]:
            """For each copy of the weight a graph of one product, its result, and what holds them."""
            made = []
            for _, tensor in weights:
                context = Context(1 << 16)
                into = g.new_tensor_2d(context.pointer, F32, case.k, len(x))
                y = g.mul_mat(context.pointer, tensor, into)
                graph = g.new_graph_custom(context.pointer, 16, False)
                g.build_forward_expand(graph, y)
                context.buffer = g.alloc_ctx_tensors(context.pointer, backend)
                x = x.contiguous()
                g.tensor_set(into, x.data_ptr(), 0, x.nbytes)
                made.append((graph, y, context, len(x)))
            return made

        def product(i: int) -> Callable[[Any], Any]:
            def run(graphs: Any) -> Any:
                g.graph_compute(backend, graphs[i][0])
                return graphs[i]

            return run

        def result(graph: Any) -> Tensor:
            y = torch.empty(graph[3], case.n)
            g.tensor_get(graph[1], y.data_ptr(), 0, y.nbytes)
            return y

        def decoded(rows: int) -> Tensor:
            w = torch.empty(min(rows, SOME), case.k)
            to_float = ctypes.CFUNCTYPE(None, P, P, L)(g.get_type_traits(kind).contents.to_float)
            to_float(data.data_ptr(), w.data_ptr(), w.numel())
            return w

        return Way(nbytes, [product(i) for i in range(len(weights))], activations, result, decoded)

    return make
