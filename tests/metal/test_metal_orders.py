"""The same bits whatever order threads run in, every run, and, where that is asked for, whatever other rows there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from samples import random_weight

from lowbit_tensor.metal import launch, set_batch_invariant

ROWS = (1, 3, 20, 40)


@pytest.mark.parametrize("rows", ROWS)
def test_the_same_bits_every_run(rows: int, device: torch.device) -> None:
    weight, x = random_weight((33, 1096), 3, 64, device=device), torch.randn(rows, 1096, device=device).half()
    first = launch.linear(x, *weight.parts, None, *weight.layout)
    assert all(torch.equal(launch.linear(x, *weight.parts, None, *weight.layout), first) for _ in range(4))


@pytest.mark.harness
@pytest.mark.parametrize("rows", ROWS)
def test_orders_of_threads(rows: int, kernels: Callable[..., None], device: torch.device) -> None:
    weight, x = random_weight((33, 1096), 3, 64, device=device), torch.randn(rows, 1096, device=device).half()
    results = []
    for options in ({}, {"order": "reverse"}, {"order": "shuffle", "seed": 1}, {"order": "shuffle", "seed": 2}):
        kernels(check=False, **options)
        results.append(launch.linear(x, *weight.parts, None, *weight.layout))
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype, device: torch.device) -> None:
    weight, x = random_weight((33, 1096), 5, 64, device=device), torch.randn(40, 1096, device=device).to(dtype)
    set_batch_invariant(True)
    try:
        whole = launch.linear(x, *weight.parts, None, *weight.layout)
        for rows in (1, 2, 7, 17, 39):
            assert torch.equal(launch.linear(x[:rows], *weight.parts, None, *weight.layout), whole[:rows])
    finally:
        set_batch_invariant(False)


def test_real_shapes(kernels: Callable[..., None], device: torch.device) -> None:
    """A layer of a real model, one row: every output within float32's reach of the exact one."""
    kernels(check=False, order="shuffle")
    weight, x = random_weight((512, 4096), 4, 64, device=device), torch.randn(1, 4096, device=device)
    y = launch.linear(x, *weight.parts, None, *weight.layout)
    torch.testing.assert_close(y.cpu().double(), x.cpu().double() @ weight.exact().T, rtol=1e-4, atol=1e-3)
