"""One OpenAI-compatible endpoint, asked over HTTP.

Guaranteed: a request is sent at most `attempts` times, after time-outs, dropped connections, 408, 429 and 5xx alone;
what no attempt can mend (a refused key, an unknown model or path, a redirect, a used-up quota) is an EngineError at
once, which names the fix; so is an endpoint that nobody answers at for `patience_s`. A reply is never larger than the
limit, and one that holds the key is refused; the key is in no message. Cancelling the caller closes the connection. No
redirect is followed, and no proxy of the environment is used.
Not covered: endpoints that want more than a key in a header; streams.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.connections import Connections, Unanswered
from palimpsest.endpoints import (
    Again,
    Breaker,
    Down,
    GaveUp,
    Reply,
    ServiceDown,
    attempted,
    check_address,
    redacted,
    retry_after,
    token_from,
)
from palimpsest.errors import ConfigError, EngineError, PromptTooLong, SamplerError
from palimpsest.seeding import Key

T = TypeVar("T")

_REPLY_BYTES = 32 << 20
_PAUSE_S = 0.5
_IN_A_ROW = 8  # attempts that found nobody, over `patience_s` at the least: then it is down
_TOO_LONG = re.compile(r"context[ _-]?(?:length|size|window)|maximum context|max_model_len", re.IGNORECASE)
_NO_QUOTA = re.compile(r"insufficient[_ ]quota|billing", re.IGNORECASE)
_EXAMPLE = "one like http://127.0.0.1:8000/v1"
_URL = "engine.url (--base-url)"
"""The address, by the names that a user may have given it under."""


class Refused(SamplerError):
    """The endpoint took offence at the request itself (400, 404, 422...): another one may pass."""

    def __init__(self, said: str, status: int) -> None:
        super().__init__(said)
        self.status = status


class Unavailable(SamplerError):
    """No attempt was answered: nobody was there, or had the time. It says nothing about the request."""


class _Broken(Down):
    """A server's error that may be about this request (500, 501)."""


class _Busy(Again):
    """Others come first (408, 429)."""


class Client:
    """One endpoint. `close` it."""

    def __init__(self, config: EndpointEngineConfig) -> None:
        """Raises ConfigError if the address is none, or the environment variable of the key isn't set."""
        address = check_address(config.url, _URL, example=_EXAMPLE)
        if address.query or address.fragment:
            raise ConfigError(f"{_URL}: the address has a query or a fragment, which may be secrets; give {_EXAMPLE}")
        self.url = config.url.rstrip("/")
        if self.url.endswith("/completions"):
            stem = self.url.removesuffix("/completions").removesuffix("/chat")
            raise ConfigError(f"{_URL}: {config.url}: give what stands before it, {stem}")
        self._config = config
        self._key = token_from(config.api_key_env, "engine.api_key_env")
        self._places = asyncio.Semaphore(config.concurrency)
        self._breaker = Breaker(_IN_A_ROW, probe_s=float("inf"), patience_s=config.patience_s)
        self._connections = Connections(token=self._key)

    async def close(self) -> None:
        await self._connections.close()

    async def post(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any], T], *, key: Key, attempts: int | None = None
    ) -> T:
        """What `read` makes of the JSON that `{url}/{path}` answers to `body`, asked again where that raises Again;
        `key` draws the pauses between `attempts`, of which None means as many as are configured.

        Raises PromptTooLong, SamplerError for what concerns this request alone, EngineError for what concerns all.
        """

        async def once() -> T:
            async with self._places:
                with self._breaker:  # asked only now: it may have opened while this request waited for a place
                    return read(self._json(await self._sent("POST", f"{self.url}/{path}", body)))

        try:
            return await attempted(once, attempts=attempts or self._config.attempts, pause=_PAUSE_S, key=(key,))
        except GaveUp as gave_up:
            passing = isinstance(gave_up.last, Down | _Busy) and not isinstance(gave_up.last, _Broken)
            raise (Unavailable if passing else SamplerError)(f"{self.url}: {gave_up}") from None
        except ServiceDown as down:
            raise EngineError(f"{self.url}: {down}, the last one: {down.last}; is the server running?") from None

    async def look(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """What an address beside it answers, once; None for whatever isn't a JSON object. Raises EngineError where
        nobody is there, the key is refused, or another address is named."""
        try:
            async with self._places:
                answer = (await self._sent(method, url, body)).json()
        except Unanswered as nobody:
            raise EngineError(f"{self.url}: can't be reached ({nobody}); check {_URL}, and that it runs") from None
        except (SamplerError, PromptTooLong, Again, ValueError):
            return None
        return answer if isinstance(answer, dict) else None

    async def _sent(self, method: str, url: str, body: Mapping[str, Any] | None) -> Reply:
        """A reply of status 200. Raises Again, Down, Refused, PromptTooLong or EngineError."""
        reply = await self._connections.ask(method, url, body, limit=_REPLY_BYTES, timeout_s=self._config.timeout_s)
        if reply.status != 200:
            raise self._failure(reply)
        if self._key and self._key.encode() in reply.body:
            raise SamplerError(f"{self.url}: the reply holds the key it was asked with, so it isn't kept")
        return reply

    def _json(self, reply: Reply) -> Any:
        try:
            return reply.json()
        except ValueError:
            raise Again(f"not JSON: {reply.quoted(100, self._key)}") from None

    def _failure(self, reply: Reply) -> Exception:
        """What a status other than 200 means."""
        said = f"status {reply.status}: {reply.quoted(300, self._key)}"
        told = f"{self.url}: {said}"
        if 300 <= reply.status < 400:
            place = redacted(reply.headers.get("location", "nowhere"), self._key)
            return EngineError(f"{self.url}: redirects to {place:.200}, which is not followed; set {_URL} to that")
        if reply.status in (401, 403):
            fix = "check the key in" if self._key else "name the environment variable that holds the key:"
            return EngineError(f"{told}; {fix} engine.api_key_env (--api-key-env)")
        if reply.status == 429 and _NO_QUOTA.search(said):
            return EngineError(f"{told}; the account behind the key has nothing left")
        if reply.status in (408, 429):
            return _Busy(said, retry_after(reply.headers))
        if reply.status >= 500:
            kind = _Broken if reply.status in (500, 501) else Down
            return kind(said, retry_after(reply.headers))
        if reply.status in (400, 413, 422) and _TOO_LONG.search(said):
            return PromptTooLong(f"{told}; lower the budgets, or say its window by engine.max_context")
        return Refused(told, reply.status)
