"""The tensor as PyTorch's users handle it: assignment, parameters, copies, moves, files, gradients."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import oracle
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowbit_tensor as lb
from lowbit_tensor.tensor import INNER

WIDTHS = range(1, 9)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def make(bits: int = 4, n: int = 33, k: int = 100, group_size: int = 64, dtype: torch.dtype = torch.float32) -> lb.LowBitWeightTensor:
    return lb.LowBitWeightTensor.from_float(torch.randn(n, k).to(dtype), bits, group_size)


def inner(w: lb.LowBitWeightTensor) -> list[torch.Tensor]:
    return [getattr(w, name) for name in INNER]


def same(a: lb.LowBitWeightTensor, b: lb.LowBitWeightTensor) -> bool:
    return type(a) is type(b) and a.dtype == b.dtype and all(torch.equal(p, q) for p, q in zip(inner(a), inner(b), strict=True))


def weight64(w: lb.LowBitWeightTensor) -> torch.Tensor:
    return oracle.weight64(*inner(w), w.bits, w.group_size, w.in_features)


def within_bound(y: torch.Tensor, x: torch.Tensor, w: lb.LowBitWeightTensor, bias: torch.Tensor | None = None) -> None:
    parts = oracle.parts64(*inner(w), w.bits, w.group_size, w.in_features)
    y64 = F.linear(x.double(), parts[0] * parts[1] + parts[2], None if bias is None else bias.double())
    bound = oracle.linear_bound(x, y64, parts, y.dtype)
    assert ((y.double() - y64).abs() <= bound + (0 if bias is None else 2**-24 * bias.double().abs())).all()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_linear_with_an_assigned_weight(bits: int, dtype: torch.dtype) -> None:
    """Cases 48, 54: the line of the README, every width, bias kept."""
    linear = nn.Linear(100, 33, dtype=dtype)
    bias = linear.bias.detach().clone()
    linear.weight = lb.LowBitWeightTensor.from_float(linear.weight, bits=bits, group_size=64)
    x = torch.randn(2, 5, 100, dtype=dtype)
    y = linear(x)
    assert list(linear.state_dict()) == ["weight", "bias"] and torch.equal(linear.bias, bias)
    assert y.dtype == dtype and y.shape == (2, 5, 33)
    within_bound(y, x, linear.weight, bias)


@pytest.mark.parametrize("bits", WIDTHS)
def test_embedding_with_an_assigned_weight(bits: int) -> None:
    layer = nn.Embedding(20, 72)
    layer.weight = lb.LowBitWeightTensor.from_float(layer.weight, bits, 32)
    ids = torch.tensor([[0, 19], [7, 7]])
    assert torch.equal(layer(ids), weight64(layer.weight).float()[ids])


@pytest.mark.parametrize("shape", [(1, 1), (1, 64), (7, 1), (3, 65), (48, 4304), (2, 3, 65)], ids=str)
@pytest.mark.parametrize("group_size", [1, 3, 64, 5000, -1], ids=str)
def test_shapes_and_group_sizes(shape: tuple[int, ...], group_size: int) -> None:
    w = torch.randn(shape)
    q = lb.LowBitWeightTensor.from_float(w, 4, group_size)
    assert q.shape == w.shape and q.numel() == w.numel() and q.group_size == (group_size if group_size > 0 else shape[-1])
    assert torch.equal(q.dequantize(), weight64(q).float())
    assert q.codes().shape == w.shape and q.codes().max() <= 15


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_any_number_of_rows(rows: int) -> None:
    w, x = make(), torch.randn(rows, 100)
    assert F.linear(x, w).shape == (rows, 33)
    within_bound(F.linear(x, w), x, w)


def test_non_contiguous_inputs() -> None:
    """Case 112."""
    base = torch.randn(128, 66)
    for w in (base.t(), base[::2], base[:, ::3], base[3:], torch.randn(1, 70).expand(5, 70)):
        assert same(lb.LowBitWeightTensor.from_float(w, 5, 32), lb.LowBitWeightTensor.from_float(w.contiguous(), 5, 32))
    q, x = make(), torch.randn(100, 7).t()
    assert torch.equal(F.linear(x, q), F.linear(x.contiguous(), q))


def test_repr_is_one_line() -> None:
    assert repr(make(5)) == (
        "LowBitWeightTensor(shape=(33, 100), bits=5, group_size=64, dtype=torch.float32, scale_dtype=torch.float16, device='cpu')"
    )
    assert "weight" in str(nn.ParameterDict({"weight": make()}))


def test_parameter() -> None:
    w = make()
    p = nn.Parameter(w, requires_grad=False)
    assert isinstance(w, nn.Parameter) and isinstance(p, nn.Parameter) and same(p, w) and not p.requires_grad
    module = nn.Module()
    module.weight = w
    assert dict(module.named_parameters()).keys() == {"weight"}


def test_state_dict_both_ways() -> None:
    source, target = nn.Linear(100, 33), nn.Linear(100, 33)
    source.weight = make(3)
    target.load_state_dict(source.state_dict(), assign=True)
    assert same(target.weight, source.weight)
    other = nn.Linear(100, 33)
    other.weight = make(3)
    kept = other.weight
    other.load_state_dict(source.state_dict())
    assert other.weight is kept and same(other.weight, source.weight)
    plain = nn.Linear(100, 33)
    plain.load_state_dict(source.state_dict())
    assert torch.equal(plain.weight, source.weight.dequantize())
    other.load_state_dict(plain.state_dict())
    assert other.weight.bits == 3 and torch.allclose(other.weight.dequantize(), plain.weight, atol=2e-2)


def test_state_dict_into_meta() -> None:
    source = nn.Linear(100, 33)
    source.weight = make(3)
    with torch.device("meta"):
        target = nn.Linear(100, 33)
    target.load_state_dict(source.state_dict(), assign=True)
    assert same(target.weight, source.weight) and not target.bias.is_meta


@pytest.mark.parametrize("other", [dict(bits=5), dict(bits=4, group_size=32)], ids=str)
def test_copy_between_formats(other: dict[str, int]) -> None:
    """Case 69: values, never codes alone."""
    a, b = make(4), lb.LowBitWeightTensor.from_float(torch.randn(33, 100), **{"group_size": 64, **other})
    a.copy_(b)
    assert a.bits == 4 and (a.dequantize() - b.dequantize()).abs().max() < 0.3
    double = lb.LowBitWeightTensor.from_codes(b.codes(), b.scales * 2, b.zeros, bits=b.bits, group_size=b.group_size, dtype=b.dtype)
    b.copy_(double)
    assert same(b, double)


def test_deepcopy() -> None:
    """Cases 105, 106."""
    model = nn.ModuleList([nn.Linear(100, 33), nn.Linear(100, 33)])
    model[0].weight = model[1].weight = make()
    model[0].weight.requires_grad_()
    twin = copy.deepcopy(model)
    assert twin[0].weight is twin[1].weight and same(twin[0].weight, model[0].weight) and twin[0].weight.requires_grad
    before = model[0].weight.dequantize()
    with torch.no_grad():
        twin[0].weight.zero_()
    assert torch.equal(model[0].weight.dequantize(), before) and not twin[0].weight.dequantize().any()


@pytest.mark.parametrize("bits", WIDTHS)
def test_pickle_and_torch_save(bits: int) -> None:
    w = make(bits)
    assert same(pickle.loads(pickle.dumps(w)), w)
    file = io.BytesIO()
    torch.save({"weight": w}, file)
    file.seek(0)
    assert same(torch.load(file, weights_only=True)["weight"], w)
    file.seek(0)
    assert torch.load(file, weights_only=True, map_location="meta")["weight"].is_meta


def test_load_in_another_process(tmp_path: Path) -> None:
    linear = nn.Linear(100, 33)
    linear.weight = make(5)
    x = torch.randn(4, 100)
    torch.save({"state": linear.state_dict(), "x": x, "y": linear(x)}, tmp_path / "m.pt")
    script = (
        "import sys, torch, lowbit_tensor\n"
        "d = torch.load(sys.argv[1], weights_only=True)\n"
        "l = torch.nn.Linear(100, 33); l.load_state_dict(d['state'], assign=True)\n"
        "assert torch.equal(l(d['x']), d['y']) and l.weight.bits == 5"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "m.pt")], check=True, timeout=120)


def test_send_to_another_process() -> None:
    """A bare subclass dies here with a segmentation fault."""
    w = make()
    w.share_memory_()
    assert w.is_shared()
    context = torch.multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert torch.equal(pool.apply(lb.LowBitWeightTensor.dequantize, (w,)), w.dequantize())


def test_transposed_is_not_saved() -> None:
    with pytest.raises(NotImplementedError, match="transposed"):
        pickle.dumps(make().t())


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_casts_change_the_logical_dtype_alone(dtype: torch.dtype) -> None:
    """Case 57."""
    w = make(6)
    cast = w.to(dtype)
    assert cast.dtype == dtype and cast.dequantize().dtype == dtype
    assert all(torch.equal(p, q) and p.dtype == q.dtype for p, q in zip(inner(cast), inner(w), strict=True))
    assert same(cast.to(torch.float32), w)
    module = nn.Linear(100, 33)
    module.weight = w
    assert module.half().float().weight.dtype == torch.float32 and same(module.weight, w)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.bool], ids=str)
def test_casts_to_integers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="expected float16"):
        make().to(dtype)


def test_moves() -> None:
    """Case 61: nothing stays behind."""
    w = make().to("meta")
    assert w.is_meta and all(t.is_meta for t in inner(w)) and w.shape == (33, 100)
    module = nn.Linear(100, 33)
    module.weight = make()
    module.to("meta").to_empty(device="cpu")
    assert type(module.weight) is lb.LowBitWeightTensor and not module.weight.is_meta


def test_inference_mode() -> None:
    """Case 103."""
    w, x = make(), torch.randn(3, 100)
    expected = F.linear(x, w)
    with torch.inference_mode():
        assert same(nn.Parameter(w), w) and same(w.detach(), w) and w.to(torch.float16).dtype == torch.float16
        assert torch.equal(F.linear(x, w), expected) and torch.equal(x @ w.t(), expected) and torch.equal(x @ w.T, expected)
        assert torch.equal(w[3:9].dequantize(), w.dequantize()[3:9]) and torch.equal(x @ w.clone().mT, expected)
        made = make()
        assert F.linear(x, made).shape == (3, 33)
    assert F.linear(x.clone().requires_grad_(), w).requires_grad


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
    for call in (lambda: torch.mm(x, w, out=torch.empty(3, 100)), lambda: torch.addmm(v, x, w, out=torch.empty(3, 100))):
        with pytest.raises(NotImplementedError, match=r"use w\.dequantize\(\)"):
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
    if (name, product) == ("hessian", "x @ w.t()"):  # a view taken within two levels: refused
        with pytest.raises(NotImplementedError, match=r"use w\.dequantize\(\)"):
            TRANSFORMS[name](lambda x: x @ w.t())(x)
        return
    forms = {"linear": F.linear, "x @ w.t()": lambda x, w: x @ w.t()}
    got, expected = (TRANSFORMS[name](lambda x, w=w: forms[product](x, w))(x) for w in (w, w.dequantize()))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert expected.abs().sum() > 0


def test_batched_products_of_3d_weights() -> None:
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


def test_row_slices_alias() -> None:
    w, rows = make(), torch.randn(5, 100)
    with torch.no_grad():
        w[4:9].copy_(rows)
    assert torch.allclose(w.dequantize()[4:9], rows, atol=0.3)
    assert torch.equal(w[::3].dequantize(), w.dequantize()[::3]) and torch.equal(w[5].dequantize(), w.dequantize()[5])
    within_bound(F.linear(x := torch.randn(2, 100), w[4:9]), x, w[4:9])


@pytest.mark.parametrize("bits", [3, 4])
def test_column_slices_at_group_borders(bits: int) -> None:
    """Case 108."""
    w = make(bits, k=192 + 10)
    for cut in (slice(64, None), slice(0, 64), slice(64, 192), slice(192, 202), slice(None)):
        assert torch.equal(w[:, cut].dequantize(), w.dequantize()[:, cut])
    for cut in (slice(32, None), slice(0, 40), slice(0, 128, 2)):
        with pytest.raises(ValueError, match="multiples of the group size 64"):
            w[:, cut]


def test_rows_are_set() -> None:
    w, expected = make(), None
    expected = w.dequantize()
    for index, value in (
        (3, 0.0),
        (slice(4, 9), torch.randn(5, 100)),
        (slice(None, None, 8), 1.5),
        ((Ellipsis, slice(None)), torch.randn(100)),
    ):
        w[index] = value
        expected[index] = value
        assert (w.dequantize() - expected).abs().max() < 0.4
    plain = torch.zeros(33, 100)
    plain[2:4] = w[2:4]
    assert torch.equal(plain[2:4], w.dequantize()[2:4])


@pytest.mark.parametrize(
    "index",
    [(slice(None), slice(0, 64)), (slice(2, 4), slice(64, None)), [1, 2], torch.tensor([0])],
    ids=["columns", "corner", "list", "tensor"],
)
def test_what_would_be_lost_is_not_set(index: object) -> None:
    """A column slice is a copy: writing to it would change nothing."""
    w = make()
    with pytest.raises(NotImplementedError, match="expected whole rows"):
        w[index] = 0.0
    with pytest.raises(NotImplementedError, match="expected whole rows"):
        w.t()[:64] = 0.0


@pytest.mark.parametrize("name", ["apply_", "__dlpack__", "from_dlpack"])
def test_what_would_read_floats_is_refused(name: str) -> None:
    """Each of these ends the process on a bare subclass."""
    w = make()
    calls = {"apply_": lambda: w.apply_(abs), "__dlpack__": lambda: w.__dlpack__(), "from_dlpack": lambda: torch.from_dlpack(w)}
    with pytest.raises((NotImplementedError, RuntimeError, BufferError), match=r"use w\.dequantize\(\)"):
        calls[name]()


def test_weights_whose_grid_overflows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 8\.51e\+37.* got 3e\+38"):
        lb.LowBitWeightTensor.from_float(torch.tensor([[3e38, -3e38]]), 4)
    w = torch.tensor([[8e37, -8e37, 1e37, 0.0]])
    for method in lb.METHODS:
        assert (lb.LowBitWeightTensor.from_float(w, 8, method=method).dequantize() / 8e37 - w / 8e37).abs().max() < 0.02


def test_trained_parameters() -> None:
    """Gradients to scales and zeros stop where a detached weight is used, and at the padding row of an embedding."""
    model = nn.ModuleDict({"linear": nn.Linear(64, 8), "embedding": nn.Embedding(5, 64, padding_idx=0)})
    lb.quantize_(model, lb.LowBitConfig(4, 32, embeddings=True))
    leaves = lb.trainable_parameters(model)
    assert not F.linear(torch.randn(2, 64), model["linear"].weight.detach()).requires_grad
    assert not any(t.requires_grad for w in model.state_dict().values() if type(w) is lb.LowBitWeightTensor for t in inner(w))
    model["embedding"](torch.tensor([0, 0, 3])).sum().backward()
    grad = leaves["embedding.weight.zeros"].grad
    assert not grad[0].any() and torch.equal(grad[3], torch.full((2,), 32.0).to(grad.dtype)) and not grad[1].any()


def test_transposes() -> None:
    w = make()
    assert w.t().shape == (100, 33) and w.t().transposed and torch.equal(w.t().dequantize(), w.dequantize().t())
    assert same(w.t().t(), w) and torch.equal(w.t()[:, 3:7].dequantize(), w.dequantize()[3:7].t())
    assert torch.equal(w.t().codes(), w.codes().t()) and w.t().stride() == w.dequantize().t().stride()


def test_from_codes() -> None:
    """Case 10: codes come back in the logical shape."""
    codes, scales, zeros = torch.randint(0, 8, (5, 70)), torch.randn(5, 3), torch.randn(5, 3)
    w = lb.LowBitWeightTensor.from_codes(codes, scales, zeros, bits=3, group_size=32, dtype=torch.bfloat16)
    assert torch.equal(w.codes(), codes.to(torch.uint8)) and w.dtype == torch.bfloat16
    group = torch.arange(70) // 32
    torch.testing.assert_close(w.dequantize(torch.float32), scales[:, group] * codes + zeros[:, group])


BAD_CODES = {
    "codes as a list": (dict(codes=[[1]]), TypeError),
    "code out of range": (dict(codes=torch.full((2, 8), 8)), ValueError),
    "float codes": (dict(codes=torch.zeros(2, 8)), TypeError),
    "scales of another shape": (dict(scales=torch.ones(2, 2)), ValueError),
    "zeros of another dtype": (dict(zeros=torch.ones(2, 1).half()), TypeError),
    "scales not finite": (dict(scales=torch.full((2, 1), torch.inf)), ValueError),
    "float64 parameters": (dict(scales=torch.ones(2, 1).double(), zeros=torch.ones(2, 1).double()), TypeError),
    "one dimension": (dict(codes=torch.zeros(8, dtype=torch.int64)), ValueError),
    "9 bits": (dict(bits=9), ValueError),
    "integer dtype": (dict(dtype=torch.int32), TypeError),
}


@pytest.mark.parametrize("name", BAD_CODES)
def test_from_codes_checks(name: str) -> None:
    good = dict(codes=torch.zeros(2, 8, dtype=torch.int64), scales=torch.ones(2, 1), zeros=torch.ones(2, 1), bits=3, group_size=8)
    change, error = BAD_CODES[name]
    with pytest.raises(error):
        lb.LowBitWeightTensor.from_codes(**(good | change))


BAD_FLOATS = {
    "symmetric as text": (dict(symmetric="x"), TypeError),
    "integral_zero as a number": (dict(integral_zero=2), TypeError),
    "integers": (dict(w=torch.ones(2, 8, dtype=torch.int8)), TypeError),
    "one dimension": (dict(w=torch.ones(8)), ValueError),
    "no tensor": (dict(w=[[1.0]]), TypeError),
    "0 bits": (dict(bits=0), ValueError),
    "9 bits": (dict(bits=9), ValueError),
    "bits of a float": (dict(bits=4.0), TypeError),
    "group 0": (dict(group_size=0), ValueError),
    "group -5": (dict(group_size=-5), ValueError),
    "group 2**40": (dict(group_size=2**40), ValueError),
    "group 2**64": (dict(group_size=2**64), ValueError),
    "group 3.5": (dict(group_size=3.5), TypeError),
    "group as text": (dict(group_size="64"), TypeError),
    "unknown method": (dict(method="magic"), ValueError),
    "scale_dtype int": (dict(scale_dtype=torch.int8), TypeError),
    "1 symmetric bit with integral zero": (dict(bits=1, symmetric=True, integral_zero=True), ValueError),
    "NaN": (dict(w=torch.tensor([[1.0, torch.nan]])), ValueError),
}


@pytest.mark.parametrize("name", BAD_FLOATS)
def test_from_float_checks(name: str) -> None:
    """Cases 34, 43."""
    change, error = BAD_FLOATS[name]
    with pytest.raises(error):
        lb.LowBitWeightTensor.from_float(**({"w": torch.randn(2, 8), "bits": 4} | change))


KINDS_OF_ARGUMENTS = {
    "dequantize": lambda: make().dequantize("float16"),
    "pack": lambda: lb.pack([1], 3),
    "unpack": lambda: lb.unpack([1], 3, 2),
    "dequantize_": lambda: lb.dequantize_(5),
    "trainable_parameters": lambda: lb.trainable_parameters(3),
    "packed_nbytes": lambda: lb.packed_nbytes(3),
    "save_file": lambda: lb.save_file([make()], "m.safetensors"),
}


@pytest.mark.parametrize("name", KINDS_OF_ARGUMENTS)
def test_arguments_of_another_kind(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}: expected"):
        KINDS_OF_ARGUMENTS[name]()


def test_dimensions_out_of_range() -> None:
    with pytest.raises(IndexError, match="expected a dimension of -2 to 1, got 5"):
        make().transpose(0, 5)


def test_place_of_what_is_not_finite() -> None:
    w = torch.randn(3, 5000, 100)
    w[1, 4321, 17] = torch.inf
    with pytest.raises(ValueError, match=r"w\[1, 4321, 17\] is inf"):
        lb.LowBitWeightTensor.from_float(w, 4)


def test_low_bit_weights_are_not_quantized_again() -> None:
    with pytest.raises(TypeError, match="plain tensor"):
        lb.LowBitWeightTensor.from_float(make(), 4)


def test_rebuilt_as_accelerate_does() -> None:
    """Case 60."""
    w = make()
    twin = type(w)(w, requires_grad=True)
    assert same(twin, w) and twin.requires_grad


def test_safetensors_own_writer_names_ours(tmp_path: Path) -> None:
    """Case 72."""
    from safetensors.torch import save_file

    with pytest.raises(RuntimeError, match=r"lowbit_tensor\.save_file"):
        save_file({"weight": make()}, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_size_is_accounted() -> None:
    """Case 124."""
    w = make(4)
    assert w.numel() == 3300 and lb.packed_nbytes(w) == 33 * (50 + 2 * 2 * 2) and lb.packed_nbytes(torch.zeros(3)) == 12


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_compile(backend: str) -> None:
    """Case 91: embedding and linear in one graph."""
    model = nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 33))
    lb.quantize_(model, lb.LowBitConfig(4, 32, embeddings=True))
    ids = torch.tensor([[1, 2, 3]])
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(ids), model(ids))


def test_compile_with_dynamic_shapes_and_gradients() -> None:
    """One graph for any number of rows; importing the package leaves PyTorch's own dynamic shapes as they were."""
    torch._dynamo.reset()
    linear = nn.Linear(64, 33)
    linear.weight = make(5, k=64)
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (2, 3, 7):
        x = torch.randn(rows, 64, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(rows, 33) @ linear.weight.dequantize())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export(strict: bool) -> None:
    """The exported graph holds our op, not its decoding."""
    linear = nn.Linear(64, 33)
    linear.weight = make(5, k=64)
    x = torch.randn(3, 64)
    program = torch.export.export(linear, (x,), strict=strict).run_decompositions()
    assert torch.ops.lowbit.linear.default in [node.target for node in program.graph.nodes]
    torch.testing.assert_close(program.module()(x), linear(x))
