"""Which layers of a model a config quantizes, and how: decided on names, kinds and ties alone (docs/api.md, section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from .config import NO_RULE, LowBitConfig, NoRule, Rules
from .report import SkippedLayer
from .tensor import DTYPES, LowBitWeightTensor

HEADS = ("lm_head", "embed_out")  # output heads wherever they stand
HEADS_OF_VOCABULARY = ("output", "head")  # output heads where they have a row for each row of an embedding


@dataclass(frozen=True)
class Task:
    """One layer to be quantized; `weight_id` tells tied weights, `note` what the report says of them."""

    name: str
    module: nn.Module
    config: LowBitConfig
    weight_id: int
    note: str = ""


def plan(model: nn.Module, config: LowBitConfig) -> tuple[list[Task], list[SkippedLayer]]:
    """What to quantize, in the model's order, and what to leave. Raises ValueError for rules that do not fit the model."""
    names = _names(model)
    modules = dict(model.named_modules())
    rules = Rules(config, [name for all_names in names.values() for name in all_names])
    planner = _Planner(model, config, {name: modules[name] for name in names})
    for name in sorted(names, key=lambda name: not isinstance(modules[name], nn.Embedding)):  # ties follow their embedding
        planner.decide(name, *_one_rule(rules, names[name]))
    order = list(names)
    tasks = sorted(planner.tasks, key=lambda task: order.index(task.name))
    skipped = sorted(planner.skipped, key=lambda layer: order.index(layer.name))
    for name, module in modules.items():
        if name not in names and (own := [p for p in module._parameters.values() if p is not None]):
            skipped.append(SkippedLayer(name, type(module).__name__, _shape(own[0]), "not a Linear or Embedding"))
    return tasks, skipped


def weight_of(module: nn.Module) -> Tensor | None:
    """A layer's own weight, or None where a parametrization computes it."""
    return module._parameters.get("weight")


class _Planner:
    """Collects tasks and skipped layers, one decision at a time, embeddings first."""

    def __init__(self, model: nn.Module, config: LowBitConfig, layers: dict[str, nn.Module]) -> None:
        self.config, self.layers = config, layers
        self.heads = set(_heads(model, layers))
        self.embeddings = {id(weight_of(m)): n for n, m in layers.items() if isinstance(m, nn.Embedding) and weight_of(m) is not None}
        self.chosen: dict[int, LowBitConfig] = {}  # of embeddings to be quantized, by their weight
        self.tasks: list[Task] = []
        self.skipped: list[SkippedLayer] = []

    def decide(self, name: str, rule: LowBitConfig | NoRule | None, named: bool) -> None:
        """Takes one layer into the plan: `rule` is what the patterns say, `named` whether one names the layer itself."""
        module = self.layers[name]
        weight = weight_of(module)
        tied = self.embeddings.get(id(weight)) if isinstance(module, nn.Linear) else None
        special = isinstance(module, nn.Embedding) or tied is not None or name in self.heads
        if isinstance(rule, NoRule) or (special and not named):
            rule = self._without_rule(module, special)
        reason = _unfit(module) or self._reason(name, rule, tied)
        if reason is not None or not isinstance(rule, LowBitConfig):
            self.skipped.append(SkippedLayer(name, type(module).__name__, _shape(weight), reason or ""))
            return
        note = "" if tied is None else f"tied to {tied}" if self.chosen.get(id(weight)) == rule else f"no longer tied to {tied}"
        self.tasks.append(Task(name, module, rule, id(weight), note))
        if isinstance(module, nn.Embedding):
            self.chosen.setdefault(id(weight), rule)

    def _without_rule(self, module: nn.Module, special: bool) -> LowBitConfig | NoRule:
        """The config of a layer that no pattern names: a tied Linear follows its embedding, heads and embeddings stay float."""
        if isinstance(module, nn.Linear) and id(weight_of(module)) in self.chosen:
            return self.chosen[id(weight_of(module))]
        takes = not special or (isinstance(module, nn.Embedding) and self.config.embeddings)
        return self.config.default if takes else NO_RULE

    def _reason(self, name: str, rule: LowBitConfig | NoRule | None, tied: str | None) -> str | None:
        if rule is None:
            return "left float by a rule"
        if isinstance(rule, LowBitConfig):
            return None
        return f"tied to the embedding {tied}" if tied else "output head" if name in self.heads else "embedding (embeddings=False)"


def _names(model: nn.Module) -> dict[str, list[str]]:
    """{first name: all names} of the Linear and Embedding layers: one module can stand in several places."""
    by_module: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            by_module.setdefault(id(module), []).append(name)
    return {names[0]: names for names in by_module.values()}


def _one_rule(rules: Rules, names: list[str]) -> tuple[LowBitConfig | NoRule | None, bool]:
    """What the patterns say of a module by all its names."""
    first = rules.find(names[0])
    for other in names[1:]:
        if rules.find(other) != first:
            raise ValueError(f"modules: {names[0]!r} and {other!r} are one module: expected one rule for both")
    return first


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
    weight = weight_of(module)
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


def _shape(weight: Tensor | None) -> tuple[int, ...]:
    return () if weight is None or isinstance(weight, nn.parameter.UninitializedParameter) else tuple(weight.shape)
