"""Calls from Python: coroutines run to their end, rows that draw themselves.

    no loop here     the work runs on a loop of its own, in this thread
    a loop here      the work runs on a loop of its own in another thread, and this thread waits

Guaranteed: an interrupt in a notebook's cell ends a run after the step it is at, with a checkpoint; a second one, or
an interrupt of anything else, cancels the work where it waits next and raises KeyboardInterrupt.
Not covered: a loop that runs here stands still until the call returns; to let it go on, await the coroutine itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
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

from palimpsest.errors import ConfigError, nearest
from palimpsest.progress.displays import Terminal
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.signals import GracefulStop, Interrupts

P = ParamSpec("P")
T = TypeVar("T")


def check_arguments(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError, under the name that was called, for arguments that the function doesn't take."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = next((key for key in kwargs if key not in signature.parameters), "")
        near = nearest(unknown, signature.parameters) if unknown else ""
        raise TypeError(f"palimpsest.{name}(): {error}{near}") from None


# ---- Ordinary calls of coroutines, whether or not an event loop runs in the calling thread (a notebook has one)


def blocking(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """`work` as an ordinary call of the same signature; its name loses `_async`.

    A coroutine with a parameter `stop` is given one that interrupts are told.
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
    """What `work` returns or raises; called from a thread with a running loop too."""
    if _loop_runs_here():
        return _in_thread(work, stop or GracefulStop())
    interrupts = Interrupts.installed()  # by a command; a script has Python's own
    return asyncio.run(work()) if interrupts is None else interrupts.run(work)


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(work: Callable[[], Coroutine[Any, Any, T]], stop: GracefulStop) -> T:
    outcome: Future[T] = Future()
    started: Future[Callable[[], object]] = Future()  # how to cancel it

    async def cancellable() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        started.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work()

    def body() -> None:
        try:
            outcome.set_result(asyncio.run(cancellable()))
        except BaseException as error:  # noqa: BLE001  raised again by whoever waits
            outcome.set_exception(error)

    context = contextvars.copy_context()  # a notebook shows what this thread prints below the right cell by it
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
    """Ctrl-C raises KeyboardInterrupt in this thread: a running loop would keep it for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---- Rows with named columns, as what a call returns ---------------------------------------------------------


_SHOWN = 40  # rows of a long table: so many in all, from both ends
_WIDE = 16  # columns of a table that is shown whole


@dataclass(frozen=True)
class Table(Sequence[Mapping[str, Any]]):
    """Rows as mappings from column to value; a column that a row lacks is empty there.

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
    """Columns that are shown of a wide table."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], main: tuple[str, ...] = ()) -> Self:
        """With every column that some row has, in the order they first come."""
        return cls(tuple(dict.fromkeys(name for row in rows for name in row)), tuple(rows), main)

    def column(self, name: str) -> list[Any]:
        """[rows] values of a column, None where there is none. Raises KeyError for an unknown one."""
        if name not in self.columns:
            raise KeyError(f"no column {name}; there are {', '.join(self.columns)}")
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
        """A `pandas.DataFrame` with the same columns. Raises ConfigError where pandas isn't installed."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ConfigError("to_pandas() needs the package pandas: pip install pandas") from None
        return pandas.DataFrame([dict(row) for row in self.rows], columns=list(self.columns))

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that its text and its HTML have: of a wide table the first and those named in `main`."""
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
        """What a notebook shows."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.shown)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self._shown())
        note = "".join(f"<p>{html.escape(line)}</p>" for line in self._note())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    def _note(self) -> list[str]:
        hidden = len(self.columns) - len(self.shown)
        return [f"{hidden} more columns: table.columns names them"] if hidden else []

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


# ---- The display for where this process runs -----------------------------------------------------------------


def suitable_progress(*, quiet: bool = False) -> Progress:
    """A notebook's display in a notebook's kernel, else the terminal's; none where it is to be quiet."""
    if quiet:
        return Silent()
    if in_notebook():
        from palimpsest.progress.notebook import Notebook  # imports IPython, which is there in a kernel alone

        return Notebook()
    return Terminal()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
