"""Shader text compiled at first use, one library an instantiation, kept for the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .kernels import source_of

_LOCK = threading.Lock()
_KERNELS: dict[str, Callable[..., None]] = {}


def compile_shader(source: str) -> Any:
    """`torch.mps.compile_shader`, which caches nothing itself; tests put another compiler here."""
    return torch.mps.compile_shader(source)


def kernel(name: str) -> Callable[..., None]:
    """The compiled instantiation `name`. Raises SyntaxError where the text does not compile."""
    found = _KERNELS.get(name)
    if found is None:
        with _LOCK:
            found = _KERNELS.get(name)
            if found is None:
                found = _KERNELS[name] = getattr(compile_shader(source_of(name)), name)
    return found


def clear() -> None:
    """Forgets all compiled kernels."""
    with _LOCK:
        _KERNELS.clear()
