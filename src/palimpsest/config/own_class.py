"""A class of the user's own, named in a recipe as `my_module:MyClass`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from palimpsest.errors import ConfigError, nearest


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
