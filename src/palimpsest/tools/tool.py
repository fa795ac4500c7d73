"""What a tool is, and how the configured ones are built.

    tools: {search: {topk: 3}}                  a shipped tool with its options
    tools: {"my_module:MyTool": {size: 2}}      the user's own: MyTool(size=2), looked for in the current folder too

Guaranteed: names are unique, schemas are of the kind that text/tool_arguments.py can check; what is wrong is a
ConfigError before any episode.
Not covered: a tool that blocks the event loop; use `asyncio.to_thread` inside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from palimpsest.errors import ConfigError
from palimpsest.plugins import named_class
from palimpsest.text.tool_arguments import Schema, check_schema
from palimpsest.types import Problem

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class ToolError(Exception):
    """A call that can't be answered; the message is one line for the model."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What the model is told of a tool."""

    name: str
    description: str
    parameters: Schema

    def function(self) -> dict[str, Any]:
        """In the form of OpenAI's function calling, which chat templates expect."""
        about = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": about}


@runtime_checkable
class Tool(Protocol):
    """One object answers the calls of many episodes at once. A method `admit(problem)`, if there is one, refuses with
    DataError, at load, a problem that the tool can't serve."""

    spec: ToolSpec

    async def call(self, arguments: Mapping[str, Any], problem: Problem) -> str:
        """The result's text. `arguments` suit the schema. Raises ToolError with a line for the model."""
        ...


def build_tools(config: Mapping[str, Mapping[str, Any]]) -> tuple[Tool, ...]:
    """The configured tools, in order. Raises ConfigError."""
    tools = tuple(_build(name, options) for name, options in config.items())
    names = [tool.spec.name for tool in tools]
    for tool in tools:
        name = tool.spec.name
        if not _NAME.fullmatch(name):
            raise ConfigError(f"tool name {name!r}: letters, digits and _ . - only, at most 64, a letter first")
        if names.count(name) > 1:
            raise ConfigError(f"policy.options.tools: two tools are called {name}; rename one")
        check_schema(tool.spec.parameters, name)
    return tools


def _build(name: str, options: Mapping[str, Any]) -> Tool:
    cls = _tool_class(name)
    try:
        tool = cls(**(options or {}))
    except TypeError as error:
        raise ConfigError(f"policy.options.tools.{name}: {error}") from None
    if not isinstance(tool, Tool) or not isinstance(tool.spec, ToolSpec):
        raise ConfigError(f"policy.options.tools.{name}: a tool needs `spec`, a ToolSpec, and the coroutine `call`")
    return tool


def _tool_class(name: str) -> type[Any]:
    from palimpsest.tools.search_tool import SearchTool  # it needs ToolSpec from here

    return named_class(name, {"search": SearchTool}, f"policy.options.tools.{name}", "tool")
