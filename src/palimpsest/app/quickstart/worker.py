"""Jobs in worker processes, each with an engine of its own.

    parent    one line of JSON on the worker's stdin: class and fields of a job
    worker    lines of JSON on its stdout: {"part": 3}, {"message": TEXT}, at last {"done": true} or
              {"error": CLASS, "text": TEXT}

A worker imports the job's module and nothing of the caller's script (which `spawn` would run again).

Guaranteed: an error of a job is raised in the parent, one the user can fix as itself; a worker that dies fails its job;
a worker ends with its parent, in the middle of a job if need be; an interrupt of the terminal reaches the parent alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any, Protocol, TextIO

from palimpsest import errors
from palimpsest.errors import PalimpsestError, RunError

_PATIENCE_S = 5.0  # for a worker to end by itself
_LONGEST_LINE = 1 << 24


class JobReport(Protocol):
    """What a job reports while it runs."""

    def part(self, count: int = 1) -> None:
        """`count` more parts of the work, such as turns, are done."""
        ...

    def message(self, text: str) -> None:
        """A line to show."""
        ...


class WorkerJob(Protocol):
    """Work for a process: a dataclass of JSON values, in a module that can be imported."""

    def run(self, report: JobReport) -> None:
        """Do it."""
        ...


# ---- In the parent -------------------------------------------------------------------------------------------


class Worker:
    """A worker process, for one job at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Worker:
        """A new one; it takes a few seconds until it works."""
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "palimpsest.app.quickstart.worker"),
                stdin=PIPE,
                stdout=PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                limit=_LONGEST_LINE,
                process_group=0,  # the terminal's Ctrl-C is for the parent
            )
        )

    async def do(self, job: WorkerJob, report: JobReport) -> None:
        """Have `job` done. Raises what it raises, and RunError if the process dies."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(ConnectionError):  # it is dead, which reading shows
            self._process.stdin.write(_line(job))
            await self._process.stdin.drain()
        async for line in self._process.stdout:
            match json.loads(line):
                case {"part": count}:
                    report.part(count)
                case {"message": text}:
                    report.message(text)
                case {"error": kind, "text": text}:
                    raise _as_raised(kind, text)
                case {"done": _}:
                    return
        code = await self._process.wait()
        raise RunError(f"a worker process ended with exit code {code}: run again with --resume")

    async def end(self) -> None:
        """End the process, in the middle of a job if need be."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _PATIENCE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def _line(job: WorkerJob) -> bytes:
    assert dataclasses.is_dataclass(job)
    cls = type(job)
    values: dict[str, Any] = dataclasses.asdict(job)
    return json.dumps({"job": f"{cls.__module__}:{cls.__qualname__}", "values": values}).encode() + b"\n"


def _as_raised(kind: str, text: str) -> Exception:
    """What a worker raised: an error the user can fix, or a bug with its trace as the text."""
    cls = getattr(errors, kind, None)
    if isinstance(cls, type) and issubclass(cls, PalimpsestError):
        return cls(text)
    return RuntimeError("in a worker process:\n" + text)


# ---- In the worker -------------------------------------------------------------------------------------------


class _Answers:
    """The lines back to the parent, and what a job reports on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def send(self, **values: Any) -> None:
        self._stream.write(json.dumps(values) + "\n")
        self._stream.flush()

    def part(self, count: int = 1) -> None:
        self.send(part=count)

    def message(self, text: str) -> None:
        self.send(message=text)


def main() -> None:
    """Do jobs until the parent is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # not the default: locks of libraries are to be released
    answers = _Answers(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what a job prints must not come between the answers
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(asked,), daemon=True).start()
    while True:
        _do(json.loads(asked.get()), answers)


def _read(asked: queue.SimpleQueue[str]) -> None:
    """Take jobs from the parent; end the process where it is gone. Logs and run folders bear it."""
    for line in sys.stdin:
        asked.put(line)
    os._exit(1)


def _do(asked: dict[str, Any], answers: _Answers) -> None:
    try:
        module, _, name = asked["job"].partition(":")
        getattr(importlib.import_module(module), name)(**asked["values"]).run(answers)
    except PalimpsestError as error:
        answers.send(error=type(error).__name__, text=str(error))
    except Exception:  # noqa: BLE001  border of the process: the parent raises it, with the trace as its text
        answers.send(error="", text=traceback.format_exc())
    else:
        answers.send(done=True)


if __name__ == "__main__":
    main()
