"""The servers of a run: which of them a request goes to, which have left, and how all come to new weights.

    admitted ---> the server of the request's group, another where that is busy
    load_weights ---> every server: pause, load, empty the prefix cache, set the version and read it back, resume, and
                      be as sure of some ids as the learner

Guaranteed: nothing is asked of a server that hasn't the weights published last; `load_weights` returns once every
server that is up has the new ones, and raises where none is; a server that ends, fails or doesn't answer is asked no
more until the next publication, when it is loaded or started again, and at once where no other is left. No publication
waits for a start while another server has the weights: a server that has started takes part at once where its weights
are still the published ones, otherwise from the next publication on.
"""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from palimpsest.config.engine import LogprobsMode, SamplerConfig
from palimpsest.engines.vllm.client import Probe, Scored, ServerFailed, VllmClient, is_tied
from palimpsest.engines.vllm.server_process import ServerProcess
from palimpsest.errors import SamplerError

# ---- One server of the pool: its weights and time limits -----------------------------------------------------


MAX_IN_FLIGHT = 256
"""Requests at one server at once, each with a connection of its own; further ones of its groups go to another server,
or wait. What a server doesn't batch it queues."""


@dataclass(eq=False)
class Member:
    """One server."""

    client: VllmClient | None
    """None: it isn't started yet."""
    process: ServerProcess | None
    """None: it is the user's."""
    sound: bool = False
    """It has the weights that were published last."""
    scored: Scored | None = None
    """What it said of the ids of the probe before."""
    reason: str = "nothing was published yet"
    """Why it isn't sound."""
    started: bool = False
    """Its process has answered with the weights that it was started on, and has not failed since."""
    starting: asyncio.Task[None] | None = None
    """The start of its process, which may have ended."""
    starts_on: Path | None = None
    """Weights that `starting` reads."""
    in_flight: int = 0
    _busy_s: float = field(default=0.0, init=False)
    """Up to `_since`."""
    _since: float = field(default=0.0, init=False)

    @property
    def usable(self) -> bool:
        return self.sound and (self.process is None or self.process.running)

    @property
    def up(self) -> bool:
        """It takes new weights without being started, whichever it has."""
        return self.sound if self.process is None else self.started and self.process.running

    @property
    def busy_s(self) -> float:
        """Seconds with at least one request in flight."""
        return self._busy_s + (perf_counter() - self._since if self.in_flight else 0.0)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While one request is in flight."""
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
    """What servers say of their weights: another word in every run, for a server may have served another."""
    probe: Probe | None


class time_limit:
    """`asyncio.timeout` whose end is the failure of the server called `name`; `key` of `sampler` has the seconds."""

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


_LOOK_S = 60.0  # for a server to say that it lives: it may be starved, and a start takes as long
_POLL_S = 0.2  # between two looks at one that starts


class Pool:
    """Its servers start when weights are first published."""

    def __init__(self, members: Iterable[Member], settings: SamplerConfig, *, mode: LogprobsMode, window: int) -> None:
        """`window`: tokens that each must take."""
        self._members = list(members)
        self._settings, self._mode, self._window = settings, mode, window
        self._homes: dict[str, Member] = {}
        """The server that holds the prefix of a group."""
        self.published: PublishedWeights | None = None
        self._run = secrets.token_hex(4)
        self._room = asyncio.Event()
        """Set when a request may find a server that found none before."""
        self._lock = asyncio.Lock()
        """Held while servers start or load."""
        self._attempts = 0
        """To bring servers up, as far as they ended."""

    def __len__(self) -> int:
        return len(self._members)

    @property
    def busy_s(self) -> float:
        """Seconds with a request in flight, summed over the servers."""
        return sum(member.busy_s for member in self._members)

    @property
    def reading(self) -> set[Path]:
        """Folders that servers are being started on."""
        starting = [member for member in self._members if member.starting is not None and not member.starting.done()]
        return {member.starts_on for member in starting if member.starts_on is not None}

    # ---- which server ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def admitted(self, group: str | None) -> AsyncIterator[tuple[VllmClient, str]]:
        """A server with room for one request, and what it says of its weights. Raises SamplerError if none is left."""
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
            self._room.set()

    async def _next(self, group: str | None) -> Member:
        """A server with room. Where none is left, one attempt is made to bring them back, for all who wait."""
        attempts = self._attempts
        while True:
            if not self._lock.locked() and not any(member.usable for member in self._members):
                if attempts < self._attempts:
                    raise SamplerError(self._why())
                await self._revive()
            if not self._lock.locked() and (member := self._choose(group)) is not None:
                return member
            self._room.clear()
            await self._room.wait()

    def _choose(self, group: str | None) -> Member | None:
        """The server of `group`, of a new group the one with fewest; the idlest where that is busy. None: all are."""
        usable = [member for member in self._members if member.usable]
        if not usable:
            return None
        home = self._homes.get(group or "")
        if group and home not in usable:
            groups = Counter(self._homes.values())
            home = self._homes[group] = min(usable, key=lambda member: groups[member])
        if home is not None and home.in_flight < MAX_IN_FLIGHT:
            return home
        idlest = min(usable, key=lambda member: member.in_flight)
        return idlest if idlest.in_flight < MAX_IN_FLIGHT else None

    async def _look_at(self, member: Member, client: VllmClient, tag: str, error: ServerFailed) -> None:
        """Ask a server that failed for its health and its version; without both in order it leaves the pool."""
        try:
            async with time_limit(_LOOK_S, client.name):
                await client.check_health()
                await client.check_version(tag)
        except SamplerError as failure:
            same = self.published is not None and self.published.tag == tag and member.client is client
            if same and member.sound and not self._lock.locked():  # nobody saw to it meanwhile
                self._leave(member, f"{error}; {failure}")

    def _leave(self, member: Member, reason: str) -> None:
        member.sound, member.started, member.reason = False, False, reason
        at = "" if self.published is None else f" (weights of version {self.published.version})"
        warnings.warn(f"a server leaves the pool: {reason}{at}", stacklevel=2)  # Python shows the same text but once

    # ---- weights --------------------------------------------------------------------------------------------

    async def load_weights(self, folder: Path, version: int, probe: Probe | None) -> None:
        """See `VllmSampler.load_weights`."""
        try:
            async with self._lock:
                tag = f"{self._run}-{version}-{folder.name}"
                self.published = PublishedWeights(folder.resolve(), version, tag, probe)
                self._homes.clear()
                await self._bring_up()
        finally:
            self._room.set()

    async def _revive(self) -> None:
        if self.published is None:
            raise SamplerError("no server has weights: none were published, or the engine is closed")
        try:
            async with self._lock:
                await self._bring_up()
        finally:
            self._room.set()

    async def _bring_up(self) -> None:
        published = self.published
        assert published is not None
        self._forget_starts()
        self._start_those_down(published)
        await asyncio.gather(*(self._load(member, published) for member in self._members if _loads(member)))
        if not any(member.usable for member in self._members):
            self._start_those_down(published)  # those that ended on the way too
            await asyncio.gather(*(member.starting for member in self._members if member.starting is not None))
            stale = [member for member in self._members if member.up and not member.sound]  # started on older weights
            await asyncio.gather(*(self._load(member, published) for member in stale))
        self._attempts += 1
        if not any(member.usable for member in self._members):
            raise SamplerError(self._why())

    def _forget_starts(self) -> None:
        """Leave out starts that have ended. Raises what they raised."""
        for member in self._members:
            if (starting := member.starting) is not None and starting.done():
                member.starting = None
                if not starting.cancelled():
                    starting.result()

    def _start_those_down(self, published: PublishedWeights) -> None:
        """Have servers that ended or left start on the published weights, each once; nothing waits for them here."""
        for member in self._members:
            if member.process is not None and not member.up and member.starting is None:
                member.sound = member.started = False
                member.starts_on = published.folder
                member.starting = asyncio.create_task(self._start(member, member.process, published))

    def _why(self) -> str:
        return "no server is left: " + "; ".join(member.reason for member in self._members)

    async def _load(self, member: Member, published: PublishedWeights) -> None:
        """Have a server that is up sample from the published weights, or leave."""
        was_up, member.sound = member.up, False
        assert member.client is not None
        try:
            async with time_limit(self._settings.timeout_s, member.client.name, "timeout_s"):
                await member.client.load(published.folder, published.tag)
                if not was_up:
                    await self._admit(member.client)
                await self._check_weights(member, member.client, published)
            member.sound = True
        except SamplerError as error:
            await self._part(member, error)

    async def _start(self, member: Member, process: ServerProcess, published: PublishedWeights) -> None:
        """Start a server on the published weights and warm it up: the first request may compile for a while. It samples
        if no others were published meanwhile."""
        try:
            await asyncio.to_thread(process.stop)
            if member.client is not None:
                await member.client.close()
            member.client = client = process.start(published.folder)
            async with time_limit(self._settings.timeout_s, client.name, "timeout_s"):
                await self._answered(client, process)
                await client.set_version(published.tag)
                await self._admit(client)
                await self._check_weights(member, client, published)
            member.started, member.sound = True, self.published is published
            member.reason = f"it has the weights of version {published.version}"
            self._room.set()
        except SamplerError as error:
            await self._part(member, error)

    async def _answered(self, client: VllmClient, process: ServerProcess) -> None:
        """Wait until a server that starts answers. Raises SamplerError if it ends."""
        while True:
            process.check()
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
        """Refuse a server that can't serve this run."""
        window, model = await client.model()
        if is_tied(model):
            raise ServerFailed(
                f"{client.name}: was started on {model}, whose output projection is tied to its embeddings, and would "
                "keep its old one: start it on a folder by palimpsest export MODEL --untied --to FOLDER"
            )
        if window < self._window:
            raise ServerFailed(
                f"{client.name}: its window is {window} tokens, the run's {self._window}: set "
                f"sampler.max_model_len={window}, or start it with --max-model-len {self._window}"
            )
        await client.check_mode(self._mode)

    async def close(self) -> None:
        """End the servers that were started; a second call does nothing."""
        self.published = None
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
        self._room.set()


def _loads(member: Member) -> bool:
    """Whether it is to take new weights without being started: a server of the user's, whatever became of it, or one
    that is up."""
    return member.process is None or member.up
