"""A file of a run that is gone before a resume is named, with the steps that went with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from palimpsest.runs.jsonl_rows import read_rows
from support.fakes import small_config
from support.training import train


def resumed_without(path: Path, *gone: str) -> list[str]:
    """What a resume of a run of four steps says after files were deleted."""
    train(path, small_config(max_steps=4))
    for name in gone:
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
    _, warnings = train(path, small_config(max_steps=6), resume=True)
    told = [row["message"] for row in read_rows(path / "events.jsonl") if row["kind"] == "warning"]
    return [line for line in warnings if line in told]


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])
def test_rows_of_a_file_that_is_gone_are_named_step_by_step(name: str, tmp_path: Path) -> None:
    assert resumed_without(tmp_path, name) == [f"{tmp_path / name} is missing, with the rows of steps 1-4"]
    assert [row["step"] for row in read_rows(tmp_path / name)] == [5, 6]


def test_records_of_steps_that_are_gone_are_named(tmp_path: Path) -> None:
    one, whole = tmp_path / "one", tmp_path / "whole"
    gone = f"{one / 'trajectories'}: the records of steps 2, 4 are missing"
    assert resumed_without(one, *(f"trajectories/step-00000{step}.jsonl.zst" for step in (2, 4))) == [gone]
    assert resumed_without(whole, "trajectories") == [f"{whole / 'trajectories'}: the records of steps 1-4 are missing"]


def test_a_run_with_all_of_its_files_says_nothing_of_them(tmp_path: Path) -> None:
    assert resumed_without(tmp_path) == []


def test_steps_that_were_never_recorded_are_not_missing(tmp_path: Path) -> None:
    train(tmp_path, small_config(max_steps=4, record_steps=2))
    _, warnings = train(tmp_path, small_config(max_steps=6, record_steps=3), resume=True)
    _, again = train(tmp_path, small_config(max_steps=8, record_steps=1), resume=True)
    assert not [line for line in (*warnings, *again) if "missing" in line]
