"""Tensors to safetensors files and back; docs/format.md, section 5."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from .atomic import atomic_file
from .header import KEY, VERSION
from .load import load_file
from .ops.checks import check_parameters
from .tensor import INNER, LowBitWeightTensor

__all__ = ["load_file", "save_file"]

UNSTORABLE = (torch.complex32, torch.complex128)
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def save_file(
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
    max_shard_size: int | str | None = None,
) -> list[Path]:
    """Writes `{name: tensor}` to a safetensors file `path`, low-bit tensors in three parts; returns the files written.

    `max_shard_size`, in bytes or as `"2GB"`, makes `STEM-00001-of-0000N.safetensors` and `STEM.safetensors.index.json` where all does not
    fit into one file. The same tensors always give the same bytes. Files are whole or not there; those of an earlier save under `path`
    are replaced.
    Raises TypeError for what is no tensor, ValueError for what cannot be stored, before anything is written.
    """
    path, limit = Path(path), parse_size(max_shard_size)
    if path.suffix != ".safetensors":
        raise ValueError(f"save_file: expected a path that ends in .safetensors, got {path.name!r}")
    if metadata is not None and KEY in metadata:
        raise ValueError(f"save_file: expected metadata without the key {KEY!r}, which the format uses")
    units, aliases = _units(tensors)
    shards = _shards(units, limit)
    index = path.with_name(path.name + ".index.json")
    stale = {path, index, *_indexed(index)}
    targets = [path] if len(shards) == 1 else [path.with_name(_shard_name(path, i, len(shards))) for i in range(1, len(shards) + 1)]
    with ExitStack() as stack:  # all is written before the first rename; the index, entered first, is renamed last
        if len(shards) > 1:
            weight_map = {key: target.name for names, target in zip(shards, targets, strict=True) for name in names for key in units[name]}
            total = sum(t.nbytes for parts in units.values() for t in parts.values())
            content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            stack.enter_context(atomic_file(index)).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for names, target in zip(shards, targets, strict=True):
            _write(stack.enter_context(atomic_file(target)), {name: units[name] for name in names}, aliases, dict(metadata or {}), tensors)
    written = targets if len(shards) == 1 else [*targets, index]
    for old in stale - set(written):
        old.unlink(missing_ok=True)
    return written


def _units(tensors: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], dict[str, str]]:
    """({name: {key: plain tensor}} in sorted order, {second name: first name} of what is stored once)."""
    units: dict[str, dict[str, Tensor]] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    if not isinstance(tensors, Mapping):
        raise TypeError(f"save_file: expected tensors by name, got a {type(tensors).__name__}")
    for name, t in tensors.items():
        if not isinstance(name, str) or not isinstance(t, Tensor):
            raise TypeError(f"save_file: expected tensors by name, got {type(t).__name__} under {name!r}")
        if t.dtype in UNSTORABLE:
            raise ValueError(f"save_file: expected a dtype that safetensors stores, got {name!r} of {t.dtype}")
    for name in sorted(tensors):
        t = tensors[name]
        if name == "__metadata__":
            raise ValueError(f"save_file: expected another name than {name!r}, which safetensors uses")
        if t.is_meta or t.layout is not torch.strided:
            raise ValueError(f"save_file: expected dense tensors with data, got {name!r} on {t.device} with layout {t.layout}")
        if isinstance(t, LowBitWeightTensor) and t.transposed:
            raise ValueError(f"save_file: expected the weight itself, got {name!r} transposed; save the weight before t()")
        if isinstance(t, LowBitWeightTensor):
            check_parameters(f"save_file: {name}", t.scales, t.zeros)
        parts = {f"{name}.{part}": getattr(t, part) for part in INNER} if isinstance(t, LowBitWeightTensor) else {name: t}
        same = tuple((p.data_ptr(), p.dtype, p.shape, p.stride()) for p in parts.values() if p.numel())
        if same and (first := seen.setdefault((*same, t.dtype), name)) != name:
            aliases[name] = first
        else:
            units[name] = parts
    keys = [key for parts in units.values() for key in parts]
    if twice := sorted({key for key in keys if keys.count(key) > 1} if len(set(keys)) < len(keys) else set()):
        raise ValueError(f"save_file: expected names that differ from the parts of low-bit tensors, got {twice[0]!r} twice")
    return units, aliases


def _shards(units: dict[str, dict[str, Tensor]], limit: int | None) -> list[list[str]]:
    """Names in order, cut before the size passes `limit`; at least one a shard."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, parts in units.items():
        nbytes = sum(t.nbytes for t in parts.values())
        if limit is not None and shards[-1] and size + nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += nbytes
    return shards


def _write(
    path: Path, units: dict[str, dict[str, Tensor]], aliases: dict[str, str], metadata: dict[str, str], tensors: Mapping[str, Tensor]
) -> None:
    entries = {}
    for name in units:
        if isinstance(w := tensors[name], LowBitWeightTensor):
            dtype = str(w.dtype).removeprefix("torch.")
            entries[name] = {"bits": w.bits, "group_size": w.group_size, "shape": list(w.shape), "dtype": dtype}
    settings: dict[str, Any] = {"version": VERSION, "tensors": entries}
    if here := {name: first for name, first in aliases.items() if first in units}:
        settings["aliases"] = here
    metadata[KEY] = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    plain = {key: t.detach().cpu().contiguous() for parts in units.values() for key, t in parts.items()}
    specs = {
        key: safetensors.TensorSpec(dtype=str(t.dtype).removeprefix("torch."), shape=t.shape, data_ptr=t.data_ptr(), data_len=t.nbytes)
        for key, t in plain.items()
    }
    safetensors.serialize_file(specs, path, metadata=metadata)
    if len(metadata) > 1:
        _sort_metadata(path)


def _shard_name(path: Path, i: int, count: int) -> str:
    return f"{path.stem}-{i:05d}-of-{count:05d}.safetensors"


def _sort_metadata(path: Path) -> None:
    """safetensors writes metadata in an order that changes from run to run: put it in order, in place, so that bytes are reproducible."""
    with path.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
        if len(text) != length:
            raise RuntimeError(f"{path.name}: expected a header of {length} bytes after sorting, got {len(text)}")
        file.seek(8)
        file.write(text)


def _indexed(index: Path) -> list[Path]:
    """The shards that an earlier save under this name left."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):  # none, or damaged: no shards to take away
        return []
    shard = re.compile(re.escape(index.name.removesuffix(".safetensors.index.json")) + r"-\d{5}-of-\d{5}\.safetensors")
    return [index.with_name(name) for name in names if isinstance(name, str) and shard.fullmatch(name)]


def parse_size(size: int | str | None) -> int | None:
    """Bytes of a number or of a string such as `"2GB"`."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        if not match or match[2].upper() not in UNITS:
            raise ValueError(f"max_shard_size: expected bytes, or a string such as '2GB', got {size!r}")
        size = int(float(match[1]) * UNITS[match[2].upper()])
    if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
        raise TypeError(f"max_shard_size: expected an integer, a string or None, got {size!r}")
    if size is not None and size < 1:
        raise ValueError(f"max_shard_size: expected at least 1 byte, got {size}")
    return size
