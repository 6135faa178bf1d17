"""What torch.save writes and the safe loader takes; hostile pickles are refused before any op reads them."""

import hashlib
import io
import pickle
import pickletools
import zipfile
from typing import Any

import pytest
import torch
from filekit import assert_same, child, weight
from torch import nn

from lowbit_tensor import LowBitConfig, LowBitWeightTensor, quantize_
from lowbit_tensor.tensor import rebuild

# Pickles

LOAD_PICKLE = """
import hashlib, sys, torch
import lowbit_tensor
model = torch.load(sys.argv[1], weights_only=True)
print(hashlib.sha256(b"".join(model[name].dequantize().numpy().tobytes() for name in sorted(model))).hexdigest())
"""


def test_torch_load_weights_only_in_another_process(tmp_path):
    """Case 75: nothing but `import lowbit_tensor` is needed."""
    tensors = {f"w{bits}": weight(bits=bits) for bits in (1, 3, 8)}
    torch.save(tensors, tmp_path / "w.pt")
    expected = hashlib.sha256(b"".join(tensors[name].dequantize().numpy().tobytes() for name in sorted(tensors))).hexdigest()
    assert child(LOAD_PICKLE, tmp_path / "w.pt") == expected


ALLOWED = {
    "collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch ByteStorage", "torch HalfStorage", "torch FloatStorage",
    "torch float32", "torch bfloat16", "lowbit_tensor.tensor rebuild",
}  # fmt: skip


def globals_of(data: bytes) -> set[str]:
    """The names that a pickle of torch.save would import."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("data.pkl")]
        operations = list(pickletools.genops(archive.read(name)))
    assert "STACK_GLOBAL" not in {op.name for op, _, _ in operations}
    return {arg for op, arg, _ in operations if op.name == "GLOBAL"}


def test_the_globals_of_a_pickle_are_few_and_harmless():
    """Case 75."""
    model = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 8).bfloat16())
    quantize_(model, LowBitConfig(4, 8))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    found = globals_of(buffer.getvalue())
    assert "lowbit_tensor.tensor rebuild" in found and found - {"torch BFloat16Storage"} <= ALLOWED


@pytest.mark.parametrize("requires_grad", [False, True], ids=["frozen", "requires_grad"])
def test_a_pickle_keeps_every_field(requires_grad):
    """Case 105."""
    w = weight(2, 3, 20, bits=5, group=7, dtype=torch.bfloat16, scales=torch.float32).requires_grad_(requires_grad)
    buffer = io.BytesIO()
    torch.save({"w": w}, buffer)
    buffer.seek(0)
    for back in (torch.load(buffer, weights_only=True)["w"], pickle.loads(pickle.dumps(w))):
        assert_same({"w": back}, {"w": w})
        assert back.requires_grad is requires_grad and back.packed.data_ptr() != w.packed.data_ptr()


class Hostile:
    """Pickles as a call of `rebuild` with whatever arguments."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> Any:
        return rebuild, self.args


def arguments(**changes: Any) -> list[Any]:
    w = weight()
    fields = {
        "version": 1, "packed": w.packed, "scales": w.scales, "zeros": w.zeros, "bits": 4, "group_size": 16, "shape": (6, 40),
        "dtype": torch.float32, "requires_grad": False,
    }  # fmt: skip
    return list((fields | changes).values())


def load_hostile(**changes: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(Hostile(*arguments(**changes)), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


HOSTILE: dict[str, dict[str, Any]] = {
    "codes_too_few": {"packed": torch.zeros(6, 19, dtype=torch.uint8)},
    "codes_of_one_byte": {"packed": torch.zeros(1, dtype=torch.uint8)},
    "codes_int8": {"packed": torch.zeros(6, 20, dtype=torch.int8)},
    "codes_no_tensor": {"packed": [0] * 120},
    "scales_too_few": {"scales": torch.ones(6, 2).half()},
    "zeros_too_few": {"zeros": torch.ones(5, 3).half()},
    "scales_scalar": {"scales": torch.tensor(1.0).half()},
    "scales_float64": {"scales": torch.ones(6, 3).double()},
    "zeros_of_another_dtype": {"zeros": torch.ones(6, 3)},
    "bits_0": {"bits": 0},
    "bits_9": {"bits": 9},
    "bits_8": {"bits": 8},
    "bits_text": {"bits": "4"},
    "group_0": {"group_size": 0},
    "group_-1": {"group_size": -1},
    "group_8": {"group_size": 8},
    "group_huge": {"group_size": 2**31},
    "shape_negative": {"shape": (-6, 40)},
    "shape_negative_columns": {"shape": (6, -40)},
    "shape_larger": {"shape": (7, 40)},
    "shape_wider": {"shape": (6, 41)},
    "shape_huge": {"shape": (2**62, 2**62)},
    "shape_2**70": {"shape": (6, 2**70)},
    "shape_empty": {"shape": ()},
    "shape_list": {"shape": [6, 40]},
    "shape_text": {"shape": ("6", "40")},
    "shape_none": {"shape": None},
    "dtype_int8": {"dtype": torch.int8},
    "dtype_text": {"dtype": "float32"},
    "version_2": {"version": 2},
    "version_none": {"version": None},
    "version_true": {"version": True},
    "version_tensor": {"version": torch.tensor([1, 1])},
    "requires_grad_text": {"requires_grad": "x"},
    "requires_grad_list": {"requires_grad": [1]},
    "scales_nan": {"scales": torch.full((6, 3), torch.nan).half()},
    "zeros_infinite": {"zeros": torch.full((6, 3), torch.inf).half()},
    "codes_without_bytes": {"packed": torch.zeros(1, 20, dtype=torch.uint8).expand(6, -1)},
    "scales_without_bytes": {"scales": torch.ones(()).half().expand(6, 3)},
    "unused_bits": {"packed": torch.full((6, 20), 255, dtype=torch.uint8), "shape": (6, 39)},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_pickle_is_refused(changes):
    """Case 130."""
    with pytest.raises((ValueError, TypeError), match="expected"):
        load_hostile(**changes)


def test_the_pickle_without_malice_is_read():
    """What the test above changes, unchanged."""
    w = load_hostile()
    assert isinstance(w, LowBitWeightTensor) and w.shape == (6, 40)


def test_a_transposed_view_is_not_pickled():
    with pytest.raises(NotImplementedError, match=r"expected w, got w\.t\(\)"):
        pickle.dumps(weight().t())
