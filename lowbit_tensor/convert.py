"""`quantize_` and `dequantize_`: a whole model in place, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from . import quantize
from .config import LowBitConfig
from .packing import has_values
from .plan import Task, plan, weight_of
from .report import QuantizationReport, QuantizedLayer, packed_nbytes
from .tensor import LowBitWeightTensor

Progress = Callable[[str, int, int], None]


def quantize_(model: nn.Module, config: LowBitConfig, *, progress: Progress | None = None) -> QuantizationReport:
    """Replaces the weights of Linear layers (and, if asked, Embeddings) by low-bit ones; docs/api.md, section 5, has the rules.

    Every float weight is freed as soon as its low-bit one is in place. `progress(name, done, total)` is called before each layer.
    Raises TypeError or ValueError, before anything is changed, for rules that do not fit the model and weights that are not finite.
    """
    if not isinstance(model, nn.Module) or not isinstance(config, LowBitConfig):
        raise TypeError(f"quantize_: expected a torch.nn.Module and a LowBitConfig, got {type(model).__name__} and {type(config).__name__}")
    tasks, skipped = plan(model, config)
    for task in tasks:
        _check_weight(task)
    done: dict[tuple[int, LowBitConfig], LowBitWeightTensor] = {}
    quantized = []
    for i, task in enumerate(tasks):
        if progress is not None:
            progress(task.name, i, len(tasks))
        quantized.append(_quantize_layer(task, done))
    return QuantizationReport(quantized, skipped, *model_size(model))


def dequantize_(model: nn.Module, dtype: torch.dtype | None = None) -> list[str]:
    """Replaces every low-bit weight by a float `nn.Parameter` of `dtype` (None: the weight's own); returns their names.

    Tied weights stay tied. Takes the memory of one layer at a time beside the result.
    """
    _check_module("dequantize_", model)
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    names = []
    for prefix, module in model.named_modules():
        for name, weight in module._parameters.items():
            if isinstance(weight, LowBitWeightTensor):
                places.setdefault(id(weight), []).append((module, name))
                names.append(f"{prefix}.{name}".lstrip("."))
    for tied in places.values():
        module, name = tied[0]
        with torch.no_grad():
            plain = nn.Parameter(module._parameters[name].dequantize(dtype))  # type: ignore[union-attr,call-arg]
        for module, name in tied:
            module._parameters[name] = plain
    return names


def trainable_parameters(model: nn.Module, dtype: torch.dtype | None = torch.float32) -> dict[str, Tensor]:
    """The scales and zeros of a model's low-bit weights, as leaves that an optimizer can take; all else is frozen.

    They become float32, which changes no value: in 16 bits small steps are lost and Adam's epsilon vanishes. `dtype=None` leaves them
    as they are. Returns `{NAME.scales: tensor, NAME.zeros: tensor}`; `model.to(...)` keeps them. They are no parameters of the model:
    clear their gradients through the optimizer. They get gradients in eager mode; a compiled model gives them none.
    """
    _check_module("trainable_parameters", model)
    if dtype is not None:
        quantize.check_scale_dtype(dtype)
    model.requires_grad_(False)
    weights = {name: p for name, p in model.named_parameters() if isinstance(p, LowBitWeightTensor)}
    for w in weights.values():
        for part in ("scales", "zeros"):
            setattr(w, part, getattr(w, part).to(dtype or getattr(w, part).dtype).requires_grad_())
    return {f"{name}.{part}": getattr(w, part) for name, w in weights.items() for part in ("scales", "zeros")}


def model_size(model: nn.Module) -> tuple[int, int]:
    """(bytes, parameters) of a model's parameters, low-bit ones as packed, tied ones once."""
    weights = [w for w in model.parameters() if not isinstance(w, nn.parameter.UninitializedParameter)]
    return sum(map(packed_nbytes, weights)), sum(w.numel() for w in weights)


def layer_configs(model: nn.Module, config: LowBitConfig) -> dict[str, LowBitConfig]:
    """{module name: settings} that `quantize_` would use, without changing anything."""
    return {task.name: task.config for task in plan(model, config)[0]}


def _check_module(where: str, model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{where}: expected a torch.nn.Module, got {type(model).__name__}")


def _check_weight(task: Task) -> None:
    """Raises ValueError for what would fail halfway: weights that are not finite, parameters beyond the scale dtype asked for."""
    weight = weight_of(task.module)
    assert weight is not None  # planned with one
    if not has_values(weight):
        return
    weight = weight.detach()
    quantize.check_finite(weight, f"{task.name}.weight")
    if task.config.scale_dtype == torch.float16 and quantize.largest(weight) > torch.finfo(torch.float16).max / 4:
        try:
            _from_float(weight, task.config)
        except ValueError as error:
            raise ValueError(f"{task.name}.weight: {error}") from None


def _from_float(weight: Tensor, c: LowBitConfig) -> LowBitWeightTensor:
    return LowBitWeightTensor.from_float(weight, c.bits, c.group_size, c.method, c.scale_dtype, c.symmetric, c.integral_zero)


def _quantize_layer(task: Task, done: dict[tuple[int, LowBitConfig], LowBitWeightTensor]) -> QuantizedLayer:
    """Puts the low-bit weight in place: the one of `done` where the weight is tied and its settings are the same."""
    source = weight_of(task.module)
    assert source is not None
    key = (task.weight_id, replace(task.config, modules={}))
    w = done.get(key)
    error = None
    if w is None:
        source = source.detach()
        w = done[key] = _from_float(source, task.config)
        if has_values(w.packed):
            norm = torch.linalg.vector_norm(source, dtype=torch.float64).item()
            error = math.sqrt(quantize.total_error(source, w.scales, w.zeros, w.format)) / norm if norm else 0.0
    task.module.weight = w
    return QuantizedLayer(
        task.name, type(task.module).__name__, tuple(w.shape), task.config, w.group_size, str(w.scales.dtype).removeprefix("torch."),
        packed_nbytes(w), source.nbytes, error, task.note,
    )  # fmt: skip
