"""Data files from one layout to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from palimpsest.data.problems import read_corpus, read_problems
from palimpsest.data.writers import LAYOUTS, Writing, indexed_by
from palimpsest.errors import ConfigError, nearest
from palimpsest.jobs.set_folder import free_file
from palimpsest.progress.progress import Progress, Silent, Tick
from palimpsest.types import Problem


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written."""

    path: Path
    problems: int
    dropped: dict[str, int]
    """Problems that lost something for which the layout has no place, by what."""


def convert(
    file: str | Path,
    to: str,
    *,
    out: Path,
    indices_into: Path | None = None,
    format: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Read `file`, in whatever known layout, and write it as `to`. Raises ConfigError, DataError.

    `indices_into`: the file whose documents contexts of memagent-eval are to be numbers of.
    """
    progress = progress or Silent()
    if to not in LAYOUTS:
        raise ConfigError(f"--to {to}: choose of {', '.join(LAYOUTS)}{nearest(to, LAYOUTS)}")
    if indices_into is not None and to != "memagent-eval":
        raise ConfigError(f"--indices-into {indices_into}: only memagent-eval holds numbers of documents")
    if out.resolve() == Path(file).resolve():
        raise ConfigError(f"--out {out}: is the file that is read; give another")
    writing = Writing(to, None if indices_into is None else indexed_by(read_corpus(indices_into)))
    with progress.count("problems", sum(1 for _ in read_problems(file, format=format))) as tick:
        free_file(out, force=force, progress=progress)
        number = writing.write(out, _ticked(read_problems(file, format=format), tick))
    return Converted(out, number, dict(writing.dropped))


def _ticked(problems: Iterator[Problem], tick: Tick) -> Iterator[Problem]:
    for problem in problems:
        yield problem
        tick()
