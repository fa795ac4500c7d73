"""Calls and tools as a model reads and writes them: the opposite of text/tool_calls.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from palimpsest.text.tool_calls import CallStyle

_FORMS: Mapping[CallStyle, str] = {
    "hermes": '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>',
    "llama3": '{"name": "...", "parameters": {...}}',
    "mistral": '[TOOL_CALLS][{"name": "...", "arguments": {...}}]',
}


def described_tools(functions: Sequence[Mapping[str, Any]], style: CallStyle) -> str:
    """Tools, in the form of OpenAI's function calling, in words: for a chat template that has no place for them."""
    schemas = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
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
    written = [json.dumps({"name": name, key: dict(arguments)}, ensure_ascii=False) for name, arguments in calls]
    if style == "hermes":
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)
    return "; ".join(written) if style == "llama3" else f"[TOOL_CALLS][{', '.join(written)}]"
