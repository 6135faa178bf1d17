"""The weight in nn.Module: conversions under every setting of torch.__future__, buffers, hooks, parametrizations, optimizers."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize

import lowbit_tensor as lb
from lowbit_tensor.tensor import INNER


def make(bits: int = 4) -> lb.LowBitWeightTensor:
    return lb.LowBitWeightTensor.from_float(torch.randn(8, 64), bits, 32)


def layer(bits: int = 4) -> nn.Linear:
    linear = nn.Linear(64, 8)
    linear.weight = make(bits)
    return linear


@contextmanager
def future(swap: bool, overwrite: bool) -> Iterator[None]:
    settings = torch.__future__
    before = settings.get_swap_module_params_on_conversion(), settings.get_overwrite_module_params_on_conversion()
    settings.set_swap_module_params_on_conversion(swap)
    settings.set_overwrite_module_params_on_conversion(overwrite)
    try:
        yield
    finally:
        settings.set_swap_module_params_on_conversion(before[0])
        settings.set_overwrite_module_params_on_conversion(before[1])


@pytest.mark.parametrize("swap", [False, True], ids=["no-swap", "swap"])
@pytest.mark.parametrize("overwrite", [False, True], ids=["keep", "overwrite"])
def test_conversions(swap: bool, overwrite: bool) -> None:
    linear = layer(5)
    codes, scales = linear.weight.codes(), linear.weight.scales.clone()
    with future(swap, overwrite):
        for convert, dtype in ((linear.half, torch.float16), (linear.bfloat16, torch.bfloat16), (linear.float, torch.float32)):
            convert()
            assert type(linear.weight) is lb.LowBitWeightTensor and linear.weight.dtype == linear.bias.dtype == dtype
        assert torch.equal(linear.weight.codes(), codes) and torch.equal(linear.weight.scales, scales)
        linear.to("meta")
        assert linear.weight.is_meta and all(getattr(linear.weight, name).is_meta for name in INNER)
        linear.to_empty(device="cpu")
        assert not linear.weight.is_meta and linear(torch.zeros(2, 64)).shape == (2, 8)


@pytest.mark.parametrize("swap", [False, True], ids=["no-swap", "swap"])
@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
def test_state_dicts(swap: bool, assign: bool) -> None:
    source, target = layer(5), layer(5)
    with future(swap, False):
        target.load_state_dict(source.state_dict(), assign=assign)
    assert torch.equal(target.weight.codes(), source.weight.codes()) and torch.equal(target.weight.scales, source.weight.scales)


def test_the_parameter_object_stays() -> None:
    """So an optimizer that holds it goes on with the right one."""
    linear = layer()
    with future(True, False):
        weight = linear.weight
        linear.half()
        assert linear.weight is weight and weight.dtype == torch.float16


def test_weak_references() -> None:
    """PyTorch swaps a converted subclass in place, which it refuses under a weak reference; a new weight is the way out."""
    linear = layer()
    reference = weakref.ref(linear.weight)
    assert reference() is linear.weight
    with pytest.raises(RuntimeError, match="Couldn't swap"):
        linear.half()
    linear.weight = linear.weight.half()
    assert linear.weight.dtype == torch.float16 and reference() is None


def test_registered_buffers_stay_buffers() -> None:
    module = nn.Module()
    module.register_buffer("table", make())
    assert list(module.state_dict()) == ["table"] and not list(module.parameters())
    module.half()
    assert type(module.table) is lb.LowBitWeightTensor and module.table.dtype == torch.float16 and not list(module.parameters())
    twin = copy.deepcopy(module)
    assert torch.equal(twin.table.codes(), module.table.codes()) and not list(twin.parameters())


def test_buffers_stay_buffers_whatever_is_made_of_them() -> None:
    module = nn.Module()
    module.register_buffer("table", make(), persistent=False)
    module.kept = nn.Buffer(make())
    module.table = module.table.half()
    module.kept = module.kept.detach().clone()
    assert module.kept.dtype == torch.float32 and module.table.dtype == torch.float16
    assert list(module._buffers) == ["table", "kept"] and list(module.state_dict()) == ["kept"] and not list(module.parameters())
    for assign in (False, True):
        module.load_state_dict({name: t.clone() for name, t in module.state_dict().items()}, assign=assign)
        assert list(module._buffers) == ["table", "kept"] and not list(module.parameters())
    module.kept = nn.Parameter(module.kept, requires_grad=False)
    assert list(module._parameters) == ["kept"] and isinstance(module.kept, nn.Parameter)


def test_transposes_and_detached_weights_are_no_parameters() -> None:
    """As those of a plain parameter: a module keeps them as attributes. What is a weight of its own is taken as one."""
    linear = layer()
    linear.cache, linear.plain = linear.weight.t(), linear.weight.detach()
    assert list(linear.state_dict()) == ["weight", "bias"]
    for new in (linear.weight[:4], linear.weight.clone(), linear.weight.half(), linear.weight[:, :32], copy.deepcopy(linear.weight)):
        linear.weight = new
    linear.weight = nn.Parameter(linear.cache.t(), requires_grad=False)
    assert list(linear.state_dict()) == ["weight", "bias"] and linear.weight.shape == (8, 64)


@pytest.mark.parametrize("swap", [False, True], ids=["no-swap", "swap"])
def test_attributes_of_others_stay(swap: bool) -> None:
    """Servers put a loader and the sharded dimension on a parameter."""
    linear = layer()
    linear.weight.output_dim, linear.weight.weight_loader = 0, print
    with future(swap, False):
        linear.half().to("meta")
        linear.to_empty(device="cpu")
    assert linear.weight.output_dim == 0 and linear.weight.weight_loader is print and linear.weight.dtype == torch.float16


def test_a_change_is_seen_by_a_backward_that_needs_the_old_bytes() -> None:
    w, x = make(), torch.randn(3, 64, requires_grad=True)
    y = nn.functional.linear(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_pinning_and_moves_are_those_of_a_plain_tensor() -> None:
    """Without an accelerator both refuse to pin, in the same words."""
    w, messages = make(), []
    for t in (w, torch.ones(2)):
        assert not t.is_pinned()
        with pytest.raises(RuntimeError) as error:
            t.pin_memory()
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    moved = w.to("cpu", torch.bfloat16, non_blocking=True, copy=True)
    assert torch.equal(moved.codes(), w.codes()) and moved.dtype == torch.bfloat16 and w.to("cpu", non_blocking=True) is w


def test_functional_call() -> None:
    linear, weight, x = layer(), make(6), torch.randn(3, 64)
    result = functional_call(linear, {"weight": weight}, (x,))
    torch.testing.assert_close(result, x @ weight.dequantize().t() + linear.bias, rtol=1e-5, atol=1e-5)


class Doubled(nn.Module):
    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w * 2


def test_parametrizations() -> None:
    """They compute a plain weight from the low-bit one."""
    linear, x = layer(), torch.randn(3, 64)
    plain = linear.weight.dequantize()
    parametrize.register_parametrization(linear, "weight", Doubled(), unsafe=True)
    torch.testing.assert_close(linear(x), x @ (2 * plain).t() + linear.bias, rtol=1e-5, atol=1e-5)


def test_hooks() -> None:
    linear, seen = layer(), []
    linear.register_forward_pre_hook(lambda module, args: seen.append("before"))
    linear.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    linear.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append(tuple(grad_in[0].shape)))
    linear(torch.randn(3, 64, requires_grad=True)).sum().backward()
    assert seen == ["before", (3, 8), (3, 64)]


OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad]


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_optimizers_over_all_parameters(kind: type[torch.optim.Optimizer]) -> None:
    """The bias is trained, the codes are left as they are."""
    linear = layer()
    before, bias = linear.weight.dequantize(), linear.bias.detach().clone()
    optimizer = kind(linear.parameters(), lr=0.1)
    linear(torch.randn(3, 64)).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(linear.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(linear.weight.dequantize(), before) and not torch.equal(linear.bias, bias)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def test_initialisations() -> None:
    linear = layer()
    linear.reset_parameters()
    assert type(linear.weight) is lb.LowBitWeightTensor and linear.weight.dequantize().abs().max() < 0.2
    for init in (nn.init.zeros_, nn.init.ones_, nn.init.normal_, nn.init.xavier_uniform_):
        init(linear.weight)
    nn.init.constant_(linear.weight, 0.5)
    assert torch.equal(linear.weight.dequantize(), torch.full((8, 64), 0.5))


@pytest.mark.parametrize("prefix", ["", "inner."], ids=["plain", "prefix"])
def test_state_dict_prefix(prefix: str) -> None:
    state = layer().state_dict(prefix=prefix)
    assert list(state) == [f"{prefix}weight", f"{prefix}bias"] and type(state[f"{prefix}weight"]) is lb.LowBitWeightTensor
