"""What is shared by those who ask a service over HTTP: its address, its token, and how much of a reply is read.

Guaranteed: an address with a user or a password in it is refused, for it would stand in configurations, records and
messages; a token comes out of the environment and is in no message; a reply is read as it comes and never holds more
than the limit, neither as sent nor decompressed.
Not covered: redirects; other encodings than gzip and deflate, which are refused.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from palimpsest.errors import ConfigError

ERROR_BYTES = 1 << 16
"""Of a reply that isn't status 200: read for its first words alone."""
_HIDDEN = "(redacted)"


class BadReply(Exception):
    """A reply that can't be read: too long, wrongly encoded. One line."""


@dataclass(frozen=True, slots=True)
class Reply:
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


async def post(client: httpx.AsyncClient, url: str, body: Mapping[str, Any], *, limit: int) -> Reply:
    """`body` as JSON to `url`; at most `limit` bytes come back. Raises BadReply and httpx's errors."""
    return await ask(client, "POST", url, body, limit=limit)


async def ask(
    client: httpx.AsyncClient, method: str, url: str, body: Mapping[str, Any] | None = None, *, limit: int
) -> Reply:
    """`post`, by any method, with or without a body."""
    async with client.stream(method, url, json=body, headers={"Accept-Encoding": "identity"}) as answer:
        whole = answer.status_code == 200
        limit = limit if whole else ERROR_BYTES
        raw = bytearray()
        async for chunk in answer.aiter_raw():
            raw += chunk
            if len(raw) > limit:
                if whole:
                    raise BadReply(f"the reply exceeds {limit} bytes")
                break
        encoding = answer.headers.get("content-encoding", "identity").lower()
        return Reply(answer.status_code, answer.headers, _decompressed(bytes(raw), encoding, limit, whole=whole))


def _decompressed(raw: bytes, encoding: str, limit: int, *, whole: bool) -> bytes:
    if encoding == "identity":
        return raw
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadReply(f"the reply comes as {encoding!r:.40}, which was not asked for")
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: a header of gzip or of zlib
    try:
        body = inflate.decompress(raw, limit + 1)
    except zlib.error as error:
        raise BadReply(f"the reply is no {encoding} ({error})") from None
    if len(body) > limit and whole:
        raise BadReply(f"the reply exceeds {limit} bytes when decompressed")
    return body[:limit]


def check_address(url: str, key: str, *, example: str = "http://host:port") -> httpx.URL:
    """The address of a server, the value of `key`. Raises ConfigError for what is none, or holds a password."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        shown = f"={url!r:.80}" if "@" not in str(url) else ""
        raise ConfigError(f"{key}{shown}: {error}; give {example}") from None
    if parsed.userinfo or "@" in parsed.netloc.decode("ascii", "replace"):
        raise ConfigError(f"{key}: the address holds a user or a password; give {example}, and a token apart from it")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{key}={url!r:.80}: no address of a server; give {example}")
    if parsed.port is not None and not 0 < parsed.port < 1 << 16:
        raise ConfigError(f"{key}={url!r:.80}: no port {parsed.port}; ports go from 1 to 65535")
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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a service asks to wait; the form with a date is passed over.

    >>> retry_after({"retry-after": "2"}), retry_after({"retry-after": "Sun, 22 Nov 2026"}), retry_after({})
    (2.0, None, None)
    """
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None
