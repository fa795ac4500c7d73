"""Tool calls: parsing from a reply, validation against the tool's schema, rendering for a prompt.

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number       Hermes, Qwen 2.5 and 3
    llama3    {"name": ..., "parameters": {...}}, several with ; between them            Llama 3.1 to 3.3
              the whole reply, or all after <|python_tag|>
    mistral   [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]                       Mistral, tokenizers v1 to v7
              [TOOL_CALLS]name[ARGS]{...}, any number, [CALL_ID]id before [ARGS] or not  later ones

A complete call is a `ToolCall`. Anything else that starts like a call is a `Malformed`, with a reason for the model.
Possible quotations are not calls:

- Text up to the end of the first closed thinking (reply_tags.py) is ignored. A call in thinking that begins the reply
  and never ends is malformed.
- A malformed call without a certain end includes the rest of the reply. In hermes that is one with an open string, a
  tag inside, text next to its JSON, or beyond the limits; the other styles have no closing tag, so there it is any call
  whose JSON cannot be read.

Arguments are checked by a small part of JSON Schema:

    type         string, integer, number, boolean, array, object, null, or a list of them
    properties   of an object; any other key is rejected
    required     keys an object must have
    items        schema of every element of an array
    enum         the values allowed
    description, title, default: read by the model, not checked

A schema with any other keyword is rejected at start. Unlike in JSON Schema, `properties` closes an object: a function
takes no unknown argument. 3.0 is not an integer, true is not a number.

Guaranteed: nothing is evaluated; no exception escapes, and no malformed call is lost; spans are in order and disjoint;
time is linear in the reply; JSON is read strictly (json_text.py), at most `MAX_JSON_CHARS` characters of a reply, to
`json_text.MAX_JSON_DEPTH` levels; the check recurses as deep as the schema, not the arguments; its message is short.
Not covered: Llama's `<function=name>` tags and Python calls; thinking after the first that ends; checks by the tool,
such as whether an id exists. `[TOOL_CALLS]` is a control token of some vocabularies: decode the reply with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from palimpsest.errors import ConfigError, nearest
from palimpsest.text.json_text import Unreadable, end_of_value, kind, loaded, shown
from palimpsest.text.reply_tags import Thought, thoughts

CallStyle = Literal["hermes", "llama3", "mistral"]

MAX_JSON_CHARS = 65_536
"""Characters of all calls of a reply together; about four times the text of 4096 tokens."""
MAX_CALLS = 64
"""Calls per reply, malformed ones included; further calls are one more `Malformed`."""
MAX_NAME_CHARS = 128


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call."""

    name: str
    arguments: Mapping[str, Any]
    """JSON values: dict, list, str, int, float, bool, None."""
    start: int
    end: int
    """Characters [start, end) of the reply, tags included."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """An attempted call, and its fault."""

    reason: str
    """One line for the model."""
    start: int
    end: int


def find_calls(text: str, style: CallStyle) -> tuple[ToolCall | Malformed, ...]:
    """The calls of a reply, in order.

    >>> reply = 'So: <tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call> <tool_call>{"na'
    >>> for found in find_calls(reply, "hermes"):
    ...     print(found)
    ToolCall(name='search', arguments={'query': 'Oslo'}, start=4, end=77)
    Malformed(reason='<tool_call> is not closed; the rest of the reply was not read', start=78, end=93)
    >>> find_calls('{"name": "search", "parameters": "Oslo"}', "llama3")
    (Malformed(reason='"parameters" must be a JSON object, not a string', start=0, end=40),)
    >>> [call.name for call in find_calls('[TOOL_CALLS]search[ARGS]{"query": "Oslo"}', "mistral")]
    ['search']
    """
    reader = _CallReader(text, _ARGUMENT_KEYS[style])
    thought = next(thoughts(text), Thought(0, 0))
    try:
        if not thought.unclosed:
            _FINDERS[style](reader, thought.end)
        elif text[: thought.start].strip():  # a tag within the reply is a quotation
            _FINDERS[style](reader, 0)
        elif (opener := text.find(_OPENERS[style])) >= 0:
            reader.refuse(f"{thought.unclosed} is not closed", opener)
    except _Full:
        reader.calls[-1] = Malformed(f"more than {MAX_CALLS} calls in one reply", reader.calls[-1].start, len(text))
    return tuple(reader.calls)


class _Full(Exception):
    """More calls than a reply may have."""


@dataclass
class _CallReader:
    """Calls found in a reply, and the amount of JSON read."""

    text: str
    argument_keys: tuple[str, ...]
    calls: list[ToolCall | Malformed] = field(default_factory=list)
    visited: int = 0

    def add(self, call: ToolCall | Malformed) -> None:
        self.calls.append(call)
        if len(self.calls) > MAX_CALLS:
            raise _Full

    def refuse(self, reason: str, start: int, end: int | None = None) -> None:
        """Record a malformed call. Without an `end` it includes the rest of the reply, a possible quotation."""
        if end is None:
            reason, end = f"{reason}; the rest of the reply was not read", len(self.text)
        self.add(Malformed(reason, start, end))

    def add_value(self, value: Any, start: int, end: int) -> None:
        """Add a whole call in JSON."""
        try:
            name, arguments = _name_and_arguments(value, self.argument_keys)
        except Unreadable as fault:
            self.refuse(fault.reason, start, end)
        else:
            self.add(ToolCall(name, arguments, start, end))

    def value(self, start: int, stop: int | None = None) -> tuple[Any, int]:
        """The JSON object at `start`, and its end."""
        stop = len(self.text) if stop is None else stop
        if not self.text.startswith("{", start):
            raise Unreadable(f"expected a JSON object, found {shown(self.text[start : min(stop, start + 41)])}")
        left = MAX_JSON_CHARS - self.visited
        limit = min(stop, start + left)
        try:
            end = end_of_value(self.text, start, limit)
        except Unreadable as fault:
            self.visited += limit - start
            if limit < stop:
                raise Unreadable(f"the calls of a reply may have {MAX_JSON_CHARS} characters together") from fault
            raise
        self.visited += end - start
        return loaded(self.text[start:end]), end


def _name_and_arguments(value: Any, argument_keys: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a call in JSON; `id` and `type` are ignored."""
    present = [key for key in argument_keys if key in value]
    if "name" not in value or not present:
        lacking = argument_keys[0] if "name" in value else "name"
        raise Unreadable(f'a call needs "name" and "{argument_keys[0]}": "{lacking}" is missing')
    strange = [key for key in value if key not in ("name", "id", "type", present[0])]
    if strange:
        raise Unreadable(f'a call has no key {shown(strange[0])}: what the tool is given goes inside "{present[0]}"')
    arguments = value[present[0]]
    if not isinstance(arguments, dict):
        raise Unreadable(f'"{present[0]}" must be a JSON object, not {kind(arguments)}')
    return _checked_name(value["name"]), arguments


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise Unreadable(f'"name" must be a string, not {kind(name)}')
    if not name.strip():
        raise Unreadable('"name" is empty')
    if len(name) > MAX_NAME_CHARS:
        raise Unreadable(f'"name" has {len(name)} characters, at most {MAX_NAME_CHARS} are allowed')
    return name


_BLANK = re.compile(r"[ \t\r\n]*+")
_BETWEEN = re.compile(r"[ \t\r\n;,]*+")


def _skip(text: str, start: int, what: re.Pattern[str] = _BLANK) -> int:
    match = what.match(text, start)
    return start if match is None else match.end()


_TAG = re.compile("<(/?)tool_call>")


def _find_hermes(reader: _CallReader, start: int) -> None:
    text = reader.text
    while (tag := _TAG.search(text, start)) is not None:
        start = tag.end()
        if tag[1]:
            reader.refuse("</tool_call> without <tool_call>", tag.start(), start)
            continue
        closing = _TAG.search(text, start)
        if closing is None:
            return reader.refuse("<tool_call> is not closed", tag.start())
        if not closing[1]:
            return reader.refuse("<tool_call> inside <tool_call>", tag.start())
        try:
            _read_tagged(reader, tag.start(), start, closing)
        except Unreadable as fault:
            if not fault.bounded:
                return reader.refuse(fault.reason, tag.start())
            reader.refuse(fault.reason, tag.start(), closing.end())
        start = closing.end()


def _read_tagged(reader: _CallReader, outer: int, inner: int, closing: re.Match[str]) -> None:
    """One call between its tags."""
    value, end = reader.value(_skip(reader.text, inner), closing.start())
    rest = _skip(reader.text, end)
    if rest < closing.start():
        raise Unreadable(
            f"after the JSON of a call stands {shown(reader.text[rest : min(closing.start(), rest + 41)])}"
        )
    reader.add_value(value, outer, closing.end())


_PYTHON_TAG = "<|python_tag|>"


def _find_llama3(reader: _CallReader, start: int) -> None:
    text = reader.text
    begin = _skip(text, start)
    marker = text.find(_PYTHON_TAG, start)
    if not text.startswith("{", begin):
        if marker < 0:
            return  # a plain-text reply
        begin = _skip(text, marker + len(_PYTHON_TAG))
    at, first = begin, marker if 0 <= marker < begin else begin
    while at == begin or text.startswith("{", at):
        try:
            value, end = reader.value(at)
        except Unreadable as fault:
            return reader.refuse(fault.reason, first)
        reader.add_value(value, first, end)
        at = first = _skip(text, end, _BETWEEN)


_MARKER = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*+([\w.\-]++)\s*+(?:\[CALL_ID\]\w*+\s*+)?+(?:\[ARGS\]\s*+)?+(?=\{)")


def _find_mistral(reader: _CallReader, start: int) -> None:
    text = reader.text
    while (marker := text.find(_MARKER, start)) >= 0:
        begin = marker + len(_MARKER)
        try:
            if (named := _NAMED.match(text, begin)) is not None:
                arguments, start = reader.value(named.end())
                reader.add(ToolCall(_checked_name(named[1]), arguments, marker, start))
            else:
                start = _read_array(reader, marker, _skip(text, begin))
        except Unreadable as fault:
            first = max([marker, *(call.end for call in reader.calls[-1:])])
            return reader.refuse(fault.reason, _skip(text, first, _BETWEEN))


def _read_array(reader: _CallReader, marker: int, start: int) -> int:
    """The calls of `[{...}, {...}]`, each with a span, the first with the marker; returns the array's end."""
    text = reader.text
    if not text.startswith("[", start):
        raise Unreadable(
            f"after {_MARKER} stands neither an array of calls nor name[ARGS]: {shown(text[start : start + 41])}"
        )
    at, first = _skip(text, start + 1), marker
    while True:
        value, end = reader.value(at)
        reader.add_value(value, first, end)
        at = _skip(text, end)
        if text.startswith("]", at):
            return at + 1
        if not text.startswith(",", at):
            raise Unreadable(f'after a call in the array stands {shown(text[at : at + 41])}, not "," or "]"')
        at = first = _skip(text, at + 1)


_OPENERS: Mapping[CallStyle, str] = {"hermes": "<tool_call>", "llama3": _PYTHON_TAG, "mistral": _MARKER}
_ARGUMENT_KEYS: Mapping[CallStyle, tuple[str, ...]] = {
    "hermes": ("arguments",),
    "llama3": ("parameters", "arguments"),
    "mistral": ("arguments",),
}
_FINDERS: Mapping[CallStyle, Callable[[_CallReader, int], None]] = {
    "hermes": _find_hermes,
    "llama3": _find_llama3,
    "mistral": _find_mistral,
}


# ---- Validation of a call's arguments against a small part of JSON Schema ------------------------------------


Schema = Mapping[str, Any]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_KEYWORDS = {"type", "properties", "required", "items", "enum", "description", "title", "default"}


def check_schema(schema: Schema, where: str = "parameters") -> None:
    """Raise ConfigError if a tool's schema uses unsupported keywords.

    >>> check_schema({"type": "object", "properties": {"query": {"type": "str"}}})
    Traceback (most recent call last):
    palimpsest.errors.ConfigError: tool schema parameters.query.type=str: not a type; did you mean string?
    """
    for keyword in schema:
        if keyword not in _KEYWORDS:
            keywords = ", ".join(sorted(_KEYWORDS))
            raise ConfigError(f"tool schema {where}.{keyword}: not supported; known are {keywords}")
    for name in _types(schema):
        if name not in _TYPES:
            hint = nearest(str(name), _TYPES) or f"; one of {', '.join(_TYPES)}"
            raise ConfigError(f"tool schema {where}.type={name}: not a type{hint}")
    for key in schema.get("required", ()):
        if key not in schema.get("properties", {key: {}}):
            raise ConfigError(f"tool schema {where}.required={key}: describe it under {where}.properties too")
    for key, inner in schema.get("properties", {}).items():
        check_schema(inner, f"{where}.{key}")
    if "items" in schema:
        check_schema(schema["items"], f"{where}[]")


def argument_fault(arguments: Any, schema: Schema) -> str | None:
    """The first fault of a call's arguments, naming key, value and fix; None if valid.

    >>> schema = {"type": "object", "required": ["query"],
    ...           "properties": {"query": {"type": "string"}, "topk": {"type": "integer"}}}
    >>> argument_fault({"query": "Oslo", "topk": "5"}, schema)
    'topk="5" is a string: give an integer'
    >>> argument_fault({"qeury": "Oslo"}, schema)
    'qeury is not an argument: give only query, topk; did you mean query?'
    >>> argument_fault({"topk": 5}, schema)
    'query is missing: add it (string)'
    >>> argument_fault({"query": "Oslo"}, schema) is None
    True
    """
    return _fault(arguments, schema, "")


def _fault(value: Any, schema: Schema, path: str) -> str | None:
    shown = f"{path or 'arguments'}={_shown(value)}"
    types = _types(schema)
    if types and not any(_is(value, name) for name in types):
        return f"{shown} is {_article(_type_of(value))}: give {' or '.join(map(_article, types))}"
    if "enum" in schema and not any(type(value) is type(one) and value == one for one in schema["enum"]):
        return f"{shown} is not allowed: give one of {', '.join(map(_shown, schema['enum']))}"
    if isinstance(value, dict):
        return _object_fault(value, schema, path)
    if isinstance(value, list) and "items" in schema:
        faults = (_fault(one, schema["items"], f"{path}[{index}]") for index, one in enumerate(value))
        return next((fault for fault in faults if fault is not None), None)
    return None


def _object_fault(value: Mapping[str, Any], schema: Schema, path: str) -> str | None:
    prefix = f"{path}." if path else ""
    properties: Mapping[str, Schema] | None = schema.get("properties")
    for key in value:
        if properties is not None and key not in properties:
            advice = f"give only {', '.join(properties)}" if properties else "give none"
            return f"{prefix}{_cut(key)} is not an argument: {advice}{nearest(key[:80], properties)}"
    for key in schema.get("required", ()):
        if key not in value:
            types = " or ".join(_types((properties or {}).get(key, {})))
            return f"{prefix}{key} is missing: add it{f' ({types})' if types else ''}"
    faults = (_fault(value[key], inner, prefix + key) for key, inner in (properties or {}).items() if key in value)
    return next((fault for fault in faults if fault is not None), None)


def _types(schema: Schema) -> list[str]:
    value = schema.get("type", [])
    return [value] if isinstance(value, str) else list(value)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _type_of(value: Any) -> str:
    return next((name for name in _TYPES if _is(value, name)), type(value).__name__)


def _article(name: str) -> str:
    return name if name == "null" else f"an {name}" if name[0] in "aio" else f"a {name}"


def _shown(value: Any) -> str:
    return _cut(json.dumps(value, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- Calls and tools as a model reads and writes them --------------------------------------------------------


_FORMS: Mapping[CallStyle, str] = {
    "hermes": '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>',
    "llama3": '{"name": "...", "parameters": {...}}',
    "mistral": '[TOOL_CALLS][{"name": "...", "arguments": {...}}]',
}


def described_tools(functions: Sequence[Mapping[str, Any]], style: CallStyle) -> str:
    """Tools, in the form of OpenAI's function calling, as text for a chat template that ignores tools."""
    schemas = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    return f"# Tools\n\nTo call a tool, write:\n{_FORMS[style]}\n\nThese are the tools, one a line:\n{schemas}"


def call_text(name: str, arguments: Mapping[str, Any], style: CallStyle) -> str:
    """A call as a model writes it, e.g. in an SFT example.

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
