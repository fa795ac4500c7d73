"""Take the pictures of the viewer that the docs show: python scripts/viewer_pictures.py [FOLDER].

Each picture is an exported page of a record under tests/view/data in Chromium, driven by Playwright.
docs/images/viewer.json records the version of the page and the records; a test checks that it is current.

    long-episode     the quickstart's agent (seed 0) on 1,024 chunks, 256 times its training length, with a wrong answer
    group            a problem of its step 415, 16 rollouts
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.app.viewer_job import export
from palimpsest.viewer.export.inline_page import page_files

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RECORDS = ROOT / "tests" / "viewer" / "data"
MANIFEST = "viewer.json"
TOKENIZER = "embedded"
"""Tokenizer of the recorded agents."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One of them."""

    name: str
    record: str
    place: str
    """Location on the page: the hash of its URL."""
    height: int
    colours: str = "light"


PICTURES = (
    Picture("viewer-episode", "long-episode", "#/e/0/0/t/223", 860),
    Picture("viewer-group", "group", "#/g/0", 860, "dark"),
)
_WIDTH = 1360


def shown(records: Path = RECORDS) -> dict[str, str]:
    """Content of the pictures: SHA-256 of the page's files together and of the records, and the locations."""
    page = hashlib.sha256()
    for name, data in sorted(page_files().items()):
        page.update(f"{name}:{len(data)}:".encode() + data)
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(records.glob("*.zst"))}
    return {"page": page.hexdigest(), **digests, "pictures": repr(PICTURES)}


def take(folder: Path) -> None:
    """Write the pictures and the manifest into `folder`. Raises without Playwright or Chromium."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("PALIMPSEST_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for picture in PICTURES:
            page = Path(made) / f"{picture.record}.html"
            if not page.exists():
                export([RECORDS / f"{picture.record}.jsonl.zst"], page, tokenizer=TOKENIZER)
            (folder / f"{picture.name}.png").write_bytes(_photographed(browser, page, picture))
        browser.close()
    (folder / MANIFEST).write_text(json.dumps(shown(), indent=2, sort_keys=True) + "\n", "utf-8")


def _photographed(browser: Any, file: Path, picture: Picture) -> bytes:
    size = {"width": _WIDTH, "height": picture.height}
    page = browser.new_page(viewport=size, color_scheme=picture.colours, reduced_motion="reduce")
    page.goto(f"{file.as_uri()}{picture.place}")
    page.wait_for_selector("#main .screen")
    page.wait_for_function("!document.querySelector('.loading')")
    if page.locator("[role=alert]").count():
        raise RuntimeError(f"{picture.name}: the page says: {page.locator('[role=alert]').first.inner_text()}")
    image: bytes = page.screenshot()
    page.close()
    return image


def manifest(folder: Path = IMAGES) -> Mapping[str, str]:
    """Manifest of the pictures in a folder."""
    found: dict[str, str] = json.loads((folder / MANIFEST).read_text("utf-8"))
    return found


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
