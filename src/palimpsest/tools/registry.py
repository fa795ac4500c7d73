"""Building the configured tools.

    tools: {search: {topk: 3}}                  a shipped tool with its options
    tools: {"my_module:MyTool": {size: 2}}      the user's own: MyTool(size=2), looked for in the current folder too

Guaranteed: options are checked by the annotations of the tool's constructor, names are unique, schemas are of the kind
that text/tool_arguments.py can check; what is wrong is a ConfigError before any episode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from palimpsest.config import options as typed
from palimpsest.errors import ConfigError
from palimpsest.plugins import completed, named_class
from palimpsest.text.tool_arguments import check_schema
from palimpsest.tools.search_tool import SearchTool
from palimpsest.tools.tool import Tool, ToolSpec

TOOLS: dict[str, type[Tool]] = {"search": SearchTool}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def build_tools(config: Mapping[str, Mapping[str, Any] | None]) -> tuple[Tool, ...]:
    """The configured tools, in order. Raises ConfigError."""
    tools = tuple(_build(name, options or {}) for name, options in config.items())
    names = [tool.spec.name for tool in tools]
    for tool in tools:
        name = tool.spec.name
        if not _NAME.fullmatch(name):
            raise ConfigError(f"tool name {name!r}: letters, digits and _ . - only, at most 64, a letter first")
        if names.count(name) > 1:
            raise ConfigError(f"policy.options.tools: two tools are called {name}; rename one")
        check_schema(tool.spec.parameters, name)
    return tools


def tool_class(name: str) -> type[Tool]:
    """The class called `name`. Raises ConfigError."""
    where = f"policy.options.tools.{name}"
    cls = named_class(name, TOOLS, where, "tool")
    if not callable(getattr(cls, "call", None)):
        raise ConfigError(f"{where}: {_NEEDS}")
    return completed(cls, Tool)  # type: ignore[type-abstract]


def _build(name: str, options: Mapping[str, Any]) -> Tool:
    where = f"policy.options.tools.{name}"
    tool = typed.build(tool_class(name), options, where, name)
    if not isinstance(getattr(tool, "spec", None), ToolSpec):
        raise ConfigError(f"{where}: {_NEEDS}")
    return tool


_NEEDS = "a tool needs `spec`, a ToolSpec, and the coroutine `call`"
