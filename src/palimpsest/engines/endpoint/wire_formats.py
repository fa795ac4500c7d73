"""The three request formats for a completion, and the optional fields an endpoint takes.

    tokens        POST /completions        the prompt's token ids      token ids come back where it gives them
    completions   POST /completions        the prompt as text          the reply's text is encoded again
    chat          POST /chat/completions   the prompt as messages      the same

Guaranteed: a result is the reply to its request, or a RetryableError is raised: as many log-probabilities as tokens,
none above 0, no more tokens than requested, and the prompt that was sent if the endpoint reports the prompt it read.
Text of a reply never becomes a control token. A text prompt in which data would become a control token is rejected.
Not covered: an endpoint that reads a control token out of a message's text in mode chat.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from palimpsest.errors import UNSENDABLE, SamplerError
from palimpsest.http_services import RetryableError, error_in_reply
from palimpsest.text.chat import messages_of
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import content_text
from palimpsest.types import SamplingParams, StopReason

_MOST_STOPS = 4  # texts that OpenAI takes
_MOST_TOKENS = 1 << 31  # of one request
_SEEDS = 1 << 31  # llama.cpp reads 32 bits
_TOKEN_CHARS = 256  # per token, at most
_ROUNDING = 1e-3
"""Nats by which rounding may lift a log-probability above 0."""
_NEUTRAL = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Off, whatever defaults a server takes from a model's folder."""
SAMPLING = ("seed", "top_p", "temperature")
"""In the order in which they are dropped if an error names several."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_ENDS = {
    **dict.fromkeys(("", "stop", "eos", "eos_token", "stop_sequence", "end_turn", "complete"), StopReason.STOP),
    **dict.fromkeys(("length", "max_tokens"), StopReason.LENGTH),
}
"""By `finish_reason` in lower case, "" for null. Others leave a reply incomplete: a filter, a tool call, an error."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields that an endpoint takes."""

    extended: bool = True
    """Fields that vLLM, SGLang and llama.cpp add to OpenAI's."""
    limit: str = _LIMITS[0]
    """Name of the field that limits the tokens of a reply."""
    dropped: frozenset[str] = frozenset()
    """Further fields that it rejects."""
    spare: int = 0
    """Tokens by which a reply may exceed its budget."""

    def of(self, params: SamplingParams) -> dict[str, Any]:
        """The sampling fields."""
        fields: dict[str, Any] = {self.limit: params.max_tokens + self.spare}
        fields |= {"temperature": params.temperature, "top_p": params.top_p, "seed": params.seed % _SEEDS}
        fields |= _NEUTRAL if self.extended else {}
        return {name: value for name, value in fields.items() if name not in self.dropped}

    @property
    def missing(self) -> tuple[str, ...]:
        """The fields of the first attempt that these lack."""
        first, now = (fields.of(SamplingParams(1)) for fields in (Fields(), self))
        return tuple(sorted(first.keys() - now.keys()))

    def without(self, error: str) -> Fields | None:
        """Fields for a second attempt after `error`, which names some of those sent; None if it names none.

        >>> Fields().without("temperature and top_p cannot both be specified").dropped
        frozenset({'top_p'})
        >>> Fields().without("Unsupported parameter: 'max_tokens'").limit
        'max_completion_tokens'
        """
        sent, word = self.of(SamplingParams(1)), r"(?<![\w/-]){}(?![\w-]|[./]\w)"  # not of a URL or a model's name
        names = (name for name in (*_NEUTRAL, _LIMITS[0], *SAMPLING) if name in sent)
        named = [name for name in names if re.search(word.format(name), error)]
        if named[:1] == [_LIMITS[0]]:
            return replace(self, limit=_LIMITS[1])
        gone = {name for name in named if name in _NEUTRAL} or {*named[:1]}
        return replace(self, dropped=self.dropped | gone) if gone else None


PLAIN = Fields(extended=False)
COMPLETION_FIELDS = (Fields(), PLAIN)
CHAT_FIELDS = (
    Fields(),
    PLAIN,
    replace(PLAIN, limit=_LIMITS[1]),
    replace(PLAIN, limit=_LIMITS[1], dropped=frozenset(SAMPLING)),
)
"""Tried in this order, where errors name no field."""


@dataclass(frozen=True, slots=True)
class RequestResult:
    """Result of one request."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """None: the endpoint returned none."""
    stop_reason: StopReason
    exact: bool
    """True if these ids were sampled; False if text was encoded again."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    """Counts of the endpoint; 0 if it doesn't count."""
    only_reasoned: bool = False
    """True if it contains reasoning but no text."""


@dataclass(frozen=True, slots=True)
class Form:
    """One request format; base of the three."""

    mode: ClassVar[str]
    path: ClassVar[str]
    codec: Codec
    model: str
    fields: Fields
    more: Mapping[str, Any]
    """Additional fields of every request."""

    def body(self, prompt_ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
        """The request. Raises SamplerError for a prompt that this form can't express."""
        raise NotImplementedError

    def read(self, answer: Any, prompt_ids: Sequence[int], params: SamplingParams) -> RequestResult:
        """Result of its reply. Raises RetryableError, or SamplerError if a retry can't help."""
        if error := error_in_reply(answer):
            raise RetryableError(f"the endpoint returned an error: {error}")
        try:
            choice, usage = answer["choices"][0], answer.get("usage")
            ended = choice.get("finish_reason")
            if (reason := _ENDS.get("" if ended is None else str(ended).lower())) is None:
                raise SamplerError(f"the endpoint ended the reply by {ended!r:.40}")
            answered = self.reply(choice, params, reason)
            prompt, generated = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
            cached = _count(usage, "prompt_tokens_details", "cached_tokens")
            self.check_prompt(choice, prompt_ids)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RetryableError(f"not the answer of a completions endpoint ({error!r:.100})") from None
        return replace(answered, prompt_tokens=prompt, cached_tokens=min(cached, prompt), generated_tokens=generated)

    def reply(self, choice: Any, params: SamplingParams, ended: StopReason) -> RequestResult:
        text = choice["text"]
        if not isinstance(text, str):
            raise TypeError("no text")
        return self.encoded(text, params, ended)

    def encoded(self, text: str, params: SamplingParams, ended: StopReason) -> RequestResult:
        """Ids of a text, cut to the budget, which the endpoint counts in other tokens."""
        most = (params.max_tokens + 1) * _TOKEN_CHARS  # an oversized reply is not encoded
        ids = tuple(self.codec.encode(text[:most]))
        if len(ids) > params.max_tokens or len(text) > most:
            return RequestResult(ids[: params.max_tokens], None, StopReason.LENGTH, exact=False)
        stop = self.codec.stop_ids[:1] if ended is StopReason.STOP and len(ids) < params.max_tokens else ()
        return RequestResult((*ids, *stop), None, ended, exact=False)

    def check_prompt(self, choice: Any, prompt_ids: Sequence[int]) -> None:
        """Raise RetryableError if the endpoint reports another prompt than the one sent."""

    def _body(self, params: SamplingParams) -> dict[str, Any]:
        return {"model": self.model, "stream": False, **self.fields.of(params), **self.more}


class TokenForm(Form):
    mode, path = "tokens", "/completions"

    def body(self, prompt_ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
        request: dict[str, Any] = {"prompt": list(prompt_ids)}
        if self.fields.extended:
            request |= {"return_token_ids": True, "stop_token_ids": list(params.stop_ids), "skip_special_tokens": False}
        else:
            request |= {"stop": stop_texts(self.codec, params)}
        return self._body(params) | request

    def reply(self, choice: Any, params: SamplingParams, ended: StopReason) -> RequestResult:
        logprobs = choice.get("logprobs") or {}
        ids = sampled_ids(choice, logprobs)
        if ids is None:
            return Form.reply(self, choice, params, ended)
        if not all(type(id_) is int and id_ >= 0 for id_ in ids):
            raise ValueError("a token is not an id")
        if len(ids) > params.max_tokens:
            raise ValueError(f"{len(ids)} tokens came back, max_tokens is {params.max_tokens}")
        found = checked_logprobs(logprobs, len(ids)) if ids else ()
        return RequestResult(ids or self.codec.stop_ids[:1], found, ended, exact=True)

    def check_prompt(self, choice: Any, prompt_ids: Sequence[int]) -> None:
        read = choice.get("prompt_token_ids")
        if read is not None and read != list(prompt_ids):
            raise RetryableError(f"it read another prompt ({len(read)} tokens, not {len(prompt_ids)})")


class TextForm(Form):
    mode, path = "completions", "/completions"

    def body(self, prompt_ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
        """See `Form.body`. Raises SamplerError if the data contains a control token."""
        text = self.codec.decode(prompt_ids)
        if [i for i in prompt_ids if i in self.codec.role_ids] != self.codec.role_markers(text):
            raise SamplerError(UNSENDABLE)
        request: dict[str, Any] = {"prompt": text, "stop": stop_texts(self.codec, params)}
        return self._body(params) | request | ({"add_special_tokens": False} if self.fields.extended else {})


class ChatForm(Form):
    """Messages; the codec is a neutral one (text/chat.py)."""

    mode, path = "chat", "/chat/completions"

    def body(self, prompt_ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
        try:
            messages = messages_of(prompt_ids, self.codec)
        except ValueError as error:
            raise SamplerError(str(error)) from None
        return self._body(params) | {"messages": messages}

    def reply(self, choice: Any, params: SamplingParams, ended: StopReason) -> RequestResult:
        """See `Form.reply`. A reply of reasoning alone has no text."""
        message, cut = choice["message"], ended is StopReason.LENGTH
        thought = message.get("reasoning") or message.get("reasoning_content")
        refused = message.get("refusal")
        content = message.get("content") if thought or refused or cut else message["content"]
        text = content_text(content) or content_text(refused)
        if message.get("tool_calls") and not text.strip():
            raise SamplerError("the endpoint read the reply's tool calls out of its text: switch its tool parser off")
        only = not text.strip() and bool(thought or cut or (isinstance(content, list) and content))
        return replace(self.encoded(text, params, ended), only_reasoned=only)


def _count(value: Any, *keys: str) -> int:
    """Token count under `keys` of a reply's value; 0 if missing or impossible.

    >>> _count({"prompt_tokens": 12}, "prompt_tokens"), _count(None), _count("²"), _count(-12), _count(1e300)
    (12, 0, 0, 0, 0)
    """
    try:
        for key in keys:
            value = value[key]
        count = int(value or 0)
    except (LookupError, TypeError, ValueError, OverflowError):
        return 0
    return count if 0 < count < _MOST_TOKENS else 0


def sampled_ids(choice: Any, logprobs: Any) -> tuple[int, ...] | None:
    """[T] ids of a reply, from any field that may contain them; None if missing.

    >>> sampled_ids({"token_ids": [5, 6]}, {}), sampled_ids({}, {"content": [{"id": 5, "token": "a"}]})
    ((5, 6), (5,))
    >>> sampled_ids({"text": "a"}, {"tokens": ["a"]}) is None
    True
    """
    if choice.get("token_ids") is not None:
        return tuple(choice["token_ids"])
    content = logprobs.get("content") or []  # llama.cpp's form
    return tuple(token["id"] for token in content) if content and all("id" in token for token in content) else None


def checked_logprobs(answer: Any, count: int) -> tuple[float, ...] | None:
    """[T] nats of `count` tokens, None if missing. Raises ValueError for invalid log-probabilities."""
    values = answer.get("token_logprobs")
    if values is None:
        values = [token.get("logprob") for token in answer.get("content") or []] or None
    if values is None or any(value is None for value in values):
        return None
    logprobs = tuple(float(value) for value in values)
    if len(logprobs) != count:
        raise ValueError(f"{count} tokens came with {len(logprobs)} log-probabilities")
    if not all(map(math.isfinite, logprobs)) or max(logprobs, default=0.0) > _ROUNDING:
        raise ValueError("a log-probability is not finite, or above 0")
    return logprobs


def stop_texts(codec: Codec, params: SamplingParams) -> list[str]:
    """Stop ids as texts, for endpoints that take no ids."""
    return [codec.decode([i]) for i in params.stop_ids][:_MOST_STOPS]
