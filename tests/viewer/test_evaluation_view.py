"""Items by samples, and two or more sides beside each other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.quickstart_methods import TITLES
from palimpsest.config.load import dump_config, parse_config
from palimpsest.errors import RunError
from palimpsest.evaluation.pairing import pair
from palimpsest.evaluation.sample_log import ASKED, AskedSet, write_asked
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.types import Group
from palimpsest.viewer.records.sources import Library, NotThere
from palimpsest.viewer.screens.evaluation_screen import Side, comparison_view, curve
from palimpsest.viewer.screens.viewer_api import Answers
from support.view_folders import evaluation_folder, group, run_folder, sample

JUDGED = [
    sample("set", "right", 1.0, metrics={"judge": 1.0, "em": 1.0, "sub_em": 1.0}),
    sample("set", "generous", 1.0, metrics={"judge": 1.0, "em": 0.0, "sub_em": 0.0}),
    sample("set", "severe", 0.0, metrics={"judge": 0.0, "em": 0.0, "sub_em": 1.0}),
    sample("set", "wavers", 1.0, metrics={"judge": 1.0, "em": 1.0}),
    sample("set", "wavers", 0.0, draw=1, metrics={"judge": 0.0, "em": 0.0}),
    sample("set", "lost", None, reason="the judge didn't answer"),
]


def items(path: Path) -> Any:
    return Answers(Library([path])).get(f"/api/runs/{path.name}/items")


def test_disagreements_of_judge_and_strings_come_first_then_draws_that_differ(tmp_path: Path) -> None:
    told = items(evaluation_folder(tmp_path / "eval", JUDGED))
    assert [(row["id"], row["disagree"]) for row in told["rows"][:3]] == [("generous", 2), ("severe", 2), ("wavers", 1)]
    assert [draw["value"] for draw in told["rows"][2]["draws"]] == [1.0, 0.0]
    assert told["judged"]
    lost = next(row for row in told["rows"] if row["id"] == "lost")
    assert lost["draws"][0]["value"] is None
    assert told["cells"][0]["ungraded"] == 1


def test_lines_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    path = evaluation_folder(tmp_path / "eval", JUDGED)
    with (path / "samples.jsonl").open("ab") as file:
        file.write(b"{damaged\n")
    assert items(path)["unreadable"] == 1


def test_a_sample_leads_to_its_episode_where_that_was_recorded(tmp_path: Path) -> None:
    path = evaluation_folder(tmp_path / "eval", [sample("set", "a", 0.0), sample("set", "b", 1.0)])
    made = group("a", (0.0,))
    named = Group(made.problem, tuple(_named(t, "set/a") for t in made.trajectories), made.grades)
    (path / "episodes.jsonl.zst").write_bytes(encode_groups([named]))
    places = {row["id"]: row["draws"][0]["episode"] for row in items(path)["rows"]}
    assert places == {"a": {"step": "all", "group": 0, "rollout": 0}, "b": None}


def _named(trajectory: Any, group_id: str) -> Any:
    from dataclasses import replace

    return replace(trajectory, group_id=group_id)


def test_a_quickstarts_evaluations_are_the_runs_items(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first")
    evaluation_folder(run / "evaluations" / "after" / "shard-1-of-1", [sample("set", "a", 1.0)])
    evaluation_folder(run / "evaluations" / "after" / "shard-1-of-1.old-1", [sample("set", "b", 1.0)])
    assert [(row["log"], row["id"]) for row in items(run)["rows"]] == [("after.shard-1-of-1", "a")]


def test_the_sets_of_a_quickstart_are_called_what_its_tables_call_them(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first")
    log = run / "evaluations" / "after" / "shard-1-of-1"
    evaluation_folder(log, [sample("agent@16", "a", 1.0, size=64), sample("mine", "b", 1.0, size=64)])
    assert TITLES["agent"] == "agent after RL"
    told = Answers(Library([run]), titles=TITLES).get("/api/runs/first/items")
    assert {(cell["task"], cell["label"]) for cell in told["cells"]} == {
        ("agent after RL", "agent after RL, size 64"),
        ("mine", "mine, size 64"),
    }
    assert {(row["set"], row["label"]) for row in told["rows"]} == {
        ("agent@16", "agent after RL, size 64"),
        ("mine", "mine"),
    }
    alone = Answers(Library([log]), titles=TITLES).get("/api/runs/shard-1-of-1/items")
    assert {cell["task"] for cell in alone["cells"]} == {"agent", "mine"}  # a set of anybody's


def test_a_comparison_calls_the_sets_of_a_quickstart_what_its_tables_call_them(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("two", 0.0)):
        log = run_folder(tmp_path / name) / "evaluations" / "after" / "shard-1-of-1"
        evaluation_folder(log, [sample("agent@16", "a", value, size=64), sample("mine", "b", 1.0, size=64)])
    told = Answers(Library([tmp_path]), titles=TITLES).get("/api/compare", {"keys": "one,two"})
    printed = palimpsest.compare(tmp_path / "one", tmp_path / "two")
    names = {("agent after RL", "agent after RL, size 64"), ("mine", "mine, size 64")}
    assert {(cell["task"], cell["label"]) for cell in told["cells"]} == names
    assert {(printed.task(cell), printed.label(cell)) for cell in printed.cells} == names
    assert {row[""] for row in printed.table} == {label for _, label in names}
    assert [flip["set"] for flip in told["flips"]] == ["agent after RL, size 64"]
    assert printed.set_label("agent@16") == "agent after RL, size 64"
    assert {cell["set"] for cell in printed.to_json()["cells"]} == {"agent@16", "mine"}  # for programs: as logged


def test_a_run_without_an_evaluation_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotThere, match="palimpsest eval --model"):
        items(run_folder(tmp_path / "first"))


def side(name: str, seed: int = 0, rate: float = 0.1, **more: Any) -> Side:
    metrics = [{"step": step, "reward/mean": step / 10 + seed} for step in range(1, 4)]
    return Side(name, name, {"seed": seed, "data.seed": seed, "optim.rate": rate}, metrics, **more)


def test_what_was_asked_for_last_is_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    rows = [sample("set", f"p{number}", float(number < 2)) for number in range(4)]
    one, other = (evaluation_folder(tmp_path / name, rows) for name in ("a", "b"))
    write_asked(one, {"set": AskedSet(1, ["p0", "p3"])})
    told = items(one)
    assert ([row["id"] for row in told["rows"]], told["not_asked"]) == (["p0", "p3"], 2)
    assert [(cell["episodes"], cell["mean"]) for cell in told["cells"]] == [(2, 0.5)]
    answers = Answers(Library([one, other]))
    assert answers.get("/api/compare", {"keys": "a,b"})["notes"] == list(palimpsest.compare(one, other).notes)
    write_asked(one, {"set": AskedSet(1, ["p0"])})
    assert len(answers.get("/api/runs/a/items")["rows"]) == 1


@pytest.mark.parametrize(
    "text", ["no json", "[]", '{"set": 3}', '{"set": {"samples": 1e400, "problems": ["p"]}}', None]
)
def test_where_what_was_asked_for_cannot_be_read_that_is_said(text: str | None, tmp_path: Path) -> None:
    folder, _ = (evaluation_folder(tmp_path / name, [sample("set", "p", 1.0)]) for name in ("ev", "other"))
    if text is None:
        os.mkfifo(folder / ASKED)
    else:
        (folder / ASKED).write_text(text)
    with pytest.raises(NotThere, match=r"asked\.json: can't be read, so what was asked for isn't known"):
        items(folder)
    with pytest.raises(RunError, match="run palimpsest eval again"):
        palimpsest.compare(folder, tmp_path / "other")


def test_only_what_differs_is_told() -> None:
    told = comparison_view([side("a"), side("b", rate=0.2), side("c", rate=0.2)])
    assert told["differs"] == {"optim.rate": [0.1, 0.2, 0.2]}


def test_a_key_that_an_older_run_lacks_is_told_only_where_the_other_changed_it() -> None:
    older, newer = {"seed": 0}, {"seed": 0, "train.ahead": 0, "train.group_size": 999}
    told = comparison_view([Side("a", "a", older), Side("b", "b", newer)])
    assert told["differs"] == {"train.group_size": [None, 999]}


def test_sides_that_differ_by_their_seeds_alone_are_one_band() -> None:
    bands = curve([side("a", 0), side("b", 1), side("c", 0, rate=0.2)], "reward/mean")
    assert [band["keys"] for band in bands] == [["a", "b"], ["c"]]
    assert bands[0]["steps"] == [1, 2, 3]
    assert bands[0]["mean"] == pytest.approx([0.6, 0.7, 0.8])
    assert (bands[0]["low"], bands[0]["high"]) == ([0.1, 0.2, 0.3], [1.1, 1.2, 1.3])


def test_a_long_curve_has_few_points_that_cover_every_step() -> None:
    rows = [{"step": step, "reward/mean": 1.0} for step in range(1, 5001)]
    (band,) = curve([Side("a", "a", {}, rows)], "reward/mean")
    assert len(band["steps"]) <= 500
    assert band["steps"][-1] == 5000


def test_accuracy_by_length_has_the_paired_intervals_of_the_problems_both_graded() -> None:
    first = [sample("set", f"p{n}", float(n < 8), size=4) for n in range(10)]
    second = [sample("set", f"p{n}", float(n < 2), size=4) for n in range(10)]
    told = comparison_view([side("a", samples=first), side("b", samples=[*second, sample("set", "more", 1.0)])])
    (cell,) = told["cells"]
    assert (cell["sides"]["a"]["mean"], cell["sides"]["b"]["n"]) == (0.8, 11)
    expected = pair(first, second).difference
    assert expected is not None
    difference = cell["pairs"]["b"]["difference"]
    assert (difference["mean"], difference["low"], difference["high"]) == (expected.mean, expected.low, expected.high)
    assert "only on the second side" in told["notes"][0]


def test_flips_are_the_problems_with_another_value_and_lead_to_both_episodes() -> None:
    where = {("set", "p", 0): {"step": "all", "group": 3, "rollout": 0}}
    one = side("a", samples=[sample("set", "p", 1.0), sample("set", "q", 1.0)], episodes=where)
    other = side("b", samples=[sample("set", "p", 0.0, answer="ale"), sample("set", "q", 1.0)])
    (flip,) = comparison_view([one, other])["flips"]
    assert (flip["id"], flip["sides"]["a"]["value"], flip["sides"]["b"]["answer"]) == ("p", 1.0, "ale")
    assert (flip["sides"]["a"]["episode"]["group"], flip["sides"]["b"]["episode"]) == (3, None)


def test_another_question_under_the_same_name_is_no_flip() -> None:
    one = side("a", samples=[sample("set", "p", 1.0)])
    other = side("b", samples=[sample("set", "p", 0.0, question="Something else?")])
    assert comparison_view([one, other])["flips"] == []


def _played(path: Path, seed: int, chunk: int, right: int) -> Path:
    """An evaluation of a checkpoint, with a baseline beside it."""
    run = path.parent / f"run-{path.name}"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(parse_config("", overrides={"seed": seed, "train.steps": 7 + seed})))
    rows = [sample(f"{size} chunks", f"p{n}", float(n < right), size=size) for n in range(6) for size in (4, 16)]
    rows += [sample("4 chunks, closed book", f"p{n}", float(n < 1), baseline="closed_book") for n in range(6)]
    rows.append(sample("4 chunks", "lost", None))
    identity = {"weights": path.name, "policies": {path.name: {"name": path.name, "options": {"chunk_size": chunk}}}}
    folder = evaluation_folder(path, rows, identity)
    (folder / "summary.json").write_text(json.dumps({"model": str(run / "checkpoints" / "step-000002")}))
    return folder


def test_a_comparison_has_the_rows_settings_and_notes_of_the_command(tmp_path: Path) -> None:
    folders = [_played(tmp_path / "one", 0, 36, 5), _played(tmp_path / "two", 1, 72, 2)]
    told = Answers(Library(folders)).get("/api/compare", {"keys": "one,two"})
    printed = palimpsest.compare(*folders)
    assert told["differs"] == {key: list(values) for key, values in printed.differs.items()}
    assert {"policy.options.chunk_size", "run.seed", "run.train.steps", "model"} <= told["differs"].keys()
    assert [cell["label"] for cell in told["cells"]] == [cell.label for cell in printed.cells]
    assert len(told["cells"]) == 3
    for cell, shown in zip(printed.cells, told["cells"], strict=True):
        for name, figures in printed.figures[cell].items():
            own = shown["sides"][name]
            assert (own["problems"], own["ungraded"]) == (figures.problems, figures.ungraded)
            assert (own["mean"], own["low"], own["high"]) == (
                figures.accuracy.mean,
                figures.accuracy.low,
                figures.accuracy.high,
            )
            assert (own["turns"], own["tokens"]) == (figures.turns_per_document, figures.tokens_per_document)
        pairing, difference = printed.cell_pairings[cell]["two"], shown["pairs"]["two"]["difference"]
        assert pairing.difference is not None
        assert difference["p"] == pairing.difference.p
    assert told["pairs"]["two"]["counted"] == printed.pairings["two"].counted
    assert told["notes"] == list(printed.notes)
    assert any("ungraded" in note for note in told["notes"])


def test_sides_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [evaluation_folder(tmp_path / place / "ev", [sample("set", "a", 1.0)]) for place in "ab"]
    told = Answers(Library(paths)).get("/api/compare", {"keys": "ev,ev-2"})
    assert told["cells"][0]["sides"].keys() == {"ev", "ev-2"}


def test_a_run_that_was_not_evaluated_is_no_side_of_a_difference(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", [{"step": 1, "reward/mean": 0.5}])
    evaluation_folder(tmp_path / "ev", [sample("set", "a", 1.0)])
    answers = Answers(Library([tmp_path]))
    told = answers.get("/api/compare", {"keys": "run,ev"})
    assert (told["pairs"], told["cells"][0]["pairs"], list(told["cells"][0]["sides"])) == ({}, {}, ["ev"])
    assert told["notes"] == ["run has no evaluation, so no difference to it can be told"]
    told = answers.get("/api/compare", {"keys": "ev,run"})
    assert (told["pairs"], told["notes"]) == ({}, [])


def test_a_comparison_takes_two_to_six(tmp_path: Path) -> None:
    for number in range(7):
        run_folder(tmp_path / f"r{number}", [{"step": 1, "reward/mean": 0.5}])
    told = Answers(Library([tmp_path]))
    assert len(told.get("/api/compare", {"keys": "r0,r1"})["sides"]) == 2
    for keys in ("", "r0", "r0,r0", ",".join(f"r{number}" for number in range(7))):
        with pytest.raises(NotThere, match="choose 2 to 6"):
            told.get("/api/compare", {"keys": keys})
