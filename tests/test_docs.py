"""docs/format.md and docs/api.md hold the code to what they say; every path and command in the docs exists; the README's code runs."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
import tiny
import torch

import lowbit_tensor as lb
from lowbit_tensor import header
from lowbit_tensor.cli import main
from lowbit_tensor.handlers import KINDS

ROOT = Path(__file__).resolve().parent.parent
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
API = (ROOT / "docs" / "api.md").read_text()
FORMAT = (ROOT / "docs" / "format.md").read_text()
README = (ROOT / "README.md").read_text()


def section(text: str, title: str) -> str:
    return re.search(rf"^## \d+\. {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[1]


def table(text: str) -> list[list[str]]:
    """Cells of the first table in a text, without its head."""
    lines = re.search(r"(?:^\|.*\n)+", text, re.M)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_public_names() -> None:
    assert {name for row in table(section(API, "Names of `lowbit_tensor`")) for name in code(row[0])} == set(lb.__all__) - {"__version__"}
    for name in lb.__all__:
        assert hasattr(lb, name)


def test_members_of_the_tensor() -> None:
    w = lb.LowBitWeightTensor.from_float(torch.randn(4, 64), 4)
    for row in table(section(API, "`LowBitWeightTensor`")):
        assert hasattr(w, code(row[0])[0].partition("(")[0])


def test_op_schemas() -> None:
    written = re.search(r"```\n(.*?)```", section(API, "Ops"), re.S)[1].splitlines()
    names = [line.partition("(")[0].removeprefix("lowbit::") for line in written]
    assert [str(getattr(torch.ops.lowbit, name).default._schema) for name in names] == written
    registered = {s.name.removeprefix("lowbit::") for s in torch._C._jit_get_all_schemas() if s.name.startswith("lowbit::")}
    assert registered == set(names) == {code(row[0])[0].removeprefix("lowbit::") for row in table(section(API, "Ops"))}


def test_table_of_what_ops_mean() -> None:
    written = {row[0]: set(code(row[2])) for row in table(section(API, "What an op on the tensor means"))}
    assert written == dict(KINDS)


def test_config_fields() -> None:
    fields = {f.name: f for f in dataclasses.fields(lb.LowBitConfig)}
    rows = {code(row[0])[0]: row[1] for row in table(section(API, "`LowBitConfig`"))}
    assert list(rows) == list(fields)
    config = lb.LowBitConfig(4)
    for name, default in rows.items():
        if default != "required":
            assert eval(code(default)[0], {"DEFAULT_METHOD": lb.DEFAULT_METHOD}) == getattr(config, name)


@pytest.mark.parametrize("row", table(section(API, "Functions")), ids=lambda row: code(row[0])[0].partition("(")[0])
def test_function_signatures(row: list[str]) -> None:
    import inspect

    name, _, arguments = code(row[0])[0].partition("(")
    parameters = inspect.signature(getattr(lb, name)).parameters
    assert [a.partition("=")[0].strip() for a in arguments.rstrip(")").split(",") if a.strip() != "*"] == list(parameters)


def test_bytes_of_the_format() -> None:
    rows = re.findall(r"^\| (\d) \| ((?:[0-9a-f]{2} ?)+) \|$", FORMAT, re.M)
    assert [int(bits) for bits, _ in rows] == list(range(1, 9))
    for bits, written in rows:
        codes = torch.arange(8) % 2 ** int(bits)
        assert bytes(lb.pack(codes, int(bits)).tolist()) == bytes.fromhex(written)


def test_sizes_of_the_format() -> None:
    w = lb.LowBitWeightTensor.from_float(torch.randn(2, 3, 130), 5, 64)
    assert w.packed.shape == (2, 3, -(-130 * 5 // 8)) and w.scales.shape == w.zeros.shape == (2, 3, 3)
    assert lb.packed_nbytes(w) == w.format.nbytes(6)
    assert w.format.nbytes(1) * 8 / 130 == pytest.approx((82 + 12) * 8 / 130)


def test_file_keys(tmp_path: Path) -> None:
    example = json.loads(re.search(r"```json\n(.*?)```", FORMAT, re.S)[1])
    entries, aliases = header.parse(json.dumps(example), "docs", [])
    (name, entry), (alias, first) = next(iter(entries.items())), next(iter(aliases.items()))
    w = lb.LowBitWeightTensor.from_float(torch.randn(entry.shape), entry.format.bits, entry.format.group_size)
    embedding = torch.randn(5, 4)
    lb.save_file({name: w, first: embedding, alias: embedding}, tmp_path / "m.safetensors")
    from safetensors import safe_open

    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert json.loads(file.metadata()[header.KEY]) == example
        assert set(file.keys()) == {f"{name}.{part}" for part in ("packed", "scales", "zeros")} | {first}


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_paths_in_docs_exist(path: Path) -> None:
    text = path.read_text()
    named = set(re.findall(r"`((?:lowbit_tensor|tests|docs|benchmarks|tools|\.ci)/[\w./-]*)`", text))
    named |= {p for p in re.findall(r"`([\w/.-]+\.(?:py|md))`", text) if "/" in p}
    for name in named:
        assert (ROOT / name).exists(), f"{path.name} names {name}"
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("http") or (path.parent / link).exists(), f"{path.name} links {link}"


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_make_targets_in_docs_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", path.read_text(), re.M)) <= {(t, "") for t in targets} | {
        ("", t) for t in targets
    }


def test_ci_runs_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^make test$", script, re.M) and re.search(r"^make test-full$", script, re.M) and "OMP_WAIT_POLICY=PASSIVE" in script


def test_readme_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) >= 3
    exec(compile("\n".join(blocks), "README.md", "exec"), {"__name__": "readme"})


def test_readme_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.make(tmp_path / "my-model")
    lines = [line for block in re.findall(r"```bash\n(.*?)```", README, re.S) for line in block.splitlines() if line.startswith("lowbit ")]
    assert {line.split()[1] for line in lines} == {"quantize", "generate", "eval", "inspect"}
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line


def test_commands_of_api_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for row in table(section(API, "The command `lowbit`")):
        assert main([code(row[0])[0].split()[1], "--help"]) == 0
        assert "Usage: lowbit" in capsys.readouterr().out


def test_readme_shows_the_demo_as_measured() -> None:
    assert (ROOT / "docs" / "demo" / "table.md").read_text() in README
    assert (ROOT / "docs" / "demo" / "quality.png").read_bytes().startswith(b"\x89PNG")
