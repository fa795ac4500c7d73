"""What is found under the paths a user gives, and what is said of a path with nothing in it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from palimpsest.errors import RunError
from palimpsest.events import Event, Plain
from palimpsest.rollout.trajectory_file import encode_groups, group_lines
from palimpsest.viewer.records.sources import Library, NotThere, SourceKind
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, group, run_folder, sample

EVENTS = tuple(Event(Plain("noted", {"text": "words " * 50}), 1) for _ in range(500))
"""So many that the keys behind them aren't among the first bytes of a line."""


def test_a_folder_of_runs_shows_every_run_and_evaluation_below_it(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "first", records={1: [group("a")]})
    run_folder(tmp_path / "runs" / "first" / "cold-start")
    evaluation_folder(tmp_path / "runs" / "eval", [sample("set", "a", 1.0)])
    (tmp_path / "runs" / ".hidden").mkdir()
    found = Library([tmp_path / "runs"]).sources()
    assert {(each.name, each.kind) for each in found} == {
        ("first", SourceKind.RUN),
        ("first/cold-start", SourceKind.RUN),
        ("eval", SourceKind.EVALUATION),
    }


def test_a_file_inside_a_run_means_what_it_belongs_to(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first", records={1: [group("a")]})
    record = run / "trajectories" / "step-000001.jsonl.zst"
    kinds = {
        given: Library([given]).sources()[0].kind for given in (run, run / "config.yaml", run / "trajectories", record)
    }
    assert kinds == {
        run: SourceKind.RUN,
        run / "config.yaml": SourceKind.RUN,
        run / "trajectories": SourceKind.RUN,
        record: SourceKind.RECORD,
    }


def test_runs_of_one_name_have_keys_of_their_own_that_stay(tmp_path: Path) -> None:
    for place in ("a", "b"):
        run_folder(tmp_path / place / "first")
    library = Library([tmp_path / "a" / "first", tmp_path / "b" / "first"])
    keys = {source.path.parent.name: source.key for source in library.sources()}
    assert keys == {"a": "first", "b": "first-2"}
    shutil.rmtree(tmp_path / "a")
    assert library.source("first-2").path.parent.name == "b"
    assert library.source("first").path == tmp_path / "a" / "first"  # gone, and known still


def test_a_run_that_begins_while_its_folder_is_shown_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest.viewer.records.sources._AGAIN_SECONDS", 0.0)
    run_folder(tmp_path / "one")
    library = Library([tmp_path])
    run_folder(tmp_path / "another")
    assert {source.name for source in library.sources()} == {"one", "another"}


@pytest.mark.parametrize("name", ["nothing", "empty", "notes.txt", "metrics.jsonl"])
def test_a_path_with_nothing_to_look_at_is_refused_in_a_line_with_the_fix(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(RunError, match="; pass") as refused:
        Library([tmp_path / name])
    assert str(tmp_path / name) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_may_hold_nothing_yet_where_it_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest.viewer.records.sources._AGAIN_SECONDS", 0.0)
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
    """Such as the one that `palimpsest replay` writes into, with data and notes beside them."""
    one = group("a")
    noted = replace(one, trajectories=tuple(replace(each, events=EVENTS) for each in one.trajectories))
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
    assert {(each.name, each.kind) for each in library.sources()} == {
        ("replay.jsonl.zst", SourceKind.RECORD),
        ("inner/noted.jsonl", SourceKind.RECORD),
        ("cut.jsonl.zst", SourceKind.RECORD),  # what is wrong with it is told where it is opened
        ("damaged.jsonl.zst", SourceKind.RECORD),
        ("run", SourceKind.RUN),
    }
    for source in library.sources():
        step = "1" if source.kind is SourceKind.RUN else "all"
        rows = ViewerApi(library).get(f"/api/runs/{source.key}/steps/{step}/episodes")
        assert bool(rows["rows"]) is (source.name not in ("cut.jsonl.zst", "damaged.jsonl.zst"))
        assert bool(rows["torn"]) is (source.name in ("cut.jsonl.zst", "damaged.jsonl.zst"))


def test_an_unknown_key_is_told(tmp_path: Path) -> None:
    run_folder(tmp_path / "one")
    with pytest.raises(NotThere, match="two"):
        Library([tmp_path]).source("two")
