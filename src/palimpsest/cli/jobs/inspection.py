"""`palimpsest data inspect`."""

from __future__ import annotations

from palimpsest.cli.jobs.show import stdout
from palimpsest.data.inspect import inspect_source, render


def run_inspect(file: str, *, documents: int | None, corpus: str | None, limit: int | None) -> None:
    """Print the summary of a data file."""
    stdout().print(render(inspect_source(file, documents=documents, corpus=corpus, limit=limit)))
