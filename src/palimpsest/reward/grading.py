"""Graders and reward layers, the reward of a recipe, and several questions on one reading, each graded separately.

    Grades    grades an episode, at once or later: string comparison, a judge, a custom function
    Layer     modifies a grade: rewards of single turns, penalties

    answer    reward.name: a shipped comparison, a judge, or a custom function or class
    layers    in this order: reward.state, reward.unsupported_penalty, reward.truncated_penalty,
              reward.pass_bonus, reward.final_answer.constraint_penalty, then those of reward.layers

Evaluation uses only the answer (`reward.answer`), training the whole `reward`. Only a call that waits is a coroutine,
so simple layers need none. `graded` splits an episode with several questions, so that graders and layers see one
question with its golds and its answer, and averages the values and the parts of the breakdown. If one question cannot
be graded (its judge is down), the whole episode is ungraded, with the reason: a mean over the others would compare
rollouts of a group by different questions.

Guaranteed: the event loop is free while a grade is awaited; an error of a shipped grader propagates unchanged; a
problem of one question gets its grader's grade unchanged; an ungraded episode skips all layers and stays ungraded.
Not covered: a shipped grader that blocks, and so delays every episode (reward/custom_reward.py lets a custom function
block); a value over all questions together (all right or nothing); layers in another order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, TypeVar

from palimpsest import plugins
from palimpsest.config.reward import LAYERS, REWARDS, RewardConfig
from palimpsest.errors import ConfigError, closed_after
from palimpsest.notes import Note
from palimpsest.reward.answer_match import (
    AnswerJudge,
    ConstraintLayer,
    FinalAnswerGrader,
    MatchGrader,
    TruncatedLayer,
    all_of,
)
from palimpsest.reward.custom_reward import Caller, CustomLayer, CustomReward, close, fault_of
from palimpsest.reward.model_judge import Judge
from palimpsest.reward.turn_rewards import EnvironmentGrader, FaithfulLayer, PassLayer, StateLayer
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Problem, Trajectory

# ---- Several questions on one reading ------------------------------------------------------------------------


def by_question(problem: Problem, trajectory: Trajectory) -> list[tuple[Problem, Trajectory]]:
    """Each question as a separate problem, with an episode that answered only that question."""
    answers = trajectory.answers or (None,) * len(problem.questions)
    single = [replace(trajectory, answer=answer, answers=()) for answer in answers]
    return list(zip(problem.by_question, single, strict=True))


def mean_grade(grades: Sequence[Grade]) -> Grade:
    """The grade of an episode from the grades of its questions.

    >>> mean_grade([Grade(1.0, breakdown={"em": 1.0}), Grade(0.0, breakdown={"em": 0.0})]).breakdown
    {'em': 0.5, 'question_1': 1.0, 'question_2': 0.0, 'questions': 2.0}
    >>> mean_grade([Grade(1.0), Grade(None, "judge: no reply")]).reason
    'question 2 of 2: judge: no reply'
    """
    values = [grade.value for grade in grades if grade.value is not None]
    if len(values) < len(grades):
        return _ungraded(grades)
    names = dict.fromkeys(name for grade in grades for name in grade.breakdown)
    means = {name: fmean(g.breakdown[name] for g in grades if name in g.breakdown) for name in names}
    per_question = {f"question_{number}": value for number, value in enumerate(values, 1)}
    return Grade(
        fmean(values),
        breakdown={**means, **per_question, "questions": float(len(values))},
        per_turn=_over_turns(grades, lambda grade: grade.per_turn, absent=0.0),
        turn_weights=_over_turns(grades, lambda grade: grade.turn_weights, absent=1.0),
        spans=tuple(replace(span, value=span.value / len(grades)) for grade in grades for span in grade.spans),
    )


def _ungraded(grades: Sequence[Grade]) -> Grade:
    number, reason = next((n, grade.reason) for n, grade in enumerate(grades, 1) if grade.value is None)
    if all(grade.reason == reason for grade in grades):
        return Grade(None, reason)  # the episode is the cause, not a question
    return Grade(None, f"question {number} of {len(grades)}: {reason}")


def _over_turns(
    grades: Sequence[Grade], part: Callable[[Grade], tuple[float, ...] | None], absent: float
) -> tuple[float, ...] | None:
    """[turns] the mean over the questions, None if none of them has such values."""
    rows = [part(grade) for grade in grades]
    turns = next((len(values) for values in rows if values is not None), None)
    if turns is None:
        return None
    return tuple(map(fmean, zip(*((absent,) * turns if values is None else values for values in rows), strict=True)))


# ---- Graders and layers --------------------------------------------------------------------------------------


T = TypeVar("T")

NO_GOLD = "the data has no gold answer for it"
"""Reason for an ungraded question without a gold, for every grader."""


class Grades(Protocol):
    """A grader, plain or async, as rollouts and evaluation use it."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade | Awaitable[Grade]:
        """The grade of a trajectory, or the reason for its absence."""


class Layer(Protocol):
    """A modifier of grades."""

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade | Awaitable[Grade]:
        """`grade`, which has a value, with the layer's changes to the value, the breakdown or single turns."""


async def graded(grader: Grades, problem: Problem, trajectory: Trajectory) -> Grade:
    """The grade, awaited if necessary; the mean grade of several questions.

    A question without a gold is ungraded. A value, part or turn reward that is not a finite number leaves the episode
    ungraded, with the reason.
    """
    if problem.questions:
        return mean_grade(await all_of(graded(grader, *single) for single in by_question(problem, trajectory)))
    if not problem.answers and getattr(grader, "needs_gold", True):
        return Grade(None, reason=NO_GOLD)
    result = grader.grade(problem, trajectory)
    grade = await result if isawaitable(result) else result
    fault = fault_of(grade, trajectory) if grade.graded else None
    return Grade(None, reason=f"{type(grader).__name__} gave {fault}") if fault else grade


async def closing(grader: Grades, work: Coroutine[Any, Any, T]) -> T:
    return await closed_after(work, lambda: close(grader), "the grader")


# ---- The reward a recipe asks for ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reward:
    """The grader for training; `answer` is the grader for evaluation."""

    answer: Grades
    layers: tuple[Layer, ...] = ()

    @property
    def needs_gold(self) -> bool:
        """Return whether it leaves problems without a gold ungraded."""
        return getattr(self.answer, "needs_gold", True)

    async def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        """The grade of the answer, passed through the layers."""
        grade = await graded(self.answer, problem, trajectory)
        for layer in self.layers:
            if not grade.graded:
                break
            further = layer(problem, trajectory, grade)
            grade = await further if isawaitable(further) else further
        return grade

    async def close(self) -> None:
        """Close connections and threads of the answer's grader and the layers."""
        for part in (self.answer, *self.layers):
            await close(part)


def build_reward(config: RewardConfig, codec: Codec, folder: Path | None = None) -> Reward:
    """The reward of a recipe, for a model with this codec; `folder` stores a judge's verdicts.

    Raises ConfigError for an option that the named reward does not read, and for an unusable custom one.
    """
    check_reward(config)
    return Reward(_answer(config, codec, folder), tuple(_layers(config, codec)))


def check_reward(config: RewardConfig) -> None:
    """Reject the configurations that `build_reward` rejects, before a model is loaded. Raises ConfigError."""
    if config.name not in REWARDS:
        plugins.check("reward", config.name, config.options)
    elif config.options:
        raise ConfigError(
            f"belong to a custom reward; reward.name={config.name} has none: remove them", key="reward.options"
        )
    for layer in config.layers:
        plugins.check("layer", layer.name, layer.options, options_key=f"reward.layers.{layer.name}")


def training_layers(config: RewardConfig) -> list[str]:
    """The keys of `config` that are layers, which only training uses."""
    standing = list[str]()
    for key in LAYERS:
        value = attrgetter(key)(config)
        if isinstance(value, tuple):
            standing += [f"reward.{key}={layer.name}" for layer in value]
        elif isinstance(value, float):
            standing += [f"reward.{key}={value:g}"] if value else []
        elif value is not None:
            standing.append(f"reward.{key}")
    return standing


def layers_note(config: RewardConfig) -> Note | None:
    """The layers that training adds to a custom reward; None for a shipped one, or without layers."""
    names = training_layers(config)
    if config.name in REWARDS or not names:
        return None
    return Note("training_layers", reward=config.name, layers=", ".join(names))


def _answer(config: RewardConfig, codec: Codec, folder: Path | None) -> Grades:
    if config.name in REWARDS:
        return shipped_answer(config, folder)
    call = plugins.build("reward", config.name, config.options, codec=codec)
    needs_gold = getattr(plugins.owner(call), "needs_gold", True)
    return CustomReward(config.name, Caller(call, config.timeout_s), needs_gold)


def shipped_answer(config: RewardConfig, folder: Path | None = None) -> Grades:
    """The grader of answers under a shipped reward; `folder` stores a judge's verdicts."""
    if config.name == "environment":
        return EnvironmentGrader()
    if config.name == "final_answer":
        judge: AnswerJudge | None = Judge.open(config.judge, folder) if config.judge else None
        return FinalAnswerGrader(config.final_answer, judge)
    return MatchGrader(config.name)


def _layers(config: RewardConfig, codec: Codec) -> Iterator[Layer]:
    if config.state is not None:
        yield StateLayer(codec, config.state)
    if config.unsupported_penalty:
        yield FaithfulLayer(codec, config.unsupported_penalty)
    if config.truncated_penalty:
        yield TruncatedLayer(config.truncated_penalty)
    if config.pass_bonus:
        yield PassLayer(config.pass_bonus)
    if config.final_answer.constraint_penalty:
        yield ConstraintLayer(config.final_answer.constraint_penalty)
    for layer in config.layers:
        key = f"reward.layers.{layer.name}"
        call = plugins.build("layer", layer.name, layer.options, options_key=key, codec=codec)
        yield CustomLayer(layer.name, Caller(call, config.timeout_s))
