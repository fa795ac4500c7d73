"""The viewer's server: the page, and what it asks for, over files that are only ever read.

    GET  /                  the page        GET /page/...   its modules and styles
    GET  /api/...           JSON; the paths stand in view/answers.py

Guaranteed: nothing but GET is answered; a page is one of the files in the package, by its whole name, so no path leads
elsewhere; every answer, errors too, forbids other origins by a content security policy; without a key only loopback is
served and pages of other sites are refused by Host and Origin, with one every path asks for it; requests are bounded
(bounded.py), and reading never blocks the event loop or the end.
Not covered: TLS (put a proxy before it).
"""

from __future__ import annotations

import asyncio
import mimetypes
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palimpsest.serve.http import Guard, Refused
from palimpsest.serve.reading_threads import ReadingThreads
from palimpsest.text.storable import to_json
from palimpsest.view.answers import Answers
from palimpsest.view.page_files import page_files
from palimpsest.view.sources import NotThere

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_THREADS = 4
_WAITING = 64
"""Requests that are answered or wait for a thread; beyond that 503."""


class ViewerService:
    """The routes. One event loop."""

    def __init__(self, answers: Answers, *, token: str | None = None) -> None:
        self._answers = answers
        self._guard = Guard(token, pages=False, basic=True)
        self._pages = page_files()
        self._threads = ReadingThreads(_THREADS, "view")
        self._waiting = 0

    def app(self) -> Starlette:
        app = self._guard.app(
            (
                ("/", "GET", lambda _: self._page("index.html")),
                ("/page/{path:path}", "GET", lambda request: self._page(request.path_params["path"])),
                ("/api/{path:path}", "GET", self._answer),
            )
        )
        app.add_middleware(_Sealed)
        return app

    def close(self) -> None:
        """Nothing is waited for: what is under way only reads."""
        self._threads.close()

    def _page(self, name: str) -> Response:
        if name not in self._pages:
            raise Refused(404, "no such page")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(self._pages[name], media_type=kind)

    async def _answer(self, request: Request) -> Response:
        if self._waiting >= _WAITING:
            raise Refused(503, "too many requests at once; ask again", headers={"Retry-After": "1"})
        self._waiting += 1
        path, query = request.scope["path"], dict(request.query_params)
        try:
            body = await self._threads.run(lambda: self._read(path, query))
        except asyncio.CancelledError:  # the server ends, and its grace is over
            raise Refused(503, "the viewer is ending") from None
        finally:
            self._waiting -= 1
        return Response(body, media_type="application/json")

    def _read(self, path: str, query: dict[str, str]) -> bytes:
        try:
            return to_json(self._answers.get(path, query))
        except NotThere as error:
            raise Refused(404, str(error)) from None
        except OSError as error:
            name = Path(error.filename).name if error.filename else "a file"
            raise Refused(404, f"{name}: {error.strerror}; it was moved or deleted while it was shown") from None


class _Sealed:
    """Puts `HEADERS` on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, sealed)
