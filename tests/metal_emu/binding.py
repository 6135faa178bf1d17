"""How the arguments of a launch become bytes in buffer slots: torch's rules, and the stricter ones of standin.py."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .library import Kernel, Parameter

CASTS = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}
ELEMENTS = {
    torch.float32: ("f", 4),
    torch.float16: ("h", 2),
    torch.bfloat16: ("b", 2),
    torch.bool: ("o", 1),
    **{getattr(torch, f"int{8 * size}"): ("i", size) for size in (1, 2, 4, 8)},
    **{getattr(torch, f"uint{8 * size}"): ("u", size) for size in (1, 2, 4, 8)},
}
INLINE_BYTES = 4096  # Metal's limit on bytes passed by value
ALIGNMENT = 256  # an MTLBuffer starts at a page; views keep their offset modulo this
GUARD = 4096


@dataclass
class Bound:
    """Addresses for Library.launch, what keeps them alive, and the copies to bring back."""

    addresses: dict[int, tuple[int, int]] = field(default_factory=dict)
    alive: list[object] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)  # tensor's address, copy's address, bytes

    def write_back(self) -> None:
        for target, copy, size in self.copies:
            ctypes.memmove(target, copy, size)


def bind(kernel: Kernel, args: tuple[object, ...], arg_casts: object, guarded: bool) -> Bound:
    """Guarded: tensors are copied to where nothing else is near, so that no access out of bounds hits another one.

    TypeError for the wrong number or type of arguments, ValueError for tensors or values that can't be passed so, RuntimeError as torch.
    """
    if set(kernel.parameters) != set(range(len(args))):
        missing = sorted(set(kernel.parameters) - set(range(len(args))))
        surplus = sorted(set(range(len(args))) - set(kernel.parameters))
        raise TypeError(f"{kernel.name}: unbound buffers {missing}, arguments that are no parameters {surplus}")
    _refuse_overlaps(kernel, args)
    bound = Bound()
    for index, value in enumerate(args):
        parameter, what = kernel.parameters[index], f"{kernel.name}: argument {index} ({kernel.parameters[index]})"
        if isinstance(value, Tensor):
            _bind_tensor(bound, parameter, value, what, guarded)
        else:
            _bind_value(bound, parameter, value, _cast(arg_casts, index), what)
    return bound


def _cast(arg_casts: object, index: int) -> str:
    if arg_casts is None or isinstance(arg_casts, str):
        return arg_casts or ""
    if isinstance(arg_casts, dict):
        return arg_casts.get(index, "")
    raise RuntimeError(f"Unexpected caster arg type {type(arg_casts).__name__}")


def _extent(tensor: Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()


def _refuse_overlaps(kernel: Kernel, args: tuple[object, ...]) -> None:
    tensors = [(i, *_extent(a)) for i, a in enumerate(args) if isinstance(a, Tensor)]
    for i, begin, end in tensors:
        for j, other_begin, other_end in tensors:
            if i != j and kernel.parameters[i].writable and begin < other_end and other_begin < end:
                raise ValueError(f"{kernel.name}: argument {i} is written to and overlaps argument {j}")


def _matches(parameter: Parameter, dtype: torch.dtype) -> bool:
    """Signedness is free, and bytes may be read as any unsigned integers; else the element's type must be the tensor's."""
    (kind, size), (have, have_size) = parameter.element, ELEMENTS[dtype]
    if kind in "sv":
        return True
    if have in "iu" and kind in "iu":
        return size == have_size or (dtype == torch.uint8 and kind == "u")
    return (kind, size) == (have, have_size)


def _bind_tensor(bound: Bound, parameter: Parameter, tensor: Tensor, what: str, guarded: bool) -> None:
    if tensor.device.type != "cpu":
        raise TypeError(f"{what}: a tensor on {tensor.device}; here CPU tensors stand for those on mps")
    if tensor.dtype not in ELEMENTS:
        raise TypeError(f"{what}: Metal has no {tensor.dtype}")
    if not _matches(parameter, tensor.dtype):
        raise TypeError(f"{what}: a tensor of {tensor.dtype}")
    if not tensor.is_contiguous():
        raise ValueError(f"{what}: a tensor that is not contiguous, strides {tensor.stride()}")
    begin, end = _extent(tensor)
    if parameter.reference and end - begin < parameter.size:
        raise ValueError(f"{what}: needs {parameter.size} bytes, {end - begin} are bound")
    bound.alive.append(tensor)
    if guarded:
        offset = tensor.storage_offset() * tensor.element_size() % ALIGNMENT
        begin, copy = begin, _guarded_copy(bound, begin, end - begin, offset)
        if parameter.writable:
            bound.copies.append((begin, copy, end - begin))
        begin, end = copy, copy + end - begin
    bound.addresses[parameter.index] = (begin, end - begin)


def _guarded_copy(bound: Bound, address: int, size: int, offset: int) -> int:
    room = torch.empty(size + 2 * GUARD + 2 * ALIGNMENT, dtype=torch.uint8)
    bound.alive.append(room)
    copy = (room.data_ptr() + GUARD + ALIGNMENT) // ALIGNMENT * ALIGNMENT + offset
    ctypes.memmove(copy, address, size)
    return copy


def _bind_value(bound: Bound, parameter: Parameter, value: object, cast: str, what: str) -> None:
    if not parameter.constant:
        raise TypeError(f"{what}: a Python value for a device pointer")
    values = _as_tensor(value, what)
    if cast and cast not in CASTS:
        raise RuntimeError(f"Unsupported cast instruction {cast}")
    _refuse_values(parameter, values, CASTS.get(cast, values.dtype), what)
    values = values.to(CASTS.get(cast, values.dtype))
    size = values.numel() * values.element_size()
    if size > INLINE_BYTES:
        raise RuntimeError(f"{what}: {size} bytes by value, the limit is {INLINE_BYTES}")
    if parameter.reference and size < parameter.size:
        raise ValueError(f"{what}: needs {parameter.size} bytes, {size} are bound")
    bound.addresses[parameter.index] = (_guarded_copy(bound, values.data_ptr(), size, 0), size)


def _as_tensor(value: object, what: str) -> Tensor:
    """As torch passes them: int and bool as 8 bytes, float as float32, a list by its first element."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise RuntimeError("Empty list/tuple can not be an argument to metal kernel")
    if isinstance(values[0], int):
        return torch.tensor([int(v) for v in values], dtype=torch.int64)
    if isinstance(values[0], float):
        return torch.tensor([float(v) for v in values], dtype=torch.float32)
    raise RuntimeError(f"Unsupported argument type: {what}, {type(values[0]).__name__}")


def _refuse_values(parameter: Parameter, values: Tensor, dtype: torch.dtype, what: str) -> None:
    """The bytes must mean in the kernel what they meant in Python: same kind, same element size, or one small integer."""
    (kind, size), (have, have_size) = parameter.element, ELEMENTS[dtype]
    if kind in "sv":
        return
    floats = kind in "fhb"
    if floats != (have in "fhb") or (floats and (kind, size) != (have, have_size)):
        raise TypeError(f"{what}: passed as {dtype}; see arg_casts")
    if floats:
        return
    if have_size < size or (have_size != size and values.numel() > 1):
        raise TypeError(f"{what}: integers passed as {have_size} bytes each; see arg_casts")
    bits = 1 if kind == "o" else 8 * size - (kind == "i")
    least, most = (-(2**bits) if kind == "i" else 0), 2**bits - 1
    if not all(least <= int(v) <= most for v in values):
        raise ValueError(f"{what}: {values.tolist()} does not fit")
