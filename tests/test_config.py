"""`LowBitConfig` and `Rules`: what is refused, the JSON form, and which pattern holds for which module (docs/api.md, 5)."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch import nn

from lowbit_tensor import DEFAULT_METHOD, METHODS, LowBitConfig, quantize_
from lowbit_tensor.config import NO_RULE, Rules

FOUR, EIGHT, TWO = LowBitConfig(4), LowBitConfig(8), LowBitConfig(2)
FULL = LowBitConfig(
    3, 32, "minmax", torch.bfloat16, symmetric=True, integral_zero=True, embeddings=True,
    modules={"lm_head": None, "up_proj": LowBitConfig(5, -1, "lsq", torch.float32), "re:.*down": EIGHT},
)  # fmt: skip


def rule_of(modules: dict[str, LowBitConfig | None], name: str, *others: str) -> Any:
    return Rules(LowBitConfig(4, modules=modules), [name, *others]).find(name)[0]


def nested(depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {"bits": 4}
    for _ in range(depth):
        data = {"bits": 4, "modules": {"a": data}}
    return data


# Fields

BAD_FIELDS = [
    ("bits", 0, ValueError, "1 to 8", "0"),
    ("bits", 9, ValueError, "1 to 8", "9"),
    ("bits", -4, ValueError, "1 to 8", "-4"),
    ("bits", 4.0, TypeError, "integer", "4.0"),
    ("bits", "4", TypeError, "integer", "'4'"),
    ("bits", True, TypeError, "integer", "True"),
    ("bits", None, TypeError, "integer", "None"),
    ("group_size", 0, ValueError, "-1 for a whole row", "0"),
    ("group_size", -2, ValueError, "-1 for a whole row", "-2"),
    ("group_size", 2**31, ValueError, "2**31 - 1", str(2**31)),
    ("group_size", 2**64, ValueError, "2**31 - 1", str(2**64)),
    ("group_size", 3.5, TypeError, "integer", "3.5"),
    ("group_size", "64", TypeError, "integer", "'64'"),
    ("group_size", None, TypeError, "integer", "None"),
    ("method", "awq", ValueError, "minmax", "'awq'"),
    ("method", None, (TypeError, ValueError), "minmax", "None"),
    ("method", ["minmax"], (TypeError, ValueError), "minmax", "['minmax']"),
    ("scale_dtype", torch.float64, TypeError, "torch.float16", "torch.float64"),
    ("scale_dtype", "int8", TypeError, "torch.float16", "'int8'"),
    ("scale_dtype", 16, TypeError, "torch.float16", "16"),
    ("symmetric", 1, TypeError, "True or False", "1"),
    ("integral_zero", "yes", TypeError, "True or False", "'yes'"),
    ("embeddings", None, TypeError, "True or False", "None"),
    ("activation", "int8", ValueError, "None", "'int8'"),
    ("activation", False, ValueError, "None", "False"),
    ("modules", [("a", None)], TypeError, "pattern", "list"),
    ("modules", {"a": 4}, TypeError, "LowBitConfig or None", "int"),
    ("modules", {"a": {"bits": 4}}, TypeError, "LowBitConfig or None", "dict"),
    ("modules", {"": None}, TypeError, "not empty", "''"),
    ("modules", {3: None}, TypeError, "strings", "3"),
    ("modules", {"re:(": None}, ValueError, "regular expression", "'re:('"),
    ("modules", {"a": LowBitConfig(4, modules={"b": None})}, ValueError, "without modules", "'a'"),
]


@pytest.mark.parametrize(("field", "value", "error", "expected", "got"), BAD_FIELDS, ids=[f"{f}={v!r}"[:40] for f, v, *_ in BAD_FIELDS])
def test_a_bad_field_names_itself_what_was_expected_and_what_came(field, value, error, expected, got):
    """Cases 33, 34: group sizes that are none, and every other field."""
    with pytest.raises(error) as caught:
        LowBitConfig(**({"bits": 4} | {field: value}))
    message = str(caught.value)
    assert field in message and "expected" in message and expected in message and got in message


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("method", METHODS)
def test_every_width_and_method_is_taken(bits, method):
    config = LowBitConfig(bits, method=method)
    assert (config.bits, config.method) == (bits, method)


@pytest.mark.parametrize("group_size", [-1, 1, 7, 64, 2**31 - 1])
def test_group_sizes_are_taken(group_size):
    assert LowBitConfig(4, group_size).group_size == group_size


def test_bits_are_required():
    with pytest.raises(TypeError, match="bits"):
        LowBitConfig()


def test_one_symmetric_bit_has_no_integral_zero():
    with pytest.raises(ValueError, match="symmetric with integral_zero: expected 2 bits"):
        LowBitConfig(1, symmetric=True, integral_zero=True)


def test_defaults_are_those_of_the_docs():
    assert dataclasses.asdict(LowBitConfig(4)) == {
        "bits": 4, "group_size": 64, "method": DEFAULT_METHOD, "scale_dtype": None, "symmetric": False, "integral_zero": False,
        "activation": None, "embeddings": False, "modules": {},
    }  # fmt: skip


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FOUR.bits = 5


def test_the_rules_are_a_copy():
    rules: dict[str, LowBitConfig | None] = {"a": None}
    config = LowBitConfig(4, modules=rules)
    rules["b"] = None
    assert config.modules == {"a": None}


@pytest.mark.parametrize("name", ["float16", "torch.float16", "bfloat16", "torch.bfloat16", "float32", "torch.float32"])
def test_scale_dtypes_go_by_name(name):
    assert LowBitConfig(4, scale_dtype=name).scale_dtype is getattr(torch, name.removeprefix("torch."))


# JSON


@pytest.mark.parametrize("config", [FOUR, FULL], ids=["defaults", "all_fields"])
def test_json_round_trip(config):
    plain = config.to_json()
    assert LowBitConfig.from_json(plain) == config
    assert LowBitConfig.from_json(json.dumps(plain)) == config
    assert LowBitConfig.from_json(json.dumps(plain)).to_json() == plain


def test_json_is_of_plain_values():
    plain = FULL.to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["scale_dtype"] == "bfloat16" and plain["modules"]["lm_head"] is None
    assert plain["modules"]["up_proj"]["scale_dtype"] == "float32" and plain["modules"]["up_proj"]["group_size"] == -1


BAD_JSON = {
    "unknown": ({"bits": 4, "bit": 4}, "'bit'"),
    "unknown_in_rule": ({"bits": 4, "modules": {"a": {"bits": 4, "wbits": 4}}}, "'wbits'"),
    "two_unknown": ({"bits": 4, "y": 1, "x": 2}, "'x', 'y'"),
    "no_bits": ({"group_size": 64}, "bits"),
    "list": ([4], "list"),
    "text_list": ("[4]", "list"),
    "text_no_json": ("{bits: 4}", "JSON"),
    "text_empty": ("", "JSON"),
    "rule_is_number": ({"bits": 4, "modules": {"a": 4}}, "int"),
    "deep_text": ("[" * 100_000, "JSON"),
    "deep_rules_text": ('{"bits": 4, "modules": {"a": ' * 5_000 + "0" + "}}" * 5_000, "JSON"),
    "deep_rules_under_the_json_limit": (json.dumps(nested(200)), "modules"),
    "deep_rules_dict": (nested(3_000), "modules"),
}


@pytest.mark.parametrize(("data", "got"), BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_is_a_value_error(data, got):
    with pytest.raises(ValueError, match="expected") as caught:
        LowBitConfig.from_json(data)
    assert got in str(caught.value)


# Equality


def test_equal_configs_have_one_hash():
    other = LowBitConfig.from_json(FULL.to_json() | {"modules": dict(reversed(FULL.to_json()["modules"].items()))})
    assert list(other.modules) != list(FULL.modules)
    assert other == FULL and hash(other) == hash(FULL) and len({other, FULL}) == 1


@pytest.mark.parametrize("field", ["bits", "group_size", "method", "scale_dtype", "symmetric", "integral_zero", "embeddings", "modules"])
def test_every_field_tells_configs_apart(field):
    other = dataclasses.replace(FOUR, **{field: getattr(FULL, field)})
    assert other != FOUR and len({other, FOUR}) == 2


def test_default_is_the_config_without_rules():
    assert FULL.default == dataclasses.replace(FULL, modules={}, embeddings=False)


# Rules

DECISIONS = {
    "full_beats_suffix": ({"m.0.up": TWO, "up": EIGHT}, "m.0.up", TWO),
    "full_beats_re": ({"re:.*up": EIGHT, "m.0.up": TWO}, "m.0.up", TWO),
    "suffix_beats_re": ({"re:m.*": EIGHT, "up": TWO}, "m.0.up", TWO),
    "two_part_suffix": ({"mlp.up": TWO}, "m.0.mlp.up", TWO),
    "none_leaves_float": ({"up": None}, "m.0.up", None),
    "re_is_of_the_whole_name": ({"re:up": TWO, "re:.*down": EIGHT}, "m.down", EIGHT),
    "container_full": ({"m.0": TWO}, "m.0.mlp.up", TWO),
    "container_suffix": ({"mlp": TWO}, "m.0.mlp.up", TWO),
    "innermost_full": ({"m": EIGHT, "m.0": TWO}, "m.0.mlp.up", TWO),
    "innermost_suffix": ({"block": EIGHT, "mlp": TWO}, "m.block.mlp.up", TWO),
    "innermost_of_both_kinds": ({"m": EIGHT, "mlp": TWO}, "m.0.mlp.up", TWO),
    "own_name_beats_container": ({"m.0": EIGHT, "m.0.up": TWO}, "m.0.up", TWO),
    "own_suffix_beats_outer_suffix": ({"mlp": EIGHT, "up": TWO}, "m.mlp.up", TWO),
    "innermost_of_a_repeated_name": ({"b": TWO}, "b.b.b", TWO),
}


@pytest.mark.parametrize(("modules", "name", "rule"), DECISIONS.values(), ids=DECISIONS)
def test_which_pattern_wins(modules, name, rule):
    """Case 126."""
    assert rule_of(modules, name, "other.up", "up") is rule


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("layers.1", "m.layers.10.up"), ("layers.1", "m.xlayers.1.up"), ("up", "m.gate_up"), ("up", "m.up_proj"), ("m.l", "m.ll"),
     ("re:up", "m.up"), ("re:m", "m.up"), ("1", "m.11")],
    ids=lambda v: v,
)  # fmt: skip
def test_a_pattern_is_no_part_of_a_word(pattern, name):
    """Case 126: "layers.1" must not hit "layers.10"."""
    assert rule_of({pattern: TWO}, name, pattern.removeprefix("re:")) is NO_RULE


def test_layers_1_and_layers_10_each_get_their_own():
    """Case 126."""
    modules = {"layers.1": TWO, "layers.10": EIGHT}
    names = [f"m.layers.{i}.up" for i in range(12)]
    found = {i: rule_of(modules, name, *names) for i, name in enumerate(names)}
    assert {i: rule for i, rule in found.items() if rule is not NO_RULE} == {1: TWO, 10: EIGHT}


@pytest.mark.parametrize(
    ("pattern", "named"),
    [("m.up", True), ("up", True), ("re:m.up", True), ("m", False)],
    ids=["full", "suffix", "re", "container"],
)
def test_find_tells_a_name_from_a_container(pattern, named):
    assert Rules(LowBitConfig(4, modules={pattern: TWO}), ["m.up"]).find("m.up") == (TWO, named)


@pytest.mark.parametrize("patterns", [("up", "mlp.up"), ("re:.*up", "re:m.*"), ("mlp", "0.mlp")], ids=["suffixes", "re", "containers"])
def test_a_tie_is_an_error_that_names_both(patterns):
    with pytest.raises(ValueError, match="tie") as caught:
        rule_of(dict.fromkeys(patterns, TWO), "m.0.mlp.up")
    assert all(repr(part) in str(caught.value) for part in (*patterns, "m.0.mlp.up"))


def test_unmatched_patterns_are_an_error_that_names_each():
    """Cases 81, 126."""
    with pytest.raises(ValueError, match="match none") as caught:
        rule_of({"up": TWO, "q_proj": EIGHT, "re:k": None}, "m.up")
    assert "'q_proj', 're:k'" in str(caught.value) and "'up'" not in str(caught.value)


def test_unmatched_patterns_pass_where_names_are_a_part_only():
    rules = Rules(LowBitConfig(4, modules={"q_proj": EIGHT}), ["m.up"], strict=False)
    assert rules.find("m.up") == (NO_RULE, False)


@pytest.mark.parametrize("modules", [{"0": TWO, "nowhere": TWO}, {"re:0": TWO, "re:[0]": EIGHT}], ids=["unmatched", "tie"])
def test_rules_that_do_not_fit_change_nothing(modules):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    before = [model[0].weight, model[1].weight]
    with pytest.raises(ValueError, match="modules: expected"):
        quantize_(model, LowBitConfig(4, 8, modules=modules))
    assert model[0].weight is before[0] and model[1].weight is before[1]
