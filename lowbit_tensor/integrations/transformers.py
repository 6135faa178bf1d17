"""Language models of transformers: reading Hugging Face folders, GGUF files and our own folders; writing ours."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path
from typing import Any

import torch

from ..config import LowBitConfig
from ..convert import Progress, quantize_
from ..header import VERSION
from ..load import QUANT_METHOD, load_file, parse_settings, read_json
from ..report import QuantizationReport
from ..serialize import save_file
from ..tensor import LowBitWeightTensor


def load_model(source: str | os.PathLike[str], dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """(model, tokenizer) of a Hugging Face folder, a GGUF file or a folder of ours.

    The model is in evaluation mode; the tokenizer is None where there is none.
    `dtype` is that of a float model's weights (None: as in the folder; float32 for GGUF). Nothing is downloaded.
    Raises FileNotFoundError where there is nothing, ValueError for what is no model or is quantized by another library.
    """
    source = Path(source)
    check_source(source)
    if source.is_file():
        return _load_gguf(source, dtype or torch.float32)
    settings = read_json(source / "config.json").get("quantization_config")
    if settings is None:
        model = _load_float(source, model_class(source), dtype=dtype or "auto")
    else:
        model = _load_own(source)
    return model.eval(), load_tokenizer(source)


def check_source(source: Path) -> None:
    """Raises FileNotFoundError or ValueError for what `load_model` cannot read, before anything large is."""
    _library("transformers")
    if not source.exists():
        raise FileNotFoundError(f"{source}: expected a model folder or a GGUF file, got nothing there (models are not downloaded)")
    if source.is_file():
        with source.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise ValueError(f"{source}: expected a model folder or a GGUF file, got a file that starts with {magic!r}")
        _library("gguf")
        return
    if not (source / "config.json").exists():
        raise ValueError(f"{source}: expected a model folder with config.json, got none")
    settings = read_json(source / "config.json").get("quantization_config")
    if settings is not None and (not isinstance(settings, dict) or settings.get("quant_method") != QUANT_METHOD):
        method = settings.get("quant_method") if isinstance(settings, dict) else settings
        raise ValueError(f"{source}: expected a float model or one of quant_method 'lowbit', got one of {method!r}")


def is_low_bit(source: str | os.PathLike[str]) -> bool:
    """Whether `source` is a model folder of ours."""
    config = Path(source) / "config.json"
    return config.exists() and isinstance(s := read_json(config).get("quantization_config"), dict) and s.get("quant_method") == QUANT_METHOD


def model_class(folder: Path) -> Any:
    """The class of transformers that `config.json` names under `architectures`."""
    transformers = _library("transformers")
    names = read_json(folder / "config.json").get("architectures") or ["AutoModelForCausalLM"]
    found = getattr(transformers, names[0], None) if isinstance(names, list) and isinstance(names[0], str) else None
    if found is None or not hasattr(found, "_from_config"):
        raise ValueError(f"{folder}: config.json: expected an architecture that transformers {transformers.__version__} has, got {names!r}")
    return found


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, or None where it has none."""
    if not any(
        (folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
    ):
        return None
    return _library("transformers").AutoTokenizer.from_pretrained(folder, local_files_only=True)


def quantize_model(model: Any, config: LowBitConfig, progress: Progress | None = None) -> QuantizationReport:
    """`quantize_`, and the settings put into the model's config; where a head was untied, the config says so too."""
    report = quantize_(model, config, progress=progress)
    model.config.quantization_config = {"quant_method": QUANT_METHOD, "version": VERSION, **config.to_json()}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    text = model.config.get_text_config()
    if head is not None and getattr(text, "tie_word_embeddings", False) and head.weight is not embedding.weight:
        text.tie_word_embeddings = model.config.tie_word_embeddings = False
    return report


def save_model(model: Any, tokenizer: Any, folder: Path, max_shard_size: int | str | None = "5GB") -> None:
    """Writes config, generation settings, weights and tokenizer into an existing folder."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None and model.can_generate():
        model.generation_config.save_pretrained(folder)
    save_file(model.state_dict(), folder / "model.safetensors", max_shard_size=max_shard_size)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def weight_bytes_per_token(model: Any) -> int:
    """Bytes of weights that one decoded token reads: all parameters, but of an embedding that is no head only nothing (one row)."""
    from ..report import packed_nbytes

    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    skip = None if head is not None and head.weight is embedding.weight else embedding.weight
    return sum(packed_nbytes(p) for p in model.parameters() if p is not skip)


def _load_float(folder: Path, kind: Any, **options: Any) -> Any:
    """A float model. Raises ValueError for weights that are missing or of another shape: transformers would make them up at random."""
    model, info = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True, **options)
    wrong = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if wrong:
        raise ValueError(f"{folder}: expected the weights that config.json describes, got none that fits {wrong[0]}")
    if extra := sorted(map(str, info["unexpected_keys"])):
        warnings.warn(f"{folder}: {len(extra)} weights that the model does not have are left out, such as {extra[0]}", stacklevel=2)
    return model


def _load_own(folder: Path) -> Any:
    """A folder of ours: the model is made without weights, the mapped file's take their places."""
    accelerate, transformers = _library("accelerate"), _library("transformers")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    settings = config.quantization_config
    parse_settings(settings)
    del config.quantization_config
    tensors = load_file(folder)
    with accelerate.init_empty_weights():
        model = model_class(folder)._from_config(config)
    _, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    left = [name for name, p in model.named_parameters() if p.is_meta]
    if left or unexpected:
        what = f"no {left[0]}" if left else f"{unexpected[0]}, which the model lacks"
        raise ValueError(f"{folder}: expected weights that fit the model, got {what}")
    if not any(isinstance(p, LowBitWeightTensor) for p in model.parameters()):
        raise ValueError(f"{folder}: config.json says quant_method 'lowbit', but the files hold float weights alone")
    model.config.quantization_config = settings
    model.requires_grad_(False)
    if (folder / "generation_config.json").exists() and model.can_generate():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model


def _load_gguf(file: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    transformers = _library("transformers")
    options = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **options)
    float_weights = transformers.GgufConfig(dequantize=True)
    model = _load_float(file.parent, transformers.AutoModelForCausalLM, dtype=dtype, quantization_config=float_weights, gguf_file=file.name)
    model.hf_quantizer = None  # float weights from here on, so saving is allowed
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model.eval(), tokenizer


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"expected {name} to be installed: pip install 'lowbit-tensor[hf]' ({error})") from None
