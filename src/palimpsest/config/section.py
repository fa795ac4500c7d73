"""Base class of all configuration sections; their keys and values, and changed copies."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from palimpsest.plugin_kinds import KINDS, fault_of

T = TypeVar("T")

MAX_WAIT_S = 604_800
"""A week: the most that a time limit may be. Clocks of sockets, threads and collectives overflow far above it."""
MIN_REPLY_S = 0.05
"""The least that a time limit of a reply may be: below it no reply over a network comes in time."""


class Strict(BaseModel):
    """Frozen; rejects unknown keys, non-finite numbers, and booleans as numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        listed = isinstance(value, list | tuple)
        truths = any(isinstance(item, bool) for item in value) if listed else isinstance(value, bool)
        if truths and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and bool not in kinds:
                raise PydanticCustomError("truth", f"must be {'numbers' if listed else 'a number'}, not true or false")
        return value

    def changed(self) -> list[str]:
        """Names of the keys whose value is not their default, in the order of the section."""
        fields = type(self).model_fields.items()
        return [name for name, field in fields if getattr(self, name) != field.get_default(call_default_factory=True)]


def _kinds(annotation: Any) -> set[Any]:
    """The annotation and all types nested in it.

    >>> int in _kinds(tuple[int, ...] | None)
    True
    """
    arguments = typing.get_args(annotation) if typing.get_origin(annotation) is not typing.Literal else ()
    return {annotation}.union(*map(_kinds, arguments))


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and plain values; lists and empty dictionaries are values.

    >>> dict(leaves({"data": {"limit": 4, "columns": {}}, "weights": "w"}))
    {'data.limit': 4, 'data.columns': {}, 'weights': 'w'}
    >>> dict(leaves({})), dict(leaves({7: {8: 0}}))
    ({}, {'7.8': 0})
    """
    if isinstance(value, dict) and (value or not key):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def check_name(kind: str, name: str, key: str | None = None) -> str:
    """Return `name` if it is shipped or has the form of a reference; imports nothing. Raises ValueError.

    >>> check_name("rule", "my_module:mine"), check_name("rule", "mean")
    ('my_module:mine', 'mean')
    """
    if name not in KINDS[kind].shipped and (fault := fault_of(kind, name)):
        raise ValueError(f"{key or KINDS[kind].key}={name!r}: {fault}")
    return name


def with_keys(config: T, keys: Mapping[str, Any]) -> T:
    """A configuration or section with changed values, unchecked.

    >>> from palimpsest.config.schema import RunConfig
    >>> with_keys(RunConfig(), {"model.lora.rank": 4}).model.lora.rank
    4
    """
    changed: Any = config
    for key, value in keys.items():
        name, _, rest = key.partition(".")
        if rest:
            held = changed[name] if isinstance(changed, dict) else getattr(changed, name)
            section = section_in(type(changed).model_fields[name].annotation) if held is None else None
            value = with_keys(section() if section else held, {rest: value})
        value = tuple(value) if isinstance(value, list) else value
        changed = {**changed, name: value} if isinstance(changed, dict) else changed.model_copy(update={name: value})
    return changed  # type: ignore[no-any-return]


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section's class of `Section` or `Section | None`; of a union of sections by name, the first."""
    return next(iter(sections_in(annotation)), None)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Every section that an annotation allows: `engine` has other keys by its name.

    >>> from palimpsest.config.schema import RunConfig
    >>> [len(sections_in(RunConfig.model_fields[name].annotation)) for name in ("recipe", "train", "engine")]
    [0, 1, 4]
    """
    members = members_of(annotation)
    options = [typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind for kind in members]
    return [kind for kind in options if isinstance(kind, type) and issubclass(kind, BaseModel)]


def members_of(annotation: Any) -> tuple[Any, ...]:
    """Members of a union; otherwise only the annotation."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)
