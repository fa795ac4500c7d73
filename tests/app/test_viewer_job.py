"""`palimpsest view --export`: contents, scores, limits and refusals; the viewer as a service."""

from __future__ import annotations

import base64
import gc
import gzip
import json
import os
import re
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from palimpsest.app import viewer_job
from palimpsest.app.viewer_job import View, export, view
from palimpsest.errors import ConfigError, DataError, PalimpsestError, RunError
from palimpsest.evaluation.sample_log import Sample
from palimpsest.rollout.trajectory_file import encode_groups, group_lines
from palimpsest.servers.http_service import bound
from palimpsest.types import Group
from palimpsest.viewer.records.sources import Library
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.command import Run
from support.inspect_logs import read_by_inspect
from support.view_folders import chunks, evaluation_folder, group, run_folder, sample, state_of

REWARDS: list[tuple[float | None, ...]] = [(1.0, 1.0), (0.0, 1.0), (None, 0.0), (1.0, 0.5)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    records = {step: [group(f"p{at}", rewards) for at, rewards in enumerate(REWARDS)] for step in (1, 2)}
    metrics = [{"step": step, "reward/mean": 0.5} for step in (1, 2)]
    return run_folder(tmp_path / "run", metrics, records=records)


def held(page: Path) -> dict[str, Any]:
    packed = re.search(rb'id="answers">([^<]*)</script>', page.read_bytes())
    assert packed is not None
    matches: dict[str, Any] = orjson.loads(gzip.decompress(base64.b64decode(packed[1])))
    return matches


def test_a_page_holds_what_a_server_would_answer(run: Path, tmp_path: Path) -> None:
    before = state_of(run)
    (written,) = export([run], tmp_path / "out.html", only="1/0,2/1")
    answers = held(written.path)
    api = ViewerApi(Library([run]))
    for path in ("/api/runs/run/metrics", "/api/runs/run/alarms", "/api/runs/run/events"):
        assert answers[path] == orjson.loads(orjson.dumps(api.get(path)))
    assert answers["/api/runs/run/steps"] == [2]
    assert len(answers["/api/runs/run/steps/2/episodes"]["rows"]) == 8
    assert (written.content.episodes, len(written.content.data)) == (2, written.path.stat().st_size)
    assert any(note.startswith("omitted 6 of the step's 8 episodes") for note in written.content.notes)
    assert state_of(run) == before


def test_ungraded_and_wrong_episodes_come_first(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[int, int]] = []
    monkeypatch.setattr("palimpsest.viewer.export.inline_page._EPISODES", 4)

    def choose(answers: Any, export: Any, at: str, place: tuple[int, int]) -> bool:
        chosen.append(place)
        return True

    monkeypatch.setattr("palimpsest.viewer.export.inline_page._episode", choose)
    export([run], tmp_path / "out.html", step="1")
    assert chosen == [(1, 0), (2, 1), (3, 1), (0, 0)]


def test_a_too_large_file_is_refused_with_its_size(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer_job, "MOST_BYTES", 20_000)
    message = r"its 1 episodes would take 0\.\d MB, the limit is 0; choose fewer"
    with pytest.raises(ConfigError, match=message) as refused:
        export([run], tmp_path / "out.html", only="0/0")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out.html").exists()


def test_the_groups_of_chosen_episodes_are_measured(run: Path, tmp_path: Path, tiny_model_folder: Path) -> None:
    tokenizer = str(tiny_model_folder)
    (written,) = export([run], tmp_path / "out.html", only="2/0", step="1", tokenizer=tokenizer)
    served = ViewerApi(Library([run]), tokenizer=tokenizer).get("/api/runs/run/steps/1/measures", {"groups": "2"})
    measures = held(written.path)["/api/runs/run/steps/1/measures"]
    added = {location: item for location, item in measures.items() if "left_out" not in item}
    assert added == orjson.loads(orjson.dumps(served))
    assert sorted(added) == ["2/0", "2/1"]
    assert len(measures) == 8


def test_a_log_holds_the_chosen_episodes_or_all(run: Path, tmp_path: Path) -> None:
    (chosen,) = export([run], tmp_path / "out.eval", only="2/1,0/0", step="1")
    with zipfile.ZipFile(chosen.path) as archive:
        header, names = orjson.loads(archive.read("header.json")), set(archive.namelist())
    assert names >= {"samples/g-p0_epoch_1.json", "samples/g-p2_epoch_2.json"}
    assert chosen.content.episodes == header["results"]["total_samples"] == 2
    assert chosen.content.mean == header["results"]["scores"][0]["metrics"]["mean"]["value"] == 0.5
    (complete,) = export([run], tmp_path / "all" / "out.eval")
    assert complete.content.episodes == 8
    assert any("step 2 only" in note for note in complete.content.notes)


@pytest.mark.parametrize(
    ("message", "name", "options"),
    [
        ("expected a name that ends in", "out.pdf", {}),
        ("expected a name that ends in", "out.csv", {}),
        ("expected GROUP/ROLLOUT", "out.html", {"only": "3"}),
        ("names no episode", "out.html", {"only": ","}),
        ("no such episode", "out.html", {"only": "9/9"}),
        ("no such episode", "out.eval", {"only": "9/9"}),
        ("1 to 2", "out.html", {"step": "9"}),
        ("1 to 2", "out.eval", {"step": "9"}),
        ("not 2", "out.html", {}),
    ],
)
def test_an_impossible_export_is_refused(
    message: str, name: str, options: dict[str, Any], run: Path, tmp_path: Path
) -> None:
    if message == "not 2":  # runs of one folder
        run_folder(run.parent / "runs" / "other")
        run = run_folder(run.parent / "runs" / "another").parent
    with pytest.raises(PalimpsestError, match=message) as refused:
        export([run], tmp_path / name, **options)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("source", "out", "message"),
    [
        ("run", "run/metrics.html", "is inside"),
        ("run", "run/new/out.html", "is inside"),
        ("run", "link/events.eval", "is inside"),
        ("alone.jsonl", "link.eval", "is the input file"),
        ("alone.jsonl", "same.html", "is the input file"),
    ],
)
def test_an_exported_file_is_never_overwritten(source: str, out: str, message: str, run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.jsonl"
    alone.write_bytes(group_lines(group("p", (1.0,))))
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "same.html").hardlink_to(alone)
    (tmp_path / "link.eval").symlink_to(alone)
    before, lines = state_of(run), alone.read_bytes()
    with pytest.raises(ConfigError, match=f"{message}.*: use another path"):
        export([tmp_path / source], tmp_path / out, force=True)
    assert (state_of(run), alone.read_bytes()) == (before, lines)


def test_another_file_is_moved_aside_with_force_alone(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "notes.eval"
    out.write_text("mine")
    with pytest.raises(RunError, match="exists: use another --export, or --force to rename it"):
        export([run], out)
    assert out.read_text() == "mine"
    export([run], out, force=True)
    assert (tmp_path / "notes.eval.old-1").read_text() == "mine"
    assert zipfile.is_zipfile(out)


def test_an_unwritable_path_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "dir.html").mkdir()
    (tmp_path / "file").touch()
    for name in ("dir.html", "file/out.html"):
        with pytest.raises(PalimpsestError, match=name) as refused:
            export([run], tmp_path / name, force=True)
        assert "partial" not in str(refused.value)


@pytest.mark.parametrize("name", ["out.html", "out.eval"])
def test_what_no_json_holds_is_exported_as_it_is_served(name: str, tmp_path: Path) -> None:
    complete = group("p", (0.0, 1.0))
    first, second = complete.trajectories
    odd = replace(complete, trajectories=(replace(first, rollout=10**30, answer="\ud800"), second))
    config = 'raw: !!binary "aGk="\nwide: 100000000000000000000000\nlone: "\\ud800"\n'
    run = run_folder(Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff")), config=config, records={1: [odd]})
    (run / "metrics.jsonl").write_text('{"step": 1, "wide": 100000000000000000000000}\n')
    (written,) = export([run], tmp_path / name)
    assert written.content.episodes == 2
    assert not any("omitted" in result for result in written.content.notes)
    assert written.path.read_bytes() == written.content.data


def test_an_unreadable_episode_is_omitted(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get, error = ViewerApi.get, Exception()

    def failing(answers: ViewerApi, path: str, query: Any = None) -> Any:
        if path.endswith("/rollouts/1"):
            raise error
        return get(answers, path, query)

    monkeypatch.setattr(ViewerApi, "get", failing)
    error = DataError("a broken\nepisode")
    (written,) = export([run], tmp_path / "out.html", only="0/0,0/1")
    names = [re.search(r"/groups/(\d+)/rollouts/(\d+)$", path) for path in held(written.path)]
    assert {name.groups() for name in names if name} == {("0", "0")}
    assert "episode 0/1 omitted: unreadable (a broken episode)" in written.content.notes
    error = TypeError("a defect")
    with pytest.raises(TypeError, match="a defect"):
        export([run], tmp_path / "defect.html", only="0/0,0/1")
    assert not (tmp_path / "defect.html").exists()


@pytest.mark.parametrize("name", ["out.html", "out.eval"])
def test_damaged_groups_are_omitted_with_a_note(name: str, tmp_path: Path) -> None:
    odd = orjson.loads(group_lines(group("odd", (1.0,))))
    odd["turns"][0]["prompt_ids"] = ["a"]
    frames = encode_groups([group("good", (1.0,))]), zstandard.compress(orjson.dumps(odd) + b"\n")
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(frames) + encode_groups([group("cut", (1.0,))])[:-5])
    (written,) = export([path], tmp_path / name)
    assert written.content.episodes == 1
    assert any("g-odd" in result and "omitted" in result for result in written.content.notes)
    assert any("damaged after 2 complete groups" in result for result in written.content.notes)


def test_the_command_says_what_it_wrote_and_left_out(run: Path, tmp_path: Path, palimpsest: Run) -> None:
    done = palimpsest("view", str(run), "--export", str(tmp_path / "out.html"), "--episodes", "1/0")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r".*out\.html: 1 episode, \d\d+ kB\n", done.stdout)
    assert "omitted 7 of the step's 8 episodes" in done.stderr
    assert "--export" in palimpsest("view", str(run), "--episodes", "1/0").stderr


AGENT = [chunks(4, f"p{n}", 1.0) for n in range(6)] + [chunks(64, "p6", 0.0)]
BASELINES = [chunks(4, f"p{n}", 0.0, player="closed book", baseline=True) for n in range(6)]
CELL = ("set", "size", "unit", "player", "baseline")


def recorded(item: Sample) -> Group:
    """The sample's episode, with its grade."""
    made = group(item.id, (item.value,))
    named = tuple(replace(one, group_id=item.group_id, rollout=item.draw) for one in made.trajectories)
    return Group(made.problem, named, made.grades)


def wrong_alone(path: Path, samples: Sequence[Sample] = (*BASELINES, *AGENT)) -> Path:
    """An evaluation that recorded what went wrong, which is the default."""
    folder = evaluation_folder(path, samples)
    (folder / "summary.json").write_text(json.dumps({"model": "some/model", "policy": {"name": "overwrite"}}))
    wrong = [recorded(item) for item in samples if item.value is None or item.value < 1]
    if wrong:
        (folder / "episodes.jsonl.zst").write_bytes(encode_groups(wrong))
    return folder


def read(path: Path) -> dict[str, Any]:
    """An archive's header and samples, as its zip has them."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith("samples/")]
        header = json.loads(archive.read("header.json"))
        return {**header, "samples": [json.loads(archive.read(name)) for name in names]}


def test_right_episodes_without_a_record_are_exported(tmp_path: Path) -> None:
    written, _ = export([wrong_alone(tmp_path / "eval")], tmp_path / "out.eval")
    log = read(written.path)
    (score,) = log["results"]["scores"]
    values = [item["scores"]["reward"]["value"] for item in log["samples"]]
    assert sorted(values) == [0.0, *[1.0] * 6]
    assert score["metrics"]["mean"]["value"] == pytest.approx(6 / 7) == written.content.mean
    assert score["metrics"]["4 chunks"]["value"] == 1.0
    assert (score["scored_samples"], score["unscored_samples"]) == (7, 0)
    assert (log["eval"]["model"], log["eval"]["metadata"]["player"]) == ("some/model", "agent: recall")
    cells = {tuple(item["metadata"][name] for name in CELL) for item in log["samples"]}
    assert cells == {("synthetic", 4, "chunks", "recall", False), ("synthetic", 64, "chunks", "recall", False)}
    assert [bool(item["messages"]) for item in log["samples"]] == [False] * 6 + [True]
    assert written.content.notes == [
        "6 of 7 episodes of the agent: recall were not recorded and have a score without messages; "
        "set evaluation.record=all to record every episode"
    ]
    assert log["eval"]["metadata"]["left_out"] == written.content.notes


def test_baselines_have_separate_logs(tmp_path: Path) -> None:
    _, other = export([wrong_alone(tmp_path / "eval")], tmp_path / "out.eval")
    assert other.path.name == "out.closed-book.eval"
    assert (other.content.player, other.content.mean) == ("baseline: closed book", 0.0)
    log = read(other.path)
    assert log["eval"]["task"] == "eval, closed book"
    assert len(log["samples"]) == 6
    cells = {tuple(item["metadata"][name] for name in CELL) for item in log["samples"]}
    assert cells == {("synthetic", 4, "chunks", "closed book", True)}


def test_every_policy_has_a_separate_log(tmp_path: Path) -> None:
    played = (("fold", 1.0), ("note", 0.0))
    rows = [sample("dev", f"p{n}", value, player=policy) for policy, value in played for n in range(3)]
    written, other = export([evaluation_folder(tmp_path / "eval", rows)], tmp_path / "out.eval")
    assert (written.content.player, written.content.mean, written.content.episodes) == ("agent: fold", 1.0, 3)
    assert (other.path.name, other.content.player, other.content.mean) == ("out.note.eval", "agent: note", 0.0)
    log = read(other.path)
    assert log["eval"]["task"] == "eval, note"
    assert {item["metadata"]["player"] for item in log["samples"]} == {"note"}


def test_the_score_of_selected_episodes_is_noted(tmp_path: Path) -> None:
    (written,) = export([wrong_alone(tmp_path / "eval")], tmp_path / "out.eval", only="6/0")
    assert (written.content.episodes, written.content.mean) == (1, 0.0)
    assert written.content.notes == ["the log's score covers 1 selected episode, not the whole evaluation"]


def test_evaluations_are_exported_from_a_record_or_without_one(tmp_path: Path) -> None:
    folder = wrong_alone(tmp_path / "eval")
    assert export([folder / "episodes.jsonl.zst"], tmp_path / "out.eval")[0].content.mean == pytest.approx(6 / 7)
    (page,) = export([folder], tmp_path / "out.html")
    assert any("6 of 7 episodes of the agent: recall were not recorded" in note for note in page.content.notes)
    (written,) = export([wrong_alone(tmp_path / "right", AGENT[:3])], tmp_path / "right.eval")
    assert (written.content.episodes, written.content.mean) == (3, 1.0)


def test_an_ungraded_episode_has_no_score_and_an_evaluation_that_did_not_end_no_success(tmp_path: Path) -> None:
    folder = wrong_alone(tmp_path / "eval", [*AGENT[:1], chunks(4, "lost", None)])
    (folder / "summary.json").unlink()
    log = read(export([folder], tmp_path / "out.eval")[0].path)
    (score,) = log["results"]["scores"]
    assert (score["metrics"]["mean"]["value"], score["unscored_samples"]) == (1.0, 1)
    assert log["status"] in ("started", "cancelled")


def half(problem: Any, trajectory: Any) -> float:
    """1.0 for problems whose id ends in an even digit."""
    return float(problem.id[-1] in "02468")


def test_inspect_reads_the_accuracy_back(tiny_model_folder: Path, tmp_path: Path, palimpsest: Run) -> None:
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
    (shown,) = read_by_inspect(tmp_path / "e.eval")
    assert shown[:2] == ["success", 0.6]
    assert sorted(item[-1]["reward"] for item in shown[2]) == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_serving_collects_garbage_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests_own, while_serving = gc.get_threshold(), list[int]()
    gc.set_threshold(700, 10, 10)  # Python's
    before = gc.get_threshold()

    def served(server: Any) -> None:
        while_serving.append(gc.get_threshold()[0])

    monkeypatch.setattr("palimpsest.app.viewer_job.Server.run", served)
    try:
        view(View((run_folder(tmp_path / "run"),), port=0), on_ready=lambda url: None)
        assert while_serving[0] > 50 * before[0]
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*tests_own)


def test_a_viewer_whose_port_is_taken_leaves_no_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="can't listen there"):
            view(View((run_folder(tmp_path / "run"),), port=taken.getsockname()[1]), on_ready=lambda url: None)
    assert set(threading.enumerate()) <= before
