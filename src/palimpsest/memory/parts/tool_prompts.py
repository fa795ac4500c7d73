"""Prompts of the agents with tools, in our own words, after the structure of MemAct's (arXiv 2510.12635).

`standard` speaks to a pretrained instruction model: a system message, then a user message with a guide and the
question; where nothing can be pruned, what is said of pruning is left out and the rest stays as it is. `short` is what
the embedded model was made for: the question and the names of the tools, no schemas.

Slots are filled in token space (text/template.py): nothing a question or a result says can close a tag that matters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.text.tool_calls import CallStyle
from palimpsest.tools.tool import ToolSpec

PRUNE = ToolSpec(
    name="prune_context",
    description="Delete results of earlier tool calls from the context, after writing down what they are needed for.",
    parameters={
        "type": "object",
        "properties": {
            "memory": {"type": "string", "description": "all that must be remembered of what is deleted"},
            "delete_ids": {
                "type": "array",
                "items": {"type": "string"},
                "description": "ids of the results to delete, as they stand in [id: ...] at their beginning",
            },
        },
        "required": ["memory", "delete_ids"],
    },
)


@dataclass(frozen=True, slots=True)
class ToolPrompts:
    system: str
    """Empty: no system message."""
    system_prune: str
    """What the system message adds where the prune tool is offered."""
    user: str
    """Slots question; {tools} stands for the names of the tools."""
    user_prune: str
    """The same where the prune tool is offered."""
    user_summary: str
    """Slots question, summary: the question after the history gave way to a summary of it."""
    summarise: str
    """Asks for that summary."""
    schemas: bool
    """Whether the tools are described to the model."""
    result: str
    """Slots id, text."""
    pruned: str
    """What a prune that was done says."""
    error_chars: int
    """An error message is cut to this length."""
    short_ids: bool
    """a, b, ..., z, xa, ..., the same for every problem, rather than six letters and digits drawn by the problem."""


_SYSTEM = """You answer questions by research with tools. Look facts up instead of relying on what you remember, one \
small step at a time: a question often needs several searches, each building on what the last one found. Make only a \
few calls at once, read every result, and check an answer before you give it.

When you are certain, or when nothing more can be found, answer without calling a tool: a sentence or two that sum up \
what you found, then a last line that begins with FINAL_ANSWER: and holds the answer alone, as short as it can be. If \
the question has several parts named Q1, Q2 and so on, write after FINAL_ANSWER: one JSON object with these names as \
keys and the answers as strings."""

_SYSTEM_PRUNE = """## Managing your context

Your context is limited, and long contexts make for poor reasoning. With prune_context you delete results you no \
longer need: name their ids and write a memory that replaces them. The results and the calls that made them are then \
gone for good; the call of prune_context with its memory stays in their place, until you prune that too.

- Prune whenever results are used up, repeat each other or led nowhere; do not wait until the context is full.
- Write the memory before anything is lost: it must make sense by itself to a reader who sees nothing else.
- After a prune there are gaps in the conversation. That is intended: go on from the latest memory. What isn't in it \
is not known; look it up again if it is needed, and mark what you only suppose as an assumption.
- Answering comes first: when you know the answer, give it instead of pruning."""

_GUIDE = """<developer_message>
Guide to prune_context

1. Find the ids of results that are superseded, redundant, failed, or whose conclusion is drawn.
2. Write `memory` in this form:
[OBJECTIVE] what is asked
[CONCLUSIONS] the facts established so far, each with what it rests on
[STATUS] what is done, and the next step
3. Call prune_context with `memory` and these ids in `delete_ids`.

Copy ids exactly as they stand at the beginning of the results; never make one up, never name one twice. Prune little \
and often. Keep results whose facts you haven't written down yet.
</developer_message>

"""
_QUERY = "<user_query>\n{question}\n</user_query>"

STANDARD = ToolPrompts(
    system=_SYSTEM,
    system_prune=_SYSTEM_PRUNE,
    user=_QUERY,
    user_prune=_GUIDE + _QUERY,
    user_summary=_QUERY + "\n\nYour research so far, as you summed it up before the context was cleared:\n\n"
    "<summary>\n{summary}\n</summary>\n\nGo on from there.",
    summarise="The context is full and will be cleared: only the question and what you write now will be left. Sum up "
    "your research: the facts you established, each with what it rests on, what you tried without success, what is "
    "still open, and the next step. Call no tool and don't answer the question yet.",
    schemas=True,
    result="[id: {id}] {text}",
    pruned="Deleted: {ids}. Go on from the memory.",
    error_chars=400,
    short_ids=False,
)

SHORT = ToolPrompts(
    system="",
    system_prune="",
    user="Problem: {question}\nTools: {tools}",
    user_prune="Problem: {question}\nTools: {tools}",
    user_summary="Problem: {question}\nMemory:{summary}\nTools: {tools}",
    summarise="Update the memory.",
    schemas=False,
    result="[{id}] {text}",
    pruned="done",
    error_chars=80,
    short_ids=True,
)

TOOL_PROMPTS = {"standard": STANDARD, "short": SHORT}


def tool_prompts(name: str) -> ToolPrompts:
    """The prompts called `name`."""
    if name not in TOOL_PROMPTS:
        raise ConfigError(f"policy.options.prompts={name!r}: choose one of {', '.join(TOOL_PROMPTS)}")
    return TOOL_PROMPTS[name]


_FORMS: Mapping[CallStyle, str] = {
    "hermes": '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>',
    "llama3": '{"name": "...", "parameters": {...}}',
    "mistral": '[TOOL_CALLS][{"name": "...", "arguments": {...}}]',
}


def described_tools(specs: Sequence[ToolSpec], style: CallStyle) -> str:
    """The tools in words, for a chat template that has no place for them."""
    schemas = "\n".join(json.dumps(spec.function(), ensure_ascii=False) for spec in specs)
    return f"# Tools\n\nTo call a tool, write:\n{_FORMS[style]}\n\nThese are the tools, one a line:\n{schemas}"


def call_text(name: str, arguments: Mapping[str, Any], style: CallStyle) -> str:
    """A call as a model writes it: what a teacher shows.

    >>> print(call_text("search", {"query": "Oslo"}, "hermes"))
    <tool_call>
    {"name": "search", "arguments": {"query": "Oslo"}}
    </tool_call>
    """
    return calls_text([(name, arguments)], style)


def calls_text(calls: Sequence[tuple[str, Mapping[str, Any]]], style: CallStyle) -> str:
    """The calls of one reply, (name, arguments) each.

    >>> calls_text([("search", {"query": "Oslo"}), ("search", {"query": "Rome"})], "llama3")
    '{"name": "search", "parameters": {"query": "Oslo"}}; {"name": "search", "parameters": {"query": "Rome"}}'
    >>> calls_text([("search", {"query": "Oslo"})], "mistral")
    '[TOOL_CALLS][{"name": "search", "arguments": {"query": "Oslo"}}]'
    """
    key = "parameters" if style == "llama3" else "arguments"
    said = [json.dumps({"name": name, key: dict(arguments)}, ensure_ascii=False) for name, arguments in calls]
    if style == "hermes":
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in said)
    return "; ".join(said) if style == "llama3" else f"[TOOL_CALLS][{', '.join(said)}]"
