"""Data files from one layout to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from palimpsest.data.problems import read_corpus, read_problems
from palimpsest.data.question_files import read_where
from palimpsest.data.writers import LAYOUTS, Writing, indexed_by
from palimpsest.errors import ConfigError, DataError, nearest
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
    where: Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Read `file`, in whatever known layout, and write it as `to`. Raises ConfigError, DataError.

    `indices_into`: the file whose documents contexts of memagent-eval are to be numbers of; `where`: only problems with
    KEY=VALUE[,VALUE] in their metadata.
    """
    progress = progress or Silent()
    if to not in LAYOUTS:
        raise ConfigError(f"--to {to}: choose of {', '.join(LAYOUTS)}{nearest(to, LAYOUTS)}")
    if indices_into is not None and to != "memagent-eval":
        raise ConfigError(f"--indices-into {indices_into}: only memagent-eval holds numbers of documents")
    if out.resolve() == Path(file).resolve():
        raise ConfigError(f"--out {out}: is the file that is read; give another")
    writing = Writing(to, None if indices_into is None else indexed_by(read_corpus(indices_into)))
    wanted = read_where(where)
    total = sum(1 for _ in _chosen(file, format, wanted))
    if not total:
        raise DataError(f"--where {' '.join(where)}: no problem of {file} is so; its metadata: palimpsest data inspect")
    with progress.count("problems", total) as tick:
        free_file(out, force=force, progress=progress)
        number = writing.write(out, _ticked(_chosen(file, format, wanted), tick))
    return Converted(out, number, dict(writing.dropped))


def _chosen(file: str | Path, format: str | None, wanted: Mapping[str, frozenset[str]]) -> Iterator[Problem]:
    for problem in read_problems(file, format=format):
        if all(str(problem.metadata.get(key)) in values for key, values in wanted.items()):
            yield problem


def _ticked(problems: Iterator[Problem], tick: Tick) -> Iterator[Problem]:
    for problem in problems:
        yield problem
        tick()
