"""The report that an evaluation leaves beside its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import palimpsest
from palimpsest.evaluation.episodes import EPISODES, first_episodes
from palimpsest.evaluation.summary import accuracy_of, summarise
from palimpsest.report.evaluation import EvaluationResults, write_evaluation_report
from support.evaluations import sample

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
    for row in summary["evaluations"]:
        assert re.search(rf"<td>{row['name']}</td><td>{row['problems']}</td><td>{row['accuracy']['mean']:.1%}<", text)
        assert f"{row['accuracy']['low']:.1%} to {row['accuracy']['high']:.1%}" in text
        assert all(f"{count} {name.replace('_', ' ')}" in text for name, count in row["outcomes"].items())
    assert all(f"<td>baseline: {row['name']}</td>" in text for row in summary["baselines"])
    assert f"palimpsest view {tmp_path / 'eval'}" in text


def test_rows_say_how_many_of_their_episodes_have_no_grade(tmp_path: Path) -> None:
    samples = [sample("a", 1.0), sample("b", 0.0), sample("c", None)]
    results = EvaluationResults("t", accuracy_of(samples), [], [summarise("dev", samples)], [], config="")
    write_evaluation_report(tmp_path, results)
    text = (tmp_path / "report.html").read_text()
    assert "<td>dev</td><td>3, 1 ungraded</td><td>50.0%<" in text
    assert "over 2 episodes. Without a grade, and in no accuracy: 1 of 3." in text


def test_one_that_went_wrong_is_told_memory_by_memory(tiny_model_folder: Path, tmp_path: Path) -> None:
    text = evaluated(tiny_model_folder, tmp_path / "eval")
    assert "An episode that went wrong, memory by memory" in text
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
