"""Turns preprocessed Metal text into OpenCL C++ that clang takes: the text stays, but for what this file lists."""

from __future__ import annotations

import re

from .declarations import Declarations, Kernel, Parser
from .tokens import END, Text, failure

UNSUFFIXED = re.compile(r"(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?")
# A `[` after one of these can't be a subscript.
BEFORE_LAMBDA = {"=", "(", ",", "{", "return", "&&", "||", "?", ":"}


def rewrite(source: str, metal_version: int) -> tuple[str, Declarations]:
    """The text to compile, and what it declares. SyntaxError for what only this stage can see."""
    text = Text(source)
    parser = Parser(text)
    if metal_version < 320:
        _refuse_lambdas(text, set(parser.attributes))
    _threadgroup_arrays(text, list(parser.found.kernels.values()))
    for start, (end, _) in parser.attributes.items():
        text.blank(start, end)
    for i in range(len(text)):
        _method_qualifier(text, i)
        _literal(text, i)
    return str(text), parser.found


def _refuse_lambdas(text: Text, attributes: set[int]) -> None:
    for i in range(len(text)):
        if text[i].text != "[" or i in attributes or i - 1 in attributes or text[i - 1].text not in BEFORE_LAMBDA:
            continue
        if text[text.closing(i) + 1].text in ("(", "{"):
            raise failure(text[i].place, "lambdas need Metal 3.2")


def _literal(text: Text, i: int) -> None:
    """Literals without a suffix are float in Metal; 1.0bf and 1.0h are no literals of clang's."""
    token = text[i]
    if token.kind != "number":
        return
    if UNSUFFIXED.fullmatch(token.text):
        token.text += "f"
    elif token.text.endswith("bf") and UNSUFFIXED.fullmatch(token.text[:-2]):
        token.text = f"((bfloat){token.text[:-2]}f)"
    elif token.text.endswith(("h", "H")) and UNSUFFIXED.fullmatch(token.text[:-1]):
        token.text = f"((half){token.text[:-1]}f)"


def _method_qualifier(text: Text, i: int) -> None:
    """`void f() thread {`: OpenCL's methods serve all address spaces already."""
    if text[i].text == "thread" and text[i - 1].text in (")", "const") and text[i + 1].text in ("{", ";"):
        text[i].text = ""


def _threadgroup_arrays(text: Text, kernels: list[Kernel]) -> None:
    starts = [i for i in range(1, len(text)) if text[i].text == "threadgroup" and text[i - 1].text in ("{", "}", ";", ")")]
    for i in starts:
        _threadgroup_array(text, i, kernels)


def _threadgroup_array(text: Text, start: int, kernels: list[Kernel]) -> None:
    """`threadgroup T a[N];` becomes a typedef, and a reference to what the runtime's arena holds for it."""
    names, i = [], start + 1
    while text[i].text != ";":
        if text[i].text in ("*", "&", "=", "(", "{") or text[i] is END:
            return  # a pointer, a reference, a parameter: no storage of its own
        if text[i].kind == "name" and text[i + 1].text in ("[", ",", ";"):
            names.append(i)
        i = text.skip(i)
    if not any(kernel.body[0] < start < kernel.body[1] for kernel in kernels):
        raise failure(text[start].place, "a threadgroup variable must be declared in a kernel function")
    text[start].text = "typedef"
    for k in names:
        name = text[k].text
        text[k].text = f"{name}__emu"
        text[i].text += (
            f" static __global char {name}__tag = 0;"
            f" __local {name}__emu& {name} = *(__local {name}__emu*)emu_threadgroup_array(&{name}__tag, sizeof({name}__emu));"
        )
