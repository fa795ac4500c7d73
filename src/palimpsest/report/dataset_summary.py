"""Summary of a file of problems, for `palimpsest data inspect FILE`.

Guaranteed: the file is read as in training, so that the summary shows an agent's input; text of the file is printed
without control characters; memory contains only the summary and one sample.
Not covered: token counts (they depend on a model); one English token is about four characters.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from palimpsest.config.data import GENERATED, DataConfig
from palimpsest.data.assemble import assemble
from palimpsest.data.formats.problem_files import (
    AS_IT_IS,
    Paths,
    ReadOptions,
    RowFormat,
    format_of,
    paths_of,
    read_records,
)
from palimpsest.data.record import objective_count
from palimpsest.data.sources.file_source import FileSource, build_source
from palimpsest.types import Problem

BINS = 10


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Nearest-rank quantiles of a list of lengths."""

    least: int
    median: int
    p90: int
    most: int

    @classmethod
    def of(cls, values: Sequence[int]) -> Quantiles:
        """
        >>> Quantiles.of([3, 1, 2, 10])
        Quantiles(least=1, median=2, p90=10, most=10)
        """
        ranked = sorted(values)
        last = len(ranked) - 1
        return cls(ranked[0], ranked[last // 2], ranked[-(-9 * len(ranked) // 10) - 1], ranked[last])


@dataclass(frozen=True, slots=True)
class Inspection:
    path: str
    format: str
    rows: int
    question_chars: Quantiles
    context_chars: Quantiles | None
    """None if no problem has a context."""
    without_context: int
    documents: Quantiles | None
    """Documents per context, if the data states them."""
    golds: dict[int, int]
    """Questions by their number of gold answers."""
    objectives: dict[int, int]
    """Problems by their number of questions."""
    invalid: int
    """Problems with a gold for unanswerable questions (MemAct's)."""
    gold_in_context: int
    """Problems whose context contains a gold of each question, ignoring case; yes/no answers may match anywhere."""
    evidence: tuple[int, ...]
    """[BINS] pieces of evidence by their start in the context; all 0 without evidence in the data."""
    evidence_lost: int
    """Pieces of evidence that are missing from their context."""
    sample: Problem
    without_gold: int = 0
    """Problems with a question that has no gold."""
    sessions: Quantiles | None = None
    """Dated sessions of a conversation; None if no problem has any."""
    skipped: tuple[str, ...] = ()
    """Message for each skipped row."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """Column of each role, of a file in a shipped format."""
    empty: tuple[str, ...] = ()
    """Ids of problems with a blank document."""


def inspect_source(
    path: Paths,
    reading: ReadOptions = AS_IT_IS,
    *,
    documents: int | None = None,
    limit: int | None = None,
) -> Inspection:
    """Read `path`, files or generated problems, as an evaluation with these settings does, and summarise. Raises
    DataError."""
    if path in GENERATED and documents is None:
        drawn = build_source(DataConfig(train_files=str(path)), 0, split="eval").problems(step=0, count=limit or 64)
        return summarise(drawn, path=str(path), format="generated")
    readers = {file: format_of(file, reading) for file in paths_of(path)}
    names = dict.fromkeys(reader.name for reader in readers.values())
    taken = next((reader.taken(file) for file, reader in readers.items() if isinstance(reader, RowFormat)), {})
    skipped = list[str]()
    problems: Iterable[Problem]
    if documents is None:
        problems = (assemble(record) for record in read_records(path, reading, limit=limit, skipped=skipped))
    else:
        source = FileSource.open(path, split="eval", documents=documents, limit=limit, reading=reading)
        problems, skipped = source, list(source.skipped)
    inspection = summarise(problems, path=", ".join(map(str, paths_of(path))), format=", ".join(names))
    return replace(inspection, skipped=tuple(skipped), taken=taken)


def summarise(problems: Iterable[Problem], *, path: str = "", format: str = "") -> Inspection:
    """Summary of at least one problem from any source."""
    questions: list[int] = []
    contexts: list[int] = []
    documents: list[int] = []
    golds: Counter[int] = Counter()
    question_counts: Counter[int] = Counter()
    sessions: list[int] = []
    empty: list[str] = []
    invalid = ungraded = 0
    bins, lost, held = [0] * BINS, 0, 0
    sample: Problem | None = None
    for problem in problems:
        sample = sample or problem
        questions.append(len(problem.question))
        golds.update(len(item.answers) for item in problem.by_question)
        question_counts[len(problem.questions) or objective_count(problem)] += 1
        invalid += bool(problem.metadata.get("invalid"))
        ungraded += not all(item.answers for item in problem.by_question)
        if isinstance(dated := problem.metadata.get("sessions"), list):
            sessions.append(len(dated))
        if isinstance(problem.metadata.get("num_docs"), int):
            documents.append(problem.metadata["num_docs"])
        if problem.context is None:
            continue
        contexts.append(len(problem.context))
        empty += [] if problem.context.strip() else [problem.id]
        text = problem.context.lower()
        held += all(any(gold.lower() in text for gold in item.answers) for item in problem.by_question)
        for index in evidence_bins(problem):
            if index is None:
                lost += 1
            else:
                bins[index] += 1
    assert sample is not None
    return Inspection(
        path=path,
        format=format,
        rows=len(questions),
        question_chars=Quantiles.of(questions),
        context_chars=Quantiles.of(contexts) if contexts else None,
        without_context=len(questions) - len(contexts),
        documents=Quantiles.of(documents) if documents else None,
        golds=dict(sorted(golds.items())),
        objectives=dict(sorted(question_counts.items())),
        invalid=invalid,
        gold_in_context=held,
        evidence=tuple(bins),
        evidence_lost=lost,
        sample=sample,
        without_gold=ungraded,
        sessions=Quantiles.of(sessions) if sessions else None,
        empty=tuple(empty),
    )


def evidence_bins(problem: Problem) -> list[int | None]:
    """Bin of each piece of evidence by its start in the context; None if the context lacks it.

    >>> evidence_bins(Problem("a", "?", ("x",), "....abc...", {"evidence": ["abc", "z"]}))
    [4, None]
    """
    context = problem.context or ""
    offsets = (context.find(text) for text in problem.metadata.get("evidence", ()))
    return [BINS * at // max(len(context), 1) if at >= 0 else None for at in offsets]


def render(inspection: Inspection) -> RenderableType:
    table = Table(title=plain(f"{inspection.path} ({inspection.format})"), show_header=True)
    for heading in ("", "least", "median", "p90", "most"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, values in (
        ("question, characters", inspection.question_chars),
        ("context, characters", inspection.context_chars),
        ("documents", inspection.documents),
        ("dated sessions", inspection.sessions),
    ):
        if values is not None:
            numbers = (values.least, values.median, values.p90, values.most)
            table.add_row(name, *(f"{number:,}" for number in numbers))
    return Group(table, *(plain(line) for line in _facts(inspection)), *_histogram(inspection), _worked(inspection))


def _facts(inspection: Inspection) -> Iterator[str]:
    rows = inspection.rows
    yield from (f"{role:8} <- {column}" for role, column in inspection.taken.items())
    yield f"problems                {rows:,}"
    if inspection.empty:
        yield f"empty documents         {len(inspection.empty):,}, first: {inspection.empty[0]}"
    if inspection.without_context:
        yield f"without a context       {inspection.without_context:,}"
    yield f"golds per question      {_spread(inspection.golds)}"
    if max(inspection.objectives) > 1:
        yield f"questions per problem   {_spread(inspection.objectives)}"
    if inspection.without_gold:
        yield f"without a gold          {inspection.without_gold:,} (never graded; training rejects them)"
    if inspection.skipped:
        yield f"rows skipped            {len(inspection.skipped):,}, first: {inspection.skipped[0]}"
    if inspection.invalid:
        yield f"invalid-question golds  {inspection.invalid:,}"
    if rows > inspection.without_context:
        yield f"gold in context         {inspection.gold_in_context:,} of {rows - inspection.without_context:,}"
    if inspection.evidence_lost:
        yield f"evidence NOT in context {inspection.evidence_lost:,}"


def _spread(counts: dict[int, int]) -> str:
    return ", ".join(f"{number}: {count:,}" for number, count in counts.items())


def _histogram(inspection: Inspection) -> Iterator[Text]:
    total = sum(inspection.evidence)
    if not total:
        return
    yield plain("\nstart of the evidence in its context")
    for i, count in enumerate(inspection.evidence):
        bar = "█" * round(40 * count / max(inspection.evidence))
        yield plain(f"  {100 * i // BINS:3d}-{100 * (i + 1) // BINS:<3d}% {bar} {count:,} ({count / total:.0%})")


def _worked(inspection: Inspection) -> Text:
    sample = inspection.sample
    lines = ["", f"first problem ({sample.id})"]
    for item in sample.by_question:
        lines += [f"  question  {item.question}", *(f"  gold      {gold}" for gold in item.answers)]
    if sample.context is not None:
        lines.append(f"  context   {_ends(sample.context)}")
    for piece, index in zip(sample.metadata.get("evidence", ()), evidence_bins(sample), strict=True):
        where = "not in the context" if index is None else f"{100 * index // BINS}-{100 * (index + 1) // BINS}%"
        lines.append(f"  evidence  [{where}] {_ends(piece)}")
    return plain("\n".join(lines))


def _ends(text: str, keep: int = 120) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 2 * keep else f"{text[:keep]} ... {text[-keep:]}"


def plain(text: str) -> Text:
    r"""Text without markup and without terminal control characters.

    >>> plain("[bold]a\x1b[31mb\u202e").plain
    '[bold]a�[31mb�'
    """
    return Text("".join("�" if c != "\n" and unicodedata.category(c) in ("Cc", "Cf") else c for c in text))
