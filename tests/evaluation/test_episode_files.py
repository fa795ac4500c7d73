"""The episodes of an evaluation are kept token for token: bounded, whole, each once, whatever ends the process."""

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
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluation.episode_files import EPISODES, EpisodeFile, Selection, first_episodes, read_episodes
from palimpsest.evaluation.sample_log import IDENTITY, SAMPLES
from palimpsest.files import NoRegularFile
from palimpsest.rollout.trajectory_file import frame_spans, index_of
from palimpsest.types import Completion, Grade, Outcome, Problem, StopReason, Trajectory, Turn

SMALL = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}


def episode(name: str, draw: int = 0, tokens: Sequence[int] = (5, 6)) -> tuple[Problem, Trajectory]:
    turn = Turn((1, 2, 3), Completion(tuple(tokens), (-0.5,) * len(tokens), StopReason.STOP), 0, "answer")
    return Problem(name, "Where?", ("Rome",)), Trajectory(name, f"set/{name}", draw, (turn,), Outcome.ANSWERED, "Oslo")


def written(folder: Path, kept: Selection, *episodes: tuple[str, int, float | None]) -> list[str]:
    """Write episodes (problem, draw, value); what was told."""
    told = list[str]()
    file = EpisodeFile(folder, kept, told.append)
    for name, draw, value in episodes:
        file.add(*episode(name, draw), Grade(value, None if value is not None else "lost"))
    return told


def held(folder: Path) -> list[tuple[str, int, float | None]]:
    """(group id, rollout, value) of each episode that a reader finds."""
    recording = read_episodes(folder / EPISODES)
    assert recording.torn is None
    return [
        (trajectory.group_id, trajectory.rollout, grade.value)
        for group in recording.groups
        for trajectory, grade in zip(group.trajectories, group.grades, strict=True)
    ]


def test_wrong_and_ungraded_episodes_are_kept_or_all(tmp_path: Path) -> None:
    episodes = [("p", 0, 1.0), ("q", 0, 0.0), ("p", 1, 0.5), ("r", 0, None)]
    for kept in ("wrong", "all"):
        (tmp_path / kept).mkdir()
    written(tmp_path / "wrong", "wrong", *episodes)
    written(tmp_path / "all", "all", *episodes)
    assert held(tmp_path / "wrong") == [("set/q", 0, 0.0), ("set/p", 1, 0.5), ("set/r", 0, None)]
    assert sorted(held(tmp_path / "all"), key=str) == sorted(
        ((f"set/{name}", draw, value) for name, draw, value in episodes), key=str
    )


def test_of_an_episode_played_again_the_last_counts_even_where_it_is_right_now(tmp_path: Path) -> None:
    written(tmp_path, "wrong", ("p", 0, None), ("q", 0, 0.0))
    written(tmp_path, "wrong", ("p", 0, 1.0), ("q", 1, 0.0))
    assert held(tmp_path) == [("set/p", 0, 1.0), ("set/q", 0, 0.0), ("set/q", 1, 0.0)]


def test_a_pipe_instead_of_the_record_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / EPISODES)
    with pytest.raises(NoRegularFile, match=EPISODES):
        written(tmp_path, "wrong", ("p", 0, 0.0))
    with pytest.raises(DataError, match=EPISODES):
        read_episodes(tmp_path / EPISODES)
    assert first_episodes(tmp_path / EPISODES) == ()


def test_a_disk_that_takes_no_more_ends_the_record_alone_and_is_told_once(tmp_path: Path) -> None:
    written(tmp_path, "wrong", ("p", 0, 0.0))
    before = (tmp_path / EPISODES).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        told = written(tmp_path, "wrong", ("q", 0, 0.0), ("r", 0, 0.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert told == [f"{tmp_path / EPISODES}: writing failed (File too large), so further episodes are missing"]
    assert (tmp_path / EPISODES).read_bytes() == before


def test_the_file_never_exceeds_its_limit_and_that_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palimpsest.evaluation.episode_files.MOST_BYTES", 2000)
    episodes = [(f"p{number}", 0, 0.0) for number in range(50)]
    told = written(tmp_path, "wrong", *episodes)
    (line,) = told
    assert line.startswith(f"{tmp_path / EPISODES}: ")
    assert "evaluation.record=all" in line
    assert 1000 < (tmp_path / EPISODES).stat().st_size <= 2000
    kept = held(tmp_path)
    assert kept == [(f"set/{name}", draw, value) for name, draw, value in episodes[: len(kept)]]


def test_a_file_cut_anywhere_goes_on_behind_its_last_whole_episode(tmp_path: Path) -> None:
    written(tmp_path, "wrong", ("p", 0, 0.0))
    first = (tmp_path / EPISODES).stat().st_size
    written(tmp_path, "wrong", ("q", 0, 0.0))
    whole = (tmp_path / EPISODES).read_bytes()
    for cut in range(len(whole)):
        (tmp_path / EPISODES).write_bytes(whole[:cut])
        again = [("p", 0, 0.0), ("q", 0, 0.0)][cut >= first :]
        written(tmp_path, "wrong", ("right", 0, 1.0), *again)
        assert (tmp_path / EPISODES).read_bytes() == whole


def test_the_index_is_written_with_the_record_and_again_where_it_was_torn(tmp_path: Path) -> None:
    written(tmp_path, "wrong", ("p", 0, 0.0), ("q", 0, 0.0))
    index = index_of(tmp_path / EPISODES)
    lines = index.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["rows"][0]["gid"] for line in lines] == ["set/p", "set/q"]
    written(tmp_path, "wrong", ("r", 0, 0.0))
    whole = index.read_bytes()
    assert (whole.startswith(b"".join(lines)), whole.count(b"\n")) == (True, 3)
    (tmp_path / "again").mkdir()
    written(tmp_path / "again", "wrong", ("p", 0, 0.0), ("q", 0, 0.0))
    for torn in (b"", lines[0], lines[0] + lines[1][:9]):
        (tmp_path / "again" / EPISODES).write_bytes(_two_frames(tmp_path))
        index_of(tmp_path / "again" / EPISODES).write_bytes(torn)
        written(tmp_path / "again", "wrong", ("r", 0, 0.0))
        assert index_of(tmp_path / "again" / EPISODES).read_bytes() == whole


def _two_frames(folder: Path) -> bytes:
    """Of the three episodes that a record holds, the first two."""
    data = (folder / EPISODES).read_bytes()
    return data[: list(frame_spans(data))[1][1]]


def test_a_damaged_file_goes_on_where_a_reader_would_stop(tmp_path: Path) -> None:
    written(tmp_path, "wrong", ("p", 0, 0.0), ("q", 0, 0.0))
    data = bytearray((tmp_path / EPISODES).read_bytes())
    data[-6] ^= 1  # in the second frame
    (tmp_path / EPISODES).write_bytes(data)
    written(tmp_path, "wrong", ("r", 0, 0.0))
    assert held(tmp_path) == [("set/p", 0, 0.0), ("set/r", 0, 0.0)]


def evaluated(model: Path, out: Path, record: str, **options: Any) -> palimpsest.Evaluation:
    given = {"baselines": False, "limit": 2, "chunks": 2, "quiet": True, **options}
    warm = {"eval_sampling.temperature": 1.0} if options.get("samples") else {}
    overrides = {**SMALL, **warm, "evaluation.record": record}
    return palimpsest.evaluate(str(model), "synthetic", out=out, overrides=overrides, **given)


def test_an_evaluation_keeps_what_it_played_and_its_log_and_identity_stay_the_same(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    for record in ("none", "wrong", "all"):
        evaluated(tiny_model_folder, tmp_path / record, record)
    for name in (SAMPLES, IDENTITY):
        assert len({(tmp_path / record / name).read_bytes() for record in ("none", "wrong", "all")}) == 1
    assert not (tmp_path / "none" / EPISODES).exists()
    groups = read_episodes(tmp_path / "all" / EPISODES).groups
    samples = evaluated(tiny_model_folder, tmp_path / "none", "none")
    assert {(group.trajectories[0].group_id, group.trajectories[0].answer) for group in groups} == {
        (sample.group_id, sample.answer) for sample in samples
    }


def test_draws_and_baselines_stand_beside_each_other(tmp_path: Path, tiny_model_folder: Path) -> None:
    result = evaluated(tiny_model_folder, tmp_path, "all", samples=2, baselines=True, limit=1)
    expected = {(s.group_id, s.draw) for s in (*result.samples, *result.baseline_samples)}
    assert {(name, draw) for name, draw, _ in held(tmp_path)} == expected
    assert [s.draw for s in result.baseline_samples if s.player == "closed book"] == [0]
    assert [s.draw for s in result.samples] == [0, 1]


def test_an_evaluation_that_was_killed_keeps_each_episode_once(tmp_path: Path, tiny_model_folder: Path) -> None:
    evaluated(tiny_model_folder, tmp_path, "all", chunks=[1, 2])
    before = held(tmp_path)
    whole, data = (tmp_path / SAMPLES).read_bytes(), (tmp_path / EPISODES).read_bytes()
    (tmp_path / SAMPLES).write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    (tmp_path / EPISODES).write_bytes(data[:-9])  # as if it had died in the last
    evaluated(tiny_model_folder, tmp_path, "all", chunks=[1, 2])
    assert sorted(held(tmp_path)) == sorted(before)


def test_each_shard_of_a_quickstart_keeps_its_own(tmp_path: Path, tiny_model_folder: Path) -> None:
    small = ["evaluation.sizes=[1]", "data.curriculum=null", "data.synthetic.chunks=1", "evaluation.problems=2"]
    small += ["policy.options.memory_tokens=4", "policy.options.answer_tokens=4", "policy.options.question_tokens=60"]
    config = resolve_quickstart("memagent", [f"model.path={tiny_model_folder}", *small, "evaluation.record=all"]).config
    shards = [Shard(config, tmp_path, "agent_before", str(tiny_model_folder), at, 2) for at in (0, 1)]
    for shard in shards:
        asyncio.run(shard.play(lambda _: None))
    assert [len(held(shard.path)) for shard in shards] == [1, 1]


def test_a_setting_that_means_nothing_is_refused(tmp_path: Path, tiny_model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.record=.some"):
        palimpsest.evaluate(str(tiny_model_folder), "synthetic", overrides={"evaluation.record": "some"}, out=tmp_path)
