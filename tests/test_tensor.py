"""The tensor as PyTorch's users handle it: assignment, parameters, copies, moves, files, slices."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from weights import FLOATS, WIDTHS, inner, make, same, weight64, within_bound

import lowbit_tensor as lb


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
    """Cases 105, 106: tied parts stay tied, requires_grad and a gradient of its own go along."""
    model = nn.ModuleList([nn.Linear(100, 33), nn.Linear(100, 33)])
    model[0].weight = model[1].weight = make()
    model[0].weight.requires_grad_()
    (model[0].weight * 2).sum().backward()
    twin, alone = copy.deepcopy(model), copy.deepcopy(model[0].weight)
    assert twin[0].weight is twin[1].weight and same(twin[0].weight, model[0].weight) and same(alone, model[0].weight)
    for w in (twin[0].weight, alone):
        assert w.requires_grad and torch.equal(w.grad, torch.full((33, 100), 2.0)) and w.grad is not model[0].weight.grad
    assert not copy.deepcopy(make()).requires_grad and copy.deepcopy(make()).grad is None
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
    """Case 105: a bare subclass dies here with a segmentation fault."""
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
    """Case 57."""
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
        layer, twin = nn.Linear(100, 33), nn.Linear(100, 33)
        layer.weight = w
        twin.load_state_dict(layer.state_dict(), assign=True)
        assert same(layer.state_dict()["weight"], w) and torch.equal(twin(x), layer(x)) and same(twin.half().float().weight, w)
    assert F.linear(x.clone().requires_grad_(), w).requires_grad


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


COLUMNS = {
    "columns": lambda w: w[:, :64],
    "corner": lambda w: w[:, 64:],
    "narrow": lambda w: w.narrow(1, 0, 64),
    "through data": lambda w: w.data.narrow(1, 0, 64),
    "chunk": lambda w: w[:, :64].chunk(1, 1)[0],
    "rows of the transpose": lambda w: w.t()[:64],
    "columns of columns": lambda w: w[:, :96][:, 64:],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_writes_to_columns_reach_the_weight(name: str) -> None:
    """A column slice is a copy, which loaders of shards write to all the same."""
    w = make(group_size=32)
    expected = w.dequantize()
    with torch.no_grad():
        part = COLUMNS[name](w)
        value = torch.randn(part.shape)
        part.copy_(value)
        COLUMNS[name](expected).copy_(part.dequantize())
    assert torch.equal(w.dequantize(), expected) and (part.dequantize() - value).abs().max() < 0.4
    w[:, :64] = 1.5
    assert (w.dequantize()[:, :64] == 1.5).all() and torch.equal(w.dequantize()[:, 64:], expected[:, 64:])


def test_writes_that_would_be_lost_are_refused() -> None:
    w = make()
    before = w.dequantize()
    for write in (lambda: w[:, :64][2:4].zero_(), lambda: w[:, :64].unsqueeze(0).mul_(2), lambda: w.t()[:64][:, 2:4].fill_(1.0)):
        with pytest.raises(NotImplementedError, match="write to the rows first cut"):
            write()
    for index in ([1, 2], torch.tensor([0]), w.dequantize() > 0):
        with pytest.raises(NotImplementedError, match="expected integers and slices"):
            w[index] = 0.0
    assert torch.equal(w.dequantize(), before)


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
    """Case 124: the logical count of weights; the bytes of codes, scales and zeros."""
    w = make(4)
    assert w.numel() == 3300 and lb.packed_nbytes(w) == 33 * (50 + 2 * 2 * 2) and lb.packed_nbytes(torch.zeros(3)) == 12
