"""The ops as `mps` gets them: arguments checked before any launch, calls that the kernels do not cover, all ops registered."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import emulation
import metal_emu
import pytest
import torch
from samples import BAD_WEIGHTS, NO_FLOAT64, Weight, random_weight

import lowbit_tensor as lb
from lowbit_tensor import metal
from lowbit_tensor.metal import OPS, covers, launch


def weight(device: torch.device) -> Weight:
    return random_weight((5, 100), 3, 16, device=device)


CALLS: dict[str, Callable[[Weight], tuple[Any, ...]]] = {
    "linear": lambda w: (torch.ones(2, w.length), *w.parts, None, *w.layout),
    "matmul": lambda w: (torch.ones(2, 5), *w.all),
    "dequantize": lambda w: (*w.all, torch.float32),
    "embedding": lambda w: (torch.tensor([0, 2]), *w.all, torch.float32),
}


def moved(arguments: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    """The same on the device, but for what is without data on purpose."""
    return tuple(a.to(device) if isinstance(a, torch.Tensor) and not a.is_meta else a for a in arguments)


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("wrong", [pytest.param(w, marks=[NO_FLOAT64] * ("float64" in w)) for w in BAD_WEIGHTS])
def test_parts_that_make_no_weight(op: str, wrong: str, device: torch.device) -> None:
    """Refused as the reference refuses them, and nothing is launched."""
    changes, error, text = BAD_WEIGHTS[wrong]
    metal_emu.log.clear()
    with pytest.raises(error, match=text):
        OPS[op](*moved(CALLS[op](weight(device).broken(changes)), device))
    assert not metal_emu.log


WRONG: dict[str, tuple[str, Callable[[Weight], tuple[Any, ...]], type[Exception], str]] = {
    "x of float64": ("linear", lambda w: (torch.ones(2, 100).double(), *w.parts, None, *w.layout), TypeError, "x of float64"),
    "x of int64": ("matmul", lambda w: (torch.ones(2, 5).long(), *w.all), TypeError, "x of int64"),
    "x too short": ("linear", lambda w: (torch.ones(2, 90), *w.parts, None, *w.layout), ValueError, "for 90 columns"),
    "x without dimensions": ("linear", lambda w: (torch.ones(()), *w.parts, None, *w.layout), ValueError, "without dimensions"),
    "bias too long": ("linear", lambda w: (torch.ones(2, 100), *w.parts, torch.ones(6), *w.layout), ValueError, r"float bias \[5\]"),
    "parts on another device": (
        "linear",
        lambda w: (torch.ones(2, 100), w.packed, w.scales.to("meta"), w.zeros, None, *w.layout),
        ValueError,
        "expected all tensors on",
    ),
    "indices of float": ("embedding", lambda w: (torch.ones(2), *w.all, torch.float32), TypeError, "int32 or int64 indices"),
    "indices out of range": ("embedding", lambda w: (torch.tensor([5]), *w.all, torch.float32), IndexError, "indices of 0 to 4"),
    "codes out of range": ("pack", lambda w: (torch.tensor([[8]]), 3), ValueError, "codes of 0 to 7"),
    "codes of float": ("pack", lambda w: (torch.ones(1, 8), 3), TypeError, "integer codes"),
    "bytes too few": ("unpack", lambda w: (w.packed, 3, 120), ValueError, r"\[\.\.\., 45\] bytes"),
    "a weight that is no float": (
        "encode",
        lambda w: (torch.ones(5, 100).long(), w.scales, w.zeros, *w.layout),
        TypeError,
        "floating-point",
    ),
    "a weight with a NaN": (
        "quantize",
        lambda w: (torch.full((5, 100), torch.nan), 3, 16, "minmax", torch.float16, False, False),
        ValueError,
        "is nan",
    ),
    "a NaN to encode": ("encode", lambda w: (torch.full((5, 100), torch.nan), w.scales, w.zeros, *w.layout), ValueError, "is nan"),
    "a method that is none": (
        "quantize",
        lambda w: (torch.ones(5, 100), 3, 16, "awq", torch.float16, False, False),
        ValueError,
        "expected one of",
    ),
    "too few experts": (
        "grouped_linear",
        lambda w: (torch.ones(2, 100), *(p[None] for p in w.parts), torch.zeros(3, dtype=torch.int64), *w.layout),
        ValueError,
        r"expert \[2\]",
    ),
    "a gradient of other rows": ("parameter_grad", lambda w: (torch.ones(4, 100), w.packed, *w.layout), ValueError, "same rows"),
}


@pytest.mark.parametrize("name", [pytest.param(w, marks=[NO_FLOAT64] * ("float64" in w)) for w in WRONG])
def test_wrong_arguments(name: str, device: torch.device) -> None:
    """Cases 49 and 63: an error of ours before anything is launched."""
    op, arguments, error, text = WRONG[name]
    metal_emu.log.clear()
    with pytest.raises(error, match=text):
        OPS[op](*moved(arguments(weight(device)), device))
    assert not [entry for entry in metal_emu.log if entry[0].startswith(op)]


def test_all_ops_are_registered_for_mps() -> None:
    names = {name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("lowbit::")}
    assert names == set(OPS)
    for name in names:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"lowbit::{name}", "MPS"), name


@pytest.mark.parametrize(
    ("group", "length", "covered"),
    [(16, 100, True), (8, 7, True), (12, 100, False), (12, 12, True), (7, 100, False), (100, 100, True), (1000, 3, True)],
)
def test_what_the_kernels_cover(group: int, length: int, covered: bool) -> None:
    assert covers(group, length) == covered


def test_other_groups_take_the_reference_and_say_so_once(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal, "_SAID", set())
    odd = random_weight((5, 100), 3, 12, device=device)
    x = torch.randn(2, 100, device=device)
    metal_emu.log.clear()
    with pytest.warns(UserWarning, match="groups of 12, which are no multiple of 8, take the plain reference"):
        y = OPS["linear"](x, *odd.parts, None, *odd.layout)
    torch.testing.assert_close(y.cpu().double(), x.cpu().double() @ odd.exact().T, rtol=1e-4, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OPS["linear"](x, *odd.parts, None, *odd.layout)
        OPS["dequantize"](*odd.all, torch.float32)
    assert not metal_emu.log
    with pytest.warns(UserWarning, match="groups of 9"):
        OPS["quantize"](torch.randn(5, 100, device=device), 3, 9, "minmax", torch.float16, False, False)


def test_empty_tensors_launch_nothing(device: torch.device) -> None:
    none = random_weight((5, 0), 4, 16, device=device)
    some = random_weight((5, 64), 4, 16, device=device)
    metal_emu.log.clear()
    assert launch.linear(torch.ones(0, 64, device=device), *some.parts, None, *some.layout).shape == (0, 5)
    assert launch.linear(torch.ones(2, 0, 64, device=device), *some.parts, None, *some.layout).shape == (2, 0, 5)
    assert launch.dequantize(*none.all, torch.float32).shape == (5, 0)
    assert launch.embedding(torch.zeros(0, dtype=torch.int64, device=device), *some.all, torch.float32).shape == (0, 64)
    assert launch.matmul(torch.ones(0, 5, device=device), *some.all).shape == (0, 64)
    assert not metal_emu.log
    bias = torch.randn(5, device=device)
    assert torch.equal(launch.linear(torch.ones(3, 0, device=device), *none.parts, bias, *none.layout), bias.expand(3, 5))


@pytest.mark.parametrize("bits", [1, 3, 4, 8])
def test_a_layer_and_its_gradients(bits: int, device: torch.device) -> None:
    """A model on the device, forward and backward, through the very registrations: without a device, for the CPU's key."""
    metal_emu.log.clear()
    with emulation.registered() if device.type == "cpu" else nullcontext():
        model = torch.nn.Sequential(torch.nn.Linear(64, 33), torch.nn.ReLU(), torch.nn.Linear(33, 8)).to(device)
        lb.quantize_(model, lb.LowBitConfig(bits, 32))
        assert {part.device.type for part in model.state_dict().values()} == {device.type}
        twin, results = [layer.weight.dequantize() if hasattr(layer, "weight") else None for layer in model], []
        x = torch.randn(3, 64, device=device, requires_grad=True)
        for forward in (model, lambda x: torch.relu(x @ twin[0].t() + model[0].bias) @ twin[2].t() + model[2].bias):
            y = forward(x)
            results.append((y, torch.autograd.grad(y.square().sum(), [x, model[0].bias])))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
    if device.type == "cpu":
        assert {name.split("_")[0] for name, _, _ in metal_emu.log} >= {"rows", "tiles", "encode"}


def test_changed_copies_of_a_weight_are_no_aliases(device: torch.device) -> None:
    """A kernel's outputs never overlap its inputs, whatever views it is given."""
    w = weight(device)
    y = launch.linear(torch.ones(2, 100, device=device).expand(2, 100), *replace(w, zeros=w.scales).parts, None, *w.layout)
    assert y.isfinite().all()


OTHERS: dict[str, Callable[[Weight], tuple[Any, ...]]] = {
    "grouped_linear": lambda w: (torch.ones(3, 100), *(torch.stack([p, p]) for p in w.parts), torch.tensor([0, 1, 1]), *w.layout),
    "grouped_matmul": lambda w: (
        torch.ones(3, 5),
        *(p.expand(2, *p.shape).clone() for p in w.parts),
        torch.tensor([0, 1, 1]),
        *w.layout,
        100,
    ),
    "parameter_grad": lambda w: (torch.ones(5, 100), w.packed, *w.layout),
    "encode": lambda w: (torch.randn(5, 100), w.scales, w.zeros, *w.layout),
    "pack": lambda w: (torch.randint(0, 8, (5, 100)), 3),
    "unpack": lambda w: (w.packed, 3, 100),
    "quantize": lambda w: (torch.randn(5, 100), 3, 16, "minmax", torch.float16, False, False),
    **CALLS,
}


@pytest.mark.parametrize("op", OTHERS)
def test_each_op_is_the_reference_on_its_kernel(op: str, device: torch.device) -> None:
    """And each asks whether its kernel is to be trusted."""
    from torch.utils._pytree import tree_leaves

    from lowbit_tensor.metal import selftest

    arguments = OTHERS[op](weight(torch.device("cpu")))
    expected = getattr(torch.ops.lowbit, op)(*arguments)
    got = OPS[op](*moved(arguments, device))
    for a, b in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-4)
    assert {key[0] for key in selftest._OUTCOMES} == {"encode" if op == "quantize" else op}
