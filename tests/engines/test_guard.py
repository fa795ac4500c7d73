"""What a run started ends with it, however it ends: processes, those that they started, folders, shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import psutil
import pytest

from palimpsest.engines import process_guard

MARK = "mark-of-a-test"
SEGMENT = Path(f"/dev/shm/psm_of_a_test_{os.getpid()}")
STARTED = """
import mmap, signal, subprocess, sys, time
with open({segment!r}, "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
import multiprocessing as processes
lock = processes.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env={{}})
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not SEGMENT.parent.is_dir(), reason="no /dev/shm")
def test_the_end_of_the_pipe_ends_all_that_has_the_mark_with_its_memory_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    watching = process_guard.start(MARK, [folder])
    command = [sys.executable, "-c", STARTED.format(segment=str(SEGMENT))]
    started = subprocess.Popen(command, env={**os.environ, process_guard.MARK: MARK}, stdout=subprocess.PIPE)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert started.stdout is not None
    semaphore = SEGMENT.parent / f"sem.{started.stdout.readline().decode().strip().removeprefix('/')}"
    child = int(started.stdout.readline())
    assert semaphore.exists()
    assert SEGMENT.exists()
    watching.finish()  # what the system does where a process is killed
    assert started.wait(30) < 0
    assert gone(child)
    assert not folder.exists()
    assert not SEGMENT.exists()
    assert not semaphore.exists()
    assert other.poll() is None
    other.kill()
    other.wait()
    started.stdout.close()


KILLED = """
import os, signal, subprocess, sys, tempfile, time
from pathlib import Path
from palimpsest.engines import process_guard as guard
memory, sockets = Path(tempfile.mkdtemp(prefix="palimpsest-1-")), Path(tempfile.mkdtemp(prefix="pal-"))
made = guard.start("mark-of-the-killed", [memory, sockets])
environment = {**os.environ, guard.MARK: "mark-of-the-killed"}
child = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
print(memory, sockets, child.pid, flush=True)
made._finished.set()
made.process.kill()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of temporary files for the test alone."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_what_a_process_killed_with_its_guard_left_goes_with_the_next_guard(temporary: Path) -> None:
    (other := temporary / "pal-of-nobody").mkdir(mode=0o700)
    killed = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False)
    memory, sockets, child = killed.stdout.split()
    assert killed.returncode == -signal.SIGKILL
    assert Path(memory).is_dir()
    assert Path(sockets).is_dir()
    assert psutil.Process(int(child)).status() != psutil.STATUS_ZOMBIE
    process_guard.start(MARK, []).finish()
    assert not Path(memory).exists()
    assert not Path(sockets).exists()
    assert gone(int(child))
    assert other.is_dir()  # nothing says whose it is


def test_what_a_living_process_has_stays_when_another_guard_starts(temporary: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-"))
    watching = process_guard.start(MARK, [folder])
    process_guard.start("another-mark", []).finish()
    assert folder.is_dir()
    watching.finish()
    assert not folder.exists()


NESTED = """
import sys, time
from pathlib import Path
from palimpsest.engines.process_guard import GuardedFolder
GuardedFolder(Path(sys.argv[1]))
print("there", flush=True)
time.sleep(600)
"""


def test_the_guard_of_a_process_that_is_ended_clears_up_before_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    watching = process_guard.start(MARK, [])
    marked = {**os.environ, process_guard.MARK: MARK}
    command = [sys.executable, "-c", NESTED, str(folder)]
    started = subprocess.Popen(command, env=marked, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "there\n"
    children = psutil.Process(started.pid).children()
    assert folder.stat().st_mode & 0o777 == 0o700
    watching.finish()
    assert started.wait(30) < 0
    assert all(gone(child.pid) for child in children)
    assert not folder.exists()
    started.stdout.close()


def test_a_folder_keeps_what_is_named_and_its_claim(tmp_path: Path) -> None:
    folder = process_guard.GuardedFolder(tmp_path / "weights")
    for name in ("one", "two", "three"):
        (folder.path / name).mkdir()
    folder.keep({"two", "never-there"})
    assert [path.name for path in folder.path.iterdir() if path.is_dir()] == ["two"]
    folder.clear()
    assert not folder.path.exists()
    with pytest.raises(OSError, match="No such file"):
        process_guard.GuardedFolder(tmp_path / "missing" / "weights")


def test_a_guard_that_is_killed_is_replaced_and_clears_up(temporary: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-"))
    watching = process_guard.start(MARK, [folder])
    first = watching.process
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        first.kill()
        while not warned:
            time.sleep(0.01)
    assert [str(each.message) for each in warned] == ["the guard process ended (status -9); palimpsest started another"]
    assert folder.is_dir()
    watching.finish()
    assert not folder.exists()


def test_no_file_of_the_working_folder_stands_in_for_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "select.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "sockets").mkdir()
    process_guard.start(MARK, [folder]).finish()
    assert not folder.exists()


def gone(pid: int) -> bool:
    """Whether it ends soon: who adopts it may take a moment to look."""
    for _ in range(600):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False
