"""Ctrl-C and SIGTERM: the first finishes the step and saves, the second ends the process at once.

Python gives signals to the main thread. A run in another thread, a notebook's say, is asked to stop by whoever
waits for it there, with `request`.

Not covered: a run in another thread that nobody waits for; it goes on to its last step.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class GracefulStop:
    """A wish that a run end after the step it is at."""

    def __init__(self) -> None:
        self.requested = False
        self.watched = False
        """Whether a run is there that will heed it."""
        self._on_request: Callable[[str], None] | None = None

    @contextmanager
    def watching(self, on_request: Callable[[str], None] | None = None) -> Iterator[None]:
        """Take signals for the wish, where this is the main thread.

        `on_request` is called with the signal's name when the wish comes.
        """
        self._on_request, self.watched = on_request, True
        main = threading.current_thread() is threading.main_thread()
        previous = {name: signal.signal(name, self._receive) for name in _SIGNALS} if main else {}
        try:
            yield
        finally:
            self._on_request, self.watched = None, False
            for name, handler in previous.items():
                signal.signal(name, handler)

    def request(self, name: str) -> None:
        """Wish it; from any thread."""
        self.requested = True
        if self._on_request is not None:
            self._on_request(name)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.request(signal.Signals(number).name)
