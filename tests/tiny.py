"""A Llama-like model of a few thousand weights with a tokenizer of its own, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lowbit_tensor.integrations.perplexity import topics


def make(folder: Path, *, tied: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """Writes the model; grouped heads and a row length that no usual group size divides."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=384, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([topics()[:20000]], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=384, hidden_size=72, intermediate_size=200, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=18, max_position_embeddings=512, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
