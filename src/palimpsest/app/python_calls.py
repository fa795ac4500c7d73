"""Calls from Python: blocking calls of coroutines, and tables of results.

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
import html
import importlib
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, Self, TypeVar, overload

from palimpsest.config.keys import dotted_keys, nearest_key
from palimpsest.config.other_names import OTHER_NAMES
from palimpsest.errors import ConfigError, nearest
from palimpsest.progress.displays import Terminal
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.signals import GracefulStop, Interrupts
from palimpsest.text.display_text import counted

P = ParamSpec("P")
T = TypeVar("T")


def check_arguments(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError, under the called name, for arguments that the function does not take."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = next((key for key in kwargs if key not in signature.parameters), "")
        near = nearest(unknown, signature.parameters) if unknown else ""
        keys = {key.rpartition(".")[2] for key in dotted_keys()} | OTHER_NAMES.keys()
        if "overrides" in signature.parameters and unknown in keys:
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


_OBJECTS = 100_000
"""Allocations between two garbage collections; Python's default is 700."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely: episodes are millions of numbers, which each collection would scan."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


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


# ---- Tables --------------------------------------------------------------------------------------------------


_SHOWN = 40  # rows of a long table, from both ends
_WIDE = 16  # columns, at most, without `main`


@dataclass(frozen=True)
class Table(Sequence[Mapping[str, Any]]):
    """Rows as mappings from column to value; a column missing from a row is empty.

    >>> table = Table(("name", "accuracy"), ({"name": "short", "accuracy": 0.75}, {"name": "long"}))
    >>> table
    name   accuracy
    short     0.750
    long
    >>> table.column("accuracy")
    [0.75, None]
    """

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    main: tuple[str, ...] = ()
    """Shown columns of a wide table."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], main: tuple[str, ...] = ()) -> Self:
        """A table with the columns of all rows, in order of first occurrence."""
        return cls(tuple(dict.fromkeys(name for row in rows for name in row)), tuple(rows), main)

    def column(self, name: str) -> list[Any]:
        """[rows] values of a column, None if missing. Raises KeyError for an unknown column."""
        if name not in self.columns:
            raise KeyError(f"no column {name}; choose from {', '.join(self.columns)}")
        return [row.get(name) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Self:
        return type(self)(self.columns, self.rows[index], self.main) if isinstance(index, slice) else self.rows[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the same columns. Raises ConfigError without pandas."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ConfigError("to_pandas() needs the package pandas: pip install pandas") from None
        return pandas.DataFrame([dict(row) for row in self.rows], columns=list(self.columns))

    @property
    def shown(self) -> tuple[str, ...]:
        """Columns in its text and HTML: of a wide table, those in `main` or the first."""
        if len(self.columns) <= _WIDE:
            return self.columns
        return tuple(name for name in self.main if name in self.columns) or self.columns[:_WIDE]

    def __repr__(self) -> str:
        cells = [list(self.shown), *self._shown()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.shown))]
        lines = [
            "  ".join(_padded(cell, width, i > 0) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
            for row in cells
        ]
        return "\n".join([*(line.rstrip() for line in lines), *self._note()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.shown)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self._shown())
        note = "".join(f"<p>{html.escape(line)}</p>" for line in self._note())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    def _note(self) -> list[str]:
        hidden = len(self.columns) - len(self.shown)
        return [f"{counted(hidden, 'more column')}: table.columns names them"] if hidden else []

    def _shown(self) -> list[list[str]]:
        rows = [[_text(row.get(name)) for name in self.shown] for row in self.rows]
        if len(rows) <= _SHOWN:
            return rows
        return [*rows[: _SHOWN // 2], ["..."] * len(self.shown), *rows[-_SHOWN // 2 :]]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return "".join(c if c.isprintable() else " " for c in text)


def _padded(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


# ---- Progress display ----------------------------------------------------------------------------------------


def suitable_progress(*, quiet: bool = False) -> Progress:
    """The notebook's display in a notebook kernel, otherwise the terminal's; none if quiet."""
    if quiet:
        return Silent()
    if in_notebook():
        from palimpsest.progress.notebook import Notebook  # imports IPython, which only kernels have

        return Notebook()
    return Terminal()


def in_notebook() -> bool:
    """Whether this process is a notebook kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
