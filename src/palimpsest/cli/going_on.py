"""How a command that a signal ended goes on, in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from palimpsest.errors import Interrupted

BEGIN, RERUN = "the same command begins again", "the same command goes on"
NOT_BEGUN = f"nothing was begun; {BEGIN}"


@contextmanager
def going_on(again: Callable[[], str]) -> Iterator[None]:
    """Have `again` say how to go on if a signal ends what is done in here."""
    try:
        yield
    except Interrupted as end:
        end.again = again()
        raise


def resumed(run: Path, *, force: bool) -> Callable[[], str]:
    """Of a command that writes a run folder: with --resume, if there is a run, and with `force` one of this process."""

    def again() -> str:
        from palimpsest.runs.origin import EVENTS, how_to_resume
        from palimpsest.runs.rows import read_rows

        rows = read_rows(run / EVENTS)
        own = any(row.get("pid") == os.getpid() for row in rows)
        return how_to_resume(run) if own or (rows and not force) else NOT_BEGUN

    return again
