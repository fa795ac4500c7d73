"""HTTP connections with bounds that hold before anything of a request is believed, a token least of all.

uvicorn's protocol over httptools, which bounds none of these by itself.

Guaranteed: URL and headers, trailers too, are bounded in bytes and in number, and arrive within `head_seconds` or the
connection ends; so does one whose body goes on after its answer, or whose client doesn't read. Connections beyond a
number take the place of the one that has waited longest for a further request, and where none waits are told so and
closed; the number stays clear of the process's limit of descriptors. Where the machine has none
left, accepting pauses for a second and says so in one line now and then. A connection is not read while more than a few
of its requests wait for their turn; bytes of it that have arrived are parsed once those requests are answered.
Not covered: shares of the places between clients; the body of a request, which the application reads within limits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar

import httptools
import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BACKLOG = 64
"""Connections accepted in one go."""
_RESERVE = BACKLOG + 16  # descriptors: those accepted before the first is counted, and the files of the application
_FEWEST = 8
_LOG_EVERY = 10.0  # seconds
_PIECE = 1 << 10
"""Bytes parsed between two looks at how many requests wait: at most 57 requests, each of 18 bytes."""
_log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may take before its request is looked at."""

    connections: int = 512
    url_bytes: int = 8 << 10
    head_bytes: int = 16 << 10
    headers: int = 100
    waiting: int = 16
    """Requests of a connection that wait behind the one being answered; one piece of `_PIECE` bytes may exceed it."""
    head_seconds: float = 10.0
    """From a head's first byte to its last, and from connecting to the first."""
    write_seconds: float = 30.0
    """For a client to take what fills the buffers."""
    linger_seconds: float = 2.0
    """A body is still received after the answer, so that the client comes to read it."""

    def within_descriptors(self) -> ConnectionLimits:
        """The same, with no more connections than the process has descriptors for."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most == resource.RLIM_INFINITY:
            return self
        with suppress(OSError):  # no /proc, /dev/fd
            most -= len(os.listdir("/dev/fd"))
        return replace(self, connections=max(_FEWEST, min(self.connections, most - _RESERVE)))


ErrorOf = Callable[[HTTPStatus, str], object]
"""The JSON of an error, of its status and its line."""


class _TooLarge(Exception):
    """Ends the parser."""


class _Flow(FlowControl):
    """Reading stays paused, whoever would resume it, while bytes that were read are not parsed yet."""

    def __init__(self, transport: asyncio.Transport, unparsed: bytearray) -> None:
        super().__init__(transport)
        self._unparsed = unparsed

    def resume_reading(self) -> None:
        if not self._unparsed:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """One connection; `with_limits` makes the class that uvicorn takes."""

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    @staticmethod
    def error_of(status: HTTPStatus, said: str) -> object:
        """The JSON of an error."""
        return {"error": said}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unparsed = bytearray()
        self.flow = _Flow(transport, self._unparsed)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._refusal = (HTTPStatus.BAD_REQUEST, "this is no HTTP request")
        self._in_head, self._in_body = True, False
        self._head_bytes = self._size = self._headers = 0
        if len(self.connections) > self.limits.connections and not self._close_longest_kept():
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections; try again later")
        else:
            self._start("head", self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._unset_keepalive_if_required()
        self._unparsed.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        """Parse what has arrived, up to where too many requests wait."""
        while self._unparsed and len(self.pipeline) < self.limits.waiting and not self.transport.is_closing():
            piece = bytes(self._unparsed[:_PIECE])
            del self._unparsed[:_PIECE]
            self._parse_piece(piece)
        if self.transport.is_closing():
            self._unparsed.clear()
        elif self._unparsed:
            self._cancel("head")  # the rest of a head that has begun may be here already
            self.flow.pause_reading()

    def _parse_piece(self, data: bytes) -> None:
        if self._in_head and "head" not in self._timers:
            self._start("head", self.limits.head_seconds)
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(*self._refusal)
        except httptools.HttpParserUpgrade:
            pass  # answered as if it had not asked for another protocol
        else:
            if self._in_head and self._head_bytes > self.limits.head_bytes:  # one endless line, which no callback told
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request does not end")

    # ---- callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._size = self._headers = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.url_bytes:
            self._stop(HTTPStatus.REQUEST_URI_TOO_LONG, f"the URL exceeds {self.limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value)
        self._headers += 1
        if self._headers > self.limits.headers or self._size > self.limits.head_bytes:
            limits = self.limits
            said = f"more than {limits.headers} headers, or {limits.head_bytes} bytes of them"
            self._stop(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, said)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel("head")
        self._in_head, self._in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._in_body = True, False
        self._head_bytes = 0

    # ---- clients that do not send, or do not read

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed and not self.pipeline:
            self._unset_keepalive_if_required()
            self._parse()
            self.flow.resume_reading()
        if self._in_body and self.cycle.response_complete:  # the body is that of the newest request
            self._start("linger", self.limits.linger_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("write", self.limits.write_seconds)

    def resume_writing(self) -> None:
        self._cancel("write")
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _close_longest_kept(self) -> bool:
        """Close the connection that has waited longest for a further request; False where none waits."""
        protocols = [each for each in self.connections if isinstance(each, BoundedProtocol)]
        kept = [(timer.when(), each) for each in protocols if (timer := each.timeout_keep_alive_task) is not None]
        if not kept:
            return False
        _, longest = min(kept, key=lambda pair: pair[0])
        longest._unset_keepalive_if_required()  # it isn't chosen again
        longest.transport.close()
        return True

    def _start(self, what: str, seconds: float) -> None:
        self._cancel(what)
        self._timers[what] = self.loop.call_later(seconds, self._late, what)

    def _cancel(self, what: str) -> None:
        timer = self._timers.pop(what, None)
        if timer is not None:
            timer.cancel()

    def _late(self, what: str) -> None:
        del self._timers[what]
        if what == "head":
            seconds = self.limits.head_seconds
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the head of the request did not arrive within {seconds:g} s")
        elif what == "linger":
            if self._in_body:
                self._close()
        else:
            self.transport.abort()

    def _stop(self, status: HTTPStatus, said: str) -> None:
        self._refusal = status, said
        raise _TooLarge

    def _refuse(self, status: HTTPStatus, said: str) -> None:
        """Say why and close; a request that is being answered is given up."""
        if self.cycle is None or self.cycle.response_complete:
            body = orjson.dumps(self.error_of(status, said))
            head = f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: application/json\r\n"
            self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            self._close()
        else:
            self.transport.abort()

    def _close(self) -> None:
        self.transport.close()
        self._start("write", self.limits.write_seconds)  # close waits for a client that doesn't read


def with_limits(limits: ConnectionLimits, error_of: ErrorOf | None = None) -> type[BoundedProtocol]:
    """The protocol's class for `uvicorn.Config(http=...)`; `error_of` gives the JSON of what is refused."""
    form = {} if error_of is None else {"error_of": staticmethod(error_of)}
    return type("LimitedProtocol", (BoundedProtocol,), {"limits": limits.within_descriptors(), **form})


class AcceptErrors:
    """A loop's exception handler: asyncio reports a lack of descriptors once for each connection that waits."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != "socket.accept() out of system resource":
            loop.default_exception_handler(context)
            return
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _LOG_EVERY
            _log.warning("no descriptors are left (%s): connections wait until some are closed", context["exception"])
