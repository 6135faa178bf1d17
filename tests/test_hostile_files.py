"""Damaged and hostile files and indexes: refused with the tensor's name, before anything is read."""

import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from filekit import NAME, PARTS, assert_same, parts_of, settings_of, weight, write_shards
from torch import Tensor

from lowbit_tensor import LowBitWeightTensor, load_file, save_file

# Hostile files


def write(path: Path, tensors: dict[str, Tensor], lowbit: Any) -> Path:
    metadata = {"lowbit": lowbit if isinstance(lowbit, str) else json.dumps(lowbit)}
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    return path


def refused(path: Path, *names: str, mmap: bool = True) -> None:
    """Loading is a ValueError that names the file or the tensor."""
    with pytest.raises(ValueError) as caught:
        load_file(path, mmap=mmap)
    message = str(caught.value)
    assert any(name in message for name in (*names, path.name, NAME)), message


BAD_VALUES: dict[str, dict[str, Any]] = {
    "bits": {
        "0": 0, "9": 9, "3": 3, "text": "4", "float": 4.0, "true": True, "null": None, "list": [4], "10**400": 10**400,
    },
    "group_size": {
        "0": 0, "-1": -1, "-16": -16, "2**31": 2**31, "2**64": 2**64, "8": 8, "40": 40, "text": "16", "float": 16.0, "null": None,
    },
    "shape": {
        "rows": [7, 40], "columns": [6, 41], "more": [6, 43], "swapped": [40, 6], "dims": [1, 6, 40], "flat": [240], "empty": [],
        "negative": [-6, 40], "huge": [2**62, 2**62], "2**63": [6, 2**63], "wraps": [6, 2**61 + 40], "float": [6.0, 40],
        "true": [True, 40], "text": "6x40", "null": None, "object": {"0": 6}, "1e5_dims": [1] * 100_000, "nested": [[6], [40]],
    },
    "dtype": {"int8": "int8", "torch": "torch.float32", "list": ["float32"], "null": None},
    "code": {"extra_field": "import os"},
}  # fmt: skip
ENTRIES = {f"{field}_{name}": {field: value} for field, values in BAD_VALUES.items() for name, value in values.items()}


@pytest.mark.parametrize("changes", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_that_cannot_be(path, changes):
    """Cases 127, 130."""
    w = weight()
    refused(write(path, parts_of(w), settings_of(w, **changes)))


def with_aliases(aliases: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda s: s | {"aliases": aliases}


SETTINGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "version_2": lambda s: s | {"version": 2},
    "version_0": lambda s: s | {"version": 0},
    "version_text": lambda s: s | {"version": "1"},
    "version_true": lambda s: s | {"version": True},
    "version_float": lambda s: s | {"version": 1.0},
    "no_version": lambda s: {"tensors": s["tensors"]},
    "no_tensors": lambda s: {"version": 1},
    "unknown_key": lambda s: s | {"eval": "1"},
    "tensors_list": lambda s: s | {"tensors": [NAME]},
    "entry_list": lambda s: s | {"tensors": {NAME: [4, 16]}},
    "entry_null": lambda s: s | {"tensors": {NAME: None}},
    "entry_without_bits": lambda s: s | {"tensors": {NAME: {k: v for k, v in s["tensors"][NAME].items() if k != "bits"}}},
    "entry_of_nothing": lambda s: s | {"tensors": s["tensors"] | {"ghost": s["tensors"][NAME]}},
    "aliases_list": with_aliases([NAME]),
    "alias_of_nothing": with_aliases({"head": "ghost"}),
    "alias_of_itself": with_aliases({"head": "head"}),
    "alias_of_an_alias": with_aliases({"head": NAME, "tail": "head"}),
    "alias_under_a_stored_name": with_aliases({NAME: NAME}),
    "alias_under_a_float_name": with_aliases({"bias": NAME}),
    "alias_of_a_part": with_aliases({"head": f"{NAME}.packed"}),
    "alias_list": with_aliases({"head": [NAME]}),
    "list": lambda s: [s],
    "null": lambda s: None,
    "no_json": lambda s: "{",
    "empty": lambda s: "",
    "deep": lambda s: "[" * 100_000,
    "deep_object": lambda s: '{"tensors":' * 50_000,
    "long_number": lambda s: '{"version": ' + "1" * 100_000 + "}",
}


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_settings_that_cannot_be(path, change):
    """Case 127."""
    w = weight()
    refused(write(path, parts_of(w) | {"bias": torch.ones(2)}, change(settings_of(w))), "ghost", "head", "tail", "bias")


def part(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda parts: parts | {f"{NAME}.{name}": change(parts[f"{NAME}.{name}"]).contiguous()}


def filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda t: t.clone().index_put_((torch.tensor(-1), torch.tensor(-1)), torch.tensor(value, dtype=t.dtype))


DAMAGED: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    **{f"no_{name}": (lambda parts, name=name: {k: v for k, v in parts.items() if k != f"{NAME}.{name}"}) for name in PARTS},
    **{f"{name}_row_missing": part(name, lambda t: t[1:]) for name in PARTS},
    **{f"{name}_column_missing": part(name, lambda t: t[:, 1:]) for name in PARTS},
    **{f"{name}_empty": part(name, lambda t: t[:0]) for name in PARTS},
    **{f"{name}_flat": part(name, lambda t: t.reshape(-1)) for name in PARTS},
    **{f"{name}_scalar": part(name, lambda t: t[0, 0]) for name in PARTS},
    **{f"{name}_int32": part(name, lambda t: t.int()) for name in PARTS},
    **{f"{name}_{value}": part(name, filled(value)) for name in ("scales", "zeros") for value in (math.nan, math.inf, -math.inf)},
    "packed_int8": part("packed", lambda t: t.view(torch.int8)),
    "scales_float64": part("scales", lambda t: t.double()),
    "zeros_of_another_dtype": part("zeros", lambda t: t.float()),
    "also_float": lambda parts: parts | {NAME: torch.ones(6, 40)},
}


@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "read"])
@pytest.mark.parametrize("change", DAMAGED.values(), ids=DAMAGED)
def test_parts_that_do_not_make_the_weight(path, change, mmap):
    """Case 130."""
    w = weight()
    refused(write(path, change(parts_of(w)), settings_of(w)), mmap=mmap)


def test_the_undamaged_file_is_read(path):
    """What the tests above change, unchanged."""
    w = weight()
    assert_same(load_file(write(path, parts_of(w), settings_of(w))), {NAME: w})


def test_low_bit_parts_without_settings_are_refused(path):
    safetensors.torch.save_file(parts_of(weight()), path)
    refused(path)


def raw(path: Path, head: bytes | dict[str, Any], data: bytes = b"") -> Path:
    head = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path


def tensor(dtype: str = "U8", shape: list[Any] | None = None, offsets: list[Any] | None = None) -> dict[str, Any]:
    return {NAME: {"dtype": dtype, "shape": [4] if shape is None else shape, "data_offsets": [0, 4] if offsets is None else offsets}}


HEADERS: dict[str, bytes | dict[str, Any]] = {
    "deep": b"[" * 100_000,
    "deep_object": b'{"a":' * 100_000,
    "no_json": b"{",
    "list": b"[]",
    "not_utf8": b'{"\xff": 1}',
    "offset_past_the_end": tensor(offsets=[0, 2**62]),
    "offset_negative": tensor(offsets=[-4, 0]),
    "offset_reversed": tensor(offsets=[4, 0]),
    "shape_2**32_x_2**32": tensor(shape=[2**32, 2**32]),
    "shape_2**63": tensor(shape=[2**63, 2]),
    "shape_of_1e6_dims": tensor(shape=[1] * 1_000_000),
    "shape_negative": tensor(shape=[-4]),
    "unknown_dtype": tensor("Q4"),
    "size_of_another_dtype": tensor("F32"),
    "metadata_list": {"__metadata__": []},
    "metadata_number": {"__metadata__": {"lowbit": 1}},
    "metadata_deep": b'{"__metadata__": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
}


@pytest.mark.parametrize("head", HEADERS.values(), ids=HEADERS)
def test_headers_that_cannot_be(path, head):
    """Case 127."""
    refused(raw(path, head, b"1234"))


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**62, 2**63, 2**64 - 1], ids=str)
def test_a_header_length_that_cannot_be(path, length):
    """Case 127."""
    path.write_bytes(struct.pack("<Q", length) + b'{"a": 1}')
    refused(path)


@pytest.mark.parametrize("shape", [[0, 2**40, 2**40], [0, 2**62, 8]], ids=str)
def test_huge_sizes_of_a_tensor_without_elements(path, shape):
    """Case 127: no bytes to hold them against."""
    groups = [*shape[:-1], -(-shape[-1] // 16)]
    head = {"__metadata__": {"lowbit": json.dumps(settings_of(weight(), bits=8, shape=shape))}}
    for name, dtype, size in (("packed", "U8", shape), ("scales", "F16", groups), ("zeros", "F16", groups)):
        head[f"{NAME}.{name}"] = {"dtype": dtype, "shape": size, "data_offsets": [0, 0]}
    refused(raw(path, head))


def test_a_file_cut_at_any_byte(path):
    """Case 127."""
    save_file({NAME: weight(), "bias": torch.ones(2)}, path)
    data = path.read_bytes()
    cut = path.with_name("cut.safetensors")
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        refused(cut)
    cut.write_bytes(data + b"\0")
    refused(cut)


def flip(path: Path, tries: int) -> int:
    """Changes bytes of the header at random; returns how often that was refused. Anything but a ValueError escapes."""
    save_file({NAME: weight(), "bias": torch.ones(2), "z": torch.ones(2)}, path, metadata={"format": "pt"})
    data, errors = path.read_bytes(), 0
    size = struct.unpack("<Q", data[:8])[0] + 8
    for _ in range(tries):
        damaged = bytearray(data)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(size)] = random.choice((random.randrange(256), ord("0"), ord("9"), ord('"'), ord("-")))
        path.write_bytes(damaged)
        try:
            load_file(path)
        except ValueError:
            errors += 1
    return errors


@pytest.mark.parametrize("tries", [500, pytest.param(50_000, marks=pytest.mark.full)])
def test_headers_with_bytes_changed_at_random(path, tries):
    """Case 127: every outcome is the tensors or a ValueError."""
    assert tries // 2 < flip(path, tries)


# Hostile indexes


INDEXES: dict[str, tuple[Any, type[Exception]]] = {
    "parent": ({"a": "../x.safetensors"}, ValueError),
    "absolute": ({"a": "/etc/passwd"}, ValueError),
    "subfolder": ({"a": "sub/x.safetensors"}, ValueError),
    "empty_name": ({"a": ""}, ValueError),
    "dot": ({"a": "."}, ValueError),
    "dots": ({"a": ".."}, ValueError),
    "number": ({"a": 1}, ValueError),
    "list": ({"a": ["x.safetensors"]}, ValueError),
    "null_byte": ({"a": "x\0.safetensors"}, (ValueError, FileNotFoundError)),
    "long_name": ({"a": "x" * 5_000}, (ValueError, FileNotFoundError)),
    "surrogate": ({"a": "\ud800.safetensors"}, (ValueError, FileNotFoundError)),
    "folder": ({"a": "sub"}, (ValueError, FileNotFoundError)),
    "the_index_itself": ({"a": "model.safetensors.index.json"}, ValueError),
    "missing_shard": ({"a": "x.safetensors", "b": "gone.safetensors"}, FileNotFoundError),
    "tensor_that_no_shard_has": ({"a": "x.safetensors", "ghost": "x.safetensors"}, ValueError),
    "map_empty": ({}, ValueError),
    "map_list": ([], ValueError),
    "map_null": (None, ValueError),
}


@pytest.mark.parametrize(("weight_map", "error"), INDEXES.values(), ids=INDEXES)
def test_an_index_that_cannot_be(tmp_path, weight_map, error):
    """Case 127; no shard outside its folder is opened."""
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for place in (tmp_path, folder, folder / "sub"):
        safetensors.torch.save_file({"a": torch.ones(2)}, place / "x.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(error) as caught:
        load_file(index)
    assert any(name in str(caught.value) for name in (index.name, "ghost", "sub"))


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\xff"], ids=["empty", "no_json", "list", "deep", "not_utf8"])
def test_an_index_that_is_no_json_object(tmp_path, text):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text, encoding="latin-1")
    refused(index)


def test_a_part_in_two_shards(tmp_path):
    w = weight()
    parts = parts_of(w)
    index = write_shards(tmp_path, (parts, settings_of(w)), ({f"{NAME}.zeros": w.zeros}, None))
    refused(index)


def test_an_entry_in_two_shards(tmp_path):
    w = weight()
    index = write_shards(tmp_path, (parts_of(w), settings_of(w)), ({"bias": torch.ones(2)}, settings_of(w)))
    refused(index)


def test_a_part_in_no_shard(tmp_path):
    w = weight()
    parts = parts_of(w)
    del parts[f"{NAME}.scales"]
    refused(write_shards(tmp_path, (parts, settings_of(w)), ({"bias": torch.ones(2)}, None)))


def test_a_part_in_another_shard_than_the_index_says(tmp_path):
    w = weight()
    index = write_shards(tmp_path, (parts_of(w), settings_of(w)), ({"bias": torch.ones(2)}, None))
    data = json.loads(index.read_text())
    shards = sorted(set(data["weight_map"].values()))
    data["weight_map"]["bias"] = next(shard for shard in shards if shard != data["weight_map"]["bias"])
    index.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"bias: expected it in .*, got it in"):
        load_file(index)


def test_doubled_settings(path):
    """Python's reader would take the last of two and say nothing."""
    w = weight()
    text = json.dumps(settings_of(w))
    for twice in (text[:-1] + ', "version": 1}', text.replace('"bits": 4', '"bits": 4, "bits": 4')):
        assert twice != text
        with pytest.raises(ValueError, match="stands there twice"):
            load_file(write(path, parts_of(w), twice))


@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "read"])
def test_unused_bits_that_are_set(path, mmap):
    """A shape one column short: the rows have as many bytes, and only these bits tell."""
    w = LowBitWeightTensor.from_codes(torch.full((4, 16), 15), torch.ones(4, 1), torch.zeros(4, 1), bits=4, group_size=64)
    settings = settings_of(w)
    settings["tensors"][NAME]["shape"] = [4, 15]
    write(path, parts_of(w), settings)
    with pytest.raises(ValueError, match=rf"{NAME}: .*unused bits of 0"):
        load_file(path, mmap=mmap)


@pytest.mark.parametrize("part", ["scales", "zeros"])
def test_what_could_not_be_loaded_is_not_saved(path, part):
    w = weight()
    getattr(w, part)[0, 0] = math.nan
    with pytest.raises(ValueError, match=rf"save_file: {NAME}: expected finite {part}"):
        save_file({NAME: w}, path)
    assert not path.exists()
