"""torch.compile, export and trace: our ops in the graph, few compilations, results as in eager mode."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from weights import make

import lowbit_tensor as lb

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.head = nn.Linear(64, 33, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)


@pytest.fixture
def model() -> Net:
    torch._dynamo.reset()
    net = Net().eval()
    lb.quantize_(net, lb.LowBitConfig(4, 32, embeddings=True, modules={"head": lb.LowBitConfig(6, 64)}))
    return net


def compilations(model: nn.Module, shapes: list[tuple[int, int]], backend: str) -> int:
    """How many graphs it takes to run these shapes in turn; each result is that of eager mode."""
    graphs = []

    def counting(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(module)
        return torch._dynamo.lookup_backend(backend)(module, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counting, fullgraph=True)
    for shape in shapes:
        ids = torch.randint(0, 20, shape)
        torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-5, atol=1e-5)
    return len(graphs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_few_compilations_for_prefill_decode_and_another_batch(model: Net, backend: str) -> None:
    """Case 91: at most 3, and never more than a float model takes."""
    assert compilations(model, [(1, 17), (1, 1), (3, 9), (2, 30), (1, 1)], backend) <= 3
    many = [(1, 17), (1, 1), (3, 9), (2, 30), (4, 1), (1, 40), (1, 23)]
    assert compilations(model, many, "eager") == compilations(Net().eval(), many, "eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_swapped_weights_are_seen(model: Net, backend: str) -> None:
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    ids = torch.tensor([[1, 2, 3]])
    before = compiled(ids)
    model.head.weight = lb.LowBitWeightTensor.from_float(torch.randn(33, 64), 6, 64)
    assert not torch.equal(compiled(ids), before)
    torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-5, atol=1e-5)
    model.head.weight = lb.LowBitWeightTensor.from_float(torch.randn(33, 64), 3, 16)
    torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_step(model: Net, backend: str) -> None:
    """Gradients pass through the quantized layers to the biases before them, as in eager mode; the backward holds our op."""
    twin, graphs = copy.deepcopy(model), []

    def keep(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(module)
        return module.forward

    for net, run in ((model, torch.compile(model, backend=backend, fullgraph=True)), (twin, twin)):
        run(torch.tensor([[1, 2, 3]])).square().sum().backward()
        assert all(layer.weight.grad is None for layer in net.layers)
    for layer, other in zip(model.layers, twin.layers, strict=True):
        assert layer.bias.grad.abs().sum() > 0
        torch.testing.assert_close(layer.bias.grad, other.bias.grad, rtol=1e-4, atol=1e-4)
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    torch.compile(model, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)(torch.tensor([[1, 2]])).sum().backward()
    assert torch.ops.lowbit.matmul.default in [node.target for node in graphs[-1].graph.nodes]


def test_inference_mode_and_autocast(model: Net) -> None:
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    ids = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert compiled(ids).dtype == model(ids).dtype == torch.bfloat16


@pytest.mark.full
def test_freezing_keeps_weights_packed(model: Net) -> None:
    """Case 97: no constant of the frozen graph is a float weight."""
    from torch._inductor import config

    seen = []
    with config.patch(freezing=True), torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, options={"post_grad_custom_post_pass": lambda graph: seen.append(graph)})
        ids = torch.tensor([[1, 2, 3]])
        torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-5, atol=1e-5)
    targets = [node.target for graph in seen for node in graph.nodes]
    assert targets.count(torch.ops.lowbit.linear.default) == 3 and torch.ops.lowbit.dequantize.default not in targets


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export_with_dynamic_shapes_runs_elsewhere(model: Net, strict: bool, tmp_path: Path) -> None:
    """Case 99: codes, scales and zeros are in the program; another process needs only our import."""
    ids = torch.randint(0, 20, (2, 5))
    dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=512)}
    program = torch.export.export(model, (ids,), dynamic_shapes=(dims,), strict=strict)
    torch.export.save(program, tmp_path / "m.pt2")
    other = torch.randint(0, 20, (3, 11))
    torch.save((other, model(other)), tmp_path / "io.pt")
    script = (
        "import sys, torch, lowbit_tensor\n"
        "ids, expected = torch.load(sys.argv[2])\n"
        "program = torch.export.load(sys.argv[1])\n"
        "torch.testing.assert_close(program.module()(ids), expected, rtol=1e-5, atol=1e-5)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "m.pt2"), str(tmp_path / "io.pt")], check=True, timeout=120)
    inner = program.run_decompositions()
    assert torch.ops.lowbit.linear.default in [node.target for node in inner.graph.nodes]
    assert sum(name.endswith(("packed", "scales", "zeros")) for name in inner.state_dict) in (0, 12)


def test_trace_bakes_in_no_result(model: Net) -> None:
    """`torch.jit.save` asks no subclass and ends the process; a frozen module holds plain tensors, and the warning says so."""
    with pytest.warns(UserWarning, match=r"save torch\.jit\.freeze\(traced\)"):
        traced = torch.jit.trace(model, torch.tensor([[1, 2, 3]]))
    ids = torch.tensor([[7, 8, 9]])
    torch.testing.assert_close(traced(ids), model(ids), rtol=1e-5, atol=1e-5)
    torch.jit.save(torch.jit.freeze(traced), file := io.BytesIO())
    file.seek(0)
    torch.testing.assert_close(torch.jit.load(file)(ids), model(ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_compile(backend: str) -> None:
    """Case 91: embedding and linear in one graph."""
    model = nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 33))
    lb.quantize_(model, lb.LowBitConfig(4, 32, embeddings=True))
    ids = torch.tensor([[1, 2, 3]])
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(ids), model(ids))


def test_compile_with_dynamic_shapes_and_gradients() -> None:
    """One graph for any number of rows; importing the package leaves PyTorch's own dynamic shapes as they were."""
    torch._dynamo.reset()
    linear = nn.Linear(64, 33)
    linear.weight = make(5, k=64)
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (2, 3, 7):
        x = torch.randn(rows, 64, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(rows, 33) @ linear.weight.dequantize())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export(strict: bool) -> None:
    """The exported graph holds our op, not its decoding."""
    linear = nn.Linear(64, 33)
    linear.weight = make(5, k=64)
    x = torch.randn(3, 64)
    program = torch.export.export(linear, (x,), strict=strict).run_decompositions()
    assert torch.ops.lowbit.linear.default in [node.target for node in program.graph.nodes]
    torch.testing.assert_close(program.module()(x), linear(x))


def test_a_compiled_function_may_write_to_a_weight() -> None:
    def double(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        w.mul_(2)
        return x @ w.t()

    w, x = make(8, k=64), torch.randn(3, 64)
    twin = w.clone()
    with torch.no_grad():
        expected = double(twin, x)
        torch.testing.assert_close(torch.compile(double, backend="aot_eager", fullgraph=True)(w, x), expected)
    assert torch.equal(w.codes(), twin.codes()) and torch.equal(w.scales, twin.scales)


def test_training_scales_in_a_compiled_model_warns(model: Net) -> None:
    """They would get no gradient, and not a word about it."""
    lb.trainable_parameters(model)
    with pytest.warns(UserWarning, match="get none under torch.compile"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(torch.tensor([[1, 2, 3]]))
