"""Where the Metal kernels run: on the CPU through the harness, in CHECK mode, or with `--device mps` on a real device.

Whatever memory is not written by a kernel holds NaN: uninitialised memory is filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import metal_emu
import pytest
import torch

from lowbit_tensor.metal import library, selftest

Emulate = Callable[..., None]


@pytest.fixture(autouse=True)
def kernels(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulate]:
    """Puts the harness in the place of torch's compiler; called with options of `metal_emu.compile_shader`, compiles anew with those."""

    def emulate(edit: Callable[[str], str] = lambda text: text, **options: Any) -> None:
        library.clear()
        monkeypatch.setattr(selftest, "_OUTCOMES", {})
        if device.type == "cpu":
            monkeypatch.setattr(library, "compile_shader", lambda source: metal_emu.compile_shader(edit(source), **options))

    emulate()
    metal_emu.log.clear()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield emulate
    torch.use_deterministic_algorithms(deterministic)
    library.clear()
