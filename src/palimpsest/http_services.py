"""What is shared by those who ask a service over HTTP: its address, its token, what a reply says, and when it is asked
again. How it is asked: http_connections.py.

Guaranteed: an address with a user or a password in it is refused, for it would stand in configurations, records and
messages; a token comes out of the environment and is in no message; a request is sent a bounded number of times, with
pauses drawn by its key.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import orjson

from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.seeding import Key, keyed_random

T = TypeVar("T")

LONGEST_PAUSE = 20.0
"""Seconds between two attempts at the most, whatever a service asks for."""

_HIDDEN = "(redacted)"


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What a service answered, read whole; of a reply that isn't status 200 the beginning."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Raises ValueError where it is no JSON, or nested too deep."""
        return orjson.loads(self.body)

    def quoted(self, limit: int, *secrets: str | None) -> str:
        """The beginning of the body for a message, on one line, without the secrets an echo may hold."""
        text = redacted(self.body.decode("utf-8", "replace"), *secrets)
        return f"{text[:limit]!r}"


def check_address(url: str, key: str, *, example: str = "http://host:port") -> SplitResult:
    """The address of a server, the value of `key`. Raises ConfigError for what is none, or holds a password."""
    try:
        parsed = urlsplit(url)
    except (ValueError, TypeError, AttributeError) as error:
        shown = f"={url!r:.80}" if "@" not in str(url) else ""
        raise ConfigError(f"{key}{shown}: {error}; give {example}") from None
    if "@" in parsed.netloc:
        raise ConfigError(f"{key}: the address holds a user or a password; give {example}, and a token apart from it")
    unprintable = not url.isprintable() or " " in url  # urlsplit drops line breaks
    if unprintable or parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ConfigError(f"{key}={url!r:.80}: no address of a server; give {example}")
    try:
        valid = parsed.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{key}={url!r:.80}: no valid port; give {example}, with a port from 1 to 65535")
    return parsed


def token_from(variable: str | None, key: str) -> str | None:
    """The token in the environment variable that `key` names, None if it names none. Raises ConfigError."""
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(f"{key}={variable}: the environment has no such variable; set it, or drop the option")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"{key}={variable}: no client can send this token in a header; use ASCII letters and digits")
    return token


def redacted(text: str, *secrets: str | None) -> str:
    """`text` without the secrets.

    >>> redacted("you sent Bearer s3cret", "s3cret", None)
    'you sent Bearer (redacted)'
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, _HIDDEN)
    return text


def error_in_reply(answer: Any, *secrets: str | None) -> str | None:
    """The error that a reply of status 200 holds in place of choices, at most 300 characters and without the
    secrets; None where there is none.

    >>> error_in_reply({"error": {"message": "upstream is busy"}}), error_in_reply({"choices": [], "error": None})
    ('upstream is busy', None)
    """
    error = answer.get("error") if isinstance(answer, dict) and not answer.get("choices") else None
    if not error:
        return None
    text = error.get("message", error) if isinstance(error, dict) else error
    return f"{redacted(str(text), *secrets):.300}"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a service asks to wait; the form with a date is passed over.

    >>> retry_after({"retry-after": "2"}), retry_after({"retry-after": "Sun, 22 Nov 2026"}), retry_after({})
    (2.0, None, None)
    """
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None


# ---- Retries -------------------------------------------------------------------------------------------------


class RetryableError(Exception):
    """Another attempt may succeed; `pause` in seconds if the service named one."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class Down(RetryableError):
    """Nobody answered, or a server's error."""


class GaveUp(Exception):
    """No attempt succeeded. One line; `last`: what the last one met."""

    def __init__(self, message: str, last: RetryableError) -> None:
        super().__init__(message)
        self.last = last


class ServiceDown(Exception):
    """It wasn't asked, for it was down in too many attempts before. One line; `last`: what the last one met."""

    def __init__(self, message: str, last: str) -> None:
        super().__init__(message)
        self.last = last


async def attempted(
    once: Callable[[], Awaitable[T]], *, attempts: int, pause: float, key: Sequence[Key], longest: float = LONGEST_PAUSE
) -> T:
    """What `once` returns, called again after each `Again`, `attempts` times in all. Raises GaveUp.

    The pause before the second attempt is up to `pause` seconds, and doubles; the one a service asks for counts where
    it is longer; `key` draws how far below the full pause it stays, so that requests that failed together don't come
    back together.
    """
    last = RetryableError("it was never asked")
    for attempt in range(attempts):
        try:
            return await once()
        except RetryableError as again:
            last = again
        if attempt + 1 < attempts:
            delay = pause * 2.0 ** min(attempt, 30) * keyed_random("pause", *key, attempt).uniform(0.5, 1.0)
            await asyncio.sleep(min(max(delay, last.pause or 0.0), longest))
    raise GaveUp(f"gave up after {attempts} attempts: {last}", last)


class Breaker:
    """`with` it around attempts: once `limit` in a row, over `patience_s`, found the service down, it raises
    ServiceDown instead, and lets one through every `probe_s` to see whether it is back."""

    def __init__(self, limit: int, *, probe_s: float, patience_s: float = 0.0) -> None:
        self._limit, self._probe_s, self._patience_s = limit, probe_s, patience_s
        self._failures = 0
        self._since = 0.0
        """When the first of them ended."""
        self._probe_at = 0.0
        self._message = ""

    def __enter__(self) -> None:
        now = time.monotonic()
        if self._failures < self._limit or now - self._since < self._patience_s:
            return
        if now < self._probe_at:
            raise ServiceDown(f"down: {self._limit} attempts in a row failed", self._message)
        self._probe_at = now + self._probe_s

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        now = time.monotonic()
        if isinstance(error, Down):
            self._since = self._since if self._failures else now
            self._failures, self._message = self._failures + 1, str(error)
            if self._failures >= self._limit and not self._probe_at:
                self._probe_at = now + self._probe_s
        elif error is None or isinstance(
            error, (RetryableError, PalimpsestError)
        ):  # it answered; a cancelled one says nothing
            self._failures, self._probe_at = 0, 0.0
