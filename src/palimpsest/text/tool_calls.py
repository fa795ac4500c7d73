"""Tool calls: parsing from a reply and rendering for a prompt, in the formats of `FORMATS`.

    hermes      <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number       Hermes, Qwen 2.5 and 3
    llama3      {"name": ..., "parameters": {...}}, several with ; between them            Llama 3.1 to 3.3
                the whole reply, or all after <|python_tag|>
    mistral     [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]                       Mistral, tokenizers v1 to v7
                [TOOL_CALLS]name[ARGS]{...}, any number, [CALL_ID]id before [ARGS] or not  later ones
    qwen_coder  <tool_call><function=name><parameter=key>value</parameter></function></tool_call>
                                                                                           Qwen 3 Coder, Nemotron 3
    glm         <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>   GLM 4.5
    gemma4      <|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>              Gemma 4
    harmony     to=functions.name<|channel|>commentary json<|message|>{...}<|call|>        gpt-oss
    lfm2        <|tool_call_start|>[name(key='text', other=3), ...]<|tool_call_end|>       LFM 2

A complete call is a `ToolCall`. Anything else that starts like a call is a `Malformed`, with a reason for the model.
Possible quotations are not calls:

- Text up to the end of the first closed thinking (reply_tags.py) is ignored, unless that end is inside a complete call.
  A call in thinking that begins the reply and never ends is malformed.
- A malformed call without a certain end includes the rest of the reply. In hermes that is one with an open string, a
  tag inside, text next to its JSON, or beyond the limits; in the other styles it is any call that cannot be read.

Values in tags (qwen_coder, glm) have no quotes: the tool's schema says what is text (tool_schema.py).

Guaranteed: nothing is evaluated; no exception escapes, and no malformed call is lost; spans are in order and disjoint;
time is linear in the reply; JSON is read strictly (json_text.py), at most `MAX_JSON_CHARS` characters of a reply, to
`json_text.MAX_JSON_DEPTH` levels. The notations of gemma4 and lfm2 are rewritten as JSON first.
Not covered: Llama's `<function=name>` tags and Python calls; thinking after the first that ends; values that contain
the tag or quote that ends them. Openers such as `[TOOL_CALLS]` are control tokens of some vocabularies: decode the
reply with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from palimpsest.text.answers import gives_answer
from palimpsest.text.json_text import GEMMA, PYTHON, Unreadable, as_json, kind, loaded, shown, valid
from palimpsest.text.reply_tags import Thought, thoughts
from palimpsest.text.tool_schema import Schema, named_call, value_of

CallStyle = Literal["hermes", "llama3", "mistral", "qwen_coder", "glm", "gemma4", "harmony", "lfm2"]

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
    unread: bool = field(default=False, repr=False)
    """True for something like a call in another format."""


def find_calls(
    text: str, style: CallStyle, schemas: Mapping[str, Schema] | None = None
) -> tuple[ToolCall | Malformed, ...]:
    """The calls of a reply, in order. `schemas`: the parameters of the tools by name.

    >>> reply = 'So: <tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call> <tool_call>{"na'
    >>> for found in find_calls(reply, "hermes"):
    ...     print(found)
    ToolCall(name='search', arguments={'query': 'Oslo'}, start=4, end=77)
    Malformed(reason='<tool_call> is not closed; the rest of the reply was not read', start=78, end=93)
    """
    reader, thought = _CallReader(text, schemas or {}), _first_thought(text)
    if thought.unclosed and not text[: thought.start].strip():
        if opener := _CALL_LIKE.search(text):
            reader.refuse(f"{thought.unclosed} is not closed", opener.start())
        return tuple(reader.calls)
    end = 0 if thought.unclosed else thought.end  # an open tag within the reply is a quotation
    first = thought.start if text.startswith("<think", thought.start) else end  # where a call that quotes it may start
    found = reader.read(style, 0)
    quoted = any(isinstance(one, ToolCall) and one.start <= first and one.start < end < one.end for one in found)
    return found if quoted or not end else _CallReader(text, schemas or {}).read(style, end)


def _first_thought(text: str) -> Thought:
    """The first thinking; Gemma's ends with a tag of another form."""
    return next(thoughts(text), Thought(0, text.find("<channel|>") + 1))


_CALL_LIKE = re.compile(
    r"[<\[][^<>\[\]\s]{0,20}(?i:tool.?calls?|function.?calls?|python_(?:tag|start)|start_action|function=|invoke)"
    r"|to=functions\.|\bcall:[\w.]{1,99}\{|\A\s*+\[\w++\(\w++="  # also without tags, which some servers drop
)


def calls_in(text: str, style: CallStyle, schemas: Mapping[str, Schema]) -> tuple[ToolCall | Malformed, ...]:
    """The calls of a reply to an agent with tools of these names; without one in `style`, what looks like a call: the
    opener of another format, its whole call, or, before no answer, a tool's name where calls have it.

    >>> [one.reason for one in calls_in("[TOOL_CALLS]search[ARGS]{}", "llama3", {})]
    ['unreadable call; write: {"name": "NAME", "parameters": {"ARGUMENT": "VALUE"}}']
    >>> len(calls_in("Action: search", "hermes", {"search": {}}))
    1
    >>> calls_in("The search found tea.", "llama3", {"search": {}})
    ()
    """
    found = find_calls(text, style, schemas)
    if any(isinstance(one, ToolCall) for one in found):
        return found
    others = (one for other in FORMATS if other != style for one in find_calls(text, other))
    start = next((one.start for one in others if isinstance(one, ToolCall)), None)
    if found:
        return tuple(replace(one, unread=start is not None) for one in found if isinstance(one, Malformed))
    begin = 0 if (thought := _first_thought(text)).unclosed else thought.end
    if like := _CALL_LIKE.search(text, begin):
        start = like.start()
    elif start is None and (named := named_call(schemas).search(text, begin)) and not gives_answer(text[named.end() :]):
        start = named.start()
    reason = f"unreadable call; write: {shape(style)}"
    return () if start is None else (Malformed(reason, start, len(text), unread=True),)


class _Full(Exception):
    """More calls than a reply may have."""


@dataclass
class _CallReader:
    """Calls found in a reply, and the amount of JSON read."""

    text: str
    schemas: Mapping[str, Schema]
    calls: list[ToolCall | Malformed] = field(default_factory=list)
    visited: int = 0

    def read(self, style: CallStyle, start: int) -> tuple[ToolCall | Malformed, ...]:
        try:
            FORMATS[style].find(self, start)
        except _Full:
            reason = f"more than {MAX_CALLS} calls in one reply"
            self.calls[-1] = Malformed(reason, self.calls[-1].start, len(self.text))
        return tuple(self.calls)

    def add(self, call: ToolCall | Malformed) -> None:
        self.calls.append(call)
        if len(self.calls) > MAX_CALLS:
            raise _Full

    def refuse(self, reason: str, start: int, end: int | None = None) -> None:
        """Record a malformed call. Without an `end` it includes the rest of the reply, a possible quotation."""
        if end is None:
            reason, end = f"{reason}; the rest of the reply was not read", len(self.text)
        self.add(Malformed(reason, start, end))

    def add_value(self, value: Any, start: int, end: int, keys: tuple[str, ...] = ("arguments",)) -> None:
        try:
            name, arguments = _name_and_arguments(value, keys)
        except Unreadable as fault:
            self.refuse(fault.reason, start, end)
        else:
            self.add(ToolCall(name, arguments, start, end))

    def value(self, start: int, stop: int | None = None, notation: re.Pattern[str] | None = None) -> tuple[Any, int]:
        """The JSON object at `start`, or an object in another notation (json_text.py), and its end."""
        stop = len(self.text) if stop is None else stop
        if notation is None and not self.text.startswith("{", start):
            raise Unreadable(f"expected a JSON object, found {shown(self.text[start:stop])}")
        limit = min(stop, start + MAX_JSON_CHARS - self.visited)
        try:
            piece, end = as_json(self.text, start, limit, notation)
        except Unreadable as fault:
            self.visited += limit - start
            if limit < stop:
                raise Unreadable(f"the calls of a reply may have {MAX_JSON_CHARS} characters together") from fault
            raise
        self.visited += end - start
        return loaded(piece), end


def _name_and_arguments(value: Any, argument_keys: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
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
    return match.end() if (match := what.match(text, start)) else start


_TAG = re.compile("<(/?)tool_call>")


def _find_tagged(reader: _CallReader, start: int, read: Callable[..., None]) -> None:
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
            read(reader, tag.start(), start, closing)
        except Unreadable as fault:
            if not fault.bounded:
                return reader.refuse(fault.reason, tag.start())
            reader.refuse(fault.reason, tag.start(), closing.end())
        start = closing.end()


def _read_json(reader: _CallReader, outer: int, inner: int, closing: re.Match[str]) -> None:
    value, end = reader.value(_skip(reader.text, inner), closing.start())
    rest = _skip(reader.text, end)
    if rest < closing.start():
        raise Unreadable(f"there is text after the JSON of a call: {shown(reader.text[rest : closing.start()])}")
    reader.add_value(value, outer, closing.end())


_NAME = r"[\w.:/\-]++"
_QWEN_CODER = [
    rf"\s*+<function=({_NAME})>\s*+",
    r"<parameter=([^<>\n]++)>\n?(.*?)\n?</parameter>\s*+",
    r"</function>\s*+",
]
_GLM = [rf"\s*+({_NAME})\s*+", r"<arg_key>([^<>]++)</arg_key>\s*+<arg_value>(.*?)</arg_value>\s*+", ""]


def _read_pairs(reader: _CallReader, outer: int, inner: int, closing: re.Match[str], patterns: Sequence[str]) -> None:
    """One call whose arguments are in tags, as text; the patterns are of its head, an argument, and its tail."""
    head, pair, tail = (re.compile(pattern, re.DOTALL) for pattern in patterns)
    text, at, stop, arguments = reader.text, inner, closing.start(), dict[str, Any]()
    if (named := head.match(text, at, stop)) is not None:
        properties, at = reader.schemas.get(named[1], {}).get("properties", {}), named.end()
        while (found := pair.match(text, at, stop)) is not None:
            if (key := valid(found[1])) in arguments:
                raise Unreadable(f"the argument {shown(key)} occurs twice")
            arguments[key], at = value_of(found[2], properties.get(key, {})), found.end()
    ended = tail.match(text, at, stop)
    if named is None or ended is None or ended.end() < stop:
        raise Unreadable(f"expected a name, then arguments in their tags, found {shown(text[at:stop])}")
    reader.add(ToolCall(_checked_name(named[1]), arguments, outer, closing.end()))


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
        reader.add_value(value, first, end, ("parameters", "arguments"))
        at = first = _skip(text, end, _BETWEEN)


_NAMED = re.compile(r"([\w.\-]++)\s*+(?:\[CALL_ID\]\w*+\s*+)?+(?:\[ARGS\]\s*+)?+(?=\{)")


def _find_marked(reader: _CallReader, start: int, marker: str, read: Callable[..., int]) -> None:
    while (at := reader.text.find(marker, start)) >= 0:
        try:
            start = read(reader, at, _skip(reader.text, at + len(marker)))
        except Unreadable as fault:
            first = max([at, *(call.end for call in reader.calls[-1:])])
            return reader.refuse(fault.reason, _skip(reader.text, first, _BETWEEN))


def _read_mistral(reader: _CallReader, first: int, at: int) -> int:
    if _NAMED.match(reader.text, at):
        return _read_named(reader, first, at, _NAMED)
    return _read_array(reader, first, at, _read_value)


def _read_value(reader: _CallReader, first: int, at: int) -> int:
    value, end = reader.value(at)
    reader.add_value(value, first, end)
    return end


def _read_named(
    reader: _CallReader,
    first: int,
    at: int,
    head: re.Pattern[str],
    notation: re.Pattern[str] | None = None,
    end: str = "",
) -> int:
    if (named := head.match(reader.text, at)) is None:
        raise Unreadable(f"expected a name and its arguments, found {shown(reader.text[at:])}")
    arguments, at = reader.value(named.end(), notation=notation)
    if not reader.text.startswith(end, at):
        raise Unreadable(f"expected {end}, found {shown(reader.text[at:])}")
    reader.add(ToolCall(_checked_name(named[1]), arguments, first, at + len(end)))
    return at + len(end)


def _read_array(reader: _CallReader, marker: int, start: int, read: Callable[[_CallReader, int, int], int]) -> int:
    """The calls of `[..., ...]`, each with a span, the first with the marker; returns the array's end."""
    text = reader.text
    if not text.startswith("[", start):
        raise Unreadable(
            f"after {text[marker:start].strip()}: neither an array of calls nor name[ARGS], found {shown(text[start:])}"
        )
    at, first = _skip(text, start + 1), marker
    while True:
        at = _skip(text, read(reader, first, at))
        if text.startswith("]", at):
            return at + 1
        if not text.startswith(",", at):
            raise Unreadable(f'after a call in the array: expected "," or "]", found {shown(text[at:])}')
        at = first = _skip(text, at + 1)


_HARMONY = re.compile(rf"<\|(start|end|call|return|message)\|>|to=functions\.({_NAME})")


def _find_harmony(reader: _CallReader, start: int) -> None:
    """Calls of messages: a header, <|message|>, a body. The first header starts in the prompt."""
    first, header, name = start, True, ""
    for part in [*_HARMONY.finditer(reader.text, start), None]:
        if part is not None and part.start() < start:
            continue  # inside the arguments
        if part is not None and part[2]:
            name = part[2] if header else ""  # a body may mention the recipient
        elif name and part is not None and part[1] == "message":
            try:
                arguments, start = reader.value(_skip(reader.text, part.end()))
                reader.add(ToolCall(_checked_name(name), arguments, first, start))
            except Unreadable as fault:
                return reader.refuse(fault.reason, first)
            header, name = False, ""
        else:
            if name:
                reader.refuse("a call lacks <|message|> and its arguments", first, part.start() if part else None)
            header, name = part is not None and part[1] != "message", ""
            first = first if part is None else part.start() if part[1] == "start" else part.end()
    return None


_GEMMA_CALL, _LFM_CALL = (
    re.compile(rf"{before}({_NAME})(?={opening})") for before, opening in (("call:", r"\{"), ("", r"\("))
)


# ---- Calls and tools as a model reads and writes them --------------------------------------------------------


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_call(name: str, arguments: Mapping[str, Any], key: str = "arguments") -> str:
    return _json({"name": name, key: dict(arguments)})


def _in_tags(call: str, argument: str, name: str, arguments: Mapping[str, Any]) -> str:
    values = ((key, value if isinstance(value, str) else _json(value)) for key, value in arguments.items())
    return call.format(name, "".join(argument.format(*pair) for pair in values))


_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"(:?)')


def _gemma_value(value: Any) -> str:
    """JSON with other quotes, none around simple keys."""

    def quoted(found: re.Match[str]) -> str:
        text = json.loads(found[0].removesuffix(":"))
        return (text if found[1] and re.fullmatch(r"\w+", text) else f'<|"|>{text}<|"|>') + found[1]

    return _JSON_STRING.sub(quoted, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How calls are found in a reply, and written."""

    find: Callable[[_CallReader, int], None]
    write: Callable[[str, Mapping[str, Any]], str]
    """A call, from its name and arguments."""
    between: str = ""
    before: str = ""
    after: str = ""
    """Text between, before and after the calls of a reply."""


_XML = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>", "<parameter={}>\n{}\n</parameter>\n"
_ARGS = "<tool_call>{}\n{}</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"
_read_gemma = partial(_read_named, head=_GEMMA_CALL, notation=GEMMA, end="<tool_call|>")
_read_lfm = partial(_read_array, read=partial(_read_named, head=_LFM_CALL, notation=PYTHON))

FORMATS: Mapping[CallStyle, CallFormat] = {
    "hermes": CallFormat(
        partial(_find_tagged, read=_read_json), lambda *call: f"<tool_call>\n{_json_call(*call)}\n</tool_call>", "\n"
    ),
    "llama3": CallFormat(_find_llama3, partial(_json_call, key="parameters"), "; "),
    "mistral": CallFormat(
        partial(_find_marked, marker="[TOOL_CALLS]", read=_read_mistral), _json_call, ", ", "[TOOL_CALLS][", "]"
    ),
    "qwen_coder": CallFormat(
        partial(_find_tagged, read=partial(_read_pairs, patterns=_QWEN_CODER)), partial(_in_tags, *_XML), "\n"
    ),
    "glm": CallFormat(partial(_find_tagged, read=partial(_read_pairs, patterns=_GLM)), partial(_in_tags, *_ARGS), "\n"),
    "gemma4": CallFormat(
        partial(_find_marked, marker="<|tool_call>", read=_read_gemma),
        lambda name, given: f"<|tool_call>call:{name}{_gemma_value(given)}<tool_call|>",
    ),
    "harmony": CallFormat(
        _find_harmony,
        lambda name, given: f" to=functions.{name}<|channel|>commentary json<|message|>{_json(dict(given))}",
        "<|call|><|start|>assistant",
    ),
    "lfm2": CallFormat(
        partial(_find_marked, marker="<|tool_call_start|>", read=_read_lfm),
        lambda name, given: f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})",
        ", ",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
    ),
}


def shape(style: CallStyle) -> str:
    """A call with placeholders."""
    return call_text("NAME", {"ARGUMENT": "VALUE"}, style).strip()


def call_text(name: str, arguments: Mapping[str, Any], style: CallStyle) -> str:
    """A call as a model writes it, e.g. in an SFT example."""
    return calls_text([(name, arguments)], style)


def calls_text(calls: Sequence[tuple[str, Mapping[str, Any]]], style: CallStyle) -> str:
    """The calls of one reply, (name, arguments) each.

    >>> calls_text([("search", {"query": "Oslo"}), ("search", {"query": "Rome"})], "llama3")
    '{"name": "search", "parameters": {"query": "Oslo"}}; {"name": "search", "parameters": {"query": "Rome"}}'
    """
    form = FORMATS[style]
    return form.before + form.between.join(form.write(*call) for call in calls) + form.after
