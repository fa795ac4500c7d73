"""Where training and evaluation get their problems; several files mixed by share.

Guaranteed: resuming needs no state, a step's problems are the same whenever they are asked for; a training step
holds no problem twice; an epoch shows every problem once, but for the remainder that doesn't fill a step (another
one each epoch, as each epoch is shuffled anew; the file's last rows where `data.shuffle` is false).
Not covered: paragraphs, of which contexts are assembled, larger than memory (file_source.py).

Several files in one training: each gives its share of every step.

With weights 3 and 1, a step of 8 problems takes 6 of the first file and 2 of the second; where the shares are no whole
numbers, each step draws which file gets the odd problem (systematic sampling, so that every step is within one of its
share). Each file has epochs of its own, as if it were alone: all of its problems once, in a new order each time; what
doesn't fill its part of a step is left out of that epoch.

Guaranteed: a pure function of (seed, step, round, count), whatever was asked for before: resuming needs no state. A
step holds no problem twice.
Not covered: evaluation, which reads the files one after the other, whatever the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path
from typing import Any, Protocol

from palimpsest import plugins
from palimpsest.config.data import DataConfig, SearchDataConfig
from palimpsest.data.assemble import Placing
from palimpsest.data.formats.custom_format import DataFormat, own_format
from palimpsest.data.formats.problem_files import Paths, Reading, paths_of, unused_id
from palimpsest.data.sources.file_source import FileSource, SearchFileSource, Split, shuffled, window
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.data.synthetic.search_problems import SOURCE as SYNTHETIC_SEARCH
from palimpsest.data.synthetic.search_problems import SyntheticSearchSource
from palimpsest.errors import DataError, nearest
from palimpsest.seeding import Key, keyed_random
from palimpsest.types import Problem

# ---- Several files in one training ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MixedSource:
    """Problems of several files, drawn by weight."""

    parts: tuple[FileSource, ...]
    weights: tuple[float, ...]
    seed: int
    _starts: dict[int, list[tuple[int, ...]]] = field(default_factory=dict, compare=False, repr=False)
    """By count, of each step so far: where each file's part of it begins, counted over all of its epochs."""

    @classmethod
    def of(cls, parts: Sequence[FileSource], weights: Sequence[float], seed: int) -> MixedSource:
        """A mix of files; ids that several files have are told apart as in one file."""
        seen: Counter[str] = Counter()
        unique = []
        for part in parts:
            records = tuple(replace(record, id=unused_id(record.id, seen)) for record in part.records)
            unique.append(replace(part, records=records))
        return cls(tuple(unique), tuple(weights), seed)

    def __iter__(self) -> Iterator[Problem]:
        """Every problem once, file after file."""
        return (problem for part in self.parts for problem in part)

    @property
    def skipped(self) -> tuple[str, ...]:
        """What is said of each row that was left out."""
        return tuple(said for part in self.parts for said in part.skipped)

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems, file after file. Raises DataError if a file holds fewer than its part of a step."""
        counts = shares(self.weights, count, (self.seed, "files", step, round))
        for part, most in zip(self.parts, self._most(count), strict=True):
            if most > len(part):
                raise DataError(
                    f"{part.path} holds {len(part)} problems, its data.weights make it give up to {most} of the "
                    f"{count} of a step: lower its weight or train.prompts_per_step, or read a larger file"
                )
        if round:
            return [one for at, number in enumerate(counts) for one in self._refill(at, step, number, round)]
        starts = self._start(step, count)
        return [one for at, number in enumerate(counts) for one in self._take(at, starts[at], number)]

    def _most(self, count: int) -> list[int]:
        total = sum(self.weights)
        return [int(-(-count * weight // total)) for weight in self.weights]

    def _take(self, at: int, start: int, count: int) -> list[Problem]:
        part = self.parts[at]
        epoch, place = divmod(start, len(part))
        order = shuffled(len(part), self.seed, f"epoch of file {at}", epoch)
        return [part.built(part.records[order[place + i]]) for i in range(count)]

    def _refill(self, at: int, step: int, count: int, round: int) -> list[Problem]:
        part = self.parts[at]
        if not count:
            return []
        (_, number), places = window(len(part), step=step, count=count, round=round, path=part.path)
        order = shuffled(len(part), self.seed, f"refill of file {at}", number)
        return [part.built(part.records[order[place]]) for place in places]

    def _start(self, step: int, count: int) -> tuple[int, ...]:
        """[files] where their parts of a step begin."""
        starts = self._starts.setdefault(count, [(0,) * len(self.parts)])
        while len(starts) <= step + 1:
            taken = shares(self.weights, count, (self.seed, "files", len(starts) - 1, 0))
            begun = tuple(map(_begin, starts[-1], taken, map(len, self.parts)))
            starts[-1] = begun
            starts.append(tuple(start + number for start, number in zip(begun, taken, strict=True)))
        return starts[step]


def _begin(start: int, count: int, size: int) -> int:
    """`start`, or the next epoch where what is left of this one is too little.

    >>> _begin(6, 3, 10), _begin(8, 3, 10)
    (6, 10)
    """
    return start if start % size + count <= size else start + size - start % size


def shares(weights: Sequence[float], count: int, key: tuple[Key, ...]) -> list[int]:
    """[files] how many of `count` each gives: its share, rounded up or down so that they add up, drawn by `key`.

    >>> shares([3, 1], 8, ("a",))
    [6, 2]
    """
    total = sum(weights)
    ends = [count * end / total for end in accumulate(weights)]
    ends[-1] = float(count)
    offset = keyed_random(*key).random()
    points = [ceil(max(0.0, end - offset)) for end in ends]  # of offset, offset + 1...: how many lie before each end
    return [after - before for before, after in pairwise([0, *points])]


# ---- Where training and evaluation get their problems --------------------------------------------------------


class ProblemSource(Protocol):
    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems of a step; `round` > 0 asks for others in place of dropped groups.

        `size` is the curriculum's, in the source's own measure: chunks of synthetic documents, objectives of search
        problems. Sources whose problems have a size of their own don't heed it.
        """
        ...


def build_source(config: DataConfig, *, split: Split) -> ProblemSource:
    """The source a recipe names. `eval` reads `eval_source`, or `source` where there is none. Raises DataError."""
    name = config.source if split == "train" else config.eval_source or config.source
    if isinstance(name, tuple):
        return _of_files(config, name, split)
    if name == "synthetic":
        return SyntheticSource(config.synthetic, config.seed, split)
    if name == SYNTHETIC_SEARCH:
        return SyntheticSearchSource(config.search or SearchDataConfig(), config.seed, split)
    if not Path(name).suffix and not Path(name).exists() and (near := nearest(name, ("synthetic", SYNTHETIC_SEARCH))):
        raise DataError(f"{name}: no such file, and no source that is drawn{near}")
    return _of_files(config, name, split)


def _of_files(config: DataConfig, paths: Paths, split: Split) -> ProblemSource:
    """The source of one file, or of several: as one, or mixed by weight for training."""
    reading = reading_of(config)
    if config.search is not None:
        asked = config.search.objectives
        return SearchFileSource.open(
            paths, split=split, objectives=asked, limit=config.limit, seed=config.seed, reading=reading
        )
    if split == "train" and config.weights is not None:
        return MixedSource.of(
            [_file_source(config, path, split, reading) for path in paths_of(paths)], config.weights, config.seed
        )
    return _file_source(config, paths, split, reading)


def _file_source(config: DataConfig, paths: Paths, split: Split, reading: Reading) -> FileSource:
    source = FileSource.open(
        paths,
        split=split,
        documents=config.documents,
        limit=config.limit,
        seed=config.seed,
        reading=reading,
        placing=Placing(config.order, config.min_distance),
    )
    return replace(source, shuffle=config.shuffle)


def reading_of(config: DataConfig) -> Reading:
    """How the section's files are read. Raises ConfigError for a format of the user's that can't be used."""
    format = named_format(config.format, config.format_options)
    return Reading(format, config.corpus, config.map, config.on_missing_gold == "skip", config.each_question)


def rows_left_out(source: ProblemSource) -> tuple[str, ...]:
    """What is said of each row of its files that a source leaves out."""
    return source.skipped if isinstance(source, FileSource | MixedSource | SearchFileSource) else ()


def left_out(rows: Sequence[str]) -> str:
    """One line on rows that were left out."""
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''} left out by data.on_missing_gold=skip, the first: {rows[0]}"


def named_format(name: str | None, options: Mapping[str, Any] | None = None) -> str | DataFormat | None:
    """What `data.format` names: a shipped format by its name, the user's own made; None if columns are to tell."""
    if name is None or not plugins.is_own(name):
        return name
    return own_format(name, options or {})
