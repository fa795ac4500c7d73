"""What is in a data file, and long contexts made of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from palimpsest.config.data import DataConfig
from palimpsest.data.file_source import FileSource
from palimpsest.data.problems import write_eval_file
from palimpsest.data.source import build_source
from palimpsest.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the rows of a file."""

    count: int
    """Problems that were written."""
    skipped: tuple[str, ...]
    """What is said of each row that was left out."""


def assemble_file(file: str, *, out: Path, order: str, **settings: object) -> Written:
    """Write the problems of a file with assembled contexts."""
    if order not in ("any", "forward", "reverse"):
        raise ConfigError(f"--order {order}: choose one of any, forward, reverse")
    config = DataConfig.model_validate({"source": file, "order": order, **settings})
    source = build_source(config, split="eval")
    assert isinstance(source, FileSource)
    return Written(write_eval_file(out, source), source.skipped)
