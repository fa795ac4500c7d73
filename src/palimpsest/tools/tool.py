"""What a tool is. tools/shipped_tools.py builds the configured ones.

Not covered: a tool that blocks the event loop; use `asyncio.to_thread` inside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.text.tool_calls import Schema
from palimpsest.types import Problem


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


class Tool(ABC):
    """One object answers the calls of many episodes at once.

    A class of the user's own may inherit this or not; what it doesn't define is as here.
    """

    __slots__ = ()

    spec: ToolSpec

    def admit(self, problem: Problem) -> None:  # noqa: B027  most tools refuse nothing
        """Refuse with DataError, at load, a problem that the tool can't serve."""

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any], problem: Problem) -> str:
        """The result's text. `arguments` suit the schema. Raises ToolError with a line for the model."""
