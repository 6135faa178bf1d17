"""`load_file`: what a path stands for, and config.json beside it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from filekit import NAME, assert_same, mixed, parts_of, settings_of, weight, write_shards
from torch import Tensor, nn

from lowbit_tensor import LowBitConfig, load_file, quantize_, save_file

# What a path stands for


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors: expected a file, an index or a folder"):
        load_file(tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError, match=r"expected a folder with \*\.safetensors, got none"):
        load_file(tmp_path)


def test_a_folder_with_one_file_of_any_name(tmp_path):
    tensors = mixed()
    save_file(tensors, tmp_path / "adapter.safetensors")
    (tmp_path / "README.md").write_text("text")
    assert_same(load_file(tmp_path), tensors)


def test_a_folder_with_one_sharded_set_of_any_name(tmp_path):
    tensors = mixed()
    save_file(tensors, tmp_path / "adapter.safetensors", max_shard_size=100)
    assert_same(load_file(tmp_path), tensors)


TWO_MODELS = {"two_files": ("a.safetensors", "b.safetensors"), "file_and_index": ("model.safetensors", "model.safetensors.index.json")}


@pytest.mark.parametrize("names", TWO_MODELS.values(), ids=TWO_MODELS)
def test_a_folder_with_two_models_is_ambiguous(tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="expected one model") as caught:
        load_file(tmp_path)
    assert all(name in str(caught.value) for name in names)


# config.json


def write_folder(folder: Path, tensors: dict[str, Tensor], config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def quantization(**fields: Any) -> dict[str, Any]:
    return {"model_type": "x", "quantization_config": {"quant_method": "lowbit", "version": 1, "bits": 4, "group_size": 16} | fields}


AGREE = {
    "plain": quantization(),
    "whole_row": quantization(bits=3, modules={"layer": {"bits": 4, "group_size": 16}}),
    "full_config": quantization(**LowBitConfig(4, 16, scale_dtype=torch.float16).to_json()),
    "rule_for_a_layer_elsewhere": quantization(modules={"q_proj": {"bits": 2}}),
    "other_method": {"quantization_config": {"quant_method": "gptq", "bits": 2}},
    "no_settings": {"model_type": "x"},
    "settings_of_none": {"quantization_config": None},
}


@pytest.mark.parametrize("config", AGREE.values(), ids=AGREE)
def test_config_json_that_agrees(tmp_path, config):
    tensors = {NAME: weight(), "bias": torch.ones(2)}
    assert_same(load_file(write_folder(tmp_path, tensors, config)), tensors)


def test_config_json_with_a_whole_row_agrees_with_its_length(tmp_path):
    """Case 79."""
    tensors = {NAME: weight(group=-1)}
    assert_same(load_file(write_folder(tmp_path, tensors, quantization(group_size=-1))), tensors)


DEEP_RULES = '{"a": {"bits": 4, "modules": ' * 200 + "{}" + "}}" * 200
DISAGREE = {
    "bits": (quantization(bits=3), NAME),
    "group_size": (quantization(group_size=32), NAME),
    "whole_row": (quantization(group_size=-1), NAME),
    "rule": (quantization(modules={"layer": {"bits": 8, "group_size": 16}}), NAME),
    "float_by_rule": (quantization(modules={"layer": None}), NAME),
    "version": (quantization(version=2), "version"),
    "no_version": (quantization(version=None), "version"),
    "unknown_field": (quantization(desc_act=True), "desc_act"),
    "bits_9": (quantization(bits=9), "bits"),
    "bits_text": (quantization(bits="4"), "bits"),
    "group_size_float": (quantization(group_size=16.0), "group_size"),
    "method_list": (quantization(method=[]), "method"),
    "modules_list": (quantization(modules=["a"]), "modules"),
    "pattern": (quantization(modules={"re:(": None}), "re:("),
    "scale_dtype": (quantization(scale_dtype="int8"), "scale_dtype"),
    "deep_rules": (json.dumps(quantization(modules=0)).replace("0}", DEEP_RULES + "}"), "modules"),
    "deep": ("[" * 100_000, "config.json"),
    "no_json": ("{", "config.json"),
    "list": ("[]", "config.json"),
}


@pytest.mark.parametrize(("config", "named"), DISAGREE.values(), ids=DISAGREE)
def test_config_json_that_disagrees_or_is_damaged(tmp_path, config, named):
    with pytest.raises(ValueError, match="expected") as caught:
        load_file(write_folder(tmp_path, {NAME: weight()}, config))
    assert named in str(caught.value)


def language_model(tied: bool) -> nn.Module:
    layers, head = nn.ModuleList([nn.Linear(16, 16)]), nn.Linear(16, 20, bias=False)
    model = nn.ModuleDict({"embed": nn.Embedding(20, 16), "layers": layers, "lm_head": head})
    if tied:
        model["lm_head"].weight = model["embed"].weight
    return nn.ModuleDict({"model": model})


RULE = LowBitConfig(8, 16)
AS_QUANTIZED = {
    "no_rules": (False, LowBitConfig(4, 16)),
    "embeddings": (True, LowBitConfig(4, 16, embeddings=True)),
    "rule_for_a_head": (True, LowBitConfig(4, 16, modules={"lm_head": RULE})),
    "rule_for_an_embedding_that_a_head_follows": (True, LowBitConfig(4, 16, modules={"embed": RULE})),
    "container_beside_embeddings": (False, LowBitConfig(4, 16, embeddings=True, modules={"model": RULE})),
    "container_left_float_beside_a_head": (True, LowBitConfig(4, 16, embeddings=True, modules={"model": None})),
}


@pytest.mark.parametrize(("tied", "config"), AS_QUANTIZED.values(), ids=AS_QUANTIZED)
def test_what_quantize_made_agrees_with_its_config(tmp_path, tied, config):
    """Containers reach no head or embedding, a tied head follows its embedding: reading must know what `quantize_` does."""
    model = language_model(tied)
    assert quantize_(model, config).quantized
    tensors = model.state_dict()
    assert_same(load_file(write_folder(tmp_path, tensors, quantization(**config.to_json()))), tensors)


def test_the_parts_of_a_weight_may_lie_in_other_shards(tmp_path):
    """docs/format.md, 5: the entry stands with the codes."""
    w = weight()
    parts = parts_of(w)
    first, second, third = ({key: parts[key]} for key in parts)
    index = write_shards(tmp_path, (second, None), (first, settings_of(w)), (third | {"bias": torch.ones(2)}, None))
    assert_same(load_file(index), {NAME: w, "bias": torch.ones(2)})
