"""Shared parts of HTTP clients: a service's address and token, its replies, retries. Client: http_connections.py.

Guaranteed: an address that contains a user or a password is rejected, because configurations, records and messages
would contain it; a token comes from the environment and is in no message.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

import orjson

from palimpsest.errors import ConfigError, PalimpsestError


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete reply of a service; for a status other than 200, only its beginning."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Parsed body. Raises ValueError for invalid or too deeply nested JSON."""
        return orjson.loads(self.body)

    def quoted(self, limit: int, *secrets: str | None) -> str:
        """The beginning of the body for a message, on one line, without secrets from an echo."""
        text = redacted(self.body.decode("utf-8", "replace"), *secrets)
        return f"{text[:limit]!r}"


def check_address(url: str, key: str, *, example: str = "http://host:port") -> SplitResult:
    """Parse a server's address, the value of `key`. Raises ConfigError for an invalid one, or one with a password."""
    try:
        parsed = urlsplit(url)
    except (ValueError, TypeError, AttributeError) as error:
        shown = f"={url!r:.80}" if "@" not in str(url) else ""
        raise ConfigError(f"{key}{shown}: {error}; use {example}") from None
    try:
        valid = parsed.port != 0
    except ValueError:
        valid = False
    if "@" in (parsed.netloc if valid else url):  # a "/" in a password ends the netloc
        raise ConfigError(f"{key}: the address contains a user or a password; use {example} and a separate token")
    unprintable = not url.isprintable() or " " in url  # urlsplit drops line breaks
    if unprintable or parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ConfigError(f"{key}={url!r:.80}: not a server address; use {example}")
    if not valid:
        raise ConfigError(f"{key}={url!r:.80}: invalid port; use {example}, with a port from 1 to 65535")
    return parsed


def token_from(variable: str | None, key: str, *, strip: bool = True) -> str | None:
    """The token in the environment variable that `key` names, None if it names none. Raises ConfigError, without
    `strip` also for white space around it."""
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    token = token.strip() if strip else token
    if not token:
        raise ConfigError(f"{key}={variable}: the environment has no such variable; set it, or drop the option")
    check_token(token, f"{key}={variable}")
    return token


def check_token(token: str | None, key: str) -> None:
    """Raise ConfigError for a server token, the value of `key`, that does not fit into a header."""
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"{key}: no client can send this token in a header; use ASCII letters, digits and signs")


def redacted(text: str, *secrets: str | None) -> str:
    r"""`text` without the ASCII secrets, also where JSON or a URL escapes their characters.

    >>> redacted("you sent Bearer s3/cret", "s3/cret", None), redacted(r"\u00733\/cret, s3%2Fcret", "s3/cret")
    ('you sent Bearer (redacted)', '(redacted), (redacted)')
    """
    for secret in filter(None, secrets):
        if (form := _form_of(secret)).search(text):
            text = re.sub(r"\\{0,4}" + form.pattern, "(redacted)", text)
    return text


@lru_cache(maxsize=16)
def _form_of(secret: str) -> re.Pattern[str]:
    """Matches a secret from its first character on. Each alternative begins with one letter, for which `re` searches
    fast: a tenth of the time of a pattern that begins with optional backslashes."""
    either = (re.sub("[a-f]", lambda digit: f"[{digit[0]}{digit[0].upper()}]", f"{ord(c):02x}") for c in secret)
    forms = (f"(?:{re.escape(c)}|u00{code}|U00{code}|%{code})" for c, code in zip(secret, either, strict=True))
    return re.compile(r"\\{0,4}".join(forms))


def error_in_reply(answer: Any, *secrets: str | None) -> str | None:
    """The error that a reply of status 200 contains instead of choices, at most 300 characters and without the secrets;
    None without an error.

    >>> error_in_reply({"error": {"message": "upstream is busy"}}), error_in_reply({"choices": [], "error": None})
    ('upstream is busy', None)
    """
    error = answer.get("error") if isinstance(answer, dict) and not answer.get("choices") else None
    if not error:
        return None
    text = error.get("message", error) if isinstance(error, dict) else error
    return f"{redacted(str(text), *secrets):.300}"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait that a service requests; a date is ignored.

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
    """No reply, or a server error."""


class Busy(RetryableError):
    """The service is busy (408, 429)."""


class Unanswered(Down):
    """No connection, or an incomplete reply after the time limit or a broken connection. One line."""


class BadReply(RetryableError):
    """An unusable reply: too long, wrongly encoded, or of another shape. One line."""


class GaveUp(Exception):
    """No attempt succeeded. One line; `last`: the last attempt's error."""

    def __init__(self, message: str, last: RetryableError) -> None:
        super().__init__(message)
        self.last = last


class ServiceDown(GaveUp):
    """Not called: the service was down in too many attempts."""


class Breaker:
    """`with` it around attempts: once `limit` in a row, over `patience_s`, found the service down, it raises
    ServiceDown instead, and lets one through every `probe_s` to see whether it is back."""

    def __init__(self, limit: int, *, probe_s: float, patience_s: float = 0.0) -> None:
        self._limit, self._probe_s, self._patience_s = limit, probe_s, patience_s
        self._failures = 0
        self._since = 0.0
        """End of the first failure."""
        self._probe_at = 0.0
        self._last = Down("never called")

    def __enter__(self) -> None:
        now = time.monotonic()
        if self._failures < self._limit or now - self._since < self._patience_s:
            return
        if now < self._probe_at:
            raise ServiceDown(f"down: {self._limit} attempts in a row failed", self._last)
        self._probe_at = now + self._probe_s

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        now = time.monotonic()
        if isinstance(error, Down):
            self._since = self._since if self._failures else now
            self._failures, self._last = self._failures + 1, error
            if self._failures >= self._limit and not self._probe_at:
                self._probe_at = now + self._probe_s
        elif error is None or isinstance(
            error, (RetryableError, PalimpsestError)
        ):  # it answered; a cancelled one says nothing
            self._failures, self._probe_at = 0, 0.0
