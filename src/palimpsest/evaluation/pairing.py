"""Two evaluations of the same problems, problem by problem, in cells of one set at one length.

A problem is the same where set, id, number of the draw, and a hash over question and golds are. One with the same name
that asks something else, or counts something else as right, is never paired: it is counted in `other_question`.

Guaranteed: every sample of either side is in exactly one count: paired, without a grade, on that side alone, or of
another question. Nothing is paired by its place in a file.
Not covered: a problem that has a document on one side alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from palimpsest.evaluation.sample_log import Cell, Sample, SampleKey
from palimpsest.evaluation.statistics import Difference, paired
from palimpsest.evaluation.summary import clusters_of, question_hash


@dataclass(frozen=True, slots=True)
class Flip:
    """A problem on which the two sides are worth something else."""

    cell: Cell
    id: str
    question: str
    golds: tuple[str, ...]
    first: str | None
    """The first side's answer."""
    second: str | None
    first_value: float
    second_value: float


@dataclass(frozen=True, slots=True)
class Pairing:
    """What can be said of two sides, problem by problem."""

    problems: int
    """Paired, each once however often it was drawn: both sides graded one of its episodes at least."""
    episodes: int
    """Paired: draws of problems that both sides graded."""
    independent: int
    """Clusters of the problems: those that share a question (at several lengths) or a document are one."""
    difference: Difference | None
    """Second less first; None where nothing could be paired."""
    flips: tuple[Flip, ...]
    """Where the values differ: what the second lost, then what it won, each in the order of the first side."""
    ungraded: int
    """Episodes, as those below: of the same problem on both sides, without a grade on one of them at least."""
    only_first: int
    only_second: int
    other_question: int
    """Of the same name on both sides, with another question or other golds: refused."""
    other_document: int
    """Paired, but another document was read."""

    @property
    def counted(self) -> str:
        """What the difference is over, in words."""
        details = [f"{self.episodes} episodes"] if self.episodes != self.problems else []
        details += [f"{self.independent} independent"] if self.independent != self.problems else []
        return f"{self.problems} problems" + (f" ({', '.join(details)})" if details else "")

    @property
    def warning(self) -> str | None:
        """What a reader of the difference has to know; None where both sides graded the same episodes."""
        counts = {
            "episodes of problems that ask something else there, or have other golds: not paired": self.other_question,
            "episodes only on the first side": self.only_first,
            "episodes only on the second side": self.only_second,
            "episodes without a grade on one side": self.ungraded,
            "episodes paired although they read another document": self.other_document,
        }
        warnings = [f"{count} {what}" for what, count in counts.items() if count]
        return "; ".join(warnings) or None

    def to_json(self, flips: int | None = None) -> dict[str, Any]:
        """With the first `flips` flips, None: all."""
        values = asdict(self)
        return {**values, "flips": values["flips"][:flips], "flipped": len(self.flips), "warning": self.warning}


def pair(first: Sequence[Sample], second: Sequence[Sample]) -> Pairing:
    """Compare two sides' samples."""
    ours, theirs = _by_key(first), _by_key(second)
    both = [key for key in ours if key in theirs]
    same = [key for key in both if question_hash(ours[key]) == question_hash(theirs[key])]
    graded = [key for key in same if ours[key].value is not None and theirs[key].value is not None]
    pairs = [(ours[key], theirs[key]) for key in graded]
    return Pairing(
        problems=len({(one.cell, one.id) for one, _ in pairs}),
        episodes=len(pairs),
        independent=len(set(clusters_of([one for one, _ in pairs]))),
        difference=_difference(pairs) if pairs else None,
        flips=_flips(pairs),
        ungraded=len(same) - len(graded),
        only_first=len(ours) - len(both),
        only_second=len(theirs) - len(both),
        other_question=len(both) - len(same),
        other_document=sum(one.document != two.document for one, two in pairs if one.document and two.document),
    )


def _by_key(samples: Sequence[Sample]) -> Mapping[SampleKey, Sample]:
    return {sample.key: sample for sample in samples}


def _difference(pairs: Sequence[tuple[Sample, Sample]]) -> Difference:
    values = [(one.value or 0.0, two.value or 0.0) for one, two in pairs]
    return paired([one for one, _ in values], [two for _, two in values], clusters_of([one for one, _ in pairs]))


def _flips(pairs: Sequence[tuple[Sample, Sample]]) -> tuple[Flip, ...]:
    flips = [
        Flip(one.cell, one.id, one.question, one.answers, one.answer, two.answer, one.value or 0.0, two.value or 0.0)
        for one, two in pairs
        if one.value != two.value
    ]
    return tuple(sorted(flips, key=lambda flip: flip.second_value > flip.first_value))
