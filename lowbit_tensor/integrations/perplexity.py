"""The measure of docs/quality.md: perplexity over windows without overlap."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Perplexity:
    """The outcome: exp of the mean negative log-likelihood in nats of the tokens scored."""

    value: float
    windows: int
    tokens: int
    seconds: list[float] = field(default_factory=list)  # of each window


def topics() -> str:
    """English reference prose that ships with Python (`pydoc_data.topics`); differs from version to version."""
    import pydoc_data.topics as module

    return "\n".join(module.topics[key] for key in sorted(module.topics))


def encode(tokenizer: Any, text: str, tokens: int) -> Tensor:
    """The first `tokens` ids of a text, int64 `[tokens]`, no special tokens added; the text is cut first, to encode no more than needed."""
    return tokenizer(text[: 16 * tokens + 64], add_special_tokens=False, return_tensors="pt").input_ids[0][:tokens]


@torch.no_grad()
def perplexity(model: Any, ids: Tensor, window: int = 512, progress: Callable[[int, int], None] | None = None) -> Perplexity:
    """Of ids `[tokens]` in windows of `window`, the first token of each not scored; a rest shorter than a window is left out.

    Where all is shorter than one window, it is the window. Raises ValueError for fewer than 2 tokens.
    """
    window = min(window, ids.numel())
    if window < 2:
        raise ValueError(f"perplexity: expected a text and a window of at least 2 tokens, got {window}")
    total, scored, seconds = 0.0, 0, []
    starts = range(0, ids.numel() - window + 1, window)
    for done, start in enumerate(starts):
        if progress is not None:
            progress(done, len(starts))
        began, part = time.perf_counter(), ids[start : start + window][None]
        logits = model(part).logits[0, :-1].float()
        total += F.cross_entropy(logits, part[0, 1:], reduction="sum").item()
        scored += window - 1
        seconds.append(time.perf_counter() - began)
    mean = total / scored
    return Perplexity(math.inf if mean > 700 else math.exp(mean), len(starts), scored, seconds)
