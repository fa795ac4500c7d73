"""Async client for chat completions of an OpenAI-compatible endpoint (vLLM, SGLang, llama.cpp, OpenAI).

The client sends only fields that all of these document: model, messages, temperature, max_tokens, response_format. If
an endpoint rejects the format (400 or 422), the client switches for good to a weaker one: json_schema, json_object,
none.

Guaranteed: at most `concurrency` requests are active; an endpoint that is down, slow, busy (429, 5xx) or returns no
completion gets `ATTEMPTS` requests in all (see `JsonClient`), then the client raises a one-line JudgeError. An endpoint
that is down or hangs delays all requests together by about `ATTEMPTS` times `timeout_s`: after that the client probes
it once per `timeout_s`, and other requests fail at once. No message contains the key, whatever an endpoint echoes.
Not covered: use from several event loops; redirects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palimpsest.config.reward import JudgeConfig
from palimpsest.errors import JudgeError, PalimpsestError
from palimpsest.http_connections import JsonClient
from palimpsest.http_services import (
    Breaker,
    GaveUp,
    HttpReply,
    RetryableError,
    ServiceDown,
    check_address,
    error_in_reply,
    redacted,
    token_from,
)
from palimpsest.text.reply_tags import content_text

_REFUSALS = (400, 422)


class _Refused(JudgeError):
    """The endpoint rejected the request itself."""


ATTEMPTS = 4
"""Requests per verdict to an endpoint that is down, busy or slow, with doubling pauses."""


class ChatClient(JsonClient):
    """`POST {url}/chat/completions`; `close` it."""

    error, expected, reply_bytes = JudgeError, "a chat completion", 8 << 20

    def __init__(self, config: JudgeConfig, schema: Mapping[str, Any], *, pause: float = 0.5) -> None:
        """`schema`: of the JSON reply; `pause`: seconds before the second attempt. Raises ConfigError."""
        check_address(config.url, "reward.judge.url", example="one like http://127.0.0.1:9527/v1")
        token = token_from(config.api_key_env, "reward.judge.api_key_env")
        breaker = Breaker(ATTEMPTS * config.concurrency, probe_s=config.timeout_s)
        url = f"{config.url.rstrip('/')}/chat/completions"
        super().__init__(url, token, config.timeout_s, ATTEMPTS, config.concurrency, breaker)
        self.pause = pause
        self._config = config
        self._formats = (
            {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}},
            {"type": "json_object"},
            None,
        )
        self._weakest = 0  # index of the strongest format not yet rejected

    async def complete(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, bool]:
        """The text of the completion, and True if `max_tokens` cut it. Raises JudgeError."""
        for index in range(self._weakest, len(self._formats)):
            try:
                body = self._body(messages, self._formats[index])
                reply = await self.post("", body, self._text, key=(str(body["messages"]),))
            except _Refused:
                if index == len(self._formats) - 1:
                    raise
            else:
                self._weakest = max(self._weakest, index)
                return reply
        raise AssertionError("unreachable: the last format returns or raises")

    def _body(self, messages: Sequence[Mapping[str, str]], response_format: Mapping[str, Any] | None) -> dict[str, Any]:
        optional = {
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
            "response_format": response_format,
        }
        options = {name: value for name, value in optional.items() if value is not None}
        return {"model": self._config.model, "messages": list(messages), **options}

    def failure(self, reply: HttpReply, message: str) -> Exception:
        failure = super().failure(reply, message)
        if reply.status in _REFUSALS:
            return _Refused(str(failure))
        return JudgeError(f"{failure}; does reward.judge.url lack /v1?") if reply.status == 404 else failure

    def gave_up(self, end: GaveUp) -> PalimpsestError:
        every = f"; palimpsest retries every {self._config.timeout_s:g} s" if isinstance(end, ServiceDown) else ""
        return JudgeError(f"{self.url}: {end}{every}")

    def _text(self, body: Any) -> tuple[str, bool]:
        if error := error_in_reply(body, self.token):
            raise RetryableError(f"the judge returned an error: {error}")
        choice = body["choices"][0]
        text, ended = content_text(choice["message"]["content"]), choice.get("finish_reason")
        if not text.strip():
            why = "; reward.judge.max_tokens is too small for its reasoning" if ended == "length" else ""
            ended = redacted(str(ended), self.token)
            raise JudgeError(f"the reply is empty (finish_reason {ended:.40}){why}")
        return text, ended == "length"
