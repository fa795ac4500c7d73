"""Ray's own processes on this machine, and what it says by itself.

Guaranteed: nothing that Ray has to tell is on the standard output, which is palimpsest's; it is a warning of a line,
which the run's events.jsonl has, too. That one of the processes ended which Ray can't do without shows within seconds.
Not covered: a cluster that others started; what Ray's compiled part writes as it ends the process.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import ray._private.worker as rays

from palimpsest.engines import guard
from palimpsest.engines.scale.answers import LOOK_S

NEEDED = ("gcs_server", "raylet")
PRINTS = "print_to_stdstream"
"""A function of Ray's. There is no public way: `log_to_driver=False` is about output of workers alone."""
_TOLD = 200  # characters of what Ray says


@contextmanager
def said_as_warnings() -> Iterator[None]:
    """While this lasts, what Ray prints by itself is a warning."""
    prints = getattr(rays, PRINTS)
    setattr(rays, PRINTS, _warn)
    try:
        yield
    finally:
        setattr(rays, PRINTS, prints)


def _warn(data: Mapping[str, Any], *_: object, **__: object) -> None:
    for message in data["lines"]:
        told = next(filter(None, map(str.strip, message.splitlines())), "")
        warnings.warn(f"Ray: {told:.{_TOLD}}", stacklevel=2)


def needed_of(mark: str) -> set[psutil.Process]:
    """Those that Ray can't do without, of a cluster that was started with the mark."""
    found = set()
    for process in guard.marked(mark):
        with suppress(psutil.Error):
            if process.name() in NEEDED:
                found.add(process)
    return found


def watch(processes: Collection[psutil.Process], ended: threading.Event, lost: Callable[[str], None]) -> None:
    """Until `ended`, look whether all of `processes` are there; `lost` is told, once, the name of one that isn't."""
    names = {process: process.name() for process in processes}

    def look() -> None:
        while not ended.wait(LOOK_S):
            gone = [name for process, name in names.items() if not _runs(process)]
            if gone and not ended.is_set():
                lost(gone[0])
                return

    if names:
        threading.Thread(target=look, name="palimpsest-watch", daemon=True).start()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
