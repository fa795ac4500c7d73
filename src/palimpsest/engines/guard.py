"""Ends and removes what a run started on this machine, once whoever started it is gone, however it ended.

    python -m palimpsest.engines.guard MARK FOLDER...     until its standard input ends

Guaranteed: processes whose environment has the mark are killed, then the folders removed, and the shared memory that
those processes had (Linux); it outlives a SIGKILL of the process that started it.
Not covered: a machine that goes down; processes on other machines; this process killed by SIGKILL itself; memory of a
process that was there for less than `LOOK_S`.
"""

from __future__ import annotations

import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "PALIMPSEST_STARTED_BY"
"""Variable of the environment that everything inherits which is started for a run."""
ROUNDS = 50  # of 0.1 s: a process that is being killed may start another
LOOK_S = 5.0  # between two looks at which shared memory there is: a process that crashes doesn't remove its own
_MEMORY = Path("/dev/shm")
_OWN = ("psm_", "sem.mp-", "torch_", "nccl-")
"""Beginnings of what is for the processes of one owner alone."""
_MAPPED = re.compile(r" (\d+) +/dev/shm/", re.MULTILINE)  # the inode: a semaphore is mapped under another name


def start(mark: str, folders: Sequence[Path]) -> subprocess.Popen[bytes]:
    """A guard in a session of its own, so that the interrupt of a terminal doesn't reach it."""
    # -P: no file of the working folder may stand in for a module of the library
    command = [sys.executable, "-P", "-m", "palimpsest.engines.guard", mark, *map(str, folders)]
    silent = subprocess.DEVNULL  # who reads the run's output must not wait for the guard
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent, start_new_session=True)


def finish(guard: subprocess.Popen[bytes]) -> None:
    """Have it clear up, and wait for it."""
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def marked(mark: str, known: Iterable[psutil.Process] = ()) -> set[psutil.Process]:
    """Processes started with the mark, those `known` to belong to them, and what they started; zombies left out.

    What was seen once is remembered: a process that names itself (vLLM's do) may overwrite its environment.
    """
    found: set[psutil.Process] = set()
    for process in {*known, *(each for each in psutil.process_iter() if _has(each, mark))}:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found |= {process, *process.children(recursive=True)}
    return found


def _has(process: psutil.Process, mark: str) -> bool:
    environment = Path(f"/proc/{process.pid}/environ")
    with suppress(psutil.Error, OSError):
        if environment.exists():  # psutil reads up to the first gap
            return f"{MARK}={mark}".encode() in environment.read_bytes().split(b"\0")
        return bool(process.environ().get(MARK) == mark)
    return False


def end(mark: str) -> None:
    """Kill the processes started with the mark."""
    for process in marked(mark):
        with suppress(psutil.Error):
            process.kill()


def memory_of(processes: Iterable[psutil.Process]) -> set[str]:
    """Inodes of the shared memory that they have mapped."""
    inodes: set[str] = set()
    for process in processes:
        with suppress(OSError):  # it ended, or this is no Linux
            inodes.update(_MAPPED.findall(Path(f"/proc/{process.pid}/maps").read_text()))
    return inodes


def _remove_memory(inodes: set[str]) -> None:
    for file in _MEMORY.glob("*"):
        with suppress(OSError):
            if file.name.startswith(_OWN) and str(file.stat().st_ino) in inodes:
                file.unlink()


def main() -> None:
    mark, *folders = sys.argv[1:]
    memory: set[str] = set()
    processes: set[psutil.Process] = set()
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        processes = marked(mark, processes)
        memory |= memory_of(processes)
    for _ in range(ROUNDS):
        if not (processes := marked(mark, processes)):
            break
        memory |= memory_of(processes)
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(0.1)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    _remove_memory(memory)


if __name__ == "__main__":
    main()
