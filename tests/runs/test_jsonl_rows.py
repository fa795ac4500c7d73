"""Files of rows under damage: which rows are lost, which remain, what is reported."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest.runs.jsonl_rows import append_row, encode_row, read_rows
from palimpsest.runs.run_folder import open_run
from support.fakes import small_config
from support.training import train

ROWS: list[dict[str, Any]] = [{"step": step, "reward/mean": step / 7, "note": "Malmö"} for step in range(1, 7)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for row in ROWS:
        append_row(tmp_path / "rows.jsonl", row)
    return tmp_path / "rows.jsonl"


def test_appended_rows_are_read_without_their_checksums(file: Path) -> None:
    assert read_rows(file) == ROWS
    assert read_rows(file.with_name("missing.jsonl")) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_byte_loses_its_row_and_is_never_read_as_another(file: Path, seed: int) -> None:
    rng = random.Random(seed)
    good = file.read_bytes()
    for _ in range(100):
        position = rng.randrange(len(good) - 1)
        bad = bytearray(good)
        bad[position] = rng.randrange(256)
        file.write_bytes(bad)
        count = 2 if good[position] == ord("\n") else 1
        hit = {good[:position].count(b"\n") + part for part in range(count)} if bad != good else set()
        assert read_rows(file) == [row for number, row in enumerate(ROWS) if number not in hit]


@pytest.mark.parametrize("key", ["step", "crc32"])
def test_a_damaged_key_loses_its_row(file: Path, key: str) -> None:
    text = file.read_text()
    file.write_text(text.replace(f'"{key}"', f'"{key[:-1]}x"', 1))
    assert read_rows(file) == ROWS[1:]


def test_rows_of_a_version_without_checksums_are_read(tmp_path: Path) -> None:
    for row in ROWS:
        append_row(tmp_path / "rows.jsonl", row, checksum=False)
    assert read_rows(tmp_path / "rows.jsonl") == ROWS


class Run:
    """A run of six steps whose metrics are damaged."""

    def __init__(self, path: Path) -> None:
        self.warnings: list[str] = []
        self.folder = open_run(path, small_config(), on_warning=self.warnings.append)
        for step in range(1, 7):
            self.folder.append_metrics(step, {"reward/mean": step / 7})
            self.folder.append_timings(step, {"wall_s": 1.0})
        self.file = path / "metrics.jsonl"
        self.aside = path / "metrics.jsonl.damaged"
        self.lines = self.file.read_bytes().splitlines(keepends=True)

    def rewind(self, step: int, *lines: bytes) -> list[int]:
        """Steps after a rewind of these lines, twice as after a kill."""
        self.file.write_bytes(b"".join(lines))
        for _ in range(2):
            self.folder.rewind(step)
        return [row["step"] for row in read_rows(self.file)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run")
    with run.folder:
        yield run


def test_a_resume_loses_only_the_damaged_row_and_stores_it_next_to_the_file(run: Run) -> None:
    damaged = run.lines[2].replace(b'"step"', b'"stop"')
    assert run.rewind(5, *run.lines[:2], damaged, *run.lines[3:]) == [1, 2, 4, 5]
    assert run.aside.read_bytes() == damaged
    assert "4 of 5 steps before the checkpoint" in run.warnings[0]
    assert "metrics.jsonl.damaged" in run.warnings[0]


def test_damaged_rows_after_the_checkpoint_are_not_reported(run: Run) -> None:
    assert run.rewind(4, b"".join(run.lines)[:-9]) == [1, 2, 3, 4]
    assert run.warnings == []
    assert not run.aside.exists()


def test_rows_of_an_earlier_version_get_a_checksum_when_their_run_continues(tmp_path: Path) -> None:
    warnings: list[str] = []
    with open_run(tmp_path / "run", small_config(), on_warning=warnings.append) as folder:
        file = folder.path / "metrics.jsonl"
        append_row(file, {"step": 1, "reward/mean": 0.5}, checksum=False)
        append_row(file, {"stop": 2, "reward/mean": 0.5}, checksum=False)
        folder.rewind(2)
        folder.append_metrics(3, {"reward/mean": 0.25})
    assert [row["step"] for row in read_rows(file)] == [1, 3]
    assert "has 1 of 2 steps" in warnings[0]


@pytest.mark.parametrize(
    ("order", "steps", "reported"),
    [
        ([1, 1, -2, 3, 4], [1, 3, 4], ["has 3 of 4 steps before the checkpoint, not 2", "1 rows repeat a step"]),
        ([1, 1, 3, 4], [1, 3, 4], ["3 of 4 steps", "not 2"]),
        ([1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 3, 4], ["4 rows repeat a step"]),
        ([4, 3, 2, 1], [1, 2, 3, 4], ["out of order"]),
        ([3], [3], ["has 1 of 4 steps before the checkpoint, not 1-2, 4"]),
    ],
)
def test_rows_become_unique_and_ordered_and_missing_ones_are_reported(
    run: Run, order: list[int], steps: list[int], reported: list[str]
) -> None:
    """A negative step is a damaged line."""
    lines = [run.lines[at - 1] if at > 0 else run.lines[-at - 1].replace(b"step", b"stop") for at in order]
    assert run.rewind(4, *lines) == steps
    assert all(words in run.warnings[0] for words in reported), run.warnings
    remaining = run.file.read_bytes() + (run.aside.read_bytes() if run.aside.exists() else b"")
    assert sorted(remaining.splitlines(keepends=True)) == sorted(lines)


@pytest.mark.parametrize("step", [-1, True, 1.0, "1", None])
def test_a_row_with_an_invalid_step_is_no_row(run: Run, step: Any) -> None:
    row = json.loads(run.lines[0])
    del row["crc32"]
    strange = encode_row({**row, "step": step})
    assert run.rewind(4, strange, *run.lines[1:]) == [2, 3, 4]
    assert "has 3 of 4 steps before the checkpoint, not 1" in run.warnings[0]
    assert run.aside.read_bytes() == strange


def test_an_event_after_a_cut_line_starts_a_new_line(tmp_path: Path) -> None:
    path = tmp_path / "run"
    open_run(path, small_config()).close()
    with (path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "sav')
    with open_run(path, small_config(), resume=True) as folder:
        folder.event("saved", step=2)
    assert [row["kind"] for row in read_rows(path / "events.jsonl")] == ["started", "continued", "saved"]


def resumed_without(path: Path, *missing: str) -> list[str]:
    """Warnings of a resume of a run of four steps after files were deleted."""
    train(path, small_config(max_steps=4))
    for name in missing:
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
    _, warnings = train(path, small_config(max_steps=6), resume=True)
    reported = [row["message"] for row in read_rows(path / "events.jsonl") if row["kind"] == "warning"]
    return [line for line in warnings if line in reported]


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])
def test_a_missing_file_of_rows_is_reported_with_its_steps(name: str, tmp_path: Path) -> None:
    assert resumed_without(tmp_path, name) == [f"{tmp_path / name} is missing, with the rows of steps 1-4"]
    assert [row["step"] for row in read_rows(tmp_path / name)] == [5, 6]
    assert resumed_without(tmp_path / "complete") == []


def test_missing_records_are_reported(tmp_path: Path) -> None:
    one, all_gone = tmp_path / "one", tmp_path / "all_gone"
    missing = f"{one / 'trajectories'}: the records of steps 2, 4 are missing"
    assert resumed_without(one, *(f"trajectories/step-00000{step}.jsonl.zst" for step in (2, 4))) == [missing]
    assert resumed_without(all_gone, "trajectories") == [
        f"{all_gone / 'trajectories'}: the records of steps 1-4 are missing"
    ]


def test_steps_that_were_never_recorded_are_not_missing(tmp_path: Path) -> None:
    train(tmp_path, small_config(max_steps=4, record_steps=2))
    _, warnings = train(tmp_path, small_config(max_steps=6, record_steps=3), resume=True)
    _, again = train(tmp_path, small_config(max_steps=8, record_steps=1), resume=True)
    assert not [line for line in (*warnings, *again) if "missing" in line]


def test_a_row_that_cannot_be_written_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*metrics\.jsonl'"):
        append_row(tmp_path / "metrics.jsonl", {"step": 1})
