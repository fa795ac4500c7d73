"""A server ends with the process that started it, however that ends; a child of its own with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from palimpsest.engines.vllm import guard

SERVER = """
import mmap, signal, subprocess, sys, time
with open({segment!r}, "w+b") as file:  # as vLLM's processes that are killed leave it
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(child.pid, flush=True)
time.sleep({seconds})
"""


SEGMENT = Path(f"/dev/shm/psm_of_a_test_{os.getpid()}")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    sockets, weights = tmp_path / "sockets", tmp_path / "weights"
    sockets.mkdir()
    weights.mkdir()
    return sockets, weights


linux = pytest.mark.skipif(not SEGMENT.parent.is_dir(), reason="no /dev/shm")


def start(folders: tuple[Path, Path], *, stubborn: bool = False, seconds: float = 600) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-c",
        SERVER.format(
            stubborn=stubborn,
            seconds=seconds,
            segment=str(SEGMENT if SEGMENT.parent.is_dir() else folders[0] / "memory"),
        ),
    ]
    return subprocess.Popen(
        [sys.executable, "-I", guard.__file__, "0.5", *map(str, folders), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def child_of(process: subprocess.Popen[bytes]) -> int:
    """The process that the server started."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def gone(pid: int) -> bool:
    """Whether it ends soon: who adopts it may take a moment to look."""
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


@linux
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_server_whose_run_was_killed_ends_with_all_it_has(folders: tuple[Path, Path], stubborn: bool) -> None:
    process = start(folders, stubborn=stubborn)
    child = child_of(process)
    assert process.stdin is not None
    process.stdin.close()  # what the system does where a process is killed
    process.wait(30)
    assert gone(child)
    assert [folder.exists() for folder in folders] == [False, False]
    assert not SEGMENT.exists()


def test_a_server_that_is_ended_by_its_run_leaves_the_weights_of_others(folders: tuple[Path, Path]) -> None:
    process = start(folders)
    child = child_of(process)
    process.communicate(b".", timeout=30)
    assert gone(child)
    assert [folder.exists() for folder in folders] == [False, True]


def test_a_server_that_ends_by_itself_takes_what_it_started_with_it(folders: tuple[Path, Path]) -> None:
    process = start(folders, seconds=0)
    child = child_of(process)
    assert process.wait(30) == 0
    assert gone(child)
    assert [folder.exists() for folder in folders] == [False, True]
    assert process.stdin is not None
    process.stdin.close()
    SEGMENT.unlink(missing_ok=True)  # it ended before anybody looked
