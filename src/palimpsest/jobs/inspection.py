"""`palimpsest data inspect` and `palimpsest data assemble`."""

from __future__ import annotations

from pathlib import Path

from palimpsest.config.data import DataConfig
from palimpsest.data.inspect import inspect_source, render
from palimpsest.data.problems import write_eval_file
from palimpsest.data.source import FileSource, build_source
from palimpsest.errors import ConfigError
from palimpsest.jobs.show import note, stdout


def run_inspect(file: str, *, documents: int | None, corpus: str | None, limit: int | None) -> None:
    """Print the summary of a data file."""
    stdout().print(render(inspect_source(file, documents=documents, corpus=corpus, limit=limit)))


def run_assemble(file: str, *, out: Path, order: str, **settings: object) -> None:
    """Write the problems of a file with assembled contexts."""
    if order not in ("any", "forward", "reverse"):
        raise ConfigError(f"--order {order}: choose one of any, forward, reverse")
    config = DataConfig.model_validate({"source": file, "order": order, **settings})
    source = build_source(config, split="eval")
    assert isinstance(source, FileSource)
    count = write_eval_file(out, source)
    note(f"{out}: {count} problems of {config.documents} documents")
