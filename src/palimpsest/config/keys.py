"""The configuration as data: every key with the values it takes, its default and its meaning.

The tables of docs/recipes.md, `palimpsest recipes keys` and what an error says of a wrong value are all made of it.
What a key means is the string below its field in the source.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from palimpsest.config.reward import LayerConfig
from palimpsest.config.schema import PolicyConfig, RoleConfig, RunConfig


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration."""

    name: str
    """Dotted."""
    values: str
    """What it takes, in words; quoted as code what is to be written so."""
    default: str
    """As a recipe would write it, quoted as code; `required` for one without."""
    meaning: str
    section: bool = False
    """Whether it is a section that may be left out, whose keys follow."""


def all_keys() -> list[Key]:
    """Every key, in the order of the schema."""
    return list(keys_of(RunConfig, "", None))


def keys_of(model: type[BaseModel], prefix: str, defaults: BaseModel | None) -> Iterator[Key]:
    """Keys of one section, sections inside it included. `defaults`: the section as it is where nothing is said."""
    said = docstrings(model)
    for name, field in model.model_fields.items():
        default = getattr(defaults, name) if defaults else field.get_default(call_default_factory=True)
        section = section_in(field.annotation)
        if section is None:
            shown = "required" if field.is_required() else yaml_words(default)
            values = type_words(field.annotation, bounds(field.metadata))
            yield Key(prefix + name, values, shown, said.get(name, ""))
            continue
        if default is None:
            about = (section.__doc__ or "").strip().splitlines()[0]
            yield Key(prefix + name, "section or `null`", "`null`", said.get(name, about), section=True)
        yield from keys_of(section, f"{prefix}{name}.", default)


@lru_cache(maxsize=64)
def docstrings(cls: Any) -> Mapping[str, str]:
    """Field name to the string below it in the source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def option_keys(cls: type[Any], prefix: str) -> list[Key]:
    """Options of a dataclass; what its base classes say of them holds where it says nothing itself."""
    said: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        said |= docstrings(each)
    hints = typing.get_type_hints(cls, include_extras=True)
    return [
        Key(f"{prefix}{each.name}", type_words(hints[each.name]), yaml_words(_default(each)), said.get(each.name, ""))
        for each in dataclasses.fields(cls)
        if each.init
    ]


def _default(each: dataclasses.Field[Any]) -> Any:
    made = each.default_factory
    return each.default if made is dataclasses.MISSING else made()


_PLAIN = {str: "text", int: "integer", float: "number", bool: "`true`, `false`", Any: "any value"}
_NAMED: Mapping[Any, str] = {
    LayerConfig: "name",
    PolicyConfig: "section of policies by name",
    RoleConfig: "section of `trained` and `model` by name",
}


def type_words(annotation: Any, limits: str = "") -> str:
    """An annotation as a reader of YAML would say it.

    >>> type_words(int | None, " ≥ 1"), type_words(tuple[float, float]), type_words(typing.Literal["a", "b"])
    ('integer ≥ 1 or `null`', 'list of numbers', '`a`, `b`')
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_words(arguments[0], limits or bounds(arguments[1:]))
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("`null`" if each is type(None) else type_words(each, limits) for each in arguments)
    if origin is tuple:
        return f"list of {type_words(arguments[0])}s"
    if origin in (dict, Mapping):
        return _NAMED.get(arguments[1], "section")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _NAMED.get(annotation, "section")
    return _PLAIN.get(annotation, "value") + limits


def bounds(metadata: typing.Iterable[Any]) -> str:
    """The limits of a number, in signs."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{signs[k]} {v}" for m in metadata for k in signs if (v := getattr(m, k, None)) is not None]
    return f" {', '.join(limits)}" if limits else ""


def yaml_words(value: Any) -> str:
    """A default as a recipe would write it."""
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section's class of `Section` or `Section | None`; of a union of sections by name, the first."""
    return next(iter(sections_in(annotation)), None)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Every section that an annotation allows: `engine` has other keys by its name.

    >>> [len(sections_in(RunConfig.model_fields[name].annotation)) for name in ("recipe", "train", "engine")]
    [0, 1, 4]
    """
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = list(typing.get_args(annotation)) if union else [annotation]
    options = [typing.get_args(each)[0] if typing.get_origin(each) is typing.Annotated else each for each in options]
    return [each for each in options if isinstance(each, type) and issubclass(each, BaseModel)]


def field_at(key: str) -> FieldInfo | None:
    """The field under a dotted key, None if there is none.

    >>> field_at("train.steps").default, field_at("train.stps")
    (100, None)
    """
    model: type[BaseModel] | None = RunConfig
    field = None
    for part in key.split("."):
        field = model.model_fields.get(part) if model is not None else None
        if field is None:
            return None
        model = section_in(field.annotation)
    return field
