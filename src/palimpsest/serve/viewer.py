"""The viewer's server: the page, and what it asks for, over files that are only ever read.

    GET  /                  the page        GET /page/...   its modules and styles
    GET  /api/...           JSON; the paths stand in view/answers.py

Guaranteed: nothing but GET is answered; a page is one of the files in the package, by its whole name, so no path leads
elsewhere; every answer, errors too, forbids other origins by a content security policy; without a key only loopback is
served and pages of other sites are refused by Host and Origin, with one every path asks for it; requests are bounded
(bounded.py), and reading never blocks the event loop.
Not covered: TLS (put a proxy before it).
"""

from __future__ import annotations

import asyncio
import mimetypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palimpsest.serve.http import Guard, Refused
from palimpsest.text.storable import storable
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
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="view")
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
        self._threads.shutdown(cancel_futures=True)

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
            body = await asyncio.get_running_loop().run_in_executor(self._threads, self._read, path, query)
        finally:
            self._waiting -= 1
        return Response(body, media_type="application/json")

    def _read(self, path: str, query: dict[str, str]) -> bytes:
        try:
            return _encoded(self._answers.get(path, query))
        except NotThere as error:
            raise Refused(404, str(error)) from None
        except OSError as error:
            name = Path(error.filename).name if error.filename else "a file"
            raise Refused(404, f"{name}: {error.strerror}; it was moved or deleted while it was shown") from None


def _encoded(value: object) -> bytes:
    """JSON, also of what no JSON holds: a file's name or a foreign text that is no Unicode."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return orjson.dumps(storable(value, []))


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
