"""Plugins: everything that a configuration names, shipped or a user's own, by one table of kinds.

    reward.name=em                        a shipped name, of `KINDS["reward"].shipped`
    reward.name=my_package.mine:reward    an import path; the current folder is searched too
    reward.name=rewards/mine.py:reward    a file
    reward.name=object:reward             an object passed to a call from Python

All four are loaded, checked and built by the same functions. A class is constructed with the options; a function
receives them as keyword arguments. An object is visible only to the call that receives it, its tasks and threads:

    with named_objects({"object:mine": mine}):
        load("reward", "object:mine")             # mine

Guaranteed: an error is a ConfigError with the key of the plugin: no such module, an error in the module, no such name
in it (with the nearest one), an unknown or missing option, one whose type differs from its annotation
(plugin_options.py), an object of another shape. Imports happen on first use.
Not covered: options without an annotation, which pass unchanged; a module that changed after its import; `object:NAME`
in other or later processes, where a call gets its objects again or raises ConfigError.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from abc import ABCMeta
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, NoReturn, cast

from palimpsest.errors import ConfigError, Interrupted, PalimpsestError, nearest
from palimpsest.plugin_kinds import KINDS, OBJECT, PluginKind, fault_of
from palimpsest.plugin_options import check_options, signature_of, takes_any

# ---- Objects of a call from Python ----------------------------------------------------------------------------


DATA = f"{OBJECT}data"
"""The name of problems."""
ARGUMENTS = {kind.key: kind.argument for kind in KINDS.values() if kind.argument} | {"data.train_files": "data"}
"""The argument of a call from Python that takes an object, by the key of a configuration that names it."""

_KNOWN: ContextVar[Mapping[str, Any] | None] = ContextVar("palimpsest_objects", default=None)


@contextmanager
def named_objects(objects: Mapping[str, Any]) -> Iterator[None]:
    """Make each name of `objects`, later ones included, refer to its object within the context; outer names remain."""
    token = _KNOWN.set(ChainMap(cast(Any, objects), cast(Any, _KNOWN.get() or {})))
    try:
        yield
    finally:
        _KNOWN.reset(token)


def object_named(name: str, key: str) -> Any:
    """The object called `object:NAME`; `key` for errors."""
    objects = _KNOWN.get() or {}
    if name in objects:
        return objects[name]
    argument = ARGUMENTS.get(key, "reward")
    raise ConfigError(
        f"a Python object, which the run doesn't store; pass it again from Python, as {argument}=... of "
        "palimpsest.train, evaluate, play or ask, or set the key to something else",
        key=key,
        value=name,
    )


def plain(name: str) -> str:
    """`name` as tables show it.

    >>> plain("object:data"), plain("object:MyPolicy"), plain("eval_50.json")
    ('problems', 'MyPolicy', 'eval_50.json')
    """
    return "problems" if name == DATA else name.removeprefix(OBJECT)


def reference(kind: str, thing: Any) -> str:
    """Name by which a later process finds `thing`: a shipped name, an import path, or `object:NAME`, valid within
    `named_objects`.

    >>> reference("reward", math.sqrt), reference("policy", print)
    ('object:sqrt', 'object:print')
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    lasting = isinstance(thing, FunctionType | type) and module not in (None, "__main__", "__mp_main__")
    if not lasting or getattr(sys.modules.get(str(module)), name, None) is not thing:
        return OBJECT + name_of(owner(thing))
    path = f"{module}:{name}"
    return next((shipped for shipped, target in KINDS[kind].shipped.items() if target == path), path)


# ---- Loading --------------------------------------------------------------------------------------------------


_FORBIDDEN: ContextVar[str] = ContextVar("palimpsest_forbidden", default="")


@contextmanager
def shipped_only(reason: str) -> Iterator[None]:
    """Within the context, `load` raises ConfigError with `reason` for names outside the package."""
    token = _FORBIDDEN.set(reason)
    try:
        yield
    finally:
        _FORBIDDEN.reset(token)


def load(kind: str, name: str, key: str | None = None) -> Any:
    """Load the object called `name`. `key`: its configuration key, for ConfigError.

    >>> load("reward", "math:sqroot")
    Traceback (most recent call last):
    palimpsest.errors.ConfigError: reward.name='math:sqroot': math has no 'sqroot'; did you mean sqrt?
    """
    key, path = key or KINDS[kind].key, KINDS[kind].shipped.get(name, name)
    if path == name and (fault := fault_of(kind, name)):
        raise ConfigError(fault, key=key, value=name)
    if path.startswith(OBJECT):
        return object_named(path, key)
    if path == name and (reason := _FORBIDDEN.get()):
        raise ConfigError(reason, key=key, value=name)
    module_name, _, attribute = path.rpartition(":")
    if module_name.endswith(".py") and not Path(module_name).is_file():
        raise ConfigError(f"no such file; use a path relative to {Path.cwd()} or an absolute one", key=key, value=name)
    try:
        module = _module(module_name)
        if hasattr(module, attribute):
            return getattr(module, attribute)
    except (PalimpsestError, Interrupted):
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(_missing_module(module_name, error), key=key, value=name) from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"importing {path} raised {_located_error(error)}", key=key, value=name) from error
    near = nearest(attribute, [public for public in vars(module) if not public.startswith("_")])
    raise ConfigError(f"{module_name} has no {attribute!r}{near}", key=key, value=name)


def _module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if not name.endswith(".py"):
        return importlib.import_module(name)
    file, loaded = Path(name).resolve(), sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(file):
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # named by its path, as references are
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # like for a script's folder
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _missing_module(name: str, error: ModuleNotFoundError) -> str:
    if error.name is None or name.endswith(".py") or not f"{name}.".startswith(f"{error.name}."):
        return f"{name} imports {error.name!r}, which is not installed"
    here = Path.cwd()
    files = [path.relative_to(here) for path in (*here.glob("*.py"), *here.glob("*/*.py"))]
    modules = sorted(".".join(path.with_suffix("").parts) for path in files if not path.name.startswith("__"))
    return f"no module {error.name!r} here or on PYTHONPATH{nearest(name, modules)}"


def _located_error(error: BaseException) -> str:
    """The error's kind, first line and place.

    >>> _located_error(KeyError("size"))
    "KeyError: 'size'"
    """
    message = next(iter(error_text(error).splitlines()), type(error).__name__)
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return message  # a SyntaxError has the file and the line
    return f"{message} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


# ---- Checking and building ------------------------------------------------------------------------------------


def check(
    kind: str, name: str, options: Mapping[str, Any], *, key: str | None = None, options_key: str | None = None
) -> dict[str, Any]:
    """Options converted to their annotations (a list becomes a tuple, for example); builds nothing.

    Raises ConfigError if the plugin has another shape, or takes other options.
    """
    spec, target = KINDS[kind], load(kind, name, key)
    options_key = options_key or spec.options
    if not callable(target) and spec.base is None:
        _refuse(spec, name, key, f"{article(type(target).__name__)}, not a class or a function")
    made = spec.base is not None and not isinstance(target, type)
    if isinstance(target, type) or made:
        check_class(kind, target if isinstance(target, type) else type(target), name, key)
    else:
        _check_call(spec, target, name, options, key)
    if made and options:
        raise ConfigError(
            f"{plain(name)} is an object with fixed options; construct it with others, or pass the class",
            key=f"{options_key}.{next(iter(options))}",
        )
    if made:
        return {}
    taken = 0 if isinstance(target, type) else len(spec.takes)
    return check_options(target, options, options_key, name, taken=taken, injected=spec.injected)


def build(
    kind: str,
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    options_key: str | None = None,
    **injected: Any,
) -> Any:
    """Build the plugin called `name`: an object if the kind has a `base` or is not called; otherwise a function of the
    arguments that the kind `takes`. `injected` are values of the run. Raises ConfigError."""
    spec, target = KINDS[kind], load(kind, name, key)
    values = check(kind, name, options or {}, key=key, options_key=options_key)
    parameters = getattr(signature_of(target), "parameters", {})
    anything = not spec.takes and takes_any(target)
    values = {key: value for key, value in injected.items() if key in parameters or anything} | values
    if spec.base is not None and not isinstance(target, type):
        return with_defaults(target, kind)
    if spec.takes and not isinstance(target, type):
        return functools.partial(target, **values) if values else target
    try:
        made = (completed(target, kind) if spec.base else target)(**values)
    except (PalimpsestError, Interrupted):
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"could not be made: {_located_error(error)}", key=key or spec.key, value=name) from error
    if spec.base or not spec.takes:
        return made
    call = getattr(made, spec.method or "", made)
    _check_call(spec, call, name, {}, key)
    return call


def check_all(config: Any) -> None:
    """Check all plugins of a `RunConfig` except sinks (runs/loggers.py), before loading a model. Raises ConfigError."""
    check("policy", config.policy.name, config.policy.options)
    if config.reward.name not in KINDS["reward"].shipped:
        check("reward", config.reward.name, config.reward.options)
    for layer in config.reward.layers:
        check("layer", layer.name, layer.options, options_key=f"reward.layers.{layer.name}")
    check("rule", config.credit.adv_estimator, config.credit.options)
    if config.data.format not in (None, *KINDS["format"].shipped):
        check("format", config.data.format, config.data.format_options)
    if config.engine.name not in KINDS["engine"].shipped:
        check("engine", config.engine.name, config.engine.options)


def completed(cls: type[Any], kind: str) -> type[Any]:
    """`cls`, or a subclass of it with the defaults of the kind's `base` for missing members."""
    base = KINDS[kind].base
    assert base is not None
    module, _, name = base.partition(":")
    contract = getattr(importlib.import_module(module), name)
    if issubclass(cls, contract):
        return cls
    subclass: type[Any] = _completed(cast(Any, cls), contract)
    return subclass


@functools.lru_cache(maxsize=256)
def _completed(cls: Any, contract: Any) -> Any:
    """Cached, so that all objects have one class."""
    names = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return ABCMeta(cls.__name__, (cls, contract), names)


def with_defaults(thing: Any, kind: str) -> Any:
    """An object of the kind, with the defaults of its `base` for members its class lacks."""
    cls = completed(type(thing), kind)
    if cls is type(thing):
        return thing
    made = copy.copy(thing)
    made.__class__ = cls
    return made


def check_class(kind: str, cls: type[Any], name: str, key: str | None = None) -> None:
    """Raise ConfigError for a class with unusable objects."""
    spec = KINDS[kind]
    if not spec.takes:
        return
    method = inspect.unwrap(getattr(cls, spec.method or "", cls.__init__))
    defines = {attribute for base in cls.__mro__ for attribute in (*vars(base), *vars(base).get("__annotations__", {}))}
    called = {"__call__"} if spec.base is None else set()
    if not defines & {spec.method, "__getattr__", *called}:
        alternative = "" if spec.base else ", or to be called,"
        _refuse(spec, name, key, f"needs a method {spec.method}{alternative} with ({', '.join(spec.takes)})")
    if spec.method in defines and isinstance(method, FunctionType):
        _check_awaited(spec, method, name, key)


def _check_call(spec: PluginKind, call: Any, name: str, options: Mapping[str, Any], key: str | None) -> None:
    if not callable(call):
        _refuse(spec, name, key, f"needs a method {spec.method}, or to be called, with ({', '.join(spec.takes)})")
    _check_awaited(spec, call, name, key)
    signature = signature_of(call)
    if signature is None:
        return
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variable = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    taken = [p.name for p in positional if p.name not in spec.injected]
    needed = [p.name for p in positional[len(spec.takes) :] if p.default is p.empty]
    needed = [argument for argument in needed if argument not in options and argument not in spec.injected]
    if (len(taken) < len(spec.takes) and not variable) or needed:
        _refuse(spec, name, key, f"takes {signature}, but palimpsest calls it with ({', '.join(spec.takes)})")


def _check_awaited(spec: PluginKind, call: Any, name: str, key: str | None) -> None:
    if spec.awaited is not None and is_async(call) is not spec.awaited:
        is_other, instead = ("no coroutine", "async def") if spec.awaited else ("asynchronous", "def")
        called = name_of(call)
        _refuse(spec, name, key, f"{called} is {is_other}: write {instead} {called}({', '.join(spec.takes)})")


def _refuse(spec: PluginKind, name: str, key: str | None, message: str) -> NoReturn:
    raise ConfigError(message, key=key or spec.key, value=name)


# ---- What is said of objects and of errors in users' code ----------------------------------------------------


def is_async(call: Callable[..., Any]) -> bool:
    """Also where it is an object whose class defines `async def __call__`."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


def owner(call: Callable[..., Any]) -> Any:
    """The object of the method `call`; otherwise `call` itself.

    >>> owner("abc".upper), owner(len) is len
    ('abc', True)
    """
    if isinstance(call, MethodType) or (inspect.isbuiltin(call) and not isinstance(call.__self__, ModuleType)):
        return call.__self__
    return call


def name_of(thing: Any) -> str:
    """Name of a function or an object in messages.

    >>> name_of(len), name_of(Path("x")) in ("PosixPath", "WindowsPath")
    ('len', True)
    """
    inner = thing.func if isinstance(thing, functools.partial) else thing
    has_name = isinstance(inner, FunctionType | MethodType | type) or inspect.isbuiltin(inner)
    return str(inner.__name__ if has_name else type(inner).__name__)


def error_text(error: BaseException) -> str:
    """Type of a custom code's error, and its text if it has one.

    >>> error_text(KeyError("size"))
    "KeyError: 'size'"
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  the border around an error's own __str__
        return type(error).__name__


def finite(value: Any) -> bool:
    """Return whether a custom code's value is a finite number within a float's range.

    >>> finite(1), finite(math.nan), finite("1"), finite(10**400)
    (True, False, False, False)
    """
    try:
        return isinstance(value, Real) and math.isfinite(float(value))
    except (OverflowError, TypeError, ValueError):
        return False


def article(noun: str) -> str:
    """`noun` after a or an."""
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
