"""Continuous batching: what comes back, when rows free up, and that batching changes nothing that matters."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from palimpsest.engines.embedded.sampling.forward import FusedForward, HFForward
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.errors import PromptTooLong, SamplerError
from palimpsest.types import Completion, SamplingParams, StopReason
from support.models import build_llama

VOCAB = 200
TOLERANCE = 1e-4  # nats, float32


def prompts(count: int, *, seed: int = 0, low: int = 3, high: int = 60) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(VOCAB) for _ in range(draw.randint(low, high))] for _ in range(count)]


def grouped(groups: int, size: int) -> list[list[int]]:
    """Prompts that share a long beginning within a group, some of them whole."""
    heads, tails = prompts(groups, seed=1, low=30, high=40), prompts(groups * size, seed=2, low=1, high=12)
    return [heads[i // size] + (tails[i] if i % 3 else []) for i in range(groups * size)]


def params(index: int, **changes: Any) -> SamplingParams:
    values: dict[str, Any] = {"max_tokens": 1 + index % 13, "seed": index, "stop_ids": (3, 4, 5, 6, 7)}
    return SamplingParams(**{**values, **changes})


def complete(sampler: EmbeddedSampler, batch: Sequence[Sequence[int]], **changes: Any) -> list[Completion]:
    async def go() -> list[Completion]:
        return await asyncio.gather(*(sampler.generate(p, params(i, **changes)) for i, p in enumerate(batch)))

    return asyncio.run(go())


def largest_gap(model: Any, prompt: Sequence[int], completion: Completion, temperature: float = 1.0) -> float:
    """Distance of a completion's log-probabilities to the model's own forward over prompt and completion."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0].float() / temperature
    exact = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    ours = torch.tensor(completion.logprobs)
    return float((exact.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0] - ours).abs().max())


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-grouped": {"num_key_value_heads": 2},
    "llama-untied": {"tie_word_embeddings": False},
}


def other_family(name: str) -> Any:
    import transformers

    prefix = {"qwen3": "Qwen3", "qwen2": "Qwen2", "mistral": "Mistral", "gpt_neox": "GPTNeoX"}[name]
    options: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "attn_implementation": "sdpa",
    }
    if name == "qwen3":
        options["head_dim"] = 16
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = getattr(transformers, f"{prefix}ForCausalLM")(getattr(transformers, f"{prefix}Config")(**options))
        for parameter in model.parameters():  # norms and biases that are not ones and zeros
            if parameter.ndim == 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    return model.float().eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return build_llama(VOCAB)


PLAIN = ("palimpsest.engines.embedded.sampling.forward.packs_weights", lambda dtype: False)
"""Products as on a CPU where oneDNN's packed ones are no faster."""


@pytest.mark.parametrize("way", ["fused", "fused, plain products", "generic"])
@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "qwen2", "mistral", "gpt_neox"])
def test_log_probabilities_are_the_models_own(family: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "fused, plain products":
        monkeypatch.setattr(*PLAIN)
    fused = way != "generic"
    model = build_llama(VOCAB, **FAMILIES[family]) if family in FAMILIES else other_family(family)
    sampler = EmbeddedSampler(model, max_num_seqs=8, fused=fused)
    known = family != "gpt_neox"
    assert isinstance(sampler._batch._forward, FusedForward if fused and known else HFForward)
    batch = grouped(3, 5)
    for prompt, completion in zip(batch, complete(sampler, batch), strict=True):
        assert largest_gap(model, prompt, completion) < TOLERANCE


def test_a_thousand_sampled_tokens_agree_with_the_models_forward(model: Any) -> None:
    batch = prompts(60)
    completions = complete(EmbeddedSampler(model), batch, max_tokens=20, stop_ids=(), temperature=0.7)
    assert sum(len(c.token_ids) for c in completions) == 1200
    gaps = [largest_gap(model, p, c, 0.7) for p, c in zip(batch, completions, strict=True)]
    assert max(gaps) < TOLERANCE


def test_a_forward_that_disagrees_with_the_model_is_not_used(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = FusedForward._unit
    monkeypatch.setattr(FusedForward, "_unit", lambda self, x: exact(self, x) * 1.01)
    assert isinstance(EmbeddedSampler(model)._batch._forward, HFForward)


@pytest.mark.parametrize("layout", ["of this machine", "plain"])
@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "qwen2"])
def test_bfloat16_is_as_close_to_float32_as_the_class_itself(
    family: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if layout == "plain":  # as on a CPU without products of bfloat16
        monkeypatch.setattr(*PLAIN)
    exact = build_llama(VOCAB, **FAMILIES[family]) if family in FAMILIES else other_family(family)
    rounded = copy.deepcopy(exact).bfloat16()
    exact.load_state_dict(rounded.state_dict())
    batch, gaps = grouped(3, 5), {}
    for fused in (True, False):
        sampler = EmbeddedSampler(rounded, max_num_seqs=8, fused=fused)
        assert isinstance(sampler._batch._forward, FusedForward if fused else HFForward)
        done = zip(batch, complete(sampler, batch, temperature=1.0), strict=True)
        gaps[fused] = max(largest_gap(exact, prompt, completion) for prompt, completion in done)
    assert gaps[True] < max(1.5 * gaps[False], 0.02)


def test_the_pool_holds_the_rows_in_use_and_stays_within_its_memory(model: Any) -> None:
    batch = grouped(4, 6)
    wanted = complete(EmbeddedSampler(model), batch)
    one = EmbeddedSampler(model)
    complete(one, batch[:1])
    assert one._batch._pool.rows == 1
    token = one._batch._pool.shape.token_bytes
    small = EmbeddedSampler(model, memory=2 * 3 * 64 * token)  # half of it: three rows of 64 tokens
    assert [c.token_ids for c in complete(small, batch)] == [c.token_ids for c in wanted]
    assert small._batch._pool.rows == 3
    long = [*batch[:5], *[prompt * 4 for prompt in batch[5:7]], *batch[7:]]  # longer than three rows allow
    assert [c.token_ids for c in complete(small, long)] == [c.token_ids for c in complete(EmbeddedSampler(model), long)]
    assert small._batch._pool.rows == 1
    assert small._batch._cache.capacity == 3 * 64


def test_a_pool_without_memory_names_its_size_and_the_key(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = EmbeddedSampler(model)
    exact = torch.zeros

    def full(size: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(size, tuple) and len(size) == 5:
            raise RuntimeError("can't allocate memory")
        return exact(size, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "zeros", full)
        with pytest.raises(SamplerError, match=r"GB; set engine\.max_num_seqs"):
            complete(sampler, prompts(1))
    assert len(complete(sampler, prompts(1))) == 1


def test_completions_end_at_a_stop_token_or_at_their_budget(model: Any) -> None:
    completions = complete(EmbeddedSampler(model), prompts(60))
    for index, completion in enumerate(completions):
        stops = [t for t in completion.token_ids if t in params(index).stop_ids]
        if completion.stop_reason is StopReason.STOP:
            assert stops == [completion.token_ids[-1]]
        else:
            assert not stops
            assert len(completion.token_ids) == params(index).max_tokens
    assert {c.stop_reason for c in completions} == {StopReason.STOP, StopReason.LENGTH}


def test_the_same_requests_give_the_same_bytes(model: Any) -> None:
    batch = grouped(4, 6)
    sampler = EmbeddedSampler(model, max_num_seqs=7)
    first = complete(sampler, batch)
    assert complete(sampler, batch) == first, "a batch depended on the one before it"
    assert complete(EmbeddedSampler(model, max_num_seqs=7), batch) == first


def test_what_else_is_in_the_batch_moves_log_probabilities_by_rounding_alone(model: Any) -> None:
    batch = grouped(4, 6)
    together = complete(EmbeddedSampler(model), batch)
    one_by_one = complete(EmbeddedSampler(model, max_num_seqs=1, cache_tokens=0, fused=False), batch)
    assert [c.token_ids for c in together] == [c.token_ids for c in one_by_one]
    pairs = zip(together, one_by_one, strict=True)
    assert max(abs(a - b) for x, y in pairs for a, b in zip(x.logprobs, y.logprobs, strict=True)) < 1e-5


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "generic"])
def test_shared_prefixes_are_computed_once_and_change_nothing(model: Any, fused: bool) -> None:
    batch = grouped(4, 6)
    sharing, plain = (EmbeddedSampler(model, fused=fused, cache_tokens=n) for n in (4096, 0))
    shared, whole = complete(sharing, batch), complete(plain, batch)
    assert [c.token_ids for c in shared] == [c.token_ids for c in whole]
    assert plain.stats().computed_prompt_tokens == sum(map(len, batch))
    heads = sum(map(len, prompts(4, seed=1, low=30, high=40)))
    tails = sum(map(len, batch)) - 6 * heads
    assert sharing.stats().computed_prompt_tokens <= heads + tails + len(batch)


def test_an_episode_that_grows_its_prompt_does_not_pay_for_its_past(model: Any) -> None:
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


def test_a_finished_request_makes_room_at_once(model: Any) -> None:
    """Two rows; one long request holds one of them while ten short ones pass through the other."""
    sampler = EmbeddedSampler(model, max_num_seqs=2)
    done: list[str] = []

    async def request(name: str, tokens: int) -> None:
        await sampler.generate([1, 2, 3], SamplingParams(max_tokens=tokens))
        done.append(name)

    async def go() -> None:
        await asyncio.gather(request("long", 60), *(request(f"short{i}", 3) for i in range(10)))

    asyncio.run(go())
    assert done[-1] == "long"
    assert sampler.stats().steps <= 62, "short requests waited for the long one"


def test_the_next_turn_of_an_episode_starts_in_the_very_next_step(model: Any) -> None:
    sampler = EmbeddedSampler(model)

    async def episode(turns: int) -> None:
        for turn in range(turns):
            await sampler.generate([5, 6, 7 + turn], SamplingParams(max_tokens=2))

    async def go() -> None:
        await asyncio.gather(episode(10), sampler.generate([1], SamplingParams(max_tokens=20)))

    asyncio.run(go())
    assert sampler.stats().steps == 20


def test_cancelling_a_request_frees_its_row_and_leaves_the_others_alone(model: Any) -> None:
    batch = prompts(6)
    undisturbed = complete(EmbeddedSampler(model, max_num_seqs=3), batch, max_tokens=30, stop_ids=())
    sampler = EmbeddedSampler(model, max_num_seqs=3)

    async def go() -> list[Completion | BaseException]:
        tasks = [
            asyncio.ensure_future(sampler.generate(p, params(i, max_tokens=30, stop_ids=())))
            for i, p in enumerate(batch)
        ]
        while sampler.stats().steps < 3:  # two or three are rolling, the others wait
            await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[5].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(go())
    assert [isinstance(r, asyncio.CancelledError) for r in results] == [i in (1, 5) for i in range(6)]
    for index in (0, 2, 3, 4):
        result = results[index]
        assert isinstance(result, Completion)
        assert result.token_ids == undisturbed[index].token_ids
    assert complete(sampler, batch, max_tokens=30, stop_ids=()) == undisturbed


def test_prompts_that_can_not_be_completed_are_refused(model: Any) -> None:
    sampler = EmbeddedSampler(model)
    cases: list[tuple[list[int], int, type[Exception]]] = [
        ([1] * 510, 3, PromptTooLong),
        ([], 3, SamplerError),
        ([1], 0, SamplerError),
        ([VOCAB], 3, SamplerError),
        ([-1], 3, SamplerError),
    ]
    for prompt, tokens, error in cases:
        with pytest.raises(error):
            asyncio.run(sampler.generate(prompt, SamplingParams(max_tokens=tokens)))
    assert len(asyncio.run(sampler.generate([1] * 509, SamplingParams(max_tokens=3))).token_ids) == 3


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "generic"])
def test_non_finite_logits_fail_their_own_request_only(fused: bool) -> None:
    model = build_llama(VOCAB, tie_word_embeddings=False)
    sampler = EmbeddedSampler(model, fused=fused)
    with torch.no_grad():
        model.get_input_embeddings().weight[77] = torch.nan
    asyncio.run(sampler.publish(1))

    async def go() -> list[Any]:
        requests = [sampler.generate(p, params(0, stop_ids=())) for p in ([1, 2, 3], [1, 77, 3], [4, 5, 6])]
        return await asyncio.gather(*requests, return_exceptions=True)

    healthy, poisoned, other = asyncio.run(go())
    assert isinstance(poisoned, SamplerError)
    assert isinstance(healthy, Completion)
    assert isinstance(other, Completion)


def test_a_broken_engine_answers_every_caller_and_recovers(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = EmbeddedSampler(model, max_num_seqs=2)
    before = complete(sampler, prompts(5))

    def broken(*args: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(sampler._batch._forward, "step", broken)

        async def go() -> list[Any]:
            return await asyncio.gather(
                *(sampler.generate(p, params(i)) for i, p in enumerate(prompts(5))), return_exceptions=True
            )

        assert all(isinstance(r, SamplerError) for r in asyncio.run(go()))
    assert complete(sampler, prompts(5)) == before


def test_a_cancelled_run_leaves_no_rows_in_use(model: Any) -> None:
    """`asyncio.run` cancels the sampler's task when the caller gives up; the next run starts from nothing."""
    batch = prompts(6)
    sampler, fresh = EmbeddedSampler(model, max_num_seqs=4), EmbeddedSampler(model, max_num_seqs=4)

    async def give_up() -> None:
        wanted = (sampler.generate(p, params(i, max_tokens=50, stop_ids=())) for i, p in enumerate(batch))
        left = [asyncio.ensure_future(one) for one in wanted]
        while sampler.stats().steps < 3:
            await asyncio.sleep(0)
        assert not any(one.done() for one in left)

    asyncio.run(give_up())
    assert sampler.stats().steps > 0
    assert complete(sampler, batch) == complete(fresh, batch)


def test_a_closed_event_loop_does_not_hold_up_the_next(model: Any) -> None:
    batch = prompts(6)
    sampler, fresh = EmbeddedSampler(model, max_num_seqs=4), EmbeddedSampler(model, max_num_seqs=4)

    async def begin() -> asyncio.Future[Completion]:
        request = asyncio.ensure_future(sampler.generate(batch[0], params(0, max_tokens=50, stop_ids=())))
        while sampler.stats().steps < 3:
            await asyncio.sleep(0)
        return request

    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(begin())
    loop.set_exception_handler(lambda *_: None)  # a loop closed like this reports the tasks it destroys
    loop.close()
    assert not left.done()
    assert complete(sampler, batch) == complete(fresh, batch)


def test_nothing_computed_with_older_weights_is_shared(model: Any) -> None:
    """New weights come while a request is in flight: a later one with the same prompt computes all of its own."""
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
        assert largest_gap(changed, prompt, after) < TOLERANCE
        return late

    assert largest_gap(changed, prompt, asyncio.run(go())) < TOLERANCE


def test_published_weights_are_sampled_from_and_named(model: Any) -> None:
    model = build_llama(VOCAB, seed=3)
    sampler = EmbeddedSampler(model)
    prompt = prompts(1)[0]
    old = complete(sampler, [prompt], max_tokens=8, stop_ids=())[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    asyncio.run(sampler.publish(5))
    new = complete(sampler, [prompt], max_tokens=8, stop_ids=())[0]
    assert (old.policy_version, new.policy_version) == (0, 5)
    assert largest_gap(model, prompt, new) < TOLERANCE
    assert largest_gap(model, prompt, old) > TOLERANCE
