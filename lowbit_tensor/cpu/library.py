"""The shared library of CPU kernels: found beside this file, loaded after torch, whose OpenMP threads it shares; or the reason why not."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch  # loaded first: the library's libgomp is then the one that torch brought, and there is one pool of threads

VERSION = 1  # of the interface, as lowbit_version() in csrc/api.cpp
SETTING = "LOWBIT_CPU"  # environment variable: the instruction set to use, or "reference"
REFERENCE = "reference"
MAX_ROWS = 16  # as in csrc/lowbit.h

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_WEIGHT = [_POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG, _INT, _INT]
_ARGUMENTS = {
    "lowbit_linear": [_POINTER, _INT, _LONG, *_WEIGHT, _POINTER, _INT, _POINTER, _INT],
    "lowbit_decode": [_POINTER, _LONG, *_WEIGHT, _POINTER, _INT, _INT],
    "lowbit_unpack": [_POINTER, _LONG, _LONG, _INT, _POINTER, _INT],
    "lowbit_pack": [_POINTER, _LONG, _LONG, _INT, _POINTER, _INT],
}


def _load() -> tuple[ctypes.CDLL | None, str]:
    """(the library, "") or (None, why there is none)."""
    found = sorted(Path(__file__).parent.glob("liblowbit.*"))
    if not found:
        return None, "it was installed without a C++ compiler"
    try:
        library = ctypes.CDLL(str(found[0]))
        if library.lowbit_version() != VERSION:
            return None, f"{found[0].name} is of another version: expected {VERSION}, got {library.lowbit_version()}"
    except (OSError, AttributeError) as error:
        return None, f"{found[0].name} does not load: {error}"
    for name, arguments in _ARGUMENTS.items():
        getattr(library, name).argtypes, getattr(library, name).restype = arguments, None
    for name in ("lowbit_set", "lowbit_chosen"):
        getattr(library, name).restype = ctypes.c_char_p
    return library, ""


LIBRARY, REASON = _load()
_active = REFERENCE
ready = False  # whether native kernels are in use


def sets() -> dict[str, bool]:
    """{instruction set: whether this machine has it}, best first; empty without the library."""
    found: dict[str, bool] = {}
    usable = ctypes.c_int()
    while LIBRARY is not None and (name := LIBRARY.lowbit_set(len(found), ctypes.byref(usable))) is not None:
        found[name.decode()] = bool(usable.value)
    return found


def use(name: str | None = None) -> str:
    """Takes an instruction set of `sets()`, or "reference"; None takes the best. Returns the one taken.

    Raises ValueError for one that there is not, or that this machine lacks.
    """
    global _active, ready
    names = sets()
    if name is not None and name != REFERENCE and not names.get(name, False):
        usable = [*(n for n, there in names.items() if there), REFERENCE]
        raise ValueError(f"kernels for the CPU: expected one of {', '.join(usable)}, got {name!r}")
    ready = name != REFERENCE and LIBRARY is not None
    _active = REFERENCE
    if LIBRARY is not None:
        LIBRARY.lowbit_choose(-1 if name in (None, REFERENCE) else list(names).index(str(name)))
        _active = LIBRARY.lowbit_chosen().decode() if ready else REFERENCE
    return _active


def active() -> str:
    """The instruction set in use, or "reference"."""
    return _active


def threads() -> int:
    """As many as torch uses; the count of another Python thread is its own."""
    return torch.get_num_threads()


use(os.environ.get(SETTING) or None)
