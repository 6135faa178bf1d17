"""Scales and zeros as trainable leaves: gradients through everything, leaves that survive conversions, optimizers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from weights import make

import lowbit_tensor as lb

X = torch.randn(3, 96, generator=torch.Generator().manual_seed(0))
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda w: F.linear(X, w),
    "rows": lambda w: F.linear(X, w[2:5]),
    "chunks": lambda w: F.linear(X, w.chunk(2)[1]) * F.linear(X, w.chunk(2)[0]),
    "columns": lambda w: X[:, :32] @ w[:, :32].t(),
    "copy": lambda w: F.linear(X, w.clone()),
    "cast": lambda w: F.linear(X.double().float(), w.double().float()),
    "cat": lambda w: F.linear(X, torch.cat([w, w[:3]])),
    "cat of columns": lambda w: F.linear(X, torch.cat([w[:, 32:], w[:, :32]], 1)),
    "arithmetic": lambda w: (w * 2 + 1).sin(),
    "norm": lambda w: w.norm(),
    "batched": lambda w: torch.bmm(X[None], w.t()[None]),
    "expanded": lambda w: torch.stack([X, 2 * X]) @ w.t().expand(2, -1, -1),
    "parameter": lambda w: F.linear(X, w.view(2, 6, 96)[1]),
    "embedding": lambda w: F.embedding(torch.tensor([1, 1, 3]), w),
    "from the left": lambda w: w @ X.t(),
}


@pytest.mark.parametrize("name", WAYS)
def test_gradients_reach_scales_and_zeros(name: str) -> None:
    """Those that autograd finds for `scale * code + zero` written out."""
    w = lb.LowBitWeightTensor.from_float(torch.randn(12, 96), 4, 32, scale_dtype=torch.float32)
    leaves = [w.scales.requires_grad_(), w.zeros.requires_grad_()]
    grads = []
    codes = w.codes().float().unflatten(1, (3, 32))
    for weight in (w, (codes * w.scales[..., None] + w.zeros[..., None]).flatten(1)):
        grads.append(torch.autograd.grad(WAYS[name](weight).square().sum(), leaves))
    for got, expected in zip(*grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
        assert expected.abs().sum() > 0
    assert not F.linear(X, w.detach()).requires_grad


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell], ids=lambda kind: kind.__name__)
def test_cells(kind: type) -> None:
    cell = kind(32, 16)
    for name in ("weight_ih", "weight_hh"):
        setattr(cell, name, lb.LowBitWeightTensor.from_float(getattr(cell, name).detach(), 4, 16))
    trained = lb.trainable_parameters(cell)
    out = cell(torch.randn(2, 32), (torch.randn(2, 16), torch.randn(2, 16)) if kind is nn.LSTMCell else torch.randn(2, 16))
    (out[0] if kind is nn.LSTMCell else out).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained.values())


CONVERSIONS = {
    "nothing": lambda m: m.to("cpu"),
    "half": lambda m: m.half(),
    "there and back": lambda m: m.double().float(),
    "share_memory": lambda m: m.share_memory(),
    "apply": lambda m: m.apply(lambda part: None),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_leaves_survive_conversions(name: str) -> None:
    """An optimizer made before goes on with the tensors that the model multiplies with."""
    model = nn.Sequential(nn.Linear(64, 8))
    model[0].weight = make(4, 8, 64)
    leaves = lb.trainable_parameters(model)
    model[0].weight.scales.grad = torch.ones_like(model[0].weight.scales)
    CONVERSIONS[name](model)
    w = model[0].weight
    assert w.scales is leaves["0.weight.scales"] and w.zeros is leaves["0.weight.zeros"] and w.scales.is_leaf
    assert w.scales.grad is not None and model(torch.ones(1, 64, dtype=w.dtype)).requires_grad


def test_leaves_that_cannot_move_are_made_anew() -> None:
    model = nn.Sequential(nn.Linear(64, 8))
    model[0].weight = make(4, 8, 64)
    lb.trainable_parameters(model)
    model.to("meta")
    assert model[0].weight.scales.is_meta and model[0].weight.scales.requires_grad


@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop], ids=lambda kind: kind.__name__
)
def test_optimizers_train_what_was_float16(kind: type[torch.optim.Optimizer]) -> None:
    """The leaves are float32: in float16 Adam's epsilon vanishes, and one step gives no numbers."""
    model = nn.Sequential(nn.Linear(64, 8))
    model[0].weight = lb.LowBitWeightTensor.from_float(model[0].weight.detach(), 4, 16, scale_dtype=torch.float16)
    before = model[0].weight.dequantize()
    leaves = lb.trainable_parameters(model)
    assert torch.equal(model[0].weight.dequantize(), before) and all(p.dtype == torch.float32 for p in leaves.values())
    optimizer, x, losses = kind(leaves.values(), lr=1e-3), torch.randn(64, 64), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_dtype_of_the_leaves() -> None:
    model = nn.Sequential(nn.Linear(64, 8))
    model[0].weight = lb.LowBitWeightTensor.from_float(model[0].weight.detach(), 4, 16, scale_dtype=torch.float16)
    assert lb.trainable_parameters(model, None)["0.weight.scales"].dtype == torch.float16
    assert lb.trainable_parameters(model, torch.bfloat16)["0.weight.scales"].dtype == torch.bfloat16
    with pytest.raises(TypeError, match="scale_dtype: expected"):
        lb.trainable_parameters(model, torch.float64)


IN_PLACE = {
    "linear": lambda w, x: F.linear(x, w),
    "row": lambda w, x: F.linear(x[0], w),
    "matmul": lambda w, x: x[:, :33] @ w,
    "from the left": lambda w, x: w @ x.t(),
    "addmm": lambda w, x: torch.addmm(torch.ones(33), x, w.t()),
    "batched": lambda w, x: torch.stack([x, x]) @ w.t(),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_results_may_be_changed_in_place(name: str) -> None:
    """As by `ReLU(inplace=True)`."""
    w, grads = make(), []
    for weight in (w, w.dequantize()):
        x = torch.randn(3, 100, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = IN_PLACE[name](weight, x)
        y += 1
        y.relu_()
        y.sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
