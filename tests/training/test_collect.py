"""Collecting a batch: refills of dynamic sampling, and episodes without a grade."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import RunError, SamplerError
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.loggers import LoggerSet
from palimpsest.types import Grade, Problem, Trajectory
from support.fakes import ConstantGrader, HashLearner, SeedSampler, YesGrader, changed, small_config
from support.training import train

REFILLS = changed(small_config(max_steps=1), credit={"dynamic_sampling": {"max_refills": 2}})


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Messages to the user."""
    texts: list[str] = []
    monkeypatch.setattr(LoggerSet, "message", lambda _, text: texts.append(text))
    return texts


class RoundsWithoutSignal:
    """Groups of round 0 all succeed; in later rounds every second rollout does."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        first = problem.id.split("-")[1] == "0"
        return Grade(1.0 if first else float(trajectory.rollout % 2))


def test_dynamic_sampling_refills_from_the_next_round_and_trains_on_full_batches(tmp_path: Path) -> None:
    trainer, _ = train(tmp_path / "run", REFILLS, grader=RoundsWithoutSignal())
    row = read_rows(tmp_path / "run" / "metrics.jsonl")[0]
    groups = read_groups(tmp_path / "run" / "trajectories" / "step-000001.jsonl.zst").groups
    assert [group.problem.id for group in groups] == ["p0-0-0", "p0-0-1", "p0-1-0", "p0-1-1"]
    assert (row["groups/played"], row["groups/with_signal"], row["credit/groups_dropped"]) == (4, 0.5, 2)
    assert row["reward/mean"] == 0.75  # of all groups, including dropped ones
    assert trainer.learner.version == 1


def test_refills_are_bounded_and_missing_groups_are_reported(tmp_path: Path, messages: list[str]) -> None:
    trainer, _ = train(tmp_path / "run", REFILLS, grader=ConstantGrader())
    assert "in 0 of 2 groups rewards differ (refills: 2): each group has equal rewards" in messages[0]
    assert "training on those" not in messages[0]
    event = next(row for row in read_rows(tmp_path / "run" / "events.jsonl") if row["kind"] == "refills_used_up")
    assert (event["kept"], event["wanted"], event["played"]) == (0, 2, 6)
    assert trainer.learner.version == 0
    assert read_rows(tmp_path / "run" / "metrics.jsonl")[0]["optim/steps_left_out"] == 1


class Down(SeedSampler):
    """Fails in all rollouts, or in all but one of each group."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self._always = always

    async def generate(self, prompt_ids: Any, params: Any, *, session: str | None = None) -> Any:
        if self._always or not (session or "/0").endswith("/0"):
            raise SamplerError("connection refused")
        return await super().generate(prompt_ids, params, session=session)


def test_a_sampler_that_is_down_ends_the_run_with_the_reason_and_no_optimizer_step(
    tmp_path: Path, messages: list[str]
) -> None:
    learner = HashLearner()
    with pytest.raises(RunError, match=r"step 1: no episode has a grade; 24 of 24: .*connection refused"):
        train(tmp_path / "run", REFILLS, sampler=Down(always=True), learner=learner)
    assert learner.version == 0
    assert not any("rewards" in text for text in messages)


def test_failed_episodes_are_reported_apart_from_equal_rewards(tmp_path: Path, messages: list[str]) -> None:
    train(tmp_path / "run", REFILLS, sampler=Down(always=False))
    (line,) = [text for text in messages if "rewards" in text]
    assert "have no grade (" in line
    assert "connection refused" in line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_grade_that_is_not_finite_counts_as_ungraded_with_the_reason(tmp_path: Path, value: float) -> None:
    class Sometimes(YesGrader):
        def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
            grade = super().grade(problem, trajectory)
            return replace(grade, value=value) if trajectory.rollout == 0 else grade

    trainer, warnings = train(tmp_path / "run", small_config(max_steps=2), grader=Sometimes())
    row, _ = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert row["reward/ungraded"] == 2
    (warning,) = (text for text in warnings if "have no grade" in text)
    assert warning.startswith("step 1: 2 of ")
    assert f"2 of 2: Sometimes gave {value} as value" in warning
    assert math.isfinite(row["reward/mean"])
    assert trainer.learner.version == 2
