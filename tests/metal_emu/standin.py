"""The stand-in for torch.mps.compile_shader: CPU tensors are taken as MPS tensors and bound by the same rules, and stricter ones.

What torch lets pass and this refuses: a tensor whose dtype is not the parameter's, an argument too many or too few, a tensor that is
not contiguous, an output that overlaps another argument, a value that its parameter can't hold, an empty grid.
"""

from __future__ import annotations

import math

from torch import Tensor

from .binding import bind
from .library import ORDERS, Kernel, Library
from .lint import lint

# A kernel that declares no maximum may get less than 1024 threads from the compiler; this many it always gets.
DEFAULT_LIMIT, LIMIT = 256, 1024

log: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []  # launches: (name, threads, group_size)


def compile_shader(
    source: str,
    check: bool = True,
    metal_version: int = 310,
    order: str = "forward",
    seed: int = 0,
    count_lines: bool = False,
    count_operations: bool = False,
) -> ShaderLibrary:
    """As torch.mps.compile_shader: SyntaxError if the text does not compile.

    `check` finds races, accesses out of bounds and the like at about three times the cost; `order` ("forward", "reverse", "shuffle" by
    `seed`) is that of threadgroups, SIMD-groups and lanes; `metal_version` is 310, 320 or 400. `count_lines`, with `check`, adds to
    `counts` the 64-byte lines of device memory that SIMD-groups touched, instruction by instruction: bytes / (64 * lines) tells how well
    their lanes lie together. `count_operations` adds the arithmetic, see operations.py.
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    library = Library(source, check, metal_version, count_operations)
    return ShaderLibrary(library, dict(order=order, seed=seed, count_lines=count_lines))


class ShaderLibrary:
    """Its attributes are the kernels: `library.name(...)`."""

    def __init__(self, library: Library, options: dict) -> None:
        self._library, self._options = library, options
        self._launched: dict[str, set[int]] = {}

    def __getattr__(self, name: str) -> ShaderKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._library.kernels:
            raise RuntimeError(f"Failed to create function state object for: {name}")  # as torch does, from hasattr too
        return ShaderKernel(self, self._library.kernels[name])

    def __dir__(self) -> list[str]:
        return list(self._library.kernels)

    def lint(self) -> list[str]:
        """ "file:line: what" for every breach of the rules for our kernels; the group sizes are those launched so far."""
        return lint(self._library, self._launched)


class ShaderKernel:
    def __init__(self, owner: ShaderLibrary, kernel: Kernel) -> None:
        self._owner, self._kernel = owner, kernel

    @property
    def max_threads_per_threadgroup(self) -> int:
        return self._kernel.max_threads or DEFAULT_LIMIT

    @property
    def thread_execution_width(self) -> int:
        return 32

    def __call__(self, *args: object, threads=None, group_size=None, arg_casts=None) -> None:
        if threads is None:
            threads = next((a.numel() for a in args if isinstance(a, Tensor)), None)
        threads, group = self._sizes(threads, group_size)
        owner, name = self._owner, self._kernel.name
        bound = bind(self._kernel, args, arg_casts, guarded=owner._library.check)
        log.append((name, threads, group))
        owner._launched.setdefault(name, set()).add(math.prod(group))
        try:
            owner._library.launch(name, bound.addresses, _three(threads), _three(group), **owner._options)
        finally:
            bound.write_back()

    def _sizes(self, threads: object, group_size: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if threads is None:
            raise RuntimeError(f"{self._kernel.name}: number of threads is undefined")
        grid, limit = _extent(threads), self.max_threads_per_threadgroup
        if group_size is None:
            group_size = (min(grid[0], limit), *[1] * (len(grid) - 1))
        group = _extent(group_size)
        if len(grid) != len(group):
            raise RuntimeError(f"{self._kernel.name}: threads {grid} and group_size {group} have different ranks")
        if min(grid) <= 0 or min(group) <= 0:
            raise ValueError(f"{self._kernel.name}: empty grid or group, threads {grid}, group_size {group}")
        if math.prod(group) > limit:
            said = "declared" if self._kernel.max_threads else "none declared"
            raise ValueError(f"{self._kernel.name}: threadgroup size {math.prod(group)} exceeds {limit} limit ({said})")
        return grid, group


def _extent(value: object) -> tuple[int, ...]:
    extent = (value,) if isinstance(value, int) else tuple(value)  # type: ignore[arg-type]
    if not 0 < len(extent) < 4:
        raise RuntimeError("Expected vec.size() > 0 && vec.size() < 4 to be true, but got false.")
    return tuple(int(v) for v in extent)


def _three(extent: tuple[int, ...]) -> tuple[int, int, int]:
    return (*extent, 1, 1)[:3]
