"""An engine whose learner is another engine's and whose sampler is a pool of vLLM servers.

    publish: the learner's weights -> a folder of a new name -> every server -> the folder before it is deleted

Guaranteed: a version is written once, however often it is published; no weights stay on their way once the engine is
closed, or its process is killed (engines/guard.py).
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from palimpsest.config.sampler import logprobs_mode
from palimpsest.config.schema import RunConfig
from palimpsest.engines import guard
from palimpsest.engines.protocol import Engine, Learner, Limits, StepBatch, UpdateStats
from palimpsest.engines.vllm.process import check_python
from palimpsest.engines.vllm.sampler import VllmSampler
from palimpsest.errors import ConfigError

FOLDER = "servers"
"""In the run folder: what servers print, and weights on their way to them."""


class WritesWeights(Learner, Protocol):
    """What is needed of a learner besides."""

    async def write_weights(self, folder: Path) -> None:
        """Write a Hugging Face folder that isn't there yet, its output projection written out even where it is tied."""
        ...

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """[T - 1] nats of each of `ids` after those before it, by the present weights, at temperature 1."""
        ...


class ServedLearner:
    """A learner that publishes to servers. Satisfies `palimpsest.engines.protocol.Learner`."""

    def __init__(self, learner: WritesWeights, sampler: VllmSampler, handover: Path) -> None:
        """`handover` is where weights lie on their way."""
        self._learner, self._sampler, self._handover = learner, sampler, handover
        self._published: int | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._count = 0

    @property
    def version(self) -> int:
        return self._learner.version

    @property
    def limits(self) -> Limits:
        return self._learner.limits

    async def update(self, steps: Sequence[StepBatch]) -> Sequence[UpdateStats]:
        """See `Learner.update`."""
        return await self._learner.update(steps)

    async def save(self, folder: Path) -> Mapping[str, str]:
        """See `Learner.save`."""
        return await self._learner.save(folder)

    async def load(self, folder: Path) -> None:
        """See `Learner.load`; `publish` makes the weights the servers'."""
        await self._learner.load(folder)
        self._published = None

    async def publish(self) -> int:
        """See `Learner.publish`. The first time servers are started. Raises SamplerError if none is left."""
        if self._published == self.version:
            return self.version
        if self._guard is None:
            self._guard = guard.start(secrets.token_hex(8), [self._handover])
            self._handover.mkdir(mode=0o700, parents=True)
        self._count += 1
        folder = self._handover / f"{self._count}-version-{self.version}"
        await self._learner.write_weights(folder)
        probe = self._sampler.probe(await self._learner.score(self._sampler.probe_ids))
        await self._sampler.load_weights(folder, self.version, probe)
        self._published = self.version
        for other in self._handover.iterdir():
            if other != folder:
                await asyncio.to_thread(shutil.rmtree, other)
        return self.version

    def clear(self) -> None:
        """Delete what lies on the way; a second call does nothing."""
        watching, self._guard = self._guard, None
        if watching is not None:
            guard.finish(watching)


class ServedEngine:
    """Satisfies `palimpsest.engines.protocol.Engine`."""

    def __init__(self, inner: Engine, learner: WritesWeights, config: RunConfig, folder: Path | None) -> None:
        """`learner` is that of `inner`; `folder` is the run's, None: there is none. Raises ConfigError."""
        settings = config.sampler
        if settings.folder is not None and not Path(settings.folder).is_dir():
            raise ConfigError(f"sampler.folder={settings.folder}: no such folder; make it, or set it to null")
        if not settings.urls:
            check_python(settings)
        name = f"palimpsest-{secrets.token_hex(4)}"
        logs = Path(tempfile.gettempdir()) / name if folder is None else folder / FOLDER
        handover = logs / name if settings.folder is None else Path(settings.folder) / name
        mode, dtype = logprobs_mode(config.sampling), config.model.dtype
        self._inner, self.codec = inner, inner.codec
        self.sampler = VllmSampler(settings, inner.limits, mode=mode, dtype=dtype, logs=logs)
        self.learner = ServedLearner(learner, self.sampler, handover)
        window, who = self.sampler.max_context, "servers of yours" if settings.urls else f"vLLM, which prints to {logs}"
        note = "; ".join(filter(None, (inner.limits.note, f"sampled by {who}")))
        self.limits = replace(inner.limits, max_context=window, concurrency=self.sampler.concurrency, note=note)

    async def close(self) -> None:
        """End the servers that were started, and the engine of the learner; a second call does nothing."""
        try:
            await self.sampler.close()
        finally:
            await asyncio.to_thread(self.learner.clear)
            await self._inner.close()
