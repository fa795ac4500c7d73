"""What a file of problems holds, at a glance: for `palimpsest data inspect FILE`.

Guaranteed: the file is read as training would read it, so that what is shown is what an agent gets; text of the file
is printed without control characters. Contexts are not kept: memory holds the summary and one sample.
Not covered: token counts (they depend on a model); a character is roughly a quarter of a token in English.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from palimpsest.data.assemble import assemble
from palimpsest.data.formats.problem_files import AS_IT_IS, Paths, ReadOptions, format_of, paths_of, read_records
from palimpsest.data.record import objective_count
from palimpsest.data.sources.file_source import FileSource
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
    """Summary of a file."""

    path: str
    format: str
    rows: int
    question_chars: Quantiles
    context_chars: Quantiles | None
    """None where no problem has a context."""
    without_context: int
    documents: Quantiles | None
    """Documents per context, where the data says."""
    golds: dict[int, int]
    """Questions by their number of gold answers."""
    objectives: dict[int, int]
    """Problems by the number of questions they ask."""
    invalid: int
    """Problems with a gold that says a question has no answer (MemAct's)."""
    gold_in_context: int
    """Problems whose context holds a gold of each question verbatim, case aside (a yes/no answer may be in any)."""
    evidence: tuple[int, ...]
    """[BINS] pieces of evidence by where they begin in their context; all 0 where the data names none."""
    evidence_lost: int
    """Pieces of evidence that don't stand in their context."""
    sample: Problem
    without_gold: int = 0
    """Problems with a question that has no gold."""
    sessions: Quantiles | None = None
    """Dated sessions of a conversation; None where no problem has any."""
    skipped: tuple[str, ...] = ()
    """What is said of each row that was left out."""


def inspect_source(
    path: Paths,
    reading: ReadOptions = AS_IT_IS,
    *,
    documents: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Inspection:
    """Read `path` as an evaluation with these settings would, and summarise. Raises DataError."""
    names = dict.fromkeys(format_of(file, reading).name for file in paths_of(path))
    skipped = list[str]()
    problems: Iterable[Problem]
    if documents is None:
        problems = (assemble(record) for record in read_records(path, reading, limit=limit, skipped=skipped))
    else:
        source = FileSource.open(path, split="eval", documents=documents, limit=limit, seed=seed, reading=reading)
        problems, skipped = source, list(source.skipped)
    inspection = summarise(problems, path=", ".join(map(str, paths_of(path))), format=", ".join(names))
    return replace(inspection, skipped=tuple(skipped))


def summarise(problems: Iterable[Problem], *, path: str = "", format: str = "") -> Inspection:
    """The summary of at least one problem, whatever it came from."""
    questions: list[int] = []
    contexts: list[int] = []
    documents: list[int] = []
    golds: Counter[int] = Counter()
    question_counts: Counter[int] = Counter()
    sessions: list[int] = []
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
    )


def evidence_bins(problem: Problem) -> list[int | None]:
    """The bin of each piece of evidence by its first character's place in the context, None where it is absent.

    >>> evidence_bins(Problem("a", "?", ("x",), "....abc...", {"evidence": ["abc", "z"]}))
    [4, None]
    """
    context = problem.context or ""
    offsets = (context.find(text) for text in problem.metadata.get("evidence", ()))
    return [BINS * at // max(len(context), 1) if at >= 0 else None for at in offsets]


def render(inspection: Inspection) -> RenderableType:
    """The summary for a terminal."""
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
    yield f"problems                {rows:,}"
    if inspection.without_context:
        yield f"without a context       {inspection.without_context:,}"
    yield f"gold answers a question {_spread(inspection.golds)}"
    if max(inspection.objectives) > 1:
        yield f"questions a problem     {_spread(inspection.objectives)}"
    if inspection.without_gold:
        yield f"without a gold          {inspection.without_gold:,} (played, never graded; training refuses them)"
    if inspection.skipped:
        yield f"rows left out           {len(inspection.skipped):,}, the first: {inspection.skipped[0]}"
    if inspection.invalid:
        yield f"invalid-question golds  {inspection.invalid:,}"
    if rows > inspection.without_context:
        yield f"gold said in context    {inspection.gold_in_context:,} of {rows - inspection.without_context:,}"
    if inspection.evidence_lost:
        yield f"evidence NOT in context {inspection.evidence_lost:,}"


def _spread(counts: dict[int, int]) -> str:
    return ", ".join(f"{number}: {count:,}" for number, count in counts.items())


def _histogram(inspection: Inspection) -> Iterator[Text]:
    total = sum(inspection.evidence)
    if not total:
        return
    yield plain("\nwhere evidence begins in its context")
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
    """The two ends of a long text on one line."""
    text = " ".join(text.split())
    return text if len(text) <= 2 * keep else f"{text[:keep]} ... {text[-keep:]}"


def plain(text: str) -> Text:
    r"""Text without markup and without characters that steer a terminal.

    >>> plain("[bold]a\x1b[31mb\u202e").plain
    '[bold]a�[31mb�'
    """
    return Text("".join("�" if c != "\n" and unicodedata.category(c) in ("Cc", "Cf") else c for c in text))
