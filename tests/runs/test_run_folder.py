"""Run folders: how they start, resume, move aside and rewind, and which are rejected."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from palimpsest import files
from palimpsest.config.schema import RunConfig
from palimpsest.errors import RunError
from palimpsest.notes import Note
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.run_folder import RunFolder, load_config, open_run
from support.fakes import small_config
from support.groups import sample_groups

CONFIG = small_config()


def quiet(path: Path, config: RunConfig = CONFIG, **options: Any) -> RunFolder:
    return open_run(path, config, on_warning=lambda _: None, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The folder of a run that has only started."""
    quiet(tmp_path / "run").close()
    return tmp_path / "run"


def files_of(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.iterdir() if file.is_file()}


def test_a_new_run_has_its_resolved_configuration(path: Path) -> None:
    assert load_config(path) == CONFIG
    assert read_rows(path / "events.jsonl")[0]["kind"] == "started"


def test_a_folder_with_a_run_is_rejected_without_resume_or_force(tmp_path: Path) -> None:
    with quiet(tmp_path / "run") as folder:
        folder.append_metrics(1, {"reward/mean": 0.5})
    error = r"contains a run \(1 steps, no checkpoint\): palimpsest train --resume \S+ starts it over, --force"
    with pytest.raises(RunError, match=error):
        quiet(tmp_path / "run")
    with pytest.raises(RunError, match="use one of them"):
        quiet(tmp_path / "run", resume=True, force=True)


def test_force_moves_the_old_run_aside_and_deletes_nothing(tmp_path: Path) -> None:
    for number in (1, 2):
        with quiet(tmp_path / "run", force=True) as folder:
            folder.append_metrics(number, {})
    with quiet(tmp_path / "run", force=True) as folder:
        assert read_rows(folder.path / "metrics.jsonl") == []
    assert [read_rows(tmp_path / f"run.old-{n}" / "metrics.jsonl")[0]["step"] for n in (1, 2)] == [1, 2]


def test_a_folder_without_configuration_is_never_written_into(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    for resume in (False, True):
        with pytest.raises(RunError, match=r"contains metrics\.jsonl but no config\.yaml"):
            quiet(tmp_path, resume=resume)
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_rejected_run_gets_no_lock(path: Path) -> None:
    (path / ".lock").unlink()
    for config, options in ((CONFIG, {}), (CONFIG.model_copy(update={"seed": 1}), {"resume": True})):
        with pytest.raises(RunError):
            quiet(path, config, **options)
    assert not (path / ".lock").exists()


def test_a_run_killed_before_its_configuration_was_published_starts(tmp_path: Path) -> None:
    partial = tmp_path / ".config.yaml.palimpsest-partial"
    partial.write_text("recipe: hal")
    with quiet(tmp_path):
        assert not partial.exists()
        assert load_config(tmp_path) == CONFIG


def test_resuming_a_missing_folder_starts_the_run(tmp_path: Path) -> None:
    with quiet(tmp_path / "run", resume=True) as folder:
        assert folder.checkpoints.latest() is None


@pytest.mark.parametrize(
    "content", [b"train: {stepz: 3}\n", b"", b" \n\n", b"\xff\xfet", None, b"1: 2\n", b"? null\n: 1\n"]
)
def test_a_damaged_configuration_is_named_and_not_replaced_by_defaults(content: bytes | None, path: Path) -> None:
    """None: a pipe."""
    file = path / "config.yaml"
    file.unlink()
    os.mkfifo(file) if content is None else file.write_bytes(content)
    with pytest.raises(RunError, match=r"config\.yaml") as error:
        quiet(path, resume=True)
    assert "missing" not in str(error.value)


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl", "events.jsonl", ".lock"])
def test_a_pipe_in_a_run_is_named_and_blocks_nothing(name: str, tmp_path: Path) -> None:
    with quiet(tmp_path / "run") as folder:
        folder.append_metrics(1, {})
    (tmp_path / "run" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "run" / name)
    with pytest.raises(files.NoRegularFile) as error, quiet(tmp_path / "run", resume=True) as folder:
        folder.rewind(1)
    assert error.value.filename == str(tmp_path / "run" / name)


def test_rewinding_cuts_metrics_timings_and_trajectories_to_the_step(tmp_path: Path) -> None:
    with quiet(tmp_path / "run") as folder:
        for step in range(1, 5):
            folder.append_metrics(step, {"reward/mean": step / 4})
            folder.append_timings(step, {"wall_s": 1.0})
            folder.record(step, sample_groups(1))
        metrics = folder.path / "metrics.jsonl"
        before = metrics.read_bytes()
        with metrics.open("ab") as file:
            file.write(b'{"step": 5, "rewa')  # the process died in the middle of a line
        folder.rewind(4)
        assert metrics.read_bytes() == before
        folder.rewind(2)
        for name in ("metrics.jsonl", "timings.jsonl"):
            assert [row["step"] for row in read_rows(folder.path / name)] == [1, 2]
        records = sorted(path.name for path in (folder.path / "trajectories").iterdir())
        assert records == [f"step-00000{step}.{end}" for step in (1, 2) for end in ("index", "jsonl.zst")]


@pytest.mark.parametrize("missing", ["folder", "its content"])
def test_a_run_without_its_checkpoints_is_rejected_and_unchanged(path: Path, missing: str) -> None:
    with quiet(path, resume=True) as folder:
        folder.append_metrics(1, {})
        folder.event("saved", step=1)
        if missing == "its content":
            (path / "checkpoints").mkdir()
    before = files_of(path)
    with pytest.raises(RunError, match=r"lacks the checkpoint saved after step 1: restore it, .*--force"):
        quiet(path, resume=True)
    assert files_of(path) == before
    with quiet(path, force=True):
        assert (path.with_name("run.old-1") / "metrics.jsonl").exists()


def test_a_run_killed_before_its_first_checkpoint_starts_over_and_moves_its_files(tmp_path: Path) -> None:
    warnings: list[str] = []
    with open_run(tmp_path / "run", CONFIG, on_warning=warnings.append) as folder:
        folder.begin_again()
        assert warnings == []
        folder.append_metrics(1, {"reward/mean": 0.5})
        folder.record(1, sample_groups(1))
    with open_run(tmp_path / "run", CONFIG, resume=True, on_warning=warnings.append) as folder:
        folder.begin_again()
        assert read_rows(folder.path / "metrics.jsonl") == []
    assert [row["step"] for row in read_rows(folder.path / "metrics.jsonl.old-1")] == [1]
    assert (folder.path / "trajectories.old-1" / "step-000001.jsonl.zst").read_bytes() == encode_groups(
        sample_groups(1)
    )
    moved = "metrics.jsonl.old-1, trajectories.old-1"
    assert warnings[0] == Note("no_checkpoint", run=str(tmp_path / "run"), moved=moved)


def test_an_initial_evaluation_survives_a_resume_without_one(tmp_path: Path) -> None:
    assert not CONFIG.train.eval_on_start
    with quiet(tmp_path / "run") as folder:
        for step in range(4):
            folder.append_metrics(step, {"reward/mean": step / 4})
        folder.rewind(2)
        assert [row["step"] for row in read_rows(folder.path / "metrics.jsonl")] == [0, 1, 2]
        assert not (folder.path / "metrics.jsonl.damaged").exists()


def test_an_event_may_quote_any_text(tmp_path: Path) -> None:
    folder = quiet(tmp_path / os.fsdecode(b"caf\xe9"))
    folder.event("noted", text="half \ud83d")
    folder.__exit__(RuntimeError, RuntimeError("of \ud800"), None)
    *_, noted, failed = read_rows(folder.path / "events.jsonl")
    assert (noted["kind"], noted["text"][:5], failed["kind"]) == ("noted", "half ", "failed")
