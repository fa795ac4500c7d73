"""vLLM servers on the machines of a Ray cluster: one actor per server starts it and passes requests on.

    driver: HostedServer, HostConnections -- Ray --> ServerHost -- Unix socket --> vLLM
    weights: rank 0 writes a folder on its machine -> one copy per other machine, through Ray -> its servers load it

Guaranteed: servers open no port and need no shared file system. Ray reserves their GPUs (actor_group.py). The end of a
server, its actor or its machine fails that server alone (vllm/pool.py). Servers end with their actors, and those with
the driver; a folder of weights is removed with the process that wrote it. The actors load no torch.
Not covered: a server whose machine was lost starts on another one only with the next publication.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from palimpsest.config.engine import SamplerConfig
from palimpsest.config.schema import RunConfig, takes_turns
from palimpsest.engines.process_guard import GuardedFolder, memory_folder
from palimpsest.engines.ray.ray_runtime import LOOK_S, Late, Limit, again, cause_of, line_of
from palimpsest.engines.vllm.client import VllmClient
from palimpsest.engines.vllm.server_process import ServerProcess
from palimpsest.errors import EngineError, PalimpsestError, RunError, SamplerError
from palimpsest.http_connections import Connections, Unanswered
from palimpsest.http_services import HttpReply
from palimpsest.planning.cost import server_share

if TYPE_CHECKING:
    from palimpsest.engines.ray.actor_group import ActorGroup

PIECE = 64 << 20
"""Bytes of weights per call; Ray's object store has at least 512 MiB."""

_REPLACED_S = 10.0  # for actors that replace lost ones

# ---- In the processes of a machine ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """Weights that a rank wrote."""

    node: str
    """Ray's name of its machine."""
    folder: Path
    """There."""
    files: Mapping[str, int]
    """Bytes of each file."""


def folder_of_weights(parent: str | None) -> GuardedFolder:
    """New folder in `parent`, that is sampler.folder. Raises RunError if this machine lacks it."""
    try:
        return GuardedFolder(Path(parent or memory_folder()) / f"palimpsest-{secrets.token_hex(4)}")
    except OSError as error:
        fix = "create the folder there, or set sampler.folder=null"
        raise RunError(f"sampler.folder={parent}: {platform.node()}: {error}; {fix}") from None


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
        """Returns once the server has ended."""
        while self._process.running:
            await asyncio.sleep(LOOK_S)

    async def ask(self, method: str, url: str, body: Mapping[str, Any] | None, limit: int) -> HttpReply:
        if self._client is None:
            raise Unanswered("not started")
        return await self._client.connections.ask(method, url, body, limit=limit)

    async def receive(self, name: str, file: str, piece: bytes) -> Path:
        """Append to a file of weights; returns their folder."""
        self._weights = self._weights or folder_of_weights(self._parent)
        folder = self._weights.path / name
        folder.mkdir(exist_ok=True)
        with (folder / file).open("ab") as written:
            await asyncio.to_thread(written.write, piece)
        return folder

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

    async def ask(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        *,
        limit: int,
        timeout_s: float | None = None,
    ) -> HttpReply:
        self._group.check()
        call = self._actor.ask.remote(method, url, body, limit)
        answer: asyncio.Future[HttpReply] = asyncio.wrap_future(call.future())
        try:
            while not (await asyncio.wait([answer], timeout=LOOK_S))[0]:
                self._group.check()  # Ray that has ended never answers
            return answer.result()
        except asyncio.CancelledError:
            answer.cancel()
            ray.cancel(call)
            raise
        except RayError as error:
            self._group.check()
            raise Unanswered(line_of(cause_of(error))) from None


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
        return self._ended is not None and not self._ended.done()

    def make(self, gpus: list[tuple[str, int]], share: float | None) -> None:
        """Make its actor. `gpus` of the ranks that it takes turns with, and `share` of their memory, if any."""
        changed = {} if share is None else {"gpu_memory_utilization": share}
        settings, names = self._settings.model_copy(update=changed), ",".join(name for name, _ in gpus)
        self.actor = self._group.host(self.index, ServerHost, settings, self.index, names, self._options)
        self._node = self.actor.node.remote()

    def drop_lost(self) -> None:
        """Forget an actor that ended, with its machine or alone."""
        if self._ended is not None and self._ended.done() and (error := self._ended.exception()) is not None:
            self._drop(f"{self._name}: {line_of(error)}")

    def locate(self, seconds: float) -> None:
        """Find its machine, if that is there within `seconds`."""
        try:
            self.node, host = self._group.result(self._node, Limit("cluster.timeout_s", seconds), self._name)
            self._name = f"vLLM server {self.index} on {host}"
            self.reason = f"{self._name}: no copy of the weights"
        except Late:
            pass
        except RayError as error:
            self._drop(f"{self._name}: {line_of(cause_of(error))}")

    def start(self, model: Path) -> VllmClient:
        """See `ServerProcess.start`. Raises SamplerError if its machine can't."""
        self._call("start", self._place(model))
        self._ended = self.actor.ended.remote().future()
        connections = HostConnections(self._group, self.actor)
        return VllmClient(self._name, "http://localhost", connections, place=self._place)

    def stop(self) -> None:
        """End it; an actor that doesn't answer ends too."""
        if self.node:
            try:
                self._call("stop")
            except (SamplerError, EngineError) as error:
                self._drop(str(error))

    def check(self) -> None:
        self._call("check")

    def result(self, call: Any) -> Any:
        """Raises SamplerError, or an error that the user can fix."""
        try:
            return self._group.result(call, Limit("sampler.timeout_s", self._settings.timeout_s), self._name)
        except Late as error:
            raise SamplerError(str(error)) from None
        except RayError as error:
            if isinstance(cause := cause_of(error), PalimpsestError):
                raise again(cause) from None
            raise SamplerError(f"{self._name}: {line_of(cause)}") from None

    def _call(self, method: str, *arguments: Any) -> Any:
        self._group.check()
        return self.result(getattr(self.actor, method).remote(*arguments))

    def _place(self, folder: Path) -> Path:
        if self.weights is None or self.weights.name != folder.name:
            raise SamplerError(f"{self.reason}; it starts with the next weights")
        return self.weights

    def _drop(self, reason: str) -> None:
        self._group.end(self.actor)
        self.actor, self.node, self.weights, self._ended, self.reason = None, "", None, None, reason


class ServerHosts:
    """Satisfies `palimpsest.engines.vllm.engine.Hosts`."""

    def __init__(self, config: RunConfig, group: ActorGroup, write: Callable[[str], WrittenWeights], size: int) -> None:
        """`write` lets rank 0 write weights under a name; `size`: number of the model's weights."""
        self._config, self._group, self._write, self._size = config, group, write, size
        self._servers: list[HostedServer] = []

    def server(self, settings: SamplerConfig, index: int, **options: Any) -> HostedServer:
        sleeps = takes_turns(self._config)
        self._servers.append(HostedServer(self._group, settings, index, {**options, "sleeps": sleeps}))
        return self._servers[-1]

    async def write(self, name: str) -> Path:
        return await asyncio.to_thread(self._spread, name)

    async def keep(self, names: Set[str]) -> None:
        await asyncio.to_thread(self._keep, names)

    def clear(self) -> None:
        """Nothing is left: folders end with the processes that wrote them."""

    def _spread(self, name: str) -> Path:
        written = self._write(name)
        self._make_actors()
        places = {written.node: written.folder, **self._copied(name, written)}
        for server in self._servers:
            server.weights = places.get(server.node)
        return written.folder

    def _make_actors(self) -> None:
        """Make missing actors and wait for them; not long for replaced ones, as a machine may be lost for good."""
        for server in self._servers:
            server.drop_lost()
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

    def _copied(self, name: str, written: WrittenWeights) -> dict[str, Path]:
        """The folder on each other machine that got everything through one of its servers, a live one if possible."""
        ordered = sorted(self._servers, key=lambda server: server.running)
        receivers = {server.node: server for server in ordered if server.node not in ("", written.node)}
        places: dict[str, Path] = {}
        pieces = [(file, at) for file, size in written.files.items() for at in range(0, size, PIECE)]
        for file, at in pieces if receivers else ():
            piece = self._group.ranks[0].read.remote(written.folder / file, at, PIECE)
            calls = {node: server.actor.receive.remote(name, file, piece) for node, server in receivers.items()}
            for node, call in calls.items():
                try:
                    places[node] = receivers[node].result(call)
                except SamplerError as error:
                    del receivers[node]
                    self._miss(node, str(error))
        return {node: places[node] for node in receivers}

    def _miss(self, node: str, reason: str) -> None:
        """Let the servers of a machine fail where they load."""
        for server in self._servers:
            server.reason = reason if server.node == node else server.reason

    def _keep(self, names: Set[str]) -> None:
        self._group.call(self._group.ranks[:1], "keep", names, limit=self._group.limit())
        for server in self._servers:
            with suppress(SamplerError):  # the next request meets it
                if server.node:
                    server.result(server.actor.keep.remote(names))
