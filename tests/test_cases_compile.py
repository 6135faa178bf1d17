"""What went wrong for users who compiled and exported low-bit models, each case by its number."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from weights import WIDTHS, inner, make, same

import lowbit_tensor as lb

BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.full)]
WIDTH = pytest.mark.parametrize("bits", [3, *(pytest.param(b, marks=pytest.mark.full) for b in WIDTHS if b != 3)])
STRICT = pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


class Lora(nn.Module):
    """A low-bit base and a float adapter."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.a, self.b = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a(x))


@STRICT
@WIDTH
def test_export_of_wrapped_layers(bits: int, strict: bool) -> None:
    """Case 99: each base's codes, scales and zeros come back from the saved program and go into our op."""
    model = nn.Sequential(Lora(nn.Linear(64, 48)), nn.Sequential(nn.ReLU(), nn.Sequential(Lora(nn.Linear(48, 33, bias=False)))))
    lb.quantize_(model, lb.LowBitConfig(bits, 16, modules={"re:.*[ab]": None}))
    x, file = torch.randn(3, 64), io.BytesIO()
    torch.export.save(torch.export.export(model, (x,), strict=strict), file)
    file.seek(0)
    program = torch.export.load(file)
    weights = {name: w for name, w in model.state_dict().items() if isinstance(w, lb.LowBitWeightTensor)}
    assert sorted(weights) == ["0.base.weight", "1.1.0.base.weight"]
    assert all(same(program.state_dict[name], w) for name, w in weights.items())
    torch.testing.assert_close(program.module()(x), model(x))
    calls = [n for n in program.run_decompositions().graph.nodes if n.target is torch.ops.lowbit.linear.default]
    shapes = [[tuple(a.meta["val"].shape) for a in n.args[1:4]] for n in calls]
    assert shapes == [[tuple(t.shape) for t in inner(w)] for w in weights.values()]


@WIDTH
def test_a_cast_model_computes_in_its_new_dtype(bits: int) -> None:
    """Case 52: made in bfloat16, cast to float32; all that the compiled and the exported graph compute is float32."""
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 33, bias=False)).bfloat16()
    lb.quantize_(model, lb.LowBitConfig(bits, 32))
    model.float()
    x = torch.randn(3, 64)
    program = torch.export.export(model, (x,))
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True), program.module()):
        assert run(x).dtype == torch.float32
        torch.testing.assert_close(run(x), model(x))
    calls = [n for n in program.run_decompositions().graph.nodes if n.target is torch.ops.lowbit.linear.default]
    assert len(calls) == 2 and {n.meta["val"].dtype for n in calls} == {torch.float32}


def ways(w: lb.LowBitWeightTensor) -> Iterator[lb.LowBitWeightTensor]:
    """Weights made in every way there is, from parameters too."""
    given = [nn.Parameter(t, requires_grad=False) for t in inner(w)]
    yield from (w, w.clone(), w[3:9], w[:, 32:], copy.deepcopy(w), w.half(), w.detach(), pickle.loads(pickle.dumps(w)))
    yield lb.LowBitWeightTensor(*given, w.bits, w.group_size, w.in_features)
    yield lb.LowBitWeightTensor.from_codes(w.codes(), *given[1:], bits=w.bits, group_size=w.group_size, dtype=w.dtype)


@WIDTH
def test_inner_tensors_are_plain(bits: int) -> None:
    """Case 93: no subclass within the subclass, so a graph that takes the weight as an input is traced."""
    compiled = torch.compile(F.linear, backend="aot_eager", fullgraph=True)
    for w in ways(make(bits, 12, 64, 32)):
        names, _ = w.__tensor_flatten__()
        assert all(type(getattr(w, name)) in (torch.Tensor, nn.Parameter) for name in names)
        x = torch.randn(3, w.shape[1])
        torch.testing.assert_close(compiled(x, w), x @ w.dequantize(torch.float32).t())


@pytest.mark.parametrize("sizes", [lambda w: (w.size(), w.stride()), lambda w: (None, None)], ids=["given", "none"])
@pytest.mark.parametrize("transposed", [False, True], ids=["as-it-lies", "transposed"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_put_together_with_four_arguments(bits: int, transposed: bool, sizes: Callable[[torch.Tensor], tuple[object, object]]) -> None:
    """Case 94: sizes that PyTorch does not know are None."""
    w = make(bits).t() if transposed else make(bits)
    names, context = w.__tensor_flatten__()
    back = lb.LowBitWeightTensor.__tensor_unflatten__({name: getattr(w, name) for name in names}, context, *sizes(w))
    assert same(back, w) and back.shape == w.shape and back.stride() == w.stride()


class Aliasing(nn.Module):
    """Returns its input, views of it, a product, and a view of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 33)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x.view(-1), self.layer(x), x.view(2, -1), self.layer.weight.t()


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_that_share_memory(backend: str, grad: bool) -> None:
    """Case 96."""
    model = Aliasing()
    lb.quantize_(model, lb.LowBitConfig(4, 32))
    x = torch.randn(4, 64, requires_grad=grad)
    got, expected = torch.compile(model, backend=backend, fullgraph=True)(x), model(x)
    for a, b in zip(got[:4], expected[:4], strict=True):
        torch.testing.assert_close(a, b)
    assert got[0].data_ptr() == got[1].data_ptr() == got[3].data_ptr() == x.data_ptr() and same(got[4], expected[4])
