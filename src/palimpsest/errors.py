"""Errors a user meets. Each message is one line that names the file, key or id, the value and the fix.

The command line prints only the message and exits with 2; any other escaping exception is a bug and keeps its
traceback.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar

T = TypeVar("T")
_UNSAID = object()
_VALUE_CHARS = 80
GOES_ON = "resume the run from its newest checkpoint"
"""Ending of errors about lost processes."""
UNSENDABLE = "the text contains a role marker, which a text prompt can't escape; use an endpoint that takes token ids"


class PalimpsestError(Exception):
    """Base of every error that the user can fix."""


class ConfigError(PalimpsestError):
    """A recipe or an override is wrong: unknown key, value out of range, combination without a meaning.

    >>> error = ConfigError("must be a whole number", key="policy.options.size", value=2.5)
    >>> str(error), str(error.at("--size 2.5:"))
    ('policy.options.size=2.5: must be a whole number', '--size 2.5: must be a whole number')
    >>> str(ConfigError("is missing", key="policy.options.size"))
    'policy.options.size is missing'
    """

    def __init__(self, message: str, *, key: str | None = None, value: object = _UNSAID) -> None:
        """`key`: the wrong dotted key; `value`: its value. The text starts with both."""
        super().__init__(message)
        self.message, self.key, self.value = message, key, None if value is _UNSAID else value
        shown = "" if value is _UNSAID else repr(value)
        shown = f"={shown if len(shown) <= _VALUE_CHARS else shown[:_VALUE_CHARS] + '...'}:" if shown else ""
        self.lead = "" if key is None else f"{key}{shown}"

    def __str__(self) -> str:
        return f"{self.lead} {self.message}".lstrip()

    def at(self, lead: str, key: str | None = None) -> Self:
        """The error under the name that its place has for a caller, such as a command's option."""
        self.lead, self.key = lead, key or self.key
        return self

    def under(self, key: str) -> Self:
        """The same error under the key that set the value."""
        return self.at(key + self.lead.removeprefix(self.key or ""), key)


class DataError(PalimpsestError):
    """A data file is missing, cut short or lacks a column; or a problem breaks a budget."""


class ModelError(PalimpsestError):
    """An unusable model folder: no weights, no tokenizer, or a context shorter than the budgets."""


class RunError(PalimpsestError):
    """An unusable run folder: it exists, another process locks it, or it belongs to another configuration."""


class CheckpointError(PalimpsestError):
    """No checkpoint verifies, or one does not belong to this run."""


class NotWritten(PalimpsestError):
    """A write failed. The caller adds how much space is needed."""


class PromptTooLong(PalimpsestError):
    """A prompt plus its completion budget exceeds the model's context window."""


class EngineError(PalimpsestError):
    """An engine can't start or continue; a resumed run continues from its newest checkpoint."""


class ProcessesLost(EngineError):
    """Processes of an engine ended or timed out: training restarts automatically, `cluster.max_restarts` times."""


class SamplerError(PalimpsestError):
    """The sampler could not complete a request; the episode ends as `Outcome.SAMPLER_FAILED`."""


class SearchError(PalimpsestError):
    """A search service is unreachable, or its reply is invalid."""


class JudgeError(PalimpsestError):
    """A judge is unreachable, or returned no verdict; its answers stay ungraded."""


class Interrupted(SystemExit):
    """A signal ended a command: no error. The exit status is 128 and the signal's number, as of a process it killed."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number
        self.again = "run the same command to start over"
        """Advice for resuming; callers may replace it."""


def being_cancelled() -> bool:
    """Return whether the running task is being cancelled; if not, foreign code raised the CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def deciding(error: BaseException) -> BaseException:
    """Return the error that decides how a task ended: in an exception group a lost engine, otherwise the first error.

    >>> deciding(ExceptionGroup("", [ValueError(1), ExceptionGroup("", [KeyError(2), EngineError(3)])]))
    EngineError(3)
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    errors = [deciding(one) for one in error.exceptions]
    chosen = next((one for one in errors if isinstance(one, EngineError)), errors[0])
    return chosen if chosen.__traceback__ else chosen.with_traceback(error.__traceback__)  # only its group was raised


async def closed_after(work: Awaitable[T], close: Callable[[], Awaitable[None]], what: str) -> T:
    """Do `work`, then close its resource, called `what` in messages.

    If both fail, raises the error of `work`, with the other as a note.
    """
    try:
        done = await work
    except BaseException as error:
        try:
            await close()
        except Exception as second:  # noqa: BLE001  a border: whatever it is, the first error matters more
            error.add_note(f"closing {what} failed, too: {type(second).__name__}: {second}")
        raise
    await close()
    return done


def first_line(error: BaseException) -> str:
    """First line of an error's text; its class if it has no text.

    >>> first_line(OSError(" no room\\nat all")), first_line(EOFError())
    ('no room', 'EOFError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def raised_at(error: BaseException) -> str:
    """FILE:LINE of an error: the innermost line outside this package and installed ones, otherwise the innermost.
    Stores the traceback for `take_tracebacks`."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    user_frames = [frame for frame in frames if not _is_installed(frame.filename)]
    where = f"{(user_frames or frames)[-1].filename}:{(user_frames or frames)[-1].lineno}"
    if where not in _tracebacks and len(_tracebacks) < _MOST_TRACEBACKS:
        text = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
        _tracebacks[where] = text[-_TRACEBACK_CHARS:]
    return where


def take_tracebacks() -> dict[str, str]:
    """The tracebacks of errors in users' code since the last call, the first of each FILE:LINE."""
    taken = dict(_tracebacks)
    _tracebacks.clear()
    return taken


def _is_installed(file: str) -> bool:
    return file.startswith((*_OURS, "<frozen")) or bool({"site-packages", "dist-packages"} & {*Path(file).parts})


_OURS = tuple(f"{Path(module).parent}{os.sep}" for module in (__file__, os.__file__))
_MOST_TRACEBACKS, _TRACEBACK_CHARS = 16, 8000
_tracebacks: dict[str, str] = {}


_MOST_NAMES = 1000
_MOST_SHOWN = 40


def shown_names(names: Collection[object], most: int = _MOST_SHOWN) -> str:
    """Names for an error message, of very many the first.

    >>> shown_names(["q", "gold"]), shown_names(range(1000))[-19:]
    ('q, gold', '38, 39 and 960 more')
    """
    first = ", ".join(map(str, islice(names, most)))
    return first if len(names) <= most else f"{first} and {len(names) - most:,} more"


def nearest(name: str, names: Iterable[str]) -> str:
    """Hint with the known name closest to `name`, or "". Searches only the first of very many names.

    >>> nearest("learning_rte", ["learning_rate", "seed"])
    '; did you mean learning_rate?'
    >>> nearest("zzz", ["learning_rate", "seed"])
    ''
    """
    matches = difflib.get_close_matches(name, list(islice(names, _MOST_NAMES)), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""
