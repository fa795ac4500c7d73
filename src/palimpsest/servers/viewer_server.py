"""The viewer's server: the page and its data, read-only.

    GET  /                  the page, one file (viewer/export/inline_page.py)
    GET  /api/...           JSON; viewer/screens/viewer_api.py lists the paths
    HEAD                    both, without a body

Guaranteed: only GET and HEAD are answered, and no path leads to a file; every response, including errors, has the
page's content security policy, which allows only its inline script and no other origin; without a key only loopback is
served, and Host and Origin reject pages of other sites; with a key every path requires it; heads of requests are
bounded; reading never blocks the event loop or the shutdown.
Not covered: TLS (put a proxy in front).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from palimpsest.servers.http_service import ReadingThreads, Refused, RequestGuard
from palimpsest.text.json_text import to_json
from palimpsest.viewer.export.inline_page import page_files, single_page
from palimpsest.viewer.records.sources import NotThere
from palimpsest.viewer.screens.viewer_api import ViewerApi

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_THREADS = 4
_WAITING = 64
"""Requests running or waiting for a thread; more get 503."""


class ViewerService:
    """The routes. One event loop."""

    def __init__(self, answers: ViewerApi, *, token: str | None = None, follow: bool = False) -> None:
        """`follow`: the page refreshes automatically."""
        self._answers = answers
        self._page = single_page(page_files(), follow=follow)
        policy = {"Content-Security-Policy": f"{self._page.policy}; frame-ancestors 'none'"}
        self._guard = RequestGuard(token, pages=False, basic=True, headers={**HEADERS, **policy})
        self._threads = ReadingThreads(_THREADS, "view")
        self._waiting = 0

    def app(self) -> Starlette:
        return self._guard.app(
            (
                ("/", "GET", lambda _: Response(self._page.data, media_type="text/html")),
                ("/api/{path:path}", "GET", self._answer),
            )
        )

    def read_ahead(self) -> None:
        """Start reading the most likely first request."""
        self._threads.begin(self._answers.read_ahead)

    def close(self) -> None:
        """Close without waiting: running work only reads."""
        self._threads.close()

    async def _answer(self, request: Request) -> Response:
        if self._waiting >= _WAITING:
            raise Refused(503, "too many requests at the same time; retry", headers={"Retry-After": "1"})
        self._waiting += 1
        path, query = request.scope["path"], dict(request.query_params)
        try:
            body = await self._threads.run(lambda: self._read(path, query))
        except asyncio.CancelledError:  # the server ends, and its grace is over
            raise Refused(503, "the viewer is stopping") from None
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
            raise Refused(404, f"{name}: {error.strerror}; moved or deleted after it was listed") from None
