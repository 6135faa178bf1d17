"""`LowBitConfig`: how a model is quantized, which rule holds for which module, and its JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from .format import check_bits, check_group_size
from .quantize import DEFAULT_METHOD, SCALE_DTYPES, check_method, check_scale_dtype
from .quantize.scheme import Scheme


@dataclass(frozen=True)
class LowBitConfig:
    """How Linear layers (and, if asked, Embeddings) are quantized; docs/api.md, section 5.

    Raises TypeError for a value of another kind and ValueError for one out of range, when it is made.
    """

    bits: int
    group_size: int = 64
    method: str = DEFAULT_METHOD
    scale_dtype: torch.dtype | None = None
    symmetric: bool = False
    integral_zero: bool = False
    activation: None = None
    embeddings: bool = False
    modules: Mapping[str, LowBitConfig | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def set_(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        set_("bits", check_bits(self.bits))
        set_("group_size", check_group_size(self.group_size))
        check_method(self.method)
        if self.scale_dtype is not None:
            set_("scale_dtype", check_scale_dtype(_dtype(self.scale_dtype)))
        if not isinstance(self.embeddings, bool):
            raise TypeError(f"embeddings: expected True or False, got {self.embeddings!r}")
        Scheme(self.bits, self.symmetric, self.integral_zero)
        if self.activation is not None:
            raise ValueError(f"activation: expected None (activations are kept exact), got {self.activation!r}")
        if not isinstance(self.modules, Mapping):
            raise TypeError(f"modules: expected {{pattern: LowBitConfig or None}}, got {type(self.modules).__name__}")
        set_("modules", {_pattern(pattern): _rule(pattern, rule) for pattern, rule in self.modules.items()})

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values that `from_json` takes back."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["scale_dtype"] = None if self.scale_dtype is None else str(self.scale_dtype).removeprefix("torch.")
        plain["modules"] = {pattern: None if rule is None else rule.to_json() for pattern, rule in self.modules.items()}
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> LowBitConfig:
        """From `to_json`'s dict, or such a dict as a JSON string. Raises ValueError for unknown fields and for text that is no JSON."""
        if isinstance(data, str):
            text = data
            try:
                data = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"config: expected a JSON object, got {text[:60]!r}: {error}") from None
        if not isinstance(data, Mapping):
            raise ValueError(f"config: expected a JSON object, got {type(data).__name__}")
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(data) - set(known)):
            raise ValueError(f"config: expected the fields {', '.join(known)}, got {', '.join(map(repr, unknown))}")
        if "bits" not in data:
            raise ValueError("config: expected a field bits, got none")
        values = dict(data)
        if isinstance(modules := values.get("modules", {}), Mapping):
            if deep := [p for p, rule in modules.items() if isinstance(rule, Mapping) and rule.get("modules")]:
                raise ValueError(f"modules[{deep[0]!r}]: expected a LowBitConfig without modules of its own")
            values["modules"] = {p: None if rule is None else cls.from_json(rule) for p, rule in modules.items()}
        return cls(**values)

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    @property
    def default(self) -> LowBitConfig:
        """The same settings without rules: what holds where no pattern matches."""
        return LowBitConfig(**{f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("modules", "embeddings")})


class NoRule:
    """What `Rules.find` returns where no pattern matches."""


NO_RULE = NoRule()


class Rules:
    """The patterns of a config, held against the names of a model's modules.

    Raises ValueError, when it is made, for two patterns that tie on one name and, with `strict`, for one that matches no name.
    """

    def __init__(self, config: LowBitConfig, names: Iterable[str], *, strict: bool = True) -> None:
        self._rules = config.modules
        names = list(names)
        used = {pattern for name in names for pattern in self._matches(name)}
        if strict and (unused := [pattern for pattern in self._rules if pattern not in used]):
            raise ValueError(f"modules: expected patterns that match a module, got {', '.join(map(repr, unused))}, which match none")
        self._found = {name: self._decide(name) for name in names}

    def find(self, name: str) -> tuple[LowBitConfig | NoRule | None, bool]:
        """(rule, whether the pattern names the module itself rather than a container of it); (NO_RULE, False) where none matches."""
        pattern = self._found[name]
        return (NO_RULE, False) if pattern is None else (self._rules[pattern], self._matches(name)[pattern][0] == _depth(name))

    def _matches(self, name: str) -> dict[str, tuple[int, int]]:
        """{pattern: (depth of what it matches, kind)} for `name` and its containers; kinds 2 full, 1 suffix, 0 regular expression."""
        found = {}
        parts = name.split(".")
        for pattern in self._rules:
            if pattern.startswith("re:"):
                if re.fullmatch(pattern[3:], name):
                    found[pattern] = (len(parts), 0)
                continue
            for depth in range(len(parts), 0, -1):
                prefix = ".".join(parts[:depth])
                if prefix == pattern or prefix.endswith("." + pattern):
                    found[pattern] = (depth, 2 if prefix == pattern else 1)
                    break
        return found

    def _decide(self, name: str) -> str | None:
        matches = self._matches(name)
        if not matches:
            return None
        best = max(matches.values())
        winners = [pattern for pattern, rank in matches.items() if rank == best]
        if len(winners) > 1:
            raise ValueError(f"modules: expected one pattern for {name!r}, got {' and '.join(map(repr, winners))}, which tie")
        return winners[0]


def _depth(name: str) -> int:
    return name.count(".") + 1


def _dtype(value: Any) -> torch.dtype:
    """A dtype, or its name with or without `torch.`."""
    if isinstance(value, str):
        names = {str(d).removeprefix("torch."): d for d in SCALE_DTYPES}
        if value.removeprefix("torch.") in names:
            return names[value.removeprefix("torch.")]
    return check_scale_dtype(value)


def _pattern(pattern: Any) -> str:
    if not isinstance(pattern, str) or not pattern:
        raise TypeError(f"modules: expected patterns as strings that are not empty, got {pattern!r}")
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            raise ValueError(f"modules: expected a regular expression after 're:', got {pattern!r}: {error}") from None
    return pattern


def _rule(pattern: str, rule: Any) -> LowBitConfig | None:
    if rule is not None and not isinstance(rule, LowBitConfig):
        raise TypeError(f"modules[{pattern!r}]: expected a LowBitConfig or None, got {type(rule).__name__}")
    if rule is not None and rule.modules:
        raise ValueError(f"modules[{pattern!r}]: expected a LowBitConfig without modules of its own")
    return rule
