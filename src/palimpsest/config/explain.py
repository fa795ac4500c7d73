"""A pydantic validation error as lines a person can act on: key, value, what is allowed."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from palimpsest.config.engine import OWN
from palimpsest.config.schema import RunConfig
from palimpsest.errors import nearest

_SHOWN = 80  # characters of a wrong value in a message


def explain(error: ValidationError, *, source: str, overrides: Mapping[str, str]) -> str:
    """One line per problem. `overrides` maps dotted keys to the command-line text that set them."""
    lines = []
    for detail in error.errors(include_url=False):
        key = ".".join(map(str, _without_tag(detail["loc"])))
        name = _blamed(key, overrides)
        origin = f"override {overrides[name]}" if name else f"recipe {source}"
        lines.append(f"{origin}: {_reason(key, detail, name)}")
    return "\n".join(dict.fromkeys(lines))


def _without_tag(where: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The key's parts; pydantic names the kind of engine among them.

    >>> _without_tag(("engine", "embedded", "threads")), _without_tag(("train", "steps"))
    (('engine', 'threads'), ('train', 'steps'))
    """
    return where[:1] + where[2:] if where[:1] == ("engine",) else where


def _blamed(key: str, overrides: Mapping[str, str]) -> str | None:
    """The override that set `key`, something above it, or something below it."""
    related = [n for n in overrides if key == n or key.startswith(n + ".") or (key and n.startswith(key + "."))]
    return related[-1] if related else None


def section_of(key: str) -> type[BaseModel] | None:
    """The configuration class that stands under a dotted key, None if the key is a value or unknown.

    >>> section_of("data.curriculum").__name__
    'CurriculumConfig'
    >>> section_of("train.steps") is None
    True
    """
    model: type[BaseModel] = RunConfig
    for part in key.split(".") if key else ():
        field = model.model_fields.get(part)
        inner = _model_in(field.annotation) if field else None
        if inner is None:
            return None
        model = inner
    return model


def known_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the configuration, sections included."""
    for name, field in model.model_fields.items():
        yield prefix + name
        inner = _model_in(field.annotation)
        if inner is not None:
            yield from known_keys(inner, f"{prefix}{name}.")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model class in `X` or `X | None`; the first of a union by name."""
    options = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = list(typing.get_args(annotation))
    options = [typing.get_args(o)[0] if typing.get_origin(o) is typing.Annotated else o for o in options]
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _reason(key: str, detail: ErrorDetails, override: str | None) -> str:
    if detail["type"] == "extra_forbidden":
        if detail["loc"][:2] == ("engine", OWN):
            leaf = key.rpartition(".")[2]
            return f"unknown key {key}: an engine of your own has options, e.g. engine.options.{leaf}"
        return f"unknown key {key}{_nearest_key(key)}"
    if detail["type"] == "missing":
        return f"{key} is missing"
    message = detail["msg"].removeprefix("Value error, ").replace("\n", " ")
    if detail["type"] == "value_error":
        return message  # a rule over several keys, which names them itself
    if detail["type"] == "model_type":
        inner = section_of(key)
        return f"{key} is a section with the keys {', '.join(inner.model_fields) if inner else '...'}"
    if detail["type"] in ("tuple_type", "list_type"):
        return f"{key}={detail['input']!r}: must be a list, e.g. [{detail['input']}]"
    if override is not None and len(override) > len(key):
        return f"{key} is a value, not a section"
    shown = repr(detail["input"])
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    return f"{key}={shown}: {message[:1].lower()}{message[1:]}"


def _nearest_key(key: str) -> str:
    """Nearest sibling; else the same last name elsewhere; else the nearest key of all."""
    section, _, leaf = key.rpartition(".")
    model = section_of(section)
    if model is not None:
        close = nearest(leaf, model.model_fields)
        if close:
            prefix = f"{section}." if section else ""
            return close.replace("did you mean ", f"did you mean {prefix}")
    keys = list(known_keys())
    namesake = [name for name in keys if name.rpartition(".")[2] == leaf]
    if namesake:
        return f"; did you mean {' or '.join(namesake)}?"
    if close := nearest(key, keys):
        return close
    return f"; known keys there: {', '.join(model.model_fields)}" if model is not None else ""
