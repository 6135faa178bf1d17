"""`LowBitWeightTensor`: its fields, how it is made, taken apart and put together, and the look-up of what an op means on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_exporting

from . import ops, packing, quantize  # noqa: F401  (ops: registers what is called below)
from .format import Format
from .ops.checks import check_devices, check_parameters, check_weight
from .quantize.scheme import Scheme

Handler = Callable[..., Any]
FUNCTIONS: dict[Any, Handler] = {}  # functions of torch, met before autograd: handler(*args, **kwargs); handlers/ fills both tables
OPERATORS: dict[Any, Handler] = {}  # overloads of torch.ops.aten, met after it: handler(overload, *args, **kwargs)

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FORMAT_VERSION = 1


class LowBitWeightTensor(Tensor):
    """A weight of 1 to 8 bits: acts as a float tensor `[..., N, K]` of `dtype`, holds codes, scales and zeros (docs/format.md).

    Made with `from_float` or `from_codes`. Called with a `LowBitWeightTensor` alone it makes another one over the same inner tensors.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor
    bits: int
    group_size: int
    in_features: int
    transposed: bool
    _role = "weight"  # or "view", or "buffer" of a module: only weights are parameters
    _derived = False  # made of another one by an op
    _origin: Any = None  # of a copy of columns: where they came from, so that writes reach it

    @staticmethod
    def __new__(
        cls,
        packed: Tensor,
        scales: Tensor | None = None,
        zeros: Tensor | None = None,
        bits: int = 0,
        group_size: int = 0,
        in_features: int = 0,
        dtype: torch.dtype = torch.float32,
        transposed: bool = False,
        requires_grad: bool = False,
    ) -> LowBitWeightTensor:
        if isinstance(packed, LowBitWeightTensor):
            return packed._replace(requires_grad=requires_grad)
        if scales is None or zeros is None:
            raise TypeError("LowBitWeightTensor: expected packed, scales and zeros; from_float and from_codes make them")
        check_weight("LowBitWeightTensor", packed, scales, zeros, bits, group_size, in_features)
        check_devices("LowBitWeightTensor", packed, scales, zeros)
        if dtype not in DTYPES:
            raise TypeError(f"LowBitWeightTensor: expected dtype float16, bfloat16, float32 or float64, got {dtype}")
        shape = [*packed.shape[:-1], in_features]
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * max(size, 1))
        if transposed:
            for order in (shape, strides):
                order[-1], order[-2] = order[-2], order[-1]
        self = Tensor._make_wrapper_subclass(
            cls, tuple(shape), strides=tuple(strides), dtype=dtype, device=packed.device, requires_grad=requires_grad
        )
        self.packed, self.scales, self.zeros = packed, scales, zeros
        self.bits, self.group_size, self.in_features, self.transposed = bits, group_size, in_features, transposed
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    # Making one

    @classmethod
    def from_float(
        cls,
        w: Tensor,
        bits: int,
        group_size: int = 64,
        method: str = quantize.DEFAULT_METHOD,
        scale_dtype: torch.dtype | None = None,
        symmetric: bool = False,
        integral_zero: bool = False,
    ) -> LowBitWeightTensor:
        """Quantizes a float tensor `[..., N, K]`, on its device; the result's dtype is `w`'s.

        `scale_dtype=None` chooses between float16 and float32 (docs/format.md, 4). Raises TypeError for a dtype or argument of another
        kind, ValueError for one out of range, for weights that are not finite (naming the place), and for parameters that `scale_dtype`
        cannot hold.
        """
        if not isinstance(w, Tensor) or isinstance(w, LowBitWeightTensor) or w.dtype not in DTYPES:
            what = f"{type(w).__name__} of {w.dtype}" if isinstance(w, Tensor) else type(w).__name__
            raise TypeError(f"from_float: expected a plain tensor of float16, bfloat16, float32 or float64, got {what}")
        if w.dim() < 2:
            raise ValueError(f"from_float: expected a weight [..., N, K], got {list(w.shape)}")
        fmt = Format(bits, group_size, w.shape[-1])
        Scheme(fmt.bits, symmetric, integral_zero)
        method, w = quantize.check_method(method), w.detach()
        first = torch.float32 if scale_dtype is None else quantize.check_scale_dtype(scale_dtype)
        packed, scales, zeros = torch.ops.lowbit.quantize(w, fmt.bits, fmt.group_size, method, first, symmetric, integral_zero)
        if scale_dtype is None and (not packing.has_values(w) or not quantize.prefers_float32(w, scales, zeros, fmt)):
            scales, zeros = quantize.rounded(scales, zeros, torch.float16, Scheme(fmt.bits, symmetric, integral_zero))
            packed = torch.ops.lowbit.encode(w, scales, zeros, fmt.bits, fmt.group_size)
        return cls(packed, scales, zeros, fmt.bits, fmt.group_size, fmt.in_features, w.dtype)

    @classmethod
    def from_codes(
        cls, codes: Tensor, scales: Tensor, zeros: Tensor, *, bits: int, group_size: int, dtype: torch.dtype | None = None
    ) -> LowBitWeightTensor:
        """Wraps integer codes `[..., N, K]` and parameters `[..., N, ceil(K / group_size)]`; `dtype=None` takes the scales'.

        Raises TypeError or ValueError for codes out of range, shapes that disagree and parameters that are not finite.
        """
        for name, part in (("codes", codes), ("scales", scales), ("zeros", zeros)):
            if not isinstance(part, Tensor):
                raise TypeError(f"from_codes: expected a tensor of {name}, got {type(part).__name__}")
        if codes.dim() < 2:
            raise ValueError(f"from_codes: expected codes [..., N, K], got {list(codes.shape)}")
        fmt = Format(bits, group_size, codes.shape[-1])
        packed = packing.pack(codes, fmt.bits)
        check_weight("from_codes", packed, scales, zeros, fmt.bits, fmt.group_size, fmt.in_features)
        check_parameters("from_codes", scales, zeros)
        return cls(packed, scales, zeros, fmt.bits, fmt.group_size, fmt.in_features, dtype or scales.dtype)

    def _replace(self, **fields: Any) -> LowBitWeightTensor:
        """Another one with some fields replaced; `dtype` and `requires_grad` (False unless given) count as fields."""
        own = {name: getattr(self, name) for name in ("packed", "scales", "zeros", "bits", "group_size", "in_features", "transposed")}
        other = type(self)(**({"dtype": self.dtype} | own | fields))
        other._derived = True
        if self._role == "buffer":
            other._role = "buffer"
        return other

    # Reading it

    @property
    def _is_param(self) -> bool:
        """Whether `isinstance(t, torch.nn.Parameter)`, so that `linear.weight = t` is taken: all but views and buffers are."""
        return self._role == "weight" and not getattr(self, "_is_buffer", False)

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        self._is_buffer, self._origin, self._role = False, None, "weight" if value else "view"

    @property
    def format(self) -> Format:
        """Bits, group size and row length."""
        return Format(self.bits, self.group_size, self.in_features)

    def codes(self) -> Tensor:
        """uint8 codes in the logical shape."""
        codes = torch.ops.lowbit.unpack(self.packed, self.bits, self.in_features)
        return codes.mT if self.transposed else codes

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """A plain tensor in the logical shape, of `dtype` (None: the tensor's own): `scale * code + zero` in float32, rounded once."""
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"dequantize: expected a torch.dtype or None, got {dtype!r}")
        w = torch.ops.lowbit.dequantize(
            self.packed, self.scales, self.zeros, self.bits, self.group_size, self.in_features, dtype or self.dtype
        )
        return w.mT if self.transposed else w

    def data_ptr(self) -> int:
        """The address of the packed codes; a wrapper has none of its own."""
        return self.packed.data_ptr()

    def storage(self) -> Any:
        """Refused: a wrapper has none. This is what `safetensors.torch.save_file` asks for last, so the message names ours."""
        raise RuntimeError(
            "a LowBitWeightTensor has no storage of its own: expected its packed, scales or zeros; "
            "lowbit_tensor.save_file writes it to safetensors, torch.save to a checkpoint"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"LowBitWeightTensor(shape={tuple(self.shape)}, bits={self.bits}, group_size={self.group_size}, dtype={self.dtype}, "
            f"scale_dtype={self.scales.dtype}, device={str(self.device)!r}{', transposed' if self.transposed else ''})"
        )

    # Moving it between processes and files

    def share_memory_(self) -> LowBitWeightTensor:
        """Moves the inner tensors to shared memory."""
        for name in INNER:
            getattr(self, name).share_memory_()
        return self

    def is_shared(self) -> bool:
        """Whether the inner tensors lie in shared memory."""
        return all(getattr(self, name).is_shared() for name in INNER)

    def __deepcopy__(self, memo: dict[int, Any]) -> LowBitWeightTensor:
        if id(self) in memo:
            return memo[id(self)]
        inner = {name: getattr(self, name).detach().clone().requires_grad_(getattr(self, name).requires_grad) for name in INNER}
        memo[id(self)] = copy = self._replace(**inner, requires_grad=self.requires_grad)
        if self.grad is not None:
            copy.grad = self.grad.clone()
        return copy

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if self.transposed:
            raise NotImplementedError("a transposed LowBitWeightTensor is a view and is not saved: expected w, got w.t(); save w")
        inner = (self.packed, self.scales, self.zeros)
        return rebuild, (FORMAT_VERSION, *inner, self.bits, self.group_size, tuple(self.shape), self.dtype, self.requires_grad)

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Any, ...]]:
        if (self.scales.requires_grad or self.zeros.requires_grad) and torch.is_grad_enabled():
            warnings.warn(UNTRAINED, stacklevel=2)
        return list(INNER), (self.bits, self.group_size, self.in_features, self.dtype, self.transposed, self.requires_grad)

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: tuple[Any, ...], size: Any, stride: Any) -> LowBitWeightTensor:
        return cls(inner["packed"], inner["scales"], inner["zeros"], *context)

    def _stable_hash_for_caching(self) -> str:
        """What `torch.compile` keys its cache with: layout, dtypes and devices, no values."""
        inner = [(tuple(t.shape), t.stride(), str(t.dtype), str(t.device), t.requires_grad) for t in (self.packed, self.scales, self.zeros)]
        return repr((type(self).__qualname__, FORMAT_VERSION, inner, self.__tensor_flatten__()[1]))

    # What an op means

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = FUNCTIONS.get(func)
        if handler is not None and not (is_exporting() and any(getattr(a, "_derived", False) for a in (*args, *(kwargs or {}).values()))):
            return handler(*args, **(kwargs or {}))  # an exported graph knows the parts of its inputs only: the rest it sees as ops of aten
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        handler = OPERATORS.get(func)
        if handler is not None:
            if not torch.is_grad_enabled():
                return handler(func, *args, **(kwargs or {}))
            with torch.overrides.enable_reentrant_dispatch():  # above autograd again: gradients reach scales and zeros through views too
                return handler(func, *args, **(kwargs or {}))
        parts = func.decompose(*args, **(kwargs or {}))  # what inference mode shows whole and grad mode in parts
        if parts is not NotImplemented:
            return parts
        raise NotImplementedError(
            f"{func} is not defined on a LowBitWeightTensor: expected an op of docs/api.md, section 4; use w.dequantize()"
        )


INNER = ("packed", "scales", "zeros")
UNTRAINED = (
    "lowbit_tensor: scales and zeros that require a gradient get none under torch.compile and torch.export; train them in eager mode"
)


def rebuild(
    version: int,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bits: int,
    group_size: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    requires_grad: bool,
) -> LowBitWeightTensor:
    """What a pickle calls. Raises TypeError or ValueError for parts that do not make a weight of `shape`, before any op reads them."""
    if type(version) is not int or version != FORMAT_VERSION:
        raise ValueError(f"LowBitWeightTensor: expected format version {FORMAT_VERSION}, got {version!r}")
    if (
        not all(type(t) in (Tensor, torch.nn.Parameter, FakeTensor) for t in (packed, scales, zeros))
        or type(shape) is not tuple
        or not shape
    ):
        raise TypeError("LowBitWeightTensor: expected three plain tensors and a shape")
    if type(requires_grad) is not bool or any(t.nbytes > t.untyped_storage().nbytes() for t in (packed, scales, zeros)):
        raise ValueError("LowBitWeightTensor: expected parts with bytes of their own and requires_grad True or False")
    fmt = Format(bits, group_size, shape[-1])
    if group_size == -1 or tuple(packed.shape) != (*shape[:-1], fmt.row_bytes):
        raise ValueError(
            f"LowBitWeightTensor: expected packed {[*shape[:-1], fmt.row_bytes]} for a weight {list(shape)} of {fmt}, "
            f"got {list(packed.shape)}"
        )
    w = LowBitWeightTensor(packed, scales, zeros, fmt.bits, fmt.group_size, fmt.in_features, dtype, False, requires_grad)
    check_parameters("LowBitWeightTensor", scales, zeros)
    packing.check_spare_bits(packed, fmt.bits, fmt.in_features)
    return w


torch.serialization.add_safe_globals([rebuild])
