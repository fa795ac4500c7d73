"""Rows of a file that grows, is cut back, is replaced."""

from __future__ import annotations

from pathlib import Path

from palimpsest.runs.jsonl_rows import encode_row
from palimpsest.viewer.records.run_status import RowFiles


def row(step: int, reward: float = 0.5) -> bytes:
    return encode_row({"step": step, "reward/mean": reward})


def steps(files: RowFiles, path: Path) -> list[int]:
    return [each["step"] for each in files.rows(path)]


def test_rows_that_came_since_are_added_and_half_a_row_waits(tmp_path: Path) -> None:
    path, files = tmp_path / "metrics.jsonl", RowFiles()
    assert steps(files, path) == []
    path.write_bytes(row(1) + row(2)[:-9])
    assert steps(files, path) == [1]
    path.write_bytes(row(1) + row(2) + row(3))
    assert steps(files, path) == [1, 2, 3]


def test_a_file_that_a_resume_cut_back_is_read_anew(tmp_path: Path) -> None:
    path, files = tmp_path / "metrics.jsonl", RowFiles()
    path.write_bytes(b"".join(map(row, range(1, 9))))
    assert steps(files, path) == list(range(1, 9))
    path.write_bytes(row(1) + row(2))
    assert steps(files, path) == [1, 2]


def test_another_run_in_its_place_is_another_file(tmp_path: Path) -> None:
    path, files = tmp_path / "metrics.jsonl", RowFiles()
    path.write_bytes(row(1) + row(2))
    before = files.identity(path)
    path.write_bytes(row(1, 0.75) + row(2, 0.75) + row(3, 0.75))
    assert [each["reward/mean"] for each in files.rows(path)] == [0.75] * 3
    assert files.identity(path) != before


def test_a_damaged_row_is_left_out_also_where_it_comes_alone(tmp_path: Path) -> None:
    path, files = tmp_path / "metrics.jsonl", RowFiles()
    path.write_bytes(row(1))
    assert steps(files, path) == [1]
    path.write_bytes(row(1) + b'{"step":2,"reward/mean":9}\n')
    assert steps(files, path) == [1]
    path.write_bytes(row(1) + b'{"step":2,"reward/mean":9}\n' + row(3))
    assert steps(files, path) == [1, 3]
