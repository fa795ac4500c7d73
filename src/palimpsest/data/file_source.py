"""Problems of files: shuffled every epoch for training, in file order for evaluation.

Training needs a gold for every question, and refuses a problem without one by its id; evaluation plays it.

Guaranteed: memory holds no long document of a file: those wait on a disk until their problem is built, and contexts
assembled from paragraphs are built when asked for and share their paragraphs.
Not covered: paragraphs of files larger than memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, overload

from palimpsest.data.assemble import ANYWHERE, Corpus, Placing, Record, assemble, check_fixed
from palimpsest.data.dealing import shuffled, window
from palimpsest.data.document_store import LONG, DocumentStore
from palimpsest.data.placing import room
from palimpsest.data.problems import AS_IT_IS, Paths, Reading, paths_of, read_corpus, read_records, refuse_ungraded
from palimpsest.types import Problem

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
        reading: Reading = AS_IT_IS,
        placing: Placing = ANYWHERE,
    ) -> FileSource:
        """Read and check. Distractors come from the whole of a file, `limit` or not, and from `reading.corpus`."""
        skipped, seen, paths = list[str](), Counter[str](), paths_of(path)
        early = limit if documents is None else None
        store = DocumentStore()
        files = [
            tuple(_waiting(record, store) for record in read_records(each, reading, early, skipped, seen))
            for each in paths
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
        return [self.built(self.records[order[place]]) for place in places]

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
    return (records[place].problem(None, records[place].metadata) for place in problems.places)


def some_of(problems: Sequence[Problem], places: Sequence[int]) -> Sequence[Problem]:
    """Those at `places`, as lazily as they were."""
    if isinstance(problems, SourceProblems):
        return SourceProblems(problems.source, [problems.places[place] for place in places])
    return [problems[place] for place in places]


def _waiting(record: Record, store: DocumentStore) -> Record:
    """`record`, its document in `store` if it is long."""
    if record.context is None or len(record.context) < LONG:
        return record
    return replace(record, context=None, stored=store.put(record.context))


def _lacks_room(record: Record, placing: Placing, documents: int) -> bool:
    """Whether `assemble` would refuse to place the record's gold paragraphs."""
    return not record.gold or room(len(record.gold), max(1, placing.min_distance)) > documents
