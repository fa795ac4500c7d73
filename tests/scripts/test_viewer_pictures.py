"""The pictures in the docs match the viewer."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from support.browser import chromium
from viewer_pictures import IMAGES, MANIFEST, PICTURES, manifest, shown, take

ROOT = Path(__file__).parents[2]
LARGEST = 200_000


def size_of(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_the_pictures_are_of_the_page_as_it_is() -> None:
    """After a change of the page: python scripts/viewer_pictures.py"""
    assert dict(manifest()) == shown()


def test_the_pictures_are_small_and_the_docs_show_them() -> None:
    docs = (ROOT / "docs" / "how-to" / "inspect-episodes.md").read_text("utf-8")
    for picture in PICTURES:
        data = (IMAGES / f"{picture.name}.png").read_bytes()
        assert len(data) < LARGEST
        assert size_of(data)[1] == picture.height
        assert f"images/{picture.name}.png" in docs


@pytest.mark.slow
def test_the_script_takes_them(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    with chromium():  # skips plainly where there is none
        pass
    take(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {MANIFEST, *(f"{picture.name}.png" for picture in PICTURES)}
    assert dict(manifest(tmp_path)) == shown()
    for picture in PICTURES:
        assert size_of((tmp_path / f"{picture.name}.png").read_bytes())[1] == picture.height
