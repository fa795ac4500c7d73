"""Chat completions of an OpenAI-compatible endpoint, asked from a coroutine (vLLM, SGLang, llama.cpp, OpenAI).

Only fields that all of these document are sent: model, messages, temperature, max_tokens, response_format. An endpoint
that refuses the format (400 or 422) is asked with a weaker one, json_schema, json_object, none, and then always.

Guaranteed: the event loop is never blocked; at most `concurrency` requests are under way; what is down, slow, busy
(429, 5xx) or answers with something else than a completion is asked again, `attempts` times in all, after a pause that
doubles, or a longer one that the endpoint asks for, up to `endpoints.LONGEST_PAUSE`; then JudgeError, one line. An
endpoint that is down or hangs holds up all requests together for about `attempts` times `timeout_s`: after that only
one in `timeout_s` is sent to see whether it is back, and the others fail at once. The key is in no message, whatever an
endpoint echoes; at most `_REPLY_BYTES` of a reply are held.
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
    error_in_reply,
    redacted,
    retry_after,
    token_from,
)

_REPLY_BYTES = 8 << 20
_REFUSALS = (400, 422)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Message = Mapping[str, str]


class _Refused(JudgeError):
    """The endpoint took offence at the request itself."""


ATTEMPTS = 4
"""Requests for one verdict where the endpoint is down, busy or slow, with a pause between that doubles."""


class ChatClient:
    """`POST {url}/chat/completions`; `close` it."""

    def __init__(self, config: JudgeConfig, schema: Mapping[str, Any], *, pause: float = 0.5) -> None:
        """`schema`: of the JSON object to be answered; `pause`: seconds before the second attempt.

        Raises ConfigError if the address is none, or the environment variable of the key is not set.
        """
        host = check_address(config.url, "reward.judge.url", example="one like http://127.0.0.1:9527/v1").hostname
        self.url = f"{config.url.rstrip('/')}/chat/completions"
        self._key = token_from(config.api_key_env, "reward.judge.api_key_env")
        self._config, self._pause = config, pause
        self._formats = (
            {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}},
            {"type": "json_object"},
            None,
        )
        self._weakest = 0  # index of the strongest format that the endpoint takes, as far as is known
        self._places = asyncio.Semaphore(config.concurrency)
        self._breaker = Breaker(ATTEMPTS * config.concurrency, probe_s=config.timeout_s)
        from palimpsest.http_connections import Connections  # aiohttp takes a while, and few runs ask a judge

        self._connections = Connections(token=self._key, proxies=host not in _LOOPBACK)  # none for one on this machine

    async def complete(self, messages: Sequence[Message]) -> str:
        """The text of the completion. Raises JudgeError."""
        for index in range(self._weakest, len(self._formats)):
            try:
                text = await self._attempts(self._body(messages, self._formats[index]))
            except _Refused:
                if index == len(self._formats) - 1:
                    raise
            else:
                self._weakest = max(self._weakest, index)
                return text
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

    async def _attempts(self, body: Mapping[str, Any]) -> str:
        async def once() -> str:
            async with self._places:
                with self._breaker:  # asked only now: it may have opened while this request waited for a place
                    return await self._attempt(body)

        key = (str(body["messages"]),)
        try:
            return await attempted(once, attempts=ATTEMPTS, pause=self._pause, key=key)
        except GaveUp as gave_up:
            raise JudgeError(f"{self.url}: {gave_up}") from None
        except ServiceDown as down:
            every = f"it is tried again every {self._config.timeout_s:g} s"
            raise JudgeError(f"{self.url}: {down}; {every}") from None

    async def _attempt(self, body: Mapping[str, Any]) -> str:
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

    def _text(self, answer: HttpReply) -> str:
        try:
            body = answer.json()
            if error := error_in_reply(body, self._key):
                raise RetryableError(f"the judge answered an error: {error}")
            choice: Any = body["choices"][0]
            text, ended = choice["message"]["content"], choice.get("finish_reason")
        except (ValueError, TypeError, LookupError, AttributeError):
            raise RetryableError(f"not a chat completion: {answer.quoted(100, self._key)}") from None
        if not isinstance(text, str) or not text.strip():
            why = "; reward.judge.max_tokens is too small for its thinking" if ended == "length" else ""
            ended = redacted(str(ended), self._key)
            raise JudgeError(f"the reply is empty (finish_reason {ended:.40}){why}")
        return text
