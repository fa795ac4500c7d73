"""Files to start from: a plugin with its recipe and test, the prompts of a policy, the keys of the configuration.

Each plugin trains unchanged with the shipped model, in minutes on a CPU.

Guaranteed: existing files are never overwritten; either all files are written or none.
"""

from __future__ import annotations

import dataclasses
import keyword
import os
import sys
from collections.abc import Sequence
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import yaml

from palimpsest import files
from palimpsest.config.keys import Key, all_keys, option_keys, yaml_words
from palimpsest.config.load import Overrides, load_recipe
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.config.section import section_in
from palimpsest.config.yaml_text import Dumper
from palimpsest.errors import ConfigError, nearest
from palimpsest.memory.parts.prompts import Slots, slots_of
from palimpsest.memory.registry import build_policy, policy_class
from palimpsest.plugin_kinds import KINDS

SCAFFOLDS = ("policy", "tool", "reward", "environment")
_FILES = {"{name}.py": "{kind}.py.txt", "{name}.yaml": "{kind}.yaml", "test_{name}.py": "{kind}.test.py.txt"}
"""File to write, and its template."""
_SPECIAL = ("conftest", "setup", "sitecustomize", "usercustomize", "test", "tests")


def write_scaffold(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of a `kind` called `name` into `folder`; returns their paths, in the order of `_FILES`.

    Raises ConfigError for an unknown kind, an invalid module name, and existing files.
    """
    if kind not in SCAFFOLDS:
        raise ConfigError(f"new {kind}: no such kind{nearest(kind, SCAFFOLDS)}; choose one of {', '.join(SCAFFOLDS)}")
    _check_name(kind, name)
    templates = resources.files("palimpsest") / "assets" / "new"
    texts = {}
    for file, template in _FILES.items():
        path = folder / file.format(name=name)
        if os.path.lexists(path):  # a dangling link too
            raise ConfigError(f"new {kind} {name}: {path} already exists; use another name, or another --out")
        texts[path] = renamed((templates / template.format(kind=kind)).read_text("utf-8"), kind, name)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        files.write_file(path, text.encode())
    return list(texts)


def _check_name(kind: str, name: str) -> None:
    plain = name.isidentifier() and name.isascii() and name == name.lower() and not name.startswith("_")
    if not plain or keyword.iskeyword(name):
        raise ConfigError(f"new {kind} {name}: use a name of small letters, digits and _, such as my_{kind}")
    if name in _SPECIAL or name.startswith("test_"):
        raise ConfigError(f"new {kind} {name}: Python and pytest look for files of that name; use another")
    if name in sys.stdlib_module_names or name == "palimpsest" or _installed(name):
        raise ConfigError(f"new {kind} {name}: a module of that name already exists; use another, such as my_{name}")


def _installed(name: str) -> bool:
    """Whether `import name` finds a module outside the current folder."""
    here = Path.cwd()
    return PathFinder.find_spec(name, [path for path in sys.path if Path(path).resolve() != here]) is not None


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


# ---- The keys of the configuration ---------------------------------------------------------------------------


_OPTIONS = "policy.options."


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A key and its value in one configuration."""

    key: Key
    value: str
    """In the form of a recipe."""

    @property
    def changed(self) -> bool:
        return self.value != self.key.default


def keys_under(prefix: str = "") -> list[Key]:
    """Keys of a section, or else all that begin with `prefix`; under `policy.options.NAME` the options of a policy.

    Raises ConfigError without any, with the nearest key.
    """
    policies = {name: policy_class(name) for name in KINDS["policy"].shipped}
    keys = all_keys() + [key for name, cls in policies.items() for key in option_keys(cls, f"{_OPTIONS}{name}.")]
    plain = [key for key in keys if not key.name.startswith(_OPTIONS)]
    searched = keys if prefix.startswith(_OPTIONS[:-1]) else plain
    under = [key for key in searched if _below(key.name, prefix)]
    under = under or [key for key in searched if key.name.startswith(prefix)]
    if not under and prefix.startswith(_OPTIONS):
        raise ConfigError(f"recipes keys {prefix}: no such option; policies with options: {', '.join(policies)}")
    if not under:
        names = {key.name for key in keys} | {key.name.rpartition(".")[0] for key in keys}
        raise ConfigError(f"recipes keys {prefix}: no such key or section{nearest(prefix, sorted(names))}")
    return under


def _below(name: str, prefix: str) -> bool:
    """
    >>> _below("train.max_steps", "train"), _below("train.max_steps", "train.st"), _below("train.max_steps", "tra")
    (True, False, False)
    """
    prefix = prefix.rstrip(".")
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def explained(recipe: str, overrides: Overrides = ()) -> list[Setting]:
    """Every key of a recipe with its value, including the options of its policy."""
    config = load_recipe(recipe, overrides)
    settings: list[Setting] = []
    for key in all_keys():
        if key.name == _OPTIONS[:-1]:
            settings += _options(config)
        elif (setting := _setting(config, key)) is not None:
            settings.append(setting)
    return settings


def _options(config: RunConfig) -> Sequence[Setting]:
    cls, options = policy_class(config.policy.name), config.policy.options
    if not dataclasses.is_dataclass(cls):
        return [Setting(Key(_OPTIONS + name, "value", "", ""), yaml_words(value)) for name, value in options.items()]
    keys = option_keys(cls, _OPTIONS)
    values = {key.name: options.get(key.name.removeprefix(_OPTIONS), ...) for key in keys}
    return [Setting(key, key.default if values[key.name] is ... else yaml_words(values[key.name])) for key in keys]


def _setting(config: RunConfig, key: Key) -> Setting | None:
    """None for an existing section, whose keys follow, and for keys of a missing one."""
    value: Any = config
    for part in key.name.split("."):
        field = type(value).model_fields.get(part)
        if field is None:
            return None  # of another engine
        value = getattr(value, part)
        if value is None and section_in(field.annotation) is not None:
            return Setting(key, "`null`") if key.section else None
    if section_in(type(value)) is not None:
        return None
    if isinstance(value, dict) and any(section_in(type(item)) for item in value.values()):
        return Setting(key, "`{" + ", ".join(value) + "}`")
    return Setting(key, yaml_words(value))


# ---- The prompts of a policy as a file -----------------------------------------------------------------------


def prompt_file(policy: PolicyConfig) -> str:
    """The texts of a policy as YAML, which its option `prompts` reads back.

    Raises ConfigError for a policy without such texts.
    """
    wording = build_policy(policy).wording()
    if wording is None:
        raise ConfigError(f"policy {policy.name}: takes no file of prompts; its texts are in its code")
    slots = slots_of(type(wording.texts))
    return "".join(_entry(text, value, slots.get(text)) for text, value in wording.as_file().items())


def _entry(name: str, value: Any, slots: Slots | None) -> str:
    about = "" if slots is None else f"# {_about(slots)}\n"
    text = yaml.dump({name: value}, Dumper=Dumper, allow_unicode=True, width=1000)
    return about + (text.removesuffix("...\n") if text.endswith("\n...\n") else text)  # the mark of a document's end


def _about(slots: Slots) -> str:
    """
    >>> _about(Slots("question", optional=("tools",))), _about(Slots(may_be_empty=True)), _about(Slots("a", when="b=c"))
    ('{question} once; may hold {tools}', 'may be empty', '{a} once; shown with b=c')
    """
    rules = [f"{', '.join(f'{{{name}}}' for name in slots.names)} once"] if slots.names else []
    rules += [f"may hold {', '.join(f'{{{name}}}' for name in slots.optional)}"] if slots.optional else []
    rules += ["may be empty"] if slots.may_be_empty else []
    rules += [f"shown with {slots.when}"] if slots.when else []
    return "; ".join(rules) or "no slot"
