"""Work in other processes: what comes back, what a dead worker leaves, who leaves with whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palimpsest.app.quickstart.worker_pool import WorkerPool
from palimpsest.errors import ConfigError, RunError
from support.tasks import WAIT_S, Told, Work

SOURCE = Path(__file__).parents[3] / "src"


def pid_in(file: Path) -> int:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if file.exists() and file.read_text():
            return int(file.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{file} was not written")


def ends(pid: int) -> bool:
    """Whether the process is gone, or only its entry is left, within the time."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_tasks_report_and_their_errors_come_out_of_their_futures(tmp_path: Path) -> None:
    told = Told()
    with WorkerPool(1) as pool:
        futures = [pool.submit(Work(str(tmp_path / what), what), told) for what in ("refuse", "break", "count")]
        with pytest.raises(ConfigError, match=r"^key=value: give another$"):
            futures[0].result(WAIT_S)
        with pytest.raises(RuntimeError, match=r"in a worker process:(.|\n)*KeyError: 'a bug'"):
            futures[1].result(WAIT_S)
        assert futures[2].result(WAIT_S) is None
    assert (told.parts, told.messages) == (2, ["one\ntwo \u2028 three"])


def test_a_worker_that_dies_fails_its_task_and_the_last_one_all_that_wait(tmp_path: Path) -> None:
    with WorkerPool(1) as pool:
        dying = pool.submit(Work(str(tmp_path / "die"), "die"), Told())
        waiting = pool.submit(Work(str(tmp_path / "never")), Told())
        for future in (dying, waiting):
            with pytest.raises(RunError, match="exit code 7: run again with --resume"):
                future.result(WAIT_S)
        with pytest.raises(RunError, match="no worker process is left"):
            pool.submit(Work(str(tmp_path / "never")), Told()).result(WAIT_S)
    assert not (tmp_path / "never").exists()


def test_the_other_workers_go_on_when_one_dies(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        dying = pool.submit(Work(str(tmp_path / "die"), "die"), Told())
        with pytest.raises(RunError):
            dying.result(WAIT_S)
        assert pool.submit(Work(str(tmp_path / "done")), Told()).result(WAIT_S) is None


def test_stopping_ends_a_worker_in_the_middle_of_a_task_and_cancels_what_waits(tmp_path: Path) -> None:
    with WorkerPool(1) as pool:
        pool.submit(Work(str(tmp_path / "long"), "wait"), Told())
        waiting = pool.submit(Work(str(tmp_path / "never")), Told())
        pid = pid_in(tmp_path / "long")
    assert ends(pid)
    assert waiting.cancelled()


PARENT = """
import sys, time
from palimpsest.app.quickstart.worker_pool import WorkerPool
from support.tasks import Told, Work
pool = WorkerPool(1)  # in a script without a guard: workers don't run it again
pool.submit(Work(sys.argv[1], "wait"), Told())
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_leaves_with_its_parent_however_that_ends(tmp_path: Path, number: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(PARENT)
    paths = os.pathsep.join([str(SOURCE), str(Path(__file__).parents[2])])
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "pid")], env={**os.environ, "PYTHONPATH": paths}
    )
    worker = pid_in(tmp_path / "pid")
    parent.send_signal(number)
    parent.wait(WAIT_S)
    assert ends(worker)


def test_the_terminals_interrupt_is_the_parents_alone(tmp_path: Path) -> None:
    with WorkerPool(1) as pool:
        pool.submit(Work(str(tmp_path / "long"), "wait"), Told())
        assert os.getpgid(pid_in(tmp_path / "long")) != os.getpgrp()
