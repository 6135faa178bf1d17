"""What a launch computes, in operations of LLVM's intermediate code: the static count of a basic block times how often it ran.

One operation of one thread counts as one, a vector's as one a component, fma as two. It is clang's optimised code that is counted, for
a CPU without vectors: an estimate of what Metal's compiler makes. A SIMD-group reduction adds about 31 operations, CHECK mode some
long ones. Products of matrices are not in it: each of `matrix_operations` is 8 * 8 * 8 multiply-adds.
"""

from __future__ import annotations

import re
from collections import Counter

FLAGS = ["-fsanitize-coverage=bb,no-prune,trace-pc-guard", "-fno-vectorize", "-fno-slp-vectorize"]
OPERATIONS = ("float_operations", "integer_operations", "long_operations", "conversions")
FLOATS = {"fadd", "fsub", "fmul", "fdiv", "frem", "fneg"}
INTEGERS = {"add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl", "lshr", "ashr", "and", "or", "xor"}
CONVERSIONS = {"uitofp", "sitofp", "fptoui", "fptosi", "fptrunc", "fpext"}
GUARDS = re.compile(r"^@(__sancov_gen_[.\d]*) = .*\[(\d+) x i32\].*__sancov_guards", re.MULTILINE)
# Older compilers write a guard's place as bytes from the first, newer ones as an index.
REACHED = re.compile(
    r"@__sanitizer_cov_trace_pc_guard\(.*@(__sancov_gen_[.\d]*)(?: to i64\), i64 (?P<bytes>\d+)|, i64 0, i64 (?P<index>\d+))?"
)
INSTRUCTION = re.compile(r"%\S+ = (?:tail )?(\w+)(.*)")
FLAG_WORDS = re.compile(r"\b(nuw|nsw|exact|disjoint|nneg|fast|contract|nnan|ninf|nsz|arcp|afn|reassoc) ")


def blocks(code: str) -> list[Counter[str]]:
    """From the text of a library in LLVM's code: the operations of each block, in the order of the guards in memory."""
    first, total = {}, 0
    for name, size in GUARDS.findall(code):
        first[name], total = total, total + int(size)
    found: list[Counter[str]] = [Counter() for _ in range(total)]
    current: Counter[str] = Counter()
    for line in code.split("\n"):
        text = line.strip()
        if not line.startswith(" "):
            current = Counter()  # a label or the end of a function: the guard's call comes first in a block
        elif reached := REACHED.search(text):
            guard = first[reached[1]] + int(reached["bytes"] or 0) // 4 + int(reached["index"] or 0)
            found[guard].update(current)
            current = found[guard]
        elif "!nosanitize" not in text and (instruction := INSTRUCTION.match(text)):
            current.update(_operations(instruction[1], FLAG_WORDS.sub("", instruction[2]).strip()))
    return found


def _operations(name: str, rest: str) -> dict[str, int]:
    vector = re.match(r"<(\d+) x ", rest)
    lanes = int(vector[1]) if vector else 1
    if name in FLOATS:
        return {"float_operations": lanes}
    if name == "call" and re.search(r"@llvm\.(fma|fmuladd)\.", rest):
        return {"float_operations": 2 * lanes}
    if name in INTEGERS:
        return {"long_operations" if "i64 " in rest.split(",")[0] else "integer_operations": lanes}
    return {"conversions": lanes} if name in CONVERSIONS else {}


def total(found: list[dict[str, int]], executed: list[int]) -> dict[str, int]:
    """The operations of a launch, from those of its blocks and how often each ran."""
    return {name: sum(block.get(name, 0) * times for block, times in zip(found, executed, strict=True)) for name in OPERATIONS}
