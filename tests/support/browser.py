"""Debian's Chromium, driven by Playwright: one browser for a module of tests, a page of its own for each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = os.environ.get("PALIMPSEST_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window. Skips the tests, saying so, where there is none."""
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
    """A page that keeps what it asked for and what went wrong in it."""

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

    def go(self, place: str) -> Any:
        """Show the screen at a hash, and wait until it is read."""
        self.page.goto(f"{self.origin}/{place}")
        return self.read()

    def read(self) -> Any:
        """The page once nothing on it is being read."""
        self.page.wait_for_selector("#main .screen")
        self.page.wait_for_selector(".loading", state="detached")
        return self.page

    @property
    def strays(self) -> list[str]:
        """Requests that left the origin."""
        own = urlsplit(self.origin).netloc
        return [url for url in self.requests if urlsplit(url).scheme != "data" and urlsplit(url).netloc != own]

    def close(self) -> None:
        self.page.close()


@contextmanager
def watching(browser: Any, origin: str, **options: Any) -> Iterator[Watched]:
    """A page at whose end nothing has failed in it and nothing was asked of another origin."""
    page = Watched(browser, origin, **options)
    yield page
    assert page.errors == []
    assert page.strays == []
    page.close()
