"""Tokens a second of a Llama-shaped model with random weights, in float16 and at each width; part of benchmarks/mps.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from mps_rivals import GROUP_SIZE, synchronize

import lowbit_tensor as lb
from lowbit_tensor.integrations.transformers import weight_bytes_per_token

WIDTHS = (None, *range(1, 9))  # None is float16
PROMPT = 8  # tokens


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, and how many tokens are generated how often."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tokens: int
    rounds: int


@dataclass(frozen=True)
class Speed:
    """The median speed at one width, and the bytes of weights that a token reads."""

    bits: int | None
    tokens_per_second: float
    bytes_per_token: int


def speeds(shape: Shape, device: torch.device) -> Iterator[Speed]:
    """Measures one width after the other, since two models may not fit in memory."""
    for bits in WIDTHS:
        model = build(shape, device)
        if bits is not None:
            head = {"lm_head": lb.LowBitConfig(bits, GROUP_SIZE, "minmax")}  # which stays float unless a rule names it
            lb.quantize_(model, lb.LowBitConfig(bits, GROUP_SIZE, "minmax", modules=head))
        generate(model, shape.vocabulary, 4, device)  # compiles what is compiled at first use
        seconds = statistics.median(generate(model, shape.vocabulary, shape.tokens, device) for _ in range(shape.rounds))
        yield Speed(bits, 1 / seconds, weight_bytes_per_token(model))
        del model


def build(shape: Shape, device: torch.device) -> Any:
    """The float16 model; its head is not tied, so that it is quantized with the other layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=shape.hidden, intermediate_size=shape.intermediate, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.key_value_heads, vocab_size=shape.vocabulary,
        max_position_embeddings=2048, tie_word_embeddings=False, dtype=torch.float16,
    )  # fmt: skip
    with device:
        return LlamaForCausalLM._from_config(config, dtype=torch.float16).eval()


@torch.inference_mode()
def generate(model: Any, vocabulary: int, tokens: int, device: torch.device) -> float:
    """Median seconds a token after a short prompt, greedily; each token comes back to the CPU, as it does where text is printed."""
    out = model(torch.arange(PROMPT, device=device)[None] % vocabulary, use_cache=True)
    synchronize(device)
    times = []
    for _ in range(tokens):
        began = time.perf_counter()
        token = out.logits[:, -1].argmax(-1).item()
        out = model(torch.tensor([[token]], device=device), cache=out.cache, use_cache=True)
        synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
