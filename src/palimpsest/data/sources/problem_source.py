"""Where training and evaluation get their problems.

Guaranteed: resuming needs no state, a step's problems are the same whenever they are asked for; a training step
holds no problem twice; an epoch shows every problem once, but for the remainder that doesn't fill a step (another
one each epoch, as each epoch is shuffled anew; the file's last rows where `data.shuffle` is false).
Not covered: paragraphs, of which contexts are assembled, larger than memory (file_source.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from palimpsest.config.data import DataConfig, SearchDataConfig
from palimpsest.data.assemble import Placing
from palimpsest.data.formats.custom_format import DataFormat, custom_format
from palimpsest.data.formats.problem_files import Paths, ReadOptions
from palimpsest.data.sources.file_source import FileSource, SearchFileSource, Split
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.data.synthetic.search_problems import SOURCE as SYNTHETIC_SEARCH
from palimpsest.data.synthetic.search_problems import SyntheticSearchSource
from palimpsest.errors import DataError, nearest
from palimpsest.notes import Note
from palimpsest.plugin_kinds import KINDS
from palimpsest.types import Problem


class ProblemSource(Protocol):
    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems of a step; `round` > 0 asks for others in place of dropped groups.

        `size` is in the source's own measure: chunks of synthetic documents, objectives of search
        problems. Sources whose problems have a size of their own don't heed it.
        """
        ...


def build_source(config: DataConfig, seed: int = 0, *, split: Split) -> ProblemSource:
    """The source a recipe names, its draws keyed by `seed`. `eval` reads `val_files`, or `train_files` without them.
    Raises DataError."""
    name = config.train_files if split == "train" else config.val_files or config.train_files
    if isinstance(name, tuple):
        return _of_files(config, name, split, seed)
    if name == "synthetic":
        return SyntheticSource(config.synthetic, seed, split)
    if name == SYNTHETIC_SEARCH:
        return SyntheticSearchSource(config.search or SearchDataConfig(), seed, split)
    if not Path(name).suffix and not Path(name).exists() and (near := nearest(name, ("synthetic", SYNTHETIC_SEARCH))):
        raise DataError(f"{name}: no such file, and no source that is drawn{near}")
    return _of_files(config, name, split, seed)


def _of_files(config: DataConfig, paths: Paths, split: Split, seed: int) -> ProblemSource:
    """The source of one file, or of several as one."""
    reading = reading_of(config)
    if config.search is not None:
        objectives = config.search.objectives
        return SearchFileSource.open(
            paths, split=split, objectives=objectives, limit=config.limit, seed=seed, reading=reading
        )
    source = FileSource.open(
        paths,
        split=split,
        documents=config.documents,
        limit=config.limit,
        seed=seed,
        reading=reading,
        placing=Placing(config.order, config.min_distance),
    )
    return replace(source, shuffle=config.shuffle)


def reading_of(config: DataConfig) -> ReadOptions:
    """How the section's files are read. Raises ConfigError for a format of the user's that can't be used."""
    format = named_format(config.format, config.format_options)
    return ReadOptions(format, config.corpus, config.columns, config.on_missing_gold == "skip", config.split_questions)


def rows_left_out(source: ProblemSource) -> tuple[str, ...]:
    """What is said of each row of its files that a source leaves out."""
    return source.skipped if isinstance(source, FileSource | SearchFileSource) else ()


def left_out(rows: Sequence[str]) -> Note:
    """On rows that were left out."""
    return Note("rows_without_gold", count=len(rows), first=rows[0])


def named_format(name: str | None, options: Mapping[str, Any] | None = None) -> str | DataFormat | None:
    """What `data.format` names: a shipped format by its name, the user's own made; None if columns are to tell."""
    if name is None or name in KINDS["format"].shipped:
        return name
    return custom_format(name, options or {})
