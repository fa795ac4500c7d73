"""Recorded episodes of evaluations: bounded, complete, each once, whatever ends the process."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.quickstart.quickstart_plan import resolve_quickstart
from palimpsest.app.quickstart.quickstart_run import Shard
from palimpsest.errors import DataError
from palimpsest.evaluation.episode_files import EPISODES, EpisodeFile, Selection, first_episodes, read_episodes
from palimpsest.evaluation.sample_log import IDENTITY, SAMPLES
from palimpsest.files import NoRegularFile
from palimpsest.rollout.trajectory_file import frame_spans, index_of
from palimpsest.types import Completion, Grade, Outcome, Problem, StopReason, Trajectory, Turn

SMALL = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}


def episode(name: str, draw: int = 0, tokens: Sequence[int] = (5, 6)) -> tuple[Problem, Trajectory]:
    turn = Turn((1, 2, 3), Completion(tuple(tokens), (-0.5,) * len(tokens), StopReason.STOP), 0, "answer")
    return Problem(name, "Where?", ("Rome",)), Trajectory(name, f"set/{name}", draw, (turn,), Outcome.ANSWERED, "Oslo")


def write(folder: Path, selection: Selection, *episodes: tuple[str, int, float | None]) -> list[str]:
    """Record episodes (problem, draw, value); return the warnings."""
    warnings = list[str]()
    file = EpisodeFile(folder, selection, warnings.append)
    for name, draw, value in episodes:
        file.add(*episode(name, draw), Grade(value, None if value is not None else "lost"))
    return warnings


def read(folder: Path) -> list[tuple[str, int, float | None]]:
    """(group id, rollout, value) of every recorded episode."""
    recording = read_episodes(folder / EPISODES)
    assert recording.torn is None
    pairs = [pair for group in recording.groups for pair in zip(group.trajectories, group.grades, strict=True)]
    return [(trajectory.group_id, trajectory.rollout, grade.value) for trajectory, grade in pairs]


def test_wrong_and_ungraded_episodes_are_recorded_or_all(tmp_path: Path) -> None:
    episodes = [("p", 0, 1.0), ("q", 0, 0.0), ("p", 1, 0.5), ("r", 0, None)]
    selections: tuple[Selection, ...] = ("wrong", "all")
    for selection in selections:
        (tmp_path / selection).mkdir()
        write(tmp_path / selection, selection, *episodes)
    assert read(tmp_path / "wrong") == [("set/q", 0, 0.0), ("set/p", 1, 0.5), ("set/r", 0, None)]
    assert {*read(tmp_path / "all")} == {(f"set/{name}", draw, value) for name, draw, value in episodes}


def test_the_last_of_repeated_episodes_counts(tmp_path: Path) -> None:
    write(tmp_path, "wrong", ("p", 0, None), ("q", 0, 0.0))
    write(tmp_path, "wrong", ("p", 0, 1.0), ("q", 1, 0.0))
    assert read(tmp_path) == [("set/p", 0, 1.0), ("set/q", 0, 0.0), ("set/q", 1, 0.0)]


def test_a_pipe_instead_of_the_record_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / EPISODES)
    with pytest.raises(NoRegularFile, match=EPISODES):
        write(tmp_path, "wrong", ("p", 0, 0.0))
    with pytest.raises(DataError, match=EPISODES):
        read_episodes(tmp_path / EPISODES)
    assert first_episodes(tmp_path / EPISODES) == ()


def test_a_full_disk_ends_only_the_record_with_one_warning(tmp_path: Path) -> None:
    write(tmp_path, "wrong", ("p", 0, 0.0))
    before = (tmp_path / EPISODES).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        warnings = write(tmp_path, "wrong", ("q", 0, 0.0), ("r", 0, 0.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert warnings == [f"{tmp_path / EPISODES}: writing failed (File too large), so further episodes are missing"]
    assert (tmp_path / EPISODES).read_bytes() == before


def test_a_file_at_its_limit_ends_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest.evaluation.episode_files.MOST_BYTES", 2000)
    episodes = [(f"p{number}", 0, 0.0) for number in range(50)]
    (warning,) = write(tmp_path, "wrong", *episodes)
    assert warning.startswith(f"{tmp_path / EPISODES}: ")
    assert "evaluation.record=all" in warning
    assert 1000 < (tmp_path / EPISODES).stat().st_size <= 2000
    recorded = read(tmp_path)
    assert recorded == [(f"set/{name}", draw, value) for name, draw, value in episodes[: len(recorded)]]


def test_a_file_cut_anywhere_continues_after_its_last_complete_episode(tmp_path: Path) -> None:
    write(tmp_path, "wrong", ("p", 0, 0.0))
    first = (tmp_path / EPISODES).stat().st_size
    write(tmp_path, "wrong", ("q", 0, 0.0))
    complete = (tmp_path / EPISODES).read_bytes()
    for cut in range(len(complete)):
        (tmp_path / EPISODES).write_bytes(complete[:cut])
        again = [("p", 0, 0.0), ("q", 0, 0.0)][cut >= first :]
        write(tmp_path, "wrong", ("right", 0, 1.0), *again)
        assert (tmp_path / EPISODES).read_bytes() == complete


def test_a_torn_index_is_completed_with_the_next_episode(tmp_path: Path) -> None:
    write(tmp_path, "wrong", ("p", 0, 0.0), ("q", 0, 0.0))
    index = index_of(tmp_path / EPISODES)
    lines = index.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["rows"][0]["gid"] for line in lines] == ["set/p", "set/q"]
    write(tmp_path, "wrong", ("r", 0, 0.0))
    complete = index.read_bytes()
    assert (complete.startswith(b"".join(lines)), complete.count(b"\n")) == (True, 3)
    (tmp_path / "again").mkdir()
    write(tmp_path / "again", "wrong", ("p", 0, 0.0), ("q", 0, 0.0))
    data = (tmp_path / EPISODES).read_bytes()
    for torn in (b"", lines[0], lines[0] + lines[1][:9]):
        (tmp_path / "again" / EPISODES).write_bytes(data[: list(frame_spans(data))[1][1]])
        index_of(tmp_path / "again" / EPISODES).write_bytes(torn)
        write(tmp_path / "again", "wrong", ("r", 0, 0.0))
        assert index_of(tmp_path / "again" / EPISODES).read_bytes() == complete


def test_a_damaged_file_continues_where_a_reader_would_stop(tmp_path: Path) -> None:
    write(tmp_path, "wrong", ("p", 0, 0.0), ("q", 0, 0.0))
    data = bytearray((tmp_path / EPISODES).read_bytes())
    data[-6] ^= 1  # in the second frame
    (tmp_path / EPISODES).write_bytes(data)
    write(tmp_path, "wrong", ("r", 0, 0.0))
    assert read(tmp_path) == [("set/p", 0, 0.0), ("set/r", 0, 0.0)]


def evaluated(model: Path, out: Path, record: str, **options: Any) -> palimpsest.Evaluation:
    values = {"baselines": False, "limit": 2, "chunks": 2, "quiet": True, **options}
    warm = {"eval_sampling.temperature": 1.0} if options.get("samples") else {}
    overrides = {**SMALL, **warm, "evaluation.record": record}
    return palimpsest.evaluate(str(model), "synthetic", out=out, overrides=overrides, **values)


def test_recording_changes_neither_log_nor_identity(tmp_path: Path, tiny_model_folder: Path) -> None:
    records = ("none", "wrong", "all")
    result, *_ = (evaluated(tiny_model_folder, tmp_path / record, record) for record in records)
    for name in (SAMPLES, IDENTITY):
        assert len({(tmp_path / record / name).read_bytes() for record in records}) == 1
    assert not (tmp_path / "none" / EPISODES).exists()
    episodes = [group.trajectories[0] for group in read_episodes(tmp_path / "all" / EPISODES).groups]
    assert {(one.group_id, one.answer) for one in episodes} == {(one.group_id, one.answer) for one in result}


def test_draws_and_baselines_are_in_one_record(tmp_path: Path, tiny_model_folder: Path) -> None:
    result = evaluated(tiny_model_folder, tmp_path, "all", samples=2, baselines=True, limit=1)
    expected = {(s.group_id, s.draw) for s in (*result.samples, *result.baseline_samples)}
    assert {(name, draw) for name, draw, _ in read(tmp_path)} == expected
    assert [s.draw for s in result.baseline_samples if s.player == "closed book"] == [0]
    assert [s.draw for s in result.samples] == [0, 1]


def test_a_resumed_evaluation_records_every_episode_once(tmp_path: Path, tiny_model_folder: Path) -> None:
    evaluated(tiny_model_folder, tmp_path, "all", chunks=[1, 2])
    before = read(tmp_path)
    complete, data = (tmp_path / SAMPLES).read_bytes(), (tmp_path / EPISODES).read_bytes()
    (tmp_path / SAMPLES).write_bytes(b"".join(complete.splitlines(keepends=True)[:2]))
    (tmp_path / EPISODES).write_bytes(data[:-9])  # as if it had died in the last
    evaluated(tiny_model_folder, tmp_path, "all", chunks=[1, 2])
    assert sorted(read(tmp_path)) == sorted(before)


def test_every_shard_of_a_quickstart_has_a_record(tmp_path: Path, tiny_model_folder: Path) -> None:
    small = ["evaluation.sizes=[1]", "data.curriculum=null", "data.synthetic.chunks=1", "evaluation.problems=2"]
    small += ["policy.options.memory_tokens=4", "policy.options.answer_tokens=4", "policy.options.question_tokens=60"]
    config = resolve_quickstart("memagent", [f"model.path={tiny_model_folder}", *small, "evaluation.record=all"]).config
    shards = [Shard(config, tmp_path, "agent_before", str(tiny_model_folder), at, 2) for at in (0, 1)]
    for shard in shards:
        asyncio.run(shard.play(lambda _: None))
    assert [len(read(shard.path)) for shard in shards] == [1, 1]
