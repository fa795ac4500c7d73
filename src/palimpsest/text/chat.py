r"""Chat conversations in token space: pieces of any chat template, role markers for endpoints.

The template is rendered with marks instead of messages and cut there; each piece is tokenised once. For Qwen 2.5, where
successive results share one user turn:

    opening      <|im_start|>system\n..# Tools..<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n
    generation   <|im_start|>assistant\n
    (a reply, as it was sampled)
    end          <|im_end|>                      only if the reply was cut before it sampled one; context, never trained
    to_results   \n<|im_start|>user\n<tool_response>\n
    (a result)
    between      \n</tool_response>\n<tool_response>\n
    (a result)
    last         \n</tool_response><|im_end|>\n<|im_start|>assistant\n

Fallbacks for a template's limits: the system message describes omitted tools; a rejected system message goes to the top
of the user message; rejected results become a user message. If nothing works, ModelError.

For endpoints that take messages, a codec is built over any tokenizer. Its only control tokens are our role markers, and
its chat template writes them; the tokenizer only counts and cuts. Prompts are then turned back into messages:

    <|palimpsest:system|>Be brief.<|palimpsest:end|><|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]

Guaranteed: sampled ids are never rendered or encoded again, so the prompt after a reply extends the one before, even if
the template changes older messages (strips their thinking, moves their tools); only the template produces role markers,
so no text can start or end a message; with a byte-level tokenizer a message's content is exactly its text.
Not covered: results whose text the template would escape (Llama's JSON strings), which are inserted unescaped; ids and
names of calls at chat level, which are the same constants for all; text that the endpoint itself takes for a marker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from palimpsest.errors import ModelError
from palimpsest.text.chat_template import Message, Refusal
from palimpsest.text.codec import Codec, cached_on_codec, without_added_tokens
from palimpsest.text.template import Template, cut_at_marks, mark, marked_slots
from palimpsest.text.tool_calls import FORMATS, CallStyle, ToolCall, find_calls, shape
from palimpsest.types import Prompt

Tokens = tuple[int, ...]

_CALL_ID = "call00000"  # nine letters and digits, as Mistral's templates demand
_USER: Message = {"role": "user", "content": mark("user")}
_NEXT: Message = {"role": "user", "content": mark("next")}
_PLAIN: Message = {"role": "assistant", "content": mark("reply")}
_CALLING: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": _CALL_ID,
            "type": "function",
            "function": {"name": "tool", "arguments": {"text": mark("reply")}},
        }
    ],
}


@dataclass(frozen=True, slots=True)
class ChatPieces:
    """Pieces around replies and results; see the module's example."""

    generation: Tokens
    end: Tokens
    to_results: Tokens
    between: Tokens
    last: Tokens
    """After the last result, including the start of the model's turn."""
    stop_ids: frozenset[int]
    """Last tokens of a reply after which no `end` is added."""
    to_user: Tokens | None
    """After the last result before a user message; None if the template forbids one."""
    after_user: Tokens
    """After that user message, including the start of the model's turn."""

    def exchange(self, reply: Sequence[int], results: Sequence[Sequence[int]]) -> Prompt:
        """[T] a reply with its results, up to the model's next turn."""
        return Prompt.joined([self.open_exchange(reply, results), self.last])

    def open_exchange(self, reply: Sequence[int], results: Sequence[Sequence[int]]) -> Prompt:
        """[T] a reply with its results, the last one still open."""
        pieces = [reply]
        if not (reply and reply[-1] in self.stop_ids):
            pieces.append(self.end)
        for number, result in enumerate(results):
            pieces += [self.between if number else self.to_results, result]
        return Prompt.joined(pieces)


@cached_on_codec
def chat_pieces(codec: Codec) -> ChatPieces:
    """The pieces of the model's chat template. Raises ModelError without one, or if it cannot show a result."""
    if not codec.has_template:
        raise ModelError("the model has no chat template, which an agent with tools needs: take an instruction model")
    generation = _generation(codec)
    for reply in (_PLAIN, _CALLING):
        around = _texts_around(codec, [_USER, reply, _result("one"), _result("two")], ("user", "reply", "one", "two"))
        if around is None:
            continue
        end, to_results = _ending(codec, around[2], plain=reply is _PLAIN)
        if reply is _CALLING and not end:
            continue  # where the call's own syntax ends is unknown
        following = _texts_around(codec, [_USER, reply, _result("one"), _NEXT], ("user", "reply", "one", "next"))
        return ChatPieces(
            generation=generation,
            end=end,
            to_results=to_results,
            between=_encoded(codec, around[3]),
            last=_encoded(codec, around[4]),
            stop_ids=_closing(codec, end),
            to_user=None if following is None else _encoded(codec, following[3]),
            after_user=() if following is None else _encoded(codec, following[4]),
        )
    return user_pieces(codec)


@cached_on_codec
def user_pieces(codec: Codec) -> ChatPieces:
    """The pieces of a conversation in which one user message has all results of a reply. Raises ModelError."""
    if not codec.has_template:
        raise ModelError("the model has no chat template, which an agent needs: take an instruction model")
    around = _texts_around(codec, [_USER, _PLAIN, {"role": "user", "content": mark("one")}], ("user", "reply", "one"))
    if around is None:
        raise ModelError("the model's chat template renders neither tool messages nor a second user message")
    end, to_results = _ending(codec, around[2], plain=True)
    gap, last = _encoded(codec, "\n\n"), _encoded(codec, around[3])
    return ChatPieces(_generation(codec), end, to_results, gap, last, frozenset(codec.stop_ids), gap, last)


@cached_on_codec
def opening(
    codec: Codec, system: str, user: str, slots: tuple[str, ...], tools: str, described: str, native: bool = True
) -> Template:
    """Template of everything before the model's first turn, without the start of that turn.

    `user` contains the slots; `tools` is a JSON array in the form of OpenAI's function calling; `described` is the
    same as text, for templates that omit `tools`, or without `native`. An empty `system` adds no message.
    """
    content, offered = marked_slots(user, slots), json.loads(tools)
    instructions = "\n\n".join(part for part in (system, described if offered else "") if part)
    tries: list[tuple[str, str, list[Any]]] = [(system, content, offered)] if offered and native else []
    tries += [(instructions, content, []), ("", "\n\n".join(part for part in (instructions, content) if part), [])]
    for system_text, user_text, functions in tries:
        messages: list[Message] = [{"role": "system", "content": system_text}] if system_text else []
        messages.append({"role": "user", "content": user_text})
        text = _rendered(codec, messages, tools=functions or None, speak=False)
        if text is None or (functions and not _tools_shown(codec, text, messages, functions)):
            continue
        template = cut_at_marks(codec, text)
        if sorted(template.slots) == sorted(slots):
            return template
    raise ModelError("the model's chat template does not render a user message: check its chat_template")


_TYPES = {
    "query": "string",
    "limit": "integer",
    "exact": "boolean",
    "ratio": "number",
    "where": "object",
    "tags": "array",
}
_SCHEMA = {"type": "object", "properties": {name: {"type": of, "description": name} for name, of in _TYPES.items()}}
_LOOK_UP = {"name": "look_up", "description": "looks up", "parameters": _SCHEMA}
_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"query": "Omar é", "limit": 3, "exact": True},
    {"query": "42", "tags": ["a", "b"], "where": {"k": [1.5, False, {"z": "w"}]}, "ratio": -0.5},
    {"query": 'a "q" {x}\ny\'s \\ <b>', "where": {"it's": 'a "q"\n'}},
)


def described_tools(functions: Sequence[Mapping[str, Any]], style: CallStyle) -> str:
    """Tools, in the form of OpenAI's function calling, as text for a chat template that ignores tools."""
    schemas = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    return f"# Tools\n\nTo call a tool, write:\n{shape(style)}\n\nThese are the tools, one a line:\n{schemas}"


@cached_on_codec
def native_style(codec: Codec) -> CallStyle | None:
    """The format that reads back the calls in the model's template, None if none does.

    It must read the first probe and misread none; a template that escapes nothing makes some unreadable.
    """
    texts = [_call_in_template(codec, arguments) for arguments in _ARGUMENTS]
    counts = {style: _read_back(texts, style) for style in FORMATS}
    best = max(counts, key=lambda style: counts[style])
    return best if counts[best] else None


def _call_in_template(codec: Codec, arguments: dict[str, Any]) -> str:
    """A call with these arguments, or with their JSON if the template demands it; "" if it rejects both."""
    tools = [{"type": "function", "function": _LOOK_UP}]
    for given in (arguments, json.dumps(arguments, ensure_ascii=False)):
        call = {"id": _CALL_ID, "type": "function", "function": {"name": "look_up", "arguments": given}}
        calling: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        prompt, text = (
            _rendered(codec, messages, tools=tools, speak=speak)
            for messages, speak in (([_USER], True), ([_USER, calling], False))
        )
        if prompt is not None and text is not None:  # their thinking may differ
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, text, strict=False)))
            return text[len(re.sub(r"<[^<>]*\Z", "", text[:same])) :]  # not within a tag
    return ""


def _read_back(texts: Sequence[str], style: CallStyle) -> int:
    """The number of probes that a format reads back; 0 if it lacks the first or misreads one."""
    count = 0
    for text, arguments in zip(texts, _ARGUMENTS, strict=True):
        calls = [one for one in find_calls(text, style, {"look_up": _SCHEMA}) if isinstance(one, ToolCall)]
        read = [json.dumps([one.name, one.arguments], sort_keys=True) for one in calls]  # as JSON, since 1 == True
        if read == [json.dumps(["look_up", arguments], sort_keys=True)]:
            count += 1
        elif read or not count:
            return 0
    return count


def _closing(codec: Codec, end: Tokens) -> frozenset[int]:
    """The stop tokens; `end` alone if it is no end of a plain reply: it starts the results (Gemma, GLM, gpt-oss)."""
    after = _texts_around(codec, [_USER, _PLAIN, _NEXT], ("user", "reply", "next"))
    opens = after is not None and end[-1:] and end[-1] not in _encoded(codec, after[2])
    return frozenset(end[-1:] if opens else codec.stop_ids)


def _tools_shown(codec: Codec, text: str, messages: Sequence[Message], tools: Sequence[Any]) -> bool:
    without = _rendered(codec, messages, speak=False) or ""
    names = [tool["function"]["name"] for tool in tools]
    return all(text.count(name) > without.count(name) for name in names)


def _result(name: str) -> Message:
    return {"role": "tool", "name": "tool", "tool_call_id": _CALL_ID, "content": mark(name)}


def _generation(codec: Codec) -> Tokens:
    silent, speaking = (_rendered(codec, [_USER], speak=speak) for speak in (False, True))
    if silent is None or speaking is None or not speaking.startswith(silent):
        raise ModelError(
            "the model's chat template rewrites the user message when the model is to speak; use another model's"
        )
    return _encoded(codec, speaking[len(silent) :])


def _ending(codec: Codec, text: str, *, plain: bool) -> tuple[Tokens, Tokens]:
    ids = _encoded(codec, text)
    at = next((index for index, i in enumerate(ids) if i in codec.stop_ids), None)
    if at is None:
        return (), ids
    return ids[: at + 1] if plain else ids[at : at + 1], ids[at + 1 :]


def _texts_around(codec: Codec, messages: Sequence[Message], names: Sequence[str]) -> list[str] | None:
    text = _rendered(codec, messages, speak=True)
    if text is None:
        return None
    texts = []
    for name in names:
        before, separator, text = text.partition(mark(name))
        if not separator or mark(name) in text:
            return None
        texts.append(before)
    return [*texts, text]


def _rendered(codec: Codec, messages: Sequence[Message], *, speak: bool, tools: list[Any] | None = None) -> str | None:
    try:
        return codec.render(messages, tools=tools, add_generation_prompt=speak)
    except Refusal:
        return None


def _encoded(codec: Codec, text: str) -> Tokens:
    return tuple(codec.encode_trusted(text)) if text else ()


# ---- Prompts for endpoints that take messages ----------------------------------------------------------------


ROLES = ("system", "user", "assistant")
_ROLE_MARKER = "<|palimpsest:%s|>"
_END = _ROLE_MARKER % "end"
_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ '<|palimpsest:' + message['role'] + '|>' + message['content'] + '<|palimpsest:end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|palimpsest:assistant|>{% endif %}"
)


def neutral_codec(codec: Codec) -> Codec:
    """A codec over the tokenizer of `codec`, with our markers as its only control tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=without_added_tokens(codec.tokenizer.backend_tokenizer),
        eos_token=_END,
        additional_special_tokens=[_ROLE_MARKER % role for role in ROLES],
        chat_template=_TEMPLATE,
    )
    return Codec(tokenizer)


def messages_of(ids: Sequence[int], codec: Codec) -> list[dict[str, str]]:
    """Messages of a prompt built with a `neutral_codec`. Raises ValueError for text outside or a started reply."""
    roles = {codec.encode_trusted(_ROLE_MARKER % role)[0]: role for role in ROLES}
    (end,) = codec.encode_trusted(_END)
    messages: list[dict[str, str]] = []
    rest = tuple(ids)
    while end in rest:
        at = rest.index(end)
        role, content = roles.get(rest[0]), rest[1:at]
        if role is None or not codec.control_ids.isdisjoint(content):
            raise ValueError("the prompt is not a sequence of whole messages, which chat endpoints need")
        messages.append({"role": role, "content": codec.decode(content)})
        rest = rest[at + 1 :]
    if not messages or [roles.get(token_id) for token_id in rest] != ["assistant"]:
        raise ValueError("the prompt doesn't end at the start of a reply, which chat endpoints need")
    return messages
