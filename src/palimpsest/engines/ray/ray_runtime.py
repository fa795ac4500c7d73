"""Ray processes on this machine, and results of remote calls with a time limit.

Guaranteed: Ray writes nothing to standard output, which is palimpsest's; its messages are one-line warnings, also in
the run's events.jsonl. If a process ends that Ray needs, the run reports it within seconds. A cluster that palimpsest
starts listens on loopback, or a warning says so. After the first failure, every caller gets that failure, in any
thread, whether it waits already or asks later.
Not covered: a cluster that others started; what Ray's compiled part writes as it ends the process.
"""

from __future__ import annotations

import ipaddress
import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
import ray
import ray._private.ray_constants as constants
import ray._private.worker as rays
from ray._private import services
from ray.exceptions import RayError, RayTaskError

from palimpsest.engines import process_guard
from palimpsest.errors import GOES_ON, PalimpsestError, ProcessesLost

# ---- Results with a time limit -------------------------------------------------------------------------------


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
        >>> Limit("timeout_s", 600.0, 3).passed("update")
        'update: not done within 1800 s; raise cluster.timeout_s=600'
        """
        return f"{what}: not done within {self.seconds * self.times:g} s; raise cluster.{self.key}={self.seconds:g}"


class GroupResults:
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
                self._first = _user_error(error, what)
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


def _user_error(error: BaseException, what: str) -> PalimpsestError:
    """What the user is told: what was raised if the user can mend it, ProcessesLost otherwise."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, PalimpsestError):
        return again(cause)
    key = "; raise cluster.timeout_s if ranks only were slow" if "timed out" in str(cause).lower() else ""
    lost = ProcessesLost(f"{what}: a process of engine.name=ray was lost ({line_of(cause)}){key}; {GOES_ON}")
    lost.__cause__ = error if isinstance(error, RayError) else None
    return lost


def line_of(error: BaseException) -> str:
    """Class and first line."""
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0]}"[:300]


# ---- Ray processes and messages ------------------------------------------------------------------------------


NEEDED = ("gcs_server", "raylet")
PRINTS = "print_to_stdstream"
"""A function of Ray's. There is no public way: `log_to_driver=False` is about output of workers alone."""
TRIES = "RAY_gcs_server_port_wait_time_s"
"""Seconds for the head to start; where one is joined, how often Ray asks it for itself."""
_TOLD = 200  # characters of what Ray says


@contextmanager
def prints_as_warnings() -> Iterator[None]:
    """While this lasts, what Ray prints by itself is a warning."""
    prints = getattr(rays, PRINTS)
    setattr(rays, PRINTS, _warn)
    try:
        yield
    finally:
        setattr(rays, PRINTS, prints)


def _warn(data: Mapping[str, Any], *_: object, **__: object) -> None:
    for message in data["lines"]:
        line = next(filter(None, map(str.strip, message.splitlines())), "")
        warnings.warn(f"Ray: {line:.{_TOLD}}", stacklevel=2)


@contextmanager
def on_loopback() -> Iterator[None]:
    """While this lasts, Ray starts for this machine alone, as it does by default on macOS: its own processes, workers
    and this process then listen on 127.0.0.1. On Linux Ray replaces a loopback address that it is given otherwise."""
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def open_sockets(processes: Iterable[psutil.Process]) -> list[str]:
    """`NAME at ADDRESS:PORT` for each socket of `processes` that listens on more than loopback."""
    sockets = []
    for process in processes:
        with suppress(psutil.Error):
            listening = [conn.laddr for conn in process.net_connections("inet") if conn.status == psutil.CONN_LISTEN]
            sockets += [f"{process.name()} at {at.ip}:{at.port}" for at in listening if not _is_loopback(at.ip)]
    return sockets


def _is_loopback(ip: str) -> bool:
    address = ipaddress.ip_address(ip)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    """While this lasts, Ray's own waits for its head and its node are of `seconds`, not 30."""
    look: Any = services.get_node
    until = time.monotonic() + seconds

    def get_node(*arguments: Any) -> Any:
        while True:
            try:
                return look(*arguments)
            except RuntimeError:  # Ray's word for a node that isn't there yet
                if time.monotonic() > until:
                    raise
                time.sleep(LOOK_S)

    services.get_node = get_node
    try:
        with environment(TRIES, str(max(1, int(seconds)))):
            yield
    finally:
        services.get_node = look


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """While this lasts, the variable `name` has this value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def needed_of(mark: str) -> set[psutil.Process]:
    """Those that Ray can't do without, of a cluster that was started with the mark."""
    processes = set()
    for process in process_guard.marked(mark):
        with suppress(psutil.Error):
            if process.name() in NEEDED:
                processes.add(process)
    return processes


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
