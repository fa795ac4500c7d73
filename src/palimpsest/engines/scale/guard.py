"""Ends and removes what a cluster on this machine leaves, once whoever started it is gone, however it ended.

    python -m palimpsest.engines.scale.guard MARK FOLDER...     until its standard input ends

Guaranteed: processes whose environment has the mark are killed, then the folders removed; it outlives a SIGKILL of the
process that started it.
Not covered: a machine that goes down; processes on other machines, which are Ray's to end.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

MARK = "PALIMPSEST_CLUSTER"
"""Variable of the environment that everything inherits which is started for a cluster."""
ROUNDS = 50  # of 0.1 s: a process that is being killed may start another


def start(mark: str, folders: Sequence[Path]) -> subprocess.Popen[bytes]:
    """A guard in a session of its own, so that the interrupt of a terminal doesn't reach it."""
    command = [sys.executable, "-m", "palimpsest.engines.scale.guard", mark, *map(str, folders)]
    silent = subprocess.DEVNULL  # who reads the run's output must not wait for the guard
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent, start_new_session=True)


def finish(guard: subprocess.Popen[bytes]) -> None:
    """Have it clear up, and wait for it."""
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def marked(mark: str) -> list[psutil.Process]:
    """Processes started with the mark, zombies left out."""
    return [process for process in psutil.process_iter() if _has(process, mark)]


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False


def main() -> None:
    mark, *folders = sys.argv[1:]
    sys.stdin.buffer.read()
    for _ in range(ROUNDS):
        if not (left := marked(mark)):
            break
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        time.sleep(0.1)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
