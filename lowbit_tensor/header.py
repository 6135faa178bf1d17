"""The `lowbit` entry of a safetensors header: read and checked before any tensor is."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .format import Format, check_group_size

KEY = "lowbit"
VERSION = 1
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Entry:
    """What a file says of one low-bit tensor."""

    format: Format
    shape: tuple[int, ...]
    dtype: torch.dtype


def parse(text: str, where: str, keys: Collection[str]) -> tuple[dict[str, Entry], dict[str, str]]:
    """({name: entry}, {alias: name}) of the JSON under the key `lowbit` of a file that holds `keys`.

    Raises ValueError naming `where` and the tensor, and for more text than the tensors can need: parsed JSON takes many times its bytes.
    """
    if len(text) > (limit := 2**20 + sum(200 + 2 * len(key) for key in keys)):
        raise ValueError(f"{where}: expected at most {limit} characters under {KEY!r} for {len(keys)} tensors, got {len(text)}")
    try:
        data = json.loads(text, object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: expected JSON under the metadata key {KEY!r}: {error}") from None
    if not isinstance(data, dict) or type(data.get("version")) is not int or data["version"] != VERSION:
        version = data.get("version") if isinstance(data, dict) else data
        raise ValueError(f"{where}: expected version {VERSION} under the metadata key {KEY!r}, got {str(version)[:40]!r}")
    if unknown := sorted(set(data) - {"version", "tensors", "aliases"}):
        raise ValueError(f"{where}: expected version, tensors and aliases under {KEY!r}, got {unknown[0]!r}")
    tensors, aliases = data.get("tensors"), data.get("aliases", {})
    if not isinstance(tensors, dict) or not isinstance(aliases, dict):
        raise ValueError(f"{where}: expected objects for tensors and aliases under {KEY!r}")
    for alias, name in aliases.items():
        if not isinstance(name, str) or alias in tensors or name in aliases:
            raise ValueError(f"{where}: {alias}: expected an alias of a stored tensor, got {name!r}")
    return {name: _entry(name, entry, where) for name, entry in tensors.items()}, aliases


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"{twice!r} stands there twice")
    return found


def _entry(name: str, entry: Any, where: str) -> Entry:
    if not isinstance(entry, Mapping) or set(entry) != {"bits", "group_size", "shape", "dtype"}:
        raise ValueError(f"{where}: {name}: expected bits, group_size, shape and dtype, got {str(entry)[:80]}")
    shape = entry["shape"]
    sizes = isinstance(shape, list) and 1 <= len(shape) <= 64 and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    if not sizes:
        raise ValueError(f"{where}: {name}: expected a shape [..., N, K] of sizes from 0, got {str(shape)[:80]}")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise ValueError(f"{where}: {name}: expected a dtype of {', '.join(DTYPES)}, got {str(entry['dtype'])[:40]!r}")
    try:
        if check_group_size(entry["group_size"]) == -1:
            raise ValueError("group_size: expected at least 1 in a file, got -1")
        return Entry(Format(entry["bits"], entry["group_size"], shape[-1]), tuple(shape), DTYPES[entry["dtype"]])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {name}: {error}") from None
