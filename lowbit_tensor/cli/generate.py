"""`lowbit generate MODEL --prompt`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..integrations import torchchat
from ..integrations.transformers import check_source, is_low_bit, load_model, quantize_model, weight_bytes_per_token
from .console import BadUse, checking_use, err, megabytes, out, peak_memory, progress, working


@dataclass
class Run:
    """Generated text and when each token came, in seconds from the start."""

    text: str
    prompt_tokens: int
    times: list[float]

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0]

    @property
    def later(self) -> float:
        """Tokens a second after the first; 0 where there is none."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0]) if len(self.times) > 1 else 0.0


@dataclass
class Clock:
    """A streamer of transformers that notes when tokens come."""

    began: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)
    prompt_seen: bool = False

    def put(self, value: Any) -> None:
        """Called with the prompt first, then with each token."""
        if self.prompt_seen:
            self.times.append(time.perf_counter() - self.began)
        self.prompt_seen = True

    def end(self) -> None:
        """Called after the last token."""


def continue_prompt(model: Any, tokenizer: Any, prompt: str, max_new_tokens: int, chat: bool = False, temperature: float = 0.0) -> Run:
    """Generates from a prompt, greedily at temperature 0; `chat` puts it into the model's chat template."""
    if chat:
        messages = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    else:
        inputs = tokenizer(prompt, return_tensors="pt")
    prompt_tokens = inputs["input_ids"].shape[1]
    if not prompt_tokens:
        raise BadUse("--prompt: expected a text of at least one token, got none")
    check_context(model, prompt_tokens + max_new_tokens, "--prompt and --max-new-tokens")
    sampling = (
        {"do_sample": True, "temperature": temperature}
        if temperature
        else {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    )
    clock = Clock()
    with torch.inference_mode():
        ids = model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=max_new_tokens, streamer=clock,
            num_beams=1, pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id, **sampling,
        )  # fmt: skip
    return Run(_continuation(model, tokenizer, ids[0], prompt_tokens), prompt_tokens, clock.times)


def _continuation(model: Any, tokenizer: Any, ids: torch.Tensor, prompt_tokens: int) -> str:
    """The generated text alone. Decoded with its prompt where there is one, since some tokenizers drop a leading space."""
    if model.config.is_encoder_decoder:
        return tokenizer.decode(ids, skip_special_tokens=True)
    whole, prompt = (tokenizer.decode(part, skip_special_tokens=True) for part in (ids, ids[:prompt_tokens]))
    return whole[len(prompt) :] if whole.startswith(prompt) else tokenizer.decode(ids[prompt_tokens:], skip_special_tokens=True)


def check_context(model: Any, tokens: int, what: str) -> None:
    """Raises BadUse for more tokens than the model has positions for."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(limit, int) and tokens > limit:
        raise BadUse(f"{what}: expected at most {limit} tokens, which is the model's context, got {tokens}")


def load_for_use(source: Path, options: str | None) -> tuple[Any, Any]:
    """(model, tokenizer), quantized as torchchat's options say; raises BadUse before the model is read."""
    with checking_use():
        choice = None if options is None else torchchat.parse(options)
        check_source(source)
        if choice is not None and is_low_bit(source):
            raise ValueError(f"--quantize: expected a float model, got {source}, which is low-bit already")
    with working(f"Reading {source.name}"):
        model, tokenizer = load_model(source, choice.dtype if choice else None)
    if tokenizer is None:
        raise BadUse(f"{source}: expected a model folder with a tokenizer, got none")
    if choice is not None:
        with progress("Quantizing") as bar:
            quantize_model(model, choice.config(model), bar)
    return model, tokenizer


def run(source: Path, prompt: str, max_new_tokens: int, chat: bool, temperature: float, seed: int, options: str | None) -> None:
    """Prints the prompt's continuation, then the measures."""
    model, tokenizer = load_for_use(source, options)
    if not model.can_generate():
        raise BadUse(f"{source}: expected a model that generates text, got a {type(model).__name__}")
    if chat and not tokenizer.chat_template:
        raise BadUse(f"{source}: --chat: expected a tokenizer with a chat template, got one without")
    torch.manual_seed(seed)
    result = continue_prompt(model, tokenizer, prompt, max_new_tokens, chat, temperature)
    out.print(result.text if chat or model.config.is_encoder_decoder else prompt + result.text, markup=False)
    read = weight_bytes_per_token(model)
    err.print(
        f"{len(result.times)} tokens after {result.prompt_tokens} of the prompt; first token after {result.first:.2f} s "
        f"({result.prompt_tokens / result.first:.1f} tokens/s), then {result.later:.1f} tokens/s, "
        f"{result.later * read / 1e9:.2f} GB/s of weights read; peak memory {megabytes(peak_memory())}",
        markup=False,
    )
