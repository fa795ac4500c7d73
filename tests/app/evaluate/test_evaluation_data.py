"""Data files of evaluations and trainings, and the folders that evaluations write to."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

import palimpsest
import palimpsest as library
from palimpsest.app.evaluate.evaluation_data import check_folder, move_aside, read_problems
from palimpsest.app.evaluate.evaluation_result import Evaluation
from palimpsest.config.load import load_recipe
from palimpsest.errors import DataError, RunError
from palimpsest.evaluation.sample_log import read_samples
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.run_folder import RunFolder, open_run
from support.changed_models import change_the_middle, copied_base, rewrite_template, scale_positions
from support.command import Run
from support.fakes import small_config
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


def test_a_question_without_gold_is_played_once(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
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


def test_each_family_of_generated_questions_is_a_set() -> None:
    settings = {"data.limit": 3, "data.synthetic.val_task": ["list", "needle"], "data.curriculum": None}
    config = load_recipe("memagent-quickstart", settings)
    cells = read_problems(config, (2, 8))
    assert [(cell.set, cell.size) for cell in cells] == [(s, n) for s in ("list", "needle") for n in (2, 8)]
    assert [[one.metadata["task"] for one in problems] for problems in cells.values()] == [
        [cell.set] * 3 for cell in cells
    ]
    alone = read_problems(load_recipe("memagent-quickstart", settings | {"data.synthetic.val_task": "list"}), (2,))
    assert [(cell.set, list(problems)) for cell, problems in alone.items()] == [
        ("synthetic", list(next(iter(cells.values()))))
    ]


def test_training_refuses_a_question_without_a_gold_by_name(tmp_path: Path, tiny_model_folder: Path) -> None:
    settings = small_run(tiny_model_folder) | {"data.train_files": str(lines(tmp_path / "train.jsonl", *GOLDLESS))}
    with pytest.raises(DataError, match="problem p1: has no gold answer, and training needs one"):
        library.train("memagent-quickstart", settings, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_rows_with_other_keys_are_refused_with_the_key_to_rename() -> None:
    with pytest.raises(DataError, match="rename Quastion to question"):
        library.evaluate(data=[{"Quastion": "Who?", "completion": "Ann", "document": "Ann ran."}], quiet=True)


def test_unknown_words_of_the_bundled_model_are_noted(palimpsest: Run, tmp_path: Path) -> None:
    def note(context: str) -> bool:
        row = {"question": "What does Omar buy?", "answers": ["a house"], "context": context}
        done = palimpsest("eval", "--no-baselines", "--data", str(lines(tmp_path / "a.jsonl", row)))
        return "Hugging Face" in done.stderr

    assert (note("It rained in Rome all day."), note("It rained. Omar sells tea.")) == (True, False)


def test_columns_of_other_names_are_mapped(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
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


def test_columns_are_mapped_by_file(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
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


def test_skipped_rows_are_counted(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
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
    assert any(message.startswith("rows skipped by data.on_missing_gold=skip: 1") for message in warnings)


def evaluated(model: Path, out: Path, *, seed: int = 0, force: bool = False) -> Evaluation:
    return palimpsest.evaluate(model, chunks=1, limit=1, overrides=BUDGETS, seed=seed, out=out, force=force, quiet=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_run_is_not_evaluated_into_its_folder(tmp_path: Path, tiny_model_folder: Path) -> None:
    run = palimpsest.train("memagent-quickstart", small_run(tiny_model_folder), out=tmp_path / "run", quiet=True)
    (run.folder / "summary.json").write_text("{}")
    before = contents(run.folder)
    with pytest.raises(RunError, match="contains a run: use another --out"):
        run.evaluate(limit=1, out=run.folder, quiet=True)
    with pytest.raises(RunError, match=r"contains the model .*step-000002, which --force would rename"):
        run.evaluate(limit=1, out=run.folder, force=True, quiet=True)
    assert contents(run.folder) == before


def test_force_moves_an_evaluation_aside_and_deletes_nothing(tmp_path: Path, tiny_model_folder: Path) -> None:
    out = tmp_path / "out"
    evaluated(tiny_model_folder, out)
    (out / "notes.txt").write_text("mine")
    assert len(evaluated(tiny_model_folder, out)) == 1
    before = contents(out)
    evaluated(tiny_model_folder, out, seed=1, force=True)
    assert contents(tmp_path / "out.old-1") == before
    assert json.loads((out / "evaluation.json").read_text())["seed"] == 1
    assert not (out / "notes.txt").exists()


def test_an_evaluation_of_changed_weights_template_or_configuration_is_another_one(tmp_path: Path) -> None:
    model = copied_base(tmp_path / "model")
    evaluated(model, tmp_path / "out")
    for change in (change_the_middle, rewrite_template, scale_positions):
        change(model)
        with pytest.raises(RunError, match="contains another evaluation"):
            evaluated(model, tmp_path / "out")
        evaluated(model, tmp_path / "out", force=True)


def test_an_evaluation_whose_weights_were_recorded_in_part_is_no_changed_one(tmp_path: Path) -> None:
    model = copied_base(tmp_path / "model")
    evaluated(model, tmp_path / "out")
    identity = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    (tmp_path / "out" / "evaluation.json").write_text(json.dumps(identity | {"weights": "0123456789abcdef"}))
    with pytest.raises(RunError, match=r"an earlier version .* use another --out, or --force"):
        evaluated(model, tmp_path / "out")


@pytest.mark.parametrize("names", [["notes.txt"], ["samples.jsonl", "summary.json"]])
def test_another_folder_is_refused_and_unchanged(tmp_path: Path, tiny_model_folder: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("{}\n")
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"but no evaluation\.json: not an evaluation"):
        evaluated(tiny_model_folder, tmp_path)
    assert contents(tmp_path) == before


def test_a_log_that_was_killed_before_its_identity_was_written_goes_on(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("")
    check_folder(tmp_path, model="embedded", force=False)


def begun_run(folder: Path) -> RunFolder:
    return open_run(folder, small_config(), on_warning=lambda _: None)


@pytest.mark.parametrize("running", [True, False])
def test_what_holds_runs_or_is_a_part_of_one_is_not_moved_aside(tmp_path: Path, running: bool) -> None:
    run = begun_run(tmp_path / "runs" / "deep" / "first")
    (run.path / "checkpoints" / "step-000002").mkdir(parents=True)
    (run.path / "eval").mkdir()
    (run.path / "eval" / "notes.txt").write_text("mine")
    if not running:
        run.close()
    before = contents(tmp_path)
    for out in (tmp_path / "runs", run.path.parent, run.path / "checkpoints", run.path / "eval"):
        words = (
            "is in use by process" if running else "contains the run" if out in run.path.parents else "part of the run"
        )
        with pytest.raises(RunError, match=words):
            check_folder(out, model="embedded", force=True)
        with pytest.raises(RunError, match=words):
            move_aside(out, print)
        with pytest.raises(RunError, match=words):
            open_run(out, small_config(), force=True)
    assert contents(tmp_path) == before


def test_an_evaluation_in_a_run_is_moved_aside_unless_the_run_goes_on(tmp_path: Path) -> None:
    run = begun_run(tmp_path / "run")
    out = run.path / "eval"
    out.mkdir()
    (out / "evaluation.json").write_text("{}")
    with pytest.raises(RunError, match="is in use by process"):
        check_folder(out, model="embedded", force=True)
    run.close()
    check_folder(out, model="embedded", force=True)
    move_aside(out, print)
    assert (run.path / "eval.old-1" / "evaluation.json").exists()
    check_folder(run.path, model="embedded", force=True)  # a run as a whole may be moved


@pytest.mark.parametrize("folder", ["", "evals"])
def test_an_evaluation_in_use_is_not_renamed(folder: str, tmp_path: Path) -> None:
    (tmp_path / "evals" / "first").mkdir(parents=True)
    out = tmp_path / folder if folder else tmp_path / "evals" / "first"
    with (tmp_path / "evals" / "first" / "samples.jsonl").open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another process writes to"):
            check_folder(out, model="embedded", force=True)
