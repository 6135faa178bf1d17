"""The rules of our own kernels beyond what Metal itself asks."""

from __future__ import annotations

from .library import Library


def lint(library: Library, launched: dict[str, set[int]]) -> list[str]:
    """Messages "file:line: what", sorted."""
    return []
