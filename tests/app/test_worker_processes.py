"""Worker processes: what comes back, what a dead one leaves, which ends with which."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palimpsest.app.quickstart.quickstart_run import QuickstartProcesses
from palimpsest.app.worker_processes import run_process
from palimpsest.errors import RunError
from palimpsest.progress.reporter import Silent

SOURCE = Path(__file__).parents[2] / "src"
WAIT_S = 60
CODE = """
import os, time
from pathlib import Path
from palimpsest.app.worker_processes import serve_parent
from palimpsest.errors import ConfigError

def work(say, what, file):
    Path(file).write_text(str(os.getpid()))
    print("what the work prints is no report")
    if what == "count":
        say(1)
        say("one\\ntwo \\u2028 three")
        say(2)
    elif what == "reject":
        say(1)
        raise ConfigError("key=value: set another")
    elif what == "break":
        raise KeyError("a bug")
    elif what == "die":
        os._exit(7)
    elif what == "leave":
        say(1)
        raise SystemExit(0)
    else:
        time.sleep(60)

serve_parent(work)
"""


def pid_in(file: Path) -> int:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if file.exists() and file.read_text():
            return int(file.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{file} was not written")


def ends(pid: int) -> bool:
    """Wait until the process ended; a zombie counts as ended."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def run(what: str, file: Path) -> list[int | str]:
    """Reports of a process."""
    reports: list[int | str] = []
    asyncio.run(asyncio.wait_for(run_process([what, str(file)], reports.append, CODE), WAIT_S))
    return reports


def test_a_process_reports_turns_and_messages_in_order(tmp_path: Path) -> None:
    assert run("count", tmp_path / "file") == [1, "one\ntwo \u2028 three", 2]


@pytest.mark.parametrize(
    ("what", "message", "shown"),
    [
        ("reject", "^key=value: set another$", ""),
        ("die", "exit code 7: run again with --resume$", ""),
        ("leave", "exit code 0: run again with --resume$", ""),
        ("break", r"^KeyError: 'a bug' \(<string>:18\)$", "KeyError: 'a bug'"),
    ],
)
def test_a_failed_process_raises_its_error_with_its_place_or_its_exit_code(
    what: str, message: str, shown: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError, match=message):
        run(what, tmp_path / "file")
    assert shown in capfd.readouterr().err


def test_cancelling_ends_a_process_within_its_work_and_keeps_it_out_of_the_terminals_group(tmp_path: Path) -> None:
    async def work() -> tuple[int, int]:
        running = asyncio.create_task(run_process(["wait", str(tmp_path / "pid")], lambda _: None, CODE))
        pid = await asyncio.to_thread(pid_in, tmp_path / "pid")
        group = os.getpgid(pid)
        running.cancel()
        await asyncio.wait([running])
        return pid, group

    pid, group = asyncio.run(asyncio.wait_for(work(), WAIT_S))
    assert ends(pid)
    assert group != os.getpgrp()


def test_the_first_error_ends_the_other_processes(tmp_path: Path) -> None:
    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            processes = QuickstartProcesses(2, Silent(), group, CODE)
            processes.begin("wait", tmp_path / "waiting")
            await asyncio.to_thread(pid_in, tmp_path / "waiting")
            first = processes.begin("die", tmp_path / "first")
            processes.begin("count", tmp_path / "never", after=first)

    with pytest.raises(BaseExceptionGroup) as failed:
        asyncio.run(asyncio.wait_for(work(), WAIT_S))
    assert ["exit code 7" in str(error) for error in failed.value.exceptions] == [True]
    assert ends(pid_in(tmp_path / "waiting"))
    assert not (tmp_path / "never").exists()


PARENT = """
import asyncio, sys
from palimpsest.app.worker_processes import run_process
asyncio.run(run_process(["wait", sys.argv[1]], print, sys.argv[2]))  # without a guard: processes don't run it again
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_its_parent_however_that_ends(tmp_path: Path, number: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path / "pid"), CODE], env=environment)
    child = pid_in(tmp_path / "pid")
    parent.send_signal(number)
    parent.wait(WAIT_S)
    assert ends(child)
