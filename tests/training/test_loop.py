"""The training loop on fakes: its files, resumes, evaluations, and the ends of a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import RunConfig
from palimpsest.engines.protocol import StepBatch, UpdateStats
from palimpsest.errors import ConfigError, DataError, EngineError, ModelError, RunError, SamplerError
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.reward.answer_match import ConstraintLayer
from palimpsest.reward.grading import Reward
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.checkpoint import verify
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.resume_rules import reached
from palimpsest.training.curriculum import Curriculum
from palimpsest.types import Outcome, Problem
from support.fakes import (
    ConstantGrader,
    HashLearner,
    Killed,
    NumberedSource,
    SeedSampler,
    TwoTurnPolicy,
    YesGrader,
    changed,
    small_config,
)
from support.training import checkpoints, run_files, train


def always_moving(config: RunConfig) -> RunConfig:
    """With a KL term, so that groups of equal rewards take an optimizer step too."""
    return changed(config, loss={"kl_loss_coef": 0.001})


def rows_of(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return list(read_rows(run / name))


# ---- Files of a run ------------------------------------------------------------------------------------------


def test_a_run_leaves_config_metrics_timings_trajectories_and_checkpoints(tmp_path: Path) -> None:
    trainer, warnings = train(tmp_path / "run")
    assert (trainer.finished.step, warnings) == (6, [])
    metrics, timings = (rows_of(tmp_path / "run", name) for name in ("metrics.jsonl", "timings.jsonl"))
    assert [row["step"] for row in metrics] == [row["step"] for row in timings] == [1, 2, 3, 4, 5, 6]
    assert not [name for name in metrics[0] if name.endswith("_s")]
    assert {"rollout_s", "learn_s", "rollout_tokens_per_s", "rss_mb", "policy/learner_s"} <= timings[0].keys()
    assert metrics[0]["policy/kl"] == pytest.approx(0.25)
    assert checkpoints(tmp_path / "run") == ["step-000004", "step-000006"]
    for row in metrics:
        groups = read_groups(tmp_path / "run" / "trajectories" / f"step-{row['step']:06d}.jsonl.zst").groups
        assert [group.problem.id for group in groups] == [f"p{row['step'] - 1}-0-{i}" for i in range(2)]
        assert all(len(group.trajectories) == 4 for group in groups)
        rewards = [float(t.answer == "yes") for group in groups for t in group.trajectories]
        assert row["reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
        assert row["outcome/answered"] == len(rewards)
        mixed = [len({t.answer for t in group.trajectories}) > 1 for group in groups]
        assert row["groups/with_signal"] == pytest.approx(sum(mixed) / len(mixed))


def test_two_runs_of_one_configuration_are_byte_identical(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tmp_path / name)
    assert run_files(tmp_path / "a") == run_files(tmp_path / "b")


def test_record_steps_thins_out_the_trajectories(tmp_path: Path) -> None:
    train(tmp_path / "run", small_config(record_steps=3))
    assert len(list((tmp_path / "run" / "trajectories").glob("*.zst"))) == 2


def test_the_learner_gets_all_optimizer_steps_of_a_batch_at_once_and_publishes_after_them(tmp_path: Path) -> None:
    calls: list[str] = []

    class Watching(HashLearner):
        async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
            calls.append(f"update {len(steps)}")
            return await super().update(steps)

        async def publish(self) -> int:
            calls.append("publish")
            return await super().publish()

    train(tmp_path / "run", always_moving(small_config(max_steps=1, num_minibatches=2)), learner=Watching())
    assert calls == ["publish", "update 2", "publish"]  # the first weights are published before any step


# ---- Resumes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 30, 70])
def test_a_run_killed_in_any_step_resumes_to_the_same_bytes(tmp_path: Path, calls: int) -> None:
    config, learner = curriculum_config(), HashLearner()
    train(tmp_path / "whole", config)
    with pytest.raises(Killed):
        train(tmp_path / "run", config, sampler=SeedSampler(learner=learner, dies_after=calls), learner=learner)
    train(tmp_path / "run", config, resume=True)
    assert run_files(tmp_path / "run") == run_files(tmp_path / "whole")


def test_a_finished_run_continues_with_more_steps(tmp_path: Path) -> None:
    train(tmp_path / "long", small_config(max_steps=6))
    train(tmp_path / "run", small_config(max_steps=3))
    trainer, _ = train(tmp_path / "run", small_config(max_steps=6), resume=True)
    assert trainer.learner.version == 6
    long, run = run_files(tmp_path / "long"), run_files(tmp_path / "run")
    for name in ("metrics.jsonl", "checkpoints/step-000006/model.safetensors"):
        assert run[name] == long[name]


def test_a_budget_of_computed_tokens_ends_a_run_like_its_last_step(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole")
    rows = rows_of(tmp_path / "whole")
    totals = [row["tokens/computed_total"] for row in rows]
    assert whole.finished.step == len(rows) == 6
    by_hand = 0
    for row, total in zip(rows, totals, strict=True):
        record = read_groups(tmp_path / "whole" / "trajectories" / f"step-{row['step']:06d}.jsonl.zst")
        for episode in (episode for group in record.groups for episode in group.trajectories):
            sequences = [(*turn.prompt_ids, *turn.completion.token_ids) for turn in episode.turns]
            by_hand += len({ids[: end + 1] for ids in sequences for end in range(len(ids))})
        by_hand += row["policy/physical_tokens"]
        assert by_hand == total
    budget = {"max_tokens": int(totals[2]) - 1, "eval_steps": 5}
    ended, _ = train(tmp_path / "run", small_config(**budget), evaluate=scores)
    assert (ended.finished.step, ended.finished.interrupted) == (3, False)
    assert [row["tokens/computed_total"] for row in rows_of(tmp_path / "run")] == totals[:3]
    assert [row["step"] for row in rows_of(tmp_path / "run") if "eval/accuracy" in row] == [3]
    assert [reached(small_config(**budget), step, rows) for step in (2, 3)] == [False, True]
    again, _ = train(tmp_path / "run", small_config(**budget), evaluate=scores, resume=True)
    assert again.finished.step == 3
    more = budget | {"max_tokens": int(totals[3])}
    longer, _ = train(tmp_path / "run", small_config(**more), evaluate=scores, resume=True)
    assert longer.finished.step == 4


def test_a_damaged_newest_checkpoint_costs_steps_but_not_the_result(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    train(tmp_path / "run", small_config(max_steps=4))
    weights = tmp_path / "run" / "checkpoints" / "step-000004" / "model.safetensors"
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    _, warnings = train(tmp_path / "run", resume=True)
    assert "step-000004" in warnings[-1]
    assert "using the previous checkpoint" in warnings[-1]
    assert run_files(tmp_path / "run") == run_files(tmp_path / "whole")


class SignalsItself(NumberedSource):
    """Sends a signal to the process in the second step."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        if step == 1:  # counted from 0
            os.kill(os.getpid(), self.number)
        return super().problems(step=step, count=count, round=round, size=size)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_finishes_and_saves_the_step_and_a_resume_gives_the_same_bytes(tmp_path: Path, number: Any) -> None:
    config = small_config(save_steps=6, save_total_limit=1)
    train(tmp_path / "whole", config)
    trainer, _ = train(tmp_path / "run", config, source=SignalsItself(number))
    assert (trainer.finished.step, trainer.finished.interrupted) == (2, True)
    assert trainer.finished.checkpoint.name == "step-000002"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    train(tmp_path / "run", config, resume=True)
    assert run_files(tmp_path / "run") == run_files(tmp_path / "whole")


# ---- Curriculum ----------------------------------------------------------------------------------------------


def curriculum_config() -> RunConfig:
    return changed(small_config(), data={"curriculum": {"chunks": [1, 2, 4], "advance_at": 0.4}})


class GivesUpOnNo(TwoTurnPolicy):
    """Its episodes run out of turns unless they answer yes."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        answered = await super().run(problem, model)
        return answered if answered.text == "yes" else Answered(answered.text, Outcome.OUT_OF_TURNS)


def test_documents_grow_with_the_reward_before_penalties(tmp_path: Path) -> None:
    config, grader = curriculum_config(), Reward(YesGrader(), (ConstraintLayer(0.5),))
    train(tmp_path / "plain", config, policy=GivesUpOnNo())
    train(tmp_path / "run", config, policy=GivesUpOnNo(), grader=grader)
    plain, run = rows_of(tmp_path / "plain"), rows_of(tmp_path / "run")
    assert config.data.curriculum is not None
    sizes, model = [], Curriculum(config.data.curriculum)
    for row in plain:
        sizes.append(model.size)
        model.update(row["reward/mean"])
    assert [row["curriculum/chunks"] for row in plain] == [row["curriculum/chunks"] for row in run] == sizes
    assert [row["grade/outcome"] for row in run] == [row["reward/mean"] for row in plain]
    assert len(set(sizes)) > 1


# ---- Errors that end a run -----------------------------------------------------------------------------------


class Strict(TwoTurnPolicy):
    def admit(self, problem: Problem, codec: Any) -> None:
        if problem.id.startswith("p3"):
            raise DataError(f"problem {problem.id}: its question is too long")


def test_a_problem_that_breaks_a_budget_ends_the_run_before_it_is_played(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="problem p3-0-0"):
        train(tmp_path / "run", small_config(save_steps=6), policy=Strict())
    assert checkpoints(tmp_path / "run") == ["step-000003"]


@pytest.mark.parametrize("second", [EngineError("a rank was lost"), OSError("the disk is full")])
def test_the_error_of_a_failed_checkpoint_is_added_to_the_first_error(tmp_path: Path, second: Exception) -> None:
    class Down(HashLearner):
        async def save(self, folder: Path) -> dict[str, str]:
            raise second

    with pytest.raises(DataError) as caught:  # no EngineError, which cluster.max_restarts would restart after
        train(tmp_path / "run", small_config(save_steps=6), policy=Strict(), learner=Down())
    first, _, added = str(caught.value).partition("; writing the checkpoint of step 3 failed too: ")
    assert first == "problem p3-0-0: its question is too long"
    assert second.args[-1] in added


def test_an_error_between_optimizer_steps_saves_no_checkpoint_that_mixes_two_steps(tmp_path: Path) -> None:
    class FailsBetween(HashLearner):
        def step(self, batch: StepBatch) -> UpdateStats:
            if self.version == 5:  # the second of two optimizer steps of step 3
                raise ModelError("a segment is longer than the context")
            return super().step(batch)

    with pytest.raises(ModelError):
        train(tmp_path / "run", always_moving(small_config(save_steps=6, num_minibatches=2)), learner=FailsBetween())
    assert not (tmp_path / "run" / "checkpoints").exists()


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
    assert checkpoints(tmp_path / "run") == ["step-000003"]
    train(tmp_path / "run", config, resume=True)
    assert run_files(tmp_path / "run") == run_files(tmp_path / "whole")


def test_a_policy_that_always_raises_ends_the_run_with_its_error(tmp_path: Path) -> None:
    class Faulty(MemoryPolicy):
        async def run(self, problem: Problem, model: Model) -> Answered:
            raise KeyError("memory")

    with pytest.raises(RunError, match=r"ended as policy_failed \(KeyError: 'memory' \(.*test_loop.py:\d+\)\)"):
        train(tmp_path / "run", policy=Faulty())


def test_steps_without_any_signal_cause_warnings_and_the_run_continues(tmp_path: Path) -> None:
    trainer, warnings = train(tmp_path / "run", small_config(group_size=16), grader=ConstantGrader())
    assert trainer.finished.step == 6
    assert [warning.code for warning in warnings] == ["no_signal_at_start", "no_signal", "no_signal_at_all"]
    assert (warnings[0].values["groups"], warnings[1].values["steps"]) == (2, 5)


def test_an_interrupted_run_is_not_told_that_it_had_no_signal_at_all(tmp_path: Path) -> None:
    trainer, warnings = train(tmp_path / "run", grader=ConstantGrader(), source=SignalsItself(signal.SIGTERM))
    assert (trainer.finished.interrupted, trainer.finished.step) == (True, 2)
    assert "no_signal_at_all" not in [warning.code for warning in warnings]


# ---- Evaluations and the best checkpoint ---------------------------------------------------------------------

SCORES = {0: 0.1, 1: 0.2, 2: 0.7, 3: 0.4, 4: 0.7, 5: 0.3, 6: 0.5}
"""Scores by step; the second 0.7 is not better than the first."""


async def scores(step: int) -> Mapping[str, float]:
    return {"accuracy": SCORES[step], "ungraded": 0.0}


def best(run: Path) -> tuple[int, bytes]:
    folder = run / "checkpoints" / "best"
    return verify(folder).step, (folder / "model.safetensors").read_bytes()


def test_evaluation_runs_when_due_and_its_metrics_are_in_the_row(tmp_path: Path) -> None:
    train(tmp_path / "run", small_config(max_steps=5, eval_steps=2), evaluate=scores)
    evaluated = {2: 0.7, 4: 0.7, 5: 0.3}
    assert [row.get("eval/accuracy") for row in rows_of(tmp_path / "run")] == [evaluated.get(i) for i in range(1, 6)]


def test_the_best_checkpoint_is_saved_and_a_resume_saves_the_same(tmp_path: Path) -> None:
    config = small_config(eval_steps=1, metric_for_best_model="accuracy", save_total_limit=1)
    train(tmp_path / "whole", config, evaluate=scores)
    at_two, _ = train(tmp_path / "two", small_config(max_steps=2))
    assert best(tmp_path / "whole") == (2, at_two.learner.weights.encode())
    assert checkpoints(tmp_path / "whole") == ["best", "step-000006"]
    events = [row for row in rows_of(tmp_path / "whole", "events.jsonl") if row["kind"] == "best"]
    assert [(row["step"], row["value"]) for row in events if row["metric"] == "accuracy"] == [(1, 0.2), (2, 0.7)]
    learner = HashLearner()
    sampler = SeedSampler(learner=learner, dies_after=60)  # in step 4
    with pytest.raises(Killed):
        train(tmp_path / "cut", config, evaluate=scores, sampler=sampler, learner=learner)
    train(tmp_path / "cut", config, evaluate=scores, resume=True)
    assert best(tmp_path / "cut") == best(tmp_path / "whole")
    assert run_files(tmp_path / "cut")["metrics.jsonl"] == run_files(tmp_path / "whole")["metrics.jsonl"]


def test_the_weights_before_training_may_be_the_best(tmp_path: Path) -> None:
    async def worse(step: int) -> Mapping[str, float]:
        return {"accuracy": -float(step)}

    options: dict[str, Any] = {"eval_steps": 1, "metric_for_best_model": "accuracy", "eval_on_start": True}
    train(tmp_path / "run", small_config(**options), evaluate=worse)
    assert best(tmp_path / "run") == (0, b"")
    first, *_ = rows_of(tmp_path / "run")
    assert (first["eval/accuracy"], "reward/mean" in first) == (0, False)
    train(tmp_path / "run", small_config(**options, max_steps=7), evaluate=worse, resume=True)
    assert [row["step"] for row in rows_of(tmp_path / "run")] == list(range(8))


def test_an_unknown_metric_for_the_best_checkpoint_ends_the_run_after_saving(tmp_path: Path) -> None:
    reason = r"train\.metric_for_best_model=f2: unknown evaluation metric; choose one of accuracy"
    with pytest.raises(RunError, match=reason):
        train(tmp_path / "run", small_config(eval_steps=1, metric_for_best_model="f2"), evaluate=scores)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric_for_best_model": "accuracy"}, r"needs evaluations: set train\.eval_steps"),
        ({"eval_on_start": True}, r"needs evaluations: set train\.eval_steps"),
        ({"eval_steps": 1, "metric_for_best_model": "ungraded"}, "=ungraded would keep the worst"),
        ({"eval_steps": 1, "metric_for_best_model": "documents_cut"}, "=documents_cut would keep the worst"),
    ],
)
def test_impossible_choices_of_the_best_checkpoint_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        small_config(**options)
