"""`lowbit::parameter_grad`: from the gradient of the float weight to those of scales and zeros."""

import pytest
import torch
from samples import FLOATS, GROUP_SIZES, WIDTHS, Weight, assert_same_gradients, grid, random_weight, strided
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lowbit_tensor.ops import decode, parameter_grad


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor made inside."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def run(grad: Tensor, weight: Weight) -> tuple[Tensor, Tensor]:
    return torch.ops.lowbit.parameter_grad(grad, weight.packed, *weight.layout)


def expected_of(grad: Tensor, weight: Weight) -> tuple[Tensor, Tensor]:
    leaves = weight.leaves()
    return torch.autograd.grad(leaves.plain(), (leaves.scales, leaves.zeros), grad.float())


@pytest.mark.parametrize(**grid(bits=WIDTHS, group=GROUP_SIZES, grad=FLOATS, shape=((8, 256), (1, 130), (2, 3, 77), (0, 64))))
def test_values(bits: int, group: int, grad: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    weight = random_weight(shape, bits, group, torch.float32, device)
    values = torch.randn(shape, device=device).to(grad)
    assert_same_gradients(run(values, weight), expected_of(values, weight), [torch.float32] * 2)


def test_blocks_of_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are decoded a block at a time; here one and two rows of seven."""
    for rows in (1, 2):
        monkeypatch.setattr(decode, "BLOCK", 70 * rows)
        weight, grad = random_weight((7, 70), 3, 16, torch.float32, device), torch.randn(7, 70, device=device)
        assert_same_gradients(run(grad, weight), expected_of(grad, weight), [torch.float32] * 2)


def test_strides_do_not_matter(device: torch.device) -> None:
    """Case 112."""
    weight = random_weight((4, 70), 3, 16, device=device)
    grad = torch.randn(4, 70, device=device)
    for got, expected in zip(torch.ops.lowbit.parameter_grad(strided(grad), strided(weight.packed), 3, 16), run(grad, weight), strict=True):
        torch.testing.assert_close(got, expected)


def test_gradient_to_grad(device: torch.device) -> None:
    weight = random_weight((4, 70), 3, 16, torch.float32, device)
    for dtype in FLOATS:
        grad = torch.randn(4, 70, device=device).to(dtype).requires_grad_()
        back = [torch.randn_like(p) for p in (weight.scales, weight.zeros)]
        (got,) = torch.autograd.grad(run(grad, weight), grad, back)
        plain = Weight(weight.packed, *back, *weight.layout, 70).plain()
        assert_same_gradients([got], [plain], [dtype])


@pytest.mark.parametrize("which", [0, 1], ids=["scales", "zeros"])
def test_gradient_through_one_result_alone(which: int, device: torch.device) -> None:
    weight = random_weight((4, 70), 3, 16, torch.float32, device)
    grad = torch.randn(4, 70, device=device, requires_grad=True)
    run(grad, weight)[which].sum().backward()
    _, code, _ = weight.exact_parts()
    torch.testing.assert_close(grad.grad.cpu(), torch.ones(4, 70) if which else code.float())


@pytest.mark.parametrize("group", [16, 7, 100, 1], ids=lambda group: f"group{group}")
def test_reference_gradients_in_float64(group: int) -> None:
    weight = random_weight((3, 20), 5, group)
    grad = torch.randn(3, 20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g: parameter_grad.reference(g, weight.packed, *weight.layout), (grad,))


def test_a_group_larger_than_the_row_takes_no_more_memory() -> None:
    """group_size may exceed K, up to 2**31 - 1: nothing of that size may be made."""
    weight, grad = random_weight((2, 64), 4, 2**20), torch.ones(2, 64)
    with Largest() as largest:
        parameter_grad.reference(grad, weight.packed, *weight.layout)
    assert largest.elements <= 8 * grad.numel()


@pytest.mark.parametrize("rows", [(3,), (4, 1), ()], ids=str)
def test_rows_that_differ(rows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"same rows, got .* and \[4, 32\]"):
        run(torch.ones(*rows, 64), random_weight((4, 64), 4, 16))


@pytest.mark.parametrize("length", [63 - 8, 64 + 8], ids=str)
def test_lengths_that_differ(length: int) -> None:
    with pytest.raises(ValueError, match=r"expected .*got .*\[4, 32\]"):
        run(torch.ones(4, length), random_weight((4, 64), 4, 16))


@pytest.mark.parametrize("group", [0, -1, -5, 2**31], ids=str)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_group_size_out_of_range(group: int, device: str) -> None:
    """Case 34."""
    with pytest.raises(ValueError, match="group_size"):
        torch.ops.lowbit.parameter_grad(torch.ones(4, 64, device=device), torch.zeros(4, 32, dtype=torch.uint8, device=device), 4, group)


def test_codes_of_another_dtype() -> None:
    with pytest.raises(TypeError, match=r"uint8.*got .*int32"):
        torch.ops.lowbit.parameter_grad(torch.ones(4, 64), torch.zeros(4, 32, dtype=torch.int32), 4, 16)
