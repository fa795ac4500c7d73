"""vLLM servers on the machines of a Ray cluster: one actor per server starts it and passes requests on.

    driver: HostedServer, HostConnections -- Ray --> ServerHost -- Unix socket --> vLLM
    weights: rank 0 writes a folder -> through Ray, one server of each other machine gets a copy -> the others link it

Reading, sending and writing overlap. Machines ask for a piece in waves of 1, 2, 4 and so on, as Ray takes it from any
machine that has it: rank 0's sends few of the copies.

Guaranteed: servers open no port and need no shared file system. Ray reserves their GPUs (actor_group.py). The end of a
server, its actor or its machine fails that server alone (vllm/pool.py); actors that don't answer end. Servers end with
their actors, and those with the driver; a folder of weights is removed with its process. The actors load no torch.
Not covered: a server whose machine was lost starts on another one only with the next publication.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError, RayTaskError

from palimpsest.config.engine import SamplerConfig
from palimpsest.config.schema import RunConfig, takes_turns
from palimpsest.engines.process_guard import GuardedFolder
from palimpsest.engines.ray.ray_runtime import (
    LOOK_S,
    Late,
    Limit,
    WrittenWeights,
    again,
    cause_of,
    folder_of_weights,
    line_of,
)
from palimpsest.engines.vllm.client import VllmClient
from palimpsest.engines.vllm.server_process import ServerProcess
from palimpsest.errors import EngineError, PalimpsestError, SamplerError, being_cancelled
from palimpsest.http_connections import Connections, encoded
from palimpsest.http_services import HttpReply, Unanswered
from palimpsest.planning.cost import server_share

if TYPE_CHECKING:
    from palimpsest.engines.ray.actor_group import ActorGroup


PIECE = 32 << 20
"""Bytes of weights per call."""
_AHEAD = 4
"""Pieces on their way to a machine. Ray's store has at most as many for each wave of machines: 768 MiB for 64."""

_REPLACED_S = 10.0  # for actors that replace lost ones

# ---- In the processes of a machine ---------------------------------------------------------------------------


class ServerHost:
    """Actor of one server. Its methods are coroutines, so requests overlap."""

    def __init__(self, settings: SamplerConfig, index: int, gpus: str, options: Mapping[str, Any]) -> None:
        """`gpus`: names for CUDA; "": those from Ray. `options` of `ServerProcess`."""
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        self._process, self._parent = ServerProcess(settings, index, **options), settings.folder
        self._client: VllmClient | None = None
        self._weights: GuardedFolder | None = None

    async def node(self) -> tuple[str, str]:
        """This machine, as Ray and people name it."""
        return ray.get_runtime_context().get_node_id(), platform.node()

    async def start(self, model: Path) -> None:
        self._client = await asyncio.to_thread(self._process.start, model)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
        await asyncio.to_thread(self._process.stop)

    async def check(self) -> None:
        self._process.check()

    async def ended(self) -> None:
        while self._process.running:
            await asyncio.sleep(LOOK_S)

    async def ask(self, method: str, url: str, body: bytes | None, limit: int) -> HttpReply:
        if self._client is None:
            raise Unanswered("not started")
        return await self._client.connections.ask(method, url, body, limit=limit)

    async def create(self, name: str, names: Iterable[str]) -> Path:
        """Create a folder of weights with empty files."""
        self._weights = self._weights or folder_of_weights(self._parent)
        folder = self._weights.path / name
        shutil.rmtree(folder, ignore_errors=True)  # of a copy that failed; its files may be another server's too
        folder.mkdir()
        for file in names:
            (folder / file).touch()
        return folder

    async def receive(self, file: Path, offset: int, piece: NDArray[np.uint8]) -> None:
        """Write a piece of a file of weights, in any order."""
        try:
            with file.open("r+b") as written:
                written.seek(offset)
                await asyncio.to_thread(written.write, piece.data)
        except OSError:
            shutil.rmtree(file.parent, ignore_errors=True)  # other servers need the room
            raise

    async def link(self, folder: Path) -> Path:
        """Link the weights in another server's `folder`, which may end before this one; returns the new folder."""
        self._weights = self._weights or folder_of_weights(self._parent)
        return await asyncio.to_thread(shutil.copytree, folder, self._weights.path / folder.name, copy_function=os.link)

    async def keep(self, names: Set[str]) -> None:
        """Delete other weights."""
        if self._weights is not None:
            self._weights.keep(names)


# ---- In the driver -------------------------------------------------------------------------------------------


class HostConnections(Connections):
    """Requests through the actor of a server."""

    def __init__(self, group: ActorGroup, actor: Any) -> None:
        super().__init__()
        self._group, self._actor = group, actor
        self._waiting: set[asyncio.Future[HttpReply]] = set()
        self._watching = False

    async def ask(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        limit: int,
        timeout_s: float | None = None,
    ) -> HttpReply:
        self._group.check()
        call = self._actor.ask.remote(method, url, encoded(body), limit)
        answer: asyncio.Future[HttpReply] = asyncio.wrap_future(call.future())
        self._waiting.add(answer)
        if not self._watching:
            self._watch()
        try:
            return await answer
        except asyncio.CancelledError:
            if not being_cancelled():
                self._group.check()
            ray.cancel(call)
            raise
        except RayError as error:
            self._group.check()
            raise Unanswered(line_of(cause_of(error))) from None
        finally:
            self._waiting.discard(answer)

    def _watch(self) -> None:
        """Cancel all waiting requests if Ray has ended, as it never answers; look again while there are any."""
        try:
            self._group.check()
        except PalimpsestError:
            for answer in self._waiting:
                answer.cancel()
        if self._waiting:
            asyncio.get_running_loop().call_later(LOOK_S, self._watch)
        self._watching = bool(self._waiting)


class HostedServer:
    """A server on any machine. Satisfies `palimpsest.engines.vllm.pool.Process`."""

    def __init__(self, group: ActorGroup, settings: SamplerConfig, index: int, options: Mapping[str, Any]) -> None:
        self._group, self._settings, self.index, self._options = group, settings, index, options
        self.actor: Any = None
        self.node = ""
        """Ray's name of its machine; "": not known yet."""
        self.weights: Path | None = None
        """The newest, on its machine."""
        self._node: Any = None
        self._name = f"vLLM server {index}"
        self.reason = f"{self._name}: no machine has room for it"
        """Why it has no `weights`."""
        self._ended: Future[None] | None = None

    @property
    def running(self) -> bool:
        return (ended := self._ended) is not None and not ended.done()  # another thread may drop the actor

    def make(self, gpus: list[tuple[str, int]], share: float | None) -> None:
        """Make its actor. `gpus` of the ranks that it takes turns with, and `share` of their memory, if any."""
        changed = {} if share is None else {"gpu_memory_utilization": share}
        settings, names = self._settings.model_copy(update=changed), ",".join(name for name, _ in gpus)
        self.actor = self._group.host(self.index, ServerHost, settings, self.index, names, self._options)
        self._node = self.actor.node.remote()

    def locate(self, seconds: float) -> None:
        """Find its machine, if that is there within `seconds`."""
        try:
            self.node, host = self._group.result(self._node, Limit("cluster.timeout_s", seconds), self._name)
            self._name = f"vLLM server {self.index} on {host}"
            self.reason = f"{self._name}: no copy of the weights"
        except Late:
            pass
        except RayError as error:
            self._drop(self.actor, f"{self._name}: {line_of(cause_of(error))}")

    def start(self, model: Path) -> VllmClient:
        """See `ServerProcess.start`. Raises SamplerError if its machine can't."""
        self.call("start", self._place(model))
        actor = self._located()
        self._ended = actor.ended.remote().future()
        return VllmClient(self._name, "http://localhost", HostConnections(self._group, actor), place=self._place)

    def stop(self) -> None:
        """End it; an actor that fails to ends too."""
        if (actor := self.actor) is not None and self.node:
            try:
                self.call("stop")
            except (SamplerError, EngineError) as error:
                self._drop(actor, str(error))

    def check(self) -> None:
        self.call("check")

    def call(self, method: str, *arguments: Any) -> Any:
        """Result from its actor, which ends if late. Raises SamplerError, or an error that the user can fix."""
        self._group.check()
        actor, limit = self._located(), Limit("sampler.timeout_s", self._settings.timeout_s)
        try:
            return self._group.result(getattr(actor, method).remote(*arguments), limit, self._name)
        except RayTaskError as error:
            if isinstance(cause := cause_of(error), PalimpsestError):
                raise again(cause) from None
            raise SamplerError(f"{self._name}: {line_of(cause)}") from None
        except (Late, RayError) as error:
            reason = str(error) if isinstance(error, Late) else f"{self._name}: {line_of(error)}"
            self._drop(actor, reason)
            raise SamplerError(reason) from None

    def _located(self) -> Any:
        """Its actor. Raises SamplerError if it has none with a known machine."""
        if (actor := self.actor) is None or not self.node:
            raise SamplerError(self.reason)
        return actor

    def _place(self, folder: Path) -> Path:
        if (weights := self.weights) is None or weights.name != folder.name:
            raise SamplerError(f"{self.reason}; it starts with the next weights")
        return weights

    def _drop(self, actor: Any, reason: str) -> None:
        """End `actor`; forget it unless another one has replaced it. Threads see an actor last."""
        self._group.end(actor)
        if self.actor is actor:
            self.node, self.weights, self._ended, self.reason, self.actor = "", None, None, reason, None


Calls = Mapping[HostedServer, Future[Any]]
"""Answers to come."""


class ServerHosts:
    """Satisfies `palimpsest.engines.vllm.engine.Hosts`."""

    def __init__(self, config: RunConfig, group: ActorGroup, write: Callable[[str], WrittenWeights], size: int) -> None:
        """`write` lets rank 0 write weights under a name; `size`: number of the model's weights."""
        self._config, self._group, self._write, self._size = config, group, write, size
        self._servers: list[HostedServer] = []

    def server(self, settings: SamplerConfig, index: int, **options: Any) -> HostedServer:
        options["sleeps"] = takes_turns(self._config)
        self._servers.append(HostedServer(self._group, settings, index, options))
        return self._servers[-1]

    async def write(self, name: str) -> Path:
        return await asyncio.to_thread(self._spread, name)

    async def keep(self, names: Set[str]) -> None:
        await asyncio.to_thread(self._group.call, self._group.ranks[:1], "keep", names, limit=self._group.limit())
        await asyncio.to_thread(self._ask, "keep", dict.fromkeys(self._servers, (names,)))

    def clear(self) -> None:
        """Nothing is left: folders end with the processes that wrote them."""

    def _spread(self, name: str) -> Path:
        written = self._write(name)
        self._make_actors()
        places = self._copied(written)
        for server in self._servers:
            server.weights = places.get(server)
        return written.folder

    def _make_actors(self) -> None:
        """Make missing actors and wait for them; not long for replaced ones, as a machine may be lost for good."""
        self._ask("node", dict.fromkeys(self._servers, ()))  # those that don't answer are missing
        missing = [server for server in self._servers if server.actor is None]
        width, in_turns = self._config.sampler.tensor_parallel_size, takes_turns(self._config)
        gpus = self._group.call(self._group.ranks, "gpu", limit=self._group.limit()) if missing and in_turns else []
        for server in missing:
            mine = [gpu for gpu in gpus[server.index * width :][:width] if gpu is not None]
            memory = min((memory for _, memory in mine), default=0)
            server.make(mine, server_share(self._config, self._size, memory / 1e9) if memory else None)
        patience = self._config.cluster.timeout_s if len(missing) == len(self._servers) else _REPLACED_S
        until = time.monotonic() + patience
        for server in self._servers:
            if not server.node:
                server.locate(max(LOOK_S, until - time.monotonic()))

    def _copied(self, written: WrittenWeights) -> dict[HostedServer, Path]:
        """Folder of each server that gets the weights: per machine one receives them, the next one if it fails."""
        machines: dict[str, list[HostedServer]] = {}
        for server in self._servers:
            machines.setdefault(server.node, []).append(server)
        places = dict.fromkeys(machines.pop(written.node, ()), written.folder)
        missing = [servers for node, servers in machines.items() if node]
        while missing:
            others = {servers[-1]: servers[:-1] for servers in missing}
            received = self._received(written, others)
            links = {other: (folder,) for receiver, folder in received.items() for other in others[receiver]}
            places |= received | self._ask("link", links)
            missing = [left for each in others.values() if (left := [other for other in each if other not in places])]
        return places

    def _received(self, written: WrittenWeights, receivers: Iterable[HostedServer]) -> dict[HostedServer, Path]:
        """Folder of each of `receivers` that got everything. Raises EngineError if rank 0 is to blame."""
        folders = self._ask("create", dict.fromkeys(receivers, (written.folder.name, tuple(written.files))))
        places = [(written.folder / file, at) for file, size in written.files.items() for at in range(0, size, PIECE)]
        delays = {server: _AHEAD * (number.bit_length() - 1) for number, server in enumerate(folders, 1)}
        longest, rank = max(delays.values(), default=0), self._group.ranks[0]
        pieces: dict[int, Any] = {}  # that some machine lacks
        asked: deque[Calls] = deque()
        with ThreadPoolExecutor(max(1, _AHEAD * len(folders))) as threads:
            for turn in range(len(places) + longest + _AHEAD):
                if len(asked) == _AHEAD:
                    calls = {server: call for server, call in asked.popleft().items() if server in folders}
                    done = self._answers(calls)
                    folders = {server: at for server, at in folders.items() if server in done or server not in calls}
                if turn < len(places) and folders:
                    pieces[turn] = rank.read.remote(*places[turn], PIECE)
                pieces.pop(turn - longest - 1, None)
                numbers = {server: number for server in folders if (number := turn - delays[server]) in pieces}
                given = {s: (folders[s] / places[n][0].name, places[n][1], pieces[n]) for s, n in numbers.items()}
                asked.append(self._calls(threads, "receive", given))
        for file in () if folders else written.files:
            self._group.call([rank], "read", written.folder / file, 0, 1, limit=self._group.limit())
        return folders

    def _ask(self, method: str, given: Mapping[HostedServer, tuple[Any, ...]]) -> dict[HostedServer, Any]:
        """Results of the servers that answer, all asked at once. The others' reasons become warnings."""
        with ThreadPoolExecutor(max(1, len(given))) as threads:
            return self._answers(self._calls(threads, method, given))

    def _calls(self, threads: ThreadPoolExecutor, method: str, given: Mapping[HostedServer, tuple[Any, ...]]) -> Calls:
        return {each: threads.submit(each.call, method, *args) for each, args in given.items() if each.node}

    def _answers(self, calls: Calls) -> dict[HostedServer, Any]:
        results = {}
        for server, call in calls.items():
            try:
                results[server] = call.result()
            except SamplerError as error:
                server.reason = str(error)
                warnings.warn(f"a server failed: {error}", stacklevel=2)
        return results
