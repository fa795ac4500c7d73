"""SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first ends the work cleanly, the second ends the process immediately.

    in a training loop    finish the step and save a checkpoint                GracefulStop
    in any other command  cancel waiting work, close and remove open files     Interrupts

Python delivers signals to the main thread. A caller that waits for a run in another thread (a notebook's) stops it
with `request`. A process that ignores SIGHUP (nohup) continues to ignore it.

Not covered: a run in another thread without a waiting caller, which continues to its last step; a library call that
blocks the interpreter, which finishes first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from palimpsest.errors import Interrupted

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class GracefulStop:
    """Request that a run end after its current step."""

    def __init__(self) -> None:
        self.requested = False
        self.watched = False
        """True while a run reacts to requests."""
        self._on_request: Callable[[str], None] | None = None

    @contextmanager
    def watching(self, on_request: Callable[[str], None] | None = None) -> Iterator[None]:
        """Turn signals into requests, in the main thread. Calls `on_request` with the signal's name."""
        self._on_request, self.watched = on_request, True
        try:
            with _received_by(self._receive):
                yield
        finally:
            self._on_request, self.watched = None, False

    def request(self, name: str) -> None:
        """Request the end, from any thread."""
        self.requested = True
        if self._on_request is not None:
            self._on_request(name)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            end_at_once(number)
        self.request(signal.Signals(number).name)


class Interrupts:
    """Signals to a command outside its training loops. Use `watching` around it."""

    def __init__(self) -> None:
        self.received: int | None = None
        """First signal."""
        self._cancel: Callable[[], object] | None = None

    @staticmethod
    def installed() -> Interrupts | None:
        """The current receiver of signals, if any."""
        owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        return owner if isinstance(owner, Interrupts) else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The first signal raises Interrupted here, or cancels the work of `run`, which then raises it."""
        with _received_by(self._receive):
            yield

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Result of `work` on a new event loop."""

        async def cancellable() -> T:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            return await work()

        try:
            return asyncio.run(cancellable())
        except asyncio.CancelledError:
            if self.received is None:
                raise
            raise Interrupted(self.received) from None
        finally:
            self._cancel = None

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            end_at_once(number)
        self.received = number
        with suppress(OSError):  # the terminal may be gone
            os.write(2, f"{signal.Signals(number).name}: ending; a second signal ends immediately\n".encode())
        if self._cancel is None:
            raise Interrupted(number)
        self._cancel()


def end_at_once(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextmanager
def _received_by(receive: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Pass signals to `receive`, in the main thread. After an interrupt, the system handles them."""
    main = threading.current_thread() is threading.main_thread()
    taken = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, receive) for number in taken} if main else {}
    try:
        yield
    except Interrupted:
        previous = dict.fromkeys(previous, signal.SIG_DFL)
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
