"""Work handed to other processes, each with an engine of its own; what comes of it is a future.

A task is a dataclass of JSON values with a method `run`. It is sent by name and values, a line of JSON each way, so a
worker imports what it needs and nothing of the caller's script (which `spawn` would run again).

Guaranteed: an error of a task is raised by its future, one the user can fix as itself; a worker that dies fails the
task it was at, and the last one to die all that wait; a worker leaves when its parent is gone, however that ended, in
the middle of a task if need be; an interrupt of the terminal reaches the parent alone, which decides.
Not covered: more workers than cores, which is slower and nothing worse; results larger than a line of JSON bears.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from palimpsest import errors
from palimpsest.errors import PalimpsestError, RunError

_PATIENCE_S = 5.0  # for a worker to end by itself


class TaskReport(Protocol):
    """What a task tells while it runs."""

    def part(self, count: int = 1) -> None:
        """So many parts of the work are done: turns, say."""
        ...

    def message(self, text: str) -> None:
        """A line for whoever watches."""
        ...


class Task(Protocol):
    """Work for another process: a dataclass, of JSON values, in a module that can be imported."""

    def run(self, report: TaskReport) -> None:
        """Do it."""
        ...


@dataclass(frozen=True, slots=True)
class _Handed:
    task: Task
    report: TaskReport
    future: Future[None]


class WorkerPool:
    """Processes that take tasks in the order these are submitted. Use as a context manager, or `stop` it."""

    def __init__(self, workers: int) -> None:
        """Start them; they take a few seconds until they work."""
        self._waiting: queue.SimpleQueue[_Handed | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        self._processes = [_start() for _ in range(workers)]
        self._alive = workers
        self._threads = [
            threading.Thread(target=self._serve, args=(process,), daemon=True) for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(self, task: Task, report: TaskReport) -> Future[None]:
        """Have `task` done by the next free worker. `report` is called from other threads."""
        handed = _Handed(task, report, Future())
        with self._lock:
            if self._alive and not self._stopped:
                self._waiting.put(handed)
                return handed.future
        handed.future.set_exception(RunError("no worker process is left: run again with --resume"))
        return handed.future

    def stop(self) -> None:
        """End the workers, in the middle of a task if need be; what waits is cancelled."""
        with self._lock:
            self._stopped = True
        self._fail_waiting(None)
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        for _ in self._threads:
            self._waiting.put(None)
        for thread, process in zip(self._threads, self._processes, strict=True):
            thread.join()
            for pipe in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):  # what is still in it belongs to a task that was cut off
                    if pipe is not None:
                        pipe.close()

    def _serve(self, process: subprocess.Popen[str]) -> None:
        """The life of one worker, seen from here."""
        while (handed := self._waiting.get()) is not None:
            if not handed.future.set_running_or_notify_cancel():
                continue
            try:
                self._do(process, handed)
            except (BrokenPipeError, EOFError):
                self._died(process, handed.future)
                return
            except Exception as error:  # noqa: BLE001  the future's owner raises it
                handed.future.set_exception(error)
            else:
                handed.future.set_result(None)

    def _do(self, process: subprocess.Popen[str], handed: _Handed) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_line(handed.task))
        process.stdin.flush()
        for line in process.stdout:
            match json.loads(line):
                case {"part": count}:
                    handed.report.part(count)
                case {"message": text}:
                    handed.report.message(text)
                case {"error": kind, "text": text}:
                    raise _as_raised(kind, text)
                case {"done": _}:
                    return
        raise EOFError

    def _died(self, process: subprocess.Popen[str], future: Future[None]) -> None:
        code = process.wait()
        with self._lock:
            self._alive -= 1
            nobody = self._alive == 0
        error = RunError(f"a worker process ended with exit code {code}: run again with --resume")
        future.set_exception(error)
        if nobody:
            self._fail_waiting(error)

    def _fail_waiting(self, error: Exception | None) -> None:
        """Fail what no worker will take any more, or cancel it."""
        while not self._waiting.empty():
            if (handed := self._waiting.get()) is None:
                continue
            if error is None:
                handed.future.cancel()
            else:
                handed.future.set_exception(error)


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "palimpsest.app.quickstart.worker_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        text=True,
        encoding="utf-8",
        process_group=0,  # the terminal's Ctrl-C is for the parent
    )


def _line(task: Task) -> str:
    assert dataclasses.is_dataclass(task)
    cls = type(task)
    values: dict[str, Any] = dataclasses.asdict(task)
    return json.dumps({"task": f"{cls.__module__}:{cls.__qualname__}", "values": values}) + "\n"


def _as_raised(kind: str, text: str) -> Exception:
    """What a worker raised: an error the user can fix, or a bug with its trace as the text."""
    cls = getattr(errors, kind, None)
    if isinstance(cls, type) and issubclass(cls, PalimpsestError):
        return cls(text)
    return RuntimeError("in a worker process:\n" + text)
