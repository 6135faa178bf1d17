"""The rules for our own kernels, beyond what the compilation refuses: read from clang's syntax tree, its warnings and the text.

Some are errors of Metal that clang takes for correct, others keep away from what Metal's compilers are known to differ in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from . import toolchain
from .library import Library, translate

VARIABLE = r"(ParmVarDecl|VarDecl|FieldDecl) 0x\S+ <[^>]*> \S+ (?:used |referenced )*(?!used '|referenced ')\w+"  # one with a name
# (pattern for a line of the syntax tree, what is wrong with the text there)
TREE_RULES = [
    (rf"{VARIABLE} '[^']*__generic [^']*[*&][^']*'", "a pointer or reference without an address space"),
    (
        rf"{VARIABLE} '(?![^']*__(global|local|constant|private|generic) )(?:[^'[*&]|\[[^\]]*\])*[*&][^']*'",
        "a pointer or reference without an address space",
    ),
    (
        r"ImplicitCastExpr .*'(\w+ )*bfloat'.* <(FloatingCast|IntegralToFloating)>(?! part_of_explicit_cast)",
        "implicit conversion to bfloat",
    ),
    (
        r"ImplicitCastExpr .*'(\w+ )*__bf16'.* <(FloatingCast|IntegralToFloating)>(?! part_of_explicit_cast)",
        "implicit conversion to bfloat",
    ),
    (r"CompoundAssignOperator .*'(\w+ )*(bfloat|__bf16)'.*ComputeResultTy='float'", "implicit conversion to bfloat"),
    (
        r"ConditionalOperator 0x\S+ <[^>]*> '[^']*\b(vec<|(float|half|bfloat|u?int|u?short|u?char|u?long|bool)[234])",
        "?: on vectors: use select",
    ),
    (
        r"CXXMethodDecl 0x(?!.* implicit ).* '(const )?(__private|__generic) [^'(]*&(?: |\()",
        "a method that returns a reference to thread memory",
    ),
    (r"LambdaExpr 0x", "a lambda: it needs Metal 3.2"),
]
# (pattern for a line of the source, what is wrong)
TEXT_RULES = [
    (r"^\s*#\s*include\s*\"", '#include "...": torch finds its own headers only'),
    (r"^\s*#\s*include\s*<(?!metal_)", "#include of what is no header of Metal's"),
    (r"\bdouble\b", "double: Metal has none"),
    (r"\b(uchar|char|ushort|short|half|bfloat)3\b(?=\s*\*)", "a pointer to vectors of three: each takes the room of four"),
]
LOCATION = re.compile(r"(?<=[<, ])(line|[^\s<>:,']+|<[\w ]+>):(\d+)(?=:\d)")
OWN = ("/emu/", "/runtime/", "<glue>", "<built-in>", "<scratch space>", "<invalid sloc>")


def lint(library: Library, launched: dict[str, set[int]]) -> list[str]:
    """Messages "file:line: what" by line; `launched` has the group sizes that each kernel was launched with."""
    return sorted({*_of_text(library), *_group_sizes(library, launched)}, key=_by_line)


def _by_line(message: str) -> tuple[str, int, str]:
    file, line, what = message.split(":", 2)
    return file, int(line), what


def _of_text(library: Library) -> list[str]:
    key = toolchain.digest(toolchain.harness_digest(), library.source, library.metal_version, "lint")

    def build(target: Path) -> None:
        target.write_text(json.dumps([*_text(library.source), *_compiler(library)]))

    return json.loads(toolchain.cached(f"lint-{key}.json", build).read_text())


def _text(source: str) -> Iterator[str]:
    for number, line in enumerate(source.split("\n"), 1):
        for pattern, message in TEXT_RULES:
            if re.search(pattern, line.split("//")[0]):
                yield f"program_source:{number}: {message}"


def _compiler(library: Library) -> Iterator[str]:
    tree, warnings = toolchain.syntax_tree(translate(library.source, library.metal_version))
    for line in warnings.split("\n"):
        place, found, message = line.partition(": warning: ")
        place = place.rpartition(":")[0]  # without the column
        if found and "-Wpre-c++17-compat" in message:
            yield f"{place}: C++17, which needs Metal 4.0: {message}"
        elif found and "lint: " in message:
            yield f"{place}: {message.partition('lint: ')[2].partition(' [-W')[0]}"
    for place, line in _located(tree):
        if not any(own in place for own in OWN):
            yield from (f"{place}: {message}" for pattern, message in TREE_RULES if re.search(pattern, line))


def _located(tree: str) -> Iterator[tuple[str, str]]:
    """(file:line, line of the tree): the tree names a file or line only where it differs from the one before."""
    file, number = "", ""
    for line in tree.split("\n"):
        for found in LOCATION.finditer(line.partition(" '")[0]):
            file, number = (file if found[1] == "line" else found[1]), found[2]
        yield f"{file}:{number}", line


def _group_sizes(library: Library, launched: dict[str, set[int]]) -> Iterator[str]:
    for name, kernel in library.kernels.items():
        if kernel.max_threads is None:
            yield f"{kernel.place}: '{name}' does not declare max_total_threads_per_threadgroup"
            continue
        for size in launched.get(name, ()):
            if size != kernel.max_threads:
                yield f"{kernel.place}: '{name}' declares threadgroups of {kernel.max_threads} threads and is launched with {size}"
