"""One log line for each request once it has ended.

Guaranteed: one log line per request that reaches the application, for a stream at its end or when its client leaves; a
line is printable text without query, headers, body or the server's key.
Not covered: requests rejected before they reach the application.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NOTES = "palimpsest.notes"
_PATH = 120
"""Characters of a path in a line."""
_log = logging.getLogger("uvicorn.requests")  # uvicorn's handler prints it, at the level INFO


def note(request: Request, **facts: Any) -> None:
    """Add facts, never client text, to a request's log line; a function is called at the request's end."""
    request.scope.setdefault(_NOTES, {}).update(facts)


class RequestLog:
    """Middleware that writes the log."""

    def __init__(self, app: ASGIApp, secret: str | None) -> None:
        """`secret`: never in a line."""
        self._app, self._secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, complete = time.monotonic(), 500, False  # starlette answers a defect outside of this
        first: float | None = None
        streamed = False
        scope[_NOTES] = {}

        async def sending(message: Message) -> None:
            nonlocal status, complete, first, streamed
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                if first is None and message.get("body"):
                    first = time.monotonic() - began
                complete = not message.get("more_body", False)
                streamed = streamed or not complete
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            path = scope["path"].replace(self._secret, "***") if self._secret else scope["path"]
            fields = ((scope.get("client") or ("-", 0))[0], scope["method"], path, str(status))
            words = [*fields, f"{time.monotonic() - began:.3f}s"]
            if not complete:
                words.append("left")
            if streamed and first is not None:
                words.append(f"first_byte={first:.3f}s")
            facts = {name: value() if callable(value) else value for name, value in scope[_NOTES].items()}
            words += [f"{name}={value}" for name, value in facts.items() if value is not None]
            _log.info("%s", line_of(words))


def line_of(words: Sequence[str]) -> str:
    r"""A log line, with the time before the words.

    >>> line_of(["GET", "/a\nGET /b", "404"])[20:]
    ' GET /a\\nGET\\x20/b 404'
    """
    return " ".join([time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), *map(_printable, words)])


def _printable(text: str) -> str:
    r"""One word, for any text from a client.

    >>> _printable("/ä \x1b[0m\u2028\\n")
    '/\\xe4\\x20\\x1b[0m\\u2028\\\\n'
    """
    short = text if len(text) <= _PATH else f"{text[:_PATH]}..."
    return short.encode("unicode_escape").decode("ascii").replace(" ", "\\x20")
