"""Async client for chat completions of an OpenAI-compatible endpoint (vLLM, SGLang, llama.cpp, OpenAI).

The client sends only fields that all of these document: model, messages, temperature, max_tokens, response_format. If
an endpoint rejects the format (400 or 422), the client switches for good to a weaker one: json_schema, json_object,
none.

Guaranteed: the event loop is never blocked; at most `concurrency` requests are active; the client retries an endpoint
that is down, slow, busy (429, 5xx) or returns no completion, `attempts` times in all, after a pause that doubles, or
the longer pause that the endpoint requests, up to `http_services.LONGEST_PAUSE`; then it raises a one-line JudgeError.
An endpoint that is down or hangs delays all requests together by about `attempts` times `timeout_s`: after that the
client probes it once per `timeout_s`, and other requests fail at once. No message contains the key, whatever an
endpoint echoes; replies are read up to `_REPLY_BYTES`.
Not covered: use from several event loops; redirects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from palimpsest.config.reward import JudgeConfig
from palimpsest.errors import JudgeError
from palimpsest.http_services import (
    Breaker,
    Down,
    GaveUp,
    HttpReply,
    RetryableError,
    ServiceDown,
    attempted,
    check_address,
    content_text,
    error_in_reply,
    redacted,
    retry_after,
    token_from,
)

_REPLY_BYTES = 8 << 20
_REFUSALS = (400, 422)

Message = Mapping[str, str]


class _Refused(JudgeError):
    """The endpoint rejected the request itself."""


ATTEMPTS = 4
"""Requests per verdict to an endpoint that is down, busy or slow, with doubling pauses."""


class ChatClient:
    """`POST {url}/chat/completions`; `close` it."""

    def __init__(self, config: JudgeConfig, schema: Mapping[str, Any], *, pause: float = 0.5) -> None:
        """`schema`: of the JSON reply; `pause`: seconds before the second attempt. Raises ConfigError."""
        check_address(config.url, "reward.judge.url", example="one like http://127.0.0.1:9527/v1")
        self.url = f"{config.url.rstrip('/')}/chat/completions"
        self._key = token_from(config.api_key_env, "reward.judge.api_key_env")
        self._config, self._pause = config, pause
        self._formats = (
            {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}},
            {"type": "json_object"},
            None,
        )
        self._weakest = 0  # index of the strongest format not yet rejected
        self._places = asyncio.Semaphore(config.concurrency)
        self._breaker = Breaker(ATTEMPTS * config.concurrency, probe_s=config.timeout_s)
        from palimpsest.http_connections import Connections  # aiohttp imports slowly, and few runs have a judge

        self._connections = Connections(token=self._key, proxies_for=config.url)

    async def complete(self, messages: Sequence[Message]) -> tuple[str, bool]:
        """The text of the completion, and True if `max_tokens` cut it. Raises JudgeError."""
        for index in range(self._weakest, len(self._formats)):
            try:
                reply = await self._attempts(self._body(messages, self._formats[index]))
            except _Refused:
                if index == len(self._formats) - 1:
                    raise
            else:
                self._weakest = max(self._weakest, index)
                return reply
        raise AssertionError("unreachable: the last format returns or raises")

    async def close(self) -> None:
        await self._connections.close()

    def _body(self, messages: Sequence[Message], response_format: Mapping[str, Any] | None) -> dict[str, Any]:
        optional = {
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
            "response_format": response_format,
        }
        options = {name: value for name, value in optional.items() if value is not None}
        return {"model": self._config.model, "messages": list(messages), **options}

    async def _attempts(self, body: Mapping[str, Any]) -> tuple[str, bool]:
        async def once() -> tuple[str, bool]:
            async with self._places:
                with self._breaker:  # checked last: it may have opened while this request waited
                    return await self._attempt(body)

        key = (str(body["messages"]),)
        try:
            return await attempted(once, attempts=ATTEMPTS, pause=self._pause, key=key)
        except GaveUp as gave_up:
            raise JudgeError(f"{self.url}: {gave_up}") from None
        except ServiceDown as down:
            every = f"palimpsest retries every {self._config.timeout_s:g} s"
            raise JudgeError(f"{self.url}: {down}; {every}") from None

    async def _attempt(self, body: Mapping[str, Any]) -> tuple[str, bool]:
        limit = self._config.timeout_s
        answer = await self._connections.ask("POST", self.url, body, limit=_REPLY_BYTES, timeout_s=limit)
        if answer.status == 200:
            return self._text(answer)
        message = f"status {answer.status}: {answer.quoted(200, self._key)}"
        if answer.status >= 500:
            raise Down(message, retry_after(answer.headers))
        if answer.status in (408, 429):
            raise RetryableError(message, retry_after(answer.headers))
        if answer.status in _REFUSALS:
            raise _Refused(f"{self.url}: {message}")
        hint = "; does reward.judge.url lack /v1?" if answer.status == 404 else ""
        raise JudgeError(f"{self.url}: {message}{hint}")

    def _text(self, answer: HttpReply) -> tuple[str, bool]:
        try:
            body = answer.json()
            if error := error_in_reply(body, self._key):
                raise RetryableError(f"the judge returned an error: {error}")
            choice: Any = body["choices"][0]
            text, ended = content_text(choice["message"]["content"]), choice.get("finish_reason")
        except (ValueError, TypeError, LookupError, AttributeError):
            raise RetryableError(f"not a chat completion: {answer.quoted(100, self._key)}") from None
        if not text.strip():
            why = "; reward.judge.max_tokens is too small for its reasoning" if ended == "length" else ""
            ended = redacted(str(ended), self._key)
            raise JudgeError(f"the reply is empty (finish_reason {ended:.40}){why}")
        return text, ended == "length"
