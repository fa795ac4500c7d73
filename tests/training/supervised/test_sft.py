"""Supervised cold start: what is imitated, in which order, and that it resumes."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import RunConfig
from palimpsest.engines.protocol import StepBatch, UpdateStats
from palimpsest.errors import DataError, RunError
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.loggers import JsonlLogger, LoggerSet
from palimpsest.runs.run_folder import open_run
from palimpsest.training.supervised.supervised_loop import SupervisedTrainer, audible, fingerprint, read_trajectories
from palimpsest.types import Outcome, Trajectory
from support.fakes import HashLearner, answered, small_config
from support.groups import sample_groups

EPISODES = [answered("abcdefg"[: n + 1], rollout=n) for n in range(5)]


class Watching(HashLearner):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[StepBatch] = []

    def step(self, batch: StepBatch) -> UpdateStats:
        self.batches.append(batch)
        return super().step(batch)


def run(path: Path, config: RunConfig | None = None, *, resume: bool = False, stop_after: int | None = None) -> Any:
    learner = Watching()
    with open_run(path, config or small_config(max_steps=5), resume=resume) as folder:
        trainer = SupervisedTrainer(folder.config, folder, learner, EPISODES, LoggerSet([JsonlLogger(folder)]))
        if stop_after is not None:
            learner.save = _dies_at(learner.save, stop_after)  # type: ignore[method-assign]
        asyncio.run(trainer.run())
    return learner


def _dies_at(save: Any, step: int) -> Any:
    async def call(folder: Path) -> dict[str, str]:
        if folder.name == f".step-{step:06d}.palimpsest-partial":
            raise KeyboardInterrupt
        hashes: dict[str, str] = await save(folder)
        return hashes

    return call


def test_every_episode_comes_once_an_epoch_and_the_order_changes(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", small_config(max_steps=5)) as folder:
        trainer = SupervisedTrainer(folder.config, folder, HashLearner(), EPISODES, LoggerSet([]))
        order = [index for step in range(1, 6) for index in trainer.chosen(step)]
    assert Counter(order) == Counter(list(range(5)) * 2)  # 5 steps of 2 are two epochs of 5
    assert sorted(order[:5]) == sorted(order[5:])
    assert order[:5] != order[5:]


def test_only_sampled_tokens_are_imitated_and_a_steps_weights_add_up_to_one(tmp_path: Path) -> None:
    learner = run(tmp_path / "run")
    assert len(learner.batches) == 5
    for batch in learner.batches:
        weights = [w for row in batch.segments for w in row.weights]
        tokens = sum(len(row.segment.positions) for row in batch.segments)
        assert weights == pytest.approx([1 / tokens] * tokens)


def test_an_interrupted_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", stop_after=4)
    run(tmp_path / "run", resume=True)
    for name in ("metrics.jsonl", "checkpoints/step-000005/model.safetensors", "checkpoints/step-000005/manifest.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert [row["data/epoch"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [0.4, 0.8, 1.2, 1.6, 2.0]


def test_a_resume_with_other_trajectories_is_refused_naming_the_options(tmp_path: Path) -> None:
    def train(episodes: list[Trajectory]) -> None:
        with open_run(tmp_path / "run", small_config(max_steps=4), resume=True) as folder:
            mark = fingerprint(episodes)
            trainer = SupervisedTrainer(folder.config, folder, HashLearner(), episodes, LoggerSet([]), fingerprint=mark)
            asyncio.run(trainer.run())

    train(EPISODES)
    train(list(EPISODES))
    for others in (EPISODES[:4], EPISODES[::-1], [*EPISODES[:4], answered("abcdx", rollout=4)]):
        with pytest.raises(RunError, match=r"^[^\n]*started with other trajectories[^\n]*--best[^\n]*--force[^\n]*$"):
            train(others)


def test_records_are_read_from_a_file_or_a_folder_and_filtered_by_grade(tmp_path: Path) -> None:
    (tmp_path / "step-000001.jsonl.zst").write_bytes(encode_groups(sample_groups(2)))
    shutil.copy(tmp_path / "step-000001.jsonl.zst", tmp_path / "step-000002.jsonl.zst")
    assert len(read_trajectories(tmp_path / "step-000001.jsonl.zst").trajectories) == 4
    assert len(read_trajectories(tmp_path).trajectories) == 8
    assert {one.rollout for one in read_trajectories(tmp_path, min_grade=1.0).trajectories} == {
        0
    }  # rollout 1 is ungraded


def test_a_torn_record_is_told_and_an_empty_choice_refused(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl.zst"
    path.write_bytes(encode_groups(sample_groups(2))[:-5])
    warnings: list[str] = []
    assert len(read_trajectories(path, warn=warnings.append).trajectories) == 2
    assert "torn.jsonl.zst" in warnings[0]
    with pytest.raises(DataError, match=r"no trajectory with a grade of at least 2\.0"):
        read_trajectories(path, min_grade=2.0, warn=warnings.append)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.jsonl\.zst or \.jsonl"):
        read_trajectories(tmp_path / "empty")


def test_episodes_that_sampled_nothing_are_refused() -> None:
    silent = Trajectory("p", "g", 0, (), Outcome.EMPTY_CONTEXT)
    assert audible([silent, *EPISODES]) == list(EPISODES)
    with pytest.raises(DataError, match="no trajectory with a sampled token"):
        audible([silent])
