"""Run folders: who may write, what a resume may change, what it cuts off."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palimpsest import files
from palimpsest.config.schema import RunConfig
from palimpsest.errors import RunError
from palimpsest.notes import Note
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.resume_rules import changes, identity
from palimpsest.runs.run_folder import RunFolder, load_config, open_run
from support.fakes import small_config
from support.groups import sample_groups

CONFIG = small_config()


def changed(**sections: Any) -> RunConfig:
    """CONFIG with some fields replaced, e.g. changed(train={"max_steps": 9})."""
    values = CONFIG.model_dump(mode="json")
    for name, value in sections.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    return RunConfig.model_validate(values)


def quiet(path: Path, config: RunConfig = CONFIG, **options: Any) -> RunFolder:
    return open_run(path, config, on_warning=lambda _: None, **options)


def test_the_resolved_configuration_is_there_before_anything_else_and_reads_back(tmp_path: Path) -> None:
    with quiet(tmp_path / "run"):
        pass
    assert load_config(tmp_path / "run") == CONFIG
    assert read_rows(tmp_path / "run" / "events.jsonl")[0]["kind"] == "started"


def test_a_folder_with_a_run_is_refused_without_resume_or_force(tmp_path: Path) -> None:
    with quiet(tmp_path / "run") as folder:
        folder.append_metrics(1, {"reward/mean": 0.5})
    with pytest.raises(
        RunError,
        match=r"contains a run \(1 steps, no checkpoint\): palimpsest train --resume \S+ starts it over, --force",
    ):
        quiet(tmp_path / "run")


def test_force_moves_the_old_run_aside_and_deletes_nothing(tmp_path: Path) -> None:
    for number in (1, 2):
        with quiet(tmp_path / "run", force=True) as folder:
            folder.append_metrics(number, {})
    with quiet(tmp_path / "run", force=True) as folder:
        assert read_rows(folder.path / "metrics.jsonl") == []
    assert [read_rows(tmp_path / f"run.old-{n}" / "metrics.jsonl")[0]["step"] for n in (1, 2)] == [1, 2]


def test_a_half_written_folder_is_recognised_and_never_written_into(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "metrics.jsonl").write_text("{}\n")
    for resume in (False, True):
        with pytest.raises(RunError, match=r"contains metrics\.jsonl but no config\.yaml"):
            quiet(path, resume=resume)
    assert sorted(entry.name for entry in path.iterdir()) == ["metrics.jsonl"]


def test_a_run_that_is_refused_gains_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "run"
    quiet(path).close()
    (path / ".lock").unlink()
    for config, options in ((CONFIG, {}), (changed(seed=1), {"resume": True})):
        with pytest.raises(RunError):
            quiet(path, config, **options)
    assert not (path / ".lock").exists()


def test_a_run_killed_before_its_configuration_was_published_just_starts(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / ".config.yaml.palimpsest-partial").write_text("recipe: hal")
    with quiet(path):
        assert not (path / ".config.yaml.palimpsest-partial").exists()
        assert load_config(path) == CONFIG


def test_resuming_a_missing_folder_starts_the_run(tmp_path: Path) -> None:
    with quiet(tmp_path / "run", resume=True) as folder:
        assert folder.checkpoints.latest() is None


def test_a_resume_to_fewer_steps_than_were_done_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run"
    quiet(path, changed(train={"max_steps": 30})).close()
    (path / "checkpoints" / "step-000030").mkdir(parents=True)
    (path / "checkpoints" / "step-000030" / "manifest.json").write_text('{"sha256"}')
    (path / "checkpoints" / "step-99999999999999999999").mkdir()  # no checkpoint: it has no manifest
    before = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    refusal = r"train\.max_steps=12: .*run already has 30 steps; .* such as train\.max_steps=60"
    with pytest.raises(RunError, match=refusal):
        quiet(path, changed(train={"max_steps": 12}), resume=True)
    assert {file: file.read_bytes() for file in path.iterdir() if file.is_file()} == before
    quiet(path, changed(train={"max_steps": 60}), resume=True).close()


def test_resume_and_force_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="use one of them"):
        quiet(tmp_path / "run", resume=True, force=True)


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    quiet(tmp_path / "run").close()
    (tmp_path / "run" / "config.yaml").write_text("train: {stepz: 3}\n")
    with pytest.raises(RunError, match=r"config\.yaml"):
        quiet(tmp_path / "run", resume=True)


@pytest.mark.parametrize("content", [b"", b" \n\n", b"\xff\xfet", None, b"1: 2\n", b"? null\n: 1\n"])
def test_a_lost_configuration_is_not_replaced_by_defaults(content: bytes | None, tmp_path: Path) -> None:
    """None: a pipe."""
    quiet(tmp_path / "run").close()
    file = tmp_path / "run" / "config.yaml"
    file.unlink()
    os.mkfifo(file) if content is None else file.write_bytes(content)
    with pytest.raises(RunError, match=r"config\.yaml") as error:
        quiet(tmp_path / "run", resume=True)
    assert "missing" not in str(error.value)


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl", "events.jsonl", ".lock"])
def test_a_pipe_in_a_run_is_named_and_not_waited_for(name: str, tmp_path: Path) -> None:
    with quiet(tmp_path / "run") as folder:
        folder.append_metrics(1, {})
    (tmp_path / "run" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "run" / name)
    with pytest.raises(files.NoRegularFile) as error, quiet(tmp_path / "run", resume=True) as folder:
        folder.rewind(1)
    assert error.value.filename == str(tmp_path / "run" / name)


HOLDER = """
import sys, time
from palimpsest.config.schema import RunConfig
from palimpsest.runs.run_folder import open_run
open_run(sys.argv[1], RunConfig())
print("open", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_by_pid_and_host_and_a_dead_ones_lock_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        for options in ({"resume": True}, {"force": True}):
            with pytest.raises(RunError, match=f"in use by process {holder.pid} on {socket.gethostname()} since"):
                quiet(path, RunConfig(), **options)
        holder.kill()
    assert json.loads((path / ".lock").read_text())["pid"] == holder.pid
    with quiet(path, RunConfig(), resume=True):
        assert json.loads((path / ".lock").read_text())["pid"] == os.getpid()


def test_a_lock_of_another_host_is_respected_until_someone_deletes_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    quiet(path).close()
    (path / ".lock").write_text('{"pid": 7, "host": "elsewhere", "started": "2020-01-01 00:00:00"}')
    with pytest.raises(RunError, match=r"process 7 on elsewhere.*delete .*\.lock"):
        quiet(path, resume=True)
    (path / ".lock").unlink()
    quiet(path, resume=True).close()


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"recipe": "renamed"}, "allowed"),
        ({"logging": {"report_to": ["console"]}}, "allowed"),
        ({"train": {"max_steps": 9}}, "allowed"),
        ({"train": {"save_steps": 1}}, "allowed"),
        ({"train": {"save_total_limit": 5}}, "allowed"),
        ({"train": {"eval_steps": 3}}, "allowed"),
        ({"train": {"record_steps": 2}}, "allowed"),
        ({"evaluation": {"processes": 8}}, "allowed"),
        ({"engine": {"max_num_seqs": 8}}, "warned"),
        ({"model": {"device": "cpu"}}, "warned"),
        ({"train": {"episode_timeout_s": 5.0}}, "warned"),
        ({"optim": {"learning_rate": 1e-3}}, "warned"),
        ({"eval_sampling": {"temperature": 0.5}}, "warned"),
        ({"seed": 1}, "refused"),
        ({"model": {"path": "other"}}, "refused"),
        ({"model": {"dtype": "bfloat16"}}, "refused"),
        ({"policy": {"options": {"chunk_size": 3}}}, "refused"),
        ({"data": {"curriculum": {"chunks": [1, 2]}}}, "refused"),
        ({"credit": {"adv_estimator": "mean_std"}}, "refused"),
        ({"loss": {"clip_ratio_high": 0.3}}, "refused"),
        ({"sampling": {"top_p": 0.9}}, "refused"),
        ({"train": {"group_size": 8}}, "refused"),
    ],
)
def test_a_resume_with_one_field_changed_does_what_the_table_says(tmp_path: Path, change: Any, verdict: str) -> None:
    warnings: list[str] = []
    path = tmp_path / "run"
    quiet(path).close()
    config = changed(**change)
    if verdict == "refused":
        key = changes(CONFIG, config)[0].key
        with pytest.raises(RunError, match=f"can't change {key}: .* -> "):
            open_run(path, config, resume=True)
        assert load_config(path) == CONFIG
        assert identity(config) != identity(CONFIG)
        return
    with open_run(path, config, resume=True, on_warning=warnings.append):
        assert warnings[0].startswith(f"resumed with another {changes(CONFIG, config)[0]}")
        assert ("later steps differ" in warnings[0]) == (verdict == "warned")
    assert load_config(path) == config
    assert read_rows(path / "events.jsonl")[1]["changes"][0]["verdict"] == verdict
    assert identity(config) == identity(CONFIG)


def searching(source: str, **options: Any) -> RunConfig:
    return changed(policy={"name": "prune", "options": {"tools": {"search": {"source": source, **options}}}})


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (searching("http://a:1"), searching("https://b:2"), "warned"),
        (searching("http://a:1"), searching("http://a:1", token_env="OTHER"), "warned"),
        (searching("http://a:1"), searching("http://a:1", timeout_s=3.0), "warned"),
        (searching("http://a:1"), searching("http://a:1", topk=3), "refused"),
        (searching("http://a:1"), searching("problem"), "refused"),
        (searching("indexes/a"), searching("indexes/b"), "refused"),
    ],
)
def test_a_search_server_may_move_between_runs_and_its_token_change(
    before: RunConfig, after: RunConfig, verdict: str
) -> None:
    assert [change.verdict for change in changes(before, after)] == [verdict]
    assert (identity(before) == identity(after)) == (verdict != "refused")


def test_more_steps_under_a_schedule_that_ends_are_warned_of() -> None:
    before = changed(optim={"lr_scheduler_type": "cosine"})
    after = before.model_copy(update={"train": before.train.model_copy(update={"max_steps": 99})})
    assert [change.verdict for change in changes(before, after)] == ["warned"]


def test_rewinding_cuts_metrics_timings_and_trajectories_to_the_step(tmp_path: Path) -> None:
    with quiet(tmp_path / "run") as folder:
        for step in range(1, 5):
            folder.append_metrics(step, {"reward/mean": step / 4})
            folder.append_timings(step, {"wall_s": 1.0})
            folder.record(step, sample_groups(1))
        before = (folder.path / "metrics.jsonl").read_bytes()
        with (folder.path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 5, "rewa')  # the process died in the middle of a line
        folder.rewind(4)
        assert (folder.path / "metrics.jsonl").read_bytes() == before
        folder.rewind(2)
        assert [row["step"] for row in read_rows(folder.path / "metrics.jsonl")] == [1, 2]
        assert [row["step"] for row in read_rows(folder.path / "timings.jsonl")] == [1, 2]
        assert [path.name for path in sorted((folder.path / "trajectories").iterdir())] == [
            "step-000001.index",
            "step-000001.jsonl.zst",
            "step-000002.index",
            "step-000002.jsonl.zst",
        ]


def test_lines_lost_before_the_checkpoint_are_told(tmp_path: Path) -> None:
    warnings: list[str] = []
    with open_run(tmp_path / "run", CONFIG, on_warning=warnings.append) as folder:
        folder.append_metrics(1, {})
        folder.rewind(3)
    assert "has 1 of 3 steps" in warnings[0]


@pytest.mark.parametrize("missing", ["folder", "its content"])
def test_a_run_whose_checkpoints_are_gone_is_refused_and_left_as_it_is(tmp_path: Path, missing: str) -> None:
    with quiet(tmp_path / "run") as folder:
        folder.append_metrics(1, {})
        folder.event("saved", step=1)
        if missing == "its content":
            (folder.path / "checkpoints").mkdir()
    before = {file: file.read_bytes() for file in folder.path.iterdir() if file.is_file()}
    with pytest.raises(RunError, match=r"lacks the checkpoint saved after step 1: restore it, .*--force"):
        quiet(tmp_path / "run", resume=True)
    assert {file: file.read_bytes() for file in folder.path.iterdir() if file.is_file()} == before
    with quiet(tmp_path / "run", force=True):
        assert (tmp_path / "run.old-1" / "metrics.jsonl").exists()


def test_a_run_killed_before_its_first_checkpoint_begins_again_and_keeps_what_it_had(tmp_path: Path) -> None:
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
