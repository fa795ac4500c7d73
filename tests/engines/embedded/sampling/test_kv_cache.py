"""The prefix cache: matches, evictions, and completions that do not depend on it."""

from __future__ import annotations

import asyncio
import random
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
import torch

from palimpsest.engines.embedded.sampling.kv_cache import KVPool, KVShape, PrefixCache
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.protocol import SamplerStats
from palimpsest.types import Completion, SamplingParams
from support.models import build_llama

VOCAB = 50


def cache_over(capacity: int, *, rows: int = 4, length: int = 64) -> tuple[PrefixCache, KVPool]:
    pool = KVPool(KVShape(layers=2, heads=2, head_dim=3, dtype=torch.float32, device=torch.device("cpu")))
    pool.resize(rows, length)
    return PrefixCache(pool, capacity), pool


def write(pool: KVPool, row: int, ids: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Keys and values that depend on the full prefix, so that a wrong slot is detected."""
    for index, layer in enumerate(pool.layers):
        for position in range(len(ids)):
            layer[:, row, :, position] = float(hash((index, *ids[: position + 1])) % 100_003)
    return np.array(ids, np.int64)


def longest_common(prompt: list[int], stored: list[list[int]]) -> int:
    pairs = (takewhile(lambda pair: pair[0] == pair[1], zip(prompt, other, strict=False)) for other in stored)
    return max((len(list(common)) for common in pairs), default=0)


def test_a_match_is_the_longest_stored_prefix() -> None:
    draw = random.Random(0)
    cache, pool = cache_over(10_000)
    stored: list[list[int]] = []
    for _ in range(150):
        base = draw.choice(stored) if stored and draw.random() < 0.8 else []
        ids = [*base[: draw.randint(0, len(base))], *(draw.randrange(3) for _ in range(draw.randint(1, 20)))][:64]
        match = cache.match(np.array(ids, np.int64))
        assert len(match) == longest_common(ids, stored)
        cache.insert(write(pool, 0, ids), 0)
        cache.flush()
        stored.append(ids)
    distinct = {tuple(ids[: end + 1]) for ids in stored for end in range(len(ids))}
    assert cache.tokens == len(distinct), "a shared prefix is stored once"
    assert cache.evicted == 0


@pytest.mark.parametrize("capacity", [0, 7, 40, 200])
def test_loaded_values_are_the_stored_ones_after_slots_were_reused(capacity: int) -> None:
    draw = random.Random(capacity)
    cache, pool = cache_over(capacity)
    for turn in range(120):
        ids = [turn % 5, *(draw.randrange(2) for _ in range(draw.randint(5, 50)))]
        match = cache.match(np.array(ids, np.int64))
        write(pool, 1, ids)
        expected = [layer[:, 1, :, : len(match)].clone() for layer in pool.layers]
        cache.load([(2, 0, match)] if len(match) else [])
        for layer, wanted in zip(pool.layers, expected, strict=True):
            assert torch.equal(layer[:, 2, :, : len(match)], wanted)
        cache.insert(np.array(ids, np.int64), 1)
        if draw.random() < 0.5:  # two inserts before one flush, from rows that stay as they are
            other = [9, *ids[1:]]
            cache.insert(write(pool, 3, other), 3)
        cache.flush()
        assert cache.tokens <= capacity
    assert (cache.evicted > 0) == (capacity > 0)


def test_the_least_recently_used_sequence_is_evicted() -> None:
    cache, pool = cache_over(30)

    def stored(first: int) -> int:
        path, inside = cache._walk(np.array([first] * 10, np.int64).tobytes())  # looks without using
        return sum(len(node.slots) for node in path[:-1]) + inside

    for first in (1, 2, 3):
        cache.insert(write(pool, 0, [first] * 10), 0)
        cache.flush()
    cache.match(np.array([1] * 10, np.int64))
    cache.insert(write(pool, 0, [4] * 10), 0)
    cache.flush()
    assert [stored(i) for i in (1, 2, 3, 4)] == [10, 0, 10, 10]


def test_a_shared_prefix_outlives_its_continuations() -> None:
    cache, pool = cache_over(50)
    for last in range(10):
        cache.insert(write(pool, 0, [7] * 20 + [10 + last] * 12), 0)
        cache.flush()
    assert len(cache.match(np.array([7] * 20 + [1], np.int64))) == 20
    assert cache.evicted >= 8 * 12


DOCUMENTS, GROUP, SECTIONS = 2, 5, 3


def play(cache_tokens: int, slots: int) -> tuple[list[Completion], SamplerStats]:
    """Concurrent episodes of MemAgent, whose sampled memory is part of the next prompt."""
    draw = random.Random(0)
    texts = [[[draw.randrange(VOCAB) for _ in range(100)] for _ in range(SECTIONS)] for _ in range(DOCUMENTS)]
    sampler = EmbeddedSampler(build_llama(VOCAB), max_num_seqs=slots, cache_tokens=cache_tokens)

    async def episode(document: int, rollout: int) -> list[Completion]:
        memory, turns = [document] * 20, []
        for turn, section in enumerate(texts[document]):
            seed = (document * 100 + rollout) * 10 + turn
            params = SamplingParams(max_tokens=18 + seed % 5, seed=seed)
            turns.append(await sampler.generate([*section, 1, *memory, 2], params))
            memory = list(turns[-1].token_ids)
        return turns

    async def go() -> list[list[Completion]]:
        return await asyncio.gather(*(episode(d, g) for d in range(DOCUMENTS) for g in range(GROUP)))

    return [turn for turns in asyncio.run(go()) for turn in turns], sampler.stats()


@pytest.mark.parametrize("slots", [3, 32])
def test_completions_are_those_without_a_cache_and_sections_are_computed_once(slots: int) -> None:
    """Also with fewer slots than rollouts."""
    plain, off = play(0, slots)
    assert off.computed_prompt_tokens == off.prompt_tokens
    for capacity in (60, 300, 65_536):  # thrashing, evicting, ample
        cached, on = play(capacity, slots)
        assert [c.token_ids for c in cached] == [c.token_ids for c in plain]
        pairs = [pair for x, y in zip(cached, plain, strict=True) for pair in zip(x.logprobs, y.logprobs, strict=True)]
        assert max(abs(a - b) for a, b in pairs) < 1e-5
        assert on.computed_prompt_tokens < on.prompt_tokens
        assert (on.evicted_tokens > 0) == (capacity < 65_536)
    memories = on.prompt_tokens - 100 * len(cached)  # recomputed in any case
    assert on.computed_prompt_tokens <= DOCUMENTS * SECTIONS * 100 + memories
