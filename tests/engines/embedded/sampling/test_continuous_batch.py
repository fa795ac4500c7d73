"""Continuous batching: completions, when rows are freed, and that batching changes only rounding."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from palimpsest.engines.embedded.sampling.kv_cache import KVPool
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.errors import PromptTooLong, SamplerError
from palimpsest.types import Completion, SamplingParams, StopReason
from support.models import build_llama, sampling_gap
from support.prompts import VOCAB, grouped, prompts

TOLERANCE = 1e-4  # nats, float32


def params(index: int, **changes: Any) -> SamplingParams:
    values: dict[str, Any] = {"max_tokens": 1 + index % 13, "seed": index, "stop_ids": (3, 4, 5, 6, 7)}
    return SamplingParams(**{**values, **changes})


def complete(sampler: EmbeddedSampler, batch: Sequence[Sequence[int]], **changes: Any) -> list[Any]:
    """Completions, or exceptions, of one request per prompt."""

    async def go() -> list[Any]:
        calls = (sampler.generate(p, params(i, **changes)) for i, p in enumerate(batch))
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(go())


def ids_of(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


@pytest.fixture(scope="module")
def model() -> Any:
    return build_llama(VOCAB)


def test_the_pool_has_the_rows_in_use_stays_within_its_memory_and_is_freed(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resize, rows = KVPool.resize, list[int]()

    def noted(pool: KVPool, count: int, capacity: int, used: int = 0) -> None:
        resize(pool, count, capacity, used)
        rows.append(count)

    monkeypatch.setattr(KVPool, "resize", noted)
    batch = grouped(4, 6)
    wanted = complete(EmbeddedSampler(model), batch)
    one = EmbeddedSampler(model)
    complete(one, batch[:1])
    assert rows[-1] == 1
    token = one._batch._pool.shape.token_bytes
    small = EmbeddedSampler(model, memory=2 * 3 * 64 * token)  # half of it: three rows of 64 tokens
    first = complete(small, batch)
    assert ids_of(first) == ids_of(wanted)
    assert rows[-1] == 3
    long = [*batch[:5], *[prompt * 4 for prompt in batch[5:7]], *batch[7:]]  # longer than three rows allow
    completed = complete(small, long)
    assert rows[-1] == 1
    assert ids_of(completed) == ids_of(complete(EmbeddedSampler(model), long))
    assert complete(small, batch) == first  # as if the long ones had never been
    asyncio.run(small._thread.run(lambda: None))
    assert (small._batch._pool.rows, small._batch._pool.layers, small._batch._cache._layers) == (0, [], [])
    assert small._batch._cache.capacity == 3 * 64


def test_a_pool_without_memory_names_its_size_and_the_key(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, zeros = EmbeddedSampler(model), torch.zeros

    def full(size: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(size, tuple) and len(size) == 5:
            raise RuntimeError("can't allocate memory")
        return zeros(size, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "zeros", full)
        (failure,) = complete(sampler, prompts(1))
        assert isinstance(failure, SamplerError)
        assert "GB; set engine.max_num_seqs" in str(failure)
    assert len(complete(sampler, prompts(1))[0].token_ids) == 1


def test_completions_end_at_a_stop_token_or_their_budget(model: Any) -> None:
    completions = complete(EmbeddedSampler(model), prompts(60))
    for index, completion in enumerate(completions):
        stops = [t for t in completion.token_ids if t in params(index).stop_ids]
        if completion.stop_reason is StopReason.STOP:
            assert stops == [completion.token_ids[-1]]
        else:
            assert not stops
            assert len(completion.token_ids) == params(index).max_tokens
    assert {c.stop_reason for c in completions} == {StopReason.STOP, StopReason.LENGTH}


def test_the_same_requests_give_the_same_bytes_and_other_batches_the_same_tokens(model: Any) -> None:
    batch = grouped(4, 6)
    sampler = EmbeddedSampler(model, max_num_seqs=7)
    first = complete(sampler, batch)
    assert complete(sampler, batch) == first, "a batch depended on the one before it"
    assert complete(EmbeddedSampler(model, max_num_seqs=7), batch) == first
    one_by_one = complete(EmbeddedSampler(model, max_num_seqs=1, cache_tokens=0, fused=False), batch)
    assert ids_of(first) == ids_of(one_by_one)
    pairs = zip(first, one_by_one, strict=True)
    assert max(abs(a - b) for x, y in pairs for a, b in zip(x.logprobs, y.logprobs, strict=True)) < 1e-5


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "generic"])
def test_shared_prefixes_are_computed_once_and_change_nothing(model: Any, fused: bool) -> None:
    batch = grouped(4, 6)
    sharing, plain = (EmbeddedSampler(model, fused=fused, cache_tokens=n) for n in (4096, 0))
    shared, plain_results = complete(sharing, batch), complete(plain, batch)
    assert ids_of(shared) == ids_of(plain_results)
    assert plain.stats().computed_prompt_tokens == sum(map(len, batch))
    heads = sum(map(len, prompts(4, seed=1, low=30, high=40)))
    tails = sum(map(len, batch)) - 6 * heads
    assert sharing.stats().computed_prompt_tokens <= heads + tails + len(batch)


def test_a_growing_prompt_is_computed_from_its_new_tokens(model: Any) -> None:
    sampler = EmbeddedSampler(model, max_num_seqs=2)

    async def go() -> None:
        anchor = asyncio.ensure_future(sampler.generate([9] * 5, SamplingParams(max_tokens=100)))  # keeps it busy
        prompt = prompts(1, low=40, high=40)[0]
        for turn in range(4):
            completion = await sampler.generate(prompt, SamplingParams(max_tokens=20, seed=turn))
            prompt = [*prompt, *completion.token_ids, 1, 2]
        await anchor

    asyncio.run(go())
    assert sampler.stats().computed_prompt_tokens <= 5 + 40 + 3 * 4


def test_a_finished_request_frees_its_row_at_once(model: Any) -> None:
    """A long request holds one of two rows while ten short ones pass through the other."""
    sampler = EmbeddedSampler(model, max_num_seqs=2)

    async def go() -> None:
        tokens = (60, *[3] * 10)
        await asyncio.gather(*(sampler.generate([1, 2, 3], SamplingParams(max_tokens=n)) for n in tokens))

    asyncio.run(go())
    assert sampler.stats().steps <= 62, "short requests waited for the long one"


def test_the_next_turn_of_an_episode_starts_in_the_next_step(model: Any) -> None:
    sampler = EmbeddedSampler(model)

    async def episode(turns: int) -> None:
        for turn in range(turns):
            await sampler.generate([5, 6, 7 + turn], SamplingParams(max_tokens=2))

    async def go() -> None:
        await asyncio.gather(episode(10), sampler.generate([1], SamplingParams(max_tokens=20)))

    asyncio.run(go())
    assert sampler.stats().steps == 20


def test_a_cancelled_request_frees_its_row_and_changes_no_other(model: Any) -> None:
    batch = prompts(6)
    undisturbed = complete(EmbeddedSampler(model, max_num_seqs=3), batch, max_tokens=30, stop_ids=())
    sampler = EmbeddedSampler(model, max_num_seqs=3)

    async def go() -> list[Completion | BaseException]:
        calls = (sampler.generate(p, params(i, max_tokens=30, stop_ids=())) for i, p in enumerate(batch))
        tasks = [asyncio.ensure_future(call) for call in calls]
        while sampler.stats().steps < 3:  # two or three are rolling, the others wait
            await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[5].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results: list[Any] = asyncio.run(go())
    assert [isinstance(r, asyncio.CancelledError) for r in results] == [i in (1, 5) for i in range(6)]
    assert all(results[i].token_ids == undisturbed[i].token_ids for i in (0, 2, 3, 4))
    assert complete(sampler, batch, max_tokens=30, stop_ids=()) == undisturbed


@pytest.mark.parametrize(("prompt", "error"), [([1] * 510, PromptTooLong), ([VOCAB], SamplerError)])
def test_prompts_that_cannot_be_completed_are_rejected(model: Any, prompt: list[int], error: type[Exception]) -> None:
    sampler = EmbeddedSampler(model)
    with pytest.raises(error):
        asyncio.run(sampler.generate(prompt, SamplingParams(max_tokens=3)))
    assert len(asyncio.run(sampler.generate([1] * 509, SamplingParams(max_tokens=3))).token_ids) == 3


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "generic"])
def test_non_finite_logits_fail_only_their_request(fused: bool) -> None:
    model = build_llama(VOCAB, tie_word_embeddings=False)
    sampler = EmbeddedSampler(model, fused=fused)
    with torch.no_grad():
        model.get_input_embeddings().weight[77] = torch.nan
    asyncio.run(sampler.publish(1))
    results = complete(sampler, [[1, 2, 3], [1, 77, 3], [4, 5, 6]], stop_ids=())
    assert [isinstance(result, SamplerError) for result in results] == [False, True, False]
    assert isinstance(results[0], Completion)


def test_a_broken_engine_answers_every_caller_and_recovers(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = EmbeddedSampler(model, max_num_seqs=2)
    before = complete(sampler, prompts(5))

    def broken(*args: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(sampler._batch._forward, "step", broken)
        assert all(isinstance(result, SamplerError) for result in complete(sampler, prompts(5)))
    assert complete(sampler, prompts(5)) == before


@pytest.mark.parametrize("closes", [False, True])
def test_a_loop_that_ends_with_requests_leaves_no_rows_in_use(model: Any, closes: bool) -> None:
    """`asyncio.run` cancels the sampler's task; a loop that is closed leaves it unfinished."""
    batch = prompts(6)
    sampler, fresh = EmbeddedSampler(model, max_num_seqs=4), EmbeddedSampler(model, max_num_seqs=4)

    async def give_up() -> list[asyncio.Task[Completion]]:
        wanted = (sampler.generate(p, params(i, max_tokens=50, stop_ids=())) for i, p in enumerate(batch))
        left = [asyncio.create_task(one) for one in wanted]
        while sampler.stats().steps < 3:
            await asyncio.sleep(0)
        assert not any(one.done() for one in left)
        return left

    if closes:
        loop = asyncio.new_event_loop()
        left = loop.run_until_complete(give_up())
        loop.set_exception_handler(lambda *_: None)  # it reports the tasks that it destroys
        loop.close()
        assert not any(one.done() for one in left)
    else:
        asyncio.run(give_up())
    assert complete(sampler, batch) == complete(fresh, batch)


def test_values_computed_with_older_weights_are_not_shared(model: Any) -> None:
    """Also if the weights are published while a request with the same prompt is in flight."""
    prompt = prompts(1, low=40, high=40)[0]
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for weight in changed.parameters():
            weight.mul_(1.1)
    served = copy.deepcopy(model)
    sampler = EmbeddedSampler(served)

    async def go() -> Completion:
        early = asyncio.ensure_future(sampler.generate(prompt, params(0, max_tokens=20, stop_ids=())))
        while not sampler.stats().generated_tokens:
            await asyncio.sleep(0)
        served.load_state_dict(changed.state_dict())
        await sampler.publish(1)
        late = await sampler.generate(prompt, params(1, max_tokens=4, stop_ids=()))
        await early
        after = await sampler.generate(prompt, params(1, max_tokens=4, stop_ids=()))
        assert sampling_gap(changed, prompt, after) < TOLERANCE
        return late

    assert sampling_gap(changed, prompt, asyncio.run(go())) < TOLERANCE
