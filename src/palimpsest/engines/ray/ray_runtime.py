"""Ray processes on this machine, and results of remote calls with a time limit.

Guaranteed: Ray writes nothing to standard output; its messages are one-line warnings, also in the run's events.jsonl.
If a process that Ray needs ends, the run reports it within seconds. A cluster that palimpsest starts listens on
loopback, or a warning says so. After the first failure, all callers get that failure, in any thread.
Not covered: a cluster that others started; the output of Ray's compiled part as it ends the process.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import platform
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
import ray._private.ray_constants as constants
import ray._private.worker as rays
from ray._private import services
from ray.exceptions import RayError, RayTaskError

from palimpsest.engines import process_guard
from palimpsest.engines.process_guard import GuardedFolder, memory_folder
from palimpsest.errors import GOES_ON, PalimpsestError, ProcessesLost, RunError, SamplerError, first_line

# ---- Results with a time limit -------------------------------------------------------------------------------


LOOK_S = 0.5  # between two checks for lost processes
_SETTLE_S = 10.0  # until all waiting callers have returned
COMPILING = 3
"""Further time limits of ranks on GPUs: they compile a dozen kernels of attention up to their first update, and no rank
waits for another's compiler for longer than that."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Time limit of an answer."""

    key: str
    seconds: float
    """Its value."""
    times: int = 1
    """Number of times that ranks wait for each other."""

    def passed(self, what: str) -> str:
        """
        >>> Limit("cluster.timeout_s", 600.0, 3).passed("update")
        'update: not done within 1800 s; raise cluster.timeout_s=600'
        """
        return f"{what}: not done within {self.seconds * self.times:g} s; raise {self.key}={self.seconds:g}"


class Late(ProcessesLost):
    """No result within the time limit."""


class GroupResults:
    """Results of the processes of one group."""

    def __init__(self) -> None:
        self._first: PalimpsestError | None = None
        self._changed = threading.Condition()
        self._waiting = 0

    def of(self, calls: Sequence[Any], limit: Limit, what: str) -> list[Any]:
        """Results in the order of `calls`. Raises RayError, Late, or the error of `failed`."""
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
                    raise Late(limit.passed(what))
            return list(ray.get(list(calls)))

    def check(self) -> None:
        """Raise the first failure, if any."""
        if self._first is not None:
            raise again(self._first) from self._first.__cause__

    def failed(self, error: BaseException, what: str) -> PalimpsestError:
        """Record a failure of `what`; return the first one, to be raised."""
        with self._changed:
            if self._first is None:
                self._first = _user_error(error, what)
            return again(self._first)

    def settle(self) -> None:
        """Wait, for a limited time, until no caller waits for results: none may while Ray shuts down."""
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
    """Copy of an error: one raised in two threads would collect both tracebacks."""
    other = type(error)(*error.args)
    other.__cause__ = error.__cause__
    return other


def _user_error(error: BaseException, what: str) -> PalimpsestError:
    """Error for the user: the original if the user can fix it, otherwise ProcessesLost."""
    cause = cause_of(error)
    if isinstance(cause, PalimpsestError):
        return again(cause)
    key = "; raise cluster.timeout_s if ranks were only slow" if "timed out" in str(cause).lower() else ""
    lost = ProcessesLost(f"{what}: engine.name=ray lost a process ({line_of(cause)}){key}; {GOES_ON}")
    lost.__cause__ = error if isinstance(error, RayError) else None
    return lost


def cause_of(error: BaseException) -> BaseException:
    """The error that an actor raised, or Ray's own."""
    return error.cause if isinstance(error, RayTaskError) else error


def line_of(error: BaseException) -> str:
    """Class and first line."""
    return f"{type(error).__name__}: {first_line(error)}"[:300]


# ---- Ray processes and messages ------------------------------------------------------------------------------


NEEDED = ("gcs_server", "raylet")
PRINTS = "print_to_stdstream"
"""A private function of Ray: `log_to_driver=False` silences only the workers."""
TRIES = "RAY_gcs_server_port_wait_time_s"
"""Seconds for the head to start; number of attempts when joining one."""
_TOLD = 200  # characters of Ray's output


@contextmanager
def prints_as_warnings() -> Iterator[None]:
    """Turn Ray's own output into warnings."""
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
    """Start Ray on 127.0.0.1 only, as on macOS: on Linux, Ray replaces a given loopback address otherwise."""
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


def set_gloo_interface(address: str) -> None:
    """Let Gloo connect ranks by the interface of this machine's `address`, unless the user has set another: it would
    take the address of the host's name, often 127.0.1.1. NCCL searches better, and may use several interfaces."""
    named = {at.address: name for name, addresses in psutil.net_if_addrs().items() for at in addresses}
    if address in named:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", named[address])


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    """Let Ray wait `seconds`, not 30, for its head and its node."""
    look: Any = services.get_node
    until = time.monotonic() + seconds

    def get_node(*arguments: Any) -> Any:
        while True:
            try:
                return look(*arguments)
            except RuntimeError:  # Ray's text for a node that hasn't started yet
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
    """Set the environment variable `name` temporarily."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def needed_of(mark: str) -> set[psutil.Process]:
    """Processes that Ray needs, in a cluster started with the mark."""
    processes = set()
    for process in process_guard.marked(mark):
        with suppress(psutil.Error):
            if process.name() in NEEDED:
                processes.add(process)
    return processes


def watch(processes: Collection[psutil.Process], ended: threading.Event, lost: Callable[[str], None]) -> None:
    """Check until `ended` that all `processes` are alive; otherwise call `lost` once with the name of a dead one."""
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


# ---- Weights on a machine ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """Weights that a rank wrote on its machine."""

    node: str
    """Ray's name of the machine."""
    folder: Path
    files: Mapping[str, int]
    """Bytes of each file."""


def folder_of_weights(parent: str | None) -> GuardedFolder:
    """New folder in `parent`, that is sampler.folder. Raises RunError if this machine lacks it, SamplerError if it is
    full."""
    try:
        return GuardedFolder(Path(parent or memory_folder()) / f"palimpsest-{secrets.token_hex(4)}")
    except OSError as error:
        where = f"sampler.folder={parent}: {platform.node()}: {error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SamplerError(f"{where}; free some room") from None
        raise RunError(f"{where}; create the folder there, or set sampler.folder=null") from None
