"""The report of an evaluation: figures with intervals, baselines, evidence, a wrong episode."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import palimpsest
from palimpsest.evaluation.episode_files import EPISODES, first_episodes
from palimpsest.evaluation.sample_log import Sample
from palimpsest.evaluation.statistics import wilson
from palimpsest.evaluation.summary import EvalSummary, accuracy_of, summarise
from palimpsest.report.run_reports import EvaluationResults, write_evaluation_report
from support.evaluations import CHUNKS, report_tables, sample

BASELINE = replace(CHUNKS, player="closed book", baseline=True)
SMALL = {"memory_tokens": 8, "chunk_size": 24}


def evaluate(model: Path, out: Path, **settings: object) -> str:
    """The report of a small evaluation."""
    overrides = {**SMALL, **settings}
    palimpsest.evaluate(model, chunks=[1, 2], limit=2, overrides=overrides, out=out, quiet=True)
    return (out / "report.html").read_text("utf-8")


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    out = tmp_path_factory.mktemp("evaluation") / "eval"
    evaluate(tiny_model_folder, out)
    return out


def report_of(folder: Path, rows: dict[str, dict[str, EvalSummary]], samples: list[Sample]) -> str:
    """The report of rows of figures, and the accuracy of samples."""
    write_evaluation_report(folder, EvaluationResults("t", accuracy_of(samples), [], rows, config=""))
    return (folder / "report.html").read_text()


def test_the_report_has_intervals_baselines_and_outcomes(evaluation: Path) -> None:
    text = (evaluation / "report.html").read_text("utf-8")
    summary = json.loads((evaluation / "summary.json").read_text())
    assert [name for name in ("evaluations", "baselines") if not summary[name]] == []
    accuracy, figures, *_ = report_tables(text)
    assert accuracy[0] == ["", "1 chunk", "2 chunks"]
    for row in summary["evaluations"]:
        part, score = "1 chunk" if row["size"] == 1 else "2 chunks", row["accuracy"]
        shown = accuracy[1][accuracy[0].index(part)]
        assert shown == f"{score['mean']:.1%}\n{100 * score['low']:.1f}–{score['high']:.1%}"
        (line,) = [line for line in figures[2:4] if line[0] == part]
        assert line[1:3] == [str(row["problems"]), f"{score['mean']:.1%}"]
        assert all(f"{count} {name.replace('_', ' ')}" in line[-1] for name, count in row["outcomes"].items())
    baselines = list(dict.fromkeys(row["player"] for row in summary["baselines"]))
    assert {"closed book", "whole document"} <= set(baselines)
    assert [row[0] for row in accuracy[2:]] == baselines
    assert f"palimpsest view {evaluation}" in text


def test_the_report_has_the_evidence_table_a_wrong_episode_and_nothing_from_outside(evaluation: Path) -> None:
    text = (evaluation / "report.html").read_text("utf-8")
    summary = json.loads((evaluation / "summary.json").read_text())
    assert "Where the evidence is" in text
    assert [sum(part["graded"] for part in row["by_evidence"]) for row in summary["evaluations"]] == [2, 2]
    assert "A wrong episode, memory by memory" in text
    assert "<small>turn 1</small>" in text
    assert "<script" not in text
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)


def test_without_evidence_or_a_record_the_report_lacks_them(tiny_model_folder: Path, tmp_path: Path) -> None:
    plain = [palimpsest.Problem("p", "Who ran?", ("Anna",), "Anna ran.")]
    overrides = {**SMALL, "evaluation.record": "none"}
    palimpsest.evaluate(tiny_model_folder, plain, overrides=overrides, out=tmp_path / "plain", quiet=True)
    text = (tmp_path / "plain" / "report.html").read_text()
    assert "Where the evidence is" not in text
    assert "memory by memory" not in text


def test_a_record_that_is_cut_has_its_complete_frames(evaluation: Path, tmp_path: Path) -> None:
    record = Path(shutil.copy(evaluation / EPISODES, tmp_path))
    episodes = first_episodes(record)
    assert first_episodes(record, record.stat().st_size - 1) == episodes[:-1]
    record.write_bytes(b"no record")
    assert first_episodes(record) == ()


def test_questions_that_require_an_abstention_have_separate_figures(tiny_model_folder: Path, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "I bought a car."}]
    rows = [
        {"question_id": name, "question": "What did I buy?", "answer": "a car", "haystack_sessions": [turns]}
        for name in ("a", "b_abs", "c_abs")
    ]
    (tmp_path / "l.json").write_text(json.dumps(rows))
    out = tmp_path / "eval"
    palimpsest.evaluate(
        tiny_model_folder, tmp_path / "l.json", baselines=False, overrides={**SMALL, "reward.name": "em"}, out=out,
        quiet=True,
    )  # fmt: skip
    regraded = palimpsest.evaluate(regrade=out, overrides={"reward.name": "f1"}, quiet=True)
    for folder in (out, regraded.out):
        assert folder is not None
        (row,) = json.loads((folder / "summary.json").read_text())["evaluations"]
        assert (row["problems"], row["abstention"]["problems"], row["abstention"]["graded"]) == (3, 2, 2)
        samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        assert {row["id"]: row["grading"] for row in samples} == {
            "a": {}, "b_abs": {"abstention": True}, "c_abs": {"abstention": True}
        }  # fmt: skip
    text = (out / "report.html").read_text("utf-8")
    assert "of 2 problems" in text
    assert "digits and scripts: of any script" in text
    assert summarise(CHUNKS, [sample("a", 1.0)]).abstention is None


def test_rows_have_the_number_of_episodes_without_a_grade(tmp_path: Path) -> None:
    samples = [sample("a", 1.0), sample("b", 0.0), sample("c", None)]
    text = report_of(tmp_path, {"a": {"dev": summarise(CHUNKS, samples)}}, samples)
    assert report_tables(text)[1][2][:3] == ["dev", "3, 1 ungraded", "50.0%"]
    assert "over 2 episodes. 1 of 3 episodes are ungraded" in text


def test_the_tokens_per_correct_answer_include_all_episodes(tmp_path: Path) -> None:
    samples = [sample("a", 1.0), sample("b", 0.0), sample("c", 0.5), sample("d", None)]  # 100 tokens each
    summary, wrong = summarise(CHUNKS, samples), summarise(BASELINE, [sample("a", 0.0)])
    assert (summary.tokens_per_correct, wrong.tokens_per_correct) == (400 / 1.5, None)
    assert summarise(CHUNKS, [sample("a", 2.0)]).tokens_per_correct is None  # a reward that counts no answers
    accuracy, figures, *_ = report_tables(report_of(tmp_path, {"a": {"dev": summary}, "b": {"none": wrong}}, samples))
    cells = [(row[0], row[1] == "", row[2] == "") for row in accuracy]
    assert cells == [("", False, False), ("a", False, True), ("b", True, False)]
    columns, _, right, _, none = figures
    assert columns[3:6] == ["tokens", "tokens per\ncorrect answer", "turns"]
    assert (right[3:6], none[3:6]) == (["100", "267", "3.0"], ["100", "–", "3.0"])


def sample_at(id: str, value: float | None, first: float, last: float) -> Sample:
    return sample(id, value, measures={"evidence_first": first, "evidence_last": last})


def test_accuracy_is_grouped_by_the_fifth_of_the_document_with_the_evidence(tmp_path: Path) -> None:
    positions = [(0.0, 1.0), (0.1, 0.0), (0.19, 1.0), (0.2, 1.0), (0.99, 0.0), (1.0, 0.0), (0.5, None)]
    samples = [sample_at(f"p{at}", value, position, position) for at, (position, value) in enumerate(positions)]
    summary = summarise(CHUNKS, [*samples, sample("nowhere", 1.0)])
    fifths = [(part.graded, part.accuracy.mean) for part in summary.by_evidence]
    assert fifths == [(3, 2 / 3), (1, 1.0), (0, None), (0, None), (2, 0.0)]
    assert summary.by_last_evidence == ()
    low, high = wilson(2, 3)
    columns, name, row = report_tables(report_of(tmp_path, {"a": {"dev": summary}}, samples))[2]
    assert (columns[1:3], name) == (["0% to 20%", "20% to 40%"], ["a"])
    assert row[:2] == ["dev", f"67%\nof 3, {low:.0%} to {high:.0%}"]
    assert (row[2][:4], row[3]) == ("100%", "–")


def test_evidence_in_several_places_has_a_row_for_the_first_and_one_for_the_last(tmp_path: Path) -> None:
    samples = [sample_at("a", 1.0, 0.1, 0.9), sample_at("b", 0.0, 0.7, 0.7)]
    summary = summarise(CHUNKS, samples)
    assert [part.graded for part in summary.by_evidence] == [1, 0, 0, 1, 0]
    assert [part.graded for part in summary.by_last_evidence] == [0, 0, 0, 1, 1]
    rows = {"agent": {"dev": summary}, "closed book": {"dev": replace(summary, cell=BASELINE)}}
    labels = [row[0] for row in report_tables(report_of(tmp_path, rows, samples))[2]]
    both = ["dev, first evidence", "dev, last evidence"]
    assert labels == ["part of the document", "agent", *both, "closed book", *both]
