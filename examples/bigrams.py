"""A minimal engine in one file: a table of bigrams in NumPy instead of a transformer.

palimpsest train memagent-quickstart engine.name=examples.bigrams:BigramEngine cold_start=null
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from palimpsest import Codec, Completion, RunConfig, StopReason
from palimpsest.config.engine import model_path
from palimpsest.engines.protocol import CompletionDelta, Limits, Objective, SamplerStats, StepBatch, UpdateStats
from palimpsest.files import hashes
from palimpsest.types import SamplingParams

Ids = Sequence[int]
Deltas = AsyncIterator[CompletionDelta]


class BigramEngine:
    """Engine, sampler and learner in one object; `scores` [V, V] are the next token's, by the last one."""

    version, max_context = 0, 32_768

    def __init__(self, config: RunConfig, *, objective: Objective | None, learning_rate: float = 100.0) -> None:
        self.codec = Codec.load(config.model)
        self.limits = Limits(self.codec.vocab_size, self.max_context)
        self.sampler, self.learner = self, self if objective else None
        self._rate, self._scores = learning_rate, np.zeros((self.limits.vocab,) * 2, np.float32)
        if (saved := Path(model_path(config.model)) / "bigrams.safetensors").is_file():
            self._scores = load_file(saved)["scores"]  # our checkpoint, to evaluate or continue training

    async def close(self) -> None: ...

    def _nats(self, last: int, temperature: float = 1.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        scores = self._scores[last].astype(np.float64) / (temperature or 1.0)
        return np.asarray(scores - np.logaddexp.reduce(scores))

    async def stream(self, prompt_ids: Ids, params: SamplingParams, *, session: str | None = None) -> Deltas:
        draw, ids, logprobs, stopped = np.random.default_rng(params.seed), tuple[int, ...](), tuple[float, ...](), False
        while len(ids) < params.max_tokens and not stopped:
            nats = self._nats((*prompt_ids, *ids)[-1], params.temperature)
            token = int(draw.choice(len(nats), p=np.exp(nats)) if params.temperature else nats.argmax())
            ids, logprobs, stopped = (*ids, token), (*logprobs, float(nats[token])), token in params.stop_ids
            yield CompletionDelta(ids[-1:], logprobs[-1:])
            await asyncio.sleep(0)
        ended = StopReason.STOP if stopped else StopReason.LENGTH
        yield CompletionDelta(completion=Completion(ids, logprobs, ended, self.version))

    async def generate(self, prompt_ids: Ids, params: SamplingParams, *, session: str | None = None) -> Completion:
        (whole,) = [done async for delta in self.stream(prompt_ids, params) if (done := delta.completion)]
        return whole

    async def score(self, prompt_ids: Ids, ids: Ids) -> tuple[float, ...]:
        return tuple(float(self._nats(a)[b]) for a, b in zip([prompt_ids[-1], *ids], ids, strict=False))

    def stats(self) -> SamplerStats:
        return SamplerStats()

    async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
        return [self._step(batch) for batch in steps]

    def _step(self, batch: StepBatch) -> UpdateStats:
        """Policy gradient; with advantages of 1, as in imitation, that of the likelihood."""
        gradient = np.zeros_like(self._scores)
        for row in batch.segments:
            for t, advantage, weight in zip(row.segment.positions, row.advantages, row.weights, strict=True):
                last, token = row.segment.token_ids[t - 1 : t + 1]
                wrong = np.exp(self._nats(last)) - np.eye(1, self.limits.vocab, token)[0]
                gradient[last] += weight * advantage * wrong
        self._scores -= self._rate * gradient
        self.version += 1
        return UpdateStats(tokens=sum(len(row.weights) for row in batch.segments))

    async def publish(self) -> int:
        return self.version

    async def save(self, folder: Path) -> dict[str, str]:
        save_file({"scores": self._scores, "version": np.array(self.version)}, folder / "bigrams.safetensors")
        self.codec.save(folder)
        return hashes(folder)

    async def load(self, folder: Path) -> None:
        saved = load_file(folder / "bigrams.safetensors")
        self._scores, self.version = saved["scores"], int(saved["version"])
