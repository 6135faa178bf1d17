"""`lowbit quantize SRC DST`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..atomic import atomic_folder, check_folder
from ..config import LowBitConfig
from ..convert import layer_configs
from ..integrations import torchchat as torchchat_options
from ..integrations.torchchat import Options
from ..integrations.transformers import check_source, is_low_bit, load_model, quantize_model, save_model
from ..plan import plan
from ..quantize import DEFAULT_METHOD
from ..serialize import parse_size
from .console import BadUse, checking_use, megabytes, out, progress, read_text, working


@dataclass(frozen=True)
class Settings:
    """What the options say of how to quantize; `check` turns them into a config before the model is read."""

    bits: int | None
    group_size: int | None
    method: str | None
    config: Path | None
    torchchat: str | None
    embeddings: bool

    def check(self) -> LowBitConfig | Options:
        """Raises BadUse unless exactly one of --bits, --config and --quantize is given, and right, and no option without effect is."""
        given = [
            name for name, value in (("--bits", self.bits), ("--config", self.config), ("--quantize", self.torchchat)) if value is not None
        ]
        if len(given) != 1:
            raise BadUse(f"expected one of --bits, --config and --quantize, got {' and '.join(given) or 'none'}")
        idle = [("--group-size", self.group_size is not None), ("--embeddings", self.embeddings)]
        idle += [("--method", self.method is not None)] if self.config is not None else []
        if self.bits is None and (useless := [name for name, is_given in idle if is_given]):
            raise BadUse(f"expected no {' and no '.join(useless)} beside {given[0]}, which says so itself")
        method = self.method or DEFAULT_METHOD
        with checking_use():
            if self.config is not None:
                return LowBitConfig.from_json(read_text(self.config))
            if self.torchchat is not None:
                return torchchat_options.parse(self.torchchat, method=method)
            group_size = 64 if self.group_size is None else self.group_size
            return LowBitConfig(self.bits, group_size, method, embeddings=self.embeddings)  # type: ignore[arg-type]


def _reasons(model: Any, config: LowBitConfig) -> str:
    """Why nothing is quantized: each reason with the kinds of layers it holds for."""
    kinds: dict[str, set[str]] = {}
    for layer in plan(model, config)[1]:
        kinds.setdefault(layer.reason, set()).add(layer.kind)
    return "; ".join(f"{', '.join(sorted(names))}: {reason}" for reason, names in kinds.items())


def run(src: Path, dst: Path, settings: Settings, max_shard_size: str, force: bool) -> None:
    """Checks everything that can be checked first, then reads, quantizes and writes DST as a whole."""
    choice = settings.check()
    dst = dst.resolve()  # where DST is a link, the folder that it leads to is written
    with checking_use():
        check_source(src)
        parse_size(max_shard_size)
        if is_low_bit(src):
            raise ValueError(f"{src}: expected a float model, got one that is low-bit already")
        if dst == src.resolve() or dst in src.resolve().parents:
            raise ValueError(f"{dst}: expected a folder that does not hold SRC, got {src}")
        check_folder(dst, force=force)
    dtype = choice.dtype if isinstance(choice, Options) else None
    with working(f"Reading {src.name}"):
        model, tokenizer = load_model(src, dtype)
    with checking_use():
        config = choice.config(model) if isinstance(choice, Options) else choice
        if not layer_configs(model, config):  # rules that do not fit the model are wrong use; weights that are not finite are not
            raise ValueError(f"{src}: expected a model with layers to quantize, got none: {_reasons(model, config)}")
    with progress("Quantizing") as bar:
        report = quantize_model(model, config, bar)
    with working(f"Writing {dst.name}"), atomic_folder(dst, force=force) as part:
        save_model(model, tokenizer, part, max_shard_size)
    out.print(str(report), markup=False)
    written = sum(f.stat().st_size for f in dst.glob("*.safetensors"))
    out.print(f"{dst}: {megabytes(written)} of weights" + ("" if tokenizer is not None else "; no tokenizer in SRC"), markup=False)
