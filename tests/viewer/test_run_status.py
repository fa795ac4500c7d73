"""How a run stands, from its lock's text and its rows."""

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
from palimpsest.viewer.records.run_status import Status, holder_of, status_of_run

ONE = [{"step": 1}]
DONE = [{"step": 1}, {"step": 2}]


def lock(folder: Path, **changes: Any) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    held = {"pid": os.getpid(), "host": socket.gethostname(), "started": now, **changes}
    (folder / ".lock").write_bytes(orjson.dumps(held))


def ended() -> int:
    """The number of a process that is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize(
    ("rows", "events", "status"),
    [
        (ONE, [{"kind": "started"}, {"kind": "interrupted"}], Status.STOPPED),
        (DONE, [{"kind": "started"}, {"kind": "finished"}], Status.FINISHED),
        (ONE, [{"kind": "started"}, {"kind": "finished"}], Status.FINISHED),
        ([], [], Status.STOPPED),
    ],
)
def test_a_run_that_nobody_holds(rows: Any, events: Any, status: Status, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"")
    assert status_of_run(tmp_path, rows, events, 2) is status


def test_a_run_that_a_process_holds_waits_for_its_first_step_and_then_runs(tmp_path: Path) -> None:
    held = FolderLock(tmp_path)
    assert status_of_run(tmp_path, [], [], 2) is Status.WAITING
    assert status_of_run(tmp_path, ONE, [], 2) is Status.RUNNING
    held.release()
    assert status_of_run(tmp_path, ONE, [], 2) is Status.STOPPED


def test_a_run_whose_process_is_gone_is_dead_until_it_came_to_its_end(tmp_path: Path) -> None:
    lock(tmp_path, pid=ended())
    assert status_of_run(tmp_path, ONE, [{"kind": "started"}], 2) is Status.DEAD
    assert status_of_run(tmp_path, DONE, [{"kind": "started"}], 2) is Status.FINISHED


def test_a_number_that_another_process_took_since_is_not_the_run(tmp_path: Path) -> None:
    lock(tmp_path, started="2001-01-01 00:00:00")
    assert status_of_run(tmp_path, ONE, [], 2) is Status.DEAD


def test_a_process_on_another_host_counts_as_alive(tmp_path: Path) -> None:
    lock(tmp_path, host="elsewhere", pid=1)
    assert status_of_run(tmp_path, ONE, [], 2) is Status.RUNNING


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"17", b'{"pid": "x", "host": "h", "started": ""}', b"\xff"])
def test_a_lock_that_says_nothing_readable_names_nobody(text: bytes, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(text)
    assert holder_of(tmp_path) is None


def test_a_folder_that_is_no_more(tmp_path: Path) -> None:
    assert status_of_run(tmp_path / "moved", [], [], None) is Status.GONE


def test_looking_takes_no_lock(tmp_path: Path) -> None:
    """A trainer that opens the folder while it is looked at finds it free."""
    FolderLock(tmp_path).release()
    for _ in range(50):
        assert status_of_run(tmp_path, ONE, [], 2) is Status.STOPPED
        FolderLock(tmp_path).release()
