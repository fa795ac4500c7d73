"""A class that a recipe names: one of the package by its short name, the user's own as `my_module:MyClass`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import ConfigError, nearest


def named_class(name: str, shipped: Mapping[str, type[Any]], where: str, what: str) -> type[Any]:
    """The class called `name`: one of `shipped`, or the user's own. `where`: the key that named it; `what` it is.

    >>> from collections import Counter
    >>> named_class("counter", {"counter": Counter}, "policy.name", "policy").__name__
    'Counter'
    """
    if ":" in name:
        return own_class(name, where)
    if name not in shipped:
        raise ConfigError(
            f"{where}: no such {what}{nearest(name, shipped)}; choose one of {', '.join(shipped)}, "
            f"or my_module:My{what.capitalize()}"
        )
    return shipped[name]


def own_class(name: str, where: str) -> type[Any]:
    """The class at `name`; its module is looked for in the current folder too.

    `where`: the key that named it, which begins the ConfigError. What the module itself raises is not caught.

    >>> own_class("collections:Counter", "policy.name").__name__
    'Counter'
    """
    module_name, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{where}: no module {error.name!r} here or on PYTHONPATH") from None
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise ConfigError(f"{where}: {module_name} has no class {attribute!r}{nearest(attribute, vars(module))}")
    return found
