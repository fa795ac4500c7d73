"""Optimizer steps that are not taken, and gradients that are not finite."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import LossConfig, RunConfig
from palimpsest.engines.protocol import StepBatch, TrainSegment, UpdateStats
from palimpsest.errors import RunError
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.training.optimizer_steps import SkipWatch, moves
from palimpsest.types import Grade, Problem, Trajectory
from support.fakes import HashLearner, YesGrader, small_config
from support.forests import masked
from support.training import train


class ConstantGrader:
    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        return Grade(1.0)


def with_section(config: RunConfig, **sections: Any) -> RunConfig:
    values = config.model_dump(mode="json")
    return RunConfig.model_validate({**values, **{key: {**values[key], **own} for key, own in sections.items()}})


def one_row(advantages: tuple[float, ...], mask: tuple[bool, ...]) -> StepBatch:
    segment = masked(range(len(mask)), mask, (0.0,) * len(mask))
    trained = len(segment.positions)
    return StepBatch((TrainSegment(segment, tuple(compress(advantages, mask)), (1.0,) * trained),))


def test_a_step_of_equal_rewards_leaves_weights_and_optimizer_as_they_were(tmp_path: Path) -> None:
    trainer, _ = train(tmp_path / "run", small_config(max_steps=2), grader=ConstantGrader())
    assert (trainer.learner.version, trainer.learner.weights) == (0, "")
    assert [row["optim/steps_left_out"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [1.0, 1.0]


@pytest.mark.parametrize("term", [{"kl_loss_coef": 0.001}, {"entropy_coeff": -0.01}])
def test_a_kl_or_entropy_term_is_learnt_from_though_rewards_are_equal(tmp_path: Path, term: dict[str, float]) -> None:
    config = with_section(small_config(max_steps=2), loss=term)
    trainer, _ = train(tmp_path / "run", config, grader=ConstantGrader())
    assert trainer.learner.version == 2


def test_an_advantage_counts_where_its_token_is_trained() -> None:
    assert not moves(one_row((1.0, 0.0), (False, True)), LossConfig())
    assert moves(one_row((0.0, -0.5), (False, True)), LossConfig())
    assert not moves(StepBatch(()), LossConfig(kl_loss_coef=1.0))


class Overflows(HashLearner):
    """Its gradients are not finite in the calls named."""

    def __init__(self, calls: range) -> None:
        super().__init__()
        self.calls, self.asked = calls, 0

    def step(self, batch: StepBatch) -> UpdateStats:
        self.asked += 1
        if self.asked not in self.calls:
            return super().step(batch)
        return UpdateStats(loss=math.nan, tokens=1, token_sums={"kl": math.inf}, skipped=True, skipped_total=self.asked)


def test_the_first_gradient_that_is_not_finite_is_told_with_what_was_not(tmp_path: Path) -> None:
    _, warnings = train(tmp_path / "run", learner=Overflows(range(2, 4)))
    (warning,) = [text for text in warnings if "not finite" in text]
    assert warning.startswith("step 2: the gradient of 1 of 1 optimizer steps is not finite (loss nan, kl inf)")


def test_gradients_that_stay_not_finite_end_the_run_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"step 12: 10 optimizer steps in a row .*loss nan, kl inf"):
        train(tmp_path / "run", small_config(max_steps=12), learner=Overflows(range(2, 20)))


def test_the_count_goes_on_after_a_resume(tmp_path: Path) -> None:
    train(tmp_path / "run", small_config(max_steps=8), learner=Overflows(range(20)))
    with pytest.raises(RunError, match="step 11: 10 optimizer steps in a row"):
        train(tmp_path / "run", small_config(max_steps=12), learner=Overflows(range(20)), resume=True)


def test_one_good_step_begins_the_count_anew() -> None:
    watch = SkipWatch(lambda _: None)
    bad, good = UpdateStats(loss=math.inf, skipped=True), UpdateStats(loss=0.1)
    watch.see(1, [bad] * 9 + [good] + [bad] * 9)
    watch.see(2, [good, bad])
    assert watch.in_a_row == 1
    with pytest.raises(RunError, match=r"lower optim\.learning_rate"):
        watch.see(3, [bad] * 9)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_a_grader_gives_that_is_no_finite_number_is_ungraded_with_the_reason(tmp_path: Path, value: float) -> None:
    class Sometimes(YesGrader):
        def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
            grade = super().grade(problem, trajectory)
            return replace(grade, value=value) if trajectory.rollout == 0 else grade

    trainer, warnings = train(tmp_path / "run", small_config(max_steps=2), grader=Sometimes())
    row, _ = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert row["reward/ungraded"] == 2
    (told,) = (warning for warning in warnings if "have no grade" in warning)
    assert told.startswith("step 1: 2 of ")
    assert f"2 of 2: Sometimes gave {value} as value" in told
    assert math.isfinite(row["reward/mean"])
    assert trainer.learner.version == 2
