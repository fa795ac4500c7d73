"""Grades anew what was played before, from the answers that samples.jsonl kept: no model plays.

Guaranteed: the same comparison, judge and cache as an evaluation takes, so that the same reward gives the same values;
a sample that no one could grade, as its episode was lost or its question has no gold, stays ungraded with its reason;
what would need more than the answer is refused by name. Layers of a reward (penalties on turns) count in training
alone, so that grading anew leaves them out as the evaluation did.
Not covered: rewards of one's own, which may read turns, memories or events, as those aren't in the log.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.config.reward import RewardConfig
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluation.samples import Sample
from palimpsest.evaluation.summary import EvalSummary, summarise
from palimpsest.plugins import is_own
from palimpsest.reward.compose import shipped_answer
from palimpsest.reward.grading import NO_GOLD, Grades, closing, graded
from palimpsest.types import Outcome, Problem, Question, Trajectory

Problems = Mapping[tuple[str, str], Problem]
"""By name of the set and id."""
_AT_ONCE = 256  # gradings under way; a judge bounds its own requests


UNSET_URL = "http://unset.invalid/v1"
"""Stands for the address of a judge, which is no part of an evaluation's identity."""


def stored_reward(stored: Mapping[str, Any]) -> RewardConfig:
    """The reward that an evaluation's identity holds. Raises pydantic's ValidationError."""
    return RewardConfig.model_validate(with_judge_address(stored))


def with_judge_address(stored: Mapping[str, Any]) -> dict[str, Any]:
    """`stored` with an address where it has a judge."""
    judge = stored.get("judge")
    return {**stored, "judge": {"url": UNSET_URL, **judge}} if isinstance(judge, dict) else dict(stored)


def check_regradable(config: RewardConfig, samples: Sequence[Sample] = ()) -> None:
    """Refuse a reward that needs more than what `samples` hold; layers, which are training's alone, don't count.
    Raises ConfigError or DataError."""
    if is_own(config.name):
        raise ConfigError(
            f"reward.name={config.name}: a reward of your own may read the trajectory, which samples.jsonl doesn't "
            "hold; give a shipped reward, or play again with palimpsest eval"
        )
    several = next((sample for sample in samples if _objectives(sample) > 1), None)
    if config.name == "final_answer" and several is not None:
        raise DataError(
            f"reward.name=final_answer: {several.name}, {several.id} asks {_objectives(several):g} questions with "
            "golds of their own (metadata.objectives), which samples.jsonl doesn't hold; run palimpsest eval again"
        )


def _objectives(sample: Sample) -> float:
    """How many questions of a search problem one answer had to serve, as far as the log tells."""
    named = re.search(r"\b(\d+) objectives?\b", sample.name)
    return max(sample.metrics.get("objectives", 1.0), float(named[1]) if named else 1.0)


async def regraded(
    samples: Sequence[Sample], config: RewardConfig, folder: Path | None, problems: Problems | None = None
) -> list[Sample]:
    """`samples` with the value, the metrics and the reason that `config` gives them; verdicts are kept in `folder`.

    `problems`: where they are at hand, with what a log doesn't hold of them.
    """
    check_regradable(config, samples if problems is None else ())
    grader = shipped_answer(config, folder)
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(sample: Sample) -> Sample:
        async with places:
            return await _regraded(sample, grader, None if problems is None else problems[sample.name, sample.id])

    async def work() -> list[Sample]:
        return await asyncio.gather(*map(one, samples))

    return await closing(grader, work())


async def _regraded(sample: Sample, grader: Grades, known: Problem | None) -> Sample:
    if sample.without_gold:
        return replace(sample, value=None, metrics={}, reason=NO_GOLD)
    if not Outcome(sample.outcome).gradable:
        return replace(sample, value=None, metrics={})
    problem, trajectory = _episode(sample)
    grade = await graded(grader, known or problem, trajectory)
    return replace(
        sample,
        value=grade.value,
        metrics=dict(grade.breakdown),
        reason=grade.reason,
        questions=[
            {**each, "value": grade.breakdown.get(f"question_{number}")}
            for number, each in enumerate(sample.questions, 1)
        ],
    )


def _episode(sample: Sample) -> tuple[Problem, Trajectory]:
    """What graders of answers look at."""
    asked = tuple(Question(each["question"], tuple(each["answers"])) for each in sample.questions)
    problem = Problem.asking(sample.id, asked) if asked else Problem(sample.id, sample.question, sample.answers)
    answers = tuple(each["answer"] for each in sample.questions)
    outcome = Outcome(sample.outcome)
    return problem, Trajectory(sample.id, sample.name, 0, (), outcome, sample.answer, answers=answers)


def summaries_by_set(samples: Sequence[Sample], policies: Sequence[str] = ()) -> tuple[EvalSummary, ...]:
    """Figures of each set: the agents' by policy, of several in the order of `policies`, each from short to long; then
    those of each baseline."""
    sets: dict[str, list[Sample]] = {}
    for sample in samples:
        sets.setdefault(sample.name, []).append(sample)
    baselines = {name: own[0].baseline or "" for name, own in sets.items()}
    figures = [summarise(name, own, drawn=1 + max(each.draw for each in own)) for name, own in sets.items()]
    order = {name: next((at for at, own in enumerate(policies) if name.startswith(f"{own}, ")), 0) for name in sets}
    return tuple(sorted(figures, key=lambda each: (baselines[each.name], order[each.name], each.length)))
