"""Grades of search agents: the answer after `FINAL_ANSWER:`, to one question or to several (MemAct, arXiv 2510.12635).

    all    the worst question's value: 1 only if every answer is right (the paper's reward in training)
    each   the mean over the questions (its evaluation)

Both are in every breakdown, beside em, f1 and sub_em as means over the questions. A problem has several questions where
`metadata["objectives"]` names them; its agent owes a JSON object. 45 of the 2,048 published training problems, and some
single questions of the validation file, have "the question is invalid." for a gold: that is a note of whoever made the
data, no answer. Such a question is left out; a problem that has no other is ungraded. `invalid_golds: gold` takes
the note as the gold, as the published code does.

Guaranteed: a question without an answer is worth 0.0 and no judge is asked about it; a judge that fails leaves the
episode ungraded, with the reason, never at zero; the judge is asked about an answer, never about the text around it.
Of several golds the best counts, or, where each is wanted (the points of a rubric), their mean.
Not covered: an object's names in other spellings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, Protocol, TypeVar, cast

from palimpsest.config.reward import FinalAnswerConfig
from palimpsest.errors import JudgeError
from palimpsest.reward import match
from palimpsest.text.answers import extract
from palimpsest.text.final_answer import NamedAnswers, final_answer, named_answers
from palimpsest.types import Grade, Outcome, Problem, Trajectory

T = TypeVar("T")

INVALID_GOLD = "the question is invalid"
_RULES = {"em": match.exact, "f1": match.f1, "sub_em": match.gold_in_answer}
CONSTRAINTS = frozenset({Outcome.OUT_OF_TURNS, Outcome.OUT_OF_CONTEXT})


class AnswerJudge(Protocol):
    """What grading needs of a judge."""

    async def value(self, question: str, golds: Sequence[str], answer: str) -> tuple[float, bool]:
        """The worth of an answer, 0.0 to 1.0, and whether the verdict was "partial". Raises JudgeError."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Objective:
    """One of a problem's questions; the only one has no name."""

    name: str
    question: str
    golds: tuple[str, ...]

    @property
    def invalid(self) -> bool:
        """Whether its gold says that it has none."""
        return any(gold.strip().rstrip(".").lower() == INVALID_GOLD for gold in self.golds)


def objectives(problem: Problem) -> tuple[Objective, ...]:
    """The questions of a problem, in order.

    >>> objectives(Problem("p", "Where?", ("Oslo",)))
    (Objective(name='', question='Where?', golds=('Oslo',)),)
    """
    named = problem.metadata.get("objectives")
    if not named:
        return (Objective("", problem.question, problem.answers),)
    return tuple(Objective(one["name"], one["question"], tuple(one["answers"])) for one in named)


@dataclass(frozen=True, slots=True)
class Marked:
    """What an answer to one question is worth, by every rule that was applied."""

    answered: bool
    values: dict[str, float]
    partial: bool = False


def compared(answer: str, golds: Sequence[str], wanted: Literal["any", "each"] = "any") -> Marked:
    """By the rules of strings.

    >>> compared("Oslo, Norway", ["Oslo"]).values
    {'em': 0.0, 'f1': 0.6666666666666666, 'sub_em': 1.0}
    >>> compared("Oslo, Norway", ["Oslo", "Bergen"], "each").values["sub_em"]
    0.5
    """
    said = any(match.comparable(answer, gold)[0] for gold in golds)
    together = max if wanted == "any" else fmean
    return Marked(said, {name: together([rule(answer, gold) for gold in golds]) for name, rule in _RULES.items()})


@dataclass(frozen=True, slots=True)
class FinalAnswerGrader:
    """Compares each question's answer with its golds, by strings or by a judge."""

    config: FinalAnswerConfig
    judge: AnswerJudge | None = None

    async def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        """`Grade.value` is 0.0 to 1.0, or None where machinery, data or judge failed."""
        if not trajectory.outcome.gradable:
            return Grade(None, reason=f"episode ended as {trajectory.outcome}")
        asked = objectives(problem)
        counted = [one for one in asked if self.config.invalid_golds == "gold" or not one.invalid]
        if not counted:
            return Grade(None, reason="the data has no gold, only the note that the question is invalid")
        given = _answers(asked, trajectory.answer or "", self.config.where)
        try:
            marked = await self._marked(counted, given)
        except JudgeError as error:
            return Grade(None, reason=f"judge: {error}")
        breakdown = _breakdown(marked, given, self.config.match)
        return Grade(breakdown[self.config.objectives], breakdown=breakdown)

    async def close(self) -> None:
        """Close the connections to the judge."""
        if self.judge is not None:
            await self.judge.close()

    async def _marked(self, asked: Sequence[Objective], given: NamedAnswers) -> list[Marked]:
        marked = [compared(given.answers.get(one.name, ""), one.golds, self.config.golds) for one in asked]
        if self.judge is None:
            return marked
        pairs = zip(asked, marked, strict=True)
        return await _all_of(self._judged(one, given.answers.get(one.name, ""), mark) for one, mark in pairs)

    async def _judged(self, one: Objective, answer: str, mark: Marked) -> Marked:
        assert self.judge is not None
        if not answer.strip():
            return replace(mark, answered=False, values={**mark.values, "judge": 0.0})
        asked = [one.golds] if self.config.golds == "any" else [(gold,) for gold in one.golds]
        verdicts = await _all_of(self.judge.value(one.question, golds, answer) for golds in asked)
        value, partial = fmean(value for value, _ in verdicts), any(partial for _, partial in verdicts)
        return Marked(True, {**mark.values, "judge": value}, partial)


async def _all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """What each gives, once all have ended: the verdicts that came are in the cache, also where another failed."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    for failure in ended:
        if isinstance(failure, BaseException):
            raise failure
    return cast(list[T], ended)


def _answers(asked: Sequence[Objective], text: str, where: str) -> NamedAnswers:
    said = final_answer(text)
    if said is None and where == "found" and (found := extract(text)) is not None and not asked[0].name:
        said = found.text
    if len(asked) == 1 and not asked[0].name:
        return NamedAnswers({"": said} if said else {}, missing=() if said else ("",))
    return named_answers(said, [one.name for one in asked])


def _breakdown(marked: Sequence[Marked], given: NamedAnswers, rule: str) -> dict[str, float]:
    values = [mark.values[rule] for mark in marked]
    means = {name: fmean(mark.values[name] for mark in marked) for name in marked[0].values}
    partial = {"partial": fmean(mark.partial for mark in marked)} if "judge" in means else {}
    return {
        "all": min(values),
        "each": fmean(values),
        "objectives": float(len(values)),
        "objectives_right": float(sum(value == 1.0 for value in values)),
        **means,
        **partial,
        "answered": fmean(mark.answered for mark in marked),
        "malformed": float(given.fault is not None),
        "keys_missing": float(len(given.missing)),
        "keys_extra": float(len(given.extra)),
    }


@dataclass(frozen=True, slots=True)
class ConstraintLayer:
    """Makes an episode that broke a limit worth minus `penalty`; for training only, evaluation grades the answer."""

    penalty: float

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        """The grade with the penalty in place of its value where a limit was broken.

        `breakdown` keeps the worth of the answer as `outcome`, of every episode, so that its mean is one over all.
        """
        if grade.value is None:
            return grade
        value = -self.penalty if trajectory.outcome in CONSTRAINTS else grade.value
        return replace(grade, value=value, breakdown={"outcome": grade.value, **grade.breakdown})
