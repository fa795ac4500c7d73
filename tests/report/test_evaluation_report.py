"""The report that an evaluation leaves beside its figures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import palimpsest
from palimpsest.evaluation.episode_files import EPISODES, first_episodes
from palimpsest.evaluation.sample_log import Sample
from palimpsest.evaluation.statistics import wilson
from palimpsest.evaluation.summary import accuracy_of, summarise
from palimpsest.report.run_reports import EvaluationResults, write_evaluation_report
from support.evaluations import CHUNKS, report_tables, sample

BASELINE = replace(CHUNKS, player="closed book", baseline=True)
SMALL = {"memory_tokens": 8, "chunk_size": 24}


def evaluated(model: Path, out: Path, **settings: object) -> str:
    """The report of a small evaluation."""
    overrides = {**SMALL, **settings}
    palimpsest.evaluate(model, chunks=[1, 2], limit=2, overrides=overrides, out=out, quiet=True)
    return (out / "report.html").read_text("utf-8")


def test_figures_stand_in_it_with_intervals_baselines_and_outcomes(tiny_model_folder: Path, tmp_path: Path) -> None:
    text = evaluated(tiny_model_folder, tmp_path / "eval")
    summary = json.loads((tmp_path / "eval" / "summary.json").read_text())
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
    assert f"palimpsest view {tmp_path / 'eval'}" in text


def test_questions_that_ask_for_an_abstention_have_their_own_figures(tiny_model_folder: Path, tmp_path: Path) -> None:
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
    again = palimpsest.evaluate(regrade=out, overrides={"reward.name": "f1"}, quiet=True)
    for folder in (out, again.out):
        assert folder is not None
        (row,) = json.loads((folder / "summary.json").read_text())["evaluations"]
        assert (row["problems"], row["abstention"]["problems"], row["abstention"]["graded"]) == (3, 2, 2)
        samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        assert {one["id"]: one["grading"] for one in samples} == {
            "a": {}, "b_abs": {"abstention": True}, "c_abs": {"abstention": True}
        }  # fmt: skip
    text = (out / "report.html").read_text("utf-8")
    assert "of 2 problems" in text
    assert "digits and scripts: of any script" in text
    assert summarise(CHUNKS, [sample("a", 1.0)]).abstention is None


def test_rows_say_how_many_of_their_episodes_have_no_grade(tmp_path: Path) -> None:
    samples = [sample("a", 1.0), sample("b", 0.0), sample("c", None)]
    results = EvaluationResults("t", accuracy_of(samples), [], {"a": {"dev": summarise(CHUNKS, samples)}}, config="")
    write_evaluation_report(tmp_path, results)
    text = (tmp_path / "report.html").read_text()
    assert report_tables(text)[1][2][:3] == ["dev", "3, 1 ungraded", "50.0%"]
    assert "over 2 episodes. 1 of 3 episodes are ungraded" in text


def test_a_right_answer_costs_the_tokens_of_all_episodes(tmp_path: Path) -> None:
    samples = [sample("a", 1.0), sample("b", 0.0), sample("c", 0.5), sample("d", None)]  # 100 tokens each
    summary, wrong = summarise(CHUNKS, samples), summarise(BASELINE, [sample("a", 0.0)])
    assert (summary.tokens_per_correct, wrong.tokens_per_correct) == (400 / 1.5, None)
    assert summarise(CHUNKS, [sample("a", 2.0)]).tokens_per_correct is None  # a reward that counts no answers
    rows = {"a": {"dev": summary}, "b": {"none": wrong}}
    write_evaluation_report(tmp_path, EvaluationResults("t", accuracy_of(samples), [], rows, config=""))
    text = (tmp_path / "report.html").read_text()
    assert [(row[0], row[1] == "", row[2] == "") for row in report_tables(text)[0]] == [
        ("", False, False), ("a", False, True), ("b", True, False)
    ]  # fmt: skip
    columns, _, right, _, none = report_tables(text)[1]
    assert columns[3:6] == ["tokens", "tokens per\ncorrect answer", "turns"]
    assert (right[3:6], none[3:6]) == (["100", "267", "3.0"], ["100", "–", "3.0"])


def placed(id: str, value: float | None, first: float, last: float) -> Sample:
    return sample(id, value, measures={"evidence_first": first, "evidence_last": last})


def test_accuracy_stands_by_the_fifth_of_the_document_that_holds_the_evidence(tmp_path: Path) -> None:
    places = [(0.0, 1.0), (0.1, 0.0), (0.19, 1.0), (0.2, 1.0), (0.99, 0.0), (1.0, 0.0), (0.5, None)]
    samples = [placed(f"p{at}", value, place, place) for at, (place, value) in enumerate(places)]
    summary = summarise(CHUNKS, [*samples, sample("nowhere", 1.0)])
    assert [(part.graded, part.accuracy.mean) for part in summary.by_evidence] == [
        (3, 2 / 3),
        (1, 1.0),
        (0, None),
        (0, None),
        (2, 0.0),
    ]
    assert summary.by_last_evidence == ()
    low, high = wilson(2, 3)
    write_evaluation_report(
        tmp_path, EvaluationResults("t", accuracy_of(samples), [], {"a": {"dev": summary}}, config="")
    )
    columns, name, row = report_tables((tmp_path / "report.html").read_text())[2]
    assert (columns[1:3], name) == (["0% to 20%", "20% to 40%"], ["a"])
    assert row[:2] == ["dev", f"67%\nof 3, {low:.0%} to {high:.0%}"]
    assert (row[2][:4], row[3]) == ("100%", "–")


def test_evidence_in_several_places_has_a_row_for_the_first_and_one_for_the_last(tmp_path: Path) -> None:
    samples = [placed("a", 1.0, 0.1, 0.9), placed("b", 0.0, 0.7, 0.7)]
    summary = summarise(CHUNKS, samples)
    assert [part.graded for part in summary.by_evidence] == [1, 0, 0, 1, 0]
    assert [part.graded for part in summary.by_last_evidence] == [0, 0, 0, 1, 1]
    rows = {"agent": {"dev": summary}, "closed book": {"dev": replace(summary, cell=BASELINE)}}
    write_evaluation_report(tmp_path, EvaluationResults("t", accuracy_of(samples), [], rows, config=""))
    shown = [row[0] for row in report_tables((tmp_path / "report.html").read_text())[2]]
    own = ["dev, first evidence", "dev, last evidence"]
    assert shown == ["part of the document", "agent", *own, "closed book", *own]


def test_an_evaluation_of_documents_with_evidence_has_the_table(tiny_model_folder: Path, tmp_path: Path) -> None:
    assert "Where the evidence is" in evaluated(tiny_model_folder, tmp_path / "eval")
    summary = json.loads((tmp_path / "eval" / "summary.json").read_text())
    assert [sum(part["graded"] for part in row["by_evidence"]) for row in summary["evaluations"]] == [2, 2]
    plain = [palimpsest.Problem("p", "Who ran?", ("Anna",), "Anna ran.")]
    palimpsest.evaluate(tiny_model_folder, plain, overrides=SMALL, out=tmp_path / "plain", quiet=True)
    assert "Where the evidence is" not in (tmp_path / "plain" / "report.html").read_text()


def test_one_that_went_wrong_is_told_memory_by_memory(tiny_model_folder: Path, tmp_path: Path) -> None:
    text = evaluated(tiny_model_folder, tmp_path / "eval")
    assert "A wrong episode, memory by memory" in text
    assert "<small>turn 1</small>" in text
    assert "memory by memory" not in evaluated(tiny_model_folder, tmp_path / "none", **{"evaluation.record": "none"})


def test_it_holds_no_script_and_asks_for_nothing(tiny_model_folder: Path, tmp_path: Path) -> None:
    text = evaluated(tiny_model_folder, tmp_path / "eval")
    assert "<script" not in text
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)


def test_a_record_that_is_cut_gives_its_whole_frames(tiny_model_folder: Path, tmp_path: Path) -> None:
    evaluated(tiny_model_folder, tmp_path / "eval")
    record = tmp_path / "eval" / EPISODES
    whole = first_episodes(record)
    assert first_episodes(record, record.stat().st_size - 1) == whole[:-1]
    record.write_bytes(b"no record")
    assert first_episodes(record) == ()
