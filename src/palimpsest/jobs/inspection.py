"""What is in a data file, and long contexts made of one."""

from __future__ import annotations

from pathlib import Path

from palimpsest.config.data import DataConfig
from palimpsest.data.problems import write_eval_file
from palimpsest.data.source import FileSource, build_source
from palimpsest.errors import ConfigError


def assemble_file(file: str, *, out: Path, order: str, **settings: object) -> int:
    """Write the problems of a file with assembled contexts; how many."""
    if order not in ("any", "forward", "reverse"):
        raise ConfigError(f"--order {order}: choose one of any, forward, reverse")
    config = DataConfig.model_validate({"source": file, "order": order, **settings})
    source = build_source(config, split="eval")
    assert isinstance(source, FileSource)
    return write_eval_file(out, source)
