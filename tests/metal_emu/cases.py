"""Reads cases/*.metal, the shaders of the harness's own tests, and makes others of a few lines.

A file is a list of cases:

    // case: its name
    // expect: a pattern for the message, or an expression
    // threads: 128                       (64 if left out)
    // parameters: device int* x, ...     (x alone, a device float*, if left out)
    text before the kernel
    // body                               (left out where no text comes before)
    the body of kernel `k`, over x, with i, t, group and lane for the thread

or, after `// whole`, all of the shader but its #includes, or after `// exactly` all of it. `// fault` marks the line to be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "cases"
HEADER = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
INPUTS = """uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]"""
X = "device float* x [[buffer(0)]]"


@dataclass
class Case:
    name: str
    source: str
    expect: str
    threads: int

    @property
    def place(self) -> str:
        return line_of(self.source)


def kernel(body: str, before: str = "", parameters: str = X) -> str:
    """A kernel `k` of that body over x, with i, t, group and lane for the thread, after the text `before`."""
    return f"{HEADER}{before}\nkernel void k({parameters},\n    {INPUTS}) {{\n{body}\n}}\n"


def line_of(source: str, mark: str = "// fault") -> str:
    """Where an error must be told: the line of the mark, "" without one."""
    return f"program_source:{source[: source.index(mark)].count(chr(10)) + 1}" if mark in source else ""


def numbers(n: int = 64, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(n, dtype=torch.float32).to(dtype)


def read(name: str, parameters: str = X) -> dict[str, Case]:
    """The cases of a file by name; `parameters` for those that say none."""
    _, *texts = (FOLDER / f"{name}.metal").read_text().split("\n// case: ")
    cases = [_case(text, parameters) for text in texts]
    return {case.name: case for case in cases}


def _case(text: str, parameters: str) -> Case:
    name, *lines = text.strip("\n").split("\n")
    fields = {"expect": "", "threads": "64", "parameters": parameters}
    while lines and (found := next((key for key in fields if lines[0].startswith(f"// {key}: ")), None)):
        fields[found] = lines.pop(0).partition(": ")[2]
    return Case(name, _source("\n".join(lines), fields["parameters"]), fields["expect"], int(fields["threads"]))


def _source(text: str, parameters: str) -> str:
    if text.startswith("// exactly\n"):
        return text.removeprefix("// exactly\n") + "\n"
    if text.startswith("// whole\n"):
        return HEADER + text.removeprefix("// whole\n") + "\n"
    before, _, body = text.rpartition("// body\n")
    return kernel(body, before.strip("\n"), parameters)
