"""`train.max_off_policy_steps`: which weights play which batch, what a checkpoint keeps of it, and that timing shows
nowhere."""

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
from palimpsest.runs.driver import Finished
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.resume_rules import changes
from palimpsest.runs.run_folder import open_run
from palimpsest.training.curriculum import Curriculum
from palimpsest.types import Completion, Grade, Problem, SamplingParams, StopReason, Trajectory
from support.fakes import HashLearner, NumberedSource, SeedSampler, make_trainer, small_config

STEPS = 8


class PublishedSampler(SeedSampler):
    """Its words depend on the weights it was last given, so that every mix of versions shows."""

    def __init__(self, *, dies_after: int | None = None) -> None:
        super().__init__()
        self.published = 0
        self._dies_after = dies_after

    @property
    def version(self) -> int:
        return self.published

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        if len(self.calls) == self._dies_after:
            raise Killed
        self.calls.append((tuple(prompt_ids), params))
        await asyncio.sleep(0)
        word = "yes" if (params.seed >> self.published % 8) % 2 else "no "
        return Completion((*map(ord, word), 0), (-0.5,) * 4, StopReason.STOP, self.published, self.published)


class PublishingLearner(HashLearner):
    """Learns in several turns of the event loop and gives its weights away when told to."""

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


class Killed(BaseException):
    """The process is gone."""


def config(ahead: int, **train: Any) -> RunConfig:
    values = small_config(**{"max_steps": STEPS, "max_off_policy_steps": ahead, **train}).model_dump(mode="json")
    lengths = {"chunks": [1, 2, 4], "advance_at": 0.4}
    refills = {**values["credit"], "dynamic_sampling": {"max_refills": 1}}
    return RunConfig.model_validate({**values, "data": {"curriculum": lengths}, "credit": refills})


def train(
    path: Path, settings: RunConfig, *, dies_after: int | None = None, resume: bool = False, **parts: Any
) -> tuple[Finished, list[str]]:
    sampler = parts.pop("sampler", None) or PublishedSampler(dies_after=dies_after)
    learner = parts.pop("learner", PublishingLearner)(sampler)
    warnings: list[str] = []
    with open_run(path, settings, resume=resume, on_warning=warnings.append) as folder:
        finished = asyncio.run(make_trainer(folder, sampler=sampler, learner=learner, **parts).run())
    return finished, warnings


def contents(path: Path) -> dict[str, bytes]:
    """Everything of a run that must repeat."""
    files = [path / "config.yaml", path / "metrics.jsonl", *path.glob("trajectories/*"), *path.glob("checkpoints/**/*")]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


def versions(path: Path) -> list[set[tuple[int, int]]]:
    """Of each step: the first and last versions of all its completions."""
    steps = []
    for step in range(1, STEPS + 1):
        groups = read_groups(path / "trajectories" / f"step-{step:06d}.jsonl.zst").groups
        turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
        steps.append({(turn.completion.policy_version, turn.completion.last_policy_version) for turn in turns})
    return steps


@pytest.mark.parametrize("ahead", [0, 1, 2, 3, STEPS + 1])
def test_batch_k_is_sampled_wholly_with_the_weights_after_step_k_less_1_less_ahead(tmp_path: Path, ahead: int) -> None:
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
        async def generate(
            self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
        ) -> Completion:
            if len(self.calls) >= first_batch:
                await asyncio.wait_for(learning.wait(), 30)
            return await super().generate(prompt_ids, params, session=session)

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
def test_the_curriculum_moves_when_a_step_was_learnt_and_a_batch_uses_what_was_known_when_it_began(
    tmp_path: Path, ahead: int
) -> None:
    settings = config(ahead)
    train(tmp_path / "run", settings)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert settings.data.curriculum is not None
    model, known = Curriculum(settings.data.curriculum), [0]  # the stage after each step
    for k, row in enumerate(rows, start=1):
        stage = known[max(0, k - 1 - ahead)]
        assert (row["curriculum/stage"], row["curriculum/chunks"]) == (stage, settings.data.curriculum.chunks[stage])
        if stage == model.stage:  # what was begun before the problems grew doesn't speak for the larger ones
            model.update(row["reward/mean"])
        known.append(model.stage)
    assert known[-1] > 0


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("calls", [3, 20, 37, 52, 75, 100])
def test_a_run_killed_anywhere_resumes_to_the_same_bytes(tmp_path: Path, ahead: int, calls: int) -> None:
    train(tmp_path / "whole", config(ahead))
    with pytest.raises(Killed):
        train(tmp_path / "run", config(ahead), dies_after=calls)
    train(tmp_path / "run", config(ahead), resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_checkpoint_holds_the_batches_collected_ahead_under_its_hashes(tmp_path: Path) -> None:
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


def test_without_ahead_nothing_is_kept_in_a_checkpoint(tmp_path: Path) -> None:
    finished, _ = train(tmp_path / "run", config(0))
    assert list((tmp_path / "run" / "checkpoints").glob("*/ahead")) == []
    assert verify(finished.checkpoint).state.keys() == {"curriculum", "silent", "skipped"}


class Interrupted(NumberedSource):
    """A scheduler ends the run while the batch of the fourth step is drawn."""

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        if step == 3:  # counted from 0
            signal.raise_signal(signal.SIGTERM)
        return super().problems(step=step, count=count, round=round, size=size)


def test_an_interrupted_run_keeps_what_was_collected_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    settings = config(1, save_steps=STEPS, save_total_limit=1)
    train(tmp_path / "whole", settings)
    finished, _ = train(tmp_path / "run", settings, source=Interrupted())
    assert (finished.step, finished.interrupted) == (3, True)
    assert (finished.checkpoint / "ahead" / "step-000004.jsonl.zst").exists()
    train(tmp_path / "run", settings, resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


class OutFor:
    """A judge that is down for the problems of one step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        if problem.id.startswith(f"p{self._step - 1}-"):
            return Grade(None, "connection refused")
        return Grade(float(trajectory.answer == "yes"))


class Up(OutFor):
    def __init__(self) -> None:
        super().__init__(-1)


def test_a_batch_that_can_not_be_graded_ends_the_run_and_a_resume_collects_it_again(tmp_path: Path) -> None:
    settings = config(1)
    train(tmp_path / "whole", settings, grader=Up())
    with pytest.raises(RunError, match="step 6: no episode has a grade"):
        train(tmp_path / "run", settings, grader=OutFor(6))
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]
    train(tmp_path / "run", settings, resume=True, grader=Up())
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_evaluations_measure_the_weights_just_learnt_with_nothing_in_flight(tmp_path: Path) -> None:
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


def test_an_error_while_learning_ends_the_collection_beside_it(tmp_path: Path) -> None:
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


def test_more_steps_for_a_run_that_collects_ahead_are_warned_of() -> None:
    assert [change.verdict for change in changes(config(1), config(1, max_steps=9))] == ["warned"]
    assert [change.verdict for change in changes(config(0), config(0, max_steps=9))] == ["allowed"]
    assert [change.verdict for change in changes(config(0), config(1))] == ["refused"]


def test_recomputed_ratios_without_importance_weights_are_refused_for_stale_samples() -> None:
    values = config(1).model_dump(mode="json")
    with pytest.raises(
        ValidationError,
        match=r"train.max_off_policy_steps=1 trains on samples of older weights.*loss.importance_sampling_cap",
    ):
        RunConfig.model_validate({**values, "loss": {"old_logprobs": "recompute"}})
    RunConfig.model_validate({**values, "loss": {"old_logprobs": "recompute", "importance_sampling_cap": 2.0}})
