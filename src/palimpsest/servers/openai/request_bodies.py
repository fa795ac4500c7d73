"""Bodies of requests: the JSON of a chat completion as a `ChatBody`, errors in OpenAI's form.

Guaranteed: a key that is unknown, or asks for what can't be done, is rejected by its name, or its name is put on a list
where the server ignores such keys; no other is ignored that would change the answer. `null` is a key left out, and so
is one that asks for what is done anyway (`n: 1`, `tools: []`). JSON is bounded in values, before it is parsed, and in
depth, so that it costs little more memory than its texts. No address is fetched.
Not covered: the parsing of a bounded body, which gives nobody a turn: 0.1 s for a text of 64 MiB.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palimpsest.servers.http_service import Refused, shown

_VALUES, _NESTING = 500_000, 64
"""Strings, commas and brackets of a body, each of which may cost 50 bytes; lists and objects in each other, of which a
request has five."""
_KEYS, MESSAGES = 10_000, 10_000
"""Keys of an object; messages of a conversation, and parts of a message."""
_STOPS = 4
_UNUSED = ("user", "safety_identifier", "prompt_cache_key", "store", "service_tier")  # they change no answer
Neutral = Mapping[str, tuple[Any, ...]]
NEUTRAL: Neutral = {
    "n": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}
"""What can't be done, and the values that ask for nothing."""


# ---- The wire ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a message, with what it holds."""

    data: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    text: str
    files: tuple[FilePart, ...] = ()


class StrictBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class ExtraFields(StrictBody):
    """The field `palimpsest`: what OpenAI's interface has no place for."""

    document: str | None = None
    question: str | None = None
    questions: list[str] | None = Field(default=None, min_length=1, max_length=100)
    progress: bool = True
    """Whether a stream tells of the memory as it changes."""
    raw: bool = False
    r"""Whether the answer keeps its `\boxed{}`."""
    seed: int | None = None


class StreamOptions(StrictBody):
    include_usage: bool = False
    include_obfuscation: bool = False


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class ChatBody(StrictBody):
    """What a client asks, however it came."""

    model: str
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[str], Field(max_length=_STOPS)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    metadata: Annotated[Metadata, Field(max_length=16)] = {}
    palimpsest: ExtraFields = ExtraFields()
    _ignored: tuple[str, ...] = ()

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of unsupported parameters, of a server that doesn't reject them."""
        return self._ignored

    @property
    def answer_tokens(self) -> int | None:
        limits = (self.max_completion_tokens, self.max_tokens)
        return min((limit for limit in limits if limit is not None), default=None)


def chat_body(body: bytes, lenient: bool = False) -> ChatBody:
    """The body of POST /v1/chat/completions; `lenient`: what is unsupported is ignored. Raises Refused."""
    ignored: list[str] | None = [] if lenient else None
    return validated(supported(json_object(body), NEUTRAL, ignored), ignored)


def supported(fields: Mapping[str, Any], neutral: Neutral, ignored: list[str] | None) -> dict[str, Any]:
    """What is left of `fields` without keys that ask for nothing. Raises Refused for one that can't be followed; with
    `ignored`, its name is added there instead."""
    remaining = {name: value for name, value in fields.items() if value is not None and name not in _UNUSED}
    for name in [name for name in neutral if name in remaining]:
        value = remaining.pop(name)
        if any(_same(value, default) for default in neutral[name]):
            continue
        if ignored is None:
            allowed = " or ".join(orjson.dumps(default).decode() for default in neutral[name])
            raise unsupported(name, f"not possible here; leave it out{allowed and f' or give {allowed}'}")
        ignored.append(name)
    return remaining


def validated(fields: dict[str, Any], ignored: list[str] | None) -> ChatBody:
    """Raises Refused. With `ignored`, unknown keys are left out and added there, but for those of `palimpsest`."""
    fields["messages"] = _messages(fields.get("messages"), ignored)
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    while True:
        try:
            chat = ChatBody.model_validate(fields)
            break
        except ValidationError as error:
            for path in _unknown(error.errors(include_url=False), ignored):
                (fields if len(path) == 1 else fields[path[0]]).pop(path[-1])
    if not all(chat.stop):
        raise invalid("stop", f"one to {_STOPS} texts, none of them empty")
    chat._ignored = tuple(ignored or ())
    return chat


def _unknown(errors: Sequence[Any], ignored: list[str] | None) -> list[tuple[str, ...]]:
    """Places of unknown keys, which are added to `ignored`. Raises Refused where there is another error."""
    unknown = [
        error["loc"] for error in errors if error["type"] == "extra_forbidden" and error["loc"][0] != "palimpsest"
    ]
    if any(error["loc"][0] == "metadata" for error in errors):  # no answer depends on it
        unknown = [("metadata",)]
    if ignored is None or not unknown:
        path = ".".join(map(str, errors[0]["loc"]))
        if errors[0]["type"] == "extra_forbidden":
            raise Refused(400, f"{path}: not known here; leave it out", code="unknown_parameter", param=path)
        raise invalid(path, f"{errors[0]['msg']}, is {shown(errors[0]['input'])}")
    ignored += [".".join(path) for path in unknown]
    return unknown


def _same(value: object, other: object) -> bool:
    """Equal, and of one type: `True` is no 1, but 0.0 is 0."""
    numbers = (int, float)
    return value == other and (type(value) is type(other) or (type(value) in numbers and type(other) in numbers))


# ---- JSON within bounds --------------------------------------------------------------------------------------


_VALUE = re.compile(rb',|\[|\{|"[^"]*+"?')


def json_object(body: bytes) -> dict[str, Any]:
    """Raises Refused for what is no JSON object, or too much of one."""
    if _more_values_than(_VALUES, body):
        raise Refused(400, f"the body holds more than {_VALUES} JSON values", code="invalid_json")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON ({error})", code="invalid_json") from None
    if deeper_than(value, _NESTING):
        raise Refused(400, f"the body is JSON nested deeper than {_NESTING}", code="invalid_json")
    if not isinstance(value, dict):
        raise Refused(400, f"the body is a {type(value).__name__}, a JSON object is needed", code="invalid_json")
    if max(len(entry) for entry in (value, *value.values()) if isinstance(entry, dict)) > _KEYS:  # an error for each
        raise Refused(400, f"an object of the body has more than {_KEYS} keys", code="invalid_json")
    return value


def _more_values_than(most: int, body: bytes) -> bool:
    """Whether there are more strings, and commas and brackets outside of them.

    >>> [_more_values_than(most, b'{"a,,,,": [1, "b"]}') for most in (4, 5)]
    [True, False]
    """
    if sum(map(body.count, (b",", b"[", b"{", b'"'))) <= most:  # those in strings, too: nearly always decides
        return False
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")  # strings then end at their next quote
    return sum(1 for _ in islice(_VALUE.finditer(bare), most + 1)) > most


def deeper_than(value: object, levels: int) -> bool:
    """Whether lists and objects stand in each other beyond that.

    >>> deeper_than([{"a": []}], 3), deeper_than([{"a": []}], 2)
    (False, True)
    """
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        layer = [node for node in layer if isinstance(node, dict | list)]
        if not layer:
            return False
        layer = [inner for node in layer for inner in (node.values() if isinstance(node, dict) else node)]
    return True


# ---- Messages ------------------------------------------------------------------------------------------------


INSTRUCTING = ("system", "developer")
_ROLES = (*INSTRUCTING, "user", "assistant", "tool")
_MESSAGE_KEYS = ("role", "content", "name", "type", "id", "status", "refusal", "reasoning", "reasoning_content")
_TOOL_KEYS = {"assistant": "tool_calls", "tool": "tool_call_id"}
"""The call of a tool is not read; what the tool gave is."""


def _messages(messages: object, ignored: list[str] | None) -> object:
    if not isinstance(messages, list):
        return messages
    if len(messages) > MESSAGES:
        raise invalid("messages", f"at most {MESSAGES} messages, are {len(messages)}")
    return [_message(message, f"messages.{at}", ignored) for at, message in enumerate(messages)]


def _message(message: object, where: str, ignored: list[str] | None) -> Message:
    if not isinstance(message, dict):
        raise invalid(where, f"a message is an object, is {shown(message)}")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise invalid(f"{where}.role", f"one of {', '.join(_ROLES)}, is {shown(role)}")
    for name in message:
        if message[name] and name not in (*_MESSAGE_KEYS, _TOOL_KEYS.get(role)):
            if ignored is None:
                raise unsupported(f"{where}.{name}", "not possible here; leave it out")
            ignored.append(f"{where}.{name}")
    if isinstance(content, str) or (content is None and role == "assistant"):
        return Message(role, content or "")
    if not isinstance(content, list) or not 0 < len(content) <= MESSAGES:
        raise invalid(f"{where}.content", f"a text or a list of 1 to {MESSAGES} parts, is {shown(content)}")
    pieces = [_part(part, f"{where}.content.{at}") for at, part in enumerate(content)]
    files = tuple(part for part in pieces if isinstance(part, FilePart))
    if files and role != "user":
        raise invalid(f"{where}.content", "files belong into messages of the user")
    return Message(role, "\n".join(part for part in pieces if isinstance(part, str)), files)


def _part(part: object, where: str) -> str | FilePart:
    if not isinstance(part, dict):
        raise invalid(where, f"a part is an object, is {shown(part)}")
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        if not isinstance(part.get("text"), str):
            raise invalid(f"{where}.text", f"a text, is {shown(part.get('text'))}")
        return str(part["text"])
    if kind not in ("file", "input_file"):
        raise unsupported(f"{where}.type", f"{shown(kind)} is not possible here; parts are text or file")
    file = part.get("file") if kind == "file" else part
    if not isinstance(file, dict):
        raise invalid(f"{where}.file", f"an object with file_data, is {shown(file)}")
    for name in ("file_url", "file_id"):
        if file.get(name):
            raise unsupported(f"{where}.{name}", "nothing is fetched or kept; send what the file holds as file_data")
    data, name = file.get("file_data"), file.get("filename") or ""
    if not data or not isinstance(data, str) or not isinstance(name, str):
        raise invalid(where, "a file has its content as file_data, and may have a filename, both texts")
    mime, content = _decoded(data, f"{where}.file_data")
    return FilePart(content, name or f"file{mimetypes.guess_extension(mime) or '.txt'}")


def _decoded(data: str, where: str) -> tuple[str, bytes]:
    """(media type, bytes) of a data URL, or of base64 alone."""
    mime, (head, comma, rest) = "text/plain", data.partition(",")
    if data.startswith("data:") and comma:
        if not head.endswith(";base64"):
            raise invalid(where, "a data URL ends its head with ;base64")
        mime, data = head.removeprefix("data:").split(";")[0], rest
    try:
        return mime, base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(where, "base64, or data:TYPE;base64,..., is needed") from None


def user_text(messages: Sequence[Message]) -> str:
    """What the user said last."""
    return next((message.text for message in reversed(messages) if message.role == "user" and message.text.strip()), "")


# ---- Errors --------------------------------------------------------------------------------------------------


def openai_error(refused: Refused) -> dict[str, Any]:
    """As OpenAI's clients read it.

    >>> openai_error(Refused(400, "n: at most 1", code="unsupported_parameter", param="n"))["error"]["type"]
    'invalid_request_error'
    """
    kinds = {403: "permission_error", 429: "rate_limit_error"}
    kind = "server_error" if refused.status >= 500 else kinds.get(refused.status, "invalid_request_error")
    return {"error": {"message": str(refused), "type": kind, "param": refused.param, "code": refused.code}}


def unsupported(name: str, advice: str) -> Refused:
    return Refused(400, f"{name}: {advice}", code="unsupported_parameter", param=name)


def invalid(param: str, detail: str) -> Refused:
    """The refusal of a wrong value."""
    return Refused(400, f"{param}: {detail}", code="invalid_value", param=param)
