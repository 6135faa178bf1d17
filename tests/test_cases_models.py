"""What went wrong for users of other low-bit models, each case by its number: merging, splitting, checkpoints, threads, dtypes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from filekit import child
from torch import nn
from weights import WIDTHS, check, known, make, same, within_bound

import lowbit_tensor as lb

# Merging and splitting


@pytest.mark.parametrize("bits", WIDTHS)
def test_merge_and_unmerge(bits: int) -> None:
    """Case 102: a merge costs at most half a step of the merged weight; the saved copy brings back every byte."""
    layer = nn.Linear(64, 32)
    layer.weight = make(bits, 32, 64, 32)
    before, saved, delta = layer.weight.dequantize(), layer.weight.clone(), 0.05 * torch.randn(32, 4) @ torch.randn(4, 64)
    with torch.no_grad():
        layer.weight.add_(delta)
    merged = (before + delta).view(32, 2, 32)
    step = (merged.amax(-1) - merged.amin(-1)) / (2**bits - 1)
    error = (layer.weight.dequantize().view(32, 2, 32) - merged).abs().amax(-1)
    assert not same(layer.weight, saved) and (error <= 0.51 * step + 2e-3 * merged.abs().max()).all()
    with torch.no_grad():
        layer.weight.copy_(saved)
    assert same(layer.weight, saved) and torch.equal(layer.weight.dequantize(), before)


@pytest.mark.parametrize("bits", WIDTHS)
def test_columns_over_two_ranks(bits: int) -> None:
    """Case 109: halves at a border of groups give the product unsplit; others are refused at once."""
    w, parts = known(bits, 16, 1024, 128)
    x = torch.randn(3, 1024)
    halves = w.chunk(2, 1)
    for i, half in enumerate(halves):
        cut = slice(512 * i, 512 * (i + 1))
        check(F.linear(x[:, cut], half), x[:, cut], tuple(p[:, cut] for p in parts))
    torch.testing.assert_close(sum(F.linear(x[:, 512 * i :][:, :512], h) for i, h in enumerate(halves)), F.linear(x, w))
    assert same(torch.cat(halves, 1), w)
    uneven, _ = known(bits, 16, 192, 128)
    for split in (lambda: uneven.chunk(2, 1), lambda: uneven.split(96, 1), lambda: uneven[:, :96], lambda: uneven.t().chunk(2)):
        with pytest.raises(ValueError, match="columns 0:96:1: expected a cut at multiples of the group size 128 or at 192"):
            split()


@pytest.mark.parametrize("bits", WIDTHS)
def test_parts_of_a_fused_layer_inherit(bits: int, path: Path) -> None:
    """Case 82: keys and values cut out of a loaded layer that a rule gave a width of its own."""
    model = nn.ModuleDict({"kv": nn.Linear(64, 48, bias=False), "up": nn.Linear(64, 64, bias=False)})
    lb.quantize_(model, lb.LowBitConfig(4, 64, modules={"kv": lb.LowBitConfig(bits, 32, scale_dtype=torch.bfloat16)}))
    lb.save_file(model.state_dict(), path)
    fused, x = lb.load_file(path)["kv.weight"], torch.randn(3, 64)
    layers = [nn.Linear(64, n, bias=False) for n in (16, 32)]
    for layer, part in zip(layers, fused.split([16, 32]), strict=True):
        layer.weight = part
        assert (layer.weight.bits, layer.weight.group_size, layer.weight.scales.dtype) == (bits, 32, torch.bfloat16)
        within_bound(layer(x), x, layer.weight)
    assert same(torch.cat([layer.weight for layer in layers]), model["kv"].weight)


# Files and threads


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_checkpoint_goes_into_a_new_model(bits: int, tmp_path: Path) -> None:
    """Case 70: state_dict, torch.save, torch.load, load_state_dict, and the model is printed."""
    models = [nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).bfloat16() for _ in range(2)]
    lb.quantize_(models[0], lb.LowBitConfig(bits, 32))
    torch.save(models[0].state_dict(), tmp_path / "m.pt")
    models[1].load_state_dict(torch.load(tmp_path / "m.pt"), assign=True)
    x = torch.randn(3, 64).bfloat16()
    assert torch.equal(models[1](x), models[0](x)) and str(models[1]) == str(models[0])


def test_the_oldest_pytorch_is_tested() -> None:
    """Case 70: what pyproject.toml asks for at least is what `make test` installs, and every workflow runs `make test`."""
    root = Path(__file__).parents[1]
    least = re.search(r'"torch>=([\d.]+)"', (root / "pyproject.toml").read_text()).group(1)
    tested = re.search(r"torch==([\d.]+)", (root / "Makefile").read_text()).group(1)
    assert tested in (least, f"{least}.0")
    workflows = sorted((root / ".github" / "workflows").glob("*.yml"))
    assert workflows and all("make test" in file.read_text() for file in workflows)


THREADS = """
import sys, threading, torch, lowbit_tensor as lb
from torch import nn

def model(path):
    net = nn.Sequential(nn.Embedding(40, 72), nn.Linear(72, 64), nn.Tanh(), nn.Linear(64, 40))
    net.load_state_dict(lb.load_file(path), assign=True)
    return net

def greedy(net):
    ids = [3]
    for _ in range(24):
        ids.append(int(net(torch.tensor(ids)).mean(0).argmax()))
    return ids

def at_once(count, work):
    found, start = [None] * count, threading.Barrier(count)
    def one(i):
        start.wait()
        found[i] = work()
    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for t in threads: t.start()
    for t in threads: t.join()
    return found

if __name__ == "__main__":
    shared = model(sys.argv[1])
    print(at_once(8, lambda: greedy(shared)) + at_once(8, lambda: greedy(model(sys.argv[1]))))
"""


def test_threads_and_processes_decode_alike(path: Path) -> None:
    """Cases 64, 121 and 123: in a new process 8 threads do the first forward of one model at once, then load one each."""
    scope = {"__name__": "threads"}
    exec(THREADS, scope)
    net = nn.Sequential(nn.Embedding(40, 72), nn.Linear(72, 64), nn.Tanh(), nn.Linear(64, 40))
    lb.quantize_(net, lb.LowBitConfig(3, 32, embeddings=True, modules={"3": lb.LowBitConfig(6)}))
    lb.save_file(net.state_dict(), path)
    expected = scope["greedy"](net)
    assert scope["greedy"](net) == expected and len(set(expected)) > 2
    assert child(THREADS, path) == str([expected] * 16)
