"""YAML as the library reads and writes it.

Guaranteed: values are read as in YAML 1.2 where 1.1 surprises (`1e-6` is a number, `no` and `on` are text); a key given
twice is refused; what is written reads the same in either version.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_FLOAT = re.compile(
    r"^[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$|^[-+]?\d[\d_]*[eE][-+]?\d+$"
    r"|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
)
_INT = re.compile(r"^[-+]?(0|[1-9][\d_]*)$")
_BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")


_MERGE = "tag:yaml.org,2002:merge"  # the key `<<`, whose mapping gives what isn't given here


class Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's numbers and booleans, refusing a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [key for key, _ in node.value if key.tag != _MERGE]
        keys = [self.construct_object(key, deep=deep) for key in own]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key} given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_REPLACED = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int", "tag:yaml.org,2002:bool")
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class Dumper(yaml.SafeDumper):
    """SafeDumper with lists on one line, and texts of several lines as they are read."""


for _side in (Loader, Dumper):  # the dumper too: text is quoted that either version of YAML would read as a number
    _side.add_implicit_resolver(_REPLACED[1], _INT, list("-+0123456789"))
    _side.add_implicit_resolver(_REPLACED[0], _FLOAT, list("-+.0123456789"))
    _side.add_implicit_resolver(_REPLACED[2], _BOOL, list("tTfF"))
Dumper.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def _text(dumper: Dumper, value: str) -> yaml.Node:
    """Several lines as they are; in double quotes where a line breaks by another character than a newline, which other
    styles would fold."""
    style = '"' if any(c in value for c in "\x85\u2028\u2029") else "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


Dumper.add_representer(str, _text)


def first_line(error: yaml.YAMLError) -> str:
    """What is wrong, and where."""
    mark = getattr(error, "problem_mark", None)
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{getattr(error, 'problem', None) or str(error).splitlines()[0]}{where}"
