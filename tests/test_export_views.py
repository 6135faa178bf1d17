"""Programs that cut, copy or cast a weight: exported, saved, loaded and run, they give what the model gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowbit_tensor as lb


class Net(nn.Module):
    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = lb.LowBitWeightTensor.from_float(torch.randn(16, 64), 4, 16)
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.form(self.weight))


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda w: w,
    "transposed twice": lambda w: w.t().mT,
    "rows": lambda w: w[:4],
    "chunk": lambda w: w.chunk(2)[1],
    "columns": lambda w: torch.cat([w[:, 32:], w[:, :32]], 1),
    "cat": lambda w: torch.cat([w, w]),
    "copy": lambda w: w.clone(),
    "detached": lambda w: w.detach(),
    "cast": lambda w: w.half().float(),
    "same dtype": lambda w: w.to(torch.float32),
    "expert": lambda w: w.view(2, 8, 64)[1],
    "arithmetic": lambda w: w + 1,
    "by name": lambda w: w.narrow(dim=0, start=2, length=5),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_exported_forms_of_a_weight(name: str, strict: bool, tmp_path: Path) -> None:
    """What is cut within the model would become constants without values."""
    model, x = Net(FORMS[name]), torch.randn(3, 64)
    program = torch.export.export(model, (x,), strict=strict)
    assert not program.constants
    torch.export.save(program, tmp_path / "m.pt2")
    for runs in (program, torch.export.load(tmp_path / "m.pt2"), program.run_decompositions()):
        torch.testing.assert_close(runs.module()(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_compiled_forms_of_a_weight(name: str) -> None:
    torch._dynamo.reset()
    model, x = Net(FORMS[name]), torch.randn(3, 64)
    torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x), rtol=1e-5, atol=1e-5)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "EmbeddingBag": (lambda: nn.EmbeddingBag(16, 64, padding_idx=2), lambda: torch.tensor([[1, 2], [5, 5]])),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), lambda: torch.randn(2, 3, 64)),
    "MultiheadAttention": (lambda: SelfAttention(), lambda: torch.randn(2, 3, 64)),
    "GRU": (lambda: nn.GRUCell(64, 64), lambda: torch.randn(2, 64)),
}


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad], ids=lambda m: m.__name__)
def test_compiled_layers(name: str, mode: type) -> None:
    torch._dynamo.reset()
    make, inputs = LAYERS[name]
    layer, x = make().eval(), inputs()
    for part in layer.modules():
        for key, p in list(part.named_parameters(recurse=False)):
            if p.dim() == 2:
                setattr(part, key, lb.LowBitWeightTensor.from_float(p.detach(), 5, 16))
    with mode():
        torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x), rtol=1e-4, atol=1e-4)


def test_a_traced_weight_is_no_argument() -> None:
    """Its codes would become constants of the trace, and another weight would be ignored."""
    a, x = lb.LowBitWeightTensor.from_float(torch.randn(16, 64), 4, 16), torch.ones(2, 64)
    with pytest.raises(NotImplementedError, match=r"got it as an argument; use torch\.export"):
        torch.jit.trace(lambda x, w: F.linear(x, w), (x, a))
