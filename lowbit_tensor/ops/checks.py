"""What every op checks before it computes: dtypes, shapes that agree, one device. Messages say what was expected and what came."""

from __future__ import annotations

import torch
from torch import Tensor

from ..format import check_bits, check_group_size, group_count, row_bytes
from ..packing import has_values

ACTIVATIONS = (torch.float32, torch.bfloat16, torch.float16)
PARAMETERS = (torch.float16, torch.bfloat16, torch.float32)


def check_activations(op: str, x: Tensor, parameters: torch.dtype) -> None:
    """Raises TypeError for activations of another dtype."""
    if x.dtype not in ACTIVATIONS:
        raise TypeError(
            f"{op}: expected x of float32, bfloat16 or float16, got x of {_name(x.dtype)} with parameters of {_name(parameters)}"
        )


def check_weight(op: str, packed: Tensor, scales: Tensor, zeros: Tensor, bits: int, group_size: int, length: int) -> None:
    """Raises TypeError for a dtype, ValueError for a shape or device, where the three parts do not make a weight of `length` columns."""
    check_bits(bits)
    if check_group_size(group_size) == -1:
        raise ValueError(f"{op}: expected group_size of at least 1, got -1; give the row length instead")
    if packed.dtype != torch.uint8:
        raise TypeError(f"{op}: expected packed codes of uint8, got {_name(packed.dtype)}")
    if scales.dtype not in PARAMETERS or zeros.dtype != scales.dtype:
        raise TypeError(
            f"{op}: expected scales and zeros of one dtype of float16, bfloat16 or float32, "
            f"got {_name(scales.dtype)} and {_name(zeros.dtype)}"
        )
    if packed.dim() == 0:
        raise ValueError(f"{op}: expected packed [..., {row_bytes(length, bits)}], got a tensor without dimensions")
    parameters = (*packed.shape[:-1], group_count(length, group_size))
    if packed.shape[-1] != row_bytes(length, bits) or tuple(scales.shape) != parameters or tuple(zeros.shape) != parameters:
        raise ValueError(
            f"{op}: expected packed [..., {row_bytes(length, bits)}], scales and zeros {list(parameters)} for {length} columns, "
            f"got {list(packed.shape)}, {list(scales.shape)}, {list(zeros.shape)}; {bits} bits, group {group_size}"
        )


def check_parameters(where: str, scales: Tensor, zeros: Tensor) -> None:
    """Raises ValueError for parameters that are not finite."""
    for name, parameter in (("scales", scales), ("zeros", zeros)):
        if has_values(parameter) and not parameter.isfinite().all():
            place = parameter.isfinite().logical_not().nonzero()[0].tolist()
            raise ValueError(f"{where}: expected finite {name}, got {parameter[tuple(place)].item()} at {place}")


def check_devices(op: str, first: Tensor, *others: Tensor | None) -> None:
    """Raises ValueError where tensors lie on different devices."""
    for other in others:
        if other is not None and other.device != first.device:
            raise ValueError(f"{op}: expected all tensors on {first.device}, got one on {other.device}")


def check_dims(op: str, what: str, t: Tensor, dims: int) -> None:
    """Raises ValueError where `t` has another number of dimensions."""
    if t.dim() != dims:
        raise ValueError(f"{op}: expected {what} of {dims} dimensions, got {list(t.shape)}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
