"""Offloading by accelerate: weights that lie elsewhere between the calls."""

from __future__ import annotations

import copy
from pathlib import Path

import accelerate
import pytest
import torch
from accelerate.hooks import remove_hook_from_submodules
from accelerate.utils import set_module_tensor_to_device
from torch import nn
from weights import WIDTHS, same

import lowbit_tensor as lb


@pytest.fixture
def model() -> nn.Module:
    net = nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 48), nn.ReLU(), nn.Sequential(nn.Linear(48, 8, bias=False)))
    lb.quantize_(net, lb.LowBitConfig(4, 32, embeddings=True, modules={"1": lb.LowBitConfig(3, -1)}))
    return net


@pytest.mark.parametrize("buffers", [False, True], ids=["parameters", "buffers"])
def test_cpu_offload(model: nn.Module, buffers: bool) -> None:
    """Case 60: the same outputs call after call, nothing but meta tensors between them, and the bytes come back."""
    ids, twin = torch.randint(0, 20, (3, 5)), copy.deepcopy(model)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"), offload_buffers=buffers)
    for _ in range(2):
        assert torch.equal(model(ids), twin(ids))
        assert type(model[1].weight) is lb.LowBitWeightTensor and all(p.is_meta for p in model.parameters())
    remove_hook_from_submodules(model)
    assert all(same(model.get_parameter(name), p) for name, p in twin.named_parameters() if isinstance(p, lb.LowBitWeightTensor))
    assert torch.equal(model(ids), twin(ids))


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_weight_goes_and_comes_back(bits: int) -> None:
    """Case 60: accelerate makes parameters by the class of the weight, given a tensor and requires_grad."""
    layer = nn.Linear(64, 8)
    layer.weight = lb.LowBitWeightTensor.from_float(layer.weight, bits, 32)
    x, before = torch.randn(2, 64), layer.weight.clone()
    y = layer(x)
    set_module_tensor_to_device(layer, "weight", "meta")
    assert layer.weight.is_meta and type(layer.weight) is lb.LowBitWeightTensor
    set_module_tensor_to_device(layer, "weight", "cpu", value=before)
    assert same(layer.weight, before) and torch.equal(layer(x), y)


def test_disk_offload_is_refused(model: nn.Module, tmp_path: Path) -> None:
    """Case 60: it stores plain arrays, which would lose the codes; nothing is offloaded."""
    ids, twin = torch.randint(0, 20, (3, 5)), copy.deepcopy(model)
    with pytest.raises(NotImplementedError, match=r"use w\.dequantize\(\)"):
        accelerate.disk_offload(model, tmp_path, execution_device=torch.device("cpu"))
    assert torch.equal(model(ids), twin(ids)) and not any(p.is_meta for p in model.parameters())
