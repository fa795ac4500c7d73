"""An evaluation's export and Episodes page give the scores of all episodes, agent and baselines apart."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.viewer_job import export
from palimpsest.evaluation.sample_log import Sample
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.types import Group
from support.command import Run
from support.inspect_logs import read_by_inspect
from support.view_folders import chunks, evaluation_folder, group, sample

AGENT = [chunks(4, f"p{n}", 1.0) for n in range(6)] + [chunks(64, "p6", 0.0)]
BASELINES = [chunks(4, f"p{n}", 0.0, player="closed book", baseline=True) for n in range(6)]
CELL = ("set", "size", "unit", "player", "baseline")


def recorded(each: Sample) -> Group:
    """The sample's episode, with its grade."""
    made = group(each.id, (each.value,))
    named = tuple(replace(one, group_id=each.group_id, rollout=each.draw) for one in made.trajectories)
    return Group(made.problem, named, made.grades)


def wrong_alone(path: Path, samples: Sequence[Sample] = (*BASELINES, *AGENT)) -> Path:
    """An evaluation that recorded what went wrong, which is the default."""
    folder = evaluation_folder(path, samples)
    (folder / "summary.json").write_text(json.dumps({"model": "some/model", "policy": {"name": "overwrite"}}))
    wrong = [recorded(each) for each in samples if each.value is None or each.value < 1]
    if wrong:
        (folder / "episodes.jsonl.zst").write_bytes(encode_groups(wrong))
    return folder


def read(path: Path) -> dict[str, Any]:
    """An archive's header and samples, as its zip has them."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith("samples/")]
        header = json.loads(archive.read("header.json"))
        return {**header, "samples": [json.loads(archive.read(name)) for name in names]}


def test_an_agent_that_is_right_is_exported_as_right_though_only_its_wrong_episodes_are_recorded(
    tmp_path: Path,
) -> None:
    written, _ = export([wrong_alone(tmp_path / "eval")], tmp_path / "out.eval")
    log = read(written.path)
    (score,) = log["results"]["scores"]
    values = [each["scores"]["reward"]["value"] for each in log["samples"]]
    assert sorted(values) == [0.0, *[1.0] * 6]
    assert score["metrics"]["mean"]["value"] == pytest.approx(6 / 7) == written.content.mean
    assert score["metrics"]["4 chunks"]["value"] == 1.0
    assert (score["scored_samples"], score["unscored_samples"]) == (7, 0)
    assert (log["eval"]["model"], log["eval"]["metadata"]["player"]) == ("some/model", "agent: recall")
    cells = {tuple(each["metadata"][name] for name in CELL) for each in log["samples"]}
    assert cells == {("synthetic", 4, "chunks", "recall", False), ("synthetic", 64, "chunks", "recall", False)}
    assert [bool(each["messages"]) for each in log["samples"]] == [False] * 6 + [True]
    assert written.content.notes == [
        "6 of 7 episodes of the agent: recall were not recorded and have a score without messages; "
        "set evaluation.record=all to record every episode"
    ]
    assert log["eval"]["metadata"]["left_out"] == written.content.notes


def test_baselines_have_logs_of_their_own_that_name_them(tmp_path: Path) -> None:
    _, other = export([wrong_alone(tmp_path / "eval")], tmp_path / "out.eval")
    assert other.path.name == "out.closed-book.eval"
    assert (other.content.player, other.content.mean) == ("baseline: closed book", 0.0)
    log = read(other.path)
    assert log["eval"]["task"] == "eval, closed book"
    assert len(log["samples"]) == 6
    cells = {tuple(each["metadata"][name] for name in CELL) for each in log["samples"]}
    assert cells == {("synthetic", 4, "chunks", "closed book", True)}


def test_each_of_several_policies_has_a_log_of_its_own(tmp_path: Path) -> None:
    played = (("fold", 1.0), ("note", 0.0))
    rows = [sample("dev", f"p{n}", value, player=policy) for policy, value in played for n in range(3)]
    written, other = export([evaluation_folder(tmp_path / "eval", rows)], tmp_path / "out.eval")
    assert (written.content.player, written.content.mean, written.content.episodes) == ("agent: fold", 1.0, 3)
    assert (other.path.name, other.content.player, other.content.mean) == ("out.note.eval", "agent: note", 0.0)
    log = read(other.path)
    assert log["eval"]["task"] == "eval, note"
    assert {each["metadata"]["player"] for each in log["samples"]} == {"note"}


def test_an_evaluation_without_a_record_is_exported_with_its_scores(tmp_path: Path) -> None:
    folder = wrong_alone(tmp_path / "eval", AGENT[:3])
    (written,) = export([folder], tmp_path / "out.eval")
    assert (written.content.episodes, written.content.mean) == (3, 1.0)


def test_the_score_of_named_episodes_is_said_to_be_of_those(tmp_path: Path) -> None:
    (written,) = export([wrong_alone(tmp_path / "eval")], tmp_path / "out.eval", only="6/0")
    assert (written.content.episodes, written.content.mean) == (1, 0.0)
    assert written.content.notes == ["the log's score covers 1 selected episode, not the whole evaluation"]


def test_an_ungraded_episode_has_no_score_and_an_evaluation_that_did_not_end_no_success(tmp_path: Path) -> None:
    folder = wrong_alone(tmp_path / "eval", [*AGENT[:1], chunks(4, "lost", None)])
    (folder / "summary.json").unlink()
    log = read(export([folder], tmp_path / "out.eval")[0].path)
    (score,) = log["results"]["scores"]
    assert (score["metrics"]["mean"]["value"], score["unscored_samples"]) == (1.0, 1)
    assert log["status"] in ("started", "cancelled")


def test_the_page_of_an_evaluation_says_what_was_not_recorded(tmp_path: Path) -> None:
    (page,) = export([wrong_alone(tmp_path / "eval")], tmp_path / "out.html")
    assert any("6 of 7 episodes of the agent: recall were not recorded" in told for told in page.content.notes)


def test_the_record_of_an_evaluation_is_shown_as_the_evaluation(tmp_path: Path) -> None:
    folder = wrong_alone(tmp_path / "eval")
    assert export([folder / "episodes.jsonl.zst"], tmp_path / "out.eval")[0].content.mean == pytest.approx(6 / 7)


def half(problem: Any, trajectory: Any) -> float:
    """1.0 for problems whose id ends in an even digit."""
    return float(problem.id[-1] in "02468")


def test_inspect_reads_back_the_accuracy_of_an_evaluation_that_was_played(
    tiny_model_folder: Path, tmp_path: Path, palimpsest: Run
) -> None:
    words = ["eval", str(tiny_model_folder), "--chunks", "1", "--limit", "5", "--out", str(tmp_path / "e")]
    words += ["chunk_size=64", "memory_tokens=8", "question_tokens=64", "answer_tokens=8"]
    played = palimpsest(*words, f"reward.name={__name__}:half")
    assert played.returncode == 0, played.stderr
    (accuracy,) = json.loads((tmp_path / "e" / "summary.json").read_text())["evaluations"]
    done = palimpsest("view", str(tmp_path / "e"), "--export", str(tmp_path / "e.eval"))
    assert "5 episodes of the agent: overwrite, mean score 60.0 %" in done.stdout
    log = read(tmp_path / "e.eval")
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == accuracy["accuracy"]["mean"] == 0.6
    assert log["eval"]["model"] == str(tiny_model_folder)
    (seen,) = read_by_inspect(tmp_path / "e.eval")
    assert seen[:2] == ["success", 0.6]
    assert sorted(each[-1]["reward"] for each in seen[2]) == [0.0, 0.0, 1.0, 1.0, 1.0]
