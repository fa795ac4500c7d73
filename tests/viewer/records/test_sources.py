"""Sources under the paths of a user: runs, evaluations, records; links that are not followed."""

from __future__ import annotations

import base64
import gzip
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from palimpsest.app.viewer_job import export
from palimpsest.errors import RunError
from palimpsest.events import Event, Plain
from palimpsest.rollout.trajectory_file import encode_groups, group_lines
from palimpsest.viewer.records import sources
from palimpsest.viewer.records.sources import Library, NotThere, SourceKind
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, group, run_folder, sample

EVENTS = tuple(Event(Plain("noted", {"text": "words " * 50}), 1) for _ in range(500))
"""Enough that the keys behind them aren't among the first bytes of a line."""


def test_a_folder_of_runs_shows_every_run_and_evaluation_below_it(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "first", records={1: [group("a")]})
    run_folder(tmp_path / "runs" / "first" / "cold-start")
    evaluation_folder(tmp_path / "runs" / "eval", [sample("set", "a", 1.0)])
    (tmp_path / "runs" / ".hidden").mkdir()
    result = Library([tmp_path / "runs"]).sources()
    assert {(item.name, item.kind) for item in result} == {
        ("first", SourceKind.RUN),
        ("first/cold-start", SourceKind.RUN),
        ("eval", SourceKind.EVALUATION),
    }


def test_renamed_folders_are_shown_if_named(tmp_path: Path) -> None:
    for name in ("first", "first.old-1", "of.old-age"):
        run_folder(tmp_path / name)
    names = {path: [item.name for item in Library([path]).sources()] for path in (tmp_path, tmp_path / "first.old-1")}
    assert names == {tmp_path: ["first", "of.old-age"], tmp_path / "first.old-1": ["first.old-1"]}


def test_a_file_in_a_run_stands_for_the_run(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first", records={1: [group("a")]})
    record = run / "trajectories" / "step-000001.jsonl.zst"
    kinds = {
        path: Library([path]).sources()[0].kind for path in (run, run / "config.yaml", run / "trajectories", record)
    }
    assert kinds == {
        run: SourceKind.RUN,
        run / "config.yaml": SourceKind.RUN,
        run / "trajectories": SourceKind.RUN,
        record: SourceKind.RECORD,
    }


def test_runs_of_one_name_have_constant_keys(tmp_path: Path) -> None:
    for position in ("a", "b"):
        run_folder(tmp_path / position / "first")
    library = Library([tmp_path / "a" / "first", tmp_path / "b" / "first"])
    keys = {source.path.parent.name: source.key for source in library.sources()}
    assert keys == {"a": "first", "b": "first-2"}
    shutil.rmtree(tmp_path / "a")
    assert library.source("first-2").path.parent.name == "b"
    assert library.source("first").path == tmp_path / "a" / "first"  # gone, and known still


@pytest.fixture
def rescan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for new runs at every request."""
    monkeypatch.setattr(sources, "_AGAIN_SECONDS", 0.0)


@pytest.mark.usefixtures("rescan")
def test_a_new_run_appears_while_its_folder_is_shown(tmp_path: Path) -> None:
    run_folder(tmp_path / "one")
    library = Library([tmp_path])
    run_folder(tmp_path / "another")
    assert {source.name for source in library.sources()} == {"one", "another"}
    with pytest.raises(NotThere, match="two"):
        library.source("two")


@pytest.mark.parametrize("name", ["nothing", "empty", "notes.txt", "metrics.jsonl"])
def test_a_path_with_nothing_to_show_is_rejected_in_a_line_with_the_fix(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(RunError, match="; pass") as refused:
        Library([tmp_path / name])
    assert str(tmp_path / name) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("rescan")
def test_a_folder_that_is_followed_may_be_empty(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--follow"):
        Library([tmp_path])
    library = Library([tmp_path], wait=True)
    assert ViewerApi(library).get("/api/runs") == {"runs": [], "left": 0, "awaited": [str(tmp_path)]}
    run_folder(tmp_path / "one")
    answer = ViewerApi(library).get("/api/runs")
    assert ([row["name"] for row in answer["runs"]], answer["awaited"]) == (["one"], [])
    with pytest.raises(RunError, match="no such file"):
        Library([tmp_path / "none"], wait=True)


def test_a_folder_shows_its_files_of_episodes_and_no_others(tmp_path: Path) -> None:
    """The output folder of `palimpsest replay` may contain data and notes too."""
    one = group("a")
    noted = replace(one, trajectories=tuple(replace(item, events=EVENTS) for item in one.trajectories))
    (tmp_path / "inner").mkdir()
    (tmp_path / "replay.jsonl.zst").write_bytes(encode_groups([one]))
    (tmp_path / "inner" / "noted.jsonl").write_bytes(group_lines(noted))
    (tmp_path / "cut.jsonl.zst").write_bytes(encode_groups([one])[:30])
    (tmp_path / "damaged.jsonl.zst").write_bytes(b"not a frame")
    (tmp_path / "train.jsonl").write_text('{"id": "a", "question": "Who?", "answers": ["Ann"], "context": "Ann."}\n')
    (tmp_path / "corpus.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "Ann."}\n'))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / ".hidden.jsonl.zst").write_bytes(encode_groups([one]))
    os.mkfifo(tmp_path / "pipe.jsonl")
    run_folder(tmp_path / "run", records={1: [one]})
    (tmp_path / "run" / "own.jsonl.zst").write_bytes(encode_groups([one]))
    library = Library([tmp_path])
    assert {(item.name, item.kind) for item in library.sources()} == {
        ("replay.jsonl.zst", SourceKind.RECORD),
        ("inner/noted.jsonl", SourceKind.RECORD),
        ("cut.jsonl.zst", SourceKind.RECORD),  # opening it reports the damage
        ("damaged.jsonl.zst", SourceKind.RECORD),
        ("run", SourceKind.RUN),
    }
    for source in library.sources():
        step = "1" if source.kind is SourceKind.RUN else "all"
        rows = ViewerApi(library).get(f"/api/runs/{source.key}/steps/{step}/episodes")
        assert bool(rows["rows"]) is (source.name not in ("cut.jsonl.zst", "damaged.jsonl.zst"))
        assert bool(rows["torn"]) is (source.name in ("cut.jsonl.zst", "damaged.jsonl.zst"))


@pytest.mark.usefixtures("rescan")
def test_only_the_newest_runs_are_listed_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MOST", 3)
    for at in range(5):
        for path in run_folder(tmp_path / f"r{at}").iterdir():
            os.utime(path, (1e9 - at, 1e9 - at))
    answers = ViewerApi(Library([tmp_path]))
    listed = answers.get("/api/runs")
    assert ([run["key"] for run in listed["runs"]], listed["left"]) == (["r0", "r1", "r2"], 2)
    assert answers.get("/api/runs/r4")["name"] == "r4"  # a link to it still works
    run_folder(tmp_path / "r9")
    listed = answers.get("/api/runs")
    assert ([run["key"] for run in listed["runs"]], listed["left"]) == (["r0", "r1", "r9"], 3)


def test_a_run_that_several_links_lead_to_is_shown_once(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "one" / "self").symlink_to(tmp_path / "runs" / "one")
    assert [item.name for item in Library([tmp_path / "runs"]).sources()] == ["one"]


def test_links_out_of_a_runs_folder_are_named_and_not_followed(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "run", [{"step": 1, "reward/mean": 0.5}], records={1: [group("tea")]})
    outside = run_folder(tmp_path / "outside", [{"step": 1, "reward/mean": 0.875}], records={1: [group("secret")]})
    (outside / "secret.yaml").write_text("password: secret\n")
    for name, target in (("config.yaml", "secret.yaml"), ("metrics.jsonl", "metrics.jsonl"), ("more", ".")):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside / target)
    record = run / "trajectories" / "step-000001.jsonl.zst"
    record.unlink()
    record.symlink_to(outside / "trajectories" / record.name)
    answers = ViewerApi(Library([tmp_path / "runs"]))
    assert [item["name"] for item in answers.get("/api/runs")["runs"]] == ["run"]
    facts = answers.get("/api/runs/run")
    assert facts["config"] == {}
    assert "link out of the folder: config.yaml, metrics.jsonl" in facts["trouble"]
    assert answers.get("/api/runs/run/metrics")["rows"] == []
    with pytest.raises(NotThere, match=r"step-000001\.jsonl\.zst links out of run"):
        answers.get("/api/runs/run/steps/1/episodes")
    with pytest.raises(NotThere, match="does not follow"):
        export([run], tmp_path / "out.eval")
    record.unlink()
    page = export([run], tmp_path / "out.html")[0].path.read_bytes()
    packed = re.search(rb'id="answers">([^<]*)</script>', page)
    assert packed is not None
    assert b"password" not in gzip.decompress(base64.b64decode(packed[1]))


def test_links_out_of_the_users_folder_are_not_followed(tmp_path: Path) -> None:
    outside = run_folder(tmp_path / "elsewhere" / "theirs", records={1: [group("secret")]})
    mine = run_folder(tmp_path / "runs" / "mine")
    for name, target in (("all", tmp_path), ("one", outside), ("latest", mine)):
        (tmp_path / "runs" / name).symlink_to(target)
    (tmp_path / "runs" / "episodes.jsonl.zst").symlink_to(outside / "trajectories" / "step-000001.jsonl.zst")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    for path in (tmp_path / "runs", tmp_path / "link"):
        assert [item.name for item in Library([path]).sources()] == ["mine"]
    assert [item.name for item in Library([tmp_path / "runs" / "one"]).sources()] == ["one"]  # named, so wanted


def test_a_link_to_the_samples_of_another_evaluation_is_not_followed(tmp_path: Path) -> None:
    folder, outside = (evaluation_folder(tmp_path / name, [sample("set", name, 1.0)]) for name in ("ev", "outside"))
    (folder / "samples.jsonl").unlink()
    (folder / "samples.jsonl").symlink_to(outside / "samples.jsonl")
    with pytest.raises(NotThere, match=r"samples\.jsonl links out of ev"):
        ViewerApi(Library([folder])).get("/api/runs/ev/items")


def test_links_within_a_runs_folder_are_followed(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [{"step": 1, "reward/mean": 0.5}])
    (run / "metrics.jsonl").rename(run / "rows.jsonl")
    (run / "metrics.jsonl").symlink_to("rows.jsonl")
    assert len(ViewerApi(Library([run])).get("/api/runs/run/metrics")["rows"]) == 1
