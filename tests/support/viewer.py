"""A viewer in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from palimpsest.servers.http_service import Server, bound
from palimpsest.servers.viewer_server import ViewerService
from palimpsest.viewer.records.sources import Library
from palimpsest.viewer.screens.viewer_api import ViewerApi


@contextmanager
def viewer(*paths: Path, token: str | None = None, tokenizer: str | None = None) -> Iterator[str]:
    """The viewer's address."""
    service = ViewerService(ViewerApi(Library(paths, wait=True), tokenizer=tokenizer), token=token, follow=True)
    with bound("127.0.0.1", 0) as taken:
        server = Server(service.app(), taken, grace_seconds=1)
        server.capture_signals = _no_signals  # type: ignore[method-assign]  # a thread can't
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server.url
        finally:
            server.should_exit = True
            thread.join()
            service.close()


@contextmanager
def _no_signals() -> Iterator[None]:
    yield
