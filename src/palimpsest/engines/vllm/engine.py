"""vLLM engine: the learner of another engine, with a pool of vLLM servers as the sampler.

    publish: the learner's weights -> a folder of a new name -> every server -> the folder before it is deleted

Servers and ranks use the same GPUs in turns with cluster.placement=colocated:

    update: servers sleep (their GPUs are free) -> ranks learn
    publish: ranks write and score, then free what only they need -> servers wake, load and sample

Guaranteed: each version is written once, even if published repeatedly; no folder of weights remains after the engine is
closed or its process is killed (engines/process_guard.py). Servers sample only from the weights published last; every
request ends within `sampler.timeout_s`.
Not covered: the same tokens with another number of servers or another batching, since sums round differently
(docs/how-to/vllm.md).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from palimpsest.config.engine import LogprobsMode, ModelConfig, SamplerConfig, logprobs_mode
from palimpsest.config.schema import RunConfig, takes_turns
from palimpsest.engines import process_guard
from palimpsest.engines.protocol import (
    CompletionDelta,
    Engine,
    Learner,
    Limits,
    SamplerStats,
    StepBatch,
    UpdateStats,
    check_prompt,
)
from palimpsest.engines.vllm.client import Probe, VllmClient, probe_ids
from palimpsest.engines.vllm.pool import Member, Pool, Process, time_limit
from palimpsest.engines.vllm.server_process import ServerProcess, check_python
from palimpsest.errors import ConfigError, SamplerError
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, SamplingParams

# ---- vLLM servers as one sampler -----------------------------------------------------------------------------


class VllmSampler:
    """Satisfies `palimpsest.engines.protocol.Sampler`. Servers start when weights are first published."""

    def __init__(
        self,
        settings: SamplerConfig,
        limits: Limits,
        *,
        mode: LogprobsMode,
        dtype: str,
        logs: Path,
        server: Callable[..., Process] = ServerProcess,
    ) -> None:
        """`limits` of the model, `dtype` of its weights; `logs`: a folder for what the servers print; `server`: what
        starts one, called like `ServerProcess`.

        Raises ConfigError.
        """
        self._settings, self._vocab, self._dtype = settings, limits.vocab, dtype
        self.max_context = min(limits.max_context, settings.max_model_len or limits.max_context)
        key = os.environ.get("VLLM_API_KEY")
        members = [Member(VllmClient(url, url, key=key), None) for url in settings.urls]
        for index in range(0 if settings.urls else settings.servers):
            process = server(settings, index, mode=mode, dtype=dtype, window=self.max_context, folder=logs)
            members.append(Member(None, process))
        self._pool = Pool(members, settings, mode=mode, window=self.max_context)
        self._counts = SamplerStats()

    @property
    def probe_ids(self) -> tuple[int, ...]:
        """Ids that the learner scores under its new weights."""
        return probe_ids(self._vocab, self.max_context)

    def probe(self, logprobs: Sequence[float]) -> Probe:
        """Expected scores of `probe_ids`: the learner's [T - 1] nats of each after its predecessors."""
        return Probe(self.probe_ids, tuple(logprobs), self._dtype)

    @property
    def version(self) -> int:
        published = self._pool.published
        return published.version if published else 0

    @property
    def usable(self) -> bool:
        """True if a server has the weights published last."""
        return self._pool.usable

    @property
    def reading(self) -> set[Path]:
        """Folders of the servers that are starting."""
        return self._pool.reading

    @property
    def concurrency(self) -> int:
        """Requests that the servers take together."""
        return self._settings.max_in_flight * len(self._pool)

    async def load_weights(self, folder: Path, version: int, probe: Probe | None = None, final: bool = False) -> None:
        """Load the Hugging Face `folder` into the servers: safetensors with a separate output projection, under a name
        that was never loaded. Keep it until the next call has returned, since a restarted server reads it again, and
        while it is in `reading`. `probe`: the learner's scores of `probe_ids`, which every server must match; `final`:
        none follow, so tied weights are fine. The call waits for starting servers only if no other is left.

        Raises SamplerError if no server is left.
        """
        await self._pool.load_weights(folder, version, probe, final=final)

    async def sleep(self) -> None:
        """Free the servers' GPUs; requests wait until the next `load_weights`."""
        await self._pool.sleep()

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        """See `Sampler.generate`. The part of `session` before its last slash names the group."""
        self._check(prompt_ids, params.max_tokens)
        group = session.rpartition("/")[0] if session else None
        with self._counts.counted():
            async with self._pool.admitted(group) as (client, tag):
                version = self.version
                async with time_limit(self._settings.timeout_s, client.name, "timeout_s"):
                    answer = await client.generate(prompt_ids, params, version=tag)
            if max(answer.token_ids) >= self._vocab:
                raise SamplerError(f"{client.name}: sampled an id outside the vocabulary of {self._vocab}")
        self._counts.prompt_tokens += len(prompt_ids)
        self._counts.computed_prompt_tokens += len(prompt_ids) - answer.cached
        self._counts.generated_tokens += len(answer.token_ids)
        return Completion(answer.token_ids, answer.logprobs, answer.stop_reason, version)

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        """See `Sampler.stream`; all tokens arrive in one delta."""
        completion = await self.generate(prompt_ids, params, session=session)
        yield CompletionDelta(completion.token_ids, completion.logprobs)
        yield CompletionDelta(completion=completion)

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        if not ids:
            return ()
        self._check(prompt_ids, len(ids) + 1)  # a server samples one more
        self._check(ids, 1)
        limit = self._settings.timeout_s
        async with self._pool.admitted(None) as (client, tag), time_limit(limit, client.name, "timeout_s"):
            return await client.score(prompt_ids, ids, version=tag)

    def stats(self) -> SamplerStats:
        """See `SamplerStats`; counters that servers don't report are 0."""
        return replace(self._counts, busy_s=self._pool.busy_s)

    async def close(self) -> None:
        """End the servers that were started; a second call does nothing."""
        await self._pool.close()

    def _check(self, prompt_ids: Sequence[int], max_tokens: int) -> None:
        """Check a prompt here: vLLM accepts one that is too long."""
        check_prompt(prompt_ids, max_tokens, vocab=self._vocab, max_context=self.max_context)


# ---- Learner and engine --------------------------------------------------------------------------------------


FOLDER = "servers"
"""Folders in the run folder: server logs, and weights to be loaded."""


class WritesWeights(Learner, Protocol):
    """Additional methods of a learner that publishes to servers."""

    async def write_weights(self, folder: Path) -> None:
        """Write a new Hugging Face folder, with the output projection even if it is tied."""

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """[T - 1] nats of each of `ids` after its predecessors, by the current weights, at temperature 1."""


class Hosts(Protocol):
    """Machines that run the servers, and folders there with weights to load."""

    def server(
        self, settings: SamplerConfig, index: int, *, mode: LogprobsMode, dtype: str, window: int, folder: Path
    ) -> Process:
        """See `ServerProcess`."""

    async def write(self, name: str) -> Path:
        """Write the learner's weights into the new folder `name`."""

    async def keep(self, names: Set[str]) -> None:
        """Delete all other folders."""

    def clear(self) -> None:
        """Delete all; a second call does nothing."""


class ThisMachine:
    """Satisfies `Hosts`."""

    def __init__(self, learner: WritesWeights | StoredModel, folder: Path, *, in_turns: bool = False) -> None:
        """`folder`: a new one for weights, which servers of the user must see too; `in_turns`: see `ServedLearner`."""
        self._learner, self._path = learner, folder
        self.server = partial(ServerProcess, sleeps=in_turns)
        self._folder: process_guard.GuardedFolder | None = None

    async def write(self, name: str) -> Path:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = self._folder or process_guard.GuardedFolder(self._path)
        await self._learner.write_weights(self._path / name)
        return self._path / name

    async def keep(self, names: Set[str]) -> None:
        if self._folder is not None:
            await asyncio.to_thread(self._folder.keep, names)

    def clear(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.clear()


class ServedLearner:
    """A learner that publishes to servers. Satisfies `palimpsest.engines.protocol.Learner`."""

    def __init__(self, learner: WritesWeights, sampler: VllmSampler, hosts: Hosts, *, in_turns: bool = False) -> None:
        """`in_turns`: servers sleep while the learner learns."""
        self._learner, self._sampler, self._hosts, self._in_turns = learner, sampler, hosts, in_turns
        self._published: int | None = None
        self._count = 0

    @property
    def version(self) -> int:
        return self._learner.version

    @property
    def limits(self) -> Limits:
        return self._learner.limits

    async def update(self, steps: Sequence[StepBatch]) -> Sequence[UpdateStats]:
        if self._in_turns:
            self._published = None  # sleeping servers lose their weights, even if the update keeps the learner's
            await self._sampler.sleep()
        return await self._learner.update(steps)

    async def save(self, folder: Path) -> Mapping[str, str]:
        return await self._learner.save(folder)

    async def load(self, folder: Path) -> None:
        """See `Learner.load`; call `publish` to update the servers."""
        await self._learner.load(folder)
        self._published = None

    async def publish(self) -> int:
        """See `Learner.publish`. The first call starts the servers. Raises SamplerError if none is left."""
        if self._published == self.version:
            return self.version
        self._count += 1
        folder = await self._hosts.write(f"{self._count}-version-{self.version}")
        probe = self._sampler.probe(await self._learner.score(self._sampler.probe_ids))
        await self._sampler.load_weights(folder, self.version, probe)
        self._published = self.version
        await self._hosts.keep({folder.name, *(other.name for other in self._sampler.reading)})
        return self.version


class StoredModel:
    """Engine of a model that only servers load. Satisfies `palimpsest.engines.protocol.Engine`, without a sampler."""

    sampler: Any = None
    learner = None

    def __init__(self, config: ModelConfig, codec: Codec, limits: Limits, source: Path | Callable[..., None]) -> None:
        """`source`: the model's folder, or for an adapter what writes the merged model, `engines.open.write_merged`."""
        self.codec, self.limits, self.source, self._config = codec, limits, source, config

    async def write_weights(self, folder: Path) -> None:
        """Write the merged model into the new `folder`."""
        assert callable(self.source)
        folder.mkdir()
        await asyncio.to_thread(self.source, self._config, folder, untied=False)

    async def close(self) -> None: ...


class ServedEngine:
    """Satisfies `palimpsest.engines.protocol.Engine`."""

    def __init__(
        self,
        inner: Engine,
        learner: WritesWeights | StoredModel,
        config: RunConfig,
        folder: Path | None,
        hosts: Hosts | None = None,
    ) -> None:
        """`learner` is that of `inner`, or `inner` itself is a `StoredModel`, which is only sampled; `folder`: the run
        folder, if any; `hosts`: other machines for the servers. Raises ConfigError."""
        settings, stored = config.sampler, isinstance(learner, StoredModel)
        if hosts is None and settings.folder is not None and not Path(settings.folder).is_dir():
            raise ConfigError(f"sampler.folder={settings.folder}: no such folder; make it, or set it to null")
        if not settings.urls and (hosts is None or config.cluster.address is None):
            check_python(settings)
        name = f"palimpsest-{secrets.token_hex(4)}"
        logs = Path(tempfile.gettempdir()) / name if folder is None else folder / FOLDER
        handover = logs / name if settings.folder is None else Path(settings.folder) / name
        mode, dtype = logprobs_mode(config.eval_sampling if stored else config.sampling), config.model.dtype
        self._inner, self.codec, self._logs = inner, inner.codec, logs if folder is None else None
        self._hosts: Hosts = hosts or ThisMachine(learner, handover, in_turns=takes_turns(config))
        self.sampler = VllmSampler(settings, inner.limits, mode=mode, dtype=dtype, logs=logs, server=self._hosts.server)
        self.learner: ServedLearner | None = None
        if not isinstance(learner, StoredModel):
            self.learner = ServedLearner(learner, self.sampler, self._hosts, in_turns=takes_turns(config))
        window, who = self.sampler.max_context, "servers of yours" if settings.urls else f"vLLM, which prints to {logs}"
        note = "; ".join(filter(None, (inner.limits.note, f"sampled by {who}")))
        self.limits = replace(inner.limits, max_context=window, concurrency=self.sampler.concurrency, note=note)

    async def start_servers(self) -> None:
        """Start the servers of a `StoredModel`; a learner's start with its first publication. Raises SamplerError."""
        if isinstance(self._inner, StoredModel) and not self.sampler.usable:
            source = self._inner.source
            folder = source if isinstance(source, Path) else await self._hosts.write("merged")
            await self.sampler.load_weights(folder, 0, final=True)

    async def close(self) -> None:
        """End the servers that were started, and the engine of the learner; a second call does nothing."""
        try:
            if self.sampler.usable and self._logs is not None:  # no error names them
                await asyncio.to_thread(shutil.rmtree, self._logs, ignore_errors=True)
            await self.sampler.close()
        finally:
            await asyncio.to_thread(self._hosts.clear)
            await self._inner.close()
