"""Skipped optimizer steps, and gradients that are not finite."""

from __future__ import annotations

import math
from itertools import compress
from pathlib import Path

import pytest

from palimpsest.config.schema import LossConfig
from palimpsest.engines.protocol import StepBatch, TrainSegment, UpdateStats
from palimpsest.errors import RunError
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.training.optimizer_steps import SkipWatch, moves
from support.fakes import ConstantGrader, HashLearner, changed, small_config
from support.forests import masked
from support.training import train


def one_row(advantages: tuple[float, ...], mask: tuple[bool, ...]) -> StepBatch:
    segment = masked(range(len(mask)), mask, (0.0,) * len(mask))
    trained = len(segment.positions)
    return StepBatch((TrainSegment(segment, tuple(compress(advantages, mask)), (1.0,) * trained),))


def test_a_step_of_equal_rewards_leaves_weights_and_optimizer_unchanged(tmp_path: Path) -> None:
    trainer, _ = train(tmp_path / "run", small_config(max_steps=2), grader=ConstantGrader())
    assert (trainer.learner.version, trainer.learner.weights) == (0, "")
    assert [row["optim/steps_left_out"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [1.0, 1.0]


@pytest.mark.parametrize("term", [{"kl_loss_coef": 0.001}, {"entropy_coeff": -0.01}])
def test_a_kl_or_entropy_term_takes_steps_with_equal_rewards(tmp_path: Path, term: dict[str, float]) -> None:
    config = changed(small_config(max_steps=2), loss=term)
    trainer, _ = train(tmp_path / "run", config, grader=ConstantGrader())
    assert trainer.learner.version == 2


def test_an_advantage_counts_where_its_token_is_trained() -> None:
    assert not moves(one_row((1.0, 0.0), (False, True)), LossConfig())
    assert moves(one_row((0.0, -0.5), (False, True)), LossConfig())
    assert not moves(StepBatch(()), LossConfig(kl_loss_coef=1.0))


class Overflows(HashLearner):
    """Its gradients are not finite in these calls."""

    def __init__(self, calls: range) -> None:
        super().__init__()
        self.overflows, self.calls = calls, 0

    def step(self, batch: StepBatch) -> UpdateStats:
        self.calls += 1
        if self.calls not in self.overflows:
            return super().step(batch)
        return UpdateStats(loss=math.nan, tokens=1, token_sums={"kl": math.inf}, skipped=True, skipped_total=self.calls)


def test_the_first_gradient_that_is_not_finite_causes_a_warning(tmp_path: Path) -> None:
    _, warnings = train(tmp_path / "run", learner=Overflows(range(2, 4)))
    (warning,) = [text for text in warnings if "not finite" in text]
    assert warning.startswith("step 2: the gradient of 1 of 1 optimizer steps is not finite (loss nan, kl inf)")


def test_ten_gradients_in_a_row_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"step 12: 10 optimizer steps in a row .*loss nan, kl inf"):
        train(tmp_path / "run", small_config(max_steps=12), learner=Overflows(range(2, 20)))


def test_the_count_continues_after_a_resume_and_restarts_after_a_finite_gradient(tmp_path: Path) -> None:
    train(tmp_path / "run", small_config(max_steps=8), learner=Overflows(range(20)))
    with pytest.raises(RunError, match="step 11: 10 optimizer steps in a row"):
        train(tmp_path / "run", small_config(max_steps=12), learner=Overflows(range(20)), resume=True)
    watch = SkipWatch(lambda _: None)
    bad, good = UpdateStats(loss=math.inf, skipped=True), UpdateStats(loss=0.1)
    watch.see(1, [bad] * 9 + [good] + [bad] * 9)
    watch.see(2, [good, bad])
    assert watch.in_a_row == 1
    with pytest.raises(RunError, match=r"lower optim\.learning_rate"):
        watch.see(3, [bad] * 9)
