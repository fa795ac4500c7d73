"""Ctrl-C and SIGTERM: the first finishes the step and saves, the second ends the process at once.

Not covered: threads other than the main one, where Python takes no signal handlers; `requested` then stays False.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class GracefulStop:
    """Context manager; inside it `requested` turns True with the first signal."""

    def __init__(self, on_request: Callable[[str], None] | None = None) -> None:
        """`on_request` is called with the signal's name when it arrives."""
        self.requested = False
        self._on_request = on_request
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> GracefulStop:
        if threading.current_thread() is threading.main_thread():
            self._previous = {name: signal.signal(name, self._receive) for name in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for name, handler in self._previous.items():
            signal.signal(name, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.requested = True
        if self._on_request is not None:
            self._on_request(signal.Signals(number).name)
