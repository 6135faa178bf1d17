"""The packages that benchmarks/cpu.py compares with, each driven in a few lines.

Those that take codes, scales and zero points get the same ones; others quantize the same weight their own way.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from cpu_ggml import ggml
from cpu_ways import BFLOAT16, FLOAT32, Case, Way, torch_way
from torch import Tensor, nn

ANY = (FLOAT32, BFLOAT16)
EXACT, ROUNDED, INT8 = "float32 sums", "bfloat16 arithmetic", "8-bit activations"  # what a way does to the activations


@dataclass(frozen=True)
class Peer:
    """Another package's way: at which bits and for which activations; `arithmetic` says what it does to them."""

    make: Callable[[Case], Way]
    bits: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    arithmetic: str = EXACT
    rows: int = 128  # as many at most: with more it takes seconds
    swift: bool = True  # or measured on one shape alone
    module: str = "torch"  # what has to be importable
    pip: str = ""

    def takes(self, case: Case) -> bool:
        return case.bits in self.bits and case.dtype in self.dtypes


def module_way(case: Case, layer: nn.Module, nbytes: int, weight: Callable[[int], Tensor]) -> Way:
    return Way(nbytes, list(case.copies(layer, nbytes, lambda: copy.deepcopy(layer))), weight=weight)


def linear_of(case: Case) -> nn.Linear:
    layer = nn.Linear(case.k, case.n, bias=False, device="meta")
    layer.weight = nn.Parameter(case.dense().to(case.dtype), requires_grad=False)
    return layer.eval()


def int4_op(case: Case) -> Way:
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(case.codes.int(), 1)
    parameters = torch.stack([case.scales.t(), ((8 - case.zero_points.float()) * case.scales).t()], -1).contiguous().to(case.dtype)
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    return torch_way(case, (packed, parameters), lambda x, p, s: multiply(x, p, case.group_size, s))


def int8_op(case: Case) -> Way:
    """One scale a row."""
    weight = case.dense()
    scales = (weight.abs().amax(1) / 127).to(case.dtype)
    codes = (weight / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
    return torch_way(case, (codes, scales), torch.ops.aten._weight_int8pack_mm, lambda rows: codes[:rows] * scales[:rows, None].float())


def int8_dynamic(case: Case) -> Way:
    """One scale a row."""
    weight = case.dense()
    scales = weight.abs().amax(1) / 127
    codes = torch.quantize_per_channel(weight, scales.double(), torch.zeros(case.n, dtype=torch.int64), 0, torch.qint8)

    def pack() -> Callable[[Tensor], Tensor]:
        packed = torch.ops.quantized.linear_prepack(codes, None)
        return lambda x: torch.ops.quantized.linear_dynamic(x, packed, False)

    nbytes = case.n * (case.k + 8)
    return Way(nbytes, case.copies(pack(), nbytes, pack), weight=lambda rows: codes.dequantize()[:rows])


def torchao(case: Case) -> Way:
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    layer = nn.Sequential(linear_of(case))
    quantize_(layer, IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{case.bits}"), granularity=PerGroup(case.group_size)))
    weight = layer[0].weight
    nbytes = sum(getattr(weight, name).nbytes for name in weight.__tensor_flatten__()[0])
    return module_way(case, layer, nbytes, lambda rows: weight.dequantize()[:rows])


def bitsandbytes(case: Case) -> Way:
    """Its nf4; with bfloat16 activations it repacks the weight when it is first used."""
    import bitsandbytes as bnb

    options = {"quant_type": "nf4", "compress_statistics": False}
    layer = bnb.nn.Linear4bit(case.k, case.n, bias=False, compute_dtype=case.dtype, device="meta", **options)
    layer.weight = bnb.nn.Params4bit(case.dense().to(case.dtype), requires_grad=False, blocksize=case.group_size, **options)
    layer.weight._quantize("cpu")
    weight = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return module_way(case, layer.eval(), case.n * case.k // 2 + 4 * case.scales.numel(), lambda rows: weight[:rows])


def quanto(case: Case) -> Way:
    """Groups of 128, whatever is asked for; one scale a row at 8 bits."""
    from optimum import quanto as q

    kind = {2: q.qint2, 4: q.qint4, 8: q.qint8}[case.bits]

    layer = nn.Sequential(linear_of(case))
    q.quantize(layer, weights=kind)
    q.freeze(layer)
    first = layer[0].weight

    def product(weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: F.linear(x, weight)

    groups = 2 * case.k // 128 if case.bits < 8 else 1
    nbytes = case.n * (case.k * case.bits // 8 + groups * case.dtype.itemsize)
    weights = case.copies(first, nbytes, lambda: _clone(first))
    return Way(nbytes, [product(weight) for weight in weights], weight=lambda rows: first.dequantize()[:rows])


def _clone(tensor: Tensor) -> Tensor:
    """Of a tensor of tensors, which may refuse to be copied."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.clone()
    names, context = tensor.__tensor_flatten__()
    return type(tensor).__tensor_unflatten__({name: _clone(getattr(tensor, name)) for name in names}, context, None, None)


def _bytes_of(codes: Any, bits: int) -> Any:
    """Codes of 2, 4 or 8 bits along the last axis, the first in the lowest bits; the last byte filled with zeros."""
    import numpy as np

    count = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % count)]).reshape(*codes.shape[:-1], -1, count)
    return np.bitwise_or.reduce(padded << np.arange(0, 8, bits, dtype=np.uint8), axis=-1)


def onnxruntime(accuracy: int) -> Callable[[Case], Way]:
    """MatMulNBits; accuracy level 1 computes in float32, 4 with activations in 8 bits. One session a copy."""

    def make(case: Case) -> Way:
        import onnxruntime as ort
        from onnx import TensorProto, helper, numpy_helper

        groups = case.codes.numpy().reshape(case.n, -1, case.group_size)
        points = _bytes_of(case.zero_points.numpy(), case.bits).reshape(-1)
        parts = (_bytes_of(groups, case.bits), case.scales.numpy().reshape(-1), points)
        sizes = {"K": case.k, "N": case.n, "bits": case.bits, "block_size": case.group_size, "accuracy_level": accuracy}
        node = helper.make_node("MatMulNBits", ["x", "0", "1", "2"], ["y"], domain="com.microsoft", **sizes)
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["M", size]) for name, size in (("x", case.k), ("y", case.n)))
        graph = helper.make_graph([node], "linear", [x], [y], [numpy_helper.from_array(p, str(i)) for i, p in enumerate(parts)])
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = case.threads, 4
        options.add_session_config_entry("session.force_spinning_stop", "1")  # its threads would slow down whatever is measured next

        def session() -> Callable[[Any], Any]:
            run = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run
            return lambda x: run(None, x)[0]

        nbytes = sum(p.nbytes for p in parts)
        return Way(nbytes, case.copies(session(), nbytes, session), lambda x: {"x": x.numpy()}, torch.from_numpy)

    return make


def openvino(rounded: bool) -> Callable[[Case], Way]:
    """A MatMul with its weight compressed, one model a copy; `rounded`: activations in 8 bits, by groups."""

    def make(case: Case) -> Way:
        import numpy as np
        import openvino as ov
        from openvino import opset13 as op

        core = ov.Core()
        config = {
            "INFERENCE_NUM_THREADS": case.threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": case.group_size if rounded else 0,
            "INFERENCE_PRECISION_HINT": "bf16" if case.dtype == BFLOAT16 else "f32",
        }
        kind = {2: ov.Type.u2, 4: ov.Type.u4, 8: ov.Type.u8}[case.bits]
        shapes = [case.n, case.k // case.group_size, case.group_size], [case.n, case.k // case.group_size, 1]
        codes, points = (_bytes_of(t.numpy().reshape(-1), case.bits) for t in (case.codes, case.zero_points))
        scales = case.scales.half().numpy()[..., None]

        def constant(data: Any, shape: list[int]) -> Any:
            return op.convert(ov.op.Constant(ov.Tensor(data, ov.Shape(shape), kind)), "f16")

        def model() -> Callable[[Any], Any]:
            kept = codes.copy(), points.copy()  # the model does not own them
            x = op.parameter([-1, case.k], ov.Type.f32, name="x")
            weight = op.multiply(op.subtract(constant(kept[0], shapes[0]), constant(kept[1], shapes[1])), op.constant(scales))
            weight = op.reshape(weight, op.constant(np.array([case.n, case.k])), False)
            whole = ov.Model([op.matmul(x, op.convert(weight, "f32"), False, True)], [x])
            request = core.compile_model(whole, "CPU", config).create_infer_request()

            def product(x: Any, kept: Any = kept) -> Any:
                request.set_input_tensor(0, x)
                request.start_async()
                request.wait()
                return request

            return product

        nbytes = codes.nbytes + points.nbytes + scales.nbytes
        result: Callable[[Any], Tensor] = lambda y: torch.from_numpy(y.get_output_tensor(0).data.copy())  # noqa: E731
        return Way(nbytes, case.copies(model(), nbytes, model), lambda x: ov.Tensor(x.float().numpy()), result)

    return make


def mlx(case: Case) -> Way:
    """Its own quantization; its CPU build takes no number of threads."""
    import mlx.core as mx
    import numpy as np

    mx.set_default_device(mx.cpu)
    options = {"group_size": case.group_size, "bits": case.bits}
    weight = mx.array(case.dense().numpy())

    def product() -> Callable[[Any], Any]:
        parts = mx.quantize(weight, **options)
        mx.eval(*parts)

        def multiply(x: Any) -> Any:
            y = mx.quantized_matmul(x, *parts, transpose=True, **options)
            mx.eval(y)
            return y

        return multiply

    def tensor(array: Any) -> Tensor:
        return torch.from_numpy(np.array(array))

    parts = mx.quantize(weight, **options)
    nbytes = sum(p.nbytes for p in parts)
    first = tensor(mx.dequantize(*(p[:256] for p in parts), **options))
    copies = case.copies(product(), nbytes, product)
    return Way(nbytes, copies, lambda x: mx.array(x.numpy()), tensor, lambda rows: first[:rows])


ONNX = {"module": "onnxruntime", "pip": "onnxruntime onnx"}
OPENVINO = {"module": "openvino", "pip": "openvino"}
LLAMA = {"arithmetic": INT8, "module": "llama_cpp", "pip": "llama-cpp-python"}
PEERS: dict[str, Peer] = {
    "PyTorch int4 op": Peer(int4_op, (4,), (BFLOAT16,), ROUNDED),  # with float32 activations it takes fifty times as long
    "PyTorch int8 op": Peer(int8_op, (8,), ANY),
    "PyTorch dynamic int8": Peer(int8_dynamic, (8,), (FLOAT32,), INT8),
    "ONNX Runtime": Peer(onnxruntime(1), (2, 4, 8), (FLOAT32,), **ONNX),
    "ONNX Runtime int8": Peer(onnxruntime(4), (2, 4, 8), (FLOAT32,), INT8, **ONNX),
    "OpenVINO": Peer(openvino(False), (2, 4, 8), (FLOAT32,), **OPENVINO),
    "OpenVINO bfloat16": Peer(openvino(False), (2, 4, 8), (BFLOAT16,), ROUNDED, **OPENVINO),
    "OpenVINO int8": Peer(openvino(True), (2, 4), (FLOAT32,), INT8, **OPENVINO),  # at 8 bits with zero points it crashes
    **{f"llama.cpp {kind}": Peer(ggml(kind), (int(kind[1]),), (FLOAT32,), **LLAMA) for kind in ("Q1_0", "Q3_K", "Q5_K", "Q6_K", "Q8_0")},
    **{f"llama.cpp {kind}": Peer(ggml(kind, repack=True), (int(kind[1]),), (FLOAT32,), **LLAMA) for kind in ("Q2_K", "Q4_0", "Q4_K")},
    "torchao": Peer(torchao, tuple(range(2, 9)), ANY, swift=False, module="torchao", pip="torchao"),  # at 1 bit its results are not numbers
    "bitsandbytes nf4": Peer(bitsandbytes, (4,), ANY, ROUNDED, module="bitsandbytes", pip="bitsandbytes"),
    "quanto": Peer(quanto, (2, 4, 8), ANY, swift=False, module="optimum.quanto", pip="optimum-quanto"),
    # MLX sums bfloat16 in bfloat16, and takes eight times as long
    "MLX": Peer(mlx, (2, 3, 4, 5, 6, 8), (FLOAT32,), rows=1, swift=False, module="mlx.core", pip="mlx[cpu]"),
}


def states() -> dict[str, str]:
    """Of each peer "there", or why it is left out: each multiplies once, so that none of them fails midway."""
    return {name: _state(peer) for name, peer in PEERS.items()}


def _state(peer: Peer) -> str:
    try:
        importlib.import_module(peer.module)
        for dtype in peer.dtypes:
            case = Case(256, 512, peer.bits[-1], 64, dtype, torch.get_num_threads(), memory=0)
            way = peer.make(case)
            for rows in {1, peer.rows}:
                way.result(way.products[0](way.activations(torch.randn(rows, case.k).to(dtype))))
    except ImportError as error:
        return f"not installed ({error}): pip install {peer.pip}"
    except Exception as error:  # whatever others raise is told
        return f"left out, since it fails: {' '.join(f'{type(error).__name__}: {error}'.split())[:200]}"
    return "there"
