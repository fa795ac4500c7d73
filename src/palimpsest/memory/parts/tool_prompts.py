"""Texts that all agents with tools share, in our own words, after the structure of MemAct's (arXiv 2510.12635).

`standard` speaks to a pretrained instruction model: a system message, then a user message with the question. `short` is
what the embedded model was made for: the question and the names of the tools, no schemas. What a policy says besides
stands in its own file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from palimpsest.memory.parts.prompts import PromptSet, Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPrompts(PromptSet):
    """Texts of an agent with tools, and how results are shown to it."""

    user: Annotated[str, Slots("question", optional=("tools",))] = ""
    """{tools}: the names of the tools."""
    schemas: bool = True
    """Whether the tools are described to the model."""
    result: Annotated[str, Slots("id", "text")] = "[id: {id}] {text}"
    error_chars: int = 400
    """An error message is cut to this length."""
    short_ids: bool = False
    """a, b, ..., z, xa, ..., the same for every problem, rather than six letters and digits drawn by the problem."""


_SYSTEM = """You answer questions by research with tools. Look facts up instead of relying on what you remember, one \
small step at a time: a question often needs several searches, each building on what the last one found. Make only a \
few calls at once, read every result, and check an answer before you give it.

When you are certain, or when nothing more can be found, answer without calling a tool: a sentence or two that sum up \
what you found, then a last line that begins with FINAL_ANSWER: and holds the answer alone, as short as it can be. If \
the question has several parts named Q1, Q2 and so on, write after FINAL_ANSWER: one JSON object with these names as \
keys and the answers as strings."""

QUERY = "<user_query>\n{question}\n</user_query>"

STANDARD = ToolPrompts(system=_SYSTEM, user=QUERY)

SHORT = ToolPrompts(
    user="Problem: {question}\nTools: {tools}", schemas=False, result="[{id}] {text}", error_chars=80, short_ids=True
)
