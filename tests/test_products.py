"""Products with the weight on either side, in every mode and transform, and their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from weights import FLOATS, make, within_bound

import lowbit_tensor as lb

PRODUCTS = {
    "x @ w.t()": lambda x, y, v, w: x @ w.t(),
    "x @ w.T": lambda x, y, v, w: x @ w.T,
    "matmul x w.mT": lambda x, y, v, w: torch.matmul(x, w.mT),
    "mm x w.t()": lambda x, y, v, w: torch.mm(x, w.t()),
    "y @ w": lambda x, y, v, w: y @ w,
    "w @ x.t()": lambda x, y, v, w: w @ x.t(),
    "w.t() @ y.t()": lambda x, y, v, w: w.t() @ y.t(),
    "mv w v": lambda x, y, v, w: torch.mv(w, v),
    "v @ w.t()": lambda x, y, v, w: v @ w.t(),
    "addmm": lambda x, y, v, w: torch.addmm(torch.ones(33), x, w.t()),
    "addmm with factors": lambda x, y, v, w: torch.addmm(torch.ones(3, 33), x, w.t(), beta=0.5, alpha=2.0),
    "linear with the weight as input": lambda x, y, v, w: F.linear(w, x),
    "batched x": lambda x, y, v, w: torch.stack([x, x]) @ w.t(),
    "w @ batched": lambda x, y, v, w: w @ torch.stack([x.t(), x.t()]),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode], ids=lambda m: m.__name__)
def test_products(name: str, mode: type) -> None:
    """Case 117."""
    w, x, y, v = make(), torch.randn(3, 100), torch.randn(3, 33), torch.randn(100)
    with mode():
        result, expected = (PRODUCTS[name](x, y, v, weight) for weight in (w, w.dequantize()))
    assert type(result) is torch.Tensor
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_products(name: str) -> None:
    """Case 100: the other operand's gradient is that of the dequantized weight; the weight itself gets none."""
    w, plain = make(), None
    w.requires_grad_()
    grads = []
    for weight in (w, w.detach().dequantize()):
        operands = [t.requires_grad_() for t in (torch.ones(3, 100), torch.ones(3, 33), torch.ones(100))]
        PRODUCTS[name](*operands, weight).square().sum().backward()
        grads.append([t.grad for t in operands])
    assert w.grad is None and plain is None
    for got, expected in zip(*grads, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


def test_operands_by_name() -> None:
    w, x, v = make(n=100), torch.randn(3, 100), torch.randn(100)
    expected = x @ w.dequantize()
    assert torch.allclose(torch.matmul(other=w, input=x), expected, atol=1e-4)
    assert torch.allclose(torch.mm(mat2=w, input=x), expected, atol=1e-4) and torch.allclose(x.mm(mat2=w), expected, atol=1e-4)
    assert torch.allclose(torch.mv(vec=v, input=w), w.dequantize() @ v, atol=1e-4)
    for call in (lambda: torch.mm(x, w, out=torch.empty(9)), lambda: torch.addmm(v, x, w, out=torch.empty(3, 1))):
        with pytest.raises(ValueError, match=r"expected a plain out \[3, 100\]"):
            call()


def test_addmm_without_beta_ignores_its_input() -> None:
    w, x = make(), torch.randn(3, 100)
    result = torch.addmm(torch.full((33,), torch.nan), x, w.t(), beta=0, alpha=2)
    torch.testing.assert_close(result, 2 * F.linear(x, w.dequantize()), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(1,), (), (3, 33)], ids=str)
def test_biases_that_broadcast(shape: tuple[int, ...]) -> None:
    w, x, bias = make(), torch.randn(3, 100), torch.randn(shape)
    torch.testing.assert_close(F.linear(x, w, bias), F.linear(x, w.dequantize()) + bias, rtol=1e-5, atol=1e-4)
    assert F.linear(x.bfloat16(), w, bias).dtype == torch.bfloat16


DENSE = {
    "einsum": lambda x, w: torch.einsum("mk,nk->mn", x, w),
    "tensordot": lambda x, w: torch.tensordot(x, w, dims=([1], [1])),
    "inner": lambda x, w: torch.inner(x, w),
    "baddbmm": lambda x, w: torch.baddbmm(torch.zeros(1, 3, 33), x[None], w.t()[None])[0],
}


@pytest.mark.parametrize("name", DENSE)
def test_products_on_the_dequantized_weight(name: str) -> None:
    """Case 117."""
    w, x = make(), torch.randn(3, 100, requires_grad=True)
    result = DENSE[name](x, w)
    torch.testing.assert_close(result, x @ w.dequantize().t(), rtol=1e-5, atol=1e-4)
    (grad,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(grad, torch.ones(3, 33) @ w.dequantize(), rtol=1e-5, atol=1e-4)


TRANSFORMS = {
    "vmap": lambda f: torch.func.vmap(f),
    "vmap over columns": lambda f: lambda x: torch.func.vmap(f, in_dims=1)(x.t()),
    "jacrev": lambda f: torch.func.jacrev(f),
    "jacfwd": lambda f: torch.func.jacfwd(f),
    "grad": lambda f: torch.func.grad(lambda x: f(x).square().sum()),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).square().sum())),
    "hessian": lambda f: torch.func.hessian(lambda x: f(x[0]).square().sum()),
    "forward mode": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("product", ["linear", "x @ w.t()"])
def test_functional_transforms(name: str, product: str) -> None:
    """Forward mode through a custom op would lose the tangents without a word."""
    w, x = make(n=5, k=12, group_size=4), torch.randn(3, 12)
    forms = {"linear": F.linear, "x @ w.t()": lambda x, w: x @ w.t()}
    got, expected = (TRANSFORMS[name](lambda x, w=w: forms[product](x, w))(x) for w in (w, w.dequantize()))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert expected.abs().sum() > 0


def test_batched_products_of_3d_weights() -> None:
    """Case 117."""
    w = lb.LowBitWeightTensor.from_float(torch.randn(4, 33, 100), 4)
    x, y = torch.randn(4, 5, 100), torch.randn(4, 5, 33)
    torch.testing.assert_close(torch.bmm(x, w.mT), torch.bmm(x, w.dequantize().mT), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(y @ w, y @ w.dequantize(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(x[0] @ w.mT, x[0] @ w.dequantize().mT, rtol=1e-5, atol=1e-4)


def test_backward_to_activations_and_bias() -> None:
    w, bias = make(), torch.randn(33, requires_grad=True)
    x = torch.randn(2, 5, 100, requires_grad=True)
    F.linear(x, w, bias).backward(grad := torch.randn(2, 5, 33))
    torch.testing.assert_close(x.grad, grad @ w.dequantize(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(bias.grad, grad.sum((0, 1)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64], ids=str)
def test_activations_of_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    """Case 49: the message names both dtypes."""
    with pytest.raises(TypeError, match=rf"{dtype} with a weight of torch.bfloat16"):
        F.linear(torch.ones(3, 100, dtype=dtype), make(dtype=torch.bfloat16))


@pytest.mark.parametrize("x_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("w_dtype", FLOATS, ids=str)
def test_activations_and_weights_of_different_dtypes(x_dtype: torch.dtype, w_dtype: torch.dtype) -> None:
    """Case 49: the output is of the activations' dtype."""
    w, x = make(dtype=w_dtype), torch.randn(3, 100, dtype=x_dtype)
    assert F.linear(x, w).dtype == x_dtype
    within_bound(F.linear(x, w), x, w)


def test_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert F.linear(torch.randn(3, 100), make()).dtype == torch.bfloat16


@pytest.mark.parametrize("columns", [99, 101, 104], ids=str)
def test_shape_errors_name_both_shapes(columns: int) -> None:
    with pytest.raises(ValueError, match=rf"expected x\[..., 100\], got x\[3, {columns}\]; weight 33x100, 4 bits, group 64"):
        F.linear(torch.randn(3, columns), make())


def test_a_mixture_of_experts() -> None:
    """`grouped_mm`, as transformers calls it: rows sorted by expert, offsets where each expert's end, one expert without rows."""
    w = lb.LowBitWeightTensor.from_float(torch.randn(4, 33, 96), 4, 32)
    x, y, offsets = torch.randn(7, 96), torch.randn(7, 33), torch.tensor([2, 2, 6, 7], dtype=torch.int32)
    expert = [0, 0, 2, 2, 2, 2, 3]
    for function in (F.grouped_mm, torch._grouped_mm):
        forward = torch.stack([x[m] @ w.dequantize()[e].t() for m, e in enumerate(expert)])
        torch.testing.assert_close(function(x, w.transpose(-2, -1), offs=offsets), forward, rtol=1e-5, atol=1e-4)
        back = torch.stack([y[m] @ w.dequantize()[e] for m, e in enumerate(expert)])
        torch.testing.assert_close(function(y, w, offs=offsets), back, rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        three = torch.randn(4, 5, 96)
        torch.testing.assert_close(F.grouped_mm(three, w.mT), torch.bmm(three, w.dequantize().mT), rtol=1e-5, atol=1e-4)
    with pytest.raises(NotImplementedError, match=r"grouped_mm: .*use w\.dequantize\(\)"):
        F.grouped_mm(x, w.mT)


def test_errors_in_the_terms_of_the_call() -> None:
    w = make(dtype=torch.float64)
    with pytest.raises(ValueError, match=r"x of torch.float64 with a weight of torch.float64"):
        torch.randn(2, 100).double() @ w.t()  # a TypeError would be taken for an operand that knows no `@`
    with pytest.raises(ValueError, match=r"linear: expected a weight \[N, K\], got \[1, 33, 100\]"):
        F.linear(torch.randn(2, 100), w[None])
    for wrong in (lambda: torch.mm(torch.randn(2, 3, 100), w.t()), lambda: torch.mv(w, torch.randn(2, 100)), lambda: torch.bmm(w, w)):
        with pytest.raises(ValueError, match="expected operands of"):
            wrong()
    with pytest.raises(ValueError, match="addmm: expected matrices"):
        torch.addmm(torch.ones(33), torch.randn(100), w.t())
