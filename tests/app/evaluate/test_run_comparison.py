"""Evaluations side by side: only the same problems are compared, and nothing is left unsaid."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.evaluate.comparison_report import _lines, write_folder, write_plots
from palimpsest.config.load import dump_config, parse_config
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.evaluation.sample_log import SAMPLES, Sample
from palimpsest.evaluation.statistics import paired
from palimpsest.notes import Note
from support.command import Run
from support.evaluations import sample, write_evaluation

BEFORE = [1.0] * 4 + [0.0] * 8
AFTER = [0.0] + [1.0] * 9 + [0.0] * 2
PLAYED = {"overwrite": BEFORE, "recall": AFTER}
FILE: dict[str, Any] = {"set": "a set", "size": None, "unit": None, "length": None}
BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}


def folder(path: Path, values: Sequence[float | None], identity: dict[str, Any] | None = None, **fields: Any) -> Path:
    return write_evaluation(path, [sample(f"p{at}", value, **fields) for at, value in enumerate(values)], identity)


def compared(path: Path, first: list[Sample], second: list[Sample]) -> palimpsest.Comparison:
    return palimpsest.compare(write_evaluation(path / "a", first), write_evaluation(path / "b", second))


def test_differences_are_those_of_the_paired_problems(tmp_path: Path) -> None:
    comparison = palimpsest.compare(folder(tmp_path / "a", BEFORE), folder(tmp_path / "b", AFTER))
    pairing = comparison.pairings["b"]
    assert pairing.difference == paired(BEFORE, AFTER)
    assert (pairing.problems, pairing.warning) == (12, None)
    assert [flip.id for flip in pairing.flips] == ["p0", "p4", "p5", "p6", "p7", "p8", "p9"]  # what was lost first
    assert pairing.flips[0].first == "\\boxed{Rome}"
    assert pairing.flips[0].second == "\\boxed{Oslo}"
    assert comparison.notes == ()
    assert comparison.table.column("difference") == [None, 0.4166666666666667]


def test_problems_of_one_name_that_ask_something_else_are_never_paired(tmp_path: Path) -> None:
    """Two editions of a data set: same ids, one gold corrected, one question reworded."""
    a = [sample(f"p{n}", 1.0) for n in range(4)]
    b = [sample("p0", 0.0, gold="Paris"), sample("p1", 0.0, question="What?"), sample("p2", 0.0), sample("p9", 1.0)]
    comparison = compared(tmp_path, a, b)
    pairing = comparison.pairings["b"]
    assert (pairing.problems, pairing.other_question, pairing.only_first, pairing.only_second) == (1, 2, 1, 1)
    assert comparison.notes[0].code == "pairing"
    assert "2 unpaired episodes" in comparison.notes[0].values["warning"]


def test_what_is_lacking_is_counted_in_episodes_where_problems_are_drawn_several_times(tmp_path: Path) -> None:
    a = [sample(f"p{n}", 1.0, draw=draw) for n in range(2) for draw in range(3)]
    b = [sample(f"p{n}", 1.0, draw=0) for n in range(2)]
    comparison = compared(tmp_path, a, b)
    assert comparison.pairings["b"].problems == 2
    assert comparison.notes[0].values["warning"] == "4 episodes only on the first side"


def test_sides_without_a_common_problem_have_no_difference(tmp_path: Path) -> None:
    other = folder(tmp_path / "b", AFTER, size=4, length=4)
    comparison = palimpsest.compare(folder(tmp_path / "a", BEFORE), other)
    assert comparison.pairings["b"].difference is None
    assert comparison.notes[0].code == "nothing_in_common"
    assert all("difference" not in row for row in comparison.table)


def test_grades_of_different_rewards_are_reported(tmp_path: Path) -> None:
    first, second = {"reward": {"name": "em"}}, {"reward": {"name": "f1"}}
    sides = (
        folder(tmp_path / name, BEFORE, identity) for name, identity in (("a", first), ("b", second), ("c", first))
    )
    notes = palimpsest.compare(*sides).notes
    assert [(note.code, note.values["side"], note.values["reward"]) for note in notes] == [("other_reward", "b", "f1")]


def test_what_is_not_graded_is_counted_on_its_side_and_never_paired(tmp_path: Path) -> None:
    a = [sample("p0", None), sample("p1", 1.0), sample("p2", 0.0)]
    b = [sample("p0", 1.0), sample("p1", 1.0), sample("p2", None)]
    comparison = compared(tmp_path, a, b)
    assert (comparison.pairings["b"].problems, comparison.pairings["b"].ungraded) == (1, 2)
    counts = [note.values for note in comparison.notes if note.code == "side_counts"]
    assert {"side": "a", "counts": "1 ungraded", "episodes": 3} in counts
    result = {side["name"]: side for side in comparison.to_json()["sides"]}
    assert (result["a"]["graded"], result["a"]["ungraded"], result["a"]["without_gold"]) == (2, 1, 0)


def test_questions_without_a_gold_are_counted_apart(tmp_path: Path) -> None:
    rows = [sample("p0", None, answers=(), outcome="answered"), sample("p1", 1.0)]
    comparison = compared(tmp_path, rows, rows)
    (side, _) = comparison.to_json()["sides"]
    assert (side["ungraded"], side["without_gold"]) == (0, 1)


def test_draws_of_a_problem_are_paired_and_count_as_one_cluster(tmp_path: Path) -> None:
    draws = [[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
    a, b = ([sample(f"p{n}", values[draw], draw=draw) for n in range(4) for draw in range(3)] for values in draws)
    comparison = compared(tmp_path, a, b)
    pairing = comparison.pairings["b"]
    assert (pairing.problems, pairing.difference.test if pairing.difference else None) == (4, "sign_flip")
    assert pairing.counted == "4 problems (12 episodes)"
    (figures,) = comparison.figures.values()
    assert (figures["a"].problems, figures["a"].samples, figures["a"].clusters) == (4, 3, 4)
    side = comparison.to_json()["sides"][0]
    assert (side["problems"], side["episodes"]) == (4, 12)


def test_a_question_at_two_lengths_and_three_draws_is_counted_as_what_it_is(tmp_path: Path, palimpsest: Run) -> None:
    rows = [
        sample(f"p{n}", float(draw == 0), draw=draw, size=size, length=size)
        for n in range(4)
        for size in (2, 4)
        for draw in range(3)
    ]
    paths = [str(write_evaluation(tmp_path / name, rows)) for name in "ab"]
    done = palimpsest("compare", *paths)
    assert "over 8 problems (24 episodes, 4 independent), p" in done.stdout
    (pairs,) = json.loads(palimpsest("compare", *paths, "--json").stdout)["pairs"]
    assert (pairs["problems"], pairs["episodes"], pairs["independent"]) == (8, 24, 4)


def test_baselines_have_rows_and_are_in_no_overall_difference(tmp_path: Path) -> None:
    sides = [[sample("p0", 1.0), sample("p0", value, player="closed book", baseline=True)] for value in (0.0, 1.0)]
    comparison = compared(tmp_path, *sides)
    assert (comparison.pairings["b"].problems, len(comparison.pairings["b"].flips)) == (1, 0)
    (agent, closed) = comparison.cells
    assert (agent.player, agent.baseline, closed.player, closed.baseline) == ("agent", False, "closed book", True)
    assert comparison.cell_pairings[closed]["b"].difference is not None


def test_two_policies_are_compared_on_the_same_cells_and_several_of_one_side_by_name(tmp_path: Path) -> None:
    one, other = (folder(tmp_path / player, values, player=player) for player, values in PLAYED.items())
    comparison = palimpsest.compare(one, other)
    assert [(cell.set, cell.size, cell.unit, cell.player) for cell in comparison.cells] == [
        ("synthetic", 2, "chunks", "agent")
    ]
    assert comparison.pairings["recall"].difference == paired(BEFORE, AFTER)
    both = [
        sample(f"p{at}", value, player=player) for player, added in PLAYED.items() for at, value in enumerate(added)
    ]
    swept = [write_evaluation(tmp_path / name, both) for name in ("one", "two")]
    apart = palimpsest.compare(*swept)
    assert [cell.player for cell in apart.cells] == ["overwrite", "recall"]
    assert apart.pairings["two"].problems == 24
    assert not apart.pairings["two"].flips
    mixed = palimpsest.compare(swept[0], other)
    assert (mixed.pairings["recall"].problems, len(mixed.pairings["recall"].flips)) == (12, 0)


def test_only_the_last_request_counts(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, note = tmp_path / "e", str(Note("episodes_not_requested", count=10))

    def evaluated(chunks: list[int], limit: int, samples: int) -> palimpsest.Evaluation:
        options: Any = {"chunks": chunks, "limit": limit, "samples": samples, "baselines": False, "out": out}
        overrides = {**BUDGETS, "eval_sampling.temperature": 0.7}
        return palimpsest.evaluate(tiny_model_folder, overrides=overrides, **options)

    evaluated([1, 2], 3, 2)
    narrower = evaluated([1], 2, 1)
    assert note in capsys.readouterr().err
    regraded = palimpsest.evaluate(regrade=out)
    assert note in capsys.readouterr().err
    folders = (out, out / "regraded" / "boxed")
    rows = [json.loads((folder / "summary.json").read_text())["evaluations"] for folder in folders]
    compared = palimpsest.compare(*folders).to_json()
    (cell,) = compared["cells"]
    for figures in (*rows[0], *rows[1], *cell["sides"].values()):
        assert (figures["set"], figures["size"], figures["unit"]) == ("synthetic", 1, "chunks")
        assert (figures["problems"], figures["samples"]) == (2, 1)
        assert figures["accuracy"]["mean"] == narrower.accuracy.mean == regraded.accuracy.mean
    assert [(side["episodes"], side["not_asked"]) for side in compared["sides"]] == [(2, 10), (2, 0)]
    evaluated([1, 2], 3, 2)
    capsys.readouterr()
    palimpsest.evaluate(regrade=out)
    assert "earlier calls" not in capsys.readouterr().err


def test_a_damaged_line_is_counted(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a", BEFORE), folder(tmp_path / "b", AFTER)
    text = (b / SAMPLES).read_text("utf-8")
    (b / SAMPLES).write_text(text.replace('"value": 1.0', '"value": 0.0', 1), "utf-8")  # its checksum no longer holds
    comparison = palimpsest.compare(a, b)
    assert comparison.to_json()["sides"][1]["unreadable_lines"] == 1
    assert comparison.pairings["b"].problems == 11


def test_only_differences_of_configurations_are_listed(tmp_path: Path) -> None:
    same = {"policies": {"overwrite": {"options": {"chunk_size": 36, "memory_tokens": 8}}}}
    other = {"policies": {"overwrite": {"options": {"chunk_size": 72, "memory_tokens": 8}}}}
    comparison = palimpsest.compare(folder(tmp_path / "a", BEFORE, same), folder(tmp_path / "b", AFTER, other))
    assert comparison.differs == {"policy.options.chunk_size": (36, 72)}
    assert comparison.bands == ()


@pytest.mark.parametrize(("source", "result"), [("synthetic", {"data.synthetic.chunks": (1, 2)}), (["a.json"], {})])
def test_unused_settings_are_not_listed(source: Any, result: Any, tmp_path: Path) -> None:
    """How a recipe draws synthetic documents where files are read, and what training puts on top of a grade."""
    sides = []
    for chunks, penalty in ((1, 2.0), (2, 0.5)):
        data = {"train_files": source, "val_files": None, "synthetic": {"chunks": chunks}}
        identity = {"data": data, "reward": {"name": "sub_em", "unsupported_penalty": penalty, "layers": [penalty]}}
        sides.append(folder(tmp_path / str(chunks), BEFORE, identity))
    assert palimpsest.compare(*sides).differs == result


def test_a_run_next_to_an_evaluation_of_no_run_differs_by_that_in_one_line(tmp_path: Path) -> None:
    """The run's keys would be dozens of lines with None."""
    run, evaluation = tmp_path / "run", folder(tmp_path / "e", AFTER, {"reward": {"name": "sub_em"}})
    folder(run / "evaluations" / "after" / "shard-1-of-1", BEFORE)
    (run / "config.yaml").write_text(
        dump_config(parse_config("", overrides={"train.max_steps": 7, "seed": 3})), "utf-8"
    )
    differs = palimpsest.compare(run, evaluation).differs
    assert {key: row for key, row in differs.items() if key.startswith("run")} == {"run": ("a run", "no run")}


def test_sides_that_differ_by_their_seed_alone_give_a_band(tmp_path: Path) -> None:
    paths = []
    for seed, right in enumerate((2, 4, 9)):
        run = tmp_path / f"run-{seed}"
        run.mkdir()
        (run / "config.yaml").write_text(dump_config(parse_config("", overrides={"seed": seed})), "utf-8")
        path = folder(tmp_path / f"s{seed}", [1.0] * right + [0.0] * (10 - right), {"weights": f"w{seed}"})
        (path / "summary.json").write_text(json.dumps({"model": str(run / "checkpoints" / "step-000002")}), "utf-8")
        paths.append(path)
    (band,) = palimpsest.compare(*paths).bands
    assert (band.sides, band.low, band.high) == (("s0", "s1", "s2"), 0.2, 0.9)
    assert band.mean == pytest.approx(0.5)
    assert band.deviation == pytest.approx(0.36055512754639896)  # statistics.stdev([.2, .4, .9]) by hand
    lines, _ = _lines(palimpsest.compare(*paths))
    ((label, (point,)),) = lines.items()
    assert (label, point.low, point.high) == ("synthetic, 3 seeds", 0.2, 0.9)
    write_evaluation(tmp_path / "other", [sample("p0", 1.0)], {"weights": "another"})
    assert len(palimpsest.compare(*paths, tmp_path / "other").bands) == 1


def test_a_quickstarts_shards_are_one_side(tmp_path: Path) -> None:
    for side in ("a", "b"):
        run = tmp_path / side
        for shard in (1, 2):
            location = run / "evaluations" / "after" / f"shard-{shard}-of-2"
            write_evaluation(location, [sample(f"p{shard}", 1.0)])
        write_evaluation(run / "evaluations" / "after" / "shard-1-of-2.old-1", [sample("p7", 1.0)])
        (run / "config.yaml").write_text(dump_config(RunConfig(seed=3)), "utf-8")
    comparison = palimpsest.compare(tmp_path / "a", tmp_path / "b")
    assert comparison.pairings["b"].problems == 2
    assert comparison.sides[0].seeds["run.seed"] == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: [path / "nothing", path / "a"], "no such folder"),
        (lambda path: [path, path / "a"], "contains neither samples.jsonl nor"),
        (lambda path: [path / "a"], "two or more"),
        (lambda path: [path / "a", path / "a"], "appears twice"),
    ],
)
def test_folders_that_cannot_be_compared_are_refused_in_words(make: Any, message: str, tmp_path: Path) -> None:
    folder(tmp_path / "a", BEFORE)
    with pytest.raises((ConfigError, RunError), match=message):
        palimpsest.compare(*make(tmp_path))


def test_the_json_has_the_documented_keys_and_repeats(tmp_path: Path) -> None:
    paths = folder(tmp_path / "a", BEFORE), folder(tmp_path / "b", AFTER)
    first, again = palimpsest.compare(*paths).to_json(2), palimpsest.compare(*paths).to_json(2)
    assert json.dumps(first) == json.dumps(again)
    assert first["format"] == 2
    assert list(first) == ["format", "sides", "differs", "cells", "pairs", "seeds", "notes"]
    (pair,) = first["pairs"]
    assert (pair["first"], pair["second"], pair["flipped"], len(pair["flips"])) == ("a", "b", 7, 2)
    cell = {"set": "synthetic", "size": 2, "unit": "chunks", "player": "agent", "baseline": False}
    assert pair["flips"][0]["cell"] == cell == {key: first["cells"][0][key] for key in cell}
    page = (Path(__file__).parents[3] / "docs" / "reference" / "files.md").read_text("utf-8")
    for key in {*first, *pair, *pair["difference"], *pair["flips"][0], *first["sides"][0], *first["cells"][0]}:
        assert f"`{key}`" in page, f"docs/reference/files.md doesn't tell {key}"


def test_plots_are_written_as_their_names_say_and_repeat(tmp_path: Path) -> None:
    sets = [{**FILE, "set": f"eval_{size}", "length": size} for size in (50, 100)]
    sizes = [sample(f"p{n}", float(n % 2), **fields) for fields in sets for n in range(4)]
    comparison = palimpsest.compare(folder(tmp_path / "a", BEFORE), write_evaluation(tmp_path / "b", sizes))
    for name in ("p.svg", "p.png"):
        paths = write_plots(comparison, tmp_path / name)
        written = [path.read_bytes() for path in paths]
        assert [path.read_bytes() for path in write_plots(comparison, tmp_path / name)] == written
        assert written[0] != written[1]
    root = xml.etree.ElementTree.parse(tmp_path / "p.svg").getroot()
    assert root.tag.endswith("svg")
    with pytest.raises(ConfigError, match=r"ends in \.svg or \.png"):
        write_plots(comparison, tmp_path / "p.pdf")


def test_many_lines_have_room_in_a_figure(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    rows = [sample("p", 1.0, set=f"task-{letter}", size=size) for letter in "abcdefgh" for size in (4, 64)]
    paths = [write_evaluation(tmp_path / name, rows) for name in "xyz"]
    comparison = palimpsest.compare(*paths)
    assert [(cell.set, cell.size) for cell in comparison.cells[:3]] == [("task-a", 4), ("task-a", 64), ("task-b", 4)]
    write_plots(comparison, tmp_path / "p.png")
    assert not [str(warning.message) for warning in recwarn if "layout" in str(warning.message)]


def test_the_page_escapes_what_models_wrote(tmp_path: Path) -> None:
    hostile = sample("p0", 0.0, answer="<script>alert(1)</script>\u202e")
    a = write_evaluation(tmp_path / "a", [sample("p0", 1.0)])
    out = tmp_path / "out"
    write_folder(palimpsest.compare(a, write_evaluation(tmp_path / "b", [hostile])), out)
    page = (out / "compare.html").read_text("utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<dd>1: Rome</dd>" in page
    names = {"compare.html", "compare.json", "accuracy.svg", "accuracy-cost.svg"}
    assert {path.name for path in out.iterdir()} == names


def test_the_command_prints_differences_flips_and_what_is_configured_otherwise(tmp_path: Path, palimpsest: Run) -> None:
    a, b = folder(tmp_path / "a", BEFORE), folder(tmp_path / "b", AFTER, {"seed": 1})
    done = palimpsest("compare", str(a), str(b), "--changed", "1")
    assert done.returncode == 0, done.stderr
    assert "b compared with a: +41.7 points" in done.stdout
    assert "McNemar's exact test" in done.stdout
    assert "6 better, 1 worse" in done.stdout
    assert "configuration keys that differ: 1 (--diff" in done.stdout
    assert "seed" in palimpsest("compare", str(a), str(b), "--diff").stdout
    assert "b: 7 changed, 1 shown" in done.stdout
    assert "\n  - Rome\n  + Oslo\n" in done.stdout  # without their boxes
    result = json.loads(palimpsest("compare", str(a), str(b), "--json").stdout)
    assert result["pairs"][0]["difference"]["better"] == 6
