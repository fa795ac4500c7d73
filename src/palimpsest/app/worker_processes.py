"""Worker processes of a command: a process does one piece of work and reports to its parent line by line.

Guaranteed: a worker ends with its parent, even within its work; only the parent gets an interrupt of the terminal; an
error of the work is the parent's RunError; a worker imports nothing of the caller's script.
Not covered: workers on other machines.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import traceback
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress

from palimpsest.errors import PalimpsestError, RunError, raised_at

_PATIENCE_S = 5.0  # between SIGTERM and SIGKILL
_LONGEST_LINE = 1 << 24
_COMMAND = "PALIMPSEST_COMMAND"  # the parent's words, for records of how files were made

Say = Callable[[int | str], None]
"""Reports finished parts, or a line to show."""


async def run_process(words: Sequence[str], receive: Say, code: str, *, again: str = "run again with --resume") -> None:
    """Run `code` with `words` in a process that writes a JSON number, text or {"error": text} per line, and true last.

    Raises RunError if it fails, also if it ends with status 0 before its last line; `again`: how to continue.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *words),
        stdin=PIPE,
        stdout=PIPE,
        env=_environment(),
        limit=_LONGEST_LINE,
        process_group=0,  # the terminal's Ctrl-C is for the parent
    )
    output = process.stdout
    assert output is not None

    async def ended() -> None:
        await output.read()  # to its end: only then asyncio closes the process's transport
        await process.wait()

    done = False
    try:
        async for line in output:
            if isinstance(said := json.loads(line), dict):
                raise RunError(said["error"])
            if said is True:
                done = True
            else:
                receive(said)
        if (status := await process.wait()) or not done:
            raise RunError(f"a worker process ended with exit code {status}: {again}")
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(ended(), _PATIENCE_S)
        except TimeoutError:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                process.kill()
            await ended()


def _environment() -> dict[str, str]:
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**os.environ, _COMMAND: json.dumps(sys.argv), "PYTHONPATH": path}


def serve_parent(work: Callable[..., None]) -> None:
    """Run `work(say, *words)` on the words of the command line, in a process that `run_process` started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # releases locks of libraries, unlike the default
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # other prints must not mix with the lines
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()

    def say(said: int | str | dict[str, str]) -> None:
        lines.write(json.dumps(said) + "\n")
        lines.flush()

    words, sys.argv = sys.argv[1:], json.loads(os.environ[_COMMAND])
    try:
        work(say, *words)
        say(True)
    except PalimpsestError as error:
        say({"error": str(error)})
    except Exception as error:  # noqa: BLE001  users' code runs here
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error} ({raised_at(error)})"})
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends now, and libraries release their locks
