"""Progress in a Jupyter notebook: one bar below the cell, updated in place; plain text without HTML."""

from __future__ import annotations

import builtins
import html
import time
from typing import Any

from IPython.display import display

from palimpsest.progress.displays import Display, DisplayLine
from palimpsest.progress.reporter import Overall

_EVERY_S = 0.2  # seconds between two updates of a bar


class Notebook(Display):
    """Shows progress below the cell."""

    def print(self, text: str) -> None:
        builtins.print(text)

    def open_line(self, overall: Overall) -> DisplayLine:
        return _NotebookBar(overall)


class _NotebookBar:
    def __init__(self, overall: Overall) -> None:
        self._overall = overall
        self._shown = time.monotonic()
        self._output: Any = display(self._bundle(), raw=True, display_id=True)

    def begin(self) -> None:
        self._update()

    def show(self) -> None:
        """Update the bar, at most every `_EVERY_S` seconds unless a stage ends."""
        if self._overall.at_an_end or time.monotonic() - self._shown > _EVERY_S:
            self._update()

    inside = show

    def message(self, text: str) -> None:
        print(text)

    def close(self) -> None:
        self._update()

    def _update(self) -> None:
        self._shown = time.monotonic()
        self._output.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        text = self._overall.words()
        bar = f'<progress value="{self._overall.fraction:.4f}" max="1"></progress>'
        return {"text/plain": text, "text/html": f"{bar} <code>{html.escape(text)}</code>"}
