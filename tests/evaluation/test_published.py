"""Published figures beside ours: only where edition, metric and length match, else with the reason."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import palimpsest
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluation.published import Ours, Published, counterparts, read_published
from support.command import Run
from support.evaluations import sample, write_evaluation

EDITION, OTHER = "a" * 64, "b" * 64
ENTRY: dict[str, Any] = {
    "system": "Theirs",
    "model": "7B",
    "benchmark": "long",
    "edition": "their eval_{size}.json",
    "metric": "em",
    "unit": "chunks",
    "protocol": "one sample",
    "source": "a paper",
    "values": {2: 75.0, 4: 70.0},
    "sha256": {2: EDITION},
}
THEIRS = Published(**ENTRY)
QUESTION = {"question": "Where is Ann?", "answers": ["Rome"], "answer": "Rome", "value": 1.0}


def ours(size: int = 2, sha256: str | None = EDITION, unit: str = "chunks", **metrics: float) -> Ours:
    return Ours("a", "eval", (unit, size), metrics or {"em": 0.5}, sha256)


def test_a_figure_matches_where_edition_metric_and_length_do() -> None:
    (each,) = counterparts([ours()], [THEIRS])
    assert (each.reason, each.ours, each.size) == (None, 50.0, 2)


@pytest.mark.parametrize(
    ("mine", "reason"),
    [
        (ours(sha256=OTHER), "edition: played was bbbbbbbbbbbb, theirs is aaaaaaaaaaaa"),
        (ours(sha256=None), "edition: the file that was played isn't known"),
        (ours(size=4), "isn't known; played was aaaaaaaaaaaa"),
        (ours(f1=0.5), "metric: em was not measured"),
    ],
)
def test_what_differs_is_the_reason(mine: Ours, reason: str) -> None:
    (each,) = counterparts([mine], [THEIRS])
    assert each.reason is not None
    assert reason in each.reason


def test_figures_of_other_lengths_are_not_shown() -> None:
    assert not list(counterparts([ours(size=3), Ours("a", "musique", None, {"em": 0.5}, EDITION)], [THEIRS]))


def test_the_same_number_in_another_unit_is_not_shown() -> None:
    four = {"unit": "objectives", "values": {4: 59.1}, "sha256": {4: EDITION}}
    objectives = Published(**{**ENTRY, **four})
    assert not list(counterparts([ours(size=4)], [objectives]))
    assert len(list(counterparts([ours(size=4, unit="objectives")], [objectives]))) == 1


def test_the_shipped_figures_are_those_of_the_papers() -> None:
    """Some, typed in from the tables a second time."""
    figures = {(each.system, each.model, each.benchmark, each.metric): each for each in read_published()}
    agent = figures["MemAgent", "RL-MemAgent-14B", "RULER-HQA", "sub_em_either"]
    assert (agent.values[50], agent.values[25600]) == (83.59, 78.12)
    recall = figures["ReMemR1", "ReMemR1-7B", "HotpotQA, long", "sub_em_either"]
    assert (recall.values[50], recall.values[6400]) == (82.3, 80.8)
    act = figures["MemAct", "MemAct-RL-14B", "multi-objective HotpotQA", "judge"]
    assert (act.values[2], act.values[8]) == (66.0, 54.3)
    assert len(figures) == len(read_published())
    assert all(each.source for each in figures.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": None}, "metric is missing"),
        ({"note": "x"}, "unknown key note"),
        ({"values": {}}, "values must be sizes"),
        ({"values": {50: 170}}, "values must be sizes"),
        ({"sha256": {50: "abc"}}, "64 hexadecimal digits"),
    ],
)
def test_a_wrong_file_is_refused_with_the_entry(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump([ENTRY, {**ENTRY, **change}]), "utf-8")
    with pytest.raises(DataError, match=f"entry 2: .*{message}"):
        read_published(path)


def test_the_command_shows_them_beside_one_evaluation(tmp_path: Path, palimpsest: Run) -> None:
    folder = write_evaluation(tmp_path / "e", [sample("p0", 1.0), sample("p1", 0.0)])
    (folder / "summary.json").write_text(json.dumps({"editions": {"x/2 chunks.json": EDITION}}), "utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump([ENTRY, {**ENTRY, "metric": "judge"}]), "utf-8")
    done = palimpsest("compare", str(folder), "--published-file", str(mine))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("Theirs")]
    assert lines[0].endswith("em (a paper); e: 50.0")
    assert "can't be compared: metric: judge was not measured" in lines[1]
    told = json.loads(palimpsest("compare", str(folder), "--published-file", str(mine), "--json").stdout)
    assert [each["matches"] for each in told["published"] if each["system"] == "Theirs"] == [True, False]


def test_chunks_have_no_published_figure_of_as_many_objectives(tmp_path: Path, palimpsest: Run) -> None:
    """MemAct published four objectives, MemAgent and ReMemR1 fifty documents."""
    drawn = [sample("p0", 1.0, name="4 chunks", size=4), sample("p1", 1.0, name="50 chunks", size=50)]
    done = palimpsest("compare", str(write_evaluation(tmp_path / "drawn", drawn)), "--published")
    assert "published: no figure for these problems at these lengths" in done.stdout
    asked = [
        sample("p0", 1.0, name="mine", size=None, questions=[QUESTION] * 4),
        sample("p1", 1.0, name="2 objectives"),
    ]
    done = palimpsest("compare", str(write_evaluation(tmp_path / "asked", asked)), "--published")
    assert "MemAct-RL-14B: 59.1 on multi-objective HotpotQA, 4 objectives" in done.stdout
    assert "MemAct-RL-14B: 66.0 on multi-objective HotpotQA, 2 objectives" in done.stdout
    assert "documents" not in done.stdout


def test_baselines_are_never_beside_published_figures(tmp_path: Path) -> None:
    rows = [sample("p0", 1.0)]
    for baseline in ("closed book", "whole document"):
        rows.append(sample("p0", 0.0, name=f"2 chunks, {baseline}", baseline=baseline))
    folder = write_evaluation(tmp_path / "e", rows)
    (folder / "summary.json").write_text(json.dumps({"editions": {"x/2 chunks.json": EDITION}}), "utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump([ENTRY]), "utf-8")
    beside = palimpsest.compare(folder, published=mine).published
    assert [(each.set, each.ours) for each in beside if each.published.system == "Theirs"] == [("2 chunks", 100.0)]


def test_an_evaluation_writes_down_the_edition_of_its_data(tmp_path: Path, tiny_model_folder: Path) -> None:
    data = tmp_path / "eval_1.jsonl"
    row = {"id": "p", "question": "Who?", "answers": ["Anna"], "context": "Anna ran."}
    data.write_text(json.dumps(row) + "\n", "utf-8")
    budgets = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}
    palimpsest.evaluate(tiny_model_folder, data, overrides=budgets, out=tmp_path / "e", quiet=True)
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    assert json.loads((tmp_path / "e" / "summary.json").read_text("utf-8"))["editions"] == {str(data): digest}
    with pytest.raises(ConfigError, match="two or more"):
        palimpsest.compare(tmp_path / "e")


def test_eval_shows_them_below_its_table(tmp_path: Path, tiny_model_folder: Path, palimpsest: Run) -> None:
    data = tmp_path / "eval_50.jsonl"
    row = {"id": "p", "question": "Who?", "answers": ["Anna"], "context": "Anna ran.", "metadata": {"num_docs": 50}}
    data.write_text(json.dumps(row) + "\n", "utf-8")
    budgets = ["chunk_size=64", "memory_tokens=8", "question_tokens=64", "answer_tokens=8"]
    settings = [part for budget in budgets for part in ("--set", budget)]
    model = ("--model", str(tiny_model_folder), "--data", str(data), "--no-baselines")
    done = palimpsest("eval", *model, *settings, "--published")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("MemAgent, RL-MemAgent-14B: 83.6")]
    assert "can't be compared: edition: the SHA-256 of MemAgent's" in line
