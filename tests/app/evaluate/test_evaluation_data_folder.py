"""Where an evaluation writes: never over a run or anything else, and never deleting."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

import palimpsest
from palimpsest.app.evaluate.evaluation_data import check_folder, move_aside
from palimpsest.app.evaluate.evaluation_result import Evaluation
from palimpsest.errors import RunError
from palimpsest.runs.run_folder import RunFolder, open_run
from support.changed_models import change_the_middle, copied_base, rewrite_template, scale_positions
from support.fakes import small_config
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
    with pytest.raises(RunError, match="contains a run: use another --out"):
        run.evaluate(limit=1, out=run.folder, quiet=True)
    with pytest.raises(RunError, match=r"contains the model .*step-000002, which --force would rename"):
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
        with pytest.raises(RunError, match="another process writes to"):
            check_folder(tmp_path, model="embedded", force=True)


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


def test_a_folder_with_an_evaluation_in_use_below_it_is_not_moved_aside(tmp_path: Path) -> None:
    (tmp_path / "evals" / "first").mkdir(parents=True)
    with (tmp_path / "evals" / "first" / "samples.jsonl").open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another process writes to"):
            check_folder(tmp_path / "evals", model="embedded", force=True)
