"""The files of the page, which are a part of the package."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

_KINDS = (".html", ".js", ".css", ".svg")


def page_files() -> dict[str, bytes]:
    """Content by the name below `page/`: `index.html`, `screens/run.js`..."""
    return dict(_below(files("palimpsest.view") / "page", ""))


def _below(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            found += _below(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_KINDS):
            found.append((prefix + entry.name, entry.read_bytes()))
    return found
