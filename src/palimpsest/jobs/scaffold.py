"""A beginning for a user's own policy, tool or reward: its file, a recipe that trains it, a test.

Each learns with the model inside the package, in minutes on a CPU, before anything is changed.

Guaranteed: nothing that is there is written over; all files are written or none.
"""

from __future__ import annotations

import keyword
import os
import sys
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path

from palimpsest import files
from palimpsest.errors import ConfigError, nearest

KINDS = ("policy", "tool", "reward")
_PARTS = {"{name}.py": "{kind}.py.txt", "{name}.yaml": "{kind}.yaml", "test_{name}.py": "{kind}.test.py.txt"}
"""File to write, and the template it is made of."""
_SPECIAL = ("conftest", "setup", "sitecustomize", "usercustomize", "test", "tests")


def write_scaffold(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of a `kind` called `name` into `folder`, in the order of `_PARTS`; where they are.

    Raises ConfigError for an unknown kind, a name that is no module's, and files that are there.
    """
    if kind not in KINDS:
        raise ConfigError(f"new {kind}: no such kind{nearest(kind, KINDS)}; choose one of {', '.join(KINDS)}")
    _check_name(kind, name)
    templates = resources.files("palimpsest") / "assets" / "new"
    texts = {}
    for file, template in _PARTS.items():
        path = folder / file.format(name=name)
        if os.path.lexists(path):  # a link to nothing too
            raise ConfigError(f"new {kind} {name}: {path} is there already; give another name, or --out another folder")
        texts[path] = renamed((templates / template.format(kind=kind)).read_text("utf-8"), kind, name)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        files.write_file(path, text.encode())
    return list(texts)


def _check_name(kind: str, name: str) -> None:
    """Raise ConfigError for a name that can't be a module's, or is one's already."""
    plain = name.isidentifier() and name.isascii() and name == name.lower() and not name.startswith("_")
    if not plain or keyword.iskeyword(name):
        raise ConfigError(f"new {kind} {name}: give a name of small letters, digits and _, such as my_{kind}")
    if name in _SPECIAL or name.startswith("test_"):
        raise ConfigError(f"new {kind} {name}: Python and pytest look for files of that name; give another")
    if name in sys.stdlib_module_names or name == "palimpsest" or _installed(name):
        raise ConfigError(f"new {kind} {name}: a module of that name is there already; give another, such as my_{name}")


def _installed(name: str) -> bool:
    """Whether `import name` gives a module, but for one in the current folder."""
    here = Path.cwd()
    return PathFinder.find_spec(name, [place for place in sys.path if Path(place).resolve() != here]) is not None


def renamed(text: str, kind: str, name: str) -> str:
    """A template under the user's name.

    >>> renamed("my_tool.py: class MyTool", "tool", "page_index")
    'page_index.py: class PageIndex'
    """
    return text.replace(f"my_{kind}", name).replace(f"My{kind.capitalize()}", class_name(name))


def class_name(name: str) -> str:
    """
    >>> class_name("my_policy"), class_name("notes2")
    ('MyPolicy', 'Notes2')
    """
    return "".join(part.capitalize() for part in name.split("_"))
