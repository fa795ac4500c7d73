"""A worker process of `app/quickstart/worker_pool.py`: takes tasks from its standard input, one after the other."""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any, TextIO

from palimpsest.errors import PalimpsestError


class _Answers:
    """The line back to the parent, and what a task reports on."""

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
    """Work until the parent is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # not the default: locks of libraries are to be released
    answers = _Answers(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what a task prints must not come between the answers
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(asked,), daemon=True).start()
    while True:
        _do(json.loads(asked.get()), answers)


def _read(asked: queue.SimpleQueue[str]) -> None:
    """Take down what is asked; end the process where nobody is left to ask. Logs and run folders bear it."""
    for line in sys.stdin:
        asked.put(line)
    os._exit(1)


def _do(asked: dict[str, Any], answers: _Answers) -> None:
    try:
        module, _, name = asked["task"].partition(":")
        getattr(importlib.import_module(module), name)(**asked["values"]).run(answers)
    except PalimpsestError as error:
        answers.send(error=type(error).__name__, text=str(error))
    except Exception:  # noqa: BLE001  border of the process: the parent raises it, with the trace as its text
        answers.send(error="", text=traceback.format_exc())
    else:
        answers.send(done=True)


if __name__ == "__main__":
    main()
