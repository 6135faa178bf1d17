"""Walks the table of docs/api.md, section 4: every op listed there does what its row says, every other one raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import lowbit_tensor as lb
from lowbit_tensor.handlers import KINDS
from lowbit_tensor.tensor import INNER

aten = torch.ops.aten


def make(n: int = 8, k: int = 64) -> lb.LowBitWeightTensor:
    return lb.LowBitWeightTensor.from_float(torch.randn(n, k), 6, 32)


ONES, HALVES = torch.ones(8, 64), torch.full((8, 64), 0.5)
MASK = torch.arange(512).view(8, 64) % 3 == 0

# Further arguments of each op, after the weight; none where it takes the weight alone.
ARITHMETIC: dict[str, tuple[Any, ...]] = {
    "addcdiv": (ONES, HALVES),
    "addcmul": (ONES, HALVES),
    "allclose": (torch.zeros(8, 64),),
    "bucketize": (torch.linspace(-1, 1, 9),),
    "clamp": (-1, 1),
    "dist": (HALVES, 2),
    "full_like": (1.5,),
    "gather": (1, torch.arange(8)[:, None]),
    "histc": (5,),
    "histogram": (5,),
    "huber_loss": (HALVES,),
    "kthvalue": (3,),
    "lerp": (ONES, 0.25),
    "linalg_vector_norm": (2,),
    "logsumexp": (1,),
    "masked_fill": (MASK, 2.0),
    "masked_select": (MASK,),
    "mse_loss": (HALVES,),
    "mul": (torch.ones(64),),
    "new_full": ((2, 3), 1.5),
    "new_ones": ((2, 3),),
    "norm": (2,),
    "pow": (2,),
    "rsub": (1.0,),
    "smooth_l1_loss": (HALVES,),
    "take": (torch.tensor([0, 511]),),
    "topk": (3,),
    "_log_softmax": (1, False),
    "_softmax": (1, False),
    "_weight_norm_interface": (torch.ones(8, 1),),
}
ARITHMETIC |= dict.fromkeys("add div eq floor_divide fmod ge gt le lt ne remainder sub".split(), (0.75,))
ARITHMETIC |= dict.fromkeys("clamp_max clamp_min".split(), (0.5,))
ARITHMETIC |= dict.fromkeys("cummax cummin cumprod cumsum".split(), (1,))
ARITHMETIC |= dict.fromkeys(
    "atan2 copysign fmax fmin heaviside hypot logaddexp logical_and logical_or logical_xor maximum minimum xlogy".split(), (HALVES,)
)
LISTS: dict[str, tuple[Any, ...]] = {
    "_foreach_add": (1.5,),
    "_foreach_div": (2.0,),
    "_foreach_mul": ([HALVES, torch.ones(3)],),
    "_foreach_norm": (2,),
    "_foreach_sub": (0.5,),
}
SQUARE = ("linalg_cholesky_ex", "linalg_inv_ex", "linalg_pinv", "_linalg_det", "_linalg_eigh", "_linalg_slogdet", "trace")
IN_PLACE: dict[str, tuple[Any, ...]] = {
    "add_": (torch.full((8, 64), 0.1),),
    "addcdiv_": (torch.ones(8, 64), torch.full((8, 64), 4.0)),
    "addcmul_": (torch.ones(8, 64), torch.ones(8, 64)),
    "addmm_": (torch.ones(8, 2), torch.ones(2, 64)),
    "clamp_": (-0.5, 0.5),
    "clamp_max_": (0.5,),
    "clamp_min_": (-0.5,),
    "div_": (2.0,),
    "fill_": (3.0,),
    "lerp_": (torch.ones(8, 64), 0.5),
    "masked_fill_": (MASK, 1.5),
    "mul_": (2.0,),
    "pow_": (2,),
    "sub_": (0.25,),
}
LISTS_IN_PLACE: dict[str, tuple[Any, ...]] = {
    "_foreach_add_": (1.5,),
    "_foreach_copy_": ([HALVES, torch.ones(3)],),
    "_foreach_div_": (2.0,),
    "_foreach_lerp_": ([HALVES, torch.ones(3)], 0.5),
    "_foreach_mul_": (0.5,),
    "_foreach_sub_": ([HALVES, torch.ones(3)],),
    "_foreach_zero_": (),
}


def call(name: str, weight: torch.Tensor) -> Any:
    if name in ("bitwise_not", "dot", "where"):
        special = {
            "bitwise_not": lambda: aten.bitwise_not(weight > 0),
            "dot": lambda: aten.dot(weight[0], weight[1]),
            "where": lambda: aten.where(torch.ones(8, 64, dtype=torch.bool), weight, torch.zeros(())),
        }
        return special[name]()
    op = getattr(aten, name)
    if name in LISTS:
        return op([weight, torch.full((3,), 2.0)], *LISTS[name])
    torch.manual_seed(1)
    return op(weight, *ARITHMETIC.get(name, ()))


LAYERS = {"_native_multi_head_attention", "_transformer_encoder_layer_fwd"}  # tests/test_layers.py


@pytest.mark.parametrize("name", sorted(KINDS["arithmetic"] - LAYERS))
def test_arithmetic(name: str) -> None:
    w = make(64, 64) if name in SQUARE else make()
    if name in ("acos", "asin", "atanh", "acosh", "erfinv", "bernoulli"):  # defined on a part of the numbers
        w = lb.LowBitWeightTensor.from_float(0.1 + 0.8 * torch.rand(8, 64) + (name == "acosh"), 6, 32)
    result, expected = call(name, w), call(name, w.dequantize())
    for got, want in zip(tree_leaves(result), tree_leaves(expected), strict=True):
        assert not isinstance(got, lb.LowBitWeightTensor)
        torch.testing.assert_close(got, want, equal_nan=True)


def test_arithmetic_from_either_side() -> None:
    w, plain = make(), torch.randn(8, 64)
    for result in (w + plain, plain + w, w - w, 2 * w, w / 2, -w, abs(w), w**2, plain * w):
        assert type(result) is torch.Tensor
    torch.testing.assert_close(plain + w, plain + w.dequantize())
    assert torch.equal(w == w, torch.ones(8, 64, dtype=torch.bool))
    q, r = torch.linalg.qr(w)
    torch.testing.assert_close(q @ r, w.dequantize(), rtol=1e-4, atol=1e-4)
    u, s, v = torch.linalg.svd(w, full_matrices=False)
    torch.testing.assert_close(u * s @ v, w.dequantize(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(KINDS["in-place"]))
def test_in_place(name: str) -> None:
    """The storages stay, the values are re-quantized: within half a step of the float result."""
    w = make()
    if name in ("bernoulli_", "erfinv_", "log_", "reciprocal_", "sqrt_"):
        w.copy_(0.1 + 0.8 * torch.rand(8, 64))
    storages = [getattr(w, part).data_ptr() for part in INNER]
    expected, op, lists = w.dequantize(), getattr(aten, name), name in LISTS_IN_PLACE
    rest = LISTS_IN_PLACE[name] if lists else IN_PLACE.get(name, ())
    torch.manual_seed(1)
    op([expected, torch.full((3,), 2.0)] if lists else expected, *rest)
    torch.manual_seed(1)
    with torch.no_grad():
        result = op([w, torch.full((3,), 2.0)] if lists else w, *rest)
    assert (result is w or lists) and [getattr(w, part).data_ptr() for part in INNER] == storages and w.bits == 6
    step = (expected.view(8, 2, 32).amax(-1) - expected.view(8, 2, 32).amin(-1)) / 63
    error = (w.dequantize() - expected).view(8, 2, 32).abs().amax(-1)
    assert (error <= 0.51 * step + 2e-3 * expected.abs().max()).all()


def test_in_place_on_a_plain_tensor() -> None:
    w, plain = make(), torch.randn(8, 64)
    expected = plain + w.dequantize()
    plain += w
    assert torch.equal(plain, expected)


def test_data_is_set() -> None:
    """Trap: PyTorch's own setter leaves the codes as they were."""
    w, value = make(), torch.randn(8, 64)
    w.data = value
    assert (w.dequantize() - value).abs().max() < 0.1
    other = make()
    w.data = other
    assert torch.equal(w.codes(), other.codes()) and torch.equal(w.scales, other.scales)
    w.data = w.data.to(torch.bfloat16)
    assert w.dtype == torch.bfloat16 and torch.equal(w.codes(), other.codes())
    w.data += 1.0
    assert (w.dequantize().float() - other.dequantize() - 1).abs().max() < 0.1
    with pytest.raises(ValueError, match="expected the shape"):
        w.data = torch.zeros(4, 64)


VIEWS = {
    "detach": lambda w: w.detach(),
    "alias": lambda w: aten.alias(w),
    "t": lambda w: w.t(),
    "transpose": lambda w: w.transpose(0, 1),
    "permute": lambda w: w.permute(1, 0),
    "slice": lambda w: w[2:5],
    "select": lambda w: w[3],
    "split": lambda w: w.split(3)[2],
    "split_with_sizes": lambda w: w.split([3, 5])[1],
    "unbind": lambda w: w.unbind()[7],
    "view": lambda w: w.view(2, 4, 64),
    "_unsafe_view": lambda w: aten._unsafe_view(w, [4, 2, 64]),
    "unsqueeze": lambda w: w.unsqueeze(0),
    "squeeze": lambda w: w[None].squeeze(0),
    "expand": lambda w: w[None].expand(1, -1, 64),
}


@pytest.mark.parametrize("name", sorted(KINDS["view"]))
def test_views(name: str) -> None:
    w = make()
    with torch.no_grad():
        view, expected = VIEWS[name](w), VIEWS[name](w.dequantize())
        assert type(view) is lb.LowBitWeightTensor and view.shape == expected.shape
        assert torch.equal(view.dequantize(), expected)
        view.zero_()
    assert not VIEWS[name](w.dequantize()).any(), "the view shares the bytes"


def test_more_views() -> None:
    w = lb.LowBitWeightTensor.from_float(torch.randn(1, 4, 64), 4, 32)
    for change in (
        lambda w: w.view(4, 64),
        lambda w: w.reshape(-1, 64),
        lambda w: w.flatten(0, 1),
        lambda w: w.squeeze(),
        lambda w: w.mT[0],
        lambda w: w.narrow(1, 1, 2),
        lambda w: w.chunk(2, 1)[1],
        lambda w: w[0].unflatten(0, (2, 2)),
        lambda w: w[0].unflatten(1, (2, 32)),
        lambda w: w.view(-1),
        lambda w: w.view(2, 128),
        lambda w: w.view(8, 32).mT,
        lambda w: w[0].view(-1).view(4, 64)[1],
        lambda w: w.expand(3, 4, 64),
        lambda w: w.mT.expand(3, 64, 4),
        lambda w: w.mT.expand(3, 64, 4).reshape(3, 1, 64, 4),
    ):
        assert torch.equal(change(w).dequantize(), change(w.dequantize()))


COPIES = {
    "clone": lambda w: w.clone(),
    "_to_copy": lambda w: w.to(torch.float64).to(torch.float32),
    "index": lambda w: w[torch.tensor([5, 0, 5])],
    "index_select": lambda w: w.index_select(0, torch.tensor([5, 0])),
    "cat": lambda w: torch.cat([w, w[:3]]),
    "stack": lambda w: torch.stack([w, w]),
}


@pytest.mark.parametrize("name", sorted(KINDS["copy"] - {"_pin_memory"}))
def test_copies(name: str) -> None:
    w = make()
    result, expected = COPIES[name](w), COPIES[name](w.dequantize())
    assert type(result) is lb.LowBitWeightTensor and torch.equal(result.dequantize(), expected)
    before = w.dequantize()
    with torch.no_grad():
        result.zero_()
    assert torch.equal(w.dequantize(), before)


@pytest.mark.parametrize("name", sorted(KINDS["new"]))
def test_new(name: str) -> None:
    w, op = make(), getattr(aten, name)
    like = op(w) if name.endswith("like") else op(w, [8, 64])
    assert type(like) is lb.LowBitWeightTensor and like.format == w.format and like.data_ptr() != w.data_ptr()
    if "zeros" in name:
        assert not like.dequantize().any()
    if not name.endswith("like"):
        assert type(op(w, [3, 64])) is torch.Tensor and op(w, [3, 64]).shape == (3, 64)


def test_queries() -> None:
    w = make()
    assert not w.is_pinned() and torch.equal(w, w.clone()) and not torch.equal(w, make()) and torch.equal(w, w.dequantize())


def test_copy_into_a_float_tensor_dequantizes() -> None:
    w, target = make(), torch.empty(8, 64, dtype=torch.float64)
    assert torch.equal(target.copy_(w), w.dequantize(torch.float32).double())


def test_writes_that_fail_write_nothing() -> None:
    w = make()
    before = w.dequantize()
    for value in (torch.full((8, 64), torch.nan), torch.full((8, 64), 1e6), torch.zeros(3, 64)):
        with pytest.raises((ValueError, RuntimeError)), torch.no_grad():
            w.copy_(value)
    assert torch.equal(w.dequantize(), before)


UNLISTED = {
    "digamma": lambda w: w.digamma(),
    "flip": lambda w: w.flip(0),
    "sort by column slice": lambda w: w[:, 3],
    "permute of three": lambda w: w[None].permute(1, 0, 2),
    "view across groups": lambda w: w.view(32, 16),
    "view of a transpose": lambda w: w.t().reshape(-1),
    "cat with a float": lambda w: torch.cat([w, torch.zeros(1, 64)]),
    "as_strided": lambda w: w.as_strided((2, 2), (1, 1)),
    "embedding with max_norm": lambda w: torch.nn.functional.embedding(torch.tensor([1]), w, max_norm=1.0),
    "conv1d": lambda w: torch.conv1d(torch.ones(1, 1, 9), w[:, None]),
}


@pytest.mark.parametrize("name", UNLISTED)
def test_what_is_not_in_the_table_raises(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"use w\.dequantize\(\)"), torch.no_grad():
        UNLISTED[name](make())


def test_rows_are_stacked_and_squeezed() -> None:
    w = make()
    assert torch.equal(torch.stack([w[1], w[3]]).dequantize(), w.dequantize()[[1, 3]])
    assert torch.equal(w[:1].squeeze(0).dequantize(), w.dequantize()[0]) and w[:1].squeeze().dim() == 1
    assert torch.equal(torch.stack([w, w], 1).dequantize(), torch.stack([w.dequantize()] * 2, 1))
    assert torch.equal(torch.cat([w[:, 32:], w], 1).dequantize(), torch.cat([w.dequantize()[:, 32:], w.dequantize()], 1))
    short = make(k=40)
    for wrong in (lambda: torch.cat([short, short], 1), lambda: w.unsqueeze(-1), lambda: torch.stack([w, w], 2), lambda: w[w > 0]):
        with pytest.raises((NotImplementedError, ValueError), match=r"use w\.dequantize\(\)"):
            wrong()


def test_steps_that_vanish_are_refused() -> None:
    """As those that overflow are: nothing is written."""
    w = lb.LowBitWeightTensor.from_float(torch.randn(8, 64), 4, 32, scale_dtype=torch.float16)
    before = w.dequantize()
    with pytest.raises(ValueError, match="cannot hold steps as small"), torch.no_grad():
        w.mul_(1e-9)
    assert torch.equal(w.dequantize(), before)
    with torch.no_grad():
        w.fill_(1e-3)  # constant groups need no step
    assert (w.dequantize() - 1e-3).abs().max() < 1e-6
