"""Low-bit weights in PyTorch's own layers and utilities: the results of the same layer with the dequantized weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import lowbit_tensor as lb

LB = lb.LowBitWeightTensor


def low_bit(module: nn.Module, bits: int = 6, group_size: int = 16) -> nn.Module:
    """Every matrix among the parameters as a low-bit weight."""
    for part in module.modules():
        for name, p in list(part.named_parameters(recurse=False)):
            if p.dim() == 2:
                setattr(part, name, LB.from_float(p.detach(), bits, group_size))
    return module


def plain(module: nn.Module) -> nn.Module:
    twin = copy.deepcopy(module)
    lb.dequantize_(twin)
    return twin


def check(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Outputs, and the gradients of the first input, are those of the dequantized weights; there is something low-bit in it."""
    assert any(isinstance(p, LB) for p in module.parameters())
    results = []
    for net in (module, plain(module)):
        x = args[0].clone().requires_grad_(args[0].is_floating_point() and torch.is_grad_enabled())
        out = [t for t in tree_leaves(net(x, *args[1:], **kwargs)) if t is not None]
        if x.requires_grad:
            sum(t.square().sum() for t in out).backward()
        results.append([*out, *([x.grad] if x.requires_grad else [])])
    for got, expected in zip(*results, strict=True):
        assert type(got) is torch.Tensor
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Tensor], tuple[Any, ...]]]] = {
    "MultiheadAttention": (lambda: nn.MultiheadAttention(32, 4, batch_first=True), lambda x: (x, x, x)),
    "MultiheadAttention, keys of their own": (lambda: nn.MultiheadAttention(32, 4, batch_first=True), lambda x: (x, x + 1, x)),
    "MultiheadAttention, values of 16": (
        lambda: nn.MultiheadAttention(32, 4, kdim=32, vdim=16, batch_first=True),
        lambda x: (x, x, x[..., :16]),
    ),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 2, enable_nested_tensor=False),
        lambda x: (x,),
    ),
    "Transformer": (lambda: nn.Transformer(32, 4, 1, 1, 64, 0.0, batch_first=True), lambda x: (x, x)),
    "LSTM": (lambda: nn.LSTM(32, 16, 2), lambda x: (x,)),
    "GRU": (lambda: nn.GRU(32, 16, bidirectional=True), lambda x: (x,)),
    "RNN": (lambda: nn.RNN(32, 16), lambda x: (x,)),
    "RNN of relu": (lambda: nn.RNN(32, 16, nonlinearity="relu"), lambda x: (x,)),
    "GRUCell": (lambda: nn.GRUCell(32, 16), lambda x: (x[0],)),
    "LSTMCell": (lambda: nn.LSTMCell(32, 16), lambda x: (x[0],)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad], ids=lambda m: m.__name__)
def test_layers(name: str, mode: type) -> None:
    make, inputs = LAYERS[name]
    layer = low_bit(make().eval())
    with mode():
        check(layer, *inputs(torch.randn(3, 5, 32)))


def test_bilinear() -> None:
    layer = nn.Bilinear(16, 16, 8)
    layer.weight = LB.from_float(layer.weight.detach(), 6, 16)
    check(layer, torch.randn(5, 16), torch.randn(5, 16))


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, nn.GRU], ids=lambda kind: kind.__name__)
def test_scales_within_a_layer_are_trained(kind: type) -> None:
    """PyTorch's own code within these layers would lose the gradient without a word."""
    layer, x = low_bit(kind(32, 4)), torch.randn(3, 5, 32)
    trained = lb.trainable_parameters(layer)
    layer(*(x, x, x) if kind is nn.MultiheadAttention else (x,))[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in trained.values())
    assert all(p.grad is None for p in layer.parameters())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_embedding_bag(mode: str, padding: int | None) -> None:
    bag = nn.EmbeddingBag(10, 32, mode=mode, padding_idx=padding)
    bag.weight = LB.from_float(torch.randn(10, 32), 5, 16)
    ids, offsets = torch.tensor([1, 2, 2, 4, 9, 2, 0]), torch.tensor([0, 3, 3, 5])
    torch.testing.assert_close(bag(ids, offsets), plain(bag)(ids, offsets))
    torch.testing.assert_close(bag(ids.view(1, 7)), plain(bag)(ids.view(1, 7)))


def test_embedding_bag_weights_and_gradients() -> None:
    w, ids, offsets = LB.from_float(torch.randn(10, 32), 5, 16), torch.tensor([1, 2, 2, 4]), torch.tensor([0, 1, 4])
    factors = torch.rand(4, requires_grad=True)
    options = {"offsets": offsets, "mode": "sum", "include_last_offset": True}
    w.scales.requires_grad_()
    result = F.embedding_bag(ids, w, per_sample_weights=factors, **options)
    expected = F.embedding_bag(ids, w.dequantize(), per_sample_weights=factors, **options)
    torch.testing.assert_close(result, expected)
    for got, want in zip(*(torch.autograd.grad(y.square().sum(), (factors, w.scales)) for y in (result, expected)), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)
    with pytest.raises(NotImplementedError, match=r"max_norm.*use w\.dequantize\(\)"):
        F.embedding_bag(ids, w, offsets, max_norm=1.0)


UTILITIES: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "parametrizations.weight_norm": nn.utils.parametrizations.weight_norm,
    "weight_norm": nn.utils.weight_norm,
    "parametrizations.spectral_norm": nn.utils.parametrizations.spectral_norm,
    "prune.l1_unstructured": lambda m: prune.l1_unstructured(m, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("name", UTILITIES)
def test_utilities(name: str) -> None:
    layer = low_bit(nn.Linear(32, 8)).eval()
    twin, x = plain(layer), torch.randn(3, 32)
    results = []
    for net in (layer, twin):
        torch.manual_seed(1)
        results.append(UTILITIES[name](net).eval()(x))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("multi", [False, True], ids=["one by one", "foreach"])
def test_averaged_models(multi: bool) -> None:
    """An average over time of low-bit weights is re-quantized at each update."""
    layer = low_bit(nn.Linear(32, 8), bits=8)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5) if multi else None
    model = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=average, avg_fn=None if multi else lambda a, b, n: (a + b) / 2)
    model.update_parameters(layer)
    first = layer.weight.dequantize()
    with torch.no_grad():
        layer.weight.zero_()
    model.update_parameters(layer)
    assert type(model.module.weight) is LB
    assert (model.module.weight.dequantize() - first / 2).abs().max() < 2e-3


def test_ensembles() -> None:
    """`torch.func.stack_module_state` stacks low-bit weights, `vmap` runs over them."""
    nets = [low_bit(nn.Linear(32, 8)) for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(nets)
    assert type(parameters["weight"]) is LB and parameters["weight"].shape == (3, 8, 32)
    base, x = copy.deepcopy(nets[0]).to("meta"), torch.randn(5, 32)
    result = torch.vmap(lambda p, x: torch.func.functional_call(base, p, (x,)), in_dims=(0, None))(parameters, x)
    torch.testing.assert_close(result, torch.stack([net(x) for net in nets]), rtol=1e-5, atol=1e-5)
    assert type(torch.utils.data.default_collate([net.weight for net in nets])) is LB


def test_flops_are_those_of_a_float_layer() -> None:
    layer, x = low_bit(nn.Linear(32, 8)), torch.randn(3, 5, 32)
    counts = []
    for net in (layer, plain(layer)):
        with FlopCounterMode(display=False) as counter:
            net(x)
        counts.append(counter.get_total_flops())
    assert counts == [2 * 15 * 32 * 8] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_default_dtypes_and_devices_change_nothing(dtype: torch.dtype) -> None:
    w, x = torch.randn(8, 48), torch.randn(3, 48)

    def everything() -> list[torch.Tensor]:
        made = [LB.from_float(w, bits, 16, method) for bits in (2, 3, 4, 5, 8) for method in lb.METHODS]
        return [t for q in made for t in (q.codes(), q.scales, q.dequantize(), F.linear(x, q), x[:, :8] @ q, q[2:].clone().add_(1).scales)]

    before, default = everything(), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            after = everything()
    finally:
        torch.set_default_dtype(default)
    assert all(a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_fake_tensors() -> None:
    """Shapes without values: weights can be made, loaded and multiplied."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        w = LB.from_float(torch.empty(8, 64), 4, 32)
        assert F.linear(torch.empty(3, 64), w).shape == (3, 8) and w.scales.dtype == torch.float16
        lb.quantize_(model := nn.Sequential(nn.Linear(64, 8)), lb.LowBitConfig(4))
        assert model(torch.empty(3, 64)).shape == (3, 8)
