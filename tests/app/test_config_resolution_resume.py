"""A run goes on by its folder alone: recipe, overrides and seed are its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.config_resolution import RunRequest, model_folder, resolve_run
from palimpsest.app.quickstart.quickstart_plan import resolve_quickstart
from palimpsest.cli.options import resumed
from palimpsest.progress.reporter import Silent
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.runs.resume_rules import Imitated, RunOrigin, command_of_whole, how_to_resume, origin_of, resume_command
from palimpsest.runs.run_folder import open_run
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.codec import Codec
from support.command import Run
from support.fakes import small_config
from support.groups import sample_groups
from support.small_run import small_run


class Shown(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture
def settings(tiny_model_folder: Path) -> dict[str, Any]:
    return {**small_run(tiny_model_folder), "optim.learning_rate": 1e-3}


@pytest.fixture
def stopped(settings: dict[str, Any], tmp_path: Path) -> palimpsest.Run:
    """A run of two steps that has done none."""
    stop = GracefulStop()
    stop.request("test")
    return palimpsest.train("memagent-quickstart", settings, seed=7, out=tmp_path / "my run", quiet=True, stop=stop)


def test_a_run_goes_on_by_its_folder_and_ends_as_one_that_was_never_interrupted(
    stopped: palimpsest.Run, settings: dict[str, Any], tmp_path: Path
) -> None:
    whole = palimpsest.train("memagent-quickstart", settings, seed=7, out=tmp_path / "whole", quiet=True)
    run = palimpsest.train(resume=stopped, quiet=True)
    assert (run.folder, run.finished, run.config) == (stopped.folder, True, stopped.config)
    for file in ("metrics.jsonl", "checkpoints/step-000002/model.safetensors"):
        assert (run.folder / file).read_bytes() == (whole.folder / file).read_bytes()


def test_the_hints_of_an_interruption_and_of_a_folder_in_use_are_commands_that_go_on(
    palimpsest: Run, stopped: palimpsest.Run, refused: Callable[..., str]
) -> None:
    hint = f"palimpsest train --resume '{stopped.folder}'"
    assert resume_command(stopped) == hint
    assert f"{hint} continues it" in refused("train", "memagent-quickstart", "--out", str(stopped.folder))
    done = palimpsest("train", "--resume", str(stopped.folder))
    assert (done.returncode, stopped.steps) == (0, 2), done.stderr
    assert "2 of 2 steps" in done.stderr


def test_what_a_run_may_change_is_said_and_what_it_may_not_is_refused(stopped: palimpsest.Run) -> None:
    shown = Shown()
    run = palimpsest.train(resume=stopped.folder, overrides={"train.save_steps": 2}, progress=shown)
    assert (run.steps, run.config.train.save_steps) == (2, 2)
    assert "resumed with another train.save_steps: 1 -> 2" in shown.messages
    with pytest.raises(palimpsest.PalimpsestError, match=r"can't change train\.group_size: 2 -> 4"):
        palimpsest.train(resume=stopped.folder, overrides={"train.group_size": 4}, quiet=True)
    with pytest.raises(palimpsest.PalimpsestError, match="can't change seed: 7 -> 8"):
        palimpsest.train(resume=stopped.folder, seed=8, quiet=True)


@pytest.mark.parametrize(
    ("message", "recipe", "options"),
    [
        ("pass a recipe, or resume a run", None, {}),
        ("no such folder", None, {"resume": "nothing"}),
        ("no such folder", "nothing", {"resume": True}),
        ("the run has its recipe", "memagent-7b", {"resume": "my run"}),
        ("resumes in its own folder", None, {"resume": "my run", "out": Path("other")}),
        ("palimpsest train started", None, {"resume": "my run", "command": "sft"}),
        ("use its configuration .* --resume ", "my run", {}),
    ],
)
def test_contradictory_requests_are_refused(
    message: str, recipe: str | None, options: dict[str, Any], stopped: palimpsest.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stopped.folder.parent)
    with pytest.raises(palimpsest.PalimpsestError, match=message):
        resolve_run(RunRequest(recipe, **options))


def test_a_run_that_ends_by_an_error_says_how_it_goes_on(
    palimpsest: Run, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grading.py").write_text("def fails(problem, trajectory):\n    raise ValueError('down')\n")
    monkeypatch.chdir(tmp_path)
    recipe = {key: value for key, value in settings.items() if key != "logging.report_to"}
    texts = [f"{key}={json.dumps(value)}" for key, value in recipe.items()]
    done = palimpsest("train", "memagent-quickstart", *texts, "reward.name=grading:fails", "--out", "runs/x")
    assert done.returncode == 2
    assert "palimpsest train --resume runs/x starts over: it has no checkpoint" in done.stderr
    assert "no episode has a grade" in done.stderr


@pytest.mark.parametrize(
    "row",
    [
        {"command": "train", "detail": 5},
        {"command": ["x"]},
        {"command": None},
        {"command": "sft; rm -rf /"},
        {"kind": ["started"], "command": "sft"},
    ],
)
def test_an_unknown_command_of_a_run_counts_as_train(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps({"kind": "started", **row}) + "\n")
    assert origin_of(tmp_path) == RunOrigin()
    assert resume_command(tmp_path) == f"palimpsest train --resume {tmp_path}"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["data", "x...; rm -rf ~"], "palimpsest.train(resume={run!r}, data=...)"),
        (["x\n", "a b", 3, None], "palimpsest train --resume {run}"),
        ("data", "palimpsest train --resume {run}"),
        ({"data": 1}, "palimpsest train --resume {run}"),
    ],
)
def test_a_resume_command_contains_only_argument_names_of_a_run(arguments: Any, command: str, tmp_path: Path) -> None:
    row = {"kind": "started", "command": "train", "detail": {"given": arguments}}
    (tmp_path / "events.jsonl").write_text(json.dumps(row) + "\n")
    assert origin_of(tmp_path).detail == {"given": arguments}
    assert resume_command(tmp_path) == command.format(run=str(tmp_path))


@pytest.mark.parametrize("detail", [{"records": 5}, {"records": "a", "data": "b"}, {"per_problem": 1}, {"x": 1}])
def test_a_run_that_does_not_say_what_it_imitates_is_refused_in_words(detail: dict[str, Any]) -> None:
    with pytest.raises(palimpsest.PalimpsestError, match=r"events\.jsonl lacks the source of its episodes: set --from"):
        Imitated.from_json(detail)


def test_a_hint_says_whether_a_run_goes_on_or_begins_again(tmp_path: Path) -> None:
    open_run(tmp_path, small_config(), on_warning=print).close()
    begins = f"palimpsest train --resume {tmp_path} starts over: it has no checkpoint"
    assert how_to_resume(tmp_path) == resumed(tmp_path, force=False)() == begins
    with pytest.raises(palimpsest.PalimpsestError, match=r"has no checkpoint; .* starts over"):
        model_folder(tmp_path, print)
    for folder in ("cold-start/checkpoints", "checkpoints"):
        (tmp_path / folder / "step-000001").mkdir(parents=True)
        assert how_to_resume(tmp_path).endswith("resumes from the newest checkpoint")
        (tmp_path / folder / "step-000001").rmdir()


def test_a_quickstart_goes_on_by_its_folder(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"model.path": str(tiny_model_folder), "train.max_steps": 3, "evaluation.sizes": [1, 2]}
    config = resolve_quickstart("memagent", changes, seed=5).config
    with open_run(tmp_path / "run", config, origin=RunOrigin("quickstart")):
        pass
    for resume, method in ((tmp_path / "run", None), (True, str(tmp_path / "run"))):
        asked = resolve_quickstart(method, resume=resume)
        assert (asked.config, asked.folder, asked.resume) == (config, tmp_path / "run", True)
    assert resolve_quickstart(None, resume=True, out=tmp_path / "run").config == config
    assert resume_command(tmp_path / "run").startswith("palimpsest quickstart --resume ")
    for inner in ("cold-start", "baseline"):
        assert command_of_whole(tmp_path / "run" / inner) == resume_command(tmp_path / "run")
    assert command_of_whole(tmp_path / "other") == resume_command(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(palimpsest.PalimpsestError, match="palimpsest quickstart --resume RUN"):
        resolve_quickstart(None, resume=True)
    with pytest.raises(palimpsest.PalimpsestError, match="palimpsest quickstart started"):
        resolve_run(RunRequest(None, resume=tmp_path / "run"))
    with pytest.raises(palimpsest.PalimpsestError, match="no such method"):
        resolve_quickstart("memagnet")


def test_the_lessons_of_a_recipe_are_learnt_alone_and_go_on_by_their_folder(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path
) -> None:
    size = "cold_start={max_steps: 2, batch_size: 2}"
    command = ("sft", "memagent-quickstart", f"model.path={tiny_model_folder}", size, "--out", str(tmp_path / "run"))
    done = palimpsest(*command)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoints" / "step-000002").is_dir()
    asked = resolve_run(RunRequest(None, command="sft", resume=tmp_path / "run"))
    assert asked.config.cold_start is not None
    assert asked.config.cold_start.max_steps == 2
    again = palimpsest("sft", "--resume", str(tmp_path / "run"))
    assert "2 of 2 steps" in again.stderr, again.stderr
    lacking = palimpsest("sft", "memagent-quickstart", "cold_start=null", "--out", str(tmp_path / "none"))
    assert "has no cold_start" in lacking.stderr


def test_supervised_training_goes_on_by_its_folder(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    records = encode_groups([replace(g) for g in sample_groups(2)], Codec.load(str(tiny_model_folder)).digest)
    (tmp_path / "records.jsonl.zst").write_bytes(records)
    sizes = ("train.max_steps=1", "train.batch_size=4", "cold_start=null", f"model.path={tiny_model_folder}")
    out = ("--out", str(tmp_path / "run"))
    done = palimpsest("sft", "memagent-quickstart", *sizes, "--from", str(tmp_path / "records.jsonl.zst"), *out)
    assert done.returncode == 0, done.stderr
    assert origin_of(tmp_path / "run").command == "sft"
    again = palimpsest("sft", "--resume", str(tmp_path / "run"), "train.max_steps=2")
    assert (again.returncode, "2 of 2 steps" in again.stderr) == (0, True), again.stderr
