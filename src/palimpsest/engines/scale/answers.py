"""What processes answer: waited for with a time limit, in any number of threads, up to the first failure.

Guaranteed: whoever asks after a failure, or waits while it comes, is told the first one, which the others follow from.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from palimpsest.errors import GOES_ON, PalimpsestError, ProcessesLost

LOOK_S = 0.5  # between two looks at whether all was lost meanwhile
_SETTLE_S = 10.0  # until those who wait have seen that


@dataclass(frozen=True, slots=True)
class Limit:
    """How long an answer may take."""

    key: str
    """Of `cluster`."""
    seconds: float
    """Its value."""
    times: int = 1
    """That ranks wait for each other on the way."""

    def passed(self, what: str) -> str:
        """
        >>> Limit("collective_timeout_s", 600.0, 3).passed("update")
        'update: not done within 1800 s; raise cluster.collective_timeout_s=600'
        """
        return f"{what}: not done within {self.seconds * self.times:g} s; raise cluster.{self.key}={self.seconds:g}"


class Answers:
    """Of the processes of one group."""

    def __init__(self) -> None:
        self._first: PalimpsestError | None = None
        self._changed = threading.Condition()
        self._waiting = 0

    def of(self, calls: Sequence[Any], limit: Limit, what: str) -> list[Any]:
        """In the order of `calls`. Raises RayError, or the error of `failed`."""
        deadline, pending = time.monotonic() + limit.seconds * limit.times, list(calls)
        with self._counted():
            self.check()
            while pending:
                self.check()
                left = max(0.0, deadline - time.monotonic())
                ready, pending = ray.wait(pending, num_returns=1, timeout=min(LOOK_S, left))
                if ready:
                    ray.get(ready)
                elif left <= LOOK_S:
                    raise ProcessesLost(limit.passed(what))
            return list(ray.get(list(calls)))

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self._first is not None:
            raise again(self._first) from self._first.__cause__

    def failed(self, error: BaseException, what: str) -> PalimpsestError:
        """Take note of a failure of `what`; the first one, to be raised."""
        with self._changed:
            if self._first is None:
                self._first = _told(error, what)
            return again(self._first)

    def settle(self) -> None:
        """Wait, not for ever, until nobody waits for answers, who must not while Ray is shut down."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout=_SETTLE_S)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()


def again(error: PalimpsestError) -> PalimpsestError:
    """The same once more: an error that is raised in two threads would have the tracebacks of both."""
    other = type(error)(*error.args)
    other.__cause__ = error.__cause__
    return other


def _told(error: BaseException, what: str) -> PalimpsestError:
    """What the user is told: what was raised if the user can mend it, ProcessesLost otherwise."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, PalimpsestError):
        return again(cause)
    key = "; raise cluster.collective_timeout_s if ranks only were slow" if "timed out" in str(cause).lower() else ""
    lost = ProcessesLost(f"{what}: a process of engine.name=ray was lost ({line_of(cause)}){key}; {GOES_ON}")
    lost.__cause__ = error if isinstance(error, RayError) else None
    return lost


def line_of(error: BaseException) -> str:
    """Class and first line."""
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0]}"[:300]
