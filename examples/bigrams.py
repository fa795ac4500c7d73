"""An engine in one file: a table of bigrams in NumPy instead of a transformer. It shows what an engine has to be.

palimpsest train memagent-quickstart engine.name=examples.bigrams:BigramEngine cold_start=null
"""

import asyncio

import numpy as np
from safetensors.numpy import load_file, save_file

from palimpsest.config.models import model_path
from palimpsest.engines.protocol import CompletionDelta, Limits, SamplerStats, UpdateStats
from palimpsest.files import hashes
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, StopReason


class BigramEngine:
    """Engine, sampler and learner in one object; `scores` [V, V] are the next token's, by the last one."""

    version, max_context = 0, 32_768

    def __init__(self, config, *, objective, learning_rate: float = 100.0):
        self.codec = Codec.load(model_path(config.model))
        self.limits = Limits(self.codec.vocab_size, self.max_context)
        self.sampler, self.learner = self, self if objective else None
        self._rate, self._scores = learning_rate, np.zeros((self.limits.vocab,) * 2, np.float32)

    async def close(self): ...

    def _nats(self, last, temperature=1.0):
        scores = self._scores[last].astype(np.float64) / (temperature or 1.0)
        return scores - np.logaddexp.reduce(scores)

    async def stream(self, prompt_ids, params, *, session=None):
        draw, ids, logprobs, stopped = np.random.default_rng(params.seed), (), (), False
        while len(ids) < params.max_tokens and not stopped:
            nats = self._nats((*prompt_ids, *ids)[-1], params.temperature)
            token = int(draw.choice(len(nats), p=np.exp(nats)) if params.temperature else nats.argmax())
            ids, logprobs, stopped = (*ids, token), (*logprobs, float(nats[token])), token in params.stop_ids
            yield CompletionDelta(ids[-1:], logprobs[-1:])
            await asyncio.sleep(0)
        ended = StopReason.STOP if stopped else StopReason.LENGTH
        yield CompletionDelta(completion=Completion(ids, logprobs, ended, self.version))

    async def generate(self, prompt_ids, params, *, session=None):
        return [delta async for delta in self.stream(prompt_ids, params)][-1].completion

    async def score(self, prompt_ids, ids):
        return tuple(float(self._nats(a)[b]) for a, b in zip([prompt_ids[-1], *ids], ids, strict=False))

    def stats(self):
        return SamplerStats()

    async def update(self, steps):
        return [self._step(batch.segments) for batch in steps]

    def _step(self, rows):
        """Policy gradient; with advantages of 1, as in imitation, that of the likelihood."""
        gradient = np.zeros_like(self._scores)
        for row in rows:
            for t in np.flatnonzero(row.segment.loss_mask):
                last, token = row.segment.token_ids[t - 1 : t + 1]
                wrong = np.exp(self._nats(last)) - np.eye(1, self.limits.vocab, token)[0]
                gradient[last] += row.weights[t] * row.advantages[t] * wrong
        self._scores -= self._rate * gradient
        self.version += 1
        return UpdateStats(tokens=sum(sum(row.segment.loss_mask) for row in rows))

    async def publish(self):
        return self.version

    async def save(self, folder):
        save_file({"scores": self._scores, "version": np.array(self.version)}, folder / "bigrams.safetensors")
        return hashes(folder)

    async def load(self, folder):
        saved = load_file(folder / "bigrams.safetensors")
        self._scores, self.version = saved["scores"], int(saved["version"])
