"""Bodies of requests: the JSON of a chat completion as a `ChatBody`, errors in OpenAI's form.

Guaranteed: an unknown key, or one that requests something unsupported, is rejected by name; a lenient server ignores it
and lists its name. No other key that would change the answer is ignored. `null` equals a missing key, and so does a
request for the default (`n: 1`, `tools: []`). Before parsing, the number of JSON values is bounded, and after it their
depth, so a body needs little more memory than its texts. No address is fetched.
Not covered: parsing a bounded body blocks the event loop: 0.1 s for a text of 64 MiB.
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
"""Maximum strings, commas and brackets of a body, at up to 50 bytes each; maximum nesting of lists and objects (a
normal request has five levels)."""
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
"""Unsupported parameters, with the values that request nothing."""


# ---- The wire ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a message, with its content."""

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
    """The field `palimpsest`: extensions of OpenAI's interface."""

    document: str | None = None
    question: str | None = None
    questions: list[str] | None = Field(default=None, min_length=1, max_length=100)
    progress: bool = True
    """Include changes of the memory in a stream."""
    raw: bool = False
    r"""Leave `\boxed{}` in the answer."""
    seed: int | None = None


class StreamOptions(StrictBody):
    include_usage: bool = False
    include_obfuscation: bool = False


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class ChatBody(StrictBody):
    """A parsed request, from either route."""

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
    """Parse the body of POST /v1/chat/completions; `lenient`: ignore unsupported parameters. Raises Refused."""
    ignored: list[str] | None = [] if lenient else None
    return validated(supported(json_object(body), NEUTRAL, ignored), ignored)


def supported(fields: Mapping[str, Any], neutral: Neutral, ignored: list[str] | None) -> dict[str, Any]:
    """`fields` without keys that request nothing. Unsupported ones raise Refused, or are added to `ignored`."""
    remaining = {name: value for name, value in fields.items() if value is not None and name not in _UNUSED}
    for name in [name for name in neutral if name in remaining]:
        value = remaining.pop(name)
        if any(_same(value, default) for default in neutral[name]):
            continue
        if ignored is None:
            allowed = " or ".join(orjson.dumps(default).decode() for default in neutral[name])
            raise unsupported(name, f"not supported; omit it{allowed and f' or use {allowed}'}")
        ignored.append(name)
    return remaining


def validated(fields: dict[str, Any], ignored: list[str] | None) -> ChatBody:
    """Validate the fields. Raises Refused. Moves unknown keys outside `palimpsest` to `ignored`, if it is set."""
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
    """Paths of unknown keys, added to `ignored`. Raises Refused for other errors."""
    unknown = [
        error["loc"] for error in errors if error["type"] == "extra_forbidden" and error["loc"][0] != "palimpsest"
    ]
    if any(error["loc"][0] == "metadata" for error in errors):  # no answer depends on it
        unknown = [("metadata",)]
    if ignored is None or not unknown:
        path = ".".join(map(str, errors[0]["loc"]))
        if errors[0]["type"] == "extra_forbidden":
            raise Refused(400, f"{path}: unknown; omit it", code="unknown_parameter", param=path)
        if errors[0]["type"] == "missing":
            raise invalid(path, "required")
        raise invalid(path, f"{errors[0]['msg']}, is {shown(errors[0]['input'])}")
    ignored += [".".join(path) for path in unknown]
    return unknown


def _same(value: object, other: object) -> bool:
    """Equal and of one type: `True` differs from 1, but 0.0 equals 0."""
    numbers = (int, float)
    return value == other and (type(value) is type(other) or (type(value) in numbers and type(other) in numbers))


# ---- JSON within bounds --------------------------------------------------------------------------------------


_VALUE = re.compile(rb',|\[|\{|"[^"]*+"?')


def json_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises Refused for invalid JSON, another type, or too many values."""
    if _more_values_than(_VALUES, body):
        raise Refused(400, f"the body has more than {_VALUES} JSON values", code="invalid_json")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON ({error})", code="invalid_json") from None
    if deeper_than(value, _NESTING):
        raise Refused(400, f"the body is JSON nested deeper than {_NESTING}", code="invalid_json")
    if not isinstance(value, dict):
        raise Refused(400, f"the body must be a JSON object, is a {type(value).__name__}", code="invalid_json")
    if max(len(entry) for entry in (value, *value.values()) if isinstance(entry, dict)) > _KEYS:  # an error for each
        raise Refused(400, f"an object of the body has more than {_KEYS} keys", code="invalid_json")
    return value


def _more_values_than(most: int, body: bytes) -> bool:
    """Return whether the number of strings, and of commas and brackets outside of them, exceeds `most`.

    >>> [_more_values_than(most, b'{"a,,,,": [1, "b"]}') for most in (4, 5)]
    [True, False]
    """
    if sum(map(body.count, (b",", b"[", b"{", b'"'))) <= most:  # those in strings, too: nearly always decides
        return False
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")  # strings then end at their next quote
    return sum(1 for _ in islice(_VALUE.finditer(bare), most + 1)) > most


def deeper_than(value: object, levels: int) -> bool:
    """Return whether lists and objects are nested more deeply.

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
"""Tool calls are ignored; tool results are read."""


def _messages(messages: object, ignored: list[str] | None) -> object:
    if messages is None:
        raise invalid("messages", "is missing; send a list of messages")
    if not isinstance(messages, list):
        return messages
    if not 0 < len(messages) <= MESSAGES:
        raise invalid("messages", f"must be 1 to {MESSAGES} messages, are {len(messages)}")
    return [_message(message, f"messages.{at}", ignored) for at, message in enumerate(messages)]


def _message(message: object, where: str, ignored: list[str] | None) -> Message:
    if not isinstance(message, dict):
        raise invalid(where, f"must be an object, is {shown(message)}")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise invalid(f"{where}.role", f"one of {', '.join(_ROLES)}, is {shown(role)}")
    for name in message:
        if message[name] and name not in (*_MESSAGE_KEYS, _TOOL_KEYS.get(role)):
            if ignored is None:
                raise unsupported(f"{where}.{name}", "not supported; omit it")
            ignored.append(f"{where}.{name}")
    if isinstance(content, str) or (content is None and role == "assistant"):
        return Message(role, content or "")
    if not isinstance(content, list) or not 0 < len(content) <= MESSAGES:
        raise invalid(f"{where}.content", f"a text or a list of 1 to {MESSAGES} parts, is {shown(content)}")
    pieces = [_part(part, f"{where}.content.{at}") for at, part in enumerate(content)]
    files = tuple(part for part in pieces if isinstance(part, FilePart))
    if files and role != "user":
        raise invalid(f"{where}.content", "files belong in user messages")
    return Message(role, "\n".join(part for part in pieces if isinstance(part, str)), files)


def _part(part: object, where: str) -> str | FilePart:
    if not isinstance(part, dict):
        raise invalid(where, f"must be an object, is {shown(part)}")
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        if not isinstance(part.get("text"), str):
            raise invalid(f"{where}.text", f"a text, is {shown(part.get('text'))}")
        return str(part["text"])
    if kind not in ("file", "input_file"):
        raise unsupported(f"{where}.type", f"{shown(kind)} is not supported; parts are text or file")
    file = part.get("file") if kind == "file" else part
    if not isinstance(file, dict):
        raise invalid(f"{where}.file", f"an object with file_data, is {shown(file)}")
    for name in ("file_url", "file_id"):
        if file.get(name):
            raise unsupported(f"{where}.{name}", "the server fetches and stores nothing; send the content as file_data")
    data, name = file.get("file_data"), file.get("filename") or ""
    if not data or not isinstance(data, str) or not isinstance(name, str):
        raise invalid(where, "a file needs its content as file_data, and may have a filename, both texts")
    mime, content = _decoded(data, f"{where}.file_data")
    return FilePart(content, name or f"file{mimetypes.guess_extension(mime) or '.txt'}")


def _decoded(data: str, where: str) -> tuple[str, bytes]:
    """(media type, bytes) of a data URL or plain base64."""
    mime, (head, comma, rest) = "text/plain", data.partition(",")
    if data.startswith("data:") and comma:
        if not head.endswith(";base64"):
            raise invalid(where, "a data URL ends its head with ;base64")
        mime, data = head.removeprefix("data:").split(";")[0], rest
    try:
        return mime, base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(where, "must be base64, or data:TYPE;base64,...") from None


def user_text(messages: Sequence[Message]) -> str:
    return next((message.text for message in reversed(messages) if message.role == "user" and message.text.strip()), "")


# ---- Errors --------------------------------------------------------------------------------------------------


def openai_error(refused: Refused) -> dict[str, Any]:
    """An error object for OpenAI's clients.

    >>> openai_error(Refused(400, "n: at most 1", code="unsupported_parameter", param="n"))["error"]["type"]
    'invalid_request_error'
    """
    kinds = {403: "permission_error", 429: "rate_limit_error"}
    kind = "server_error" if refused.status >= 500 else kinds.get(refused.status, "invalid_request_error")
    return {"error": {"message": str(refused), "type": kind, "param": refused.param, "code": refused.code}}


def unsupported(name: str, advice: str) -> Refused:
    return Refused(400, f"{name}: {advice}", code="unsupported_parameter", param=name)


def invalid(param: str, detail: str) -> Refused:
    return Refused(400, f"{param}: {detail}", code="invalid_value", param=param)
