"""The embedded engine: one model in this process, its codec, a sampler and a learner.

Sampler and learner share the weights and the compute thread, so neither reads weights during a write. An engine opened
to run ahead has two copies of the weights and two threads: while the learner trains, the sampler uses the published
ones.

Guaranteed: no computation on the event loop; equal configurations give equal bytes on one machine.
Not covered: several devices.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from palimpsest.config.engine import EmbeddedEngineConfig
from palimpsest.config.schema import RunConfig, is_served
from palimpsest.engines.embedded.architecture import context_of, ways_of
from palimpsest.engines.embedded.compute import ComputeThread, memory_of, set_threads
from palimpsest.engines.embedded.forest.forest_model import adopt
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import load_model, trainable
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.process_guard import give_back_freed_memory
from palimpsest.engines.protocol import Limits, Objective, StepBatch, UpdateStats, kv_bytes
from palimpsest.errors import ModelError
from palimpsest.text.codec import Codec


class SharedWeights:
    """The learner's and the sampler's weights, shared or copied, and publication between them.

    Learner and engine reference this object, not each other: without a reference cycle an unused engine frees its
    memory immediately.
    """

    def __init__(self, learnt: Any, sampled: Any, learning: ComputeThread, sampling: ComputeThread) -> None:
        self.learnt, self.sampled = learnt, sampled
        self.version = 0
        """Published version."""
        self.sampler: EmbeddedSampler | None = None
        """Notified of each version; None until first used."""
        self._learning, self._sampling = learning, sampling

    async def publish(self, version: int) -> None:
        """Publish the learner's current weights to the sampler."""
        if self.sampled is not self.learnt:
            await self._learning.run(self._copy)
        self.version = version
        if self.sampler is not None:
            await self.sampler.publish(version)

    def _copy(self) -> None:
        """Called on the learner's thread, runs on the sampler's."""
        self._sampling.post(_copy, self.learnt, self.sampled).result()


class EmbeddedLearner:
    """A `ForestLearner` on a compute thread. Satisfies `palimpsest.engines.protocol.Learner`."""

    def __init__(self, learner: ForestLearner, thread: ComputeThread, weights: SharedWeights) -> None:
        self._learner, self._thread, self._weights = learner, thread, weights

    @property
    def version(self) -> int:
        return self._learner.version

    @property
    def limits(self) -> Limits:
        return self._learner.limits

    async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
        return await self._thread.run(self._learner.update, steps)

    async def save(self, folder: Path) -> Mapping[str, str]:
        return await self._thread.run(self._learner.save, folder)

    async def load(self, folder: Path) -> None:
        """See `Learner.load`; also publishes the loaded weights."""
        await self._thread.run(self._learner.load, folder)
        await self.publish()

    async def write_weights(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder for another process; see `write_untied`."""
        await self._thread.run(self._learner.write_weights, folder)

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """[T - 1] nats of each of `ids` after those before it, at temperature 1; frees a GPU's unused memory."""
        scores = await self._thread.run(self._learner.score, ids)
        await self._thread.run(torch.cuda.empty_cache)
        return scores

    async def publish(self) -> int:
        await self._weights.publish(self.version)
        return self.version


class EmbeddedEngine:
    """Satisfies `palimpsest.engines.protocol.Engine`."""

    def __init__(self, config: RunConfig, *, objective: Objective | None, separate: bool = False) -> None:
        """Load `config.model`; raises ModelError if it can't be used.

        `separate`: separate weights and thread for the sampler, to sample while the learner trains.
        """
        settings = config.engine
        assert isinstance(settings, EmbeddedEngineConfig)
        set_threads(settings.num_threads)
        self._settings, self._served = settings, is_served(config, objective)
        self._thread = self._sampling_thread = ComputeThread(settings.num_threads)
        self.codec = Codec.load(config.model)
        self.model = trainable(config.model) if objective else load_model(config.model)
        check_vocabulary(self.codec, self.limits.vocab, config.model.path)
        self._weights = SharedWeights(self.model, self.model, self._thread, self._thread)
        self.learner: EmbeddedLearner | None = None
        if objective is None:
            self.model.requires_grad_(False)
            return
        adopt(self.model, config.learner.layout)
        if separate:
            self._sampling_thread = ComputeThread(settings.num_threads)
            sampled = copy.deepcopy(self.model).requires_grad_(False)
            self._weights = SharedWeights(self.model, sampled, self._thread, self._sampling_thread)
        steps_per_batch = config.train.num_minibatches if objective == "policy" else 1
        self.trainer = ForestLearner(
            self.model,
            optim=config.optim,
            loss=config.loss,
            objective=objective,
            temperature=config.sampling.temperature,
            micro_batch_tokens=settings.micro_batch_tokens,
            total_steps=config.train.max_steps * steps_per_batch,
            tokenizer=self.codec.tokenizer,
        )
        self.learner = EmbeddedLearner(self.trainer, self._thread, self._weights)

    @cached_property
    def sampler(self) -> EmbeddedSampler:
        """The sampler, built on first use: imitation needs none."""
        sampler = EmbeddedSampler(
            self._weights.sampled,
            thread=self._sampling_thread,
            version=self._weights.version,
            max_num_seqs=self._settings.max_num_seqs,
            cache_tokens=self._settings.cache_tokens,
            memory=kv_bytes(self._settings.kv_cache_gb, memory_of(self.model.get_input_embeddings().weight.device)),
        )
        self._weights.sampler = sampler
        return sampler

    @property
    def limits(self) -> Limits:
        vocab = int(self.model.get_output_embeddings().weight.shape[0])
        context, ways = context_of(self.model), ways_of(self.model)
        notes = [f"the window is {context.tokens} tokens {context.reason}"] if context.reason else []
        if ways.sampling != "pool" and not self._served:
            notes.append(
                f"sampled slowly, one sequence after another ({ways.sampling_reason}): sampler.name=vllm is faster"
            )
        if ways.layout == "segments":
            notes.append(f"trained by segments, without sharing prefixes ({ways.layout_reason})")
        return Limits(vocab, context.tokens, self._settings.max_num_seqs, "; ".join(notes))

    async def close(self) -> None:
        """Cancel sampling, end the threads and release their memory."""
        if "sampler" in self.__dict__:
            await self.sampler.close()
        await self._sampling_thread.close()
        await self._thread.close()
        give_back_freed_memory()


def check_vocabulary(codec: Codec, rows: int, path: str) -> None:
    """Reject a tokenizer whose ids, end-of-turn ids included, exceed the model's embedding rows."""
    words = set(codec.tokenizer.get_vocab().values()) - codec.control_ids
    if (largest := max((*words, *codec.stop_ids), default=0)) >= rows:
        raise ModelError(
            f"model {path}: its tokenizer has id {largest}, the model has {rows} rows of embeddings: use the model's "
            "own tokenizer, or resize the embeddings"
        )


@torch.no_grad()
def _copy(source: Any, target: Any) -> None:
    weights = dict(source.named_parameters())
    for name, weight in target.named_parameters():
        weight.copy_(weights[name])
