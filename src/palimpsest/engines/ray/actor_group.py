"""Ray, the ranks and the copies of the sampler: started together, called with time limits, ended together.

Guaranteed: nothing starts before it is first needed; an error in one process, or an expired time limit, ends all
processes, as the others would wait for it in their next collective; in our own cluster so does the end of one of Ray's
processes; nothing remains once the driver has ended for any reason (engines/process_guard.py).
Not covered: restarting a single process. A run that lost its processes resumes from its newest checkpoint.
"""

from __future__ import annotations

import ctypes
import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from palimpsest.config.schema import RunConfig, by_ray, takes_turns
from palimpsest.engines import process_guard
from palimpsest.engines.embedded.compute import VISIBLE, gpus_but
from palimpsest.engines.protocol import Objective
from palimpsest.engines.ray.actors import Rank, SamplerCopy
from palimpsest.engines.ray.ray_runtime import (
    TRIES,
    GroupResults,
    Limit,
    environment,
    line_of,
    needed_of,
    on_loopback,
    open_sockets,
    patient,
    prints_as_warnings,
    watch,
)
from palimpsest.engines.vllm.server_process import on_cpu
from palimpsest.errors import GOES_ON, EngineError, PalimpsestError, ProcessesLost

_OBJECT_STORE = 512 << 20  # bytes of shared memory of a cluster of ours, at most: batches pass through it
_STARTS = 3  # of Ray, within cluster.timeout_s
_HEAD_S = 30.0  # for a connection to the head of a cluster
_TRY_S = 36.0  # duration of one attempt of Ray if another service answers there
_FIREWALL = "keep a firewall in front of this machine, or install ray==2.60.0, which listens on loopback"
_OTHER_CALLS = 100  # to the actor of a server, next to its requests
_GUARDS_STAY = {"RAY_kill_child_processes_on_worker_exit": "false"}
"""Ray would kill the guards of an actor's folders with it; they end by themselves."""
_SIGACTION = 1024  # bytes, more than any system's struct sigaction
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STARTING = threading.Lock()  # ray.init is of the whole process


class ActorGroup:
    """The processes of one engine."""

    def __init__(self, config: RunConfig, objective: Objective | None, copies: int) -> None:
        self._config, self._objective, self._cluster, self._copies = config, objective, config.cluster, copies
        self._servers = config.sampler.servers if by_ray(config, objective) else 0
        self.ranks: list[Any] = []
        self.samplers: list[Any] = []
        self._hosts: list[Any] = []
        """Actors of servers."""
        self._host_options: list[dict[str, Any]] = []
        self.folder = Path()
        """Folder of the weights that samplers are about to load."""
        self._guard: process_guard.ProcessGuard | None = None
        self._owns_ray = False
        self._ray_output = ExitStack()
        """While open, Ray's output becomes warnings."""
        self._ended = threading.Event()
        self._answers = GroupResults()
        self._placed: list[PlacementGroup] = []
        self._up = threading.RLock()
        self._state = "new"

    # ---- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything that isn't running yet. Raises EngineError, ModelError, RunError."""
        with self._up:
            self.check()
            if self._state == "new":
                self._state = "up"
                try:
                    self._start()
                except RayError as error:  # one of Ray's own processes ended meanwhile
                    self._end()
                    raise self._answers.failed(error, "starting") from error
                except BaseException:
                    self._end()
                    raise

    def check(self) -> None:
        """Raise the first failure, or EngineError once all have ended."""
        if self._state == "lost":
            self._answers.check()
            raise EngineError("the processes of engine.name=ray have ended; resume the run")

    def _start(self) -> None:
        cluster = self._cluster
        mark, home = secrets.token_hex(8), Path(tempfile.mkdtemp(prefix="pal-"))  # short: paths of sockets
        parent = cluster.folder or process_guard.memory_folder()
        self.folder = Path(tempfile.mkdtemp(prefix=f"palimpsest-{os.getpid()}-", dir=parent)).absolute()  # whose it is
        self._guard = process_guard.start(mark, [self.folder, home])
        with _STARTING:
            if not ray.is_initialized():
                self._owns_ray = True
                self._ray_output.enter_context(prints_as_warnings())
                with environment(process_guard.MARK, mark), _signals_restored():
                    self._connect(home / "r", mark)  # Ray makes it writable for all; our parent folder admits none
                watch(needed_of(mark), self._ended, self._miss)
        self._create()
        meeting = f"file://{self.folder}/meeting"
        if self.ranks and cluster.address is not None:
            (meeting,) = self.call(self.ranks[:1], "meeting", limit=self.limit())
        starting = [rank.start.remote(meeting, self.folder) for rank in self.ranks]
        starting += [sampler.start.remote(self.folder) for sampler in self.samplers]
        self.collect(starting, self.limit(), "starting")
        if cluster.address is None and (ports := open_sockets(process_guard.marked(mark))):
            warnings.warn(f"other machines reach {ports[0]}, where a call can end this run: {_FIREWALL}", stacklevel=2)

    def _connect(self, temporary: Path, mark: str) -> None:
        cluster = self._cluster
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        logging.getLogger("ray").setLevel(logging.ERROR)
        if cluster.address is not None:
            try:
                if cluster.address != "auto":
                    _check_head(cluster.address, cluster.timeout_s)
                with environment(TRIES, str(max(1, int(cluster.timeout_s / _TRY_S)))):
                    ray.init(address=cluster.address, **options)
            except (OSError, RuntimeError, ValueError, RayError) as error:
                raise EngineError(f"cluster.address={cluster.address}: joining failed: {line_of(error)}") from None
            return
        if (mode := os.environ.get("RAY_AUTH_MODE", "token")) != "token":
            raise EngineError(f"RAY_AUTH_MODE={mode}: anyone who reaches Ray's ports could run code here; unset it")
        # Ray requires it from 2.59 on
        os.environ["RAY_AUTH_TOKEN"] = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        options |= {
            "address": "local",
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": str(temporary),
            "object_store_memory": _OBJECT_STORE,
            "_system_config": {"worker_niceness": 0},  # Ray's 15 would let other programs slow the ranks down
        }
        until = time.monotonic() + cluster.timeout_s
        for left in range(_STARTS - 1, -1, -1):
            try:
                with _hidden(self._config.sampler.devices), on_loopback(), patient(until - time.monotonic()):
                    ray.init(**options)
                return
            except Exception as error:  # noqa: BLE001  Ray raises plain Exception where a node takes too long
                process_guard.end(mark)  # what the attempt has started
                late = time.monotonic() >= until
                if not _may_pass(error) or not left or late:
                    fix = f"; raise cluster.timeout_s={cluster.timeout_s:g}" if late else ""
                    raise EngineError(f"Ray's start failed: {line_of(error)}{fix}") from None
                warnings.warn(f"Ray didn't start, trying again: {line_of(error)}", stacklevel=2)

    def _create(self) -> None:
        cluster, config = self._cluster, self._config
        learners = cluster.learners if self._objective else 0
        gpus = ray.cluster_resources().get("GPU", 0.0)  # type: ignore[no-untyped-call]
        rank_gpus, sampler_gpus = cluster.rank_gpus(gpus, config.model.device), cluster.gpus_per_sampler
        server_gpus = gpus_of_server(config, gpus) if self._servers else 0.0
        placed = self._reserve([rank_gpus] * learners, [sampler_gpus] * self._copies, [server_gpus] * self._servers)
        environment = _GUARDS_STAY | {"OMP_NUM_THREADS": str(config.engine.num_threads)}  # type: ignore[union-attr]
        if cluster.address is None:
            environment |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        common = {"num_cpus": 0, "max_restarts": 0, "runtime_env": {"env_vars": environment}}
        learning, sampling = _on_its_device(config, rank_gpus), _on_its_device(config, sampler_gpus)
        self.ranks = [
            ray.remote(Rank).options(**common, num_gpus=rank_gpus, **placed[r]).remote(learning, self._objective, r)
            for r in range(learners)
        ]
        self.samplers = [
            ray.remote(SamplerCopy).options(**common, num_gpus=sampler_gpus, **placed[learners + s]).remote(sampling, 0)
            for s in range(self._copies)
        ]
        common |= {"runtime_env": {"env_vars": _GUARDS_STAY}, "num_gpus": server_gpus}
        common["max_concurrency"] = config.sampler.max_in_flight + _OTHER_CALLS
        self._host_options = [common | place for place in placed[learners + self._copies :]]

    def _reserve(
        self, ranks: Sequence[float], copies: Sequence[float], servers: Sequence[float]
    ) -> list[dict[str, Any]]:
        """Place of each process, by its GPUs. A bundle is on one machine: it has the GPUs of a server, and of all ranks
        of a tensor-parallel group, whose layers wait for each other."""
        shares, size = [*ranks, *copies, *servers], self._cluster.tensor_parallel_size
        if self._cluster.placement == "colocated":
            width = self._config.sampler.tensor_parallel_size
            size = max(size, width)
            reserved = [float(size)] * -(-max(len(ranks), len(copies)) // size)
            indices = [n // size for processes in (ranks, copies) for n in range(len(processes))]
            indices += [n * width // size for n in range(len(servers))]
        else:
            groups = [sum(ranks[first : first + size]) for first in range(0, len(ranks), size)]
            reserved = [*groups, *copies, *servers]
            indices = [*(n // size for n in range(len(ranks))), *range(len(groups), len(reserved))]
        if not any(shares):
            spread: dict[str, Any] = {"scheduling_strategy": "SPREAD"}
            return [{}] * (len(ranks) + len(copies)) + [spread] * len(servers)
        bundles = [{"GPU": gpus} if gpus else {"CPU": 1.0} for gpus in reserved]
        _check_room(bundles, ray.cluster_resources())  # type: ignore[no-untyped-call]
        group = placement_group(bundles, strategy="PACK")
        self._placed.append(group)
        if not group.wait(self._cluster.timeout_s):
            there = ray.available_resources()  # type: ignore[no-untyped-call]
            raise EngineError(
                f"the cluster had no room for {sum(reserved):g} GPUs within cluster.timeout_s; free are {there}: "
                "lower cluster.learners, cluster.samplers or sampler.servers"
            )
        strategies = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index) for index in indices]
        return [{"scheduling_strategy": strategy} for strategy in strategies]

    def close(self) -> None:
        """End every process; a second call does nothing."""
        with self._up:
            self._end()

    def _end(self) -> None:
        self._state = "lost"
        self._ended.set()
        if ray.is_initialized():
            for actor in (*self.ranks, *self.samplers, *self._hosts):
                ray.kill(actor)
            for group in self._placed:
                remove_placement_group(group)
            if self._owns_ray:
                ray.shutdown()
        self.ranks, self.samplers, self._hosts, self._placed = [], [], [], []
        self._owns_ray = False  # another group may start it
        self._ray_output.close()
        if self._guard is not None:
            self._guard.finish()
            self._guard = None

    def _miss(self, name: str) -> None:
        """End everything after the end of a Ray process: Ray would also end this one a minute later. All present and
        later callers get the reason."""
        reason = f"engine.name=ray lost a process (Ray's {name} ended)"
        self._answers.failed(ProcessesLost(f"{reason}; {GOES_ON}"), reason)
        self._answers.settle()
        self.close()

    # ---- calls ----------------------------------------------------------------------------------------------

    def limit(self, times: int = 1) -> Limit:
        return Limit("cluster.timeout_s", self._cluster.timeout_s, times)

    def call(self, actors: Sequence[Any], method: str, *arguments: Any, limit: Limit) -> list[Any]:
        """Call `method` of all `actors` with the same arguments. Raises as `collect` does."""
        return self.collect([getattr(actor, method).remote(*arguments) for actor in actors], limit, method)

    def collect(self, calls: Sequence[Any], limit: Limit, what: str) -> list[Any]:
        """Results of `calls`. The first error, or `limit`, ends all processes and is raised: unchanged if the user can
        fix it, otherwise as ProcessesLost."""
        try:
            return self._answers.of(calls, limit, what)
        except (RayError, PalimpsestError) as error:
            first = self._answers.failed(error, what)
            self._answers.settle()
            self.close()
            raise first from first.__cause__

    # ---- servers: their failures end nothing ----------------------------------------------------------------

    def host(self, index: int, actor: Any, *arguments: Any) -> Any:
        with self._up:
            self.check()
            self._hosts.append(ray.remote(actor).options(**self._host_options[index]).remote(*arguments))
            return self._hosts[-1]

    def end(self, host: Any) -> None:
        with self._up:
            if host in self._hosts:
                self._hosts.remove(host)
                ray.kill(host)

    def result(self, call: Any, limit: Limit, what: str) -> Any:
        """Result of one call to the actor of a server. Raises RayError, Late, or the group's first failure."""
        return self._answers.of([call], limit, what)[0]


def _may_pass(error: Exception) -> bool:
    """True if another start of Ray may succeed: its node took too long, or one of its processes ended."""
    return type(error) is Exception or (type(error) is RuntimeError and str(error).startswith("Failed to "))


def _on_its_device(config: RunConfig, gpus: float) -> RunConfig:
    """Configuration of a process with `gpus` GPUs: with none it computes on a CPU, although Ray shows it all GPUs."""
    if gpus:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"device": "cpu"})})


def _check_head(address: str, timeout: float) -> None:
    """Raise OSError if the port is closed: Ray would retry for ten minutes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=min(timeout, _HEAD_S)):
        return


def check_gpus(config: RunConfig, learners: int, copies: int) -> None:
    """Raise EngineError, before anything starts, if our own cluster needs more GPUs than this machine has."""
    cluster = config.cluster
    gpus = float(len(gpus_but(config.sampler.devices)))
    shares = learners * cluster.rank_gpus(gpus, config.model.device) + copies * cluster.gpus_per_sampler
    if learners and by_ray(config, "policy"):
        shares += config.sampler.servers * gpus_of_server(config, gpus)
    needed = max(learners, copies) if cluster.shares_fractions else shares
    if cluster.address is None and needed:
        _check_room([{"GPU": float(needed)}], {"GPU": gpus})


def gpus_of_server(config: RunConfig, gpus: float) -> float:
    """GPUs to reserve for each server in a cluster with `gpus` of them; none in turns with ranks, which have theirs."""
    if takes_turns(config) or not gpus or (config.cluster.address is None and on_cpu()):
        return 0.0
    return float(config.sampler.tensor_parallel_size)


def _hidden(servers: Sequence[int]) -> AbstractContextManager[None]:
    """Hide the GPUs of vLLM servers from Ray, which assigns GPUs in order, even used ones."""
    return environment(VISIBLE, ",".join(gpus_but(servers))) if servers else nullcontext()


def _check_room(bundles: Sequence[Mapping[str, float]], there: Mapping[str, float]) -> None:
    """Raise EngineError if `bundles` need more than the whole cluster has, in use or free.

    >>> _check_room([{"GPU": 1.0}, {"GPU": 1.0}, {"CPU": 1.0}], {"CPU": 8.0, "GPU": 2.0})
    """
    for kind in ("GPU", "CPU"):
        needed, has = sum(bundle.get(kind, 0.0) for bundle in bundles), there.get(kind, 0.0)
        if needed > has:
            ways = "cluster.learners, cluster.samplers or sampler.servers"
            ways += ", or set cluster.gpus_per_learner and cluster.gpus_per_sampler to 0" if kind == "GPU" else ""
            raise EngineError(f"the cluster has {has:g} {kind}s, this run needs {needed:g} of them: lower {ways}")


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the signal handlers afterwards: Ray's handler aborts on SIGTERM, which must end a run tidily.

    It uses libc, as Python allows it only in the main thread.
    """
    sigaction = ctypes.CDLL(None).sigaction
    before = {number: ctypes.create_string_buffer(_SIGACTION) for number in SIGNALS}
    for number, action in before.items():
        sigaction(number, None, action)
    try:
        yield
    finally:
        for number, action in before.items():
            sigaction(number, action, None)
