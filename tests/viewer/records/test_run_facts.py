"""Facts of runs: the list, configuration, rows, pace; damaged files leave the other facts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from palimpsest.app.viewer_job import export
from palimpsest.errors import PalimpsestError
from palimpsest.viewer.records.run_facts import names_of, rows_since, seconds_left, spark
from palimpsest.viewer.records.run_status import RowFiles, holder_of
from palimpsest.viewer.records.sources import Library, NotThere
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, group, run_folder, sample

ROWS = [{"step": step, "reward/mean": step / 10, "policy/entropy": 1.0} for step in range(1, 5)]
GOOD = group("good", (1.0,))


def test_only_rows_after_a_step_are_sent() -> None:
    page = rows_since(ROWS, 2)
    assert [row["step"] for row in page["rows"]] == [3, 4]
    assert rows_since(ROWS, page["next"])["rows"] == []


def test_a_spark_line_has_few_points_and_no_missing_values() -> None:
    rows = [{"step": step, "r": None if step == 3 else float(step)} for step in range(1000)]
    assert len(spark(rows, "r")) <= 60
    assert spark([], "r") == []


def test_the_seconds_left_follow_the_pace_of_the_last_steps() -> None:
    timings = [{"step": step, "rollout_s": 100.0 if step < 30 else 1.0, "learn_s": 1.0} for step in range(50)]
    assert seconds_left(timings, 50, 60) == 20.0
    assert seconds_left(timings, 60, 60) is None
    assert seconds_left([], 0, 60) is None
    assert names_of(ROWS) == ["policy/entropy", "reward/mean"]


@pytest.fixture
def api(tmp_path: Path) -> ViewerApi:
    run_folder(tmp_path / "first", ROWS, timings=[{"step": 1, "rollout_s": 2.0}], events=[{"kind": "started"}])
    evaluation_folder(tmp_path / "eval", [sample("set", "a", 1.0)])
    return ViewerApi(Library([tmp_path]))


def test_the_list_has_status_and_progress(api: ViewerApi) -> None:
    rows = {row["name"]: row for row in api.get("/api/runs")["runs"]}
    assert rows["first"]["status"] == "finished"
    assert (rows["first"]["step"], rows["first"]["steps"], rows["first"]["recipe"]) == (4, 4, "small")
    assert rows["eval"]["kind"] == "evaluation"


def test_a_run_has_its_configuration_flat_and_its_rows(api: ViewerApi) -> None:
    facts = api.get("/api/runs/first")
    assert facts["config"]["train.max_steps"] == 4
    assert facts["metrics"] == ["policy/entropy", "reward/mean"]
    rows = api.get("/api/runs/first/metrics", {"since": "3", "keys": "reward/mean"})["rows"]
    assert rows == [{"step": 4, "reward/mean": 0.4}]
    assert api.get("/api/runs/first/timings")["rows"][0]["rollout_s"] == 2.0
    assert api.get("/api/runs/first/events")["rows"][0]["kind"] == "started"


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
def test_an_address_with_nothing_is_not_there(path: str, query: dict[str, str], api: ViewerApi) -> None:
    with pytest.raises(NotThere):
        api.get(path, query)


def test_a_run_that_is_moved_while_it_is_shown_is_gone(tmp_path: Path, api: ViewerApi) -> None:
    (tmp_path / "first").rename(tmp_path.parent / "moved")
    with pytest.raises(PalimpsestError, match="moved or deleted"):
        api.get("/api/runs/first")
    assert {row["status"] for row in api.get("/api/runs")["runs"] if row["name"] == "first"} == {"gone"}


def test_an_unreadable_configuration_leaves_the_other_facts(tmp_path: Path, api: ViewerApi) -> None:
    (tmp_path / "first" / "config.yaml").write_bytes(b"\xff: [")
    assert api.get("/api/runs/first")["steps"] is None


def merged(levels: int) -> str:
    """Mappings that merge ten of the one before: 10 ** levels values where each merge is carried out."""
    lines = [
        f"a{at}: &a{at} {{k{at}: 1, <<: [{','.join([f'*a{at - 1}'] * 10)}]}}" if at else "a0: &a0 {x: 1}"
        for at in range(levels + 1)
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("config", "trouble"),
    [
        ("a: &a {b: *a}\n", "an alias contains itself"),
        ("a: &a [1, *a]\n", "an alias contains itself"),
        ("".join(f"k{at}: &k{at} [{', '.join([f'*k{at - 1}' if at else 'x'] * 12)}]\n" for at in range(7)), "aliases"),
        ("".join(f"k{at}: &k{at} [{', '.join([f'*k{at - 1}' if at else 'x'] * 30)}]\n" for at in range(3)), "values"),
        (merged(11), "aliases expand to too many values"),
        ("a: " + "[" * 40 + "]" * 40, "levels"),
        ("# " + "x" * (1 << 18), "more than 256 KiB"),
        ("a: [1\n", "unreadable"),
        ("just a text\n", "no keys"),
    ],
)
def test_a_configuration_that_cannot_be_shown_has_a_reason(config: str, trouble: str, tmp_path: Path) -> None:
    (run_folder(tmp_path / "run") / "config.yaml").write_text(config)
    facts = ViewerApi(Library([tmp_path / "run"])).get("/api/runs/run")
    assert facts["config"] == {}
    assert trouble in facts["trouble"]
    assert "\n" not in facts["trouble"]
    assert export([tmp_path / "run"], tmp_path / "out.html")[0].content.data


@pytest.mark.parametrize("evaluations", [[1.0], [{"accuracy": 1}], [{"accuracy": None}], {"accuracy": 1}])
def test_a_summary_of_other_types_has_no_accuracy(evaluations: Any, tmp_path: Path) -> None:
    folder = evaluation_folder(tmp_path / "ev", [sample("set", "a", 1.0)])
    (folder / "summary.json").write_bytes(orjson.dumps({"evaluations": evaluations}))
    run_folder(tmp_path / "run")
    rows = {row["key"]: row for row in ViewerApi(Library([tmp_path])).get("/api/runs")["runs"]}
    assert rows.keys() == {"ev", "run"}
    assert rows["ev"]["accuracy"] == []


def test_metrics_of_other_types_and_without_a_finite_sum_are_listed(tmp_path: Path) -> None:
    huge = ("reward/mean", "reward/std", "sampler/logprob_gap_mean", "groups/with_signal")
    rows = [{"step": at, **dict.fromkeys(huge, 1e308), "reward/ungraded": 1, "outcome/x": {}} for at in range(1, 300)]
    for name in ("one", "two"):
        run_folder(tmp_path / name, rows, steps=1000)
    runs = ViewerApi(Library([tmp_path])).get("/api/runs")["runs"]
    assert [row["alarm"]["key"] for row in runs] == ["logprob_gap"] * 2


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "timings.jsonl", ".lock", "summary.json"])
def test_a_pipe_instead_of_a_file_blocks_nothing(name: str, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", records={1: [GOOD]})
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert list(RowFiles().rows(run / name)) == []
    assert holder_of(run) is None
    assert ViewerApi(Library([run])).get("/api/runs/run")["name"] == "run"


def test_pipes_in_an_evaluation_block_nothing(tmp_path: Path) -> None:
    folder = evaluation_folder(tmp_path / "ev", [sample("set", "a", 1.0)])
    for name in ("evaluation.json", "episodes.jsonl.zst"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    assert len(ViewerApi(Library([folder])).get("/api/runs/ev/items")["rows"]) == 1
