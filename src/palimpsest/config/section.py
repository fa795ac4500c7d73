"""Base class of all configuration sections; keys and values as pairs."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

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
