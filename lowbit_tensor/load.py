"""Tensors from a safetensors file, an index of shards, or a folder; every claim of a header is checked before it is used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import LowBitConfig, NoRule, Rules
from .header import KEY, VERSION, Entry, parse
from .tensor import INNER, LowBitWeightTensor, check_parameters, rebuild

QUANT_METHOD = "lowbit"


def load_file(path: str | os.PathLike[str], *, mmap: bool = True, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """`{name: tensor}` of a safetensors file, an `*.index.json` or a folder.

    With `mmap` the tensors lie on the mapped file and nothing is copied; without, they are read into memory of their own.
    Raises FileNotFoundError where there is nothing, ValueError naming the file and the tensor for what is damaged or disagrees.
    """
    path = Path(path)
    plain: dict[str, Tensor] = {}
    entries: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    for file in files_of(path):
        tensors, found, renamed = _read(file, mmap, device)
        if twice := sorted((set(tensors) & set(plain)) | (set(found) & set(entries))):
            raise ValueError(f"{file.name}: {twice[0]}: expected each tensor in one shard, got it in two")
        plain.update(tensors)
        entries.update(found)
        aliases.update(renamed)
    weights = {name: _assemble(name, entry, plain, path.name) for name, entry in entries.items()}
    for name in entries:
        for part in INNER:
            del plain[f"{name}.{part}"]
    if both := sorted(set(plain) & set(weights)):
        raise ValueError(f"{path.name}: {both[0]}: expected it float or low-bit, got both")
    result = {**plain, **weights}
    for alias, name in aliases.items():
        if name not in result or alias in result:
            raise ValueError(f"{path.name}: {alias}: expected an alias of a stored tensor, got {name!r}")
        result[alias] = result[name]
    if path.is_dir():
        check_config(path, result)
    return dict(sorted(result.items()))


def files_of(path: Path) -> list[Path]:
    """The safetensors files that a file, index or folder stands for. Raises FileNotFoundError or ValueError where that is not clear."""
    if path.is_dir():
        names = ("model.safetensors.index.json", "model.safetensors")
        found = [path / name for name in names if (path / name).exists()] or sorted(path.glob("*.safetensors.index.json"))
        found = found or sorted(path.glob("*.safetensors"))
        if not found:
            raise FileNotFoundError(f"{path}: expected a folder with *.safetensors, got none")
        if len(found) > 1:
            raise ValueError(f"{path}: expected one model, got {', '.join(p.name for p in found)}; name the file")
        return files_of(found[0])
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a file, an index or a folder, got nothing there")
    if not path.name.endswith(".json"):
        return [path]
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise ValueError(f"{path.name}: expected a weight_map of tensors to files")
    files = [path.with_name(name) for name in sorted(set(weight_map.values())) if _is_plain_name(name, path)]
    if missing := [file.name for file in files if not file.exists()]:
        raise FileNotFoundError(f"{path.name}: expected the shard {missing[0]} beside it, got none")
    return files


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ValueError naming the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: expected JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path.name}: expected a JSON object, got {type(data).__name__}")
    return data


def check_config(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Raises ValueError where `config.json` of a model folder and the headers of its files disagree."""
    if not (folder / "config.json").exists():
        return
    settings = read_json(folder / "config.json").get("quantization_config")
    if not isinstance(settings, dict) or settings.get("quant_method") != QUANT_METHOD:
        return
    config = parse_settings(settings)
    names = {name.removesuffix(".weight"): name for name in tensors if name.endswith(".weight")}
    rules = Rules(config, names, strict=False)
    for module, name in names.items():
        if not isinstance(w := tensors[name], LowBitWeightTensor):
            continue
        rule = rules.find(module)[0]
        rule = config if isinstance(rule, NoRule) else rule
        group_size = None if rule is None else rule.group_size if rule.group_size != -1 else w.in_features
        if rule is None or (rule.bits, group_size) != (w.bits, w.group_size):
            says = "float" if rule is None else f"{rule.bits} bits, group {group_size}"
            raise ValueError(f"{folder.name}: {name}: config.json says {says}, the file {w.format}: expected them to agree")


def parse_settings(settings: dict[str, Any]) -> LowBitConfig:
    """The `LowBitConfig` under `quantization_config` of a config.json. Raises ValueError for another version or unknown fields."""
    if settings.get("version") != VERSION:
        raise ValueError(f"config.json: quantization_config: expected version {VERSION}, got {settings.get('version')!r}")
    return LowBitConfig.from_json({k: v for k, v in settings.items() if k not in ("quant_method", "version")})


def _read(file: Path, mmap: bool, device: str | torch.device) -> tuple[dict[str, Tensor], dict[str, Entry], dict[str, str]]:
    try:
        with safe_open(file, framework="pt", device=str(device)) as opened:
            metadata = opened.metadata() or {}
            entries, aliases = parse(metadata[KEY], file.name) if KEY in metadata else ({}, {})
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118  (no mapping)
    except SafetensorError as error:
        raise ValueError(f"{file.name}: expected a safetensors file: {error}") from None
    if KEY not in metadata and (orphans := [k for k in tensors if k.endswith(".packed") and k[:-6] + "scales" in tensors]):
        raise ValueError(f"{file.name}: {orphans[0]}: expected the metadata key {KEY!r} for low-bit tensors, got none")
    return {key: t if mmap or t.device.type != "cpu" else t.clone() for key, t in tensors.items()}, entries, aliases


def _assemble(name: str, entry: Entry, plain: dict[str, Tensor], where: str) -> LowBitWeightTensor:
    parts = [plain.get(f"{name}.{part}") for part in INNER]
    if missing := [part for part, t in zip(INNER, parts, strict=True) if t is None]:
        raise ValueError(f"{where}: {name}: expected {name}.{missing[0]}, got none")
    fmt = entry.format
    try:
        w = rebuild(1, *parts, fmt.bits, fmt.group_size, entry.shape, entry.dtype, False)  # type: ignore
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {name}: {error}") from None
    check_parameters(f"{where}: {name}", w.scales, w.zeros)
    return w


def _is_plain_name(name: str, index: Path) -> bool:
    """Raises ValueError for a shard outside the index's folder."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"{index.name}: expected shards beside the index, got {name!r}")
    return True
