"""Processes with their children, folders and shared memory end with a run."""

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
MARKED = {**os.environ, process_guard.MARK: MARK}
SEGMENT = Path(f"/dev/shm/psm_of_a_test_{os.getpid()}")
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STARTED = """
import mmap, signal, subprocess, sys, time
with open({segment!r}, "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
import multiprocessing as processes
lock = processes.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
child = subprocess.Popen({sleep!r}, start_new_session=True, env={{}})
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(child.pid, flush=True)
time.sleep(600)
"""


def ends(pid: int) -> bool:
    """True if the process ends soon; its adoptive parent may reap it late."""
    for _ in range(600):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not SEGMENT.parent.is_dir(), reason="no /dev/shm")
def test_the_end_of_the_pipe_ends_marked_processes_with_their_children_memory_and_folders(tmp_path: Path) -> None:
    (folder := tmp_path / "sockets").mkdir()
    (folder / "file").touch()
    guard = process_guard.start(MARK, [folder])
    command = [sys.executable, "-c", STARTED.format(segment=str(SEGMENT), sleep=SLEEP)]
    started = subprocess.Popen(command, env=MARKED, stdout=subprocess.PIPE)
    unmarked = subprocess.Popen(SLEEP)
    assert started.stdout is not None
    semaphore = SEGMENT.parent / f"sem.{started.stdout.readline().decode().strip().removeprefix('/')}"
    child = int(started.stdout.readline())
    assert semaphore.exists()
    assert SEGMENT.exists()
    guard.finish()  # the system does this when a process is killed
    assert started.wait(30) < 0
    assert ends(child)
    assert not [path for path in (folder, SEGMENT, semaphore) if path.exists()]
    assert unmarked.poll() is None
    unmarked.kill()
    unmarked.wait()
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
    """The test's own TMPDIR."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_next_guard_removes_what_a_process_killed_with_its_guard_left(temporary: Path) -> None:
    (unclaimed := temporary / "pal-of-nobody").mkdir(mode=0o700)
    killed = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False)
    memory, sockets, child = killed.stdout.split()
    assert killed.returncode == -signal.SIGKILL
    assert Path(memory).is_dir()
    assert Path(sockets).is_dir()
    assert psutil.Process(int(child)).status() != psutil.STATUS_ZOMBIE
    process_guard.start(MARK, []).finish()
    assert not Path(memory).exists()
    assert not Path(sockets).exists()
    assert ends(int(child))
    assert unclaimed.is_dir()


def test_another_guard_leaves_the_folders_of_a_living_process(temporary: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-"))
    guard = process_guard.start(MARK, [folder])
    process_guard.start("another-mark", []).finish()
    assert folder.is_dir()
    guard.finish()
    assert not folder.exists()


NESTED = """
import sys, time
from pathlib import Path
from palimpsest.engines.process_guard import GuardedFolder
GuardedFolder(Path(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""


def test_the_guard_of_an_ended_process_removes_its_folder_before_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    guard = process_guard.start(MARK, [])
    command = [sys.executable, "-c", NESTED, str(folder)]
    started = subprocess.Popen(command, env=MARKED, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    children = psutil.Process(started.pid).children()
    assert folder.stat().st_mode & 0o777 == 0o700
    guard.finish()
    assert started.wait(30) < 0
    assert all(ends(child.pid) for child in children)
    assert not folder.exists()
    started.stdout.close()


def test_a_guarded_folder_keeps_the_named_subfolders_until_it_is_cleared(tmp_path: Path) -> None:
    folder = process_guard.GuardedFolder(tmp_path / "weights")
    for name in ("one", "two", "three"):
        (folder.path / name).mkdir()
    folder.keep({"two", "missing"})
    assert [path.name for path in folder.path.iterdir() if path.is_dir()] == ["two"]
    folder.clear()
    assert not folder.path.exists()
    with pytest.raises(OSError, match="No such file"):
        process_guard.GuardedFolder(tmp_path / "missing" / "weights")


def test_a_killed_guard_is_replaced_with_a_warning(temporary: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-"))
    guard = process_guard.start(MARK, [folder])
    first = guard.process  # a Popen that is collected unfinished warns too
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first.kill()
        while not caught:
            time.sleep(0.01)
    assert ["(status -9)" in str(warning.message) for warning in caught] == [True]
    assert folder.is_dir()
    guard.finish()
    assert not folder.exists()


def test_a_guard_imports_no_module_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "select.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "sockets").mkdir()
    process_guard.start(MARK, [folder]).finish()
    assert not folder.exists()
