"""Items and scores of an evaluation: disagreements, players, sizes, requested episodes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.config.load import dump_config, load_recipe
from palimpsest.errors import RunError
from palimpsest.evaluation.sample_log import REQUESTED, write_request
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.types import Group
from palimpsest.viewer.records.sources import Library, NotThere
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import chunks, evaluation_folder, group, run_folder, sample

JUDGED = [
    sample("set", "right", 1.0, metrics={"judge": 1.0, "em": 1.0, "sub_em": 1.0}),
    sample("set", "generous", 1.0, metrics={"judge": 1.0, "em": 0.0, "sub_em": 0.0}),
    sample("set", "severe", 0.0, metrics={"judge": 0.0, "em": 0.0, "sub_em": 1.0}),
    sample("set", "wavers", 1.0, metrics={"judge": 1.0, "em": 1.0}),
    sample("set", "wavers", 0.0, draw=1, metrics={"judge": 0.0, "em": 0.0}),
    sample("set", "lost", None, reason="the judge didn't answer"),
]


def items(path: Path) -> Any:
    return ViewerApi(Library([path])).get(f"/api/runs/{path.name}/items")


def record(folder: Path, id: str, group_id: str) -> None:
    """Write the recorded episode of a problem."""
    made = group(id, (0.0,))
    named = tuple(replace(one, group_id=group_id) for one in made.trajectories)
    (folder / "episodes.jsonl.zst").write_bytes(encode_groups([Group(made.problem, named, made.grades)]))


def test_disagreements_of_judge_and_strings_are_first_and_then_draws_that_differ(tmp_path: Path) -> None:
    path = evaluation_folder(tmp_path / "eval", JUDGED)
    with (path / "samples.jsonl").open("ab") as file:
        file.write(b"{damaged\n")
    answer = items(path)
    rows = answer["rows"]
    assert [(row["id"], row["disagree"]) for row in rows[:3]] == [("generous", 2), ("severe", 2), ("wavers", 1)]
    assert [draw["value"] for draw in rows[2]["draws"]] == [1.0, 0.0]
    assert next(row for row in rows if row["id"] == "lost")["draws"][0]["value"] is None
    assert (answer["judged"], answer["unreadable"], answer["cells"][0]["ungraded"]) == (True, 1, 1)


def test_a_sample_links_to_its_recorded_episode(tmp_path: Path) -> None:
    path = evaluation_folder(tmp_path / "eval", [sample("set", "a", 0.0), sample("set", "b", 1.0)])
    record(path, "a", "recall, set/a")
    positions = {row["id"]: row["draws"][0]["episode"] for row in items(path)["rows"]}
    assert positions == {"a": {"step": "all", "group": 0, "rollout": 0}, "b": None}


def test_a_quickstarts_evaluations_are_the_runs_items(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first")
    with pytest.raises(NotThere, match="palimpsest eval "):
        items(run)
    evaluation_folder(run / "evaluations" / "after" / "shard-1-of-1", [sample("set", "a", 1.0)])
    evaluation_folder(run / "evaluations" / "after" / "shard-1-of-1.old-1", [sample("set", "b", 1.0)])
    assert [(row["log"], row["id"]) for row in items(run)["rows"]] == [("after.shard-1-of-1", "a")]


def quickstart_log(run: Path, value: float = 1.0) -> Path:
    (run / "config.yaml").write_text(dump_config(load_recipe("memagent-quickstart")))
    log = run / "evaluations" / "after" / "shard-1-of-1"
    agents = [chunks(64, "a", value, player="agent"), chunks(64, "b", 1.0, player="mine", baseline=True)]
    return evaluation_folder(log, [*agents, chunks(64, "b", 0.0, player="agent_before", baseline=True)])


def test_the_players_of_a_quickstart_have_the_names_of_its_tables(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first")
    log = quickstart_log(run)
    answer = ViewerApi(Library([run])).get("/api/runs/first/items")
    assert [(cell["player"], cell["label"], cell["task"], cell["size"]) for cell in answer["cells"]] == [
        ("agent: agent after RL", "64 chunks", "synthetic", 64),
        ("baseline: same model before RL", "64 chunks", "synthetic", 64),
        ("baseline: mine", "64 chunks", "synthetic", 64),
    ]
    assert {(row["player"], row["baseline"], row["size"], row["unit"], row["label"]) for row in answer["rows"]} == {
        ("agent", False, 64, "chunks", "64 chunks"),
        ("agent_before", True, 64, "chunks", "same model before RL, 64 chunks"),
        ("mine", True, 64, "chunks", "mine, 64 chunks"),
    }
    alone = ViewerApi(Library([log])).get("/api/runs/shard-1-of-1/items")
    players = {cell["player"] for cell in alone["cells"]}
    assert players == {"agent: agent", "baseline: agent_before", "baseline: mine"}  # anybody's


def test_a_comparison_uses_the_player_names_of_a_quickstart(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("two", 0.0)):
        quickstart_log(run_folder(tmp_path / name), value)
    printed = palimpsest.compare(tmp_path / "one", tmp_path / "two")
    assert [(printed.task(cell), printed.label(cell)) for cell in printed.cells] == [
        ("synthetic", "64 chunks"),
        ("same model before RL, synthetic", "same model before RL, 64 chunks"),
        ("mine, synthetic", "mine, 64 chunks"),
    ]
    assert {row[""] for row in printed.table} == {printed.label(cell) for cell in printed.cells}
    assert [(cell["player"], cell["baseline"]) for cell in printed.to_json()["cells"]] == [  # for programs: as logged
        ("agent", False),
        ("agent_before", True),
        ("mine", True),
    ]


def test_samples_without_a_size_are_grouped_by_document_length(tmp_path: Path) -> None:
    rows = [sample("dev", "a", 1.0, length=50), sample("dev", "b", 0.0, length=100)]
    folder = evaluation_folder(tmp_path / "eval", rows)
    record(folder, "b", rows[1].group_id)
    answer = ViewerApi(Library([folder])).get("/api/runs/eval/steps/all/episodes")
    assert [(part["label"], part["size"], part["mean"]) for part in answer["parts"]] == [
        ("dev, size 50", 50, 1.0),
        ("dev, size 100", 100, 0.0),
    ]
    assert [row["part"] for row in answer["rows"]] == ["dev, size 100"]


def test_only_the_last_requested_episodes_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    rows = [sample("set", f"p{number}", float(number < 2)) for number in range(4)]
    one = evaluation_folder(tmp_path / "a", rows)
    write_request(one, [(rows[0].cell, 1, ["p0", "p3"])])
    answer = items(one)
    assert ([row["id"] for row in answer["rows"]], answer["not_asked"]) == (["p0", "p3"], 2)
    assert [(cell["episodes"], cell["mean"]) for cell in answer["cells"]] == [(2, 0.5)]
    write_request(one, [(rows[0].cell, 1, ["p0"])])
    assert len(items(one)["rows"]) == 1


CELL = '"set": "set", "size": null, "unit": null, "player": "recall"'


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "3",
        "[3]",
        '{"set": {"samples": 1, "problems": ["p"]}}',
        f'[{{{CELL}, "samples": 1e400, "problems": ["p"]}}]',
        f'[{{{CELL}, "problems": ["p"]}}]',
        '[{"set": "set", "samples": 1, "problems": ["p"]}]',
        f'[{{{CELL}, "name": "set", "samples": 1, "problems": ["p"]}}]',
        None,
    ],
)
def test_an_unreadable_request_is_an_error(text: str | None, tmp_path: Path) -> None:
    folder, _ = (evaluation_folder(tmp_path / name, [sample("set", "p", 1.0)]) for name in ("ev", "other"))
    if text is None:
        os.mkfifo(folder / REQUESTED)
    else:
        (folder / REQUESTED).write_text(text)
    with pytest.raises(NotThere, match=r"asked\.json is not readable"):
        items(folder)
    with pytest.raises(RunError, match="run palimpsest eval again"):
        palimpsest.compare(folder, tmp_path / "other")
