"""Runs Metal shaders on the CPU, for machines without Metal: the text is compiled by clang, one fiber is one GPU thread."""

from .library import Library, ShaderError, counts
from .standin import compile_shader, log

__all__ = ["Library", "ShaderError", "compile_shader", "counts", "log"]
