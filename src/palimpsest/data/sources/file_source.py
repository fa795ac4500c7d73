"""Problem sources of training and evaluation: synthetic data, or files.

An epoch is one keyed shuffle, without the problems that don't fill a step. Rounds after the first (replacing dropped
groups) page through one more shuffle for the step. Training rejects a question without a gold; evaluation runs it.

`SearchFileSource` drops the contexts and combines questions into search problems of `data.search.objectives` questions.
With several numbers, their sequence is drawn once, so that every epoch has equally many problems:

    5 questions, objectives (1, 2)      sizes 2 1 2        epoch 0: ca e bd        epoch 1: eb a dc

Guaranteed: a pure function of (seed, step, round, size), so resuming needs no state; an epoch has every problem once,
except those that don't fill a step (the file's last rows with `data.shuffle=false`); no question repeats within a step
and round, or within an epoch of one size; evaluation uses the first problems of one fixed combination, or the file's
first single questions; long documents stay on disk, and contexts are assembled from shared paragraphs, until a problem
is built.
Not covered: paragraphs of files larger than memory; passages of search problems (see data/formats/corpus.py); two
questions of one problem that are equal or answer each other; rows with several questions under `data.search`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, overload

from palimpsest.config.data import GENERATED, SEEDS, DataConfig, SearchDataConfig
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
from palimpsest.data.record import LONG, DocumentStore, Record, search_problem
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.data.synthetic.search_problems import SOURCE as SYNTHETIC_SEARCH
from palimpsest.data.synthetic.search_problems import SyntheticSearchSource
from palimpsest.errors import DataError, nearest
from palimpsest.notes import Note
from palimpsest.plugin_kinds import KINDS
from palimpsest.seeding import derive_seed, keyed_random
from palimpsest.text.display_text import counted
from palimpsest.types import Problem, Question

# ---- Problems of a training step -----------------------------------------------------------------------------


def window(total: int, *, step: int, count: int, round: int, path: str) -> tuple[tuple[str, int], list[int]]:
    """The shuffle as (what, number) for `shuffled`, and `count` positions in it.

    Raises DataError if the file has fewer problems than a step needs.

    >>> window(5, step=3, count=2, round=0, path="questions.json")
    (('epoch', 1), [2, 3])
    """
    if count > total:
        raise DataError(
            f"{path} has {counted(total, 'problem')}, a step needs {count}: set train.batch_size={total} and "
            f"train.num_minibatches={total} at most, raise data.limit, or read a larger file"
        )
    if round == 0:
        steps = total // count  # in an epoch
        start = step % steps * count
        return ("epoch", step // steps), list(range(start, start + count))
    start = (round - 1) * max(count, total // 4)
    return ("refill", step), [(start + i) % total for i in range(count)]


@lru_cache(maxsize=8)
def shuffled(size: int, seed: int, what: str, number: int) -> tuple[int, ...]:
    """A permutation of range(size) keyed by (seed, what, number)."""
    order = list(range(size))
    keyed_random(seed, what, number).shuffle(order)
    return tuple(order)


# ---- Problems of files ---------------------------------------------------------------------------------------


Split = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class FileSource:
    """Problems of one or several files: shuffled every epoch for training, in file order for evaluation."""

    path: str
    """Name in messages."""
    records: tuple[Record, ...]
    corpus: Corpus
    documents: int | None
    split: Split
    seed: int
    placing: Placing = ANYWHERE
    shuffle: bool = True
    """False: a training epoch follows file order."""
    skipped: tuple[str, ...] = ()
    """Reason per skipped row."""
    store: DocumentStore = field(default_factory=DocumentStore, compare=False, repr=False)
    """Long documents of the records."""

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
        golds: bool = True,
    ) -> FileSource:
        """Read and check files. Distractors come from whole files, regardless of `limit`, and from `reading.corpus`.
        `golds`: training needs one for every question."""
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
            paragraphs = Corpus.of([extra, *(record.reusable for read in files for record in read)])
        records = tuple(record for read in files for record in read[:limit])
        named = ", ".join(map(str, paths))
        source = cls(named, records, paragraphs, documents, split, seed, placing, skipped=tuple(skipped), store=store)
        if golds and split == "train":
            refuse_ungraded(records)
        source._check()
        return source

    def with_documents(self, documents: int | None) -> FileSource:
        """The same records and corpus with another context size. Raises DataError."""
        source = replace(self, documents=documents)
        source._check()
        return source

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Problem]:
        """Every problem in file order, built lazily."""
        return map(self.built, self.records)

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems. Evaluation always gets the first ones of the file, or fewer if the file is shorter.

        Training raises DataError for a shorter file. Refill rounds of one step don't overlap if each needs at most a
        quarter of the file; a refill may repeat a problem of round 0.
        """
        if self.split == "eval":
            return list(map(self.built, self.records[:count]))
        (what, number), places = window(len(self), step=step, count=count, round=round, path=self.path)
        as_it_stands = not self.shuffle and round == 0
        order = range(len(self)) if as_it_stands else shuffled(len(self), self.seed, what, number)
        return [self.built(self.records[order[index]]) for index in places]

    def built(self, record: Record) -> Problem:
        """The problem of a record with its context."""
        if record.stored is not None:
            record = replace(record, context=self.store.text(record.stored), stored=None)
        return assemble(record, corpus=self.corpus, documents=self.documents, seed=self.seed, placing=self.placing)

    def _check(self) -> None:
        """Raise at load the errors that `assemble` would raise during a run."""
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
    """Problems of a file, built on each access and not cached."""

    source: FileSource
    places: Sequence[int]
    """Indices into its records."""

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
    """The problems in order; those of a file without their documents, which saves reading them."""
    if not isinstance(problems, SourceProblems):
        return iter(problems)
    records = problems.source.records
    return (records[index].problem(None, records[index].metadata) for index in problems.places)


def some_of(problems: Sequence[Problem], places: Sequence[int]) -> Sequence[Problem]:
    """The problems at `places`, still lazy."""
    if isinstance(problems, SourceProblems):
        return SourceProblems(problems.source, [problems.places[index] for index in places])
    return [problems[index] for index in places]


def _waiting(record: Record, store: DocumentStore) -> Record:
    if record.context is None or len(record.context) < LONG:
        return record
    return replace(record, context=None, stored=store.put(record.context))


def _lacks_room(record: Record, placing: Placing, documents: int) -> bool:
    return not record.gold or room(len(record.gold), max(1, placing.min_distance)) > documents


# ---- Search problems from question files ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchFileSource:
    """Combined questions of one or several files."""

    path: str
    """Name in messages."""
    questions: tuple[Problem, ...]
    """One objective each, in file order."""
    objectives: tuple[int, ...]
    split: str
    seed: int
    skipped: tuple[str, ...] = ()
    """Reason per skipped row."""

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
                    f"{named}: problem {record.id} already has several questions; unset data.search to read it "
                    "unchanged"
                )
            questions.append(Problem(record.id, record.question, record.answers, None, record.metadata))
        if split == "train":
            refuse_ungraded(questions)
        source = cls(named, tuple(questions), tuple(objectives), split, seed, tuple(skipped))
        source._deal(None)
        return source

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems; `size` overrides `objectives`. Raises DataError if a step needs too many."""
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
        """[start, end) per problem in a shuffled order of the questions. Raises DataError if there is none."""
        deal = _spans(len(self.questions), (size,) if size else self.objectives, self.seed)
        if not deal:
            requested = size or max(self.objectives)
            raise DataError(
                f"{self.path} has {len(self.questions)} questions, a problem needs {requested}: lower "
                "data.search.objectives or data.limit, or read a larger file"
            )
        return deal

    def _combined(self, questions: Sequence[Problem]) -> Problem:
        if len(questions) == 1:
            return questions[0]
        refuse_ungraded(questions)
        objectives = [Question(one.question, one.answers) for one in questions]
        return search_problem("+".join(one.id for one in questions), objectives)


@lru_cache(maxsize=16)
def _spans(total: int, sizes: tuple[int, ...], seed: int) -> tuple[tuple[int, int], ...]:
    rng, at, spans = keyed_random(seed, "objectives"), 0, []
    while at + (size := rng.choice(sizes)) <= total:
        spans.append((at, at + size))
        at += size
    return tuple(spans)


# ---- Sources of training and evaluation ----------------------------------------------------------------------


class ProblemSource(Protocol):
    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems of a step; `round` > 0 replaces dropped groups.

        `size` is the number of chunks of synthetic documents, or of objectives of search problems. Other sources
        ignore it.
        """


@dataclass(frozen=True, slots=True)
class SeedSource:
    """Endless problems that are only a seed, `metadata.reset.seed`: even ones for training, odd ones for evaluation."""

    seed: int
    split: Split

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems for (step, round)."""
        training = self.split == "train"
        start = derive_seed(self.seed, SEEDS, step, round) if training else step * count
        seeds = [2 * ((start + i) % (1 << 30)) + (not training) for i in range(count)]
        return [Problem(f"seed-{seed}", metadata={"reset": {"seed": seed}}) for seed in seeds]


def build_source(config: DataConfig, seed: int = 0, *, split: Split, golds: bool = True) -> ProblemSource:
    """The source of a recipe with random draws keyed by `seed`. `eval` reads `val_files`, or `train_files` without
    them. `golds`: files of `train` have one for every question. Raises DataError."""
    name = config.train_files if split == "train" else config.val_files or config.train_files
    if isinstance(name, tuple):
        return _of_files(config, name, split, seed, golds)
    if name == "synthetic":
        return SyntheticSource(config.synthetic, seed, split)
    if name == SYNTHETIC_SEARCH:
        return SyntheticSearchSource(config.search or SearchDataConfig(), seed, split)
    if name == SEEDS:
        return SeedSource(seed, split)
    if not Path(name).suffix and not Path(name).exists() and (near := nearest(name, GENERATED)):
        raise DataError(f"{name}: neither a file nor a synthetic source{near}")
    return _of_files(config, name, split, seed, golds)


def _of_files(config: DataConfig, paths: Paths, split: Split, seed: int, golds: bool) -> ProblemSource:
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
        golds=golds,
    )
    return replace(source, shuffle=config.shuffle)


def reading_of(config: DataConfig) -> ReadOptions:
    """Read options of the section's files. Raises ConfigError for an invalid custom format."""
    format = named_format(config.format, config.format_options)
    return ReadOptions(format, config.corpus, config.columns, config.on_missing_gold == "skip", config.split_questions)


def rows_left_out(source: ProblemSource) -> tuple[str, ...]:
    """Reason per skipped row of a source's files."""
    return source.skipped if isinstance(source, FileSource | SearchFileSource) else ()


def left_out(rows: Sequence[str]) -> Note:
    """A note on skipped rows."""
    return Note("rows_without_gold", count=len(rows), first=rows[0])


def named_format(name: str | None, options: Mapping[str, Any] | None = None) -> str | DataFormat | None:
    """The value of `data.format`: a shipped format's name or a custom format; None: recognised by the columns."""
    if name is None or name in KINDS["format"].shipped:
        return name
    return custom_format(name, options or {})
