"""Data set builder: contexts of chosen length and problems of several questions from question files.

    built = build_contexts(["hotpot_train.json"], Contexts((50, 200), seed=1), out=Path("sets/hotpot"))
    make_objectives(["hotpot_dev.json"], (2, 4), out=Path("sets/several"), documents=50)

`build_contexts` writes `SPLIT_DOCUMENTS.jsonl` per split and number of documents, or `SPLIT.jsonl` with the contexts of
the files if no numbers are set. `make_objectives` writes `objectives_K.jsonl` per number of questions: search problems
(data/record.py), or with `documents` several `questions` on one context of that many documents, including all their
gold documents. Both write `manifest.json`.

Guaranteed: the same files, settings and seed give the same bytes; memory contains the questions, their paragraphs, and
one assembled context at a time; a question occurs once among the problems of one size.
Not covered: files of finished contexts that are larger than memory; a question that answers another of its problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.app.datasets.question_splits import (
    ALL,
    Filters,
    Questions,
    Split,
    deal,
    question_key,
    read_questions,
    read_splits,
    read_where,
)
from palimpsest.data.assemble import Corpus, Order, Placing, assemble
from palimpsest.data.formats.problem_files import write_problems
from palimpsest.data.record import Record, search_problem
from palimpsest.data.set_manifest import write_manifest
from palimpsest.errors import ConfigError, DataError
from palimpsest.progress.reporter import Progress, Silent, Tick
from palimpsest.runs.folder_guard import Made, new_folder
from palimpsest.seeding import derive_seed
from palimpsest.types import Problem, Question


@dataclass(frozen=True, slots=True)
class Contexts:
    """Settings of contexts."""

    documents: tuple[int, ...] = ()
    """Documents per context, one file per number; empty: the contexts of the source files."""
    seed: int = 0
    splits: tuple[Split, ...] = ALL
    disjoint_gold: bool = False
    disjoint_documents: bool = False
    """No gold document of one split is in a context of another; implies `disjoint_gold`."""
    order: Order = "any"
    min_distance: float = 0
    """Minimum of documents between gold ones; below 1, a fraction of the context."""
    positions: tuple[float, ...] = ()
    """See `Placing`; questions with another number of gold documents are skipped."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if any(number < 1 for number in self.documents):
            raise ConfigError(f"--documents {self.documents}: expected numbers from 1")
        if self.order not in ("any", "forward", "reverse"):
            raise ConfigError(f"--order {self.order}: choose one of any, forward, reverse")
        if any(not 0 <= position <= 1 for position in self.positions):
            raise ConfigError(f"--positions {self.positions}: expected 0 (first document) to 1 (last)")
        if self.positions and (self.order != "any" or self.min_distance):
            raise ConfigError("--positions sets the positions of gold documents: omit --order and --min-distance")
        if not self.min_distance >= 0 or (self.min_distance >= 1 and not float(self.min_distance).is_integer()):
            raise ConfigError(f"--min-distance {self.min_distance}: expected a number of documents, or a share below 1")
        placed = self.order != "any" or self.min_distance or self.positions
        if not self.documents and (placed or self.disjoint_gold or self.disjoint_documents):
            raise ConfigError(
                "--order, --min-distance, --positions, --disjoint-gold and --disjoint-documents need assembled "
                "contexts: set --documents too"
            )

    def placing(self, documents: int) -> Placing:
        """Placing of gold documents among `documents`."""
        share = self.min_distance < 1
        distance = self.min_distance * documents if share else self.min_distance
        return Placing(self.order, int(distance), self.positions)


@dataclass(frozen=True, slots=True)
class _Split:
    name: str
    records: tuple[Record, ...]
    corpus: Corpus

    def problems(self, documents: int | None, contexts: Contexts) -> Iterator[Problem]:
        """Problems with contexts of `documents` documents; None: the contexts of the files."""
        if documents is None:
            yield from map(assemble, self.records)
            return
        placing = contexts.placing(documents)
        for record in self.records:
            yield assemble(record, corpus=self.corpus, documents=documents, seed=contexts.seed, placing=placing)


def read_contexts(
    fields: Mapping[str, Any], *, split: str, where: Sequence[str], chosen: Mapping[str, Any]
) -> tuple[Contexts, Filters]:
    """Settings from a command line: fields of `Contexts`, splits and filters as texts, and fields of `Filters`. Raises
    ConfigError."""
    return Contexts(**fields, splits=read_splits(split)), Filters(read_where(where), **chosen)


def build_contexts(
    sources: Sequence[str | Path],
    contexts: Contexts,
    *,
    out: Path,
    corpora: Sequence[str | Path] = (),
    exclude: Sequence[str | Path] = (),
    answered: Sequence[str | Path] = (),
    filters: Filters | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Build contexts for the questions of `sources`. Skips the questions of `exclude`, and those that an evaluation in
    a folder of `answered` got right without a document. Raises DataError."""
    progress = progress or Silent()
    filters = filters or Filters()
    if contexts.positions:  # they require as many gold documents
        filters = replace(filters, gold_documents=len(contexts.positions))
    if corpora and not contexts.documents:
        raise ConfigError(f"--corpus {corpora[0]}: distractors need assembled contexts: set --documents too")
    with new_folder(out, force=force, progress=progress) as folder:
        read = read_questions(
            list(map(Path, sources)),
            corpora=list(map(Path, corpora)),
            exclude=list(map(Path, exclude)),
            answered=list(map(Path, answered)),
            filters=filters,
            content="paragraphs" if contexts.documents else "rows",
        )
        planned = _planned(read, contexts)
        with progress.count("contexts", sum(len(split.records) for *_, split in planned)) as tick:
            problems = {
                name: write_problems(folder / name, _ticked(split.problems(size, contexts), tick))
                for name, size, split in planned
            }
        sizes = {name: {"documents": size} if size else {} for name, size, _ in planned}
        edition = write_manifest(
            folder,
            made_by="palimpsest data build",
            seed=contexts.seed,
            described={name: {"problems": problems[name], **sizes[name]} for name in problems},
            settings=_settings(contexts, filters),
            sources=read.sources,
            left_out=dict(read.left_out),
        )
    return Made(out, edition, problems, dict(read.left_out))


def _planned(read: Questions, contexts: Contexts) -> list[tuple[str, int | None, _Split]]:
    return [
        (f"{split.name}.jsonl" if size is None else f"{split.name}_{size}.jsonl", size, split)
        for split in _splits(read, contexts)
        for size in contexts.documents or (None,)
    ]


def _splits(read: Questions, contexts: Contexts) -> Sequence[_Split]:
    dealt, shared = deal(
        read.records,
        contexts.splits,
        seed=contexts.seed,
        disjoint_gold=contexts.disjoint_gold or contexts.disjoint_documents,
        excluded_gold=read.excluded_gold,
    )
    used = sum(map(len, dealt.values()))
    if shared:
        read.left_out["gold documents of another split"] = shared
    if spare := len(read.records) - used - shared:
        read.left_out["not asked for by any split"] = spare
    splits = tuple(_Split(name, records, read.corpus) for name, records in dealt.items())
    return tuple(_apart(splits, read.excluded_gold)) if contexts.disjoint_documents else splits


def _apart(splits: Sequence[_Split], excluded_gold: Iterable[str]) -> Iterator[_Split]:
    golds = {split.name: {text for record in split.records for text in record.needed} for split in splits}
    for split in splits:
        theirs = set(excluded_gold).union(*(gold for name, gold in golds.items() if name != split.name))
        records = tuple(
            replace(record, paragraphs=tuple(text for text in record.paragraphs or () if text not in theirs))
            for record in split.records
        )
        yield _Split(split.name, records, Corpus(tuple(text for text in split.corpus.paragraphs if text not in theirs)))


def _ticked(problems: Iterator[Problem], tick: Tick) -> Iterator[Problem]:
    for problem in problems:
        yield problem
        tick()


def _settings(contexts: Contexts, filters: Filters) -> dict[str, Any]:
    where = {key: sorted(values) for key, values in filters.where.items()}
    chosen = asdict(replace(filters, where={})) | {"where": where}
    return {key: value for key, value in asdict(contexts).items() if key != "seed"} | chosen


# ---- Problems of several questions ---------------------------------------------------------------------------


def make_objectives(
    sources: Sequence[str | Path],
    sizes: Sequence[int],
    *,
    out: Path,
    documents: int | None = None,
    count: int | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Write problems of several questions each: `count` per size, or as many as possible. Raises DataError."""
    progress = progress or Silent()
    with new_folder(out, force=force, progress=progress) as folder:
        read = read_questions(list(map(Path, sources)), content="paragraphs" if documents else "questions")
        order = sorted(read.records, key=lambda record: derive_seed(seed, "several", question_key(record.question)))
        groups = {size: _groups(order, size, count) for size in sizes}
        problems: dict[str, int] = {}
        with progress.count("problems", sum(map(len, groups.values()))) as tick:
            for size, dealt in groups.items():
                made = _searched(dealt) if documents is None else _on_documents(dealt, read, documents, seed)
                problems[f"objectives_{size}.jsonl"] = write_problems(
                    folder / f"objectives_{size}.jsonl", _ticked(made, tick)
                )
        edition = write_manifest(
            folder,
            made_by="palimpsest data combine",
            seed=seed,
            described={name: {"problems": number} for name, number in problems.items()},
            settings={"objectives": list(sizes), "documents": documents, "count": count},
            sources=read.sources,
            left_out=dict(read.left_out),
        )
    return Made(out, edition, problems)


def _groups(order: Sequence[Record], size: int, count: int | None) -> list[Sequence[Record]]:
    if unfit := [one.id for one in order if "every_gold" in one.metadata or one.outdated]:
        raise DataError(f"problem {unfit[0]}: lists and updates can't be combined; omit them")
    there = len(order) // size
    if not there or there < (count or 0):
        raise DataError(
            f"{len(order):,} questions make {there:,} problems of {size}, not {count or 1:,}; lower --problems or "
            "--objectives, or read more files"
        )
    return [order[size * number : size * (number + 1)] for number in range(there if count is None else count)]


def _searched(groups: Sequence[Sequence[Record]]) -> Iterator[Problem]:
    for group in groups:
        objectives = [Question(record.question, record.answers) for record in group]
        yield search_problem(_name(group), objectives)


def _on_documents(groups: Sequence[Sequence[Record]], read: Questions, documents: int, seed: int) -> Iterator[Problem]:
    corpus = read.corpus
    for group in groups:
        yield assemble(_together(group), corpus=corpus, documents=documents, seed=seed)


def _together(group: Sequence[Record]) -> Record:
    problem = Problem.asking(_name(group), [Question(record.question, record.answers) for record in group])
    return Record(
        problem.id,
        problem.question,
        problem.answers,
        paragraphs=tuple(dict.fromkeys(text for record in group for text in record.paragraphs or ())),
        gold=tuple(dict.fromkeys(text for record in group for text in record.needed)),
        questions=problem.questions,
    )


def _name(group: Sequence[Record]) -> str:
    return "+".join(record.id for record in group)
