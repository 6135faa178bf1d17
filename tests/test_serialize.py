"""`save_file`, `load_file`, pickles: what is written comes back; damaged and hostile files are refused (docs/format.md, 5)."""

import hashlib
import io
import json
import math
import os
import pickle
import pickletools
import random
import re
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from lowbit_tensor import LowBitConfig, LowBitWeightTensor, load_file, packed_nbytes, quantize_, save_file, trainable_parameters
from lowbit_tensor.serialize import parse_size
from lowbit_tensor.tensor import rebuild

NAME = "layer.weight"
PARTS = ("packed", "scales", "zeros")


def weight(
    *shape: int, bits: int = 4, group: int = 16, dtype: torch.dtype = torch.float32, scales: torch.dtype = torch.float16
) -> LowBitWeightTensor:
    return LowBitWeightTensor.from_float(torch.randn(shape or (6, 40), dtype=dtype), bits, group, "minmax", scales)


def mixed() -> dict[str, Tensor]:
    """Low-bit tensors of several formats, float and integer ones."""
    return {
        "a.weight": weight(bits=3),
        "a.bias": torch.randn(6),
        "b.weight": weight(5, 33, bits=7, group=33, dtype=torch.bfloat16, scales=torch.float32),
        "norm": torch.randn(8).half(),
        "steps": torch.tensor(7),
    }


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(got) == sorted(expected)
    for name, t in expected.items():
        other = got[name]
        assert type(other) is type(t) and other.dtype == t.dtype and other.shape == t.shape, name
        if isinstance(t, LowBitWeightTensor):
            assert other.format == t.format and other.scales.dtype == t.scales.dtype, name
            assert all(torch.equal(getattr(other, part), getattr(t, part)) for part in PARTS), name
        else:
            assert torch.equal(other, t), name


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def header(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])


def settings(path: Path) -> dict[str, Any]:
    return json.loads(header(path)["__metadata__"]["lowbit"])


def child(code: str, *args: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return done.stdout.strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


# One file


@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "read"])
def test_mixed_tensors_come_back(path, mmap):
    """Cases 72, 76."""
    tensors = mixed()
    assert save_file(tensors, path) == [path]
    assert_same(load_file(path, mmap=mmap), tensors)


@pytest.mark.parametrize("scales", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_width_and_dtype_comes_back(path, dtype, scales):
    tensors = {f"w{bits}": weight(3, 29, bits=bits, group=8, dtype=dtype, scales=scales) for bits in range(1, 9)}
    save_file(tensors, path)
    assert_same(load_file(path), tensors)


@pytest.mark.parametrize("shape", [(3, 4, 24), (2, 3, 4, 9), (0, 24), (1, 1), (3, 1)], ids=str)
def test_every_shape_comes_back(path, shape):
    tensors = {"w": weight(*shape, group=8)}
    save_file(tensors, path)
    assert_same(load_file(path), tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn, torch.complex64, torch.int64, torch.uint16, torch.bool], ids=str)
def test_other_dtypes_are_stored_plainly(path, dtype):
    tensors = {"t": torch.arange(-3, 3).to(dtype)}
    save_file(tensors, path)
    got = load_file(path)["t"]
    assert got.dtype == dtype and torch.equal(got.view(torch.uint8), tensors["t"].view(torch.uint8))


def test_a_whole_row_is_written_as_its_length(path):
    """Case 79: group_size -1 with a row that no power of two divides."""
    w = LowBitWeightTensor.from_float(torch.randn(4, 43), 4, -1)
    save_file({"w": w}, path)
    back, x = load_file(path)["w"], torch.randn(2, 43)
    assert settings(path)["tensors"]["w"]["group_size"] == 43 == back.group_size
    assert torch.equal(torch.nn.functional.linear(x, back), torch.nn.functional.linear(x, w))


def test_the_header_is_that_of_the_docs(path):
    """Case 73: plain tensors, settings in the metadata."""
    save_file({"layer.weight": weight(256, 1024, group=64), "norm": torch.ones(2)}, path)
    text = '{"tensors":{"layer.weight":{"bits":4,"dtype":"float32","group_size":64,"shape":[256,1024]}},"version":1}'
    assert header(path)["__metadata__"] == {"lowbit": text}
    assert {key: (v["dtype"], v["shape"]) for key, v in header(path).items() if key != "__metadata__"} == {
        "layer.weight.packed": ("U8", [256, 512]), "layer.weight.scales": ("F16", [256, 16]), "layer.weight.zeros": ("F16", [256, 16]),
        "norm": ("F32", [2]),
    }  # fmt: skip


def test_plain_safetensors_reads_the_parts(path):
    tensors = mixed()
    save_file(tensors, path)
    parts = safetensors.torch.load_file(path)
    for name in ("a.weight", "b.weight"):
        assert all(torch.equal(parts.pop(f"{name}.{part}"), getattr(tensors[name], part)) for part in PARTS)
    assert_same(parts, {name: t for name, t in tensors.items() if not isinstance(t, LowBitWeightTensor)})


def test_plain_safetensors_files_are_read(path):
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c.packed": torch.ones(2)}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    assert_same(load_file(path), tensors)


def test_views_and_trained_parameters_are_stored_as_they_look(path):
    """Case 112: non-contiguous floats, slices of low-bit tensors, scales that require grad."""
    base, w, layer = torch.randn(6, 8), weight(8, 32), nn.Linear(16, 4)
    quantize_(layer, LowBitConfig(4, 16))
    trainable_parameters(layer)
    tensors = {"t": base.t(), "strided": base[::2, 1:], "expanded": base[:1].expand(3, 8), "rows": w[2:5], "trained": layer.weight}
    save_file(tensors, path)
    got = load_file(path)
    assert_same(got, {name: t.detach() for name, t in tensors.items()})
    assert not got["trained"].scales.requires_grad


def test_str_paths_and_user_metadata(path):
    metadata = {"format": "pt", "z": 'quo"te\n\\ \x01 \x7f', "é": "日本 \u2028 😀", "a": ""}
    assert save_file({"w": weight()}, str(path), metadata=metadata) == [path]
    stored = header(path)["__metadata__"]
    assert {key: value for key, value in stored.items() if key != "lowbit"} == metadata and list(stored) == sorted(stored)
    assert sorted(load_file(str(path))) == ["w"]


def test_nothing_to_save_is_an_empty_file(path):
    save_file({}, path)
    assert load_file(path) == {}


# The same bytes


@pytest.mark.parametrize("limit", [None, 300], ids=["single", "sharded"])
@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "read"])
def test_three_generations_are_byte_identical(tmp_path, mmap, limit):
    """Case 78."""
    tensors, generations = mixed() | {"tied": torch.randn(3)}, []
    tensors["z.tied"] = tensors["tied"]
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors", metadata={"b": "1", "a": "2"}, max_shard_size=limit)
        generations.append(contents(folder))
        tensors = load_file(folder, mmap=mmap)
    assert generations[0] == generations[1] == generations[2] and len(generations[0]) == (1 if limit is None else 3)


def test_a_model_that_ran_gives_the_same_bytes(tmp_path):
    """Case 78: through load_state_dict and state_dict, after a forward."""
    files = [tmp_path / f"{i}.safetensors" for i in range(2)]
    model, other = (nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)) for _ in range(2))
    quantize_(model, LowBitConfig(3, 8))
    save_file(model.state_dict(), files[0])
    other.load_state_dict(load_file(files[0]), assign=True)
    x = torch.randn(2, 16)
    assert torch.equal(other(x), model(x))
    save_file(other.state_dict(), files[1])
    assert files[0].read_bytes() == files[1].read_bytes()


def test_order_of_names_does_not_matter(tmp_path):
    tensors = mixed()
    for name, order in (("a", tensors), ("b", dict(reversed(tensors.items())))):
        save_file(order, tmp_path / f"{name}.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


SAVE = """
import sys, torch, lowbit_tensor as lb
torch.manual_seed(3)
tensors = {f"l{i}.weight": lb.LowBitWeightTensor.from_float(torch.randn(4, 24), 5, 8) for i in range(6)} | {"bias": torch.randn(4)}
lb.save_file(tensors, sys.argv[1], metadata={key: "é" + key for key in ("format", "author", "licence", "b", "a", "z")})
"""


def test_bytes_do_not_depend_on_the_process(tmp_path):
    """Case 78: two processes with other hash seeds, several metadata keys."""
    files = [tmp_path / f"{seed}.safetensors" for seed in (1, 2)]
    for seed, file in enumerate(files, 1):
        child(SAVE, file, PYTHONHASHSEED=str(seed))
    assert files[0].read_bytes() == files[1].read_bytes()
    assert list(header(files[0])["__metadata__"]) == ["a", "author", "b", "format", "licence", "lowbit", "z"]


# Mapped or read


def overwrite(path: Path, value: int) -> None:
    """Writes `value` over all of the data, in place."""
    length = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(length)
        file.write(bytes([value]) * (size - length))


def test_mapped_tensors_lie_on_the_file(path):
    """Case 118: what is written into the file shows in the tensors, so nothing was copied."""
    save_file({"w": weight(64, 128), "f": torch.randn(64, 64)}, path)
    got = load_file(path)
    overwrite(path, 0x3C)
    assert all((getattr(got["w"], part).view(torch.uint8) == 0x3C).all() for part in PARTS)
    assert (got["f"].view(torch.uint8) == 0x3C).all()


def test_read_tensors_do_not_depend_on_the_file(path):
    tensors = {"w": weight(64, 128), "f": torch.randn(64, 64)}
    save_file(tensors, path)
    got = load_file(path, mmap=False)
    overwrite(path, 0x3C)
    path.unlink()
    assert_same(got, tensors)


def test_mapped_tensors_outlive_the_name(path):
    tensors = mixed()
    save_file(tensors, path)
    got = load_file(path)
    path.unlink()
    assert_same(got, tensors)


def test_a_file_is_replaced_under_its_own_mapped_tensors(path):
    tensors = mixed()
    save_file(tensors, path)
    before, got = path.read_bytes(), load_file(path)
    save_file(got, path)
    assert path.read_bytes() == before
    assert_same(got, tensors)


LOAD = """
import os, sys
if pid := os.fork():  # a process that is only executed starts with its parent's peak
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
import resource, lowbit_tensor as lb
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
base = peak()
tensors = lb.load_file(sys.argv[1])
top = max(int(t.packed.max()) for t in tensors.values())  # every page is read
print(peak() - base)
"""


def test_loading_takes_the_size_of_the_file(path):
    """Case 118: at most 1.1 times its size, all pages touched; 16 MB for what the process itself needs."""
    codes, ones = torch.zeros(1024, 4096, dtype=torch.uint8), torch.ones(1024, 64).half()
    w = [LowBitWeightTensor.from_codes(codes, ones, ones, bits=8, group_size=64)]
    w += [w[0].clone() for _ in range(24)]
    save_file({str(i): t for i, t in enumerate(w)}, path)
    assert path.stat().st_size > 100_000_000
    assert 0.9 * path.stat().st_size <= int(child(LOAD, path)) <= 1.1 * path.stat().st_size + 16_000_000


# Tied weights


@pytest.mark.parametrize("make", [weight, lambda: torch.randn(6, 40)], ids=["low_bit", "float"])
def test_one_tensor_under_two_names_is_stored_once(path, make):
    """docs/format.md, 5: aliases."""
    t = make()
    save_file({"head.weight": t, "embed.weight": t, "x": t}, path)
    got = load_file(path)
    assert settings(path)["aliases"] == {"head.weight": "embed.weight", "x": "embed.weight"}
    assert got["head.weight"] is got["embed.weight"] is got["x"]
    assert_same(got, dict.fromkeys(("head.weight", "embed.weight", "x"), t))
    assert path.stat().st_size < 2 * packed_nbytes(t) + 1000 and len(header(path)) == (4 if isinstance(t, LowBitWeightTensor) else 2)


def test_what_only_shares_bytes_is_no_alias(path):
    w, f = weight(8, 32), torch.randn(4, 4)
    tensors = {"w": w, "half": w.to(torch.float16), "rows": w[:4], "f": f, "f.t": f.t(), "f.flat": f.view(-1), "zero": torch.zeros(0)}
    tensors["other_zero"] = torch.zeros(0)
    save_file(tensors, path)
    assert "aliases" not in settings(path)
    assert_same(load_file(path), tensors)


def test_an_alias_stands_beside_its_tensor_in_a_sharded_set(tmp_path, path):
    w = weight()
    tensors = {"a": w, "b": weight(), "c": w}
    save_file(tensors, path, max_shard_size=1)
    assert settings(tmp_path / "model-00001-of-00002.safetensors")["aliases"] == {"c": "a"}
    assert "aliases" not in settings(tmp_path / "model-00002-of-00002.safetensors")
    got = load_file(tmp_path)
    assert got["c"] is got["a"]
    assert_same(got, tensors)


def test_a_tied_model_comes_back_tied(path):
    """Case 66."""
    model = nn.ModuleDict({"embed": nn.Embedding(10, 16), "lm_head": nn.Linear(16, 10, bias=False)})
    model["lm_head"].weight = model["embed"].weight
    quantize_(model, LowBitConfig(4, 16, embeddings=True))
    save_file(model.state_dict(), path)
    got = load_file(path)
    assert settings(path)["aliases"] == {"lm_head.weight": "embed.weight"} and got["lm_head.weight"] is got["embed.weight"]


# Shards


def test_shards_an_index_and_the_folder_give_the_tensors(tmp_path, path):
    tensors = mixed()
    written = save_file(tensors, path, max_shard_size=200)
    names = [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)] + ["model.safetensors.index.json"]
    assert [p.name for p in written] == names == sorted(contents(tmp_path))
    for source in (tmp_path, written[-1]):
        for mmap in (True, False):
            assert_same(load_file(source, mmap=mmap), tensors)


def test_the_index_names_every_key_and_the_size(path):
    tensors = mixed()
    *shards, index = save_file(tensors, path, max_shard_size=200)
    data = json.loads(index.read_text())
    stored = {key: shard.name for shard in shards for key in header(shard) if key != "__metadata__"}
    assert data["weight_map"] == stored and list(data["weight_map"]) == sorted(stored)
    assert data["metadata"]["total_size"] == sum(packed_nbytes(t) for t in tensors.values())
    for shard in shards:
        assert set(settings(shard)["tensors"]) == {key.removesuffix(".packed") for key in header(shard) if key.endswith(".packed")}


@pytest.mark.parametrize(
    ("limit", "shards"), [(1, 3), (199, 3), (200, 2), (299, 2), (300, 1), ("0.3KB", 1), ("0.2 kb", 2)], ids=lambda v: str(v)
)
def test_shards_are_cut_where_the_limit_is_passed(path, limit, shards):
    """A weight is never cut: three of 100 bytes each."""
    tensors = {name: weight(10, 16, group=16) for name in "abc"}
    tensors = {name: w._replace(packed=w.packed[:, :6].contiguous(), in_features=12) for name, w in tensors.items()}
    assert [packed_nbytes(w) for w in tensors.values()] == [100] * 3
    written = save_file(tensors, path, max_shard_size=limit)
    assert len(written) == (1 if shards == 1 else shards + 1)
    assert_same(load_file(path.parent), tensors)


def test_a_tensor_beyond_the_limit_has_a_shard_of_its_own(tmp_path, path):
    tensors = {"a": torch.zeros(4), "b": torch.zeros(1000), "c": torch.zeros(4), "d": torch.zeros(4)}
    save_file(tensors, path, max_shard_size=100)
    names = [sorted(k for k in header(tmp_path / f"model-{i:05d}-of-00003.safetensors") if k != "__metadata__") for i in (1, 2, 3)]
    assert names == [["a"], ["b"], ["c", "d"]]


def write_shards(folder: Path, *shards: tuple[dict[str, Tensor], dict[str, Any] | None]) -> Path:
    """Shards made by hand, each of plain tensors and settings, and their index."""
    weight_map = {}
    for i, (tensors, lowbit) in enumerate(shards):
        metadata = None if lowbit is None else {"lowbit": json.dumps(lowbit)}
        safetensors.torch.save_file(tensors, folder / f"s{i}.safetensors", metadata=metadata)
        weight_map |= dict.fromkeys(tensors, f"s{i}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def parts_of(w: LowBitWeightTensor, name: str = NAME) -> dict[str, Tensor]:
    return {f"{name}.{part}": getattr(w, part) for part in PARTS}


def settings_of(w: LowBitWeightTensor, name: str = NAME, **changes: Any) -> dict[str, Any]:
    entry = {"bits": w.bits, "group_size": w.group_size, "shape": list(w.shape), "dtype": "float32"} | changes
    return {"version": 1, "tensors": {name: entry}}


def test_the_parts_of_a_weight_may_lie_in_other_shards(tmp_path):
    """docs/format.md, 5: the entry stands with the codes."""
    w = weight()
    parts = parts_of(w)
    first, second, third = ({key: parts[key]} for key in parts)
    index = write_shards(tmp_path, (second, None), (first, settings_of(w)), (third | {"bias": torch.ones(2)}, None))
    assert_same(load_file(index), {NAME: w, "bias": torch.ones(2)})


# What an earlier save left


@pytest.mark.parametrize("first", [None, 150, 300], ids=["single", "many", "few"])
@pytest.mark.parametrize("second", [None, 150, 300], ids=["to_single", "to_many", "to_few"])
def test_files_of_an_earlier_save_are_replaced(tmp_path, path, first, second):
    tensors = {name: weight(10, 16) for name in "abcde"}
    save_file({name: w.clone() for name, w in tensors.items()} | {"old": torch.ones(3)}, path, max_shard_size=first)
    written = save_file(tensors, path, max_shard_size=second)
    assert sorted(contents(tmp_path)) == sorted(p.name for p in written)
    assert_same(load_file(tmp_path), tensors)


def test_files_of_others_are_left(tmp_path):
    """An index may name what it wants: only shards of this very name are removed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    others = [folder / "other-00001-of-00002.safetensors", folder / "model.bin", tmp_path / "model-00001-of-00002.safetensors"]
    for other in others:
        other.write_bytes(b"mine")
    named = {str(i): os.path.relpath(other, folder) for i, other in enumerate(others)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    save_file({"w": weight()}, folder / "model.safetensors")
    assert all(other.read_bytes() == b"mine" for other in others) and not (folder / "model.safetensors.index.json").exists()


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "3", "{}", '{"weight_map": []}', '{"weight_map": {"a": [1]}}', '{"weight_map": {"a": 1}}', "[" * 100_000, "\xff"],
    ids=["no_json", "list", "number", "empty", "map_is_list", "name_is_list", "name_is_number", "deep", "latin"],
)
def test_a_damaged_old_index_is_replaced(tmp_path, path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    save_file({"w": weight()}, path)
    assert sorted(contents(tmp_path)) == ["model.safetensors"]


# Refusals on the way out


def transposed() -> dict[str, Any]:
    return {"w": weight().t()}


BAD_SAVES: dict[str, tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = {
    "transposed": (transposed, {}, ValueError, "'w' transposed"),
    "list": (lambda: {"a": torch.ones(1), "w": [1.0]}, {}, TypeError, "list under 'w'"),
    "module": (lambda: {"w": nn.Linear(1, 1)}, {}, TypeError, "Linear under 'w'"),
    "number_as_name": (lambda: {3: torch.ones(1)}, {}, TypeError, "under 3"),
    "meta": (lambda: {"w": torch.ones(2, device="meta")}, {}, ValueError, "'w' on meta"),
    "meta_low_bit": (lambda: {"w": weight().to("meta")}, {}, ValueError, "'w' on meta"),
    "sparse": (lambda: {"w": torch.eye(3).to_sparse()}, {}, ValueError, "'w' on cpu with layout torch.sparse_coo"),
    "clash": (lambda: {"w": weight(), "w.scales": torch.ones(1)}, {}, ValueError, "'w.scales' twice"),
    "header_name": (lambda: {"__metadata__": torch.ones(1)}, {}, ValueError, "__metadata__"),
    "metadata_key": (lambda: {"w": weight()}, {"metadata": {"lowbit": "x"}}, ValueError, "'lowbit'"),
    "metadata_value": (lambda: {"w": weight()}, {"metadata": {"a": 1}}, TypeError, "metadata"),
    "shard_size": (lambda: {"w": weight()}, {"max_shard_size": 0}, ValueError, "max_shard_size"),
}


@pytest.mark.parametrize(("make", "options", "error", "message"), BAD_SAVES.values(), ids=BAD_SAVES)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path, path, make, options, error, message):
    path.write_bytes(b"old")
    with pytest.raises(error, match=re.escape(message)):
        save_file(make(), path, **options)
    assert contents(tmp_path) == {"model.safetensors": b"old"}


@pytest.mark.parametrize("name", ["model", "model.bin", "model.safetensors.index.json"])
def test_another_suffix_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=re.escape(f"ends in .safetensors, got '{name}'")):
        save_file({"w": weight()}, tmp_path / name)
    assert contents(tmp_path) == {}


def test_places_where_no_file_can_be(tmp_path, path):
    path.mkdir()
    with pytest.raises(IsADirectoryError, match="expected a file, got a folder"):
        save_file({"w": weight()}, path)
    with pytest.raises(FileNotFoundError, match="expected an existing folder"):
        save_file({"w": weight()}, tmp_path / "none" / "model.safetensors")


SIZES = {
    None: None, 5: 5, "7": 7, "7B": 7, "2KB": 2000, "1.5 kb": 1500, " 3MB ": 3 * 10**6, "2GB": 2 * 10**9, "1KiB": 1024, "0.5MiB": 2**19,
    "2GIB": 2**31,
}  # fmt: skip


@pytest.mark.parametrize(("size", "nbytes"), SIZES.items(), ids=map(repr, SIZES))
def test_forms_of_max_shard_size(size, nbytes):
    assert parse_size(size) == nbytes


BAD_SIZES = {0: ValueError, -5: ValueError, 1.5: TypeError, True: TypeError, b"2GB": TypeError} | dict.fromkeys(
    ("", "GB", "-2GB", "2TB", "2 G B", "1e3", "0.1B", "nan"), ValueError
)


@pytest.mark.parametrize(("size", "error"), BAD_SIZES.items(), ids=map(repr, BAD_SIZES))
def test_other_forms_of_max_shard_size_are_refused(size, error):
    with pytest.raises(error, match="max_shard_size: expected"):
        parse_size(size)


# Whole or not there


def failing_writer(monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int = 0) -> None:
    """From the call number `after` on, half of the file is written, then `error` raised."""
    write, calls = safetensors.serialize_file, []

    def fail(specs: Any, target: Any, metadata: Any = None) -> None:
        calls.append(target)
        write(specs, target, metadata=metadata)
        if len(calls) > after:
            os.truncate(target, os.path.getsize(target) // 2)
            raise error

    monkeypatch.setattr(safetensors, "serialize_file", fail)


ERRORS = [RuntimeError("disk full"), OSError(28, "No space left"), KeyboardInterrupt()]


@pytest.mark.parametrize("old", [True, False], ids=["over_an_old_file", "new"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_save_that_fails_midway_leaves_what_was(tmp_path, path, monkeypatch, error, old):
    if old:
        save_file(mixed(), path)
    before = contents(tmp_path)
    failing_writer(monkeypatch, error)
    with pytest.raises(type(error)):
        save_file({"w": weight()}, path)
    assert contents(tmp_path) == before and len(before) == old


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("limit", [150, 300], ids=["same_shards", "other_shards"])
def test_a_sharded_save_that_fails_midway_leaves_the_old_set(tmp_path, path, monkeypatch, error, limit):
    """A new first shard beside an old second one would load without an error, and be neither model."""
    tensors = {name: weight(10, 16) for name in "abcde"}
    save_file(tensors, path, max_shard_size=150)
    before = contents(tmp_path)
    failing_writer(monkeypatch, error, after=1)
    with pytest.raises(type(error)):
        save_file({name: weight(10, 16) for name in tensors}, path, max_shard_size=limit)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)], ids=oct)
def test_the_mode_of_files_follows_the_umask(path, umask, mode):
    old = os.umask(umask)
    try:
        written = save_file({"a": weight(), "b": weight()}, path, max_shard_size=1)
    finally:
        os.umask(old)
    assert [stat.S_IMODE(p.stat().st_mode) for p in written] == [mode] * 3


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


# Pickles

LOAD_PICKLE = """
import hashlib, sys, torch
import lowbit_tensor
model = torch.load(sys.argv[1], weights_only=True)
print(hashlib.sha256(b"".join(model[name].dequantize().numpy().tobytes() for name in sorted(model))).hexdigest())
"""


def test_torch_load_weights_only_in_another_process(tmp_path):
    """Case 75: nothing but `import lowbit_tensor` is needed."""
    tensors = {f"w{bits}": weight(bits=bits) for bits in (1, 3, 8)}
    torch.save(tensors, tmp_path / "w.pt")
    expected = hashlib.sha256(b"".join(tensors[name].dequantize().numpy().tobytes() for name in sorted(tensors))).hexdigest()
    assert child(LOAD_PICKLE, tmp_path / "w.pt") == expected


ALLOWED = {
    "collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch ByteStorage", "torch HalfStorage", "torch FloatStorage",
    "torch float32", "torch bfloat16", "lowbit_tensor.tensor rebuild",
}  # fmt: skip


def globals_of(data: bytes) -> set[str]:
    """The names that a pickle of torch.save would import."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("data.pkl")]
        operations = list(pickletools.genops(archive.read(name)))
    assert "STACK_GLOBAL" not in {op.name for op, _, _ in operations}
    return {arg for op, arg, _ in operations if op.name == "GLOBAL"}


def test_the_globals_of_a_pickle_are_few_and_harmless():
    """Case 75."""
    model = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 8).bfloat16())
    quantize_(model, LowBitConfig(4, 8))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    found = globals_of(buffer.getvalue())
    assert "lowbit_tensor.tensor rebuild" in found and found - {"torch BFloat16Storage"} <= ALLOWED


@pytest.mark.parametrize("requires_grad", [False, True], ids=["frozen", "requires_grad"])
def test_a_pickle_keeps_every_field(requires_grad):
    """Case 105."""
    w = weight(2, 3, 20, bits=5, group=7, dtype=torch.bfloat16, scales=torch.float32).requires_grad_(requires_grad)
    buffer = io.BytesIO()
    torch.save({"w": w}, buffer)
    buffer.seek(0)
    for back in (torch.load(buffer, weights_only=True)["w"], pickle.loads(pickle.dumps(w))):
        assert_same({"w": back}, {"w": w})
        assert back.requires_grad is requires_grad and back.packed.data_ptr() != w.packed.data_ptr()


class Hostile:
    """Pickles as a call of `rebuild` with whatever arguments."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> Any:
        return rebuild, self.args


def arguments(**changes: Any) -> list[Any]:
    w = weight()
    fields = {
        "version": 1, "packed": w.packed, "scales": w.scales, "zeros": w.zeros, "bits": 4, "group_size": 16, "shape": (6, 40),
        "dtype": torch.float32, "requires_grad": False,
    }  # fmt: skip
    return list((fields | changes).values())


def load_hostile(**changes: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(Hostile(*arguments(**changes)), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


HOSTILE: dict[str, dict[str, Any]] = {
    "codes_too_few": {"packed": torch.zeros(6, 19, dtype=torch.uint8)},
    "codes_of_one_byte": {"packed": torch.zeros(1, dtype=torch.uint8)},
    "codes_int8": {"packed": torch.zeros(6, 20, dtype=torch.int8)},
    "codes_no_tensor": {"packed": [0] * 120},
    "scales_too_few": {"scales": torch.ones(6, 2).half()},
    "zeros_too_few": {"zeros": torch.ones(5, 3).half()},
    "scales_scalar": {"scales": torch.tensor(1.0).half()},
    "scales_float64": {"scales": torch.ones(6, 3).double()},
    "zeros_of_another_dtype": {"zeros": torch.ones(6, 3)},
    "bits_0": {"bits": 0},
    "bits_9": {"bits": 9},
    "bits_8": {"bits": 8},
    "bits_text": {"bits": "4"},
    "group_0": {"group_size": 0},
    "group_-1": {"group_size": -1},
    "group_8": {"group_size": 8},
    "group_huge": {"group_size": 2**31},
    "shape_negative": {"shape": (-6, 40)},
    "shape_negative_columns": {"shape": (6, -40)},
    "shape_larger": {"shape": (7, 40)},
    "shape_wider": {"shape": (6, 41)},
    "shape_huge": {"shape": (2**62, 2**62)},
    "shape_2**70": {"shape": (6, 2**70)},
    "shape_empty": {"shape": ()},
    "shape_list": {"shape": [6, 40]},
    "shape_text": {"shape": ("6", "40")},
    "shape_none": {"shape": None},
    "dtype_int8": {"dtype": torch.int8},
    "dtype_text": {"dtype": "float32"},
    "version_2": {"version": 2},
    "version_none": {"version": None},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_pickle_is_refused(changes):
    """Case 130."""
    with pytest.raises((ValueError, TypeError), match="expected"):
        load_hostile(**changes)


def test_the_pickle_without_malice_is_read():
    """What the test above changes, unchanged."""
    w = load_hostile()
    assert isinstance(w, LowBitWeightTensor) and w.shape == (6, 40)


def test_a_transposed_view_is_not_pickled():
    with pytest.raises(NotImplementedError, match=r"expected w, got w\.t\(\)"):
        pickle.dumps(weight().t())
