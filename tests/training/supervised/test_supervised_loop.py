"""Supervised training: the order of episodes, resumes, and the choice of recorded episodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest import evaluate, train
from palimpsest.cli.train import read_imitated
from palimpsest.engines.protocol import StepBatch, UpdateStats
from palimpsest.errors import ConfigError, DataError, RunError
from palimpsest.evaluation.episode_files import EPISODES as FILE
from palimpsest.rollout.trajectory_file import NO_TOKENIZER, encode_groups, read_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.loggers import JsonlLogger, LoggerSet
from palimpsest.runs.run_folder import open_run
from palimpsest.text.codec import Codec
from palimpsest.training.supervised.supervised_loop import (
    SupervisedTrainer,
    audible,
    fingerprint,
    read_trajectories,
    select,
)
from palimpsest.types import Grade, Group, Problem, Trajectory
from support.command import Run
from support.endpoint_server import Server, endpoint_server
from support.fakes import HashLearner, answered, small_config
from support.groups import make_episode, make_turn, sample_groups
from support.small_run import small_run

EPISODES = [answered("abcdefg"[: n + 1], rollout=n) for n in range(5)]


class Watching(HashLearner):
    def __init__(self, dies_at: int | None = None) -> None:
        super().__init__()
        self.batches: list[StepBatch] = []
        self._dies_at = dies_at

    def step(self, batch: StepBatch) -> UpdateStats:
        self.batches.append(batch)
        return super().step(batch)

    async def save(self, folder: Path) -> dict[str, str]:
        if folder.name == f".step-{self._dies_at or 0:06d}.palimpsest-partial":
            raise KeyboardInterrupt
        return await super().save(folder)


def run(path: Path, episodes: list[Trajectory] = EPISODES, *, resume: bool = False, dies_at: int | None = None) -> Any:
    learner = Watching(dies_at)
    with open_run(path, small_config(max_steps=5), resume=resume) as folder:
        loggers, mark = LoggerSet([JsonlLogger(folder)]), fingerprint(episodes)
        trainer = SupervisedTrainer(folder.config, folder, learner, episodes, loggers, fingerprint=mark)
        asyncio.run(trainer.run())
        learner.order = [index for step in range(1, 6) for index in trainer.chosen(step)]  # type: ignore[attr-defined]
    return learner


def test_sampled_tokens_weigh_one_per_step_and_every_episode_is_in_each_epoch(tmp_path: Path) -> None:
    learner = run(tmp_path / "run")
    assert Counter(learner.order) == Counter(list(range(5)) * 2)  # 5 steps of 2 are two epochs of 5
    assert sorted(learner.order[:5]) == sorted(learner.order[5:])
    assert learner.order[:5] != learner.order[5:]
    assert len(learner.batches) == 5
    for batch in learner.batches:
        tokens = sum(len(row.segment.positions) for row in batch.segments)
        assert [w for row in batch.segments for w in row.weights] == pytest.approx([1 / tokens] * tokens)


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", dies_at=4)
    run(tmp_path / "run", resume=True)
    for name in ("metrics.jsonl", "checkpoints/step-000005/model.safetensors", "checkpoints/step-000005/manifest.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert [row["data/epoch"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [0.4, 0.8, 1.2, 1.6, 2.0]


def test_a_resume_with_other_trajectories_is_rejected_with_the_options(tmp_path: Path) -> None:
    run(tmp_path / "run")
    run(tmp_path / "run", list(EPISODES), resume=True)
    for others in (EPISODES[:4], EPISODES[::-1], [*EPISODES[:4], answered("abcdx", rollout=4)]):
        with pytest.raises(RunError, match=r"^[^\n]*started with other trajectories[^\n]*--best[^\n]*--force[^\n]*$"):
            run(tmp_path / "run", others, resume=True)


# ---- Choice of recorded episodes -----------------------------------------------------------------------------


def test_records_are_read_from_a_file_or_a_folder_and_filtered_by_grade(tmp_path: Path) -> None:
    data = encode_groups(sample_groups(2))
    for step in (1, 2):
        (tmp_path / f"step-00000{step}.jsonl.zst").write_bytes(data)
    assert len(read_trajectories(tmp_path / "step-000001.jsonl.zst").trajectories) == 4
    assert len(read_trajectories(tmp_path).trajectories) == 8
    graded = read_trajectories(tmp_path, min_grade=1.0).trajectories
    assert {one.rollout for one in graded} == {0}  # rollout 1 is ungraded


def test_a_torn_record_is_a_warning_and_an_empty_choice_an_error(tmp_path: Path) -> None:
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


def test_only_episodes_with_trained_tokens_are_imitated() -> None:
    silent, frozen = make_episode(), make_episode(make_turn((1,), (2,), trained=False))
    assert audible([silent, frozen, *EPISODES]) == EPISODES
    with pytest.raises(DataError, match="no trajectory with a sampled token"):
        audible([silent])


GRADED: list[tuple[Trajectory, float | None]] = [
    (replace(make_episode(rollout=i), problem_id=problem), grade)
    for i, (problem, grade) in enumerate(zip("aabbabc", (1.0, 0.5, None, 0.0, 1.0, 0.5, None), strict=True))
]


@pytest.mark.parametrize(
    ("least", "per_problem", "rollouts", "counts"),
    [
        (None, None, [0, 1, 2, 3, 4, 5, 6], (0, 0, 0)),
        (1.0, None, [0, 4], (3, 2, 0)),
        (0.5, None, [0, 1, 4, 5], (1, 2, 0)),
        (0.5, 1, [4, 5], (1, 2, 2)),  # the later of equals
        (0.0, 2, [0, 3, 4, 5], (0, 2, 1)),
        (None, 1, [4, 5, 6], (0, 0, 4)),  # ungraded ones only where a problem has no other
    ],
)
def test_episodes_are_chosen_by_grade_and_as_the_best_of_a_problem(
    least: float | None, per_problem: int | None, rollouts: list[int], counts: tuple[int, int, int]
) -> None:
    chosen = select(GRADED, min_grade=least, per_problem=per_problem)
    assert [one.rollout for one in chosen.trajectories] == rollouts
    assert (chosen.below, chosen.ungraded, chosen.surplus) == counts
    assert len(rollouts) + sum(counts) == len(GRADED)


def test_the_records_of_a_run_are_read_from_its_folder_and_compared_over_files(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    for step in (1, 2):
        played = tuple(make_episode(rollout=i, group_id=f"{step}/p", answer=str(step)) for i in (0, 1))
        group = Group(Problem("p", "?", ("x",)), played, (Grade(0.0), Grade(1.0)))
        (tmp_path / "trajectories" / f"step-{step:06d}.jsonl.zst").write_bytes(encode_groups([group]))
    chosen = read_trajectories(tmp_path, min_grade=1.0, per_problem=1)
    assert [(one.rollout, one.answer) for one in chosen.trajectories] == [(1, "2")]
    assert str(chosen) == "kept 1 episodes; skipped 2 below the grade, 0 ungraded, 1 beyond --best"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"records": Path("r"), "data": Path("d")}, "exclude each other"),
        ({"data": Path("d"), "min_grade": "all"}, "add --from"),
        ({"data": Path("d"), "best": 2}, "add --from"),
        ({"records": Path("r"), "memory_first": True}, "add --data"),
        ({"records": Path("r"), "min_grade": "good"}, "--min-grade good"),
        ({"records": Path("r"), "min_grade": "nan"}, "--min-grade nan"),
    ],
)
def test_options_without_a_meaning_together_are_rejected(options: dict[str, Any], message: str) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("records", "min_grade", "best", "data"))
    with pytest.raises(ConfigError, match=message):
        read_imitated(**{**nothing, "memory_first": False, "drop_too_long": False, **options})


# ---- Records of other tokenizers -----------------------------------------------------------------------------

RECORDED = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8, "evaluation.record": "all"}


@pytest.fixture
def imitate(palimpsest: Run, tmp_path: Path) -> Any:
    """Exit status and messages of `palimpsest sft` on records."""

    def run(records: Path, model: Path | str, name: str = "sft") -> tuple[int, str]:
        settings = ("train.max_steps=1", "train.batch_size=1", "train.num_minibatches=1", f"model.path={model}")
        out = str(tmp_path / name)
        done = palimpsest("sft", "memagent-quickstart", "--from", str(records), *settings, "--out", out)
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize("named", [True, False])
def test_records_of_a_chat_endpoint_are_rejected_by_the_tokenizer_that_they_name(
    tmp_path: Path, tiny_model_folder: Path, palimpsest: Run, imitate: Any, named: bool
) -> None:
    file = tmp_path / "e" / FILE
    with endpoint_server(Server(takes="chat")) as server:
        tokenizer = ("--tokenizer", str(tiny_model_folder)) if named else ()
        sizes = ("--chunks", "1", "--limit", "1", "--no-baselines")
        settings = [f"{key}={value}" for key, value in RECORDED.items()]
        command = ("eval", "served", "--base-url", server.url, *tokenizer, *sizes, *settings)
        done = palimpsest(*command, "--out", str(tmp_path / "e"))
    assert done.returncode == 0, done.stderr
    if not named:
        file.write_bytes(encode_groups(read_groups(file).groups))  # as earlier versions wrote it
        assert read_groups(file).tokenizers == {NO_TOKENIZER}
    reason = "belong to another tokenizer" if named else "(mode chat) sampled it, and it names no tokenizer"
    for model in (tiny_model_folder, "embedded"):
        code, message = imitate(file, model)
        assert code == 2
        assert reason in message
    assert not (tmp_path / "sft").exists()


def test_records_of_a_model_are_imitated_only_by_models_of_its_tokenizer(
    tmp_path: Path, tiny_model_folder: Path, imitate: Any
) -> None:
    run, file = tmp_path / "run", tmp_path / "e" / FILE
    train("memagent-quickstart", small_run(tiny_model_folder), out=run, quiet=True)
    evaluate(tiny_model_folder, chunks=1, limit=1, overrides=RECORDED, baselines=False, out=tmp_path / "e", quiet=True)
    digest = Codec.load(str(tiny_model_folder)).digest
    assert read_groups(file).tokenizers == {digest}
    for number, records in enumerate((run, file)):
        code, message = imitate(records, "embedded", f"other{number}")
        assert (code, "token ids" in message, digest in message) == (2, True, True)
        code, message = imitate(records, tiny_model_folder, f"same{number}")
        assert code == 0, message
    unnamed = tmp_path / "apart" / "unnamed.jsonl.zst"
    unnamed.parent.mkdir()
    plain = encode_groups(read_groups(file).groups)
    for data in (plain, file.read_bytes() + plain):
        unnamed.write_bytes(data)
        code, message = imitate(unnamed, tiny_model_folder)
        assert (code, "names no tokenizer" in message) == (2, True)
