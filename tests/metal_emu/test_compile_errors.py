"""Shaders that Metal refuses: each is a SyntaxError, with the message and the line that it expects."""

from __future__ import annotations

import re

import pytest

from metal_emu import compile_shader
from metal_emu.cases import kernel, read

REFUSED = read("refused")


@pytest.mark.parametrize("name", REFUSED)
def test_a_shader_is_refused(name: str) -> None:
    case = REFUSED[name]
    with pytest.raises(SyntaxError, match=case.expect) as error:
        compile_shader(case.source)
    told = [line for line in str(error.value).split("\n") if re.search(f"error: .*({case.expect})", line)]
    assert told and all(line.startswith(case.place) for line in told), str(error.value)


def test_metal_4_has_what_metal_3_has_not() -> None:
    source = kernel("if constexpr (true) x[i] = 1;\nauto f = [&](float a) { return a; };\nx[i] = f(x[i]);")
    assert dir(compile_shader(source, metal_version=400)) == ["k"]
    with pytest.raises(SyntaxError, match="C\\+\\+17"):
        compile_shader(source, metal_version=320)


def test_the_version_reaches_the_shader() -> None:
    source = kernel("#if __METAL_VERSION__ < 320\nx[i] = 1\n#endif\n;")
    assert dir(compile_shader(source)) == ["k"]
    with pytest.raises(SyntaxError, match="expected ';'"):
        compile_shader(source.replace("320", "310 || __METAL_VERSION__ == 310\nx[i] = 1"))
