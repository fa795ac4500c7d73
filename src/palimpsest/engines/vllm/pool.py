"""Pool of a run's servers: routes requests, drops failed servers and loads new weights.

    admitted ---> the server of the request's group, or the least busy one
    load_weights ---> every server: pause, load, empty the prefix cache, set the version and read it back, resume, and
                      match the learner's scores of some ids
    sleep ---> every server: free its GPU until `load_weights`, which wakes it in place of the pause

Guaranteed: requests go only to servers with the weights published last; `load_weights` returns once every live server
has the new ones, and raises if there is none. A server that ends, fails or doesn't answer gets no request until the
next publication loads or starts it again, or immediately if no other is left. No publication waits for a start while
another server has the weights: a started server joins immediately if its weights are still the published ones,
otherwise at the next publication. Requests wait while servers sleep; a server that ends meanwhile starts again with the
next publication.
"""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Protocol

from palimpsest.config.engine import LogprobsMode, SamplerConfig
from palimpsest.engines.vllm.client import Probe, Scored, ServerFailed, VllmClient, is_tied
from palimpsest.errors import SamplerError

# ---- One server of the pool: its weights and time limits -----------------------------------------------------


class Process(Protocol):
    """The process of one server: `ServerProcess`, or one on another machine. Its methods may block."""

    @property
    def running(self) -> bool: ...

    def start(self, model: Path) -> VllmClient: ...

    def stop(self) -> None: ...

    def check(self) -> None: ...


@dataclass(eq=False)
class Member:
    """One server."""

    client: VllmClient | None
    """None: not started yet."""
    process: Process | None
    """None: the user started it."""
    sound: bool = False
    """True if it has the weights published last."""
    scored: Scored | None = None
    """The previous probe and its scores."""
    reason: str = "no weights are published yet"
    """Reason of its failure."""
    started: bool = False
    """True if its process has answered with its initial weights and has not failed since."""
    starting: asyncio.Task[None] | None = None
    """Task that starts its process; may be done."""
    starts_on: Path | None = None
    """Weights that `starting` reads."""
    asleep: bool = False
    """True if it has neither weights nor a cache until it loads some."""
    in_flight: int = 0
    _busy_s: float = field(default=0.0, init=False)
    """Up to `_since`."""
    _since: float = field(default=0.0, init=False)

    @property
    def usable(self) -> bool:
        return self.sound and (self.process is None or self.process.running)

    @property
    def up(self) -> bool:
        """True if it can load new weights without a start."""
        return self.sound if self.process is None else self.started and self.process.running

    @property
    def busy_s(self) -> float:
        """Seconds with at least one request in flight."""
        return self._busy_s + (perf_counter() - self._since if self.in_flight else 0.0)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Count one request as in flight."""
        if not self.in_flight:
            self._since = perf_counter()
        self.in_flight += 1
        try:
            yield
        finally:
            self._busy_s, self._since = self.busy_s, perf_counter()
            self.in_flight -= 1


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    folder: Path
    version: int
    tag: str
    """Version string for servers: unique per run, as a server may have served another run."""
    probe: Probe | None
    final: bool = False
    """True if no others follow."""


class time_limit:
    """`asyncio.timeout` that raises a failure of the server `name`; `key` of `sampler` contains the seconds."""

    def __init__(self, seconds: float, name: str, key: str | None = None) -> None:
        fix = "" if key is None else f"; raise sampler.{key}"
        self._timeout, self._message = asyncio.timeout(seconds), f"{name}: no answer within {seconds:g} s{fix}"

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._timeout.__aexit__(*error)  # type: ignore[arg-type]
        except TimeoutError:
            raise ServerFailed(self._message) from None


# ---- The servers of a run ------------------------------------------------------------------------------------


_LOOK_S = 60.0  # for a server's health answer: it may lack CPU time, and a start takes as long
_POLL_S = 0.2  # between two checks of a starting server


class Pool:
    """Servers start when weights are first published."""

    def __init__(self, members: Iterable[Member], settings: SamplerConfig, *, mode: LogprobsMode, window: int) -> None:
        """`window`: required tokens of each server."""
        self._members = list(members)
        self._settings, self._mode, self._window = settings, mode, window
        self._homes: dict[str, Member] = {}
        """Server that has the prefix of each group."""
        self.published: PublishedWeights | None = None
        self._run = secrets.token_hex(4)
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Requests that wait for room."""
        self._lock = asyncio.Lock()
        """Held while servers start or load."""
        self._asleep = False
        """True from `sleep` to `load_weights`."""
        self._attempts = 0
        """Task that restarts ended servers."""

    def __len__(self) -> int:
        return len(self._members)

    @property
    def busy_s(self) -> float:
        """Seconds with a request in flight, summed over the servers."""
        return sum(member.busy_s for member in self._members)

    @property
    def usable(self) -> bool:
        return any(member.usable for member in self._members)

    @property
    def reading(self) -> set[Path]:
        """Folders of the servers that are starting."""
        starting = [member for member in self._members if member.starting is not None and not member.starting.done()]
        return {member.starts_on for member in starting if member.starts_on is not None}

    # ---- which server ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def admitted(self, group: str | None) -> AsyncIterator[tuple[VllmClient, str]]:
        """Server with room for one request, and its version string. Raises SamplerError if none is left."""
        member = await self._next(group)
        published, client = self.published, member.client
        assert published is not None
        assert client is not None
        try:
            with member.serving():
                try:
                    yield client, published.tag
                except ServerFailed as error:
                    await self._look_at(member, client, published.tag, error)
                    raise
        finally:
            self._wake(1)

    async def _next(self, group: str | None) -> Member:
        """Server with room. If none is left, all waiting requests share one attempt to restart servers."""
        attempts = self._attempts
        while True:
            if not self._waits and not self.usable:
                if attempts < self._attempts:
                    raise SamplerError(self._why())
                await self._revive()
            if not self._waits and (member := self._choose(group)) is not None:
                return member
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                self._wake(1 if waiting.done() and not waiting.cancelled() else 0)
                raise

    def _wake(self, most: int | None = None) -> None:
        """Wake `most` waiting requests, or all; each looks for a server again, in about 10 us."""
        while self._waiting and most != 0:
            if not (waiting := self._waiting.popleft()).done():
                waiting.set_result(None)
                most = None if most is None else most - 1

    @property
    def _waits(self) -> bool:
        return self._asleep or self._lock.locked()

    def _choose(self, group: str | None) -> Member | None:
        """Server of `group` (new group: the one with fewest groups), or the least busy; None: all are full."""
        usable = [member for member in self._members if member.usable]
        if not usable:
            return None
        home = self._homes.get(group or "")
        if group and home not in usable:
            groups = Counter(self._homes.values())
            home = self._homes[group] = min(usable, key=lambda member: groups[member])
        if home is not None and home.in_flight < self._settings.max_in_flight:
            return home
        idlest = min(usable, key=lambda member: member.in_flight)
        return idlest if idlest.in_flight < self._settings.max_in_flight else None

    async def _look_at(self, member: Member, client: VllmClient, tag: str, error: ServerFailed) -> None:
        try:
            async with time_limit(_LOOK_S, client.name):
                await client.check_health()
                await client.check_version(tag)
        except SamplerError as failure:
            same = self.published is not None and self.published.tag == tag and member.client is client
            if same and member.sound and not self._lock.locked():  # no other task handled it meanwhile
                self._leave(member, f"{error}; {failure}")

    def _leave(self, member: Member, reason: str) -> None:
        member.sound, member.started, member.reason = False, False, reason
        at = "" if self.published is None else f" (weights of version {self.published.version})"
        warnings.warn(f"a server leaves the pool: {reason}{at}", stacklevel=2)  # Python shows the same text but once

    # ---- weights --------------------------------------------------------------------------------------------

    async def load_weights(self, folder: Path, version: int, probe: Probe | None, *, final: bool = False) -> None:
        try:
            async with self._lock:
                tag = f"{self._run}-{version}-{folder.name}"
                self.published = PublishedWeights(folder.resolve(), version, tag, probe, final)
                self._homes.clear()
                await self._bring_up()
        finally:
            self._asleep = False
            self._wake()

    async def sleep(self) -> None:
        """Free the GPUs of all servers, also of those that are starting. Raises SamplerError if none can sleep."""
        async with self._lock:
            self._asleep = True
            await asyncio.gather(*(member.starting for member in self._members if member.starting is not None))
            if not any(await asyncio.gather(*map(self._send_to_sleep, self._members))):
                raise SamplerError(self._why())

    async def _send_to_sleep(self, member: Member) -> bool:
        """False if it failed, and had to end."""
        if not _loads(member) and member.process is not None:  # it left the pool, and may still hold its GPU
            await asyncio.to_thread(member.process.stop)
            return True
        assert member.client is not None
        try:
            async with time_limit(self._settings.timeout_s, member.client.name, "timeout_s"):
                await member.client.sleep()
            member.asleep = True
        except SamplerError as error:
            await self._part(member, error)
        return member.asleep

    async def _revive(self) -> None:
        if self.published is None:
            raise SamplerError("no server has weights: publish first, or open a new engine")
        try:
            async with self._lock:
                await self._bring_up()
        finally:
            self._wake()

    async def _bring_up(self) -> None:
        published = self.published
        assert published is not None
        self._forget_starts()
        self._start_those_down(published)
        await asyncio.gather(*(self._load(member, published) for member in self._members if _loads(member)))
        if not self.usable:
            self._start_those_down(published)  # includes servers that ended during loading
            await asyncio.gather(*(member.starting for member in self._members if member.starting is not None))
            stale = [member for member in self._members if member.up and not member.sound]  # started on older weights
            await asyncio.gather(*(self._load(member, published) for member in stale))
        self._attempts += 1
        if not self.usable:
            raise SamplerError(self._why())

    def _forget_starts(self) -> None:
        for member in self._members:
            if (starting := member.starting) is not None and starting.done():
                member.starting = None
                if not starting.cancelled():
                    starting.result()

    def _start_those_down(self, published: PublishedWeights) -> None:
        """Start servers that ended or left on the published weights, once each, without waiting."""
        for member in self._members:
            if member.process is not None and not member.up and member.starting is None:
                ended, member.sound, member.started = member.started, False, False
                member.starts_on = published.folder
                member.starting = asyncio.create_task(self._start(member, member.process, published, ended=ended))

    def _why(self) -> str:
        return "all servers failed: " + "; ".join(member.reason for member in self._members)

    async def _load(self, member: Member, published: PublishedWeights) -> None:
        was_up, member.sound = member.up, False
        assert member.client is not None
        try:
            async with time_limit(self._settings.timeout_s, member.client.name, "timeout_s"):
                await member.client.load(published.folder, published.tag, asleep=member.asleep)
                member.asleep = False
                if not was_up:
                    await self._admit(member.client)
                await self._check_weights(member, member.client, published)
            member.sound = True
        except SamplerError as error:
            await self._part(member, error)

    async def _start(self, member: Member, process: Process, published: PublishedWeights, *, ended: bool) -> None:
        """Start a server on the published weights and warm it up, as the first request may compile. It joins if no
        newer weights were published meanwhile. `ended`: it ended while no request was in flight."""
        try:
            if ended:
                try:
                    await asyncio.to_thread(process.check)
                except SamplerError as error:
                    self._leave(member, str(error))
            await asyncio.to_thread(process.stop)
            if member.client is not None:
                await member.client.close()
            member.client = client = await asyncio.to_thread(process.start, published.folder)
            member.asleep = False
            async with time_limit(self._settings.timeout_s, client.name, "timeout_s"):
                await self._answered(client, process)
                await client.set_version(published.tag)
                await self._admit(client)
                await self._check_weights(member, client, published)
            member.started, member.sound = True, self.published is published
            member.reason = f"it has the weights of version {published.version}"
            self._wake()
        except SamplerError as error:
            await self._part(member, error)

    async def _answered(self, client: VllmClient, process: Process) -> None:
        while True:
            await asyncio.to_thread(process.check)
            try:
                return await client.check_health()
            except ServerFailed:
                await asyncio.sleep(_POLL_S)

    async def _part(self, member: Member, error: SamplerError) -> None:
        self._leave(member, str(error))
        if member.process is not None:
            await asyncio.to_thread(member.process.stop)

    async def _check_weights(self, member: Member, client: VllmClient, published: PublishedWeights) -> None:
        if published.probe is not None:
            member.scored = await client.check_weights(published.probe, published.tag, member.scored)

    async def _admit(self, client: VllmClient) -> None:
        window, model = await client.model()
        if not (self.published and self.published.final) and is_tied(model):
            raise ServerFailed(
                f"{client.name}: {model}, its initial model, ties output projection and embeddings, so updates would "
                "miss the projection: start it on a folder of palimpsest export MODEL --untied --out FOLDER"
            )
        if window < self._window:
            raise ServerFailed(
                f"{client.name}: its window is {window} tokens, the run's {self._window}: set "
                f"sampler.max_model_len={window}, or start it with --max-model-len {self._window}"
            )
        await client.check_mode(self._mode)

    async def close(self) -> None:
        """End the servers that were started; a second call does nothing."""
        self.published, self._asleep = None, False
        starts = [member.starting for member in self._members if member.starting is not None]
        for starting in starts:
            starting.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        for member in self._members:
            member.sound = member.started = False
            if member.client is not None:
                await member.client.close()
        stopping = [asyncio.to_thread(member.process.stop) for member in self._members if member.process is not None]
        await asyncio.gather(*stopping)
        self._wake()


def _loads(member: Member) -> bool:
    """True if it loads new weights without a start: a live server, or any server of the user."""
    return member.process is None or member.up
