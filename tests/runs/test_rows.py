"""Files of rows under damage: which rows are lost, what is kept, what is told."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from palimpsest.runs.jsonl_rows import append_row, encode_row, read_rows
from palimpsest.runs.run_folder import RunFolder, open_run
from support.fakes import small_config

ROWS: list[dict[str, Any]] = [{"step": step, "reward/mean": step / 7, "note": "Malmö"} for step in range(1, 7)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for row in ROWS:
        append_row(tmp_path / "rows.jsonl", row)
    return tmp_path / "rows.jsonl"


def test_what_was_appended_is_read_without_its_checksum(file: Path) -> None:
    assert read_rows(file) == ROWS
    assert read_rows(file.with_name("missing.jsonl")) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_byte_costs_its_own_row_and_is_never_read_as_another(file: Path, seed: int) -> None:
    rng = random.Random(seed)
    good = file.read_bytes()
    for _ in range(300):
        place = rng.randrange(len(good) - 1)
        bad = bytearray(good)
        bad[place] = rng.randrange(256)
        file.write_bytes(bad)
        parts = 2 if good[place] == ord("\n") else 1
        hit = {good[:place].count(b"\n") + part for part in range(parts)} if bad != good else set()
        assert read_rows(file) == [row for number, row in enumerate(ROWS) if number not in hit]


@pytest.mark.parametrize("key", ["step", "crc32"])
def test_a_damaged_key_costs_its_own_row(file: Path, key: str) -> None:
    text = file.read_text()
    file.write_text(text.replace(f'"{key}"', f'"{key[:-1]}x"', 1))
    assert read_rows(file) == ROWS[1:]


def test_rows_of_a_version_without_checksums_are_read(tmp_path: Path) -> None:
    for row in ROWS:
        append_row(tmp_path / "rows.jsonl", row, checksum=False)
    assert read_rows(tmp_path / "rows.jsonl") == ROWS


def begun(path: Path, warnings: list[str]) -> RunFolder:
    folder = open_run(path, small_config(), on_warning=warnings.append)
    for step in range(1, 7):
        folder.append_metrics(step, {"reward/mean": step / 7})
        folder.append_timings(step, {"wall_s": 1.0})
    return folder


def test_a_resume_loses_the_damaged_row_alone_keeps_it_aside_and_tells(tmp_path: Path) -> None:
    warnings: list[str] = []
    with begun(tmp_path / "run", warnings) as folder:
        file = folder.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        lines[2] = lines[2].replace(b'"step"', b'"stop"')
        file.write_bytes(b"".join(lines))
        for _ in range(2):  # a kill may have it done twice
            folder.rewind(5)
    assert [row["step"] for row in read_rows(file)] == [1, 2, 4, 5]
    assert (tmp_path / "run" / "metrics.jsonl.damaged").read_bytes() == lines[2]
    assert "4 of 5 steps before the checkpoint" in warnings[0]
    assert "metrics.jsonl.damaged" in warnings[0]


def test_rows_behind_the_checkpoint_are_done_again_so_nothing_is_said_of_them(tmp_path: Path) -> None:
    warnings: list[str] = []
    with begun(tmp_path / "run", warnings) as folder:
        file = folder.path / "metrics.jsonl"
        file.write_bytes(file.read_bytes()[:-9])
        folder.rewind(4)
    assert warnings == []
    assert [row["step"] for row in read_rows(file)] == [1, 2, 3, 4]
    assert not (tmp_path / "run" / "metrics.jsonl.damaged").exists()


def test_rows_of_an_earlier_version_get_a_checksum_when_their_run_goes_on(tmp_path: Path) -> None:
    warnings: list[str] = []
    with open_run(tmp_path / "run", small_config(), on_warning=warnings.append) as folder:
        file = folder.path / "metrics.jsonl"
        append_row(file, {"step": 1, "reward/mean": 0.5}, checksum=False)
        append_row(file, {"stop": 2, "reward/mean": 0.5}, checksum=False)
        folder.rewind(2)
        folder.append_metrics(3, {"reward/mean": 0.25})
    assert [row["step"] for row in read_rows(file)] == [1, 3]
    assert "has 1 of 2 steps" in warnings[0]


def replaced(line: bytes, **changes: Any) -> bytes:
    """A row with other values and a checksum that fits."""
    row = json.loads(line)
    del row["crc32"]
    return encode_row({**row, **changes})


@pytest.mark.parametrize(
    ("order", "kept", "told"),
    [
        ([1, 1, -2, 3, 4], [1, 3, 4], ["has 3 of 4 steps before the checkpoint, not 2", "1 rows repeat a step"]),
        ([1, 1, 3, 4], [1, 3, 4], ["3 of 4 steps", "not 2"]),
        ([1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 3, 4], ["4 rows repeat a step"]),
        ([4, 3, 2, 1], [1, 2, 3, 4], ["out of order"]),
        ([3], [3], ["has 1 of 4 steps before the checkpoint, not 1-2, 4"]),
    ],
)
def test_rows_end_unique_and_in_order_and_what_is_missing_is_told(
    tmp_path: Path, order: list[int], kept: list[int], told: list[str]
) -> None:
    """A negative step is a damaged line."""
    warnings: list[str] = []
    with begun(tmp_path / "run", warnings) as folder:
        file = folder.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        new = [lines[step - 1] if step > 0 else lines[-step - 1].replace(b"step", b"stop") for step in order]
        file.write_bytes(b"".join(new))
        folder.rewind(4)
        folder.rewind(4)
    assert [row["step"] for row in read_rows(file)] == kept
    assert all(words in warnings[0] for words in told), warnings
    aside = file.with_name("metrics.jsonl.damaged")
    held = file.read_bytes() + (aside.read_bytes() if aside.exists() else b"")
    assert sorted(held.splitlines(keepends=True)) == sorted(new)


@pytest.mark.parametrize("step", [0, -1, True, 1.0, "1", None])
def test_what_is_no_step_is_no_row(tmp_path: Path, step: Any) -> None:
    warnings: list[str] = []
    with begun(tmp_path / "run", warnings) as folder:
        file = folder.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        strange = replaced(lines[0], step=step)
        file.write_bytes(b"".join([strange, *lines[1:]]))
        folder.rewind(4)
    assert [row["step"] for row in read_rows(file)] == [2, 3, 4]
    assert "has 3 of 4 steps before the checkpoint, not 1" in warnings[0]
    assert file.with_name("metrics.jsonl.damaged").read_bytes() == strange


def test_an_event_after_a_line_that_was_cut_stands_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run"
    open_run(path, small_config()).close()
    with (path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "sav')
    with open_run(path, small_config(), resume=True) as folder:
        folder.event("saved", step=2)
    assert [row["kind"] for row in read_rows(path / "events.jsonl")] == ["started", "continued", "saved"]
