"""Options of a class that a recipe names, checked by the annotations of its constructor before it is made.

    class MyPolicy:                                     policy.options: {lines: 2.5}
        def __init__(self, lines: int = 8) -> None      refused: policy.options.lines=2.5: must be a whole number

Guaranteed: an unknown option is refused with the nearest known name, a missing one by its name, a value of another
type in one line that names key, value and what is expected. Types are strict: no text or `true` for a number, no 2.0
for a whole number; a whole number is a number too, and a list is a tuple. Numbers are finite. What the constructor
itself refuses with ConfigError, TypeError or ValueError is one line as well.
Not covered: options without an annotation, or with one that can't be resolved or checked (`untyped` names them): they
are passed on as they are.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, Union

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from palimpsest.errors import ConfigError, nearest

Built = TypeVar("Built")

_SHOWN = 80  # characters of a wrong value in a message
_CONFIG = ConfigDict(strict=True, allow_inf_nan=False)
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Option:
    """A parameter of a constructor."""

    name: str
    annotation: Any
    """None: it has none, or none that can be resolved."""
    default: Any
    """`inspect.Parameter.empty`: it has none."""

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


def options_of(cls: type[Any]) -> Mapping[str, Option]:
    """The options of a class by name, in the order of its constructor. Worked out once a class: that takes longer than
    making an instance.

    >>> class Mine:
    ...     def __init__(self, size: int, tags: list[str] | None = None, other=1) -> None: ...
    >>> options_of(Mine)["size"], list(options_of(Mine))
    (Option(name='size', annotation=<class 'int'>, default=<class 'inspect._empty'>), ['size', 'tags', 'other'])
    """
    return _options_of(cls)  # type: ignore[arg-type]  # a class is hashable


@lru_cache(maxsize=512)
def _options_of(cls: Any) -> Mapping[str, Option]:
    hints = _hints(cls)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.kind in named]
    defaults = {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    found = {p.name: Option(p.name, hints.get(p.name), _default(p, defaults.get(p.name))) for p in parameters}
    return types.MappingProxyType(found)


def untyped(cls: type[Any]) -> list[str]:
    """Names of the options whose values nothing checks.

    >>> class Mine:
    ...     def __init__(self, size: int = 1, other=1) -> None: ...
    >>> untyped(Mine)
    ['other']
    """
    return [option.name for option in options_of(cls).values() if _adapter(option.annotation) is None]


def build(cls: type[Built], options: Mapping[str, Any], where: str, name: str | None = None) -> Built:
    """`cls(**options)` once they are known to be right. `where` is the key of the options; `name` what `cls` is called.

    >>> from collections import Counter
    >>> build(Counter, {}, "policy.options")
    Counter()
    """
    name = name or cls.__name__
    known = options_of(cls)
    checked = {key: _checked(cls, known, key, value, where, name) for key, value in options.items()}
    for option in known.values():
        if option.required and option.name not in options:
            raise ConfigError(f"{where}.{option.name} is missing: {name} has no default for it")
    try:
        return cls(**checked)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} of {name}: {_one_line(error)}") from None


def annotations_of(target: Any) -> dict[str, Any]:
    """Annotations of the parameters of a class's constructor, of a function, or of an object that is called.

    >>> def reward(problem, trajectory, *, price: float = 0.1) -> float: ...
    >>> annotations_of(reward)["price"]
    <class 'float'>
    """
    if isinstance(target, type):
        return _hints(target)
    function = target if inspect.isroutine(target) else type(target).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def check_value(annotation: Any, value: Any, key: str) -> Any:
    """`value` as the annotation has it (a list becomes a tuple, say). Raises ConfigError.

    >>> check_value(tuple[int, ...], [1, 2], "sizes")
    (1, 2)
    >>> check_value(int, True, "policy.options.size")
    Traceback (most recent call last):
    palimpsest.errors.ConfigError: policy.options.size=True: must be a whole number
    """
    adapter = _adapter(annotation)
    if adapter is None:
        return value
    try:
        return _validated(adapter, value)
    except ValidationError as error:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
        raise ConfigError(f"{key}={shown}: {_demand(annotation, error)}") from None


def _checked(cls: type[Any], known: Mapping[str, Option], key: str, value: Any, where: str, name: str) -> Any:
    if key in known:
        return check_value(known[key].annotation, value, f"{where}.{key}")
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in inspect.signature(cls).parameters.values()):
        return value
    there = f"; known: {', '.join(known)}" if known else "; it has no options"
    raise ConfigError(f"{where}.{key} is unknown to {name}{nearest(key, known)}{there}")


def _hints(cls: type[Any]) -> dict[str, Any]:
    """Annotations of the constructor's parameters; none where they name what exists for a type checker alone."""
    hints: dict[str, Any] = {}
    for owner in (cls.__init__, *([cls] if dataclasses.is_dataclass(cls) else [])):
        try:  # a field's annotation belongs to the module of the class that declares it
            hints.update(typing.get_type_hints(owner, include_extras=True))
        except (NameError, TypeError, AttributeError):
            continue
    return hints


def _default(parameter: inspect.Parameter, field: dataclasses.Field[Any] | None) -> Any:
    if field is not None and field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return parameter.default


@lru_cache(maxsize=512)
def _adapter_of(annotation: Any) -> TypeAdapter[Any] | None:
    for config in (_CONFIG, None):  # a pydantic model or a typed dictionary has a configuration of its own
        try:
            return TypeAdapter(annotation, config=config)
        except PydanticUserError:
            continue
    return None


def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """What checks values of an annotation, None if nothing can."""
    if annotation is None:
        return None
    try:
        return _adapter_of(annotation)
    except TypeError:  # not hashable
        return None


def _validated(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Options come from YAML: what JSON can say is read as JSON, where a list may be a tuple."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return adapter.validate_python(value)
    return adapter.validate_json(text, strict=True)


def _demand(annotation: Any, error: ValidationError) -> str:
    """What a value has to be."""
    allowed = choices(annotation)
    if allowed is not None:
        return f"choose one of {', '.join(allowed)}"
    words = expected(annotation)
    if words is not None:
        return f"must be {words}"
    detail = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ").replace("\n", " ")
    return f"{place + ': ' if place else ''}{message[:1].lower()}{message[1:]}"


def choices(annotation: Any) -> list[str] | None:
    """What a `Literal` allows, or one with None; None for other annotations."""
    found: list[str] = []
    for part in _alternatives(annotation):
        if typing.get_origin(part) is Literal:
            found += [str(value) for value in typing.get_args(part)]
        elif part is type(None):
            found.append("null")
        else:
            return None
    return found


def _alternatives(annotation: Any) -> list[Any]:
    """The parts of a union, or the annotation alone."""
    if typing.get_origin(annotation) is Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return [inner for part in typing.get_args(annotation) for inner in _alternatives(part)]
    return [annotation]


def expected(annotation: Any) -> str | None:
    """A plain annotation in words, None for others.

    >>> expected(int | None), expected(dict[str, int]), expected(ConfigError)
    ('a whole number or null', 'a mapping, each value a whole number', None)
    """
    words = []
    for part in _alternatives(annotation):
        origin = typing.get_origin(part) or part
        if origin in _WORDS:
            words.append(_WORDS[origin])
        elif origin is Literal:
            words += [str(value) for value in typing.get_args(part)]
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            words.append(_mapped(typing.get_args(part)))
        elif isinstance(origin, type) and issubclass(origin, (Sequence, AbstractSet)):
            words.append(_listed(typing.get_args(part)))
        else:
            return None
    return " or ".join(words)


def _mapped(items: tuple[Any, ...]) -> str:
    """
    >>> _mapped((str, int)), _mapped((str, Any))
    ('a mapping, each value a whole number', 'a mapping')
    """
    inner = expected(items[1]) if len(items) == 2 else None
    return f"a mapping, each value {inner}" if inner else "a mapping"


def _listed(items: tuple[Any, ...]) -> str:
    """
    >>> _listed((int, ...)), _listed((float, float)), _listed(())
    ('a list, each a whole number', 'a list of 2', 'a list')
    """
    kinds = [item for item in items if item is not ...]
    if len(kinds) > 1:
        return f"a list of {len(kinds)}"
    inner = expected(kinds[0]) if kinds else None
    return f"a list, each {inner}" if inner else "a list"


def _one_line(error: Exception) -> str:
    return str(error).replace("\n", " ")
