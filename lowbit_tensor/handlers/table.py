"""The table of intercepted functions: two decorators fill it, docs/api.md (section 4) is checked against `KINDS`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..tensor import FUNCTIONS, OPERATORS, Handler

KINDS: dict[str, set[str]] = defaultdict(set)  # kind of docs/api.md -> names of torch.ops.aten


def function(*functions: Any) -> Callable[[Handler], Handler]:
    """Registers `handler(*args, **kwargs)` for functions of torch, met before autograd: the gradient to the other operands is kept."""

    def fill(handler: Handler) -> Handler:
        FUNCTIONS.update(dict.fromkeys(functions, handler))
        return handler

    return fill


def operator(kind: str, *names: str) -> Callable[[Handler], Handler]:
    """Registers `handler(overload, *args, **kwargs)` for every overload, but those that write to `out`, of ops of torch.ops.aten."""

    def fill(handler: Handler) -> Handler:
        KINDS[kind].update(names)
        OPERATORS.update((overload, handler) for name in names for overload in _overloads(name))
        return handler

    return fill


def _overloads(name: str) -> Iterator[Any]:
    packet = getattr(torch.ops.aten, name)
    for overload in (getattr(packet, name) for name in packet.overloads()):
        if not any(argument.is_out for argument in overload._schema.arguments):
            yield overload
