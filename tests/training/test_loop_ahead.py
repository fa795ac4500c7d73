"""`train.max_off_policy_steps`: the weights of each batch, the checkpoints, and independence of timing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from palimpsest.config.schema import RunConfig
from palimpsest.engines.protocol import StepBatch, UpdateStats
from palimpsest.errors import CheckpointError, RunError
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.checkpoint import verify
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.resume_rules import changes
from palimpsest.runs.run_folder import open_run
from palimpsest.training.curriculum import Curriculum
from palimpsest.types import Completion, Grade, Problem, SamplingParams, StopReason, Trajectory
from support import training
from support.fakes import (
    HashLearner,
    Killed,
    NumberedSource,
    SeedSampler,
    YesGrader,
    changed,
    make_trainer,
    small_config,
)
from support.training import run_files

STEPS = 8


class PublishedSampler(SeedSampler):
    """Its words depend on the published weights, so that every mix of versions shows."""

    published = 0

    @property
    def version(self) -> int:
        return self.published

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, **options: Any) -> Completion:
        await super().generate(prompt_ids, params, **options)
        word = "yes" if (params.seed >> self.published % 8) % 2 else "no "
        return Completion((*map(ord, word), 0), (-0.5,) * 4, StopReason.STOP, self.published, self.published)


class PublishingLearner(HashLearner):
    """Learns in several turns of the event loop and publishes its weights to the sampler."""

    def __init__(self, sampler: PublishedSampler) -> None:
        super().__init__()
        self.sampler = sampler

    async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().update(steps)

    async def publish(self) -> int:
        self.sampler.published = self.version
        return self.version


def config(ahead: int, **train: Any) -> RunConfig:
    values = small_config(**{"max_steps": STEPS, "max_off_policy_steps": ahead, **train})
    curriculum = {"chunks": [1, 2, 4], "advance_at": 0.4}
    return changed(values, data={"curriculum": curriculum}, credit={"dynamic_sampling": {"max_refills": 1}})


def train(path: Path, settings: RunConfig, *, dies_after: int | None = None, **parts: Any) -> Any:
    """The report of the finished run."""
    sampler = parts.pop("sampler", None) or PublishedSampler(dies_after=dies_after)
    learner = parts.pop("learner", PublishingLearner)(sampler)
    trainer, _ = training.train(path, settings, sampler=sampler, learner=learner, **parts)
    return trainer.finished


def versions(path: Path) -> list[set[tuple[int, int]]]:
    """The first and last versions of all completions of each step."""
    steps = []
    for step in range(1, STEPS + 1):
        groups = read_groups(path / "trajectories" / f"step-{step:06d}.jsonl.zst").groups
        turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
        steps.append({(turn.completion.policy_version, turn.completion.last_policy_version) for turn in turns})
    return steps


@pytest.mark.parametrize("ahead", [0, 1, 2, STEPS + 1])
def test_batch_k_is_sampled_with_the_weights_after_step_k_minus_1_minus_ahead(tmp_path: Path, ahead: int) -> None:
    train(tmp_path / "run", config(ahead))
    expected = [max(0, k - 1 - ahead) for k in range(1, STEPS + 1)]
    assert versions(tmp_path / "run") == [{(version, version)} for version in expected]
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["policy/staleness"] for row in rows] == [k - 1 - expected[k - 1] for k in range(1, STEPS + 1)]


def test_a_step_learns_while_the_next_batch_is_collected(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []  # before and after each update

    class Counting(PublishingLearner):
        async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
            before = len(self.sampler.calls)
            stats = await super().update(steps)
            calls.append((before, len(self.sampler.calls)))
            return stats

    train(tmp_path / "alone", config(0), learner=Counting)
    assert len(calls) == STEPS
    assert all(before == after for before, after in calls)
    learning, first_batch = asyncio.Event(), calls[0][0]

    class SecondBatchWaitsForTheLearner(PublishedSampler):
        async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, **options: Any) -> Completion:
            if len(self.calls) >= first_batch:
                await asyncio.wait_for(learning.wait(), 30)
            return await super().generate(prompt_ids, params, **options)

    class WaitsForTheSecondBatch(PublishingLearner):
        async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
            learning.set()
            async with asyncio.timeout(30):
                while len(self.sampler.calls) == first_batch:
                    await asyncio.sleep(0.001)
            return await super().update(steps)

    train(tmp_path / "run", config(1), sampler=SecondBatchWaitsForTheLearner(), learner=WaitsForTheSecondBatch)
    assert learning.is_set()


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_batch_uses_the_curriculum_stage_at_its_start(tmp_path: Path, ahead: int) -> None:
    settings = config(ahead)
    train(tmp_path / "run", settings)
    assert settings.data.curriculum is not None
    model, stages = Curriculum(settings.data.curriculum), [0]  # the stage after each step
    for k, row in enumerate(read_rows(tmp_path / "run" / "metrics.jsonl"), start=1):
        stage = stages[max(0, k - 1 - ahead)]
        assert (row["curriculum/stage"], row["curriculum/chunks"]) == (stage, settings.data.curriculum.chunks[stage])
        if stage == model.stage:  # results of smaller problems don't count for the larger ones
            model.update(row["reward/mean"])
        stages.append(model.stage)
    assert stages[-1] > 0


# ---- Resumes -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, bytes]]:
    """Files of runs without an interruption, by `max_off_policy_steps`."""
    folder, runs = tmp_path_factory.mktemp("whole"), {}
    for ahead in (1, 2):
        train(folder / str(ahead), config(ahead))
        runs[ahead] = run_files(folder / str(ahead))
    return runs


@pytest.mark.parametrize(("ahead", "calls"), [(1, 3), (1, 37), (1, 75), (2, 20), (2, 52), (2, 100)])
def test_a_run_killed_anywhere_resumes_to_the_same_bytes(tmp_path: Path, whole: Any, ahead: int, calls: int) -> None:
    with pytest.raises(Killed):
        train(tmp_path / "run", config(ahead), dies_after=calls)
    train(tmp_path / "run", config(ahead), resume=True)
    assert run_files(tmp_path / "run") == whole[ahead]


def test_a_checkpoint_contains_the_batches_collected_ahead_under_its_hashes(tmp_path: Path) -> None:
    train(tmp_path / "run", config(2, save_steps=3, save_total_limit=9))
    saved = tmp_path / "run" / "checkpoints" / "step-000003"
    ahead = sorted(file.name for file in (saved / "ahead").iterdir())
    assert ahead == ["step-000004.jsonl.zst", "step-000005.jsonl.zst"]
    for name in ahead:
        assert (saved / "ahead" / name).read_bytes() == (tmp_path / "run" / "trajectories" / name).read_bytes()
    assert not (tmp_path / "run" / "checkpoints" / "step-000008" / "ahead").exists()  # none is left at the end
    damaged = saved / "ahead" / ahead[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="ahead/step-000004"):
        verify(saved)


def test_a_checkpoint_of_an_on_policy_run_contains_no_batch(tmp_path: Path) -> None:
    finished = train(tmp_path / "run", config(0))
    assert list((tmp_path / "run" / "checkpoints").glob("*/ahead")) == []
    assert verify(finished.checkpoint).state.keys() == {"curriculum", "silent", "skipped", "computed"}


class Interrupted(NumberedSource):
    """A scheduler ends the run while the batch of the fourth step is drawn."""

    def problems(self, *, step: int, **options: Any) -> list[Problem]:
        if step == 3:  # counted from 0
            signal.raise_signal(signal.SIGTERM)
        return super().problems(step=step, **options)


def test_an_interrupted_run_saves_the_collected_batch_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    settings = config(1, save_steps=STEPS, save_total_limit=1)
    train(tmp_path / "whole", settings)
    finished = train(tmp_path / "run", settings, source=Interrupted())
    assert (finished.step, finished.interrupted) == (3, True)
    assert (finished.checkpoint / "ahead" / "step-000004.jsonl.zst").exists()
    train(tmp_path / "run", settings, resume=True)
    assert run_files(tmp_path / "run") == run_files(tmp_path / "whole")


class DownInStep6(YesGrader):
    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        return Grade(None, "connection refused") if problem.id.startswith("p5-") else super().grade(problem, trajectory)


def test_a_batch_without_grades_ends_the_run_after_saving_and_a_resume_collects_it_again(tmp_path: Path) -> None:
    settings = config(1, save_steps=100)
    with pytest.raises(RunError, match="step 6: no episode has a grade"):
        train(tmp_path / "run", settings, grader=DownInStep6())
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000005"]
    assert train(tmp_path / "run", settings, resume=True).step == 8
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["policy/staleness"] for row in rows] == [0, 1, 1, 1, 1, 0, 1, 1]


# ---- Evaluations, errors, settings ---------------------------------------------------------------------------


def test_evaluations_measure_the_newest_weights_with_no_request_in_flight(tmp_path: Path) -> None:
    sampler = PublishedSampler()
    measured: list[tuple[int, int]] = []

    async def evaluate(step: int) -> dict[str, float]:
        before = len(sampler.calls)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(sampler.calls) == before
        measured.append((step, sampler.version))
        return {}

    train(tmp_path / "run", config(2, eval_steps=2), sampler=sampler, evaluate=evaluate)
    assert measured == [(2, 2), (4, 4), (6, 6), (8, 8)]


def test_an_error_of_the_learner_ends_the_concurrent_collection(tmp_path: Path) -> None:
    class Breaks(PublishingLearner):
        async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
            await asyncio.sleep(0)
            raise RunError("out of memory")

    async def trained() -> None:
        sampler = PublishedSampler()
        with open_run(tmp_path / "run", config(1)) as folder, pytest.raises(RunError, match="out of memory"):
            await make_trainer(folder, sampler=sampler, learner=Breaks(sampler)).run()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(trained())


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (config(1), config(1, max_steps=9), "warned"),
        (config(0), config(0, max_steps=9), "allowed"),
        (config(0), config(1), "refused"),
    ],
)
def test_changes_at_a_resume(before: RunConfig, after: RunConfig, verdict: str) -> None:
    assert [change.verdict for change in changes(before, after)] == [verdict]


def test_stale_samples_with_recomputed_ratios_need_importance_weights() -> None:
    reason = r"train.max_off_policy_steps=1 trains on samples of older weights.*loss.importance_sampling_cap"
    with pytest.raises(ValidationError, match=reason):
        changed(config(1), loss={"old_logprobs": "recompute"})
    changed(config(1), loss={"old_logprobs": "recompute", "importance_sampling_cap": 2.0})
