"""Custom rewards and layers from user code, called with a time limit and validated before training.

    reward   (problem, trajectory) -> a number or a Grade
    layer    (problem, trajectory, grade) -> a number, which replaces the grade's value, or a Grade

Each is a plain or async function, or a class: palimpsest constructs it with its options and calls it, or its method
`grade` if it has one. A parameter called `codec` receives the model's codec, which turns token ids into text. Plain
functions run on one daemon thread, one call at a time in order of arrival. The time limit starts with the call.

`needs_gold = False` on a function or class: it also grades problems without a gold, such as those of an environment.

Guaranteed: an exception, an invalid value (NaN, 1e300, a text, None) or a call over `reward.timeout_s` leaves the
episode ungraded with the reason, never at zero, and does not end the run; a lost episode is ungraded without a call; a
plain function may block, and needs no lock; calls behind one that timed out continue on a new thread. A function of the
episode only returns the same grades in every run, in whatever order episodes end.
Not covered: functions that draw at random or read a clock; ending a plain function that timed out (it runs until it
returns or the process ends, which does not wait for it); an async function that ignores cancellation or blocks the
event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from queue import Empty, SimpleQueue
from typing import Any

from palimpsest import plugins
from palimpsest.errors import being_cancelled, raised_at
from palimpsest.reward.answer_match import measure
from palimpsest.types import Grade, Problem, Trajectory

# ---- Calls of a user's function, plain or async, with a time limit -------------------------------------------


class OutOfTime(Exception):
    """A call exceeded its time limit."""


class Caller:
    """Calls of a plain or async function."""

    def __init__(self, call: Callable[..., Any], timeout_s: float | None = None) -> None:
        self._call = call
        self._timeout_s = timeout_s
        self.waits = plugins.is_async(call)
        """True if async; plain calls run on a thread."""
        self._thread: _Thread | None = None

    async def __call__(self, *arguments: Any) -> Any:
        """The function's result. Its exceptions propagate unchanged, except an unrequested CancelledError."""
        if self.waits:
            return await self._in_time(self._call(*arguments))
        if self._thread is None:
            self._thread = _Thread()
        request = self._thread.ask(lambda: self._call(*arguments))
        await asyncio.wrap_future(request.started)
        try:
            result = await self._in_time(asyncio.wrap_future(request.ended))
        except OutOfTime:
            self._thread.leave(request)
            raise
        if isinstance(result, _Raised):
            raise result.error
        return await self._in_time(result) if inspect.isawaitable(result) else result

    async def _in_time(self, awaitable: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await awaitable
        except TimeoutError:
            if not limit.expired():
                raise  # raised by the function
            raise OutOfTime(f"did not return within {self._timeout_s:g} s") from None

    async def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        await close(plugins.owner(self._call))


async def close(owner: object) -> None:
    closing_call = getattr(owner, "close", None)
    if closing_call is not None:
        result = closing_call()
        if inspect.isawaitable(result):
            await result


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception as data: a future cannot carry every kind (StopIteration)."""

    error: BaseException


@dataclass(slots=True, eq=False)
class _Request:
    work: Callable[[], Any]
    started: Future[None] = field(default_factory=Future)
    ended: Future[Any] = field(default_factory=Future)


class _Thread:
    """One daemon thread at a time for the calls; abandons a thread stuck in a call."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Request | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._current = self._start()

    def ask(self, work: Callable[[], Any]) -> _Request:
        request = _Request(work)
        self._queue.put(request)
        return request

    def leave(self, request: _Request) -> None:
        """Continue with the next call on a new thread, if the current thread is still in `request`."""
        with self._lock:
            if not request.ended.done():
                self._current = self._start()

    def close(self) -> None:
        with suppress(Empty):
            while True:
                if (waiting := self._queue.get_nowait()) is not None:
                    waiting.started.cancel()
        self._queue.put(None)

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name="reward", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        while (request := self._queue.get()) is not None:
            if not request.started.set_running_or_notify_cancel():
                continue  # the caller gave up before
            request.ended.set_running_or_notify_cancel()  # can't be cancelled from here on
            request.started.set_result(None)
            try:
                result = request.work()
            except BaseException as error:  # noqa: BLE001  raised at the await
                result = _Raised(error)
            with self._lock:
                request.ended.set_result(result)
                if self._current is not threading.current_thread():
                    return  # abandoned meanwhile


# ---- Custom rewards and layers -------------------------------------------------------------------------------


LARGEST = 1e9
"""Maximum magnitude of a grade's numbers: sums and squares of larger ones overflow floats."""
_REASON_CHARS, _MESSAGE_CHARS = 500, 250


@dataclass(frozen=True, slots=True)
class CustomReward:
    """A user's reward as a grader. A breakdown has all metrics of `measure`, if there is a gold, and the user's."""

    name: str
    caller: Caller
    needs_gold: bool = True
    """False: it also grades problems without a gold."""

    async def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        """The function's grade, or an ungraded result with the reason."""
        if not trajectory.outcome.gradable:
            return Grade(None, reason=f"episode ended as {trajectory.outcome}")
        grade = await _call_reward(self.name, self.caller, Grade(0.0), problem, trajectory)
        if grade.value is None:
            return grade
        metrics = measure(trajectory.answer or "", problem.answers, problem.grading) if problem.answers else {}
        return replace(grade, breakdown={**metrics, **grade.breakdown})

    async def close(self) -> None:
        await self.caller.close()


@dataclass(frozen=True, slots=True)
class CustomLayer:
    """A user's layer."""

    name: str
    caller: Caller

    async def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        return await _call_reward(self.name, self.caller, grade, problem, trajectory, grade)

    async def close(self) -> None:
        await self.caller.close()


async def _call_reward(name: str, caller: Caller, below: Grade, *arguments: Any) -> Grade:
    """The returned grade; a bare number becomes `below` with that value."""
    trajectory = arguments[1]
    try:
        result = await caller(*arguments)
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # user code may raise anything
        if being_cancelled():
            raise
        if isinstance(error, OutOfTime):
            return _ungraded(f"{name} {error}, reward.timeout_s")
        return _ungraded(f"{name} raised {plugins.error_text(error):.{_MESSAGE_CHARS}} ({raised_at(error)})")
    try:
        if isinstance(result, Grade) and result.value is None:
            return _ungraded(str(result.reason or f"{name} returned neither a grade nor a reason"))
        grade = result if isinstance(result, Grade) else replace(below, value=result)
        fault = fault_of(grade, trajectory)
        return _ungraded(f"{name} returned {fault}") if fault else _plain(grade)
    except Exception as error:  # noqa: BLE001  a field of a wrong type fails on any use
        return _ungraded(
            f"{name} returned a {type(result).__name__} that palimpsest cannot read: {plugins.error_text(error)}"
        )


def _ungraded(reason: str) -> Grade:
    line = " ".join(reason.split())
    return Grade(None, reason=line[:_REASON_CHARS])


def fault_of(grade: Grade, trajectory: Trajectory) -> str | None:
    """The fault of a grade that should have a value; None if valid.

    >>> from palimpsest.types import Outcome
    >>> fault_of(Grade("yes"), Trajectory("p", "g", 0, (), Outcome.ANSWERED))
    "'yes', not a number: return a finite number, or Grade(None, reason=...)"
    """
    if not isinstance(grade.value, Real):
        return f"{grade.value!r:.60}, not a number: return a finite number, or Grade(None, reason=...)"
    numbers = {"value": grade.value, **{f"breakdown[{key!r}]": value for key, value in grade.breakdown.items()}}
    turns = len(trajectory.turns)
    for name in ("per_turn", "turn_weights"):
        values: Sequence[Any] | None = getattr(grade, name)
        if values is None:
            continue
        if len(values) != turns:
            return f"{len(values)} numbers as {name} for {turns} turns"
        numbers |= {f"{name}[{at}]": value for at, value in enumerate(values)}
    for at, span in enumerate(grade.spans):
        if not all(isinstance(index, int) for index in (span.turn, span.start, span.end)):
            return f"{span} as spans[{at}]: turn, start and end must be whole numbers"
        sampled = len(trajectory.turns[span.turn].completion.token_ids) if 0 <= span.turn < turns else -1
        if not 0 <= span.start <= span.end <= sampled:
            return f"{span} as spans[{at}]: no such tokens in {turns} turns" + (
                f", turn {span.turn} sampled {sampled}" if sampled >= 0 else ""
            )
        numbers[f"spans[{at}].value"] = span.value
    for key, value in numbers.items():
        if not plugins.finite(value):
            return f"{value!r:.60} as {key}: must be finite"
        if abs(value) > LARGEST:
            return f"{value!r:.60} as {key}: must be from {-LARGEST:g} to {LARGEST:g}"
    return None


def _plain(grade: Grade) -> Grade:
    assert grade.value is not None
    return replace(
        grade,
        value=float(grade.value),
        breakdown={key: float(value) for key, value in grade.breakdown.items()},
        per_turn=None if grade.per_turn is None else tuple(map(float, grade.per_turn)),
        turn_weights=None if grade.turn_weights is None else tuple(map(float, grade.turn_weights)),
        spans=tuple(replace(span, value=float(span.value)) for span in grade.spans),
    )
