"""`lowbit eval MODEL --text`."""

from __future__ import annotations

from pathlib import Path

from ..integrations.perplexity import encode, perplexity, topics
from ..integrations.transformers import weight_bytes_per_token
from .console import BadUse, checking_use, megabytes, out, peak_memory, progress, read_text
from .generate import check_context, load_for_use


def run(source: Path, text: Path | None, tokens: int, window: int, options: str | None) -> None:
    """Prints perplexity and the measures of the run."""
    with checking_use():
        content = topics() if text is None else read_text(text)
    model, tokenizer = load_for_use(source, options)
    if not model.can_generate() or model.config.is_encoder_decoder:
        raise BadUse(f"{source}: expected a model that predicts the next token, got a {type(model).__name__}")
    ids = encode(tokenizer, content, tokens)
    if ids.numel() < 2:
        raise BadUse(f"--text: expected at least 2 tokens, got {ids.numel()}")
    check_context(model, min(window, ids.numel()), "--window")
    with progress("Evaluating") as bar:
        result = perplexity(model, ids, window, bar)
    size, first, later = result.tokens // result.windows + 1, result.seconds[0], result.seconds[1:]
    speed = f"{size / first:.0f} tokens/s" + (f", then {size * len(later) / sum(later):.0f}" if later else "")
    read = weight_bytes_per_token(model) * result.windows / sum(result.seconds) / 1e9
    out.print(
        f"perplexity {result.value:.4f}: {result.windows} window{'s' * (result.windows > 1)} of {size}, {result.tokens} tokens counted",
        markup=False,
    )
    out.print(
        f"first window after {first:.2f} s, {speed}, {read:.2f} GB/s of weights read; peak memory {megabytes(peak_memory())}", markup=False
    )
