"""The reward a recipe asks for: what the answer is worth, and the layers that training puts on top.

    answer    reward.name: a shipped comparison, a judge, or the user's own function or class
    layers    in this order: reward.state, reward.unsupported_penalty,
              reward.final_answer.constraint_penalty, then those of reward.layers

Evaluation asks for the answer alone: `reward.answer`. Training asks for all of it: `reward`.

Guaranteed: an ungraded episode goes through no layer and stays ungraded; each layer gets what the one before it gave.
Not covered: layers in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import isawaitable
from operator import attrgetter
from pathlib import Path

from palimpsest import plugins
from palimpsest.config.reward import LAYERS, REWARDS, RewardConfig
from palimpsest.errors import ConfigError
from palimpsest.reward.answer_match import AnswerJudge, ConstraintLayer, FinalAnswerGrader, MatchGrader
from palimpsest.reward.custom_reward import Caller, CustomLayer, CustomReward
from palimpsest.reward.grading import Grades, Layer, close, graded
from palimpsest.reward.judge.model_judge import Judge
from palimpsest.reward.turn_rewards import FaithfulLayer, StateLayer
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Problem, Trajectory


@dataclass(frozen=True, slots=True)
class Reward:
    """What training takes for a grader; `answer` is what evaluation takes."""

    answer: Grades
    layers: tuple[Layer, ...] = ()

    async def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        """The grade of the answer, taken through the layers."""
        grade = await graded(self.answer, problem, trajectory)
        for layer in self.layers:
            if not grade.graded:
                break
            further = layer(problem, trajectory, grade)
            grade = await further if isawaitable(further) else further
        return grade

    async def close(self) -> None:
        """Close what the answer's grader and the layers have open: connections, threads."""
        for part in (self.answer, *self.layers):
            await close(part)


def build_reward(config: RewardConfig, codec: Codec, folder: Path | None = None) -> Reward:
    """The reward of a recipe, for a model with this codec; `folder` keeps a judge's verdicts.

    Raises ConfigError for an option that the named reward doesn't read, and for an own one that can't be used.
    """
    check_reward(config)
    return Reward(_answer(config, codec, folder), tuple(_layers(config, codec)))


def check_reward(config: RewardConfig) -> None:
    """Refuse, before a model is loaded, what `build_reward` would refuse. Raises ConfigError."""
    if config.name not in REWARDS:
        plugins.check("reward", config.name, config.options)
    elif config.options:
        raise ConfigError(
            f"are those of a reward of your own; reward.name={config.name} has none: drop them", key="reward.options"
        )
    for layer in config.layers:
        plugins.check("layer", layer.name, layer.options, options_key=f"reward.layers.{layer.name}")


def training_layers(config: RewardConfig) -> list[str]:
    """The keys of `config` that are layers: training's alone, in no grade of an evaluation."""
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


def layers_message(config: RewardConfig) -> str | None:
    """In words, which layers training puts on top of the user's own reward; None for a shipped one, or no layer."""
    names = training_layers(config)
    if config.name in REWARDS or not names:
        return None
    return f"training puts on top of reward.name={config.name}: {', '.join(names)}; evaluation doesn't"


def _answer(config: RewardConfig, codec: Codec, folder: Path | None) -> Grades:
    if config.name in REWARDS:
        return shipped_answer(config, folder)
    call = plugins.build("reward", config.name, config.options, codec=codec)
    return CustomReward(config.name, Caller(call, config.timeout_s))


def shipped_answer(config: RewardConfig, folder: Path | None = None) -> Grades:
    """What grades answers under a shipped reward, looking at nothing but the answer; `folder` keeps a judge's
    verdicts."""
    if config.name == "final_answer":
        judge: AnswerJudge | None = Judge.open(config.judge, folder) if config.judge else None
        return FinalAnswerGrader(config.final_answer, judge)
    return MatchGrader(config.name)


def _layers(config: RewardConfig, codec: Codec) -> Iterator[Layer]:
    if config.state is not None:
        yield StateLayer(codec, config.state)
    if config.unsupported_penalty:
        yield FaithfulLayer(codec, config.unsupported_penalty)
    if config.final_answer.constraint_penalty:
        yield ConstraintLayer(config.final_answer.constraint_penalty)
    for layer in config.layers:
        key = f"reward.layers.{layer.name}"
        call = plugins.build("layer", layer.name, layer.options, options_key=key, codec=codec)
        yield CustomLayer(layer.name, Caller(call, config.timeout_s))
