"""Conversations as trajectories: the model's chat template renders them, each trained message becomes a turn.

    whole rendering   <system, tools> <user> <assistant header>|search ...<end>| <tool result> <header>|answer<end>|
    turns             prompt .................................. completion ..... prompt ............... completion

A message's completion begins where the rendering of everything before it, with the header of a reply, ends; it ends
with the model's end-of-turn token. Header, tool results and messages of earlier segments are context. The pieces are
tokenised one by one, as the sampler meets them: a prompt is whole before the reply to it begins.

Guaranteed: the pieces joined are the template's rendering of the whole conversation, character for character, and the
prompt of each turn extends the one before with its completion, so a row is one segment; nothing is cut from a row: one
that doesn't fit is refused, or left out and counted. A row that the template doesn't render piece by piece, whose calls
or tools it doesn't show, or whose text holds control tokens, is refused with its number and the reason.
Not covered: templates that mark the end of a turn by no stop token of the model, which are refused; one that ignores
`add_generation_prompt` leaves the header to the model, in sampling as here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from palimpsest.data.tool_messages import Conversation, called, read_conversations
from palimpsest.errors import DataError, ModelError
from palimpsest.text.codec import Codec
from palimpsest.text.rendering import Refusal
from palimpsest.types import Completion, Outcome, StopReason, Trajectory, Turn


def load_conversations(
    path: str | Path,
    codec: Codec,
    *,
    max_tokens: int,
    drop_too_long: bool = False,
    memory_first: bool = False,
    warn: Callable[[str], None] = print,
) -> list[Trajectory]:
    """A trajectory a row, of at most `max_tokens` tokens; DataError for a longer one unless those are dropped."""
    if not getattr(codec.tokenizer, "chat_template", None):
        raise ModelError("the model's tokenizer has no chat template, which conversations are rendered with")
    found, dropped = [], 0
    for conversation in read_conversations(path, memory_first=memory_first):
        trajectory = trajectory_of(conversation, codec)
        length = len(trajectory.turns[-1].prompt_ids) + len(trajectory.turns[-1].completion.token_ids)
        if length <= max_tokens:
            found.append(trajectory)
        elif drop_too_long:
            dropped += 1
        else:
            raise DataError(
                f"{conversation.where}: {length} tokens, the model's context is {max_tokens}; shorten the row, or "
                "leave out such rows with --drop-too-long"
            )
    if dropped:
        warn(f"{path}: left out {dropped} of {dropped + len(found)} rows, longer than {max_tokens} tokens")
    if not found:
        raise DataError(f"{path}: no row of at most {max_tokens} tokens, the model's context")
    return found


def trajectory_of(conversation: Conversation, codec: Codec) -> Trajectory:
    """One row as an episode of a turn for each message it trains. Raises DataError."""
    _refuse_control_tokens(conversation, codec)
    pieces = _pieces(conversation, codec)
    turns: list[Turn] = []
    prompt = codec.encode_trusted(pieces[0])
    for step, (place, piece) in enumerate(zip(conversation.trained, pieces[1:], strict=True)):
        ids = codec.encode_trusted(piece)
        end = next((at for at, token in enumerate(ids, 1) if token in codec.stop_ids), None)
        if end is None:
            _refuse(conversation, place, "the chat template ends it with no stop token of the model")
        completion = Completion(tuple(ids[:end]), (0.0,) * end, StopReason.STOP)
        turns.append(Turn(tuple(prompt), completion, step, "act"))
        prompt += ids
    return Trajectory(conversation.id, conversation.id, 0, tuple(turns), Outcome.ANSWERED)


def _pieces(conversation: Conversation, codec: Codec) -> list[str]:
    """The rendering, cut where each trained message begins."""
    whole = _render(conversation, codec, len(conversation.messages))
    starts = []
    for place in conversation.trained:
        before = _render(conversation, codec, place, add_generation_prompt=True)
        if not whole.startswith(before):
            _refuse(
                conversation,
                place,
                "the chat template renders what comes before it differently once it is there; take a template that "
                "renders turn by turn, or leave out enable_thinking",
            )
        starts.append(len(before))
    pieces = [whole[start:end] for start, end in zip([0, *starts], [*starts, len(whole)], strict=True)]
    _check_shown(conversation, pieces)
    return pieces


def _check_shown(conversation: Conversation, pieces: list[str]) -> None:
    """Refuse what a template without a place for tools would leave out in silence."""
    for place, piece in zip(conversation.trained, pieces[1:], strict=True):
        if any(name not in piece for name in called(conversation.messages[place])):
            _refuse(conversation, place, "the model's chat template doesn't render tool calls")
    names = [tool.get("function", tool).get("name", "") for tool in conversation.tools]
    if any(name not in pieces[0] for name in names):
        raise DataError(
            f"{conversation.where}: tools: the model's chat template doesn't show {', '.join(names)}; take a model "
            "whose template has tools, or leave the column out"
        )


def _render(conversation: Conversation, codec: Codec, count: int, **options: Any) -> str:
    """The first `count` messages."""
    if conversation.enable_thinking is not None:
        options["enable_thinking"] = conversation.enable_thinking
    tools = [dict(tool) for tool in conversation.tools] or None
    try:
        return codec.render(conversation.messages[:count], tools=tools, **options)
    except Refusal as refusal:
        raise DataError(f"{conversation.where}: the model's chat template refuses its messages ({refusal})") from None


def _refuse_control_tokens(conversation: Conversation, codec: Codec) -> None:
    """Text of a file must not end a turn or open one."""
    added = codec.tokenizer.backend_tokenizer.get_added_tokens_decoder()
    controls = [token.content for id, token in added.items() if token.special or id in codec.stop_ids]
    for text in _texts([*conversation.messages, *conversation.tools]):
        for control in controls:
            if control in text:
                raise DataError(f"{conversation.where}: text holds the control token {control}: take it out of the row")


def _texts(value: Any) -> Iterator[str]:
    """Every string inside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner)
            if isinstance(key, str):
                yield key


def _refuse(conversation: Conversation, place: int, reason: str) -> NoReturn:
    raise DataError(f"{conversation.where}: messages[{place}]: {reason}")
