"""torchchat's quantization options, as its users write them: `{"linear:afpwx": {"bitwidth": 4, "groupsize": 256}}`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import LowBitConfig

DTYPES = {
    "fp32": torch.float32, "float32": torch.float32, "float": torch.float32, "fp16": torch.float16, "float16": torch.float16,
    "half": torch.float16, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16,
}  # fmt: skip
LINEAR, EMBEDDING, PRECISION = "linear:afpwx", "embedding:wx", "precision"


@dataclass(frozen=True)
class Options:
    """What such options ask for; None where they say nothing of it."""

    linear: LowBitConfig | None
    embedding: LowBitConfig | None
    dtype: torch.dtype | None

    def config(self, model: nn.Module) -> LowBitConfig:
        """The same as a `LowBitConfig` for `model`, whose embeddings (and, without a linear part, Linears) are named in its rules."""
        modules: dict[str, LowBitConfig | None] = {}
        if self.linear is None:
            embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}  # a Linear tied to one follows it
            modules |= {name: None for name, m in model.named_modules() if isinstance(m, nn.Linear) and id(m.weight) not in embeddings}
        if self.embedding is not None:
            modules |= {name: self.embedding for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
        base = self.linear or self.embedding
        assert base is not None  # parse refuses options without either
        return replace(base, modules=modules)


def parse(text: str, **settings: Any) -> Options:
    """Options from JSON text or a file that holds it; `settings` are further fields of the LowBitConfigs.

    Raises ValueError for unknown keys and values.
    """
    if not text.lstrip().startswith("{"):
        if not os.path.isfile(text):
            example = f'{{"{LINEAR}": {{"bitwidth": 4, "groupsize": 64}}}}'
            raise ValueError(f"--quantize: expected JSON such as {example!r} or a file, got {text[:80]!r}")
        text = Path(text).read_text(encoding="utf-8")
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--quantize: expected JSON: {error}") from None
    if not isinstance(options, dict) or (unknown := sorted(set(options) - {LINEAR, EMBEDDING, PRECISION})):
        got = ", ".join(map(repr, unknown)) if isinstance(options, dict) else type(options).__name__
        raise ValueError(f"--quantize: expected {LINEAR}, {EMBEDDING}, {PRECISION}, got {got}")
    linear, embedding = (_config(key, options[key], settings) if key in options else None for key in (LINEAR, EMBEDDING))
    if linear is None and embedding is None:
        raise ValueError(f"--quantize: expected {LINEAR} or {EMBEDDING}, got neither")
    return Options(linear, embedding, _precision(options[PRECISION]) if PRECISION in options else None)


def _config(key: str, values: Any, settings: dict[str, Any]) -> LowBitConfig:
    if not isinstance(values, dict) or "bitwidth" not in values or (unknown := sorted(set(values) - {"bitwidth", "groupsize"})):
        got = ", ".join(map(repr, unknown)) if isinstance(values, dict) and "bitwidth" in values else repr(values)
        raise ValueError(f"--quantize: {key}: expected bitwidth and groupsize, got {got}")
    group_size = values.get("groupsize", 64)
    try:
        return LowBitConfig(
            values["bitwidth"], -1 if type(group_size) is int and group_size == 0 else group_size, **settings
        )  # torchchat writes 0 for a whole row
    except (TypeError, ValueError) as error:
        raise ValueError(f"--quantize: {key}: {error}") from None


def _precision(values: Any) -> torch.dtype:
    if not isinstance(values, dict) or set(values) != {"dtype"} or not isinstance(values["dtype"], str) or values["dtype"] not in DTYPES:
        raise ValueError(f'--quantize: {PRECISION}: expected {{"dtype": one of {", ".join(DTYPES)}}}, got {values!r}')
    return DTYPES[values["dtype"]]
