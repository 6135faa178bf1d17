"""`save_file` and what it leaves: one file, shards, the same bytes, whole or not there; mapped or read back."""

import json
import os
import re
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from filekit import PARTS, assert_same, child, contents, header, mixed, settings, weight
from torch import nn

from lowbit_tensor import LowBitConfig, LowBitWeightTensor, load_file, packed_nbytes, quantize_, save_file, trainable_parameters
from lowbit_tensor.serialize import parse_size

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
    """Case 72."""
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
