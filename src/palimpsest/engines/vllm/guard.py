"""Runs a server for as long as its parent lives: `python guard.py SECONDS FOLDER WEIGHTS COMMAND...`, with a pipe.

Guaranteed: however the parent ends, SIGKILL included, its end of the pipe closes; then the whole process group of the
server is asked to end, killed after SECONDS, and FOLDER, with the server's sockets, is deleted, and so is shared memory
that it left (vLLM does, on Linux). The same where the server ends by itself. WEIGHTS is deleted where the parent closed
the pipe without a word, since it lives no more.
Not covered: this process killed by SIGKILL; processes that leave the server's group.

Standard library only: it runs as a file, without the package.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_LOOK_S = 5.0  # between two looks at what shared memory the server has
_MAPPED = re.compile(r" (/dev/shm/[^/\s]+)$", re.MULTILINE)


class Group:
    """The process group of a server."""

    def __init__(self, leader: int, patience: float) -> None:
        self._leader, self._patience = leader, patience
        self._memory: set[str] = set()

    def look(self) -> None:
        """Note which segments of shared memory its processes have."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile, or is somebody else's
                if os.getpgid(int(process.name)) == self._leader:
                    self._memory.update(_MAPPED.findall((process / "maps").read_text()))

    def end(self) -> None:
        """End every process: asked first, killed if need be."""
        self.look()
        until = time.monotonic() + self._patience
        with suppress(ProcessLookupError):
            os.killpg(self._leader, signal.SIGTERM)
            while time.monotonic() < until:
                os.killpg(self._leader, 0)
                time.sleep(0.05)
            os.killpg(self._leader, signal.SIGKILL)
        for segment in self._memory:
            Path(segment).unlink(missing_ok=True)


def main() -> int:
    """Run the command; its exit status."""
    patience, folder, weights, command = float(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the parent decides, by the pipe; SIG_IGN the server would inherit
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    group = Group(server.pid, patience)
    threading.Thread(target=_watch, args=(group, weights), daemon=True).start()
    while (status := _waited(server)) is None:
        group.look()
    group.end()
    shutil.rmtree(folder, ignore_errors=True)
    return status


def _waited(server: subprocess.Popen[bytes]) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return server.wait(_LOOK_S)
    return None


def _watch(group: Group, weights: str) -> None:
    """Wait for the parent's word or its end, then end the server."""
    told = os.read(0, 1)
    print("guard: ended by its run" if told else "guard: ended, since its run is gone", flush=True)
    if not told:
        shutil.rmtree(weights, ignore_errors=True)
    group.end()


if __name__ == "__main__":
    sys.exit(main())
