"""SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first ends what is going on tidily, the second ends the process at once.

    in a training loop    the step is finished and a checkpoint saved               GracefulStop
    in any other command  what waits is cancelled, what is open closed and removed  Interrupts

Python gives signals to the main thread. A run in another thread, a notebook's say, is asked to stop by whoever
waits for it there, with `request`. A process that ignores SIGHUP (nohup) goes on ignoring it.

Not covered: a run in another thread that nobody waits for, which goes on to its last step; a call into a library that
holds the interpreter, which ends first.
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
        try:
            with _received_by(self._receive):
                yield
        finally:
            self._on_request, self.watched = None, False

    def request(self, name: str) -> None:
        """Wish it; from any thread."""
        self.requested = True
        if self._on_request is not None:
            self._on_request(name)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            end_at_once(number)
        self.request(signal.Signals(number).name)


class Interrupts:
    """Signals to a command, but for its training loops. Use `watching` around it."""

    def __init__(self) -> None:
        self.received: int | None = None
        """The first."""
        self._cancel: Callable[[], object] | None = None

    @staticmethod
    def installed() -> Interrupts | None:
        """Those that signals go to now, if any do."""
        owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        return owner if isinstance(owner, Interrupts) else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The first signal raises Interrupted in here, or cancels the work of `run`, which raises it then."""
        with _received_by(self._receive):
            yield

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` comes to, on an event loop of its own."""

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
        with suppress(OSError):  # the terminal may be what went away
            os.write(2, f"{signal.Signals(number).name}: ending; once more ends at once\n".encode())
        if self._cancel is None:
            raise Interrupted(number)
        self._cancel()


def end_at_once(number: int) -> None:
    """Die of the signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextmanager
def _received_by(receive: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Hand signals to `receive`, where this is the main thread. After one that ended the work they are the system's."""
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
