"""Tensors from a safetensors file, an index of shards, or a folder; every claim of a header is checked before it is used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import LowBitConfig, Rules
from .format import Format
from .header import KEY, VERSION, Entry, parse
from .tensor import INNER, LowBitWeightTensor, rebuild

QUANT_METHOD = "lowbit"
JSON_LIMIT = 2**25  # three times the largest index of shards in public


def load_file(path: str | os.PathLike[str], *, mmap: bool = True, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """`{name: tensor}` of a safetensors file, an `*.index.json` or a folder.

    With `mmap` the tensors lie on the mapped file and nothing is copied; without, they are read into memory of their own.
    Raises FileNotFoundError where there is nothing, ValueError naming the file and the tensor for what is damaged or disagrees.
    """
    path = Path(path)
    file = resolve(path)
    files, promised = shards_of(file) if file.name.endswith(".json") else ([file], {})
    plain: dict[str, Tensor] = {}
    entries: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    for shard in files:
        tensors, found, renamed = _read(shard, mmap, device)
        if twice := sorted((set(tensors) & set(plain)) | (set(found) & set(entries))):
            raise ValueError(f"{shard.name}: {twice[0]}: expected each tensor in one shard, got it in two")
        if lost := sorted(key for key in tensors if promised.get(key, shard.name) != shard.name):
            raise ValueError(f"{file.name}: {lost[0]}: expected it in {promised[lost[0]]}, got it in {shard.name}")
        plain.update(tensors)
        entries.update(found)
        aliases.update(renamed)
    if absent := sorted(set(promised) - set(plain)):
        raise ValueError(f"{file.name}: {absent[0]}: expected it in a shard, got it in none")
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


def resolve(path: Path) -> Path:
    """The file or index that a path stands for. Raises FileNotFoundError or ValueError where a folder does not hold exactly one model."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a file, an index or a folder, got nothing there")
    if not path.is_dir():
        return path
    names = ("model.safetensors.index.json", "model.safetensors")
    found = [path / name for name in names if (path / name).exists()] or sorted(path.glob("*.safetensors.index.json"))
    found = found or sorted(path.glob("*.safetensors"))
    if not found:
        raise FileNotFoundError(f"{path}: expected a folder with *.safetensors, got none")
    if len(found) > 1:
        raise ValueError(f"{path}: expected one model, got {', '.join(p.name for p in found)}; name the file")
    return found[0]


def shards_of(index: Path) -> tuple[list[Path], dict[str, str]]:
    """(files, {tensor: the file that must hold it}) of an `*.index.json`. Raises FileNotFoundError for a shard that is missing."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise ValueError(f"{index.name}: expected a weight_map of tensors to files")
    files = [index.with_name(name) for name in sorted(set(weight_map.values())) if _is_plain_name(name, index)]
    if missing := [file.name for file in files if not os.path.isfile(file)]:
        raise FileNotFoundError(f"{index.name}: expected the shard {missing[0][:80]} beside it, got no such file")
    return files, weight_map


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ValueError naming the file; also for its size, since parsed JSON takes many times its bytes."""
    if (size := path.stat().st_size) > JSON_LIMIT:
        raise ValueError(f"{path.name}: expected JSON of at most {JSON_LIMIT} bytes, got {size}")
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
    modules = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    rules = Rules(config, modules, strict=False)
    names: dict[int, list[str]] = {}  # of each low-bit weight: a tied one has several
    for module in modules:
        if isinstance(tensors[f"{module}.weight"], LowBitWeightTensor):
            names.setdefault(id(tensors[f"{module}.weight"]), []).append(module)
    for module, *others in names.values():
        w: Any = tensors[f"{module}.weight"]
        found = [rules.find(name) for name in (module, *others)]
        named = [rule for rule, itself in found if itself]
        # A rule that names the layer must hold; one that names a container may not reach it, where it is a head or an embedding.
        rules_of_w = [rule for rule in named or [config, *(rule for rule, _ in found)] if isinstance(rule, LowBitConfig)]
        if w.format not in [Format(rule.bits, rule.group_size, w.in_features) for rule in rules_of_w] or None in named:
            says = "float" if None in named else " or ".join(sorted({f"{r.bits} bits, group {r.group_size}" for r in rules_of_w}))
            raise ValueError(f"{folder.name}: {module}.weight: config.json says {says}, the file {w.format}: expected them to agree")


def parse_settings(settings: dict[str, Any]) -> LowBitConfig:
    """The `LowBitConfig` under `quantization_config` of a config.json. Raises ValueError for another version or unknown fields."""
    if settings.get("version") != VERSION:
        raise ValueError(f"config.json: quantization_config: expected version {VERSION}, got {settings.get('version')!r}")
    try:
        return LowBitConfig.from_json({k: v for k, v in settings.items() if k not in ("quant_method", "version")})
    except (TypeError, ValueError) as error:
        raise ValueError(f"config.json: quantization_config: {error}") from None


def _read(file: Path, mmap: bool, device: str | torch.device) -> tuple[dict[str, Tensor], dict[str, Entry], dict[str, str]]:
    try:
        with safe_open(file, framework="pt", device=str(device)) as opened:
            metadata = opened.metadata() or {}
            entries, aliases = parse(metadata[KEY], file.name, opened.keys()) if KEY in metadata else ({}, {})
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118  (no mapping)
    except SafetensorError as error:
        raise ValueError(f"{file.name}: expected a safetensors file: {error}") from None
    if orphans := [k for k in tensors if k.endswith(".packed") and k[:-7] not in entries and k[:-6] + "scales" in tensors]:
        raise ValueError(f"{file.name}: {orphans[0]}: expected its entry under the metadata key {KEY!r}, got none")
    return {key: t if mmap or t.device.type != "cpu" else t.clone() for key, t in tensors.items()}, entries, aliases


def _assemble(name: str, entry: Entry, plain: dict[str, Tensor], where: str) -> LowBitWeightTensor:
    parts = [plain.get(f"{name}.{part}") for part in INNER]
    if missing := [part for part, t in zip(INNER, parts, strict=True) if t is None]:
        raise ValueError(f"{where}: {name}: expected {name}.{missing[0]}, got none")
    fmt = entry.format
    try:
        w = rebuild(1, *parts, fmt.bits, fmt.group_size, entry.shape, entry.dtype, False)  # type: ignore[call-arg,arg-type]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {name}: {error}") from None
    return w


def _is_plain_name(name: str, index: Path) -> bool:
    """Raises ValueError for a shard outside the index's folder."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"{index.name}: expected shards beside the index, got {name!r}")
    return True
