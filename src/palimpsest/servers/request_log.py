"""One log line for each request once it has ended.

Guaranteed: each request that reaches the application has one line, a streamed one when its stream ends or its
client leaves; a log line is one line of printable text, without query, headers, body and the server's key.
Not covered: requests that are rejected before they reach the application.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NOTES = "palimpsest.notes"
_PATH = 120
"""Characters of a path in a line."""
_log = logging.getLogger("uvicorn.requests")  # uvicorn's handler prints it, at the level INFO


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request and how it was answered."""

    client: str
    """Its address, or what a proxy on this machine forwards as that."""
    method: str
    path: str
    status: int
    seconds: float
    """From the end of its head to the end of its answer."""
    first_byte: float | None
    """Seconds to the first byte of the answer's body; None where none was sent."""
    streamed: bool
    """Whether its body was sent in pieces."""
    whole: bool
    """Whether the answer was sent to its end."""
    notes: dict[str, Any]
    """What its handler noted."""


def note(request: Request, **facts: Any) -> None:
    """Add facts of a request to its log line. No text of a client belongs there."""
    request.scope.setdefault(_NOTES, {}).update(facts)


class RequestLog:
    """Middleware."""

    def __init__(self, app: ASGIApp, secret: str | None) -> None:
        """`secret`: never in a line."""
        self._app, self._secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, whole = time.monotonic(), 500, False  # a defect is answered by starlette, outside of this
        first: float | None = None
        streamed = False
        scope[_NOTES] = {}

        async def sending(message: Message) -> None:
            nonlocal status, whole, first, streamed
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                if first is None and message.get("body"):
                    first = time.monotonic() - began
                whole = not message.get("more_body", False)
                streamed = streamed or not whole
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            client, taken = (scope.get("client") or ("-", 0))[0], time.monotonic() - began
            asked = (client, scope["method"], scope["path"])
            ended = EndedRequest(*asked, status, taken, first, streamed, whole, scope[_NOTES])
            _log.info("%s", line_of(ended, self._secret))


def line_of(ended: EndedRequest, secret: str | None = None) -> str:
    r"""The log line of a request; `secret`: never in it.

    >>> line_of(EndedRequest("127.0.0.1", "GET", "/a\nGET /b", 404, 0.0021, 0.002, False, True, {}))[20:]
    ' 127.0.0.1 GET /a\\nGET\\x20/b 404 0.002s'
    """
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    path = ended.path.replace(secret, "***") if secret else ended.path
    words = [when, *map(_printable, (ended.client, ended.method, path)), str(ended.status), f"{ended.seconds:.3f}s"]
    if not ended.whole:
        words.append("left")
    if ended.streamed and ended.first_byte is not None:
        words.append(f"first_byte={ended.first_byte:.3f}s")
    words += [f"{name}={_printable(str(value))}" for name, value in ended.notes.items() if value is not None]
    return " ".join(words)


def _printable(text: str) -> str:
    r"""One word, whatever a client sent.

    >>> _printable("/ä \x1b[0m\u2028\\n")
    '/\\xe4\\x20\\x1b[0m\\u2028\\\\n'
    """
    short = text if len(text) <= _PATH else f"{text[:_PATH]}..."
    return short.encode("unicode_escape").decode("ascii").replace(" ", "\\x20")
