"""Where an evaluation writes: never over a run or anything else, and never deleting."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

import palimpsest
from palimpsest.errors import RunError
from palimpsest.jobs.evaluation import Evaluation
from palimpsest.jobs.evaluation_folder import check_folder
from support.small_run import small_run

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}


def evaluated(model: Path, out: Path, *, seed: int = 0, force: bool = False) -> Evaluation:
    return palimpsest.evaluate(model, chunks=1, limit=1, overrides=BUDGETS, seed=seed, out=out, force=force, quiet=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_run_is_not_evaluated_into_its_own_folder(tmp_path: Path, tiny_model_folder: Path) -> None:
    run = palimpsest.train("memagent-quickstart", small_run(tiny_model_folder), out=tmp_path / "run", quiet=True)
    (run.folder / "summary.json").write_text("{}")
    before = contents(run.folder)
    with pytest.raises(RunError, match="holds a run: give the evaluation another --out"):
        run.evaluate(limit=1, out=run.folder, quiet=True)
    with pytest.raises(RunError, match=r"holds the model .*step-000002, which --force would move aside"):
        run.evaluate(limit=1, out=run.folder, force=True, quiet=True)
    assert contents(run.folder) == before


def test_force_moves_an_evaluation_aside_and_deletes_nothing(tmp_path: Path, tiny_model_folder: Path) -> None:
    out = tmp_path / "out"
    evaluated(tiny_model_folder, out)
    (out / "notes.txt").write_text("mine")
    before = contents(out)
    evaluated(tiny_model_folder, out, seed=1, force=True)
    assert contents(tmp_path / "out.old-1") == before
    assert json.loads((out / "evaluation.json").read_text())["seed"] == 1
    assert not (out / "notes.txt").exists()


def test_an_evaluation_goes_on_beside_files_of_the_users_own(tmp_path: Path, tiny_model_folder: Path) -> None:
    evaluated(tiny_model_folder, tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert len(evaluated(tiny_model_folder, tmp_path / "out")) == 1


@pytest.mark.parametrize("names", [["notes.txt"], ["samples.jsonl", "summary.json"]])
def test_a_folder_that_holds_something_else_is_refused_and_left_as_it_is(
    tmp_path: Path, tiny_model_folder: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).write_text("{}\n")
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"but no evaluation\.json: not an evaluation"):
        evaluated(tiny_model_folder, tmp_path)
    assert contents(tmp_path) == before


def test_a_log_that_was_killed_before_its_identity_was_written_goes_on(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("")
    check_folder(tmp_path, model="embedded", force=False)


def test_an_evaluation_in_use_is_not_moved_aside(tmp_path: Path) -> None:
    with (tmp_path / "samples.jsonl").open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="being written by another process"):
            check_folder(tmp_path, model="embedded", force=True)
