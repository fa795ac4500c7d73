"""Plugins: objects that a configuration names, as `my_module:MyThing` or `python:NAME`.

    policy.name=my_module:MyPolicy        reward.name=my_module:my_reward       credit.rule=my_module:my_rule
    data.format=my_module:MyFormat        logging.sinks=[my_module:MySink]      engine.name=my_module:MyEngine

A module is searched for in the current folder too. A class is constructed with the options given for it; a function
gets them as keyword arguments. `python:NAME` is an object passed to a call from Python:

    with giving({"python:my_reward": my_reward}):
        found("python:my_reward", "reward.name")          # my_reward

Only that call, its tasks and threads see the object, so two calls at once don't see each other's.

Guaranteed: an error is a ConfigError of one line that begins with the key that named the object: no such module, an
error in the module, no such name in it (with the nearest one), an unknown or missing option, one whose type differs
from its annotation (plugin_options.py), an object of another shape.
Not covered: options without an annotation, which are passed on unchanged; a module that changed after its import;
`python:NAME` in other or later processes, where a call gets its objects again or raises ConfigError.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import sys
import traceback
from abc import ABC, ABCMeta
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar, cast

from palimpsest.errors import ConfigError, Interrupted, PalimpsestError, nearest
from palimpsest.plugin_options import annotations_of, check_value

# ---- python:NAME, objects of a call from Python --------------------------------------------------------------


PREFIX = "python:"
DATA = f"{PREFIX}data"
"""The name of problems."""
KEYS = {"reward": "reward.name", "policy": "policy.name", "data": "data.source", "callbacks": "logging.sinks"}
"""The key of a configuration that names an object, by the argument that takes it."""

_HELD: ContextVar[Mapping[str, Any] | None] = ContextVar("palimpsest_given", default=None)


def is_given(name: str) -> bool:
    """Whether `name` means an object.

    >>> is_given("python:my_reward"), is_given("my_module:my_reward")
    (True, False)
    """
    return name.startswith(PREFIX)


def plain(name: str) -> str:
    """`name` as tables show it.

    >>> plain("python:data"), plain("python:MyPolicy"), plain("eval_50.json")
    ('problems', 'MyPolicy', 'eval_50.json')
    """
    return "problems" if name == DATA else name.removeprefix(PREFIX)


@contextmanager
def giving(objects: Mapping[str, Any]) -> Iterator[None]:
    """While this lasts, each name of `objects` means its object, besides those that were known before; names that
    `objects` gains meanwhile too."""
    token = _HELD.set(ChainMap(cast(Any, objects), cast(Any, _HELD.get() or {})))
    try:
        yield
    finally:
        _HELD.reset(token)


def held_by(thing: Any) -> Mapping[str, Any]:
    """The objects that a `Run` was trained with; none of a name or a folder."""
    objects: Mapping[str, Any] = getattr(thing, "given", {})
    return objects


def found(name: str, where: str) -> Any:
    """The object that `name` means. `where`: the key that named it, which begins the ConfigError."""
    held = _HELD.get() or {}
    if name in held:
        return held[name]
    argument = next((given for given, key in KEYS.items() if where.startswith(key)), "reward")
    raise ConfigError(
        f"{where}: {name} is a Python object, which no file of the run holds; give it again from Python, as "
        f"{argument}=... of palimpsest.train, evaluate, play or ask, or set {KEYS[argument]} to something else"
    )


# ---- my_module:MyThing ---------------------------------------------------------------------------------------


Signature = inspect.Signature
Contract = TypeVar("Contract", bound=ABC)


def is_own(name: str) -> bool:
    """Whether `name` is of the form `my_module:MyThing`."""
    return ":" in name


def check_name(name: str, shipped: Iterable[str], where: str, what: str, example: str) -> str:
    """`name`, if it is shipped or has the form of a user's own; nothing is imported. Raises ValueError in words.

    >>> check_name("my_module:mine", ["mean"], "credit.rule", "rule", "my_module:my_rule")
    'my_module:mine'
    """
    known = tuple(shipped)
    if is_own(name) or name in known:
        return name
    choice = f"choose one of {', '.join(known)}, or {example}" if known else f"give {example}"
    raise ValueError(f"{where}={name!r}: no such {what}{nearest(name, known)}; {choice}")


def named_class(name: str, shipped: Mapping[str, type[Any]], where: str, what: str) -> type[Any]:
    """The class called `name`: one of `shipped`, or the user's own. `where`: the key that named it; `what` it is.

    >>> from collections import Counter
    >>> named_class("counter", {"counter": Counter}, "policy.name", "policy").__name__
    'Counter'
    """
    if is_own(name):
        return own_class(name, where)
    if name not in shipped:
        raise ConfigError(
            f"{where}: no such {what}{nearest(name, shipped)}; choose one of {', '.join(shipped)}, "
            f"or my_module:My{what.capitalize()}"
        )
    return shipped[name]


def completed(cls: type[Any], contract: type[Contract]) -> type[Contract]:
    """`cls`, or a subclass of it with the defaults of `contract` for what it doesn't define.

    `contract` has empty slots, and no constructor.

    >>> class Shape(ABC):
    ...     __slots__ = ()
    ...     sides = 4
    >>> class Square: ...
    >>> completed(Square, Shape)().sides, completed(Square, Shape).__name__
    (4, 'Square')
    """
    if issubclass(cls, contract):
        return cls
    key: Any = cls
    completed: type[Contract] = _completed(key, contract)
    return completed


@functools.lru_cache(maxsize=256)
def _completed(cls: Any, contract: Any) -> Any:
    """The same subclass each time, so that objects of it are of one class."""
    names = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return ABCMeta(cls.__name__, (cls, contract), names)


def own_class(name: str, where: str) -> type[Any]:
    """The class at `name`. `where`: the key that named it, which begins the ConfigError.

    >>> own_class("collections:Counter", "policy.name").__name__
    'Counter'
    """
    thing = own(name, where, "class ")
    if not isinstance(thing, type):
        raise ConfigError(f"{where}: {name} is {_article(type(thing).__name__)}, not a class")
    return thing


def own(name: str, where: str, kind: str = "") -> Any:
    """Whatever stands at `name`; `kind` is what a message says it should be.

    >>> own("math:pi", "reward.name")
    3.141592653589793
    >>> own("math:sqroot", "reward.name")
    Traceback (most recent call last):
    palimpsest.errors.ConfigError: reward.name: math has no 'sqroot'; did you mean sqrt?
    """
    if is_given(name):
        return found(name, where)
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{where}: {name!r} is not of the form my_module:MyThing")
    if not all(map(str.isidentifier, module_name.split("."))):
        raise ConfigError(f"{where}: {module_name!r} is no module's name; give one as my_module:MyThing")
    module = _imported(module_name, where)
    try:
        return getattr(module, attribute)
    except AttributeError:
        near = nearest(attribute, [known for known in vars(module) if not known.startswith("_")])
        raise ConfigError(f"{where}: {module_name} has no {kind}{attribute!r}{near}") from None
    except Exception as error:
        raise ConfigError(f"{where}: {name} raised {_told(error)}") from error


def _imported(name: str, where: str) -> ModuleType:
    """The module, with the current folder on the path. Its own errors are told with file and line."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _no_module(where, name, error.name) from None
        raise ConfigError(f"{where}: {name} imports {error.name!r}, which is not installed") from None
    except (PalimpsestError, Interrupted):
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: importing {name} raised {_told(error)}") from error


def _no_module(where: str, name: str, missing: str) -> ConfigError:
    """With the nearest of the modules in the current folder and in the folders it holds."""
    here = Path.cwd()
    files = [path.relative_to(here) for path in (*here.glob("*.py"), *here.glob("*/*.py"))]
    known = sorted(".".join(path.with_suffix("").parts) for path in files if not path.name.startswith("__"))
    return ConfigError(f"{where}: no module {missing!r} here or on PYTHONPATH{nearest(name, known)}")


def _told(error: BaseException) -> str:
    """The error's kind, first line and place.

    >>> _told(KeyError("size"))
    "KeyError: 'size'"
    """
    message = [*told(error).removeprefix(f"{type(error).__name__}: ").splitlines(), "no message"][0] or "no message"
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {message}"  # which has the file and the line
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{place}"


def build(
    name: str,
    options: Mapping[str, Any],
    *,
    where: str,
    arguments: tuple[str, ...],
    method: str | None = None,
    given: Mapping[str, Any] | None = None,
    options_key: str = "options",
) -> Callable[..., Any]:
    """What stands at `name` as something to call with `arguments`.

    A function is called as it is, `options` as keyword arguments. Of a class an object is made with them, and its
    method `method` is called if it has one, else the object itself. `given` are values that it gets besides, if it has
    parameters of these names, such as the model's codec. `options_key` is what messages call the options.
    """
    target = own(name, where)
    checked = check_shape(
        name,
        target,
        options,
        where=where,
        arguments=arguments,
        method=method,
        given=given or {},
        options_key=options_key,
    )
    signature = _signature(target)
    known = signature.parameters if signature else {}
    values = {key: value for key, value in (given or {}).items() if key in known} | checked
    if not isinstance(target, type):
        return functools.partial(target, **values) if values else target
    made = _made(target, values, name, where)
    call: Callable[..., Any] | None = getattr(made, method, None) if method else None
    call = made if call is None else call
    if not callable(call):
        raise _not_called(name, where, arguments, method)
    _refuse_arguments(call, name, arguments, {}, where)
    return call


def _made(target: Callable[..., Any], values: Mapping[str, Any], name: str, where: str) -> Any:
    """An object of the user's class; what its constructor raises is a ConfigError."""
    try:
        return target(**values)
    except (PalimpsestError, Interrupted):
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: {name} could not be made: {_told(error)}") from error


def check_shape(
    name: str,
    target: Any,
    options: Mapping[str, Any],
    *,
    where: str,
    arguments: tuple[str, ...],
    method: str | None = None,
    given: Iterable[str] = (),
    options_key: str = "options",
) -> dict[str, Any]:
    """The options as their annotations have them (a list becomes a tuple, say); nothing is made.

    Raises ConfigError if what stands at `name` is no class or function for them. With `method`, objects of a class
    need it, or to be called.
    """
    if not callable(target):
        raise ConfigError(f"{where}: {name} is {_article(type(target).__name__)}, not a class or a function")
    if method and isinstance(target, type) and not _defines(target, method, "__call__", "__getattr__"):
        raise _not_called(name, where, arguments, method)
    signature = _signature(target)
    if signature is None:
        return dict(options)
    if not isinstance(target, type):
        _refuse_arguments(target, name, arguments, options, where, given)
    keywords = [
        parameter.name
        for parameter in list(signature.parameters.values())[0 if isinstance(target, type) else len(arguments) :]
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD) and parameter.name not in given
    ]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        for key in options:
            if key not in keywords:
                known = f"; known: {', '.join(keywords)}" if keywords else "; it takes none"
                raise ConfigError(f"{options_key}.{key} is unknown to {name}{nearest(key, keywords)}{known}")
    for key in keywords:
        if signature.parameters[key].default is inspect.Parameter.empty and key not in options:
            raise ConfigError(f"{options_key}.{key} is missing: {name} needs it")
    hints = annotations_of(target)
    return {key: check_value(hints.get(key), value, f"{options_key}.{key}") for key, value in options.items()}


def _defines(cls: type[Any], *names: str) -> bool:
    """Whether objects of `cls` have one of these, as far as the class tells."""
    known = [{*vars(base), *vars(base).get("__annotations__", {})} for base in cls.__mro__]
    return any(name in each for each in known for name in names)


def _not_called(name: str, where: str, arguments: tuple[str, ...], method: str | None) -> ConfigError:
    alternative = f"a method {method}, or " if method else ""
    return ConfigError(f"{where}: {name} needs {alternative}to be called, with ({', '.join(arguments)})")


def _refuse_arguments(
    call: Any, name: str, arguments: tuple[str, ...], options: Mapping[str, Any], where: str, given: Iterable[str] = ()
) -> None:
    """Raise ConfigError if `call` can't be called with as many positional arguments."""
    signature = _signature(call)
    if signature is None:
        return
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variable = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    taken = [p.name for p in positional if p.name not in given]
    needed = [p.name for p in positional[len(arguments) :] if p.default is p.empty]
    needed = [key for key in needed if key not in options and key not in given]
    if (len(taken) < len(arguments) and not variable) or needed:
        raise ConfigError(f"{where}: {name} takes {signature}, and is called with ({', '.join(arguments)})")


def _signature(target: Any) -> Signature | None:
    """None for what doesn't tell, as some things written in C."""
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def owner(call: Callable[..., Any]) -> Any:
    """The object whose method `call` is; else `call` itself.

    >>> owner("abc".upper), owner(len) is len
    ('abc', True)
    """
    if isinstance(call, MethodType) or (inspect.isbuiltin(call) and not isinstance(call.__self__, ModuleType)):
        return call.__self__
    return call


def own_name(thing: Any) -> str:
    """What messages call a function or an object.

    >>> own_name(len), own_name(Path("x")) in ("PosixPath", "WindowsPath")
    ('len', True)
    """
    inner = thing.func if isinstance(thing, functools.partial) else thing
    plain = isinstance(inner, FunctionType | MethodType | type) or inspect.isbuiltin(inner)
    return str(inner.__name__ if plain else type(inner).__name__)


def told(error: BaseException) -> str:
    """The kind of an error that a user's code raised, and its text if that can be made.

    >>> told(KeyError("size"))
    "KeyError: 'size'"
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  the border around an error's own __str__
        return type(error).__name__


def finite(value: Any) -> bool:
    """Whether what a user's code gave is a number that a float can hold.

    >>> finite(1), finite(math.nan), finite("1"), finite(10**400)
    (True, False, False, False)
    """
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
