"""Bodies of requests: received within bounds, looked at where nobody waits behind a long one, errors in OpenAI's form.

Guaranteed: a key that is unknown, or asks for what can't be done, is rejected by its name, or its name is put on a list
where one is given; no other is ignored that would change the answer. `null` is a key left out, and so is one that asks
for what is done anyway (`n: 1`, `tools: []`).
Not covered: the parsing of JSON itself, which gives nobody a turn: .1 s for a text of 64 MiB, some 5 s for empty lists.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from palimpsest.servers.http_service import Intake, ReadingThreads, Refused, shown

UNUSED = ("user", "safety_identifier", "prompt_cache_key", "store", "service_tier")  # they change no answer
_NESTING, _KEYS, TEXTS = 64, 10_000, 256
"""Lists and objects in each other, of which a request of ours has five; keys of an object; texts of a list."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
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


MESSAGES = 10_000


class StrictBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class Own(StrictBody):
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


class ChatBody(StrictBody):
    model: str
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MESSAGES)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: str | Annotated[list[str], Field(max_length=TEXTS)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    metadata: Metadata | None = None
    palimpsest: Own = Field(default_factory=Own)


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


@dataclass(frozen=True, slots=True)
class Ask:
    """A question, however it came."""

    model: str
    messages: tuple[Message, ...]
    own: Own
    answer_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    field: str = "messages"
    """The key of the body in which it was said."""
    ignored: tuple[str, ...] = ()
    """Unsupported parameters, of a server that doesn't reject them."""

    @property
    def instructions(self) -> str:
        """What system and developer say."""
        return "\n\n".join(each.text for each in self.messages if each.role in INSTRUCTING).strip()


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


def deeper_than(value: object, levels: int) -> bool:
    """Whether lists and objects stand in each other beyond that.

    >>> deeper_than([{"a": []}], 3), deeper_than([{"a": []}], 2)
    (False, True)
    """
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        layer = [each for each in layer if isinstance(each, dict | list)]
        if not layer:
            return False
        layer = [inner for each in layer for inner in (each.values() if isinstance(each, dict) else each)]
    return True


def json_object(body: bytes) -> dict[str, Any]:
    """Raises Refused for what is no JSON object."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON ({error})", code="invalid_json") from None
    if deeper_than(given, _NESTING):
        raise Refused(400, f"the body is JSON nested deeper than {_NESTING}", code="invalid_json")
    if not isinstance(given, dict):
        raise Refused(400, f"the body is a {type(given).__name__}, a JSON object is needed", code="invalid_json")
    if max(len(each) for each in (given, *given.values()) if isinstance(each, dict)) > _KEYS:  # an error for each
        raise Refused(400, f"an object of the body has more than {_KEYS} keys", code="invalid_json")
    return given


def chat_ask(body: bytes, lenient: bool = False) -> Ask:
    """The body of POST /v1/chat/completions; `lenient`: what is unsupported is ignored. Raises Refused."""
    ignored: list[str] | None = [] if lenient else None
    chat = checked(ChatBody, json_object(body), ignored=ignored)
    limits = [limit for limit in (chat.max_completion_tokens, chat.max_tokens) if limit is not None]
    return Ask(
        model=chat.model,
        messages=tuple(message_of(each, f"messages.{at}", ignored) for at, each in enumerate(chat.messages)),
        own=chat.palimpsest,
        answer_tokens=min(limits, default=None),
        temperature=chat.temperature,
        top_p=chat.top_p,
        seed=chat.seed if chat.seed is not None else chat.palimpsest.seed,
        stop=stops(chat.stop),
        stream=chat.stream,
        include_usage=chat.stream_options is not None and chat.stream_options.include_usage,
        metadata=chat.metadata or {},
        ignored=tuple(ignored or ()),
    )


def stops(given: str | list[str] | None) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else tuple(given or ())
    if len(found) > 4 or not all(found):
        raise Refused(400, "stop: one to four texts, none of them empty", code="invalid_value", param="stop")
    return found


def checked(
    shape: type[Any],
    given: Mapping[str, Any],
    more_neutral: Mapping[str, tuple[Any, ...]] | None = None,
    ignored: list[str] | None = None,
) -> Any:
    """`given` in its shape, without what asks for nothing. Raises Refused. With `ignored`, names of what is unsupported
    or unknown are added there instead, but for the keys of `palimpsest`."""
    kept = {
        name: value
        for name, value in given.items()
        if value is not None and (name not in UNUSED or name in shape.model_fields)
    }
    for name, values in {**NEUTRAL, **(more_neutral or {})}.items():
        if name in kept and name not in shape.model_fields:
            value = kept.pop(name)
            if any((type(value) is type(each) and value == each) or _same_number(value, each) for each in values):
                continue
            if ignored is None:
                allowed = " or ".join(orjson.dumps(each).decode() for each in values)
                raise unsupported(name, f"not possible here; leave it out{allowed and f' or give {allowed}'}")
            ignored.append(name)
    try:
        return shape.model_validate(kept)
    except ValidationError as error:
        errors = error.errors()
    unknown = [each["loc"] for each in errors if each["type"] == "extra_forbidden" and each["loc"][0] != "palimpsest"]
    if any(each["loc"][:1] == ("metadata",) for each in errors):  # no answer depends on it
        unknown = [("metadata",)]
    if ignored is None or not unknown:
        raise _wrong(errors[0])
    ignored += [".".join(map(str, place)) for place in unknown]
    return checked(shape, _without(kept, unknown), more_neutral, ignored)


def _wrong(error: Mapping[str, Any]) -> Refused:
    """What pydantic found, as an error of ours."""
    place = ".".join(map(str, error["loc"])) or "the body"
    if error["type"] == "extra_forbidden":
        return Refused(400, f"{place}: not known here; leave it out", code="unknown_parameter", param=place)
    return invalid(place, f"{error['msg']}, is {shown(error['input'])}")


def _without(given: Mapping[str, Any], places: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """
    >>> _without({"a": 1, "b": {"c": 2, "d": 3}}, [("a",), ("b", "c")])
    {'b': {'d': 3}}
    """
    outer, inner = {place[0] for place in places if len(place) == 1}, {place for place in places if len(place) == 2}
    return {
        name: {key: each for key, each in value.items() if (name, key) not in inner}
        if isinstance(value, dict)
        else value
        for name, value in given.items()
        if name not in outer
    }


def _same_number(value: object, other: object) -> bool:
    numbers = (int, float)
    return type(value) in numbers and type(other) in numbers and value == other


def invalid(place: str, said: str) -> Refused:
    """The refusal of a wrong value."""
    return Refused(400, f"{place}: {said}", code="invalid_value", param=place)


INSTRUCTING = ("system", "developer")
ROLES = (*INSTRUCTING, "user", "assistant")


_MESSAGE_KEYS = ("role", "content", "name", "type", "id", "status", "refusal", "reasoning", "reasoning_content")
"""Of messages; the last two come back from clients that repeat what they were given."""


def message_of(given: Mapping[str, Any], where: str, ignored: list[str] | None = None) -> Message:
    """A message of chat completions, or of the input of responses. `ignored` as for `checked`. Raises Refused."""
    role = given.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)}, is {shown(role)}")
    for name in given:
        if given[name] and name not in _MESSAGE_KEYS:
            if ignored is None:
                raise unsupported(f"{where}.{name}", "not possible here; leave it out")
            ignored.append(f"{where}.{name}")
    content = given.get("content")
    if isinstance(content, str) or (content is None and role == "assistant"):
        return Message(role, content or "")
    texts, files = list[str](), list[FilePart]()
    if not isinstance(content, list) or not content:
        raise invalid(f"{where}.content", f"a text or a list of parts, is {shown(content)}")
    for place, part in ((f"{where}.content.{at}", part) for at, part in enumerate(content)):
        if not isinstance(part, dict):
            raise invalid(place, f"a part is an object, is {shown(part)}")
        kind = part.get("type")
        if kind in ("text", "input_text", "output_text"):
            if not isinstance(part.get("text"), str):
                raise invalid(f"{place}.text", f"a text, is {shown(part.get('text'))}")
            texts.append(part["text"])
        elif kind in ("file", "input_file"):
            files.append(_file_part(part.get("file") if kind == "file" else part, place))
        else:
            raise unsupported(f"{place}.type", f"{shown(kind)} is not possible here; parts are text or file")
    if files and role != "user":
        raise invalid(f"{where}.content", "files belong into messages of the user")
    return Message(role, "\n".join(texts), tuple(files))


def _file_part(part: object, place: str) -> FilePart:
    if not isinstance(part, dict):
        raise invalid(f"{place}.file", f"an object with file_data, is {shown(part)}")
    if part.get("file_url"):
        raise unsupported(f"{place}.file_url", "no address is ever fetched; send the file")
    if part.get("file_id"):
        raise unsupported(f"{place}.file_id", "no files are kept; send what it holds as file_data")
    data, name = part.get("file_data"), part.get("filename") or ""
    if not data or not isinstance(data, str) or not isinstance(name, str):
        raise invalid(place, "a file has its content as file_data, and may have a filename, both texts")
    mime, content = _decoded(data, place)
    return FilePart(content, name or f"file{mimetypes.guess_extension(mime) or '.txt'}")


def _decoded(data: str, place: str) -> tuple[str, bytes]:
    """(media type, bytes) of a data URL, or of base64 alone."""
    (head, comma, rest), mime = data.partition(","), "text/plain"
    if data.startswith("data:") and comma:
        if not head.endswith(";base64"):
            raise invalid(f"{place}.file_data", "a data URL ends its head with ;base64")
        mime, data = head.removeprefix("data:").split(";")[0], rest
    try:
        return mime, base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{place}.file_data", "base64, or data:TYPE;base64,..., is needed") from None


def user_text(messages: Sequence[Message]) -> str:
    """What the user said last."""
    return next((each.text for each in reversed(messages) if each.role == "user" and each.text.strip()), "")


# ---- Bodies of requests --------------------------------------------------------------------------------------


T = TypeVar("T")

_SHORT = 16 << 10
"""Bytes of a body that is looked at on the event loop: what takes a millisecond is not to wait until threads that
compute let another one run."""
_THREADS = 2


class Bodies:
    """Of one event loop."""

    def __init__(self, intake: Intake, *, most: int, seconds: float) -> None:
        """`most`: bytes; `seconds`: for a body to arrive whole."""
        self.most = most
        self._intake, self._seconds = intake, seconds
        self._threads = ReadingThreads(_THREADS, "body")

    async def read(self, request: Request) -> bytes:
        """Raises Refused."""
        advice = "divide the document"
        return await self._intake.body(request, most=self.most, seconds=self._seconds, advice=advice)

    async def look(self, size: int, work: Callable[[], T]) -> T:
        """What `work`, which takes time that grows with `size` bytes, gives or raises."""
        return work() if size <= _SHORT else await self._threads.run(work)

    def close(self) -> None:
        """What is under way is not waited for."""
        self._threads.close()
