"""Runs Metal shaders on the CPU, for machines without Metal: clang compiles the text, one fiber is one GPU thread.

A shader goes through, file by file: `toolchain` (clang -E) -> `tokens`, `declarations` (what is in the text) -> `rewrite` (what OpenCL C++
says otherwise), `glue` (how Python calls it) -> `toolchain` (a shared library, cached) -> `library` (launches) -> `standin`, `binding`
(torch's way to call it). `include/` is Metal's standard library, `runtime/` the GPU: schedule, threadgroup memory, and in CHECK mode the
checks of every access. `lint` has the rules for our own kernels, `operations` counts arithmetic.
"""

from .library import Library, ShaderError, counts
from .standin import compile_shader, log

__all__ = ["Library", "ShaderError", "compile_shader", "counts", "log"]
