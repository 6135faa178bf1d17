"""Which kernel a product takes: the boundaries as data, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from .kernels import IN

OUT, SIMDS = 4, 2  # as in shaders/rows.metal: outputs a SIMD-group, SIMD-groups a threadgroup
TILE = 32  # as in shaders/tiles.metal


@dataclass(frozen=True)
class Boundaries:
    """Where one kernel takes over from another."""

    # Rows of x up to which weights are read once for 8 rows at most: at 16 rows that is twice, and a tile of 32 is half full.
    last_rows: int = 16
    # Tiles of outputs below which a sum is split: the largest chips of the family run some 40 threadgroups at once, and need several each.
    tiles_to_fill: int = 128
    # The least depth of a part: shorter ones cost more in partial sums than they win.
    least_depth: int = 512
    # The most parts: beyond, adding them up shows.
    most_splits: int = 8


DEFAULT = Boundaries()


def pass_of(rows: int) -> int:
    """Rows of x that one pass of the matrix-vector kernel takes: the smallest of IN that holds them, or the largest."""
    return next((n for n in IN if rows <= n), IN[-1])


def splits_of(tiles: int, depth: int, boundaries: Boundaries = DEFAULT) -> int:
    """Parts that the sum over `depth` is cut into, a power of two, so that `tiles` of outputs fill the device."""
    splits = 1
    while splits < boundaries.most_splits and tiles * splits < boundaries.tiles_to_fill and depth >= 2 * splits * boundaries.least_depth:
        splits *= 2
    return splits
