"""Debian's Chromium, driven by Playwright: one browser and one page per module, a new document per test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = os.environ.get("PALIMPSEST_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
VIEWPORT: Any = {"width": 1280, "height": 720}
"""Playwright's default."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser; skips the tests without one."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"no Chromium at {CHROMIUM}: apt-get install chromium, or set PALIMPSEST_CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page that records its requests and errors."""

    def __init__(self, browser: Any, origin: str, **options: Any) -> None:
        self.origin = origin
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(30_000)  # on a busy machine
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._console)

    def _console(self, message: Any) -> None:
        if message.type == "error" and "404" not in message.text:
            self.errors.append(message.text)

    def go(self, fragment: str) -> Any:
        """Open the screen at a hash and wait until it has loaded."""
        self.page.goto(f"{self.origin}/{fragment}")
        return self.read()

    def read(self) -> Any:
        """The page once it has loaded."""
        self.page.wait_for_selector("#main .screen")
        self.page.wait_for_selector(".loading", state="detached")
        return self.page

    @property
    def strays(self) -> list[str]:
        """Requests to other origins."""
        origin = urlsplit(self.origin).netloc
        return [url for url in self.requests if urlsplit(url).scheme != "data" and urlsplit(url).netloc != origin]

    def check(self) -> None:
        """Assert that no error and no request to another origin occurred."""
        assert self.errors == []
        assert self.strays == []

    def reset(self) -> None:
        """Leave the document, and forget what it stored and recorded."""
        self.page.unroute_all(behavior="ignoreErrors")
        if self.page.url.startswith(self.origin):
            self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.page.emulate_media(media="null", color_scheme="null")
        self.page.set_viewport_size(VIEWPORT)
        self.page.goto("about:blank")
        self.requests.clear()
        self.errors.clear()

    def close(self) -> None:
        self.page.close()


@contextmanager
def watching(page: Watched, origin: str) -> Iterator[Watched]:
    """A module's page at another viewer, where it must cause no error and no request to another origin."""
    page.origin = origin
    page.reset()
    yield page
    page.check()
    page.reset()  # before the viewer ends
