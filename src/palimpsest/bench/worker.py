"""A measurement in a process of its own: its peak memory, its heap and its threads are its own.

A worker is any program that speaks lines of JSON: it reads its task, says `{"ready": true}` once everything is loaded
and warm, and answers every further line with the object of one round. `serve` is that program for a function of ours;
programs of other environments (vllm_worker.py, trl_worker.py) speak it without importing palimpsest. What libraries
print on stdout besides is passed over.

Guaranteed: a worker that dies, hangs or answers nothing raises BenchError with the last line of its stderr, and none
outlives its `with`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from palimpsest.errors import BenchError

_ANSWER = '{"'  # how an answer begins; nothing else a library prints does


class Worker:
    """A process that waits for its next round; use it in a `with`."""

    def __init__(
        self, command: Sequence[str], task: Mapping[str, Any], *, what: str, timeout_s: float | None = None
    ) -> None:
        """Start `command` and wait until it is ready; `what` names it in errors, `timeout_s` bounds each answer."""
        self._what, self._timeout_s, self._hung = what, timeout_s, False
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in `close`; a pipe nobody reads fills up
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        try:
            self._ask(json.dumps(task))
        except BaseException:
            self.close()
            raise

    def round(self) -> dict[str, Any]:
        """One measurement."""
        return self._ask("")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        clock = None if self._timeout_s is None else threading.Timer(self._timeout_s, self._hang)
        if clock is not None:
            clock.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            found = next((said for said in self._process.stdout if said.startswith(_ANSWER)), None)
        except BrokenPipeError:
            found = None
        finally:
            if clock is not None:
                clock.cancel()
        if found is None:
            raise BenchError(f"{self._what} failed: {self._last_words()}")
        answer: dict[str, Any] = json.loads(found)
        return answer

    def _hang(self) -> None:
        self._hung = True
        self._process.kill()

    def _last_words(self) -> str:
        if self._hung:
            return f"no answer within {self._timeout_s:g} s"
        self._stderr.seek(0)
        return (self._stderr.read().strip().splitlines() or ["it ended without a word"])[-1]


def module(name: str) -> list[str]:
    """The command of a module of ours that calls `serve`."""
    return [sys.executable, "-m", f"palimpsest.bench.{name}"]


def measured(command: Sequence[str], task: Mapping[str, Any], *, what: str) -> dict[str, Any]:
    """One round of a worker that is started for it."""
    with Worker(command, task, what=what) as worker:
        return worker.round()


def serve(prepare: Callable[[Mapping[str, Any]], Callable[[], Mapping[str, Any]]]) -> None:
    """The worker's side: `prepare` loads and warms up for a task and returns what plays one round."""
    play = prepare(json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(play()), flush=True)


def peak_mb() -> float:
    """Highest resident memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux `ru_maxrss` begins with what the parent had
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return float(line.split()[1]) / (1 << 10)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
