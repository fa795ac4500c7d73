"""Calls from Python: blocking calls of coroutines, with suitable progress.

    no loop here     the work runs on a new loop, in this thread
    a loop here      the work runs on a new loop in another thread, and this thread waits

Guaranteed: an interrupt in a notebook's cell ends a run after its current step, with a checkpoint; a second one, or an
interrupt of any other call, cancels the work at its next await and raises KeyboardInterrupt.
Not covered: a running loop blocks until the call returns; await the coroutine to avoid that.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from palimpsest.config.keys import is_key_name, nearest_key
from palimpsest.errors import nearest
from palimpsest.progress.displays import Notebook, Terminal
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.signals import GracefulStop, Interrupts

P = ParamSpec("P")
T = TypeVar("T")


def check_arguments(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError, under the called name, for arguments that the function does not take."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = next((key for key in kwargs if key not in signature.parameters), "")
        near = nearest(unknown, signature.parameters) if unknown else ""
        if "overrides" in signature.parameters and is_key_name(unknown):
            near = f"{nearest_key(unknown)} Pass it in overrides={{KEY: VALUE}}"
        raise TypeError(f"palimpsest.{name}(): {error}{near}") from None


# ---- Blocking calls of coroutines, also with a running event loop, as in a notebook --------------------------


def blocking(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """`work` as an ordinary call of the same signature; its name loses `_async`.

    A coroutine with a parameter `stop` gets one that interrupts request.
    """
    signature, name = inspect.signature(work), work.__name__.removesuffix("_async")
    stoppable = "stop" in signature.parameters

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(name, signature, args, kwargs)
        stop = GracefulStop()
        if stoppable:
            stop = kwargs["stop"] = kwargs.get("stop") or stop  # type: ignore[assignment]
        return finish(lambda: work(*args, **kwargs), stop)

    call.__name__ = name
    call.__qualname__ = work.__qualname__.removesuffix("_async")
    return call


def finish(work: Callable[[], Coroutine[Any, Any, T]], stop: GracefulStop | None = None) -> T:
    """Run `work` and return its result, also from a thread with a running loop."""
    with rare_collections():
        if _loop_runs_here():
            return _in_thread(work, stop or GracefulStop())
        interrupts = Interrupts.installed()  # only a command installs them
        return asyncio.run(work()) if interrupts is None else interrupts.run(work)


class _RareCollections:
    """Collects garbage rarely while a call runs: episodes are millions of numbers, which each collection would scan.

    Calls may be nested or overlap in threads: the first sets the threshold, the last restores it.
    """

    objects = 100_000
    """Allocations between two garbage collections; Python's default is 700."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._before = gc.get_threshold()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._calls:
                self._before = gc.get_threshold()
                gc.freeze()
                gc.set_threshold(self.objects, *self._before[1:])
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    gc.set_threshold(*self._before)
                    gc.unfreeze()


rare_collections = _RareCollections()


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(work: Callable[[], Coroutine[Any, Any, T]], stop: GracefulStop) -> T:
    outcome: Future[T] = Future()
    started: Future[Callable[[], object]] = Future()  # cancels the task

    async def cancellable() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        started.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work()

    def body() -> None:
        try:
            outcome.set_result(asyncio.run(cancellable()))
        except BaseException as error:  # noqa: BLE001  the waiting thread raises it again
            outcome.set_exception(error)

    context = contextvars.copy_context()  # shows this thread's prints below the right notebook cell
    thread = threading.Thread(target=context.run, args=(body,), name="palimpsest", daemon=True)
    with _interrupts():
        thread.start()
        return _wait(outcome, started, thread, stop)


def _wait(outcome: Future[T], started: Future[Callable[[], object]], thread: threading.Thread, stop: GracefulStop) -> T:
    while True:
        try:
            return outcome.result()
        except KeyboardInterrupt:
            if outcome.done():
                raise
            if stop.watched and not stop.requested:
                stop.request("interrupt")
                continue
            started.result()()
            thread.join()
            raise
        except CancelledError:
            raise KeyboardInterrupt from None


@contextmanager
def _interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C in this thread, even with a running loop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---- Progress display ----------------------------------------------------------------------------------------


def suitable_progress(*, quiet: bool = False) -> Progress:
    """The notebook's display in a notebook kernel, otherwise the terminal's; none if quiet."""
    if quiet:
        return Silent()
    return Notebook() if in_notebook() else Terminal()


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
