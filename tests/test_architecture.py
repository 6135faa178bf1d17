"""The structure is a test: who imports whom, every registration alive, handlers short (docs/architecture.md)."""

from __future__ import annotations

import ast
import traceback
from pathlib import Path

import pytest
import torch

import lowbit_tensor
from lowbit_tensor import handlers
from lowbit_tensor.tensor import FUNCTIONS, OPERATORS

PACKAGE = Path(lowbit_tensor.__file__).parent
# The rows of docs/architecture.md, from the top; a file imports from rows above its own, or from its own without a circle.
LAYERS = [
    ["version", "format"],
    ["packing", "quantize"],
    ["ops"],
    ["metal", "cpu", "cuda"],
    ["tensor", "handlers"],
    ["config", "report", "plan", "convert", "atomic", "header", "load", "serialize"],
    ["calibrate"],
    ["integrations"],
    ["cli"],
    ["__init__", "__main__"],
]
BACKENDS = {"metal", "cpu", "cuda"}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def unit_of(module: str) -> str:
    return module.split(".")[0]


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a file imports, as dotted names below it, imports within functions included."""
    here = ["lowbit_tensor", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            if base[:1] == ["lowbit_tensor"]:
                for alias in node.names:
                    target = PACKAGE.joinpath(*base[1:], alias.name)
                    names = [*base[1:], alias.name] if target.is_dir() or target.with_suffix(".py").exists() else base[1:]
                    found.add(".".join(names) or "__init__")
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] or "__init__" for alias in node.names if alias.name.split(".")[0] == "lowbit_tensor"}
    return found


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_up(path: Path) -> None:
    own = unit_of(module_of(path) or "__init__")
    for target in imports_of(path):
        unit = unit_of(target)
        assert RANK[unit] <= RANK[own], f"{module_of(path)} imports {target}, which lies below it"
        assert not (unit in BACKENDS and own in BACKENDS and unit != own), f"{module_of(path)} imports another backend"


def test_imports_have_no_circle() -> None:
    graph = {module_of(path) or "__init__": imports_of(path) for path in FILES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module not in done:
            for target in graph.get(module, set()) - {module}:
                visit(target, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_ops_and_backends_do_not_know_the_tensor() -> None:
    for path in FILES:
        if unit_of(module_of(path)) in {"ops", "packing", "quantize", *BACKENDS}:
            assert not {unit_of(m) for m in imports_of(path)} & {"tensor", "handlers"}, path.name


def test_integrations_import_their_library_inside_functions() -> None:
    for path in (PACKAGE / "integrations").glob("*.py"):
        top = [n for n in ast.parse(path.read_text()).body if isinstance(n, (ast.Import, ast.ImportFrom))]
        names = {a.name.split(".")[0] for n in top if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module.split(".")[0] for n in top if isinstance(n, ast.ImportFrom) and n.level == 0 and n.module}
        assert not names & {"transformers", "accelerate", "tokenizers", "gguf", "peft", "matplotlib", "numpy"}, path.name


def test_registrations_are_alive() -> None:
    for overload, handler in OPERATORS.items():
        packet = getattr(torch.ops.aten, overload._schema.name.removeprefix("aten::"))
        assert overload in [getattr(packet, name) for name in packet.overloads()] and callable(handler)
    for function, handler in FUNCTIONS.items():
        assert callable(function) and callable(handler)
    for name in torch.ops.lowbit._dir if hasattr(torch.ops.lowbit, "_dir") else []:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"lowbit::{name}", "Meta")


@pytest.mark.parametrize("path", sorted((PACKAGE / "handlers").glob("*.py")), ids=lambda p: p.stem)
def test_handlers_are_short(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and any("operator" in ast.dump(d) or "function" in ast.dump(d) for d in node.decorator_list):
            lines = node.end_lineno - node.body[0].lineno + 1
            assert lines <= 15, f"{path.name}:{node.name} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_files_and_functions_are_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300, f"{path.name}: look for the second thing it does"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno <= 60, f"{path.name}:{node.name}"


def test_public_functions_say_what_they_do() -> None:
    for name in lowbit_tensor.__all__:
        thing = getattr(lowbit_tensor, name)
        if callable(thing):
            assert thing.__doc__ and len(thing.__doc__) > 40, name


HOPS = ["tensor.py:__torch_function__", "handlers/products.py:linear"]
OP = ["handlers/products.py:_linear", "cpu/__init__.py:run"]
WAYS = {
    "native": ("lowbit_tensor.cpu.library.LIBRARY.lowbit_linear", [*HOPS, "cpu/quick.py:quick_linear"]),
    "through the op": (
        "lowbit_tensor.cpu.launch._few",
        [*HOPS, "handlers/products.py:_linear", "cpu/__init__.py:run", "cpu/launch.py:linear"],
    ),
    "reference": (
        "lowbit_tensor.ops.linear.decode",
        [*HOPS, "handlers/products.py:_linear", "cpu/__init__.py:run", "ops/linear.py:reference"],
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_few_hops_from_linear_to_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our frames on the stack where the arithmetic is called: look-up, handler, launch; or the op that the dispatcher picks, and its."""
    place, expected = WAYS[name]
    weight = lowbit_tensor.LowBitWeightTensor.from_float(torch.randn(8, 64), 4)
    stacks = []

    def arithmetic(*args):
        frames = traceback.extract_stack()
        stacks.append(
            [f"{Path(f.filename).relative_to(PACKAGE).as_posix()}:{f.name}" for f in frames if PACKAGE in Path(f.filename).parents]
        )
        return torch.zeros(8, 64)

    monkeypatch.setattr(place, arithmetic)
    lowbit_tensor.cpu.use("reference" if name == "reference" else None)
    try:
        torch.nn.functional.linear(torch.randn(2, 64, requires_grad=name == "through the op"), weight)
    finally:
        lowbit_tensor.cpu.use()
    assert stacks == [expected]


def test_kinds_cover_the_table() -> None:
    names = {overload._schema.name.removeprefix("aten::") for overload in OPERATORS}
    assert names == set().union(*handlers.KINDS.values())
