"""Recorded conversations as trajectories, with tool calls as in MemAct's SFT parquet.

A row (docs/how-to/warm-start.md) is one segment of a trajectory. A prune cuts a trajectory, and each row repeats the
surviving messages. To train no message twice, an assistant message is trained only in the row in which it was
generated: after the last prune in the row, or, if the row ends in a prune, after the second last (MemAct's rule;
messages by number):

    0 system  1 user  2 search  3 tool  4 prune                         trained 2, 4
    0 system  1 user  4 prune   5 tool  6 search  7 tool  8 answer      trained 6, 8

The template's rendering is tokenised piece by piece, like the sampler's. A completion starts after the rendering of
everything before it, with the header of a reply, and ends with the model's end-of-turn token. Header, tool results and
messages of earlier segments are context.

Guaranteed: the joined pieces are the template's rendering of the whole conversation, and each turn's prompt extends
the previous one with its completion. Messages, tools and arguments retain their order and text; arguments in JSON text
are parsed, so that no template escapes them twice; None, parquet's filler, is omitted. A row is never cut: a row that
does not fit is rejected, or skipped and counted. A row that the template does not render piece by piece, whose calls
or tools it does not show, or whose text contains control tokens, is rejected with file, row and reason.
Not covered: templates that end a turn without a stop token of the model (rejected); templates that ignore
`add_generation_prompt`, so that the model generates the header; calls written into `content` as text; JSON nulls
inside arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from palimpsest.data.files.rows import Row, read_rows
from palimpsest.data.formats import fields
from palimpsest.errors import DataError, ModelError
from palimpsest.notes import Note
from palimpsest.text.chat_template import Refusal
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Outcome, StopReason, Trajectory, Turn

# ---- Reading: one segment of a trajectory per row ------------------------------------------------------------


PRUNE = "prune_context"
MEMORY_FIRST = ("memory", "delete_ids")
"""Order of a prune's arguments with the memory before the ids that it replaces."""

_ROLES = ("system", "developer", "user", "assistant", "tool")

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One row, without messages after its last assistant message."""

    id: str
    where: str
    """File and row, for error messages."""
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    enable_thinking: bool | None
    """None: the template's default."""

    @property
    def trained(self) -> tuple[int, ...]:
        """Numbers of the assistant messages that this row trains; always includes the last message."""
        return trained_messages(self.messages)


def trained_messages(messages: Sequence[Message]) -> tuple[int, ...]:
    """The assistant messages generated after the last surviving prune.

    >>> prune = {"role": "assistant", "tool_calls": [{"function": {"name": "prune_context", "arguments": {}}}]}
    >>> search = {"role": "assistant", "tool_calls": [{"function": {"name": "search", "arguments": {}}}]}
    >>> user, tool, answer = {"role": "user"}, {"role": "tool"}, {"role": "assistant"}
    >>> trained_messages([user, search, tool, prune]), trained_messages([user, prune, tool, search, tool, answer])
    ((1, 3), (3, 5))
    """
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    prunes = [index for index in replies if PRUNE in called(messages[index])]
    if prunes and prunes[-1] == replies[-1]:
        prunes.pop()  # generated in this row, like the messages before it
    return tuple(index for index in replies if not prunes or index > prunes[-1])


def called(message: Message) -> tuple[str, ...]:
    return tuple(call["function"]["name"] for call in message.get("tool_calls", ()))


def read_conversations(path: str | Path, *, memory_first: bool = False) -> Iterator[Conversation]:
    """Rows of a file in order; `memory_first` puts a prune's `memory` before its `delete_ids`. Raises DataError."""
    path = Path(path)
    for row in read_rows(path):
        messages = _list(row, fields.get(row, row.values, "messages"), "messages")
        parsed = [_message(row, message, f"messages[{i}]", memory_first) for i, message in enumerate(messages)]
        while parsed and parsed[-1]["role"] != "assistant":
            parsed.pop()
        if not parsed:
            raise DataError(f"{row.where}: messages has none with role 'assistant' to imitate")
        tools = _list(row, row.values.get("tools") or [], "tools")
        for i, tool in enumerate(tools):
            shown = tool.get("function", tool) if isinstance(tool, Mapping) else tool
            fields.text(row, fields.get(row, shown, "name", f"tools[{i}]"), f"tools[{i}].name")
        thinking = row.values.get("enable_thinking")
        if thinking is not None and not isinstance(thinking, bool):
            raise DataError(f"{row.where}: enable_thinking must be true or false, is {thinking!r:.40}")
        name = fields.identity(row, f"{path.stem}-{row.index}")
        yield Conversation(name, row.where, tuple(parsed), tuple(map(_without_none, tools)), thinking)


def _message(row: Row, message: Any, field: str, memory_first: bool) -> dict[str, Any]:
    role = fields.get(row, message, "role", field)
    if role not in _ROLES:
        raise DataError(f"{row.where}: {field}.role={role!r:.40}: expected one of {', '.join(_ROLES)}")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise DataError(f"{row.where}: {field}.content must be a string, is {type(content).__name__}: {content!r:.60}")
    rest = {str(key): _without_none(value) for key, value in message.items() if value is not None}
    rest = {**rest, "role": role, "content": content or ""}
    calls = _list(row, rest.pop("tool_calls", None) or [], f"{field}.tool_calls")
    if calls:
        rest["tool_calls"] = [
            _call(row, call, f"{field}.tool_calls[{i}]", memory_first) for i, call in enumerate(calls)
        ]
    return rest


def _call(row: Row, call: Any, field: str, memory_first: bool) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else call
    name = fields.text(row, fields.get(row, function, "name", field), f"{field}.name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = _parsed(row, arguments, f"{field}.arguments")
    if not isinstance(arguments, Mapping):
        raise DataError(f"{row.where}: {field}.arguments must be an object, is {arguments!r:.60}")
    arguments = dict(arguments)
    if memory_first and name == PRUNE:
        arguments = {key: arguments[key] for key in MEMORY_FIRST if key in arguments} | arguments
    identity = {"id": call["id"]} if "id" in call else {}
    return {**identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _list(row: Row, value: Any, name: str) -> list[Any]:
    items = _parsed(row, value, name) if isinstance(value, str) else value
    if not isinstance(items, list):
        raise DataError(f"{row.where}: {name} must be a list, is {type(items).__name__}: {items!r:.60}")
    return items


def _parsed(row: Row, text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{row.where}: {name} is not valid JSON ({error}): {text!r:.60}") from None


def _without_none(value: Any) -> Any:
    """`value` without keys that parquet filled with None.

    >>> _without_none({"query": "Oslo", "memory": None, "more": [{"topk": None}]})
    {'query': 'Oslo', 'more': [{}]}
    """
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


# ---- Conversations as trajectories ---------------------------------------------------------------------------


def load_conversations(
    path: str | Path,
    codec: Codec,
    *,
    max_tokens: int,
    drop_too_long: bool = False,
    memory_first: bool = False,
    warn: Callable[[str], None] = print,
) -> list[Trajectory]:
    """One trajectory per row. Raises DataError for more than `max_tokens` tokens unless `drop_too_long`."""
    if not getattr(codec.tokenizer, "chat_template", None):
        raise ModelError("the model's tokenizer has no chat template; conversations need one")
    trajectories, dropped = [], 0
    for conversation in read_conversations(path, memory_first=memory_first):
        trajectory = trajectory_of(conversation, codec)
        length = len(trajectory.turns[-1].prompt_ids) + len(trajectory.turns[-1].completion.token_ids)
        if length <= max_tokens:
            trajectories.append(trajectory)
        elif drop_too_long:
            dropped += 1
        else:
            raise DataError(
                f"{conversation.where}: {length} tokens, the model's context is {max_tokens}; shorten the row, or "
                "skip such rows with --drop-too-long"
            )
    if dropped:
        counts = {"count": dropped, "total": dropped + len(trajectories), "tokens": max_tokens}
        warn(Note("rows_too_long", path=str(path), **counts))
    if not trajectories:
        raise DataError(f"{path}: no row of at most {max_tokens} tokens, the model's context")
    return trajectories


def trajectory_of(conversation: Conversation, codec: Codec) -> Trajectory:
    """One row as an episode with one turn per trained message. Raises DataError."""
    _refuse_control_tokens(conversation, codec)
    pieces = _pieces(conversation, codec)
    turns: list[Turn] = []
    prompt = codec.encode_trusted(pieces[0])
    for step, (index, piece) in enumerate(zip(conversation.trained, pieces[1:], strict=True)):
        ids = codec.encode_trusted(piece)
        end = next((at for at, token in enumerate(ids, 1) if token in codec.stop_ids), None)
        if end is None:
            _refuse(conversation, index, "the chat template ends it with no stop token of the model")
        completion = Completion(tuple(ids[:end]), (0.0,) * end, StopReason.STOP)
        turns.append(Turn(tuple(prompt), completion, step, "act"))
        prompt += ids
    return Trajectory(conversation.id, conversation.id, 0, tuple(turns), Outcome.ANSWERED)


def _pieces(conversation: Conversation, codec: Codec) -> list[str]:
    rendered = _render(conversation, codec, len(conversation.messages))
    starts = []
    for index in conversation.trained:
        before = _render(conversation, codec, index, add_generation_prompt=True)
        if not rendered.startswith(before):
            _refuse(
                conversation,
                index,
                "the chat template renders earlier messages differently once this one follows; use a template that "
                "renders turn by turn, or omit enable_thinking",
            )
        starts.append(len(before))
    pieces = [rendered[start:end] for start, end in zip([0, *starts], [*starts, len(rendered)], strict=True)]
    _check_shown(conversation, pieces)
    return pieces


def _check_shown(conversation: Conversation, pieces: list[str]) -> None:
    for index, piece in zip(conversation.trained, pieces[1:], strict=True):
        if any(name not in piece for name in called(conversation.messages[index])):
            _refuse(conversation, index, "the model's chat template doesn't render tool calls")
    names = [tool.get("function", tool).get("name", "") for tool in conversation.tools]
    if any(name not in pieces[0] for name in names):
        raise DataError(
            f"{conversation.where}: tools: the model's chat template doesn't show {', '.join(names)}; use a model "
            "whose template has tools, or omit the column"
        )


def _render(conversation: Conversation, codec: Codec, count: int, **options: Any) -> str:
    if conversation.enable_thinking is not None:
        options["enable_thinking"] = conversation.enable_thinking
    tools = [dict(tool) for tool in conversation.tools] or None
    try:
        return codec.render(conversation.messages[:count], tools=tools, **options)
    except Refusal as refusal:
        raise DataError(f"{conversation.where}: the model's chat template rejects its messages ({refusal})") from None


def _refuse_control_tokens(conversation: Conversation, codec: Codec) -> None:
    controls = [codec.decode([i]) for i in sorted(codec.role_ids)]
    for text in _texts([*conversation.messages, *conversation.tools]):
        for control in controls:
            if control in text:
                raise DataError(
                    f"{conversation.where}: text contains the control token {control}: remove it from the row"
                )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner)
            if isinstance(key, str):
                yield key


def _refuse(conversation: Conversation, index: int, reason: str) -> NoReturn:
    raise DataError(f"{conversation.where}: messages[{index}]: {reason}")
