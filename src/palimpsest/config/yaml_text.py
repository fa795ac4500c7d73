"""YAML as the library reads and writes it.

Guaranteed: values follow YAML 1.2 where 1.1 surprises (`1e-6` is a number, `no` and `on` are text). Duplicate keys,
texts over `MAX_CHARACTERS`, aliases that expand to over `MAX_NODES` values, and cyclic aliases are rejected. Every
error is a `YAMLError`. Written texts read the same in either version. Time is linear in the length of the text; a
short one, as a run reads several times, is parsed once.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any

import yaml

from palimpsest.errors import ConfigError, first_line

_FLOAT = re.compile(
    r"^[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$|^[-+]?\d[\d_]*[eE][-+]?\d+$"
    r"|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
)
_INT = re.compile(r"^[-+]?(0|[1-9][\d_]*)$")
_BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")


MAX_CHARACTERS = 1 << 20
"""Length of a text, which takes about 6 seconds to read; recipes and prompts have some thousand characters."""

KEPT_CHARACTERS = 1 << 14
"""Length of a text whose value is kept; there are at most 128."""

MAX_NODES = 100_000
"""Values in a text, counting each repetition by an alias."""

_MERGE = "tag:yaml.org,2002:merge"  # the key `<<` with defaults for this mapping


class Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's numbers and booleans; rejects duplicate keys and excessive aliases."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _size(node, {}) > MAX_NODES:
            raise yaml.constructor.ConstructorError(None, None, "aliases expand to too many values", node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag != _MERGE]
        used = set()
        for key in (self.construct_object(key, deep=deep) for key in keys):
            if isinstance(key, Hashable):
                if key in used:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key} given twice", node.start_mark)
                used.add(key)
        return super().construct_mapping(node, deep)


_REPLACED = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int", "tag:yaml.org,2002:bool")
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class Dumper(yaml.SafeDumper):
    """SafeDumper with lists on one line and readable multi-line texts."""


for _side in (Loader, Dumper):  # the dumper too: it quotes text that is a number in either YAML version
    _side.add_implicit_resolver(_REPLACED[1], _INT, list("-+0123456789"))
    _side.add_implicit_resolver(_REPLACED[0], _FLOAT, list("-+.0123456789"))
    _side.add_implicit_resolver(_REPLACED[2], _BOOL, list("tTfF"))
Dumper.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def _text(dumper: Dumper, value: str) -> yaml.Node:
    """Block style for multi-line texts; double quotes for other line breaks, which YAML would fold, and blank texts."""
    quoted = any(c in value for c in "\x85\u2028\u2029") or (value != "" and not value.strip("\n"))
    style = '"' if quoted else "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


Dumper.add_representer(str, _text)


def read(text: str) -> Any:
    """Parsed value of `text`. Raises YAMLError.

    >>> read("a: [1e-6, no]")
    {'a': [1e-06, 'no']}
    >>> read("2026-13-45")
    Traceback (most recent call last):
    yaml.error.YAMLError: invalid value: month must be in 1..12
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"{len(text)} characters; the limit is {MAX_CHARACTERS}")
    try:
        return deepcopy(_kept(text)) if len(text) <= KEPT_CHARACTERS else yaml.load(text, Loader=Loader)
    except RecursionError:
        raise yaml.YAMLError("nested too deep") from None
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # of values: dates, numbers, tags out of place
        raise yaml.YAMLError(f"invalid value: {first_line(error)}") from None


@lru_cache(128)
def _kept(text: str) -> Any:
    return yaml.load(text, Loader=Loader)


def _size(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """Nodes below `node`, itself included; `sizes` caches counts, 0 while counting."""
    if node in sizes:
        if sizes[node] == 0:
            raise yaml.constructor.ConstructorError(None, None, "an alias contains itself", node.start_mark)
        return sizes[node]
    sizes[node] = 0
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    sizes[node] = 1 + sum(_size(child, sizes) for child in children)
    return sizes[node]


def refuse_unwritable(value: Any, key: str, source: str) -> None:
    """Raise ConfigError for values that a run's files, a path or a variable can't store: a number beyond 64 bits,
    invalid Unicode, a NUL character, a date or set, a name that is no text."""
    where = f"{source}: {key}" if key else source
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise ConfigError("names there must be text", key=f"{key}.{name}" if key else str(name), value=name)
            refuse_unwritable(name, key, source)
            refuse_unwritable(inner, f"{key}.{name}" if key else str(name), source)
    elif isinstance(value, list | tuple):
        for inner in value:
            refuse_unwritable(inner, key, source)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{where}: a number of {value.bit_length()} bits; at most 63 are possible")
    elif isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{where}: {value!r:.60} contains a NUL character, which ends a path or a name; remove it")
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{where}: {value!a:.60} contains half a character, which no file can store") from None
    elif not isinstance(value, str | int | float | None):
        raise ConfigError(f"{where}: a {type(value).__name__} can't be stored; quote it, or use a list")


def yaml_problem(error: yaml.YAMLError) -> str:
    """Problem and position of the error."""
    mark = getattr(error, "problem_mark", None)
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{getattr(error, 'problem', None) or first_line(error)}{where}"
