"""Where training and evaluation get their problems: a pure function of (seed, split, step, round).

Guaranteed: resuming needs no state, a step's problems are the same whenever they are asked for; a training step
holds no problem twice; an epoch shows every problem once, but for the remainder that doesn't fill a step (another
one each epoch, as each epoch is shuffled anew; the file's last rows where `data.shuffle` is false).
Not covered: files larger than memory. Contexts that a file fixes are held as text: MemAgent's 32,768 training rows
are about 4 GB. Contexts assembled from paragraphs are built when asked for and share their paragraphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from palimpsest import plugins
from palimpsest.config.data import DataConfig, SearchDataConfig
from palimpsest.data.assemble import ANYWHERE, Corpus, Placing, Record, assemble, check_fixed
from palimpsest.data.dealing import shuffled, window
from palimpsest.data.own_format import DataFormat, own_format
from palimpsest.data.placing import room
from palimpsest.data.problems import read_corpus, read_records
from palimpsest.data.search_files import SearchFileSource
from palimpsest.data.search_synthetic import SOURCE as SYNTHETIC_SEARCH
from palimpsest.data.search_synthetic import SyntheticSearchSource
from palimpsest.data.synthetic import SyntheticSource
from palimpsest.errors import DataError, nearest
from palimpsest.types import Problem

Split = Literal["train", "eval"]


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
    if name == "synthetic":
        return SyntheticSource(config.synthetic, config.seed, split)
    if name == SYNTHETIC_SEARCH:
        return SyntheticSearchSource(config.search or SearchDataConfig(), config.seed, split)
    if not Path(name).suffix and not Path(name).exists() and (near := nearest(name, ("synthetic", SYNTHETIC_SEARCH))):
        raise DataError(f"{name}: no such file, and no source that is drawn{near}")
    if config.search is not None:
        return SearchFileSource.open(
            name,
            split=split,
            objectives=config.search.objectives,
            limit=config.limit,
            seed=config.seed,
            format=named_format(config.format, config.format_options),
        )
    source = FileSource.open(
        name,
        split=split,
        documents=config.documents,
        limit=config.limit,
        seed=config.seed,
        format=named_format(config.format, config.format_options),
        corpus=config.corpus,
        placing=Placing(config.order, config.min_distance),
    )
    return replace(source, shuffle=config.shuffle)


def named_format(name: str | None, options: Mapping[str, Any] | None = None) -> str | DataFormat | None:
    """What `data.format` names: a shipped format by its name, the user's own made; None if columns are to tell."""
    if name is None or not plugins.is_own(name):
        return name
    return own_format(name, options or {})


@dataclass(frozen=True, slots=True)
class FileSource:
    """Problems of one file: shuffled every epoch for training, in file order for evaluation."""

    path: Path
    records: tuple[Record, ...]
    corpus: Corpus
    documents: int | None
    split: Split
    seed: int
    placing: Placing = ANYWHERE
    shuffle: bool = True
    """False: a training epoch is the file in its order."""

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        split: Split,
        documents: int | None = None,
        limit: int | None = None,
        seed: int = 0,
        format: str | DataFormat | None = None,
        corpus: str | Path | None = None,
        placing: Placing = ANYWHERE,
    ) -> FileSource:
        """Read and check a file. Distractors come from the whole of it, `limit` or not, and from `corpus`."""
        read = tuple(read_records(path, format=format, limit=limit if documents is None else None, corpus=corpus))
        paragraphs = Corpus(())
        if documents is not None:
            extra = read_corpus(corpus).paragraphs if corpus else ()
            paragraphs = Corpus.of([extra, *(record.paragraphs or () for record in read)])
        source = cls(Path(path), read[:limit], paragraphs, documents, split, seed, placing)
        source._check()
        return source

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Problem]:
        """Every problem once, in file order, each built when it's its turn."""
        return map(self._problem, self.records)

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems. Evaluation always gets the first of the file, fewer if it holds fewer.

        Training raises DataError if the file holds fewer. Rounds of one step don't overlap each other as long as
        each asks for a quarter of the file at most; a refill may bring back a problem of round 0.
        """
        if self.split == "eval":
            return [self._problem(record) for record in self.records[:count]]
        (what, number), places = window(len(self), step=step, count=count, round=round, path=self.path)
        as_it_stands = not self.shuffle and round == 0
        order = range(len(self)) if as_it_stands else shuffled(len(self), self.seed, what, number)
        return [self._problem(self.records[order[place]]) for place in places]

    def _problem(self, record: Record) -> Problem:
        return assemble(record, corpus=self.corpus, documents=self.documents, seed=self.seed, placing=self.placing)

    def _check(self) -> None:
        """Refuse at load what `assemble` would refuse in the middle of a run."""
        if self.documents is None:
            return
        for record in self.records:
            if record.paragraphs is None:
                check_fixed(record, self.documents)
            elif (
                len(record.needed) > self.documents
                or len(self.corpus.paragraphs) < self.documents
                or (self.placing != ANYWHERE and _lacks_room(record, self.placing, self.documents))
            ):
                self._problem(record)


def _lacks_room(record: Record, placing: Placing, documents: int) -> bool:
    """Whether `assemble` would refuse to place the record's gold paragraphs."""
    return not record.gold or room(len(record.gold), max(1, placing.min_distance)) > documents
