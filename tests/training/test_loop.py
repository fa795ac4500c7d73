"""The training loop on fakes: what it trains on, what it writes, how it stops."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import LossConfig, RunConfig
from palimpsest.engines.protocol import StepBatch, UpdateStats
from palimpsest.errors import DataError, EngineError, ModelError, RunError, SamplerError
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.reward.answer_match import ConstraintLayer
from palimpsest.reward.grading import Reward
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.loggers import LoggerSet
from palimpsest.training.curriculum import Curriculum
from palimpsest.types import Grade, Outcome, Problem, Trajectory
from support.fakes import (
    HashLearner,
    LetterCodec,
    NumberedSource,
    SeedSampler,
    TwoTurnPolicy,
    YesGrader,
    small_config,
)
from support.training import train


def with_credit(config: RunConfig, **credit: Any) -> RunConfig:
    values = config.model_dump(mode="json")
    return RunConfig.model_validate({**values, "credit": {**values["credit"], **credit}})


def always_learnt(config: RunConfig) -> RunConfig:
    """With a KL term, so that groups of equal rewards are learnt from too."""
    return config.model_copy(update={"loss": LossConfig(kl_loss_coef=0.001)})


def bytes_of(path: Path) -> dict[str, bytes]:
    """Everything of a run that must repeat."""
    files = [path / "config.yaml", path / "metrics.jsonl", *path.glob("trajectories/*"), *path.glob("checkpoints/**/*")]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


def test_a_run_leaves_config_metrics_timings_trajectories_and_checkpoints(tmp_path: Path) -> None:
    trainer, _ = train(tmp_path / "run")
    assert trainer.finished.step == 6
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in read_rows(tmp_path / "run" / "timings.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-000004", "step-000006"]
    recording = read_groups(tmp_path / "run" / "trajectories" / "step-000003.jsonl.zst")
    assert [group.problem.id for group in recording.groups] == ["p2-0-0", "p2-0-1"]
    assert all(len(group.trajectories) == 4 for group in recording.groups)


def test_metrics_agree_with_the_recorded_trajectories(tmp_path: Path) -> None:
    train(tmp_path / "run")
    for row in read_rows(tmp_path / "run" / "metrics.jsonl"):
        groups = read_groups(tmp_path / "run" / "trajectories" / f"step-{row['step']:06d}.jsonl.zst").groups
        rewards = [float(t.answer == "yes") for group in groups for t in group.trajectories]
        assert row["reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
        assert row["outcome/answered"] == len(rewards)
        mixed = [len({t.answer for t in group.trajectories}) > 1 for group in groups]
        assert row["groups/with_signal"] == pytest.approx(sum(mixed) / len(mixed))


def test_metrics_hold_no_clock_and_timings_do(tmp_path: Path) -> None:
    train(tmp_path / "run")
    metrics, timings = (read_rows(tmp_path / "run" / name)[0] for name in ("metrics.jsonl", "timings.jsonl"))
    assert not [name for name in metrics if name.endswith("_s")]
    assert {"rollout_s", "learn_s", "rollout_tokens_per_s", "rss_mb", "policy/learner_s"} <= timings.keys()
    assert metrics["policy/kl"] == pytest.approx(0.25)


def test_two_runs_of_one_configuration_are_byte_identical(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tmp_path / name)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("calls", [1, 9, 30, 50, 70])
def test_a_run_killed_in_any_step_resumes_to_the_same_bytes(tmp_path: Path, calls: int) -> None:
    class DiesLater(SeedSampler):
        async def generate(self, prompt_ids: Any, params: Any, **options: Any) -> Any:
            if len(self.calls) == calls:
                raise Killed
            return await super().generate(prompt_ids, params, **options)

    config = curriculum_config()
    learner = HashLearner()
    train(tmp_path / "whole", config)
    with pytest.raises(Killed):
        train(tmp_path / "run", config, sampler=DiesLater(learner=learner), learner=learner)
    train(tmp_path / "run", config, resume=True)
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")


def curriculum_config() -> RunConfig:
    values = small_config().model_dump(mode="json")
    lengths = {"chunks": [1, 2, 4], "advance_at": 0.4}
    return RunConfig.model_validate({**values, "data": {"curriculum": lengths}})


def test_documents_grow_when_the_reward_is_reached_and_a_resume_knows_the_length(tmp_path: Path) -> None:
    config = curriculum_config()
    train(tmp_path / "run", config)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert config.data.curriculum is not None
    expected, model = [], Curriculum(config.data.curriculum)
    for row in rows:
        expected.append(model.size)
        model.update(row["reward/mean"])
    assert [row["curriculum/chunks"] for row in rows] == expected
    assert len(set(expected)) > 1


class GivesUpOnNo(TwoTurnPolicy):
    """An answer that is wrong is none: its episodes run out of turns."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        said = await super().run(problem, model)
        return said if said.text == "yes" else Answered(said.text, Outcome.OUT_OF_TURNS)


def test_a_penalty_for_broken_limits_leaves_the_curriculum_as_it_is_without(tmp_path: Path) -> None:
    train(tmp_path / "plain", curriculum_config(), policy=GivesUpOnNo())
    train(
        tmp_path / "run", curriculum_config(), policy=GivesUpOnNo(), grader=Reward(YesGrader(), (ConstraintLayer(0.5),))
    )
    plain, run = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("plain", "run"))
    sizes = [row["curriculum/chunks"] for row in plain]
    assert [row["curriculum/chunks"] for row in run] == sizes
    assert [row["grade/outcome"] for row in run] == [row["reward/mean"] for row in plain]
    assert len(set(sizes)) > 1


def test_a_finished_run_resumed_with_more_steps_goes_on_as_if_it_had_never_ended(tmp_path: Path) -> None:
    train(tmp_path / "long", small_config(max_steps=6))
    train(tmp_path / "run", small_config(max_steps=3))
    trainer, _ = train(tmp_path / "run", small_config(max_steps=6), resume=True)
    assert trainer.learner.version == 6
    long, run = bytes_of(tmp_path / "long"), bytes_of(tmp_path / "run")
    assert run["metrics.jsonl"] == long["metrics.jsonl"]
    assert run["checkpoints/step-000006/model.safetensors"] == long["checkpoints/step-000006/model.safetensors"]


def test_a_damaged_newest_checkpoint_costs_steps_but_not_the_result(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    train(tmp_path / "run", small_config(max_steps=4))
    weights = tmp_path / "run" / "checkpoints" / "step-000004" / "model.safetensors"
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    _, warnings = train(tmp_path / "run", resume=True)
    assert "step-000004" in warnings[-1]
    assert "using the previous checkpoint" in warnings[-1]
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")


class SignalsItself(NumberedSource):
    """A user presses Ctrl-C (or a scheduler sends SIGTERM) in the second step."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        if step == 1:  # counted from 0
            os.kill(os.getpid(), self.number)
        return super().problems(step=step, count=count, round=round, size=size)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_finishes_the_step_and_saves_and_the_run_resumes_to_the_same_bytes(
    tmp_path: Path, number: Any
) -> None:
    config = small_config(save_steps=6, save_total_limit=1)
    train(tmp_path / "whole", config)
    trainer, _ = train(tmp_path / "run", config, source=SignalsItself(number))
    assert (trainer.finished.step, trainer.finished.interrupted) == (2, True)
    assert trainer.finished.checkpoint.name == "step-000002"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    train(tmp_path / "run", config, resume=True)
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")


class ConstantGrader:
    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        return Grade(1.0)


def test_steps_without_any_signal_are_warned_of_and_the_run_goes_on(tmp_path: Path) -> None:
    trainer, warnings = train(tmp_path / "run", grader=ConstantGrader())
    assert trainer.finished.step == 6
    silent, unchanged = warnings
    assert "for 5 steps no group had different rewards" in silent
    assert "no group had a signal in any step, so training did not change the weights" in unchanged
    _, warnings = train(tmp_path / "learnt", small_config(max_steps=2))
    assert warnings == []


class RoundsWithoutSignal:
    """Groups of round 0 all succeed; in later rounds the answer decides."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        first = problem.id.split("-")[1] == "0"
        return Grade(1.0 if first else float(trajectory.rollout % 2))


def test_dynamic_sampling_refills_from_the_next_round_and_trains_on_full_batches(tmp_path: Path) -> None:
    config = with_credit(small_config(max_steps=1), dynamic_sampling={"max_refills": 2})
    trainer, _ = train(tmp_path / "run", config, grader=RoundsWithoutSignal())
    row = read_rows(tmp_path / "run" / "metrics.jsonl")[0]
    groups = read_groups(tmp_path / "run" / "trajectories" / "step-000001.jsonl.zst").groups
    assert [group.problem.id for group in groups] == ["p0-0-0", "p0-0-1", "p0-1-0", "p0-1-1"]
    assert (row["groups/played"], row["groups/with_signal"], row["credit/groups_dropped"]) == (4, 0.5, 2)
    assert row["reward/mean"] == 0.75  # of all that was played, not of what was kept
    assert trainer.learner.version == 1


def test_refills_are_bounded_and_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_credit(small_config(max_steps=1), dynamic_sampling={"max_refills": 2})
    told: list[str] = []
    monkeypatch.setattr(LoggerSet, "message", lambda _, text: told.append(text))
    trainer, _ = train(tmp_path / "run", config, grader=ConstantGrader())
    assert "0 of 2 groups have a signal after 2 refills: each group has equal rewards" in told[0]
    assert "training on those" not in told[0]
    event = next(row for row in read_rows(tmp_path / "run" / "events.jsonl") if row["kind"] == "refills_used_up")
    assert (event["kept"], event["wanted"], event["played"]) == (0, 2, 6)
    assert trainer.learner.version == 0  # nothing to learn from: no optimizer step
    assert read_rows(tmp_path / "run" / "metrics.jsonl")[0]["optim/steps_left_out"] == 1


def test_the_learner_gets_all_optimizer_steps_of_a_rollout_batch_at_once_and_publishes_after_them(
    tmp_path: Path,
) -> None:
    calls: list[str] = []

    class Watching(HashLearner):
        async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
            calls.append(f"update {len(steps)}")
            return await super().update(steps)

        async def publish(self) -> int:
            calls.append("publish")
            return await super().publish()

    train(tmp_path / "run", always_learnt(small_config(max_steps=1, num_minibatches=2)), learner=Watching())
    assert calls == ["publish", "update 2", "publish"]  # first what it begins with


def test_a_problem_that_breaks_a_budget_ends_the_run_before_it_is_played(tmp_path: Path) -> None:
    class Strict(TwoTurnPolicy):
        def admit(self, problem: Problem, codec: Any) -> None:
            if problem.id.startswith("p3"):
                raise DataError(f"problem {problem.id}: its question is too long")

    config = small_config(save_steps=6)
    with pytest.raises(DataError, match="problem p3-0-0"):
        train(tmp_path / "run", config, policy=Strict())
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000003"]


def test_an_error_after_an_optimizer_step_saves_nothing_that_mixes_two_steps(tmp_path: Path) -> None:
    class FailsBetween(HashLearner):
        def step(self, batch: StepBatch) -> UpdateStats:
            if self.version == 5:  # the second of two optimizer steps of step 3
                raise ModelError("a segment is longer than the context")
            return super().step(batch)

    config = always_learnt(small_config(save_steps=6, num_minibatches=2))
    with pytest.raises(ModelError):
        train(tmp_path / "run", config, learner=FailsBetween())
    assert not (tmp_path / "run" / "checkpoints").exists()


class AlwaysDown(SeedSampler):
    async def generate(self, prompt_ids: Any, params: Any, *, session: str | None = None) -> Any:
        raise SamplerError("connection refused")


def test_a_sampler_that_is_down_ends_the_run_with_the_reason_and_never_trains_on_zeros(tmp_path: Path) -> None:
    learner = HashLearner()
    with pytest.raises(RunError, match=r"step 1: no episode has a grade; 8 of 8: .*connection refused"):
        train(tmp_path / "run", small_config(), sampler=AlwaysDown(), learner=learner)
    assert learner.version == 0


def test_a_run_that_ends_on_an_outage_has_saved_the_step_before(tmp_path: Path) -> None:
    class GoesDown(SeedSampler):
        async def generate(self, prompt_ids: Any, params: Any, **options: Any) -> Any:
            if len(self.calls) >= 48:  # three steps of 2 x 4 episodes of 2 turns
                raise SamplerError("gone")
            return await super().generate(prompt_ids, params, **options)

    config, learner = small_config(save_steps=6, save_total_limit=1), HashLearner()
    train(tmp_path / "whole", config)
    with pytest.raises(RunError, match="step 4"):
        train(tmp_path / "run", config, sampler=GoesDown(learner=learner), learner=learner)
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000003"]
    train(tmp_path / "run", config, resume=True)
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("second", [EngineError("a rank was lost"), OSError("the disk is full")])
def test_a_checkpoint_that_fails_too_stands_beside_the_error_that_ended_the_run(
    tmp_path: Path, second: Exception
) -> None:
    class Down(HashLearner):
        async def save(self, folder: Path) -> dict[str, str]:
            raise second

    class Strict(TwoTurnPolicy):
        def admit(self, problem: Problem, codec: Any) -> None:
            if problem.id.startswith("p3"):
                raise DataError(f"problem {problem.id}: its question is too long")

    with pytest.raises(DataError) as caught:  # no EngineError, with which cluster.max_restarts would begin again
        train(tmp_path / "run", small_config(save_steps=6), policy=Strict(), learner=Down())
    first, _, beside = str(caught.value).partition("; writing the checkpoint of step 3 failed too: ")
    assert first == "problem p3-0-0: its question is too long"
    assert second.args[-1] in beside


def test_episodes_that_failed_are_not_told_as_rewards_that_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(LoggerSet, "message", lambda _, text: told.append(text))
    config = with_credit(small_config(max_steps=1), dynamic_sampling={"max_refills": 2})
    with pytest.raises(RunError, match="connection refused"):
        train(tmp_path / "all", config, sampler=AlwaysDown())
    assert not any("rewards" in text for text in told)

    class OftenDown(SeedSampler):
        async def generate(self, prompt_ids: Any, params: Any, **options: Any) -> Any:
            if not (options["session"] or "/0").endswith("/0"):  # all but one of each group
                raise SamplerError("connection refused")
            return await super().generate(prompt_ids, params, **options)

    train(tmp_path / "some", config, sampler=OftenDown())
    (line,) = [text for text in told if "rewards" in text]
    assert "have no grade (" in line
    assert "connection refused" in line


def test_a_policy_that_always_raises_is_named(tmp_path: Path) -> None:
    class Faulty(MemoryPolicy):
        async def run(self, problem: Problem, model: Model) -> Answered:
            raise KeyError("memory")

    with pytest.raises(RunError, match=r"ended as policy_failed \(KeyError: 'memory' \(.*test_loop.py:\d+\)\)"):
        train(tmp_path / "run", policy=Faulty())


def test_evaluation_runs_when_due_and_its_metrics_stand_in_the_row(tmp_path: Path) -> None:
    steps: list[int] = []

    async def evaluate(step: int) -> dict[str, float]:
        steps.append(step)
        return {"accuracy": step / 10}

    train(tmp_path / "run", small_config(max_steps=5, eval_steps=2), evaluate=evaluate)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert steps == [2, 4, 5]
    assert [row.get("eval/accuracy") for row in rows] == [None, 0.2, None, 0.4, 0.5]


def test_record_steps_thins_the_trajectories_out(tmp_path: Path) -> None:
    train(tmp_path / "run", small_config(record_steps=3))
    assert len(list((tmp_path / "run" / "trajectories").glob("*.zst"))) == 2


def test_the_codec_stub_loses_nothing() -> None:
    codec = LetterCodec()
    assert codec.decode(codec.encode("yes")) == "yes"
