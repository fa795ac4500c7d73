"""Options of classes and functions in recipes, checked against their annotations before the call.

    class MyPolicy:                                     policy.options: {lines: 2.5}
        def __init__(self, lines: int = 8) -> None      rejected: policy.options.lines=2.5: must be a whole number

Guaranteed: an unknown option is rejected with the nearest known name, a missing one by its name, a value of another
type in one line that names key, value and expected type. Types are strict: no text or `true` for a number, no 2.0 for a
whole number; a whole number is a number too, and a list is a tuple. Numbers are finite.
Not covered: options without an annotation, or with one that can't be resolved or checked (`untyped` names them); they
pass unchanged.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, cast

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from palimpsest.errors import ConfigError, nearest

_CONFIG = ConfigDict(strict=True, allow_inf_nan=False)
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Option:
    """A parameter of a constructor or of a function."""

    name: str
    annotation: Any
    """None: no annotation, or no resolvable one."""
    default: Any
    """`inspect.Parameter.empty`: no default."""

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


def signature_of(target: Callable[..., Any]) -> inspect.Signature | None:
    """None for a callable without a signature, such as some in C."""
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def options_of(target: Callable[..., Any], taken: int = 0) -> Mapping[str, Option]:
    """Options by name: of a class, in the order of its constructor; of a function, after its first `taken` parameters.
    Cached per target, because inspection takes longer than construction.

    >>> class Mine:
    ...     def __init__(self, size: int, tags: list[str] | None = None, other=1) -> None: ...
    >>> options_of(Mine)["size"], list(options_of(Mine))
    (Option(name='size', annotation=<class 'int'>, default=<class 'inspect._empty'>), ['size', 'tags', 'other'])
    """
    try:
        return _cached(cast(Hashable, target), taken)
    except TypeError:  # an object that is called and can't be hashed
        return _options_of(target, taken)


def _options_of(target: Any, taken: int) -> Mapping[str, Option]:
    signature = signature_of(target)
    hints = _hints(target)
    parameters = list(signature.parameters.values())[taken:] if signature else []
    fields = {f.name: f for f in dataclasses.fields(target)} if dataclasses.is_dataclass(target) else {}
    return types.MappingProxyType(
        {
            p.name: Option(p.name, hints.get(p.name), _default(p, fields.get(p.name)))
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }
    )


_cached = lru_cache(maxsize=512)(_options_of)


def untyped(cls: type[Any]) -> list[str]:
    """Names of the options whose values nothing checks.

    >>> class Mine:
    ...     def __init__(self, size: int = 1, other=1) -> None: ...
    >>> untyped(Mine)
    ['other']
    """
    return [option.name for option in options_of(cls).values() if _adapter(option.annotation) is None]


def takes_any(target: Callable[..., Any]) -> bool:
    signature = signature_of(target)
    return signature is None or any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())


class UnknownOption(ConfigError):
    """An option that the target lacks, and that resembles none of its options."""


def check_options(
    target: Callable[..., Any],
    options: Mapping[str, Any],
    key: str,
    name: str,
    *,
    taken: int = 0,
    injected: Collection[str] = (),
) -> dict[str, Any]:
    """Options converted to the annotations of `target` (a list becomes a tuple, for example). Raises ConfigError.

    `key`: key of the options; `name`: the target in messages; `injected`: parameters that are not options.

    >>> def reward(problem, trajectory, *, price: float = 0.1) -> float: ...
    >>> check_options(reward, {"price": "2"}, "reward.options", "mine:reward", taken=2)
    Traceback (most recent call last):
    palimpsest.errors.ConfigError: reward.options.price='2': must be a number
    """
    allowed = {name: option for name, option in options_of(target, taken).items() if name not in injected}
    unknown = [] if takes_any(target) else [option for option in options if option not in allowed]
    if unknown:
        near = [nearest(option, allowed) for option in unknown]
        also = f"; also unknown: {', '.join(unknown[1:])}" if unknown[1:] else ""
        there = f"known: {', '.join(allowed)}" if allowed else "it has no options"
        error = ConfigError if near[0] else UnknownOption
        raise error(f"is unknown to {name}{near[0]}{also}; {there}", key=f"{key}.{unknown[0]}")
    for option, parameter in allowed.items():
        if parameter.required and option not in options:
            raise ConfigError(f"is missing: {name} has no default for it", key=f"{key}.{option}")
    return {
        option: _checked(allowed[option].annotation if option in allowed else None, value, f"{key}.{option}")
        for option, value in options.items()
    }


def _checked(annotation: Any, value: Any, key: str) -> Any:
    adapter = _adapter(annotation)
    if adapter is None:
        return value
    try:
        return _validated(adapter, value)
    except ValidationError as error:
        raise ConfigError(_demand(annotation, error), key=key, value=value) from None


def _hints(target: Any) -> dict[str, Any]:
    """Annotations of the parameters; none if they name imports for type checkers."""
    owners: list[Any] = [target if inspect.isroutine(target) else type(target).__call__]
    if inspect.isclass(target):  # a field's annotation belongs to the module of the class that declares it
        owners = [target.__init__, *([target] if dataclasses.is_dataclass(target) else [])]
    hints: dict[str, Any] = {}
    for owner in owners:
        try:
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
    for config in (_CONFIG, None):  # None: pydantic models and typed dictionaries are already configured
        try:
            return TypeAdapter(annotation, config=config)
        except PydanticUserError:
            continue
    return None


def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    if annotation is None:
        return None
    try:
        return _adapter_of(annotation)
    except TypeError:  # not hashable
        return None


def _validated(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Options come from YAML: JSON-like values are validated as JSON, where a list may be a tuple."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return adapter.validate_python(value)
    return adapter.validate_json(text, strict=True)


def _demand(annotation: Any, error: ValidationError) -> str:
    allowed = choices(annotation)
    if allowed is not None:
        return f"choose one of {', '.join(allowed)}"
    words = expected(annotation)
    if words is not None:
        return f"must be {words}"
    detail = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ").replace("\n", " ")
    return f"{path + ': ' if path else ''}{message[:1].lower()}{message[1:]}"


def choices(annotation: Any) -> list[str] | None:
    """Values of a `Literal` or an optional one; None for other annotations."""
    values: list[str] = []
    for part in _alternatives(annotation):
        if typing.get_origin(part) is Literal:
            values += [str(value) for value in typing.get_args(part)]
        elif part is type(None):
            values.append("null")
        else:
            return None
    return values


def _alternatives(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) is Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return [inner for part in typing.get_args(annotation) for inner in _alternatives(part)]
    return [annotation]


def expected(annotation: Any) -> str | None:
    """A plain annotation as text, None for others.

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
