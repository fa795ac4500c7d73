"""Ends and removes what a run started on this machine, once whoever started it is gone, however it ended.

    python -m palimpsest.engines.process_guard MARK FOLDER...     until its standard input ends

Guaranteed: processes whose environment has the mark are killed, then the folders removed, and the shared memory that
those processes had (Linux); it outlives a SIGKILL of the process that started it. A guard that is killed is replaced
while that process lives; where both are killed, the next guard that this user starts clears up after them.
Not covered: a machine that goes down; processes on other machines; memory of a process that was there for less than
`LOOK_S`; folders outside of /dev/shm and of temporary files, where both are killed.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
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
_CLAIM = ".claim"
"""File in a guarded folder that holds the mark; locked while the process that started the guard lives."""
_FOLDERS = ("palimpsest-*", "pal-*")
"""Patterns of the names of guarded folders, in shared memory and in the folder of temporary files."""
_PAUSE_S = 1.0  # between two replacements
_MAPPED = re.compile(r" (\d+) +/dev/shm/", re.MULTILINE)  # the inode: a semaphore is mapped under another name


class ProcessGuard:
    """A guard process, replaced where it ends too early, and the claims to its folders."""

    def __init__(self, mark: str, folders: Sequence[Path]) -> None:
        # -P: no file of the working folder shadows a module of the library
        self._command = [sys.executable, "-P", "-m", "palimpsest.engines.process_guard", mark, *map(str, folders)]
        self._claims = [_claim(folder, mark) for folder in folders if folder.is_dir()]
        self._finished = threading.Event()
        self._changing = threading.Lock()
        self.process = self._start()
        threading.Thread(target=self._replace, name="palimpsest-guard", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        """In a session of its own, so that the interrupt of a terminal doesn't reach it."""
        silent = subprocess.DEVNULL  # who reads the run's output must not wait for the guard
        unmarked = {name: value for name, value in os.environ.items() if name != MARK}  # it would end itself
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=silent, stderr=silent, start_new_session=True, env=unmarked
        )

    def _replace(self) -> None:
        while True:
            ended = self.process.wait()
            with self._changing:
                if self._finished.is_set():
                    return
                self.process = self._start()
                warnings.warn(f"the guard process ended (status {ended}); another was started", stacklevel=2)
            if self._finished.wait(_PAUSE_S):
                return

    def finish(self) -> None:
        """Have it clear up, and wait for it."""
        with self._changing:
            self._finished.set()
            if self.process.poll() is not None:  # killed just now
                self.process = self._start()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        for claim in self._claims:
            os.close(claim)
        self._claims = []


def start(mark: str, folders: Sequence[Path]) -> ProcessGuard:
    """Guard `folders` and what has the mark. What dead processes of this user left is removed first."""
    _sweep()
    return ProcessGuard(mark, folders)


def _claim(folder: Path, mark: str) -> int:
    """Descriptor of the folder's claim, locked until this process ends. It appears with its lock and its mark."""
    hidden = folder / f"{_CLAIM}-{os.getpid()}"
    claim = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(claim, fcntl.LOCK_EX)
    os.write(claim, mark.encode())
    hidden.rename(folder / _CLAIM)
    return claim


def _sweep() -> None:
    """Clear up where a process and its guard were both killed."""
    for folder in _claimed():
        with suppress(OSError), (folder / _CLAIM).open() as claim:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process lives
            if mark := claim.read():
                end(mark)
            shutil.rmtree(folder, ignore_errors=True)


def _claimed() -> Iterator[Path]:
    """Guarded folders of this user, whether or not their process lives."""
    for parent in {_MEMORY, Path(tempfile.gettempdir())}:
        for folder in (path for name in _FOLDERS for path in parent.glob(name)):
            with suppress(OSError):
                status = folder.lstat()
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                    yield folder


def marked(mark: str, tracked: Iterable[psutil.Process] = ()) -> set[psutil.Process]:
    """Processes started with the mark, those `tracked` as belonging to them, and what they started; zombies left out.

    What was seen once is remembered: a process that names itself (vLLM's do) may overwrite its environment.
    """
    processes: set[psutil.Process] = set()
    for process in {*tracked, *(candidate for candidate in psutil.process_iter() if _has(candidate, mark))}:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                processes |= {process, *process.children(recursive=True)}
    return processes


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
