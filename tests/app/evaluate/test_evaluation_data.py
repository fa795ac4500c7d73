"""Files as people have them, through whole evaluations and trainings of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import palimpsest as library
from palimpsest.errors import DataError
from palimpsest.evaluation.sample_log import read_samples
from palimpsest.runs.jsonl_rows import read_rows
from support.command import Run
from support.small_run import small_run

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}
WORDS = [f"{name}={value}" for name, value in BUDGETS.items()]


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [{"id": f"p{i}", "question": f"Who {i}?", "answers": ["Ann"], "context": f"Ann {i} ran."} for i in range(4)]
GOLDLESS = [ROWS[0], ROWS[1] | {"answers": []}]
FACT = {"question": "Who?", "answer": "Ann", "context": [["A", ["Ann ran."]]]}
HOTPOT = [FACT | {"_id": f"h{i}", "supporting_facts": [[title, 0]]} for i, title in enumerate("ABA")]


def test_a_question_without_a_gold_is_played_once_and_counted_beside_the_accuracy(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path
) -> None:
    path, out = lines(tmp_path / "dev.jsonl", *GOLDLESS), tmp_path / "out"
    words = ["eval", "--no-baselines", str(tiny_model_folder), "--data", str(path), *WORDS, "--out", str(out)]
    done = palimpsest(*words)
    assert done.returncode == 0
    assert "1 question without a gold answer" in done.stdout
    (summary,) = json.loads((out / "summary.json").read_text())["evaluations"]
    assert (summary["problems"], summary["graded"], summary["ungraded"]) == (2, 1, 1)
    assert summary["ungraded_reasons"] == {"the data has no gold answer for it": 1}
    played = (out / "samples.jsonl").read_bytes()
    assert palimpsest(*words).returncode == 0
    assert (out / "samples.jsonl").read_bytes() == played  # nothing is played again
    (without,) = [sample for sample in read_samples(out / "samples.jsonl")[0] if sample.id == "p1"]
    assert (without.value, without.metrics, without.answers) == (None, {}, ())
    assert without.answer is not None


def test_training_refuses_a_question_without_a_gold_by_name(tmp_path: Path, tiny_model_folder: Path) -> None:
    settings = small_run(tiny_model_folder) | {"data.train_files": str(lines(tmp_path / "train.jsonl", *GOLDLESS))}
    with pytest.raises(DataError, match="problem p1: has no gold answer, and training needs one"):
        library.train("memagent-quickstart", settings, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_rows_passed_in_python_with_other_names_are_to_be_renamed() -> None:
    with pytest.raises(DataError, match="rename Quastion to question"):
        library.evaluate(data=[{"Quastion": "Who?", "completion": "Ann", "document": "Ann ran."}], quiet=True)


def test_an_evaluation_without_a_right_answer_says_that_the_bundled_model_does_not_know_the_text(
    palimpsest: Run, tmp_path: Path
) -> None:
    def note(context: str) -> bool:
        row = {"question": "What does Omar buy?", "answers": ["a house"], "context": context}
        done = palimpsest("eval", "--no-baselines", "--data", str(lines(tmp_path / "a.jsonl", row)))
        return "Hugging Face" in done.stderr

    assert (note("It rained in Rome all day."), note("It rained. Omar sells tea.")) == (True, False)


def test_columns_of_other_names_are_told_to_an_evaluation(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path
) -> None:
    path = tmp_path / "faq.csv"
    path.write_text("asked,said,seen\nWho?,Ann,Ann ran.\n")
    words = ["eval", "--no-baselines", str(tiny_model_folder), "--data", str(path), *WORDS]
    refused = palimpsest(*words)
    assert refused.returncode == 2
    assert "--map" in refused.stderr
    done = palimpsest(*words, "--map", "question=asked,answers=said,context=seen", "--out", str(tmp_path / "out"))
    assert done.returncode == 0
    ((sample,), _) = read_samples(tmp_path / "out" / "samples.jsonl")
    assert (sample.question, sample.answers) == ("Who?", ("Ann",))
    assert palimpsest(*words, "--map", "question").stderr.startswith("error: --map question: expected pairs")
    typo = palimpsest("data", "inspect", str(path), "--map", "quesion=asked,answers=said")
    assert "--map quesion=asked: no format reads a column quesion; did you mean question?" in typo.stderr
    stray = palimpsest("data", "inspect", str(path), "--map", "fag.csv:question=asked")
    assert stray.stderr.startswith("error: --map fag.csv:question: no file")


def test_each_of_several_files_may_have_columns_of_its_own(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path
) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("q,gold,body\nWho?,Ann,Ann ran.\n")
    second.write_text("asked,gold,body\nWhere?,Rome,Ann ran to Rome.\n")
    words = ["eval", "--no-baselines", str(tiny_model_folder), "--data", str(first), "--data", str(second)]
    columns = f"question=q,answers=gold,context=body,{second}:question=asked"
    done = palimpsest(*words, *WORDS, "--map", columns, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    samples, _ = read_samples(tmp_path / "out" / "samples.jsonl")
    assert {(sample.set, sample.question) for sample in samples} == {("a", "Who?"), ("b", "Where?")}
    stray = palimpsest(*words, *WORDS, "--map", "c.csv:question=q")
    assert "--map c.csv:question: no file" in stray.stderr


def test_rows_that_are_left_out_are_told_and_recorded(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    path, out = lines(tmp_path / "dev.jsonl", *HOTPOT), tmp_path / "out"
    skip = ["data.on_missing_gold=skip", "--out", str(out)]
    done = palimpsest("eval", str(tiny_model_folder), "--data", str(path), *WORDS, *skip)
    assert "rows skipped by data.on_missing_gold=skip: 1, first: " in done.stderr
    assert json.loads((out / "summary.json").read_text())["rows_left_out"] == 1
    assert "rows skipped            1" in palimpsest("data", "inspect", str(path), "--on-missing-gold", "skip").stdout


def test_a_training_reads_several_files_and_records_what_it_left_out(tmp_path: Path, tiny_model_folder: Path) -> None:
    files = [lines(tmp_path / "a.jsonl", *ROWS), lines(tmp_path / "b.jsonl", *HOTPOT)]
    settings = small_run(tiny_model_folder, batch_size=2) | {
        "data.train_files": [str(path) for path in files],
        "data.on_missing_gold": "skip",
    }
    run = library.train("memagent-quickstart", settings, out=tmp_path / "run", quiet=True)
    assert run.finished
    warnings = [row["message"] for row in read_rows(run.folder / "events.jsonl") if row.get("kind") == "warning"]
    assert any(said.startswith("rows skipped by data.on_missing_gold=skip: 1") for said in warnings)
