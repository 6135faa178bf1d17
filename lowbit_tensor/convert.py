"""`quantize_` and `dequantize_`: a whole model in place, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from . import quantize
from .config import NO_RULE, LowBitConfig, Rules
from .report import QuantizationReport, QuantizedLayer, SkippedLayer
from .tensor import DTYPES, LowBitWeightTensor, packed_nbytes

Progress = Callable[[str, int, int], None]
HEADS = ("lm_head", "embed_out")  # output heads wherever they stand
HEADS_OF_VOCABULARY = ("output", "head")  # output heads where they have a row for each row of an embedding


@dataclass(frozen=True)
class _Task:
    """One layer to be quantized; `weight_id` tells tied weights, `note` what the report says of them."""

    name: str
    module: nn.Module
    config: LowBitConfig
    weight_id: int
    note: str = ""


def quantize_(model: nn.Module, config: LowBitConfig, *, progress: Progress | None = None) -> QuantizationReport:
    """Replaces the weights of Linear layers (and, if asked, Embeddings) by low-bit ones; docs/api.md, section 5, has the rules.

    Every float weight is freed as soon as its low-bit one is in place. `progress(name, done, total)` is called before each layer.
    Raises TypeError or ValueError, before anything is changed, for rules that do not fit the model and weights that are not finite.
    """
    if not isinstance(model, nn.Module) or not isinstance(config, LowBitConfig):
        raise TypeError(f"quantize_: expected a torch.nn.Module and a LowBitConfig, got {type(model).__name__} and {type(config).__name__}")
    tasks, skipped = _plan(model, config)
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
    done: dict[int, tuple[LowBitWeightTensor, nn.Parameter]] = {}
    names = []
    for prefix, module in model.named_modules():
        for name, weight in list(module._parameters.items()):
            if isinstance(weight, LowBitWeightTensor):
                if id(weight) not in done:
                    with torch.no_grad():
                        done[id(weight)] = weight, nn.Parameter(weight.dequantize(dtype))
                module._parameters[name] = done[id(weight)][1]
                names.append(f"{prefix}.{name}".lstrip("."))
    return names


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """The scales and zeros of a model's low-bit weights, as leaves that an optimizer can take; all else is frozen.

    Returns `{NAME.scales: tensor, NAME.zeros: tensor}`. Call it after moving the model: a move makes new tensors.
    """
    model.requires_grad_(False)
    weights = {name: p for name, p in model.named_parameters() if isinstance(p, LowBitWeightTensor)}
    return {f"{name}.{part}": getattr(w, part).requires_grad_() for name, w in weights.items() for part in ("scales", "zeros")}


def model_size(model: nn.Module) -> tuple[int, int]:
    """(bytes, parameters) of a model's parameters, low-bit ones as packed, tied ones once."""
    weights = list(model.parameters())
    return sum(map(packed_nbytes, weights)), sum(w.numel() for w in weights)


def layer_configs(model: nn.Module, config: LowBitConfig) -> dict[str, LowBitConfig]:
    """{module name: settings} that `quantize_` would use, without changing anything."""
    return {task.name: task.config for task in _plan(model, config)[0]}


def _plan(model: nn.Module, config: LowBitConfig) -> tuple[list[_Task], list[SkippedLayer]]:
    """What to quantize and what to leave, decided on names, kinds and ties alone."""
    layers: dict[str, nn.Module] = {
        name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, (nn.Linear, nn.Embedding))
    }
    rules = Rules(config, layers)
    heads = set(_heads(model, layers))
    embeddings = {id(_weight(m)): name for name, m in layers.items() if isinstance(m, nn.Embedding) and _weight(m) is not None}
    tasks: list[_Task] = []
    skipped: list[SkippedLayer] = []
    chosen: dict[int, _Task] = {}  # embeddings to be quantized, by their weight
    for name, module in sorted(layers.items(), key=lambda item: not isinstance(item[1], nn.Embedding)):
        rule, named = rules.find(name)
        weight = _weight(module)
        tied = embeddings.get(id(weight)) if isinstance(module, nn.Linear) and weight is not None else None
        special = isinstance(module, nn.Embedding) or tied is not None or name in heads
        note, choice = "", rule if rule is not NO_RULE and (named or not special) else NO_RULE
        if choice is NO_RULE:
            if tied is not None and id(weight) in chosen:
                choice, note = chosen[id(weight)].config, f"tied to {tied}"
            elif not special or (isinstance(module, nn.Embedding) and config.embeddings):
                choice = config.default
        elif tied is not None and choice is not None and choice == (chosen[id(weight)].config if id(weight) in chosen else None):
            note = f"tied to {tied}"
        elif tied is not None and choice is not None:
            note = f"no longer tied to {tied}"
        reason = _unfit(module)
        if reason is None and choice is NO_RULE:
            reason = f"tied to the embedding {tied}" if tied else "output head" if name in heads else "embedding (embeddings=False)"
        if reason is None and choice is None:
            reason = "left float by a rule"
        if reason is not None or not isinstance(choice, LowBitConfig):
            skipped.append(SkippedLayer(name, type(module).__name__, _shape(module), reason or ""))
            continue
        task = _Task(name, module, choice, id(weight), note)
        tasks.append(task)
        if isinstance(module, nn.Embedding):
            chosen.setdefault(id(weight), task)
    order = {name: i for i, name in enumerate(layers)}
    tasks.sort(key=lambda task: order[task.name])
    for name, module in model.named_modules():
        if name not in layers and (own := [p for p in module._parameters.values() if p is not None]):
            kind = type(module).__name__
            skipped.append(SkippedLayer(name, kind, tuple(own[0].shape), "not a Linear or Embedding"))
    return tasks, skipped


def _heads(model: nn.Module, layers: dict[str, nn.Module]) -> Iterator[str]:
    """Names of output heads: what the model says, and what is called one."""
    own = None
    if callable(get := getattr(model, "get_output_embeddings", None)):
        own = get()
    vocabularies = {m.num_embeddings for m in layers.values() if isinstance(m, nn.Embedding)}
    for name, module in layers.items():
        last = name.rpartition(".")[2]
        named = last in HEADS or (last in HEADS_OF_VOCABULARY and getattr(module, "out_features", None) in vocabularies)
        if isinstance(module, nn.Linear) and (module is own or named):
            yield name


def _unfit(module: nn.Module) -> str | None:
    """Why a Linear or Embedding cannot be quantized, or None."""
    weight = _weight(module)
    if weight is None:
        return "its weight is computed by a parametrization"
    if isinstance(weight, LowBitWeightTensor):
        return "already low-bit"
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "its weight has no shape yet: run the model once"
    if weight.dtype not in DTYPES or type(weight) not in (nn.Parameter, Tensor):
        return f"its weight is a {type(weight).__name__} of {weight.dtype}"
    if weight.dim() != 2 or not weight.numel():
        return "its weight is empty" if weight.dim() == 2 else "its weight has not 2 dimensions"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "max_norm rewrites rows of the weight"
    return None


def _weight(module: nn.Module) -> Tensor | None:
    return module._parameters.get("weight")


def _shape(module: nn.Module) -> tuple[int, ...]:
    weight = _weight(module)
    return () if weight is None or isinstance(weight, nn.parameter.UninitializedParameter) else tuple(weight.shape)


def _check_weight(task: _Task) -> None:
    """Raises ValueError for what would fail halfway: weights that are not finite, parameters beyond the scale dtype asked for."""
    weight = _weight(task.module)
    assert weight is not None  # planned with one
    if weight.is_meta:
        return
    weight = weight.detach()
    quantize.check_finite(weight, f"{task.name}.weight")
    if task.config.scale_dtype is not None and weight.abs().max() > torch.finfo(task.config.scale_dtype).max / 4:
        try:
            _from_float(weight, task.config)
        except ValueError as error:
            raise ValueError(f"{task.name}.weight: {error}") from None


def _from_float(weight: Tensor, c: LowBitConfig) -> LowBitWeightTensor:
    return LowBitWeightTensor.from_float(weight, c.bits, c.group_size, c.method, c.scale_dtype, c.symmetric, c.integral_zero)


def _quantize_layer(task: _Task, done: dict[tuple[int, LowBitConfig], LowBitWeightTensor]) -> QuantizedLayer:
    """Puts the low-bit weight in place: the one of `done` where the weight is tied and its settings are the same."""
    source = _weight(task.module)
    assert source is not None
    key = (task.weight_id, replace(task.config, modules={}))
    w = done.get(key)
    error = None
    if w is None:
        source = source.detach()
        w = done[key] = _from_float(source, task.config)
        if not w.is_meta:
            norm = torch.linalg.vector_norm(source, dtype=torch.float64).item()
            error = quantize.total_error(source, w.scales, w.zeros, w.format).sqrt().item() / norm if norm else 0.0
    task.module.weight = w
    return QuantizedLayer(
        task.name, type(task.module).__name__, tuple(w.shape), task.config, w.group_size, str(w.scales.dtype).removeprefix("torch."),
        packed_nbytes(w), source.nbytes, error, task.note,
    )  # fmt: skip
