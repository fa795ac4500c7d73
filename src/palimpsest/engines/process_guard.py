"""Ends a run's processes on this machine and removes their files once the run's process has ended for any reason;
returns freed memory of a running one.

    python -m palimpsest.engines.process_guard MARK FOLDER...     until its standard input ends

Guaranteed: processes whose environment has the mark are killed, then the folders and their shared memory (Linux) are
removed; the guard outlives a SIGKILL of the process that started it. The process replaces a killed guard; if both are
killed, the next guard of this user cleans up.
Not covered: a machine that goes down; processes on other machines; shared memory of a process that lived less than
`LOOK_S`; if both are killed, folders outside of /dev/shm and the temporary folder.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import secrets
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

_MODULE = "palimpsest.engines.process_guard"
MARK = "PALIMPSEST_STARTED_BY"
"""Environment variable inherited by every process of a run."""
ROUNDS = 50  # of 0.1 s: a process that is being killed may start another
LOOK_S = 5.0  # between two looks at which shared memory there is: a process that crashes doesn't remove its own
_MEMORY = Path("/dev/shm")
_OWN = ("psm_", "sem.mp-", "torch_", "nccl-")
"""Name prefixes of resources that belong to one owner's processes."""
_CLAIM = ".claim"
"""File in a guarded folder that contains the mark; locked while the process that started the guard lives."""
_FOLDERS = ("palimpsest-*", "pal-*")
"""Name patterns of guarded folders, in shared memory and in the temporary folder."""
_PAUSE_S = 1.0  # between two replacements
_MAPPED = re.compile(r" (\d+) +/dev/shm/", re.MULTILINE)  # the inode: a semaphore is mapped under another name


def give_back_freed_memory() -> bool:
    """Return all free pages of this process to the system; returns True if there were any."""
    malloc_trim = glibc("malloc_trim")
    return malloc_trim is not None and bool(malloc_trim(0))


def glibc(name: str) -> Any:
    """A function of the C library; None on other systems."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


class ProcessGuard:
    """A guard process, replaced if it ends too early, and the claims to its folders."""

    def __init__(self, mark: str, folders: Sequence[Path]) -> None:
        # -P: no file of the working folder shadows a module of the library
        self._command = [sys.executable, "-P", "-m", _MODULE, mark, *map(str, folders)]
        self._claims = [_claim(folder, mark) for folder in folders if folder.is_dir()]
        self._finished = threading.Event()
        self._changing = threading.Lock()
        self.process = self._start()
        threading.Thread(target=self._replace, name="palimpsest-guard", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        """Start in a new session, so that a terminal's interrupt doesn't reach it."""
        silent = subprocess.DEVNULL  # readers of the run's output must not wait for the guard
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
                warnings.warn(f"the guard process ended (status {ended}); palimpsest started another", stacklevel=2)
            if self._finished.wait(_PAUSE_S):
                return

    def finish(self) -> None:
        """Let the guard clean up and wait for its end."""
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


def memory_folder() -> Path:
    """Folder whose files are in memory, or the one for temporary files."""
    return _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())


class GuardedFolder:
    """A private folder, removed once this process has ended or `clear` is called."""

    def __init__(self, path: Path) -> None:
        """Makes `path`. Raises OSError."""
        path.mkdir(mode=0o700)
        self.path, self._guard = path, start(secrets.token_hex(8), [path])

    def keep(self, names: Set[str]) -> None:
        """Remove all folders in it but those."""
        for other in self.path.iterdir():
            if other.name not in names and other.is_dir():
                shutil.rmtree(other)

    def clear(self) -> None:
        self._guard.finish()


def start(mark: str, folders: Sequence[Path]) -> ProcessGuard:
    """Guard `folders` and all marked processes. First remove leftovers of this user's dead processes."""
    _sweep()
    return ProcessGuard(mark, folders)


def _claim(folder: Path, mark: str) -> int:
    """Descriptor of the folder's claim, locked until this process ends. The file appears with lock and mark."""
    hidden = folder / f"{_CLAIM}-{os.getpid()}"
    claim = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(claim, fcntl.LOCK_EX)
    os.write(claim, mark.encode())
    hidden.rename(folder / _CLAIM)
    return claim


def _sweep() -> None:
    """Clean up after processes that were killed together with their guard."""
    for folder in _claimed():
        with suppress(OSError), (folder / _CLAIM).open() as claim:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process lives
            if mark := claim.read():
                end(mark)
            shutil.rmtree(folder, ignore_errors=True)


def _claimed() -> Iterator[Path]:
    for parent in {_MEMORY, Path(tempfile.gettempdir())}:
        for folder in (path for name in _FOLDERS for path in parent.glob(name)):
            with suppress(OSError):
                status = folder.lstat()
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                    yield folder


def marked(mark: str, tracked: Iterable[psutil.Process] = ()) -> set[psutil.Process]:
    """Marked processes, the `tracked` ones and all their children, without zombies and guards, which end by themselves
    once they have cleaned up.

    A process seen once stays tracked: setting a process title (vLLM does) may overwrite the environment.
    """
    processes: set[psutil.Process] = set()
    for process in {*tracked, *(candidate for candidate in psutil.process_iter() if _has(candidate, mark))}:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                family = {process, *process.children(recursive=True)}
                processes |= {each for each in family if not _is_guard(each)}
    return processes


def _is_guard(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return _MODULE in process.cmdline()
    return False


def _has(process: psutil.Process, mark: str) -> bool:
    environment = Path(f"/proc/{process.pid}/environ")
    with suppress(psutil.Error, OSError):
        if environment.exists():  # psutil reads up to the first gap
            return f"{MARK}={mark}".encode() in environment.read_bytes().split(b"\0")
        return bool(process.environ().get(MARK) == mark)
    return False


def end(mark: str) -> None:
    for process in marked(mark):
        with suppress(psutil.Error):
            process.kill()


def memory_of(processes: Iterable[psutil.Process]) -> set[str]:
    """Inodes of the shared memory that they map."""
    inodes: set[str] = set()
    for process in processes:
        with suppress(OSError):  # it ended, or this is not Linux
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
