"""Runs a server for as long as its parent lives: `python guard.py SECONDS FOLDER WEIGHTS COMMAND...`, with a pipe.

Guaranteed: however the parent ends, SIGKILL included, its end of the pipe closes; then the whole process group of the
server is asked to end, killed after SECONDS, and FOLDER, with the server's sockets, is deleted. The same where the
server ends by itself. WEIGHTS is deleted where the parent closed the pipe without a word, since it lives no more.
Not covered: this process killed by SIGKILL, and processes that leave the server's group.

Standard library only: it runs as a file, without the package.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress


def main() -> int:
    """Run the command; its exit status."""
    patience, folder, weights, command = float(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the parent decides, by the pipe; SIG_IGN the server would inherit
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    threading.Thread(target=_watch, args=(server.pid, patience, weights), daemon=True).start()
    status = server.wait()
    _end(server.pid, patience)
    shutil.rmtree(folder, ignore_errors=True)
    return status


def _watch(group: int, patience: float, weights: str) -> None:
    """Wait for the parent's word or its end, then end the server."""
    if not os.read(0, 1):
        shutil.rmtree(weights, ignore_errors=True)
    _end(group, patience)


def _end(group: int, patience: float) -> None:
    """End every process of the group: asked first, for they hold shared memory that they give back."""
    until = time.monotonic() + patience
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
