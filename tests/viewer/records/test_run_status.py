"""A run's status from its lock and rows, and rows of a file that grows, is cut or is replaced."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from palimpsest.runs.folder_guard import FolderLock
from palimpsest.runs.jsonl_rows import encode_row
from palimpsest.viewer.records.run_status import RowFiles, Status, holder_of, status_of_run

ONE = [{"step": 1}]
DONE = [{"step": 1}, {"step": 2}]


def lock(folder: Path, **changes: Any) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    held = {"pid": os.getpid(), "host": socket.gethostname(), "started": now, **changes}
    (folder / ".lock").write_bytes(orjson.dumps(held))


def ended() -> int:
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize(
    ("rows", "kinds", "status"),
    [
        (ONE, ["started", "interrupted"], Status.STOPPED),
        (DONE, ["started", "finished"], Status.FINISHED),
        (ONE, ["started", "finished"], Status.FINISHED),
        ([], [], Status.STOPPED),
    ],
)
def test_a_run_without_a_process(rows: Any, kinds: list[str], status: Status, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"")
    assert status_of_run(tmp_path, rows, [{"kind": kind} for kind in kinds], 2) is status


def test_a_run_of_a_process_waits_for_its_first_step_and_then_runs(tmp_path: Path) -> None:
    held = FolderLock(tmp_path)
    assert status_of_run(tmp_path, [], [], 2) is Status.WAITING
    assert status_of_run(tmp_path, ONE, [], 2) is Status.RUNNING
    held.release()
    assert status_of_run(tmp_path, ONE, [], 2) is Status.STOPPED


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"pid": None}, Status.DEAD),
        ({"started": "2001-01-01 00:00:00"}, Status.DEAD),  # another process has its number now
        ({"host": "elsewhere", "pid": 1}, Status.RUNNING),
    ],
    ids=["ended", "another process", "another host"],
)
def test_an_unfinished_run_is_dead_if_its_process_ended(
    changes: dict[str, Any], status: Status, tmp_path: Path
) -> None:
    lock(tmp_path, **{name: value or ended() for name, value in changes.items()})
    assert status_of_run(tmp_path, ONE, [{"kind": "started"}], 2) is status
    if "pid" in changes and changes["pid"] is None:
        assert status_of_run(tmp_path, DONE, [{"kind": "started"}], 2) is Status.FINISHED


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"17", b'{"pid": "x", "host": "h", "started": ""}', b"\xff"])
def test_an_unreadable_lock_names_no_process(text: bytes, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(text)
    assert holder_of(tmp_path) is None


def test_a_missing_folder_is_a_run_that_is_gone(tmp_path: Path) -> None:
    assert status_of_run(tmp_path / "moved", [], [], None) is Status.GONE


def test_reading_the_status_takes_no_lock(tmp_path: Path) -> None:
    """A trainer that opens the folder while it is looked at finds it free."""
    FolderLock(tmp_path).release()
    for _ in range(50):
        assert status_of_run(tmp_path, ONE, [], 2) is Status.STOPPED
        FolderLock(tmp_path).release()


def row(step: int, reward: float = 0.5) -> bytes:
    return encode_row({"step": step, "reward/mean": reward})


class Tail:
    """A file of rows and its reader."""

    def __init__(self, folder: Path) -> None:
        self.path, self.files = folder / "metrics.jsonl", RowFiles()

    def steps(self, content: bytes) -> list[int]:
        self.path.write_bytes(content)
        return [item["step"] for item in self.files.rows(self.path)]


def test_new_rows_are_added_when_they_are_complete(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert list(tail.files.rows(tail.path)) == []
    assert tail.steps(row(1) + row(2)[:-9]) == [1]
    assert tail.steps(row(1) + row(2) + row(3)) == [1, 2, 3]


def test_a_file_that_a_resume_cut_is_read_again(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert tail.steps(b"".join(map(row, range(1, 9)))) == list(range(1, 9))
    assert tail.steps(row(1) + row(2)) == [1, 2]


def test_the_file_of_another_run_at_its_path_is_another_file(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    tail.path.write_bytes(row(1) + row(2))
    before = tail.files.identity(tail.path)
    tail.path.write_bytes(row(1, 0.75) + row(2, 0.75) + row(3, 0.75))
    assert [item["reward/mean"] for item in tail.files.rows(tail.path)] == [0.75] * 3
    assert tail.files.identity(tail.path) != before


def test_a_damaged_row_is_left_out_also_as_the_only_new_one(tmp_path: Path) -> None:
    tail, damaged = Tail(tmp_path), b'{"step":2,"reward/mean":9}\n'
    assert tail.steps(row(1)) == [1]
    assert tail.steps(row(1) + damaged) == [1]
    assert tail.steps(row(1) + damaged + row(3)) == [1, 3]
