"""Jobs in worker processes: what comes back, what a dead worker leaves, who ends with whom."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palimpsest.app.quickstart.quickstart_jobs import Worker
from palimpsest.app.quickstart.quickstart_run import Workers
from palimpsest.errors import ConfigError, RunError
from palimpsest.progress.reporter import Silent
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


def done(*jobs: Work, report: Told | None = None) -> list[BaseException | None]:
    """What a worker's jobs come to, one after the other."""

    async def work() -> list[BaseException | None]:
        worker, ends = await Worker.start(), list[BaseException | None]()
        try:
            for job in jobs:
                ends += await asyncio.gather(worker.do(job, report or Told()), return_exceptions=True)
        finally:
            await worker.end()
        return ends

    return asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_jobs_report_and_their_errors_are_raised_as_themselves(tmp_path: Path) -> None:
    told = Told()
    refused, broken, counted = done(
        *(Work(str(tmp_path / what), what) for what in ("refuse", "break", "count")), report=told
    )
    assert isinstance(refused, ConfigError)
    assert str(refused) == "key=value: give another"
    assert isinstance(broken, RuntimeError)
    assert re.search(r"in a worker process:(.|\n)*KeyError: 'a bug'", str(broken))
    assert counted is None
    assert (told.parts, told.messages) == (2, ["one\ntwo \u2028 three"])


def test_a_worker_that_dies_fails_its_job_and_those_after_it(tmp_path: Path) -> None:
    dying, waiting = done(Work(str(tmp_path / "die"), "die"), Work(str(tmp_path / "never")))
    for error in (dying, waiting):
        assert isinstance(error, RunError)
        assert "exit code 7: run again with --resume" in str(error)
    assert not (tmp_path / "never").exists()


def test_a_worker_that_died_is_replaced_and_the_jobs_that_wait_are_done(tmp_path: Path) -> None:
    async def work() -> None:
        async with Workers(2, Silent()) as workers:
            dying = workers.begin(workers.do, Work(str(tmp_path / "die"), "die"))
            waiting = workers.begin(workers.do, Work(str(tmp_path / "done")))
            after = workers.begin(workers.do, Work(str(tmp_path / "never")), dying)
            await waiting
            for failed in (dying, after):
                with pytest.raises(RunError, match="exit code 7"):
                    await failed

    asyncio.run(asyncio.wait_for(work(), WAIT_S))
    assert ((tmp_path / "done").exists(), (tmp_path / "never").exists()) == (True, False)


def test_leaving_ends_a_worker_in_the_middle_of_a_job_and_cancels_what_waits(tmp_path: Path) -> None:
    async def work() -> tuple[int, int, asyncio.Task[None]]:
        async with Workers(1, Silent()) as workers:
            workers.begin(workers.do, Work(str(tmp_path / "long"), "wait"))
            waiting = workers.begin(workers.do, Work(str(tmp_path / "never")))
            pid = await asyncio.to_thread(pid_in, tmp_path / "long")
            return pid, os.getpgid(pid), waiting

    pid, group, waiting = asyncio.run(asyncio.wait_for(work(), WAIT_S))
    assert ends(pid)
    assert waiting.cancelled()
    assert group != os.getpgrp()  # the terminal's interrupt is the parent's alone


PARENT = """
import asyncio, sys
from palimpsest.app.quickstart.quickstart_jobs import Worker
from support.tasks import Told, Work
async def work():
    worker = await Worker.start()  # in a script without a guard: workers don't run it again
    await worker.do(Work(sys.argv[1], "wait"), Told())
asyncio.run(work())
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
