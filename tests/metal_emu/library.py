"""A compiled shader library: its kernels, what their parameters are, and one launch of one of them."""

from __future__ import annotations

import ctypes
import functools
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from . import operations, toolchain
from .glue import MAX_BUFFERS, glue
from .rewrite import rewrite

ORDERS = {"forward": 0, "reverse": 1, "shuffle": 2}
COUNTS = (
    *("device_bytes_loaded", "device_bytes_stored", "constant_bytes_loaded"),
    *("threadgroup_bytes_loaded", "threadgroup_bytes_stored"),
    *("device_lines_loaded", "device_lines_stored"),
    *("simd_operations", "matrix_operations", "barriers", "threadgroup_memory"),
)
counts: dict[str, int] = {}  # of the last launch; bytes only in CHECK mode, lines and operations only if asked for


class ShaderError(RuntimeError):
    """What a kernel did wrong while it ran, and the line of its text."""


class Parameter(ctypes.Structure):
    """emu_parameter of runtime/abi.h."""

    _fields_: ClassVar = [(n, ctypes.c_int) for n in ("index", "reference", "constant", "writable", "kind", "lanes", "size")]

    @property
    def element(self) -> tuple[str, int]:
        """Kind and bytes of a component, ("f", 4) for float4."""
        return chr(self.kind), self.size // (4 if self.lanes == 3 else self.lanes)

    def __str__(self) -> str:
        kind, size = self.element
        names = {"f": "float", "h": "half", "b": "bfloat", "o": "bool", "s": "a struct", "v": "void"}
        integers = {1: "char", 2: "short", 4: "int", 8: "long"}
        name = names.get(kind) or ("u" if kind == "u" else "") + integers[size]
        lanes = str(self.lanes) if self.lanes > 1 else ""
        return f"{'constant' if self.constant else 'device'} {name}{lanes}{'&' if self.reference else '*'}"


class _Binding(ctypes.Structure):
    _fields_: ClassVar = [("address", ctypes.c_ulong), ("bytes", ctypes.c_long), ("writable", ctypes.c_int), ("constant", ctypes.c_int)]


class _Request(ctypes.Structure):
    _fields_: ClassVar = [
        ("grid", ctypes.c_uint * 3),
        ("group", ctypes.c_uint * 3),
        ("check", ctypes.c_int),
        ("count_lines", ctypes.c_int),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_ulong),
        ("bindings", _Binding * MAX_BUFFERS),
    ]


class _Report(ctypes.Structure):
    _fields_: ClassVar = [("image", ctypes.c_ulong), ("counts", ctypes.c_ulong * len(COUNTS)), ("error", ctypes.c_char * 1600)]


@dataclass
class Kernel:
    name: str
    place: str
    entry: object
    parameters: dict[int, Parameter]
    max_threads: int | None  # as declared


class Library:
    """`check` is the CHECK mode, `count_operations` adds what is computed to `counts`, at a price.

    SyntaxError, with the compiler's message, for text that Metal would refuse.
    """

    def __init__(self, source: str, check: bool = True, metal_version: int = 310, count_operations: bool = False) -> None:
        self.source, self.check, self.metal_version = source, check, metal_version
        self._more = operations.FLAGS if count_operations else []
        refuse_text(source)
        key = toolchain.digest(toolchain.harness_digest(), source, check, metal_version, self._more)
        self.path = toolchain.cached(f"kernels-{key}.so", self._build)
        self._handle = ctypes.CDLL(str(self.path))
        self.kernels = self._kernels()
        self._blocks = json.loads(toolchain.cached(f"blocks-{key}.json", self._write_blocks).read_text()) if count_operations else []

    def _build(self, target: Path) -> None:
        warnings = toolchain.compile_library(translate(self.source, self.metal_version), self.check, target, self._more)
        refuse_warnings(warnings, self.metal_version)

    def _write_blocks(self, target: Path) -> None:
        code = toolchain.intermediate_code(translate(self.source, self.metal_version), self.check, self._more)
        target.write_text(json.dumps(operations.blocks(code)))

    def _kernels(self) -> dict[str, Kernel]:
        self._handle.emu_table.restype = ctypes.c_char_p
        found = {}
        for number, facts in enumerate(json.loads(self._handle.emu_table())):
            parameters = (Parameter * (MAX_BUFFERS + 1))()
            count = getattr(self._handle, f"emu_parameters_{number}")(parameters)
            limit = getattr(self._handle, f"emu_max_threads_{number}")() if facts["max_threads"] else None
            by_slot = {parameters[i].index: parameters[i] for i in range(count)}
            entry = getattr(self._handle, f"emu_entry_{number}")
            found[facts["name"]] = Kernel(facts["name"], facts["place"], entry, by_slot, limit)
        return found

    def launch(
        self,
        name: str,
        bindings: dict[int, tuple[int, int]],
        threads: tuple[int, int, int],
        group: tuple[int, int, int],
        order: str = "forward",
        seed: int = 0,
        count_lines: bool = False,
    ) -> None:
        """Runs a kernel over buffers given as {slot: (address, bytes)}. ShaderError for what it does wrong."""
        kernel = self.kernels[name]
        extents = (ctypes.c_uint * 3)(*threads), (ctypes.c_uint * 3)(*group)
        request = _Request(*extents, self.check, count_lines, ORDERS[order], seed)
        for slot in range(MAX_BUFFERS):
            address, size = bindings.get(slot, (0, -1))
            parameter = kernel.parameters.get(slot)
            writable, constant = (parameter.writable, parameter.constant) if parameter else (0, 0)
            request.bindings[slot] = _Binding(address, size, writable, constant)
        report = _Report()
        failed = _runtime().emu_launch(kernel.entry, ctypes.byref(request), ctypes.byref(report))
        counts.clear()
        counts.update(zip(COUNTS, report.counts, strict=True))
        if self._blocks:
            counts.update(operations.total(self._blocks, _runtime().emu_executed()[: len(self._blocks)]))
        if failed:
            raise ShaderError(f"{name}: {self._with_lines(report.error.decode(), report.image)}")

    def _with_lines(self, message: str, image: int) -> str:
        """Writes lines of the shader for the addresses, `{0x...}`, in a message."""
        return re.sub(r"\{0x([0-9a-f]+)\}", lambda found: line_of(str(self.path), int(found[1], 16) - image - 1), message)


@functools.cache
def _runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(str(toolchain.runtime()))
    library.emu_executed.restype = ctypes.POINTER(ctypes.c_ulong)
    return library


def translate(source: str, metal_version: int) -> str:
    """Shader text -> what clang compiles."""
    text, found = rewrite(toolchain.preprocess(source, metal_version), metal_version)
    return f'#include "emu/all.h"\n{text}{glue(found)}'


def refuse_text(source: str) -> None:
    """What torch or Metal refuses before any parsing."""
    for number, line in enumerate(source.split("\n"), 1):
        if not line.isascii():
            raise SyntaxError(f"program_source:{number}: error: a character that is not ASCII: torch hands the source over as ASCII")
    if "metal_stdlib>" not in source:
        raise SyntaxError("program_source:1: error: `#include <metal_stdlib>` is missing")
    if re.search(r"\bsimdgroup_(matrix|load|store|multiply|\w+8x8)\b", source) and "metal_simdgroup_matrix>" not in source:
        raise SyntaxError("program_source:1: error: `#include <metal_simdgroup_matrix>` is missing")


def refuse_warnings(warnings: str, metal_version: int) -> None:
    """Makes errors of what clang only warns of and Metal refuses."""
    for line in warnings.split("\n"):
        place, found, message = line.partition(": warning: ")
        if found and re.search(r"implicit conversion .* to '[^']*(bfloat|__bf16)'", message):
            raise SyntaxError(f"{place}: error: implicit conversion to bfloat: {message}")
        if found and "-Wpre-c++17-compat" in message and metal_version < 400:
            raise SyntaxError(f"{place}: error: C++17, which needs Metal 4.0: {message}")


def line_of(library: str, address: int) -> str:
    """`file:line` of an address, and of the calls that it was inlined into: innermost first, the harness's own lines left out."""
    tool = shutil.which("addr2line") or shutil.which("llvm-symbolizer") or shutil.which("llvm-symbolizer-19")
    if not tool:
        return "(install binutils for the line)"
    output = toolchain.run([tool, "--inlines", "--functions", "--obj" if "symbolizer" in tool else "-e", library, hex(address)]).stdout
    places = [Path(line).name for line in output.split("\n") if re.search(r":\d+", line) and "/emu/" not in line and "<glue>" not in line]
    return " <- ".join(re.sub(r"(:\d+).*", r"\1", place) for place in places) or "?"
