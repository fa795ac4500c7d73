"""Where training and evaluation get their problems: drawn ones, or those of files.

Problems of files are shuffled every epoch for training, and in file order for evaluation.

An epoch is one keyed shuffle; problems that don't fill a step are left out. Rounds after the first (replacing dropped
groups) page through one more shuffle for the step. Training needs a gold for every question and rejects a problem
without one by its id; evaluation plays it.

`SearchFileSource` drops the contexts and deals the questions into search problems of `data.search.objectives`
questions. If that is several numbers, their sequence is drawn once, so that every epoch has as many problems:

    5 questions, objectives (1, 2)      sizes 2 1 2        epoch 0: ca e bd        epoch 1: eb a dc

Guaranteed: a pure function of (seed, step, round, size), so resuming needs no state; an epoch shows every problem once,
except those that don't fill a step (the file's last rows where `data.shuffle` is false); no question comes twice in a
step, nor in an epoch of one size; evaluation takes the first problems of one fixed deal, or of single questions the
first of the file; memory holds no long document: it is read from disk, and contexts are assembled from shared
paragraphs, when a problem is built.
Not covered: paragraphs of files larger than memory; passages of search problems (data/formats/corpus.py reads them);
two questions of one problem that are equal or answer each other; rows that ask several questions already, which are
read without `data.search`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, overload

from palimpsest.config.data import DataConfig, SearchDataConfig
from palimpsest.data.assemble import ANYWHERE, Corpus, Placing, assemble, check_fixed, room
from palimpsest.data.formats.custom_format import DataFormat, custom_format
from palimpsest.data.formats.problem_files import (
    AS_IT_IS,
    Paths,
    ReadOptions,
    paths_of,
    read_corpus,
    read_records,
    refuse_ungraded,
)
from palimpsest.data.record import LONG, DocumentStore, Objective, Record, search_problem
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.data.synthetic.search_problems import SOURCE as SYNTHETIC_SEARCH
from palimpsest.data.synthetic.search_problems import SyntheticSearchSource
from palimpsest.errors import DataError, nearest
from palimpsest.notes import Note
from palimpsest.plugin_kinds import KINDS
from palimpsest.seeding import keyed_random
from palimpsest.types import Problem

# ---- Problems of a training step -----------------------------------------------------------------------------


def window(total: int, *, step: int, count: int, round: int, path: str) -> tuple[tuple[str, int], list[int]]:
    """The shuffle to take from, as (what, number) for `shuffled`, and the `count` places of it.

    Raises DataError if the file holds fewer than a step asks for.

    >>> window(5, step=3, count=2, round=0, path="questions.json")
    (('epoch', 1), [2, 3])
    """
    if count > total:
        raise DataError(
            f"{path} holds {total} problems, a step asks for {count}: lower train.batch_size "
            "or data.limit, or read a larger file"
        )
    if round == 0:
        steps = total // count  # in an epoch
        start = step % steps * count
        return ("epoch", step // steps), list(range(start, start + count))
    start = (round - 1) * max(count, total // 4)
    return ("refill", step), [(start + i) % total for i in range(count)]


@lru_cache(maxsize=8)
def shuffled(size: int, seed: int, what: str, number: int) -> tuple[int, ...]:
    """A permutation of range(size) of its own for (seed, what, number)."""
    order = list(range(size))
    keyed_random(seed, what, number).shuffle(order)
    return tuple(order)


# ---- Problems of files ---------------------------------------------------------------------------------------


Split = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class FileSource:
    """Problems of one file, or of several as one: shuffled every epoch for training, in file order for evaluation."""

    path: str
    """As messages name it."""
    records: tuple[Record, ...]
    corpus: Corpus
    documents: int | None
    split: Split
    seed: int
    placing: Placing = ANYWHERE
    shuffle: bool = True
    """False: a training epoch is the file in its order."""
    skipped: tuple[str, ...] = ()
    """What is said of each row that was left out."""
    store: DocumentStore = field(default_factory=DocumentStore, compare=False, repr=False)
    """Where the long documents of the records are."""

    @classmethod
    def open(
        cls,
        path: Paths,
        *,
        split: Split,
        documents: int | None = None,
        limit: int | None = None,
        seed: int = 0,
        reading: ReadOptions = AS_IT_IS,
        placing: Placing = ANYWHERE,
    ) -> FileSource:
        """Read and check. Distractors come from the whole of a file, `limit` or not, and from `reading.corpus`."""
        skipped, ids, paths = list[str](), Counter[str](), paths_of(path)
        early = limit if documents is None else None
        store = DocumentStore()
        files = [
            tuple(_waiting(record, store) for record in read_records(file, reading, early, skipped, ids))
            for file in paths
        ]
        paragraphs = Corpus(())
        if documents is not None:
            extra = read_corpus(reading.corpus).paragraphs if reading.corpus else ()
            paragraphs = Corpus.of([extra, *(record.paragraphs or () for read in files for record in read)])
        records = tuple(record for read in files for record in read[:limit])
        named = ", ".join(map(str, paths))
        source = cls(named, records, paragraphs, documents, split, seed, placing, skipped=tuple(skipped), store=store)
        source._check()
        return source

    def with_documents(self, documents: int | None) -> FileSource:
        """The same records and corpus in contexts of another size. Raises DataError."""
        source = replace(self, documents=documents)
        source._check()
        return source

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Problem]:
        """Every problem once, in file order, each built when it's its turn."""
        return map(self.built, self.records)

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems. Evaluation always gets the first of the file, fewer if it holds fewer.

        Training raises DataError if the file holds fewer. Rounds of one step don't overlap each other as long as
        each asks for a quarter of the file at most; a refill may bring back a problem of round 0.
        """
        if self.split == "eval":
            return list(map(self.built, self.records[:count]))
        (what, number), places = window(len(self), step=step, count=count, round=round, path=self.path)
        as_it_stands = not self.shuffle and round == 0
        order = range(len(self)) if as_it_stands else shuffled(len(self), self.seed, what, number)
        return [self.built(self.records[order[index]]) for index in places]

    def built(self, record: Record) -> Problem:
        """The problem of a record, with its context."""
        if record.stored is not None:
            record = replace(record, context=self.store.text(record.stored), stored=None)
        return assemble(record, corpus=self.corpus, documents=self.documents, seed=self.seed, placing=self.placing)

    def _check(self) -> None:
        """Refuse at load what `assemble` would refuse in the middle of a run, and what can't be learnt from."""
        if self.split == "train":
            refuse_ungraded(self.records)
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
                self.built(record)


@dataclass(frozen=True, slots=True)
class SourceProblems(Sequence[Problem]):
    """Problems of a file, each built whenever it is asked for: memory holds those that somebody uses."""

    source: FileSource
    places: Sequence[int]
    """Of its records."""

    @classmethod
    def all_of(cls, source: FileSource) -> SourceProblems:
        """Every problem, in file order."""
        return cls(source, range(len(source)))

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> SourceProblems: ...
    def __getitem__(self, index: int | slice) -> Problem | SourceProblems:
        if isinstance(index, slice):
            return SourceProblems(self.source, self.places[index])
        return self.source.built(self.source.records[self.places[index]])


def outlines(problems: Sequence[Problem]) -> Iterator[Problem]:
    """The problems in their order; those of a file without their documents, which costs nothing."""
    if not isinstance(problems, SourceProblems):
        return iter(problems)
    records = problems.source.records
    return (records[index].problem(None, records[index].metadata) for index in problems.places)


def some_of(problems: Sequence[Problem], places: Sequence[int]) -> Sequence[Problem]:
    """Those at `places`, as lazily as they were."""
    if isinstance(problems, SourceProblems):
        return SourceProblems(problems.source, [problems.places[index] for index in places])
    return [problems[index] for index in places]


def _waiting(record: Record, store: DocumentStore) -> Record:
    """`record`, its document in `store` if it is long."""
    if record.context is None or len(record.context) < LONG:
        return record
    return replace(record, context=None, stored=store.put(record.context))


def _lacks_room(record: Record, placing: Placing, documents: int) -> bool:
    """Whether `assemble` would refuse to place the record's gold paragraphs."""
    return not record.gold or room(len(record.gold), max(1, placing.min_distance)) > documents


# ---- Search problems from question files ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchFileSource:
    """The questions of one file, or of several as one, combined."""

    path: str
    """As messages name it."""
    questions: tuple[Problem, ...]
    """One objective each, in file order."""
    objectives: tuple[int, ...]
    split: str
    seed: int
    skipped: tuple[str, ...] = ()
    """What is said of each row that was left out."""

    @classmethod
    def open(
        cls,
        path: Paths,
        *,
        split: str,
        objectives: Sequence[int],
        limit: int | None = None,
        seed: int = 0,
        reading: ReadOptions = AS_IT_IS,
    ) -> SearchFileSource:
        """Read and check files of any known format. Raises DataError."""
        questions, skipped = list[Problem](), list[str]()
        named = ", ".join(map(str, paths_of(path)))
        for record in read_records(path, reading, limit=limit, skipped=skipped):
            if "objectives" in record.metadata:
                raise DataError(
                    f"{named}: problem {record.id} asks several questions already; "
                    "unset data.search to read it as it is"
                )
            questions.append(Problem(record.id, record.question, record.answers, None, record.metadata))
        if split == "train":
            refuse_ungraded(questions)
        source = cls(named, tuple(questions), tuple(objectives), split, seed, tuple(skipped))
        source._deal(None)
        return source

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems; `size` objectives each instead of `objectives`. DataError if a step asks too much."""
        deal = self._deal(size)
        if self.split == "eval":
            order = tuple(range(len(self.questions)))
            if len(deal) < len(order):
                order = shuffled(len(order), self.seed, "objectives", 0)
            places = list(range(min(count, len(deal))))
        else:
            (what, number), places = window(len(deal), step=step, count=count, round=round, path=self.path)
            order = shuffled(len(self.questions), self.seed, what, number)
        return [self._combined([self.questions[at] for at in order[slice(*deal[index])]]) for index in places]

    def _deal(self, size: int | None) -> tuple[tuple[int, int], ...]:
        """[start, end) in a shuffled order of the questions of each problem. Raises DataError if there is none."""
        deal = _spans(len(self.questions), (size,) if size else self.objectives, self.seed)
        if not deal:
            requested = size or max(self.objectives)
            raise DataError(
                f"{self.path} holds {len(self.questions)} questions, a problem asks {requested}: lower "
                "data.search.objectives or data.limit, or read a larger file"
            )
        return deal

    def _combined(self, questions: Sequence[Problem]) -> Problem:
        if len(questions) == 1:
            return questions[0]
        refuse_ungraded(questions)
        objectives = [Objective(one.question, one.answers) for one in questions]
        return search_problem("+".join(one.id for one in questions), objectives)


@lru_cache(maxsize=16)
def _spans(total: int, sizes: tuple[int, ...], seed: int) -> tuple[tuple[int, int], ...]:
    """Spans of drawn sizes over range(total), until one doesn't fit."""
    rng, at, spans = keyed_random(seed, "objectives"), 0, []
    while at + (size := rng.choice(sizes)) <= total:
        spans.append((at, at + size))
        at += size
    return tuple(spans)


# ---- Where training and evaluation get their problems --------------------------------------------------------


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
