"""The sampler on a GPU: the tokens of the CPU, and the log-probabilities of the learner on the same GPU."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from palimpsest.config.schema import LossConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.protocol import StepBatch
from palimpsest.types import Completion, SamplingParams
from support.forests import completed
from support.models import build_llama

pytestmark = pytest.mark.gpu

VOCAB = 200
GAP = {torch.float32: 1e-4, torch.bfloat16: 0.1}  # nats, the largest of all tokens
SHARED = [random.Random(0).randrange(VOCAB) for _ in range(120)]
PROMPTS = [SHARED + [token] * (1 + token % 9) for token in range(24)]


def model() -> Any:
    """Heads of 16, the smallest that FlexAttention takes on a GPU."""
    return build_llama(VOCAB, hidden_size=64, num_key_value_heads=2)


def completions(sampler: EmbeddedSampler, temperature: float) -> Sequence[Completion]:
    """One for each prompt, with different lengths."""

    async def all_at_once() -> Sequence[Completion]:
        params = (SamplingParams(8 + 3 * n, seed=n, temperature=temperature) for n in range(len(PROMPTS)))
        results = await asyncio.gather(*map(sampler.generate, PROMPTS, params))
        await sampler.close()
        return results

    return asyncio.run(all_at_once())


def test_greedy_tokens_are_the_cpus_with_shared_prefixes(
    device: str, record_property: Callable[[str, object], None]
) -> None:
    sampler = EmbeddedSampler(model().to(device), max_num_seqs=16)
    results = completions(sampler, 0.0)
    wanted = completions(EmbeddedSampler(model(), max_num_seqs=16, cache_tokens=0, fused=False), 0.0)
    assert [one.token_ids for one in results] == [one.token_ids for one in wanted]
    pairs = zip(results, wanted, strict=True)
    largest = max(abs(a - b) for one, two in pairs for a, b in zip(one.logprobs, two.logprobs, strict=True))
    record_property("largest difference of a log-probability", largest)
    assert largest < GAP[torch.float32]
    assert sampler.stats().computed_prompt_tokens < 0.3 * sampler.stats().prompt_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_sampled_log_probabilities_are_the_learners(
    dtype: torch.dtype, device: str, record_property: Callable[[str, object], None]
) -> None:
    sampled = model().to(device, dtype)
    learner = ForestLearner(copy.deepcopy(sampled), optim=OptimConfig(), loss=LossConfig())
    rows = map(completed, PROMPTS, completions(EmbeddedSampler(sampled, max_num_seqs=16), 1.0))
    stats = learner.accumulate(StepBatch(tuple(rows)))
    record_property("largest gap, nats", stats.maxima["logprob_gap"])
    record_property("mean gap, nats", stats.token_sums["logprob_gap"] / stats.tokens)
    assert stats.maxima["logprob_gap"] < GAP[dtype]
