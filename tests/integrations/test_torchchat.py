"""torchchat's quantization options: every key, every form of refusal, and the config they make for a model."""

import json
import re

import pytest
import torch
from torch import nn

from lowbit_tensor import LowBitConfig, LowBitWeightTensor, quantize_
from lowbit_tensor.integrations.torchchat import DTYPES, parse

LINEAR, EMBEDDING = "linear:afpwx", "embedding:wx"


def options(**parts: object) -> str:
    """`linear`, `embedding` and `precision` under torchchat's keys."""
    return json.dumps({{"linear": LINEAR, "embedding": EMBEDDING}.get(key, key): value for key, value in parts.items()})


def model() -> nn.Module:
    inner = nn.ModuleDict({"tok_embeddings": nn.Embedding(20, 16), "layers": nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])})
    return nn.ModuleDict({"model": inner, "norm": nn.LayerNorm(16), "output": nn.Linear(16, 20, bias=False)})


def widths(net: nn.Module) -> dict[str, tuple[int, int] | None]:
    """{name: (bits, group_size) or None} of Linears and Embeddings."""
    layers = {name: m.weight for name, m in net.named_modules() if isinstance(m, (nn.Linear, nn.Embedding))}
    return {name: (w.bits, w.group_size) if isinstance(w, LowBitWeightTensor) else None for name, w in layers.items()}


# Reading


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_linear_part(bits):
    got = parse(options(linear={"bitwidth": bits, "groupsize": 256}))
    assert (got.linear, got.embedding, got.dtype) == (LowBitConfig(bits, 256), None, None)


def test_the_embedding_part():
    got = parse(options(embedding={"bitwidth": 4, "groupsize": 32}))
    assert (got.linear, got.embedding, got.dtype) == (None, LowBitConfig(4, 32), None)


def test_all_parts():
    text = '{"linear:afpwx": {"bitwidth": 3, "groupsize": 64}, "embedding:wx": {"bitwidth": 8}, "precision": {"dtype": "bf16"}}'
    got = parse(text)
    assert (got.linear, got.embedding, got.dtype) == (LowBitConfig(3, 64), LowBitConfig(8, 64), torch.bfloat16)


@pytest.mark.parametrize(("groupsize", "group_size"), [(0, -1), (-1, -1), (32, 32), (1, 1)])
def test_a_groupsize_of_0_is_a_whole_row(groupsize, group_size):
    """Case 79."""
    assert parse(options(linear={"bitwidth": 4, "groupsize": groupsize})).linear == LowBitConfig(4, group_size)


def test_the_groupsize_left_out_is_64():
    assert parse(options(linear={"bitwidth": 4})).linear == LowBitConfig(4, 64)


NAMES = {
    torch.float32: ("fp32", "float32", "float"),
    torch.float16: ("fp16", "float16", "half"),
    torch.bfloat16: ("bf16", "bfloat16"),
}


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for d, names in NAMES.items() for n in names], ids=lambda v: str(v))
def test_precision_names(name, dtype):
    assert parse(options(linear={"bitwidth": 4}, precision={"dtype": name})).dtype is dtype


def test_there_are_no_other_precision_names():
    assert sorted(DTYPES) == sorted(n for names in NAMES.values() for n in names)


def test_settings_go_into_both_parts():
    got = parse(options(linear={"bitwidth": 4}, embedding={"bitwidth": 8}), method="minmax", scale_dtype="float32", symmetric=True)
    settings = {"method": "minmax", "scale_dtype": torch.float32, "symmetric": True}
    assert (got.linear, got.embedding) == (LowBitConfig(4, **settings), LowBitConfig(8, **settings))


@pytest.mark.parametrize("prefix", ["", " \n\t"], ids=["plain", "blanks"])
def test_options_from_a_file(tmp_path, prefix):
    (tmp_path / "quant.json").write_text(prefix + options(linear={"bitwidth": 5, "groupsize": 32}))
    assert parse(str(tmp_path / "quant.json")).linear == LowBitConfig(5, 32)


def test_blanks_before_the_text():
    assert parse("\n  " + options(linear={"bitwidth": 5})).linear == LowBitConfig(5, 64)


# Refusals

REFUSED = {
    "unknown_key": ('{"linear:int4": {"bitwidth": 4}}', "'linear:int4'"),
    "unknown_beside_known": (options(linear={"bitwidth": 4}, executor={"accelerator": "mps"}), "'executor'"),
    "unknown_field": (options(linear={"bitwidth": 4, "has_weight_zeros": False}), "'has_weight_zeros'"),
    "no_bitwidth": (options(linear={"groupsize": 32}), "bitwidth"),
    "linear_number": (options(linear=4), "4"),
    "linear_null": (options(linear=None), "None"),
    "linear_list": (options(linear=["bitwidth", "groupsize"]), "bitwidth"),
    "bitwidth_0": (options(linear={"bitwidth": 0}), "1 to 8, got 0"),
    "bitwidth_9": (options(embedding={"bitwidth": 9}), "1 to 8, got 9"),
    "bitwidth_text": (options(linear={"bitwidth": "4"}), "integer"),
    "bitwidth_true": (options(linear={"bitwidth": True}), "integer"),
    "bitwidth_list": (options(linear={"bitwidth": [4]}), "integer"),
    "groupsize_negative": (options(linear={"bitwidth": 4, "groupsize": -32}), "got -32"),
    "groupsize_text": (options(linear={"bitwidth": 4, "groupsize": "32"}), "integer"),
    "groupsize_float": (options(linear={"bitwidth": 4, "groupsize": 32.0}), "integer"),
    "groupsize_false": (options(linear={"bitwidth": 4, "groupsize": False}), "integer"),
    "groupsize_0.0": (options(linear={"bitwidth": 4, "groupsize": 0.0}), "integer"),
    "groupsize_null": (options(linear={"bitwidth": 4, "groupsize": None}), "integer"),
    "nothing": ("{}", "neither"),
    "precision_alone": (options(precision={"dtype": "fp16"}), "neither"),
    "precision_int8": (options(linear={"bitwidth": 4}, precision={"dtype": "int8"}), "int8"),
    "precision_text": (options(linear={"bitwidth": 4}, precision="fp16"), "fp16"),
    "precision_empty": (options(linear={"bitwidth": 4}, precision={}), "{}"),
    "precision_extra": (options(linear={"bitwidth": 4}, precision={"dtype": "fp16", "x": 1}), "'x'"),
    "precision_list": (options(linear={"bitwidth": 4}, precision={"dtype": ["fp16"]}), "['fp16']"),
    "precision_object": (options(linear={"bitwidth": 4}, precision={"dtype": {}}), "{}"),
    "cut": ('{"linear:afpwx": {"bitwidth": 4', "JSON"),
    "quotes": ("{'linear:afpwx': {'bitwidth': 4}}", "JSON"),
    "deep": ('{"a":' * 100_000, "JSON"),
    "no_file": ("quant.json", "'quant.json'"),
    "empty": ("", "''"),
    "list": ("[4]", "'[4]'"),
    "folder": (".", "'.'"),
    "null_byte": ("a\0b", "JSON"),
    "long_text": ("linear:" + "x" * 5_000, "JSON"),
}


@pytest.mark.parametrize(("text", "named"), REFUSED.values(), ids=REFUSED)
def test_other_options_are_a_value_error(text, named):
    """Case 34 and its kind: the option is named, and what came."""
    with pytest.raises(ValueError, match=r"^--quantize: .*expected") as caught:
        parse(text)
    assert named in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "3", "{", ""], ids=["list", "number", "cut", "empty"])
def test_files_of_other_things_are_a_value_error(tmp_path, text):
    (tmp_path / "quant.json").write_text(text)
    with pytest.raises(ValueError, match=r"^--quantize: expected"):
        parse(str(tmp_path / "quant.json"))


def test_settings_that_do_not_fit_name_the_part():
    with pytest.raises(ValueError, match=re.escape("--quantize: embedding:wx: method: expected")):
        parse(options(embedding={"bitwidth": 4}), method="awq")


# The config for a model

LAYERS = ("model.layers.0", "model.layers.1")
CONFIGS = {
    "linear": ({"linear": {"bitwidth": 4, "groupsize": 8}}, (4, 8), None),
    "embedding": ({"embedding": {"bitwidth": 8, "groupsize": 0}}, None, (8, 16)),
    "both": ({"linear": {"bitwidth": 3, "groupsize": 16}, "embedding": {"bitwidth": 2, "groupsize": 4}}, (3, 16), (2, 4)),
}


@pytest.mark.parametrize(("parts", "linear", "embedding"), CONFIGS.values(), ids=CONFIGS)
def test_a_model_gets_what_the_options_say(parts, linear, embedding):
    net = model()
    quantize_(net, parse(options(**parts)).config(net))
    assert widths(net) == dict.fromkeys(LAYERS, linear) | {"model.tok_embeddings": embedding, "output": None}


@pytest.mark.parametrize("linear", [(4, 16), None], ids=["with_linear", "embedding_alone"])
def test_a_tied_head_follows_its_embedding(linear):
    """Case 66: the two share one tensor, also where the options say nothing of Linears."""
    net = model()
    net["output"].weight = net["model"]["tok_embeddings"].weight
    parts = {"embedding": {"bitwidth": 8, "groupsize": 16}} | ({"linear": {"bitwidth": 4, "groupsize": 16}} if linear else {})
    quantize_(net, parse(options(**parts)).config(net))
    assert widths(net) == dict.fromkeys(LAYERS, linear) | {"model.tok_embeddings": (8, 16), "output": (8, 16)}
    assert net["output"].weight is net["model"]["tok_embeddings"].weight


def test_the_config_has_a_json_form():
    config = parse(options(linear={"bitwidth": 4}, embedding={"bitwidth": 8}), method="lsq").config(model())
    assert config == LowBitConfig(4, method="lsq", modules={"model.tok_embeddings": LowBitConfig(8, method="lsq")})
    assert LowBitConfig.from_json(config.to_json()) == config


def test_a_model_without_embeddings_takes_the_linear_part():
    net = nn.Sequential(nn.Linear(16, 16))
    quantize_(net, parse(options(linear={"bitwidth": 4}, embedding={"bitwidth": 8})).config(net))
    assert widths(net) == {"0": (4, 64)}
