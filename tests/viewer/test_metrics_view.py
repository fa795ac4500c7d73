"""Rows, events and what is told of a run's pace."""

from __future__ import annotations

from pathlib import Path

import pytest

from palimpsest.errors import PalimpsestError
from palimpsest.viewer.records.run_facts import names_of, rows_since, seconds_left, spark
from palimpsest.viewer.records.sources import Library, NotThere
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, run_folder, sample

ROWS = [{"step": step, "reward/mean": step / 10, "policy/entropy": 1.0} for step in range(1, 5)]


def test_only_rows_since_a_step_come_and_the_next_begins_there() -> None:
    told = rows_since(ROWS, 2)
    assert [row["step"] for row in told["rows"]] == [3, 4]
    assert rows_since(ROWS, told["next"])["rows"] == []


def test_a_spark_line_has_few_points_and_leaves_out_what_is_no_number() -> None:
    rows = [{"step": step, "r": None if step == 3 else float(step)} for step in range(1000)]
    assert len(spark(rows, "r")) <= 60
    assert spark([], "r") == []


def test_what_is_left_goes_by_the_pace_of_late() -> None:
    timings = [{"step": step, "rollout_s": 100.0 if step < 30 else 1.0, "learn_s": 1.0} for step in range(50)]
    assert seconds_left(timings, 50, 60) == 20.0
    assert seconds_left(timings, 60, 60) is None
    assert seconds_left([], 0, 60) is None
    assert names_of(ROWS) == ["policy/entropy", "reward/mean"]


def answers(path: Path) -> ViewerApi:
    run_folder(path / "first", ROWS, timings=[{"step": 1, "rollout_s": 2.0}], events=[{"kind": "started"}])
    evaluation_folder(path / "eval", [sample("set", "a", 1.0)])
    return ViewerApi(Library([path]))


def test_the_list_says_how_each_stands(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in answers(tmp_path).get("/api/runs")["runs"]}
    assert rows["first"]["status"] == "finished"
    assert (rows["first"]["step"], rows["first"]["steps"], rows["first"]["recipe"]) == (4, 4, "small")
    assert rows["eval"]["kind"] == "evaluation"


def test_a_run_tells_its_configuration_flat_and_its_rows(tmp_path: Path) -> None:
    told = answers(tmp_path)
    facts = told.get("/api/runs/first")
    assert facts["config"]["train.max_steps"] == 4
    assert facts["metrics"] == ["policy/entropy", "reward/mean"]
    rows = told.get("/api/runs/first/metrics", {"since": "3", "keys": "reward/mean"})["rows"]
    assert rows == [{"step": 4, "reward/mean": 0.4}]
    assert told.get("/api/runs/first/timings")["rows"][0]["rollout_s"] == 2.0
    assert told.get("/api/runs/first/events")["rows"][0]["kind"] == "started"


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/api/runs/none", {}),
        ("/api/runs/../first", {}),
        ("/api/runs/eval/metrics", {}),
        ("/api/nothing", {}),
        ("/api/runs/first/metrics", {"since": "x"}),
        ("/api/runs/first/metrics", {"since": "9" * 40}),
    ],
)
def test_what_is_not_there_is_told(path: str, query: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(NotThere):
        answers(tmp_path).get(path, query)


def test_a_run_that_was_moved_while_it_was_shown_says_so(tmp_path: Path) -> None:
    told = answers(tmp_path)
    (tmp_path / "first").rename(tmp_path.parent / "moved")
    with pytest.raises(PalimpsestError, match="moved or deleted"):
        told.get("/api/runs/first")
    assert {row["status"] for row in told.get("/api/runs")["runs"] if row["name"] == "first"} == {"gone"}


def test_a_configuration_that_cannot_be_read_costs_only_what_it_says(tmp_path: Path) -> None:
    told = answers(tmp_path)
    (tmp_path / "first" / "config.yaml").write_bytes(b"\xff: [")
    assert told.get("/api/runs/first")["steps"] is None
