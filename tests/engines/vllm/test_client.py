"""A pool of servers on loopback that answer as vLLM was recorded to, stall, fail and misreport."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from palimpsest.config.engine import SamplerConfig
from palimpsest.config.load import load_recipe
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Limits
from palimpsest.engines.vllm.client import Probe
from palimpsest.engines.vllm.engine import VllmSampler
from palimpsest.engines.vllm.pool import time_limit
from palimpsest.errors import PromptTooLong, SamplerError
from palimpsest.types import SamplingParams, StopReason
from support.clock import overdue
from support.forests import batch_of_rows, grown
from support.models import nats_by
from support.vllm_wire import Fault, Wire, answer, eighths, reply, token, wire

PROMPT = (5, 6, 7)
PARAMS = SamplingParams(max_tokens=4, temperature=1.0, top_p=0.9, stop_ids=(2,), seed=2**63 - 1)
GENERATE = "/inference/v1/generate"
pytestmark = pytest.mark.filterwarnings("ignore:a server leaves")


@asynccontextmanager
async def pool(
    count: int = 1, *, loaded: bool = True, **settings: Any
) -> AsyncIterator[tuple[VllmSampler, list[Wire]]]:
    """Servers that the user started, with weights of version 3 if `loaded`."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(wire()) for _ in range(count)]
        config = SamplerConfig(name="vllm", urls=tuple(server.url for server in servers), **settings)
        sampler = VllmSampler(config, Limits(100, 64), mode="raw_logprobs", dtype="float32", logs=Path("unused"))
        stack.push_async_callback(sampler.close)
        if loaded:
            await sampler.load_weights(Path("/weights/a"), 3)
        yield sampler, servers


async def started(sampler: VllmSampler, servers: list[Wire], sessions: Sequence[str | None]) -> list[asyncio.Task[Any]]:
    """Requests that the servers answer once `answer_all` is called."""
    for server in servers:
        server.gate = asyncio.Event()
    calls = [asyncio.create_task(sampler.generate((9,), PARAMS, session=session)) for session in sessions]
    room = sampler._settings.max_in_flight * len(servers)
    while sum(server.in_flight for server in servers) < min(len(sessions), room):
        await asyncio.sleep(0)
    return calls


async def answer_all(servers: list[Wire], calls: Sequence[asyncio.Task[Any]]) -> list[Any]:
    for server in servers:
        assert server.gate is not None
        server.gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert not [result for result in results if isinstance(result, Exception)]  # but cancelled ones
    return results


def altered(change: Callable[[dict[str, Any]], None]) -> Callable[[Wire], Fault]:
    """A good answer, changed."""

    def make(server: Wire) -> Fault:
        def fault(request: dict[str, Any]) -> bytes:
            value = answer(request, server.version)
            change(value)
            return reply(200, json.dumps(value).encode())

        return fault

    return make


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Wire], Fault]:
    """A good answer whose one choice is changed."""
    return altered(lambda value: change(value["choices"][0]))


def sampling(ids: list[int], finish_reason: object) -> Callable[[Wire], Fault]:
    """A completion of these tokens that ended, as it says, by this."""
    content = [token(id_, -1.5) for id_ in ids]
    return changed(
        lambda choice: choice.update(token_ids=ids, finish_reason=finish_reason, logprobs={"content": content})
    )


def cached(tokens: object) -> Callable[[Wire], Fault]:
    return altered(lambda value: value["usage"].update(prompt_tokens_details={"cached_tokens": tokens}))


def always(content: bytes | None) -> Callable[[Wire], Fault]:
    return lambda _: lambda _: content


@pytest.mark.parametrize("prompt", [PROMPT, (7, 2)])
async def test_a_completion_is_what_the_server_sampled(prompt: tuple[int, ...]) -> None:
    async with pool() as (sampler, [server]):
        completion = await sampler.generate(prompt, PARAMS, session="s/1/p/0")
        stops, count = prompt[-1] == 2, 1 if prompt[-1] == 2 else 4
        assert completion.token_ids == prompt[-1:] * count
        assert completion.logprobs == (-1.5,) * count
        assert completion.stop_reason is (StopReason.STOP if stops else StopReason.LENGTH)
        assert (completion.policy_version, sampler.version) == (3, 3)
        assert (server.prompts[-1], server.wanted[-1]["seed"]) == (list(prompt), PARAMS.seed)
        stats = sampler.stats()
        assert (stats.requests, stats.generated_tokens) == (1, count)
        assert (stats.prompt_tokens, stats.computed_prompt_tokens) == (len(prompt), len(prompt) - 1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (always(reply(500, {"error": "down"})), "status 500"),
        (always(reply(200, b"")), "not the answer"),
        (always(reply(200, b'{"unknown": ' + b"[" * 100_000)), "not the answer"),
        (always(reply(200, [])), "not the answer"),
        (always(b""), "disconnected"),
        (altered(lambda value: value.update(request_id="other")), "answered another request"),
        (changed(lambda choice: choice.update(finish_reason="abort")), "ended the request by 'abort'"),
        (changed(lambda choice: choice["token_ids"].pop()), "don't match"),
        (changed(lambda choice: choice.update(token_ids=[], logprobs={"content": []})), "don't match"),
        (changed(lambda choice: choice["logprobs"]["content"][0].update(logprob=float("nan"))), "not the answer"),
        (changed(lambda choice: choice["logprobs"]["content"][0].update(logprob="-inf")), "not the answer"),
        (changed(lambda choice: choice["logprobs"].update(content=None)), "not the answer"),
        (changed(lambda choice: choice.update(logprobs=None)), "don't match"),
        (altered(lambda value: value["choices"].append(value["choices"][0])), "not the answer"),
        (changed(lambda choice: choice["logprobs"]["content"][0].update(logprob=50.0)), "is 50, above 0"),
        (changed(lambda choice: choice["logprobs"]["content"][0].update(token_id=8)), "don't match"),
        (sampling([-1] * 4, "length"), "not the answer"),
        (sampling([True] * 4, "length"), "not the answer"),
        (changed(lambda choice: choice["weight_versions"][0].update(version="default")), "sampled with weights"),
        (changed(lambda choice: choice.update(weight_versions=[])), "sampled with weights"),
        (changed(lambda choice: choice.update(weight_versions=None)), "not the answer"),
        (sampling([7] * 5, "length"), "sampled 5 tokens, more than max_tokens=4"),
        (sampling([7, 2, 7, 7], "length"), "continued after the stop token 2"),
        (sampling([7, 2, 7, 2], "stop"), "continued after the stop token 2"),
        (sampling([7] * 4, "stop"), "reports an end by stop, but the last token is 7, not a stop token"),
        (sampling([7] * 3, "stop"), "reports an end by stop, but the last token is 7"),
        (sampling([7, 7, 7, 2], "length"), "reports an end by length, but the last token is the stop token 2"),
        (sampling([7] * 3, "length"), "ended after 3 of 4 tokens, without a stop token"),
        (sampling([7], ["stop"]), "not the answer"),
        (cached(4), "found 4 tokens of a prompt of 3 in its cache"),
        (cached(-1), "found -1 tokens"),
        (cached("2"), "found '2' tokens"),
        (sampling([100] * 4, "length"), "sampled an id outside the vocabulary of 100"),
    ],
)
async def test_an_answer_that_cannot_be_trained_on_is_an_error(fault: Callable[[Wire], Fault], message: str) -> None:
    async with pool() as (sampler, [server]):
        server.faults[GENERATE] = fault(server)
        with pytest.raises(SamplerError) as caught:
            await sampler.generate(PROMPT, PARAMS)
        assert message in str(caught.value)
        assert server.url in str(caught.value)
        assert sampler.stats().failed == 1
        del server.faults[GENERATE]  # a healthy server that failed once is used again
        assert (await sampler.generate(PROMPT, PARAMS)).token_ids == (7,) * 4


def scoring(rows: Callable[[list[Any]], list[Any]]) -> Callable[[Wire], Fault]:
    return altered(lambda value: value.update(prompt_logprobs=rows(value["prompt_logprobs"])))


async def test_scores_are_those_of_the_ids_after_the_prompt() -> None:
    async with pool() as (sampler, [server]):
        assert await sampler.score(PROMPT, (8, 16)) == (-1.0, -2.0)
        assert server.prompts[-1] == [*PROMPT, 8, 16]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (scoring(lambda rows: rows[:-1]), "scored 4 tokens of 5"),
        (scoring(lambda rows: [*rows, rows[-1]]), "scored 6 tokens of 5"),
        (scoring(lambda rows: [*rows[:-1], {"17": rows[-1]["16"]}]), "not the answer"),
        (scoring(lambda rows: [*rows[:-1], None]), "not the answer"),
        (scoring(lambda rows: [*rows[:-1], {"16": {"logprob": "nan"}}]), "not the answer"),
        (scoring(lambda rows: [*rows[:-1], {"16": {"logprob": "-inf"}}]), "not the answer"),
        (scoring(lambda rows: [*rows[:-1], {"16": {"logprob": 0.5}}]), "a log-probability is 0.5, above 0"),
        (altered(lambda value: value.update(prompt_logprobs=None)), "scored 0 tokens of 5"),
    ],
)
async def test_impossible_scores_are_an_error(fault: Callable[[Wire], Fault], message: str) -> None:
    async with pool() as (sampler, [server]):
        server.faults[GENERATE] = fault(server)
        with pytest.raises(SamplerError, match=message) as caught:
            await sampler.score(PROMPT, (8, 16))
        assert server.url in str(caught.value)


async def test_a_server_that_never_answers_is_an_error_after_the_time_limit() -> None:
    async with pool(timeout_s=30) as (sampler, [server]):
        server.faults[GENERATE] = always(None)(server)
        waiting = asyncio.create_task(sampler.generate(PROMPT, PARAMS))
        await overdue(waiting)
        with pytest.raises(SamplerError, match=r"no answer within 30 s; raise sampler\.timeout_s"):
            await waiting


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        (GENERATE, always(reply(401, {"error": "Bearer s3cret is not allowed"}))),
        (GENERATE, always(reply(400, {"error": "s3cret"}))),
        (GENERATE, always(reply(200, {"request_id": "r", "choices": "s3cret"}))),
        (GENERATE, changed(lambda choice: choice["weight_versions"][0].update(version="s3cret"))),
        (GENERATE, changed(lambda choice: choice.update(finish_reason="s3cret"))),
        (GENERATE, changed(lambda choice: choice["logprobs"]["content"][0].update(logprob="s3cret"))),
        (GENERATE, changed(lambda choice: choice.update(finish_reason="x" * 250 + "s3cret" * 20))),  # cut in its middle
        ("/weight_info", always(reply(200, {"weight_version": "s3cret"}))),
        ("/health", always(reply(500, {"you": {"sent": "s3cret"}}))),
    ],
)
async def test_the_key_that_a_server_quotes_is_in_no_message(
    path: str, fault: Callable[[Wire], Fault], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    async with pool() as (sampler, [server]):
        assert server.authorizations == {"Bearer s3cret"}
        server.faults |= {GENERATE: always(reply(500, b""))(server), path: fault(server)}
        with pytest.raises(SamplerError) as first:
            await sampler.generate(PROMPT, PARAMS)
        with pytest.raises(SamplerError) as later:
            await sampler.generate(PROMPT, PARAMS)
        assert "s3c" not in " ".join(map(str, [first.value, later.value, *(each.message for each in recwarn)]))


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with pool() as (sampler, _):
        assert (await sampler.generate(PROMPT, PARAMS)).token_ids == (7,) * 4


async def test_lengths_and_ids_are_checked_before_anything_is_sent() -> None:
    async with pool() as (sampler, [server]):
        sent = len(server.prompts)
        with pytest.raises(PromptTooLong, match="window of 64"):
            await sampler.generate((5,) * 61, PARAMS)
        for prompt in ((), (100,), (-1,)):
            with pytest.raises(SamplerError):
                await sampler.generate(prompt, PARAMS)
            with pytest.raises(SamplerError):
                await sampler.score((5,), (*prompt, -1))
        with pytest.raises(PromptTooLong):  # a server samples one more than it scores
            await sampler.score((5,) * 60, (5,) * 4)
        assert len(server.prompts) == sent


async def test_a_publication_empties_the_cache_and_is_read_back_before_anything_is_sampled() -> None:
    async with pool() as (sampler, [server]):
        server.asked.clear()
        await sampler.load_weights(Path("/weights/b"), 4)
        loads = [
            "/pause",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/update_weight_version",
            "/weight_info",
            "/resume",
        ]
        assert server.asked == loads
        assert server.loaded[-1] == "/weights/b"
        assert (await sampler.generate(PROMPT, PARAMS)).policy_version == 4


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/reset_prefix_cache", reply(200, {"success": False})),  # vLLM answers 200 where blocks are held
        ("/weight_info", reply(200, {"weight_version": "default"})),
        ("/collective_rpc", reply(500, {"error": "no such file"})),
        ("/pause", None),
    ],
)
async def test_a_server_that_fails_to_load_weights_leaves_and_joins_again_with_the_next(
    path: str, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(2) as (sampler, [good, bad]):

        def limit(seconds: float, *names: str) -> time_limit:  # for what never answers alone: others may be slow
            return time_limit(0.2 if bad.faults and content is None and names[0] == bad.url else seconds, *names)

        monkeypatch.setattr("palimpsest.engines.vllm.pool.time_limit", limit)
        bad.faults[path] = lambda _: content
        await sampler.load_weights(Path("/weights/b"), 4)
        bad.prompts.clear()
        for rollout in range(8):
            assert (await sampler.generate(PROMPT, PARAMS, session=f"{rollout}/0")).policy_version == 4
        assert not bad.prompts
        bad.faults.clear()
        await sampler.load_weights(Path("/weights/c"), 5)
        for rollout in range(8):
            await sampler.generate(PROMPT, PARAMS, session=f"{rollout}/0")
        assert bad.prompts[-4:] == [list(PROMPT)] * 4
        assert good.loaded[-1] == bad.loaded[-1] == "/weights/c"


async def test_without_a_server_left_a_publication_fails_with_the_reasons() -> None:
    async with pool() as (sampler, [server]):
        server.faults["/collective_rpc"] = lambda _: reply(500, {"error": "no such file"})
        with pytest.raises(SamplerError, match=r"all servers failed: .*no such file"):
            await sampler.load_weights(Path("/weights/b"), 4)


async def test_a_server_that_restarted_with_its_initial_weights_is_loaded_before_it_samples() -> None:
    async with pool() as (sampler, [server]):
        server.version = "default"  # as one that was started again
        with pytest.raises(SamplerError, match="sampled with weights"):
            await sampler.generate(PROMPT, PARAMS)
        assert (await sampler.generate(PROMPT, PARAMS)).policy_version == 3
        assert server.loaded == ["/weights/a"] * 2


async def test_waiting_requests_share_one_attempt_to_restart_servers() -> None:
    async with pool() as (sampler, [server]):
        server.faults["/health"] = server.faults["/pause"] = always(reply(503, b""))(server)
        server.faults[GENERATE] = always(reply(500, b""))(server)
        with pytest.raises(SamplerError):
            await sampler.generate(PROMPT, PARAMS)
        server.asked.clear()
        failures = await asyncio.gather(*(sampler.generate(PROMPT, PARAMS) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(failure, SamplerError) for failure in failures)
        assert server.asked == ["/pause"]


@pytest.mark.parametrize(
    ("change", "message"), [({"raw": False}, "needs --logprobs-mode raw_logprobs"), ({"window": 32}, "is 32")]
)
async def test_a_server_in_the_wrong_mode_or_too_small_is_an_error(change: dict[str, Any], message: str) -> None:
    async with pool(loaded=False) as (sampler, [server]):
        vars(server).update(change)
        with pytest.raises(SamplerError, match=message):
            await sampler.load_weights(Path("/weights/a"), 0)


async def test_a_group_stays_with_the_server_that_has_its_prefix() -> None:
    async with pool(2) as (sampler, servers):
        for server in servers:
            server.prompts.clear()
        for group in range(6):
            for rollout in range(4):
                await sampler.generate((group,), PARAMS, session=f"0/{group}/{rollout}")
        assert [{ids[0] for ids in server.prompts} for server in servers] == [{0, 2, 4}, {1, 3, 5}]


async def test_requests_without_a_session_go_to_the_server_with_the_fewest() -> None:
    async with pool(3) as (sampler, servers):
        calls = await started(sampler, servers, [None] * 7)
        assert sorted(server.in_flight for server in servers) == [2, 2, 3]
        await answer_all(servers, calls)


async def test_room_passes_to_another_request_if_the_woken_one_is_cancelled() -> None:
    async with pool(max_in_flight=1) as (sampler, [server]):
        calls = await started(sampler, [server], [None] * 12)
        assert len(sampler._pool._waiting) == 11
        calls[1].cancel()  # while it waits
        sampler._pool._wake(1)
        calls[2].cancel()  # after it was woken
        results = await answer_all([server], calls)
        assert [isinstance(result, BaseException) for result in results] == [n in (1, 2) for n in range(12)]
        assert server.most_in_flight == 1


async def test_a_group_spills_from_a_busy_server_and_waits_if_all_are_busy() -> None:
    async with pool(2, max_in_flight=3) as (sampler, servers):
        calls = await started(sampler, servers, [f"g/{n}" for n in range(8)])
        assert [server.in_flight for server in servers] == [3, 3]
        assert len(await answer_all(servers, calls)) == 8
        assert [server.most_in_flight for server in servers] == [3, 3]


async def test_a_server_is_busy_while_it_has_requests_and_counts_their_time_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("palimpsest.engines.vllm.pool.perf_counter", lambda: clock[0])
    async with pool(2) as (sampler, servers):
        calls = await started(sampler, servers, [f"{name}/0" for name in "aab"])
        clock[0] = 5.0
        assert sampler.stats().busy_s == 10.0  # of two servers, one of them with two requests
        await answer_all(servers, calls)
        clock[0] = 8.0
        assert sampler.stats().busy_s == 10.0
        await sampler.generate((9,), PARAMS)
        assert sampler.stats().busy_s == 10.0


async def test_a_cancelled_request_frees_its_room() -> None:
    async with pool(max_in_flight=1) as (sampler, [server]):
        calls = await started(sampler, [server], [None])
        calls[0].cancel()
        await answer_all([server], calls)
        assert (await sampler.generate(PROMPT, PARAMS)).token_ids
        assert sampler.stats().cancelled == 1


async def test_requests_wait_for_a_publication_and_are_sampled_by_its_weights() -> None:
    async with pool() as (sampler, _):
        publishing = asyncio.create_task(sampler.load_weights(Path("/weights/b"), 9))
        await asyncio.sleep(0)
        assert (await sampler.generate(PROMPT, PARAMS)).policy_version == 9
        await publishing


async def test_nothing_is_sampled_before_a_publication_or_after_the_end() -> None:
    async with pool(loaded=False) as (sampler, _):
        with pytest.raises(SamplerError, match="publish first"):
            await sampler.generate(PROMPT, PARAMS)
        await sampler.load_weights(Path("/weights/a"), 0)
        await sampler.close()
        with pytest.raises(SamplerError, match="open a new engine"):
            await sampler.generate(PROMPT, PARAMS)


async def test_a_stream_gives_what_generate_gives() -> None:
    async with pool() as (sampler, _):
        first, last = [delta async for delta in sampler.stream(PROMPT, PARAMS)]
        assert (first.token_ids, first.logprobs) == ((7,) * 4, (-1.5,) * 4)
        assert last.completion == await sampler.generate(PROMPT, PARAMS)


IDS = tuple(range(20))


def probe(*, off: float = 0.0, dtype: str = "float32") -> Probe:
    """The learner's scores, which differ by `off` nats from the server's."""
    return Probe(IDS, tuple(nats - off for nats in eighths(list(IDS))), dtype)


@pytest.mark.parametrize(("dtype", "rounding", "stale"), [("float32", 1e-3, 0.05), ("bfloat16", 0.2, 0.9)])
async def test_a_server_that_differs_from_the_learner_after_new_weights_is_named(
    dtype: str, rounding: float, stale: float
) -> None:
    async with pool() as (sampler, [server]):
        await sampler.load_weights(Path("/weights/b"), 4, probe(off=rounding, dtype=dtype))
        assert (await sampler.generate(PROMPT, PARAMS)).policy_version == 4
        with pytest.raises(
            SamplerError, match=rf"{server.url}: is {stale:.2g} nats per token off the learner: .*model.dtype={dtype}"
        ):
            await sampler.load_weights(Path("/weights/c"), 5, probe(off=stale, dtype=dtype))


async def test_a_server_whose_scores_stay_the_same_is_named_even_if_the_weights_moved_little() -> None:
    async with pool() as (sampler, [server]):
        await sampler.load_weights(Path("/weights/b"), 4, probe())
        await sampler.load_weights(Path("/weights/c"), 5, probe(off=1e-6))  # a step that hardly moved anything
        with pytest.raises(SamplerError, match=rf"{server.url}: scores as before the new weights"):
            await sampler.load_weights(Path("/weights/d"), 6, probe(off=0.01))
        server.score = lambda ids: [nats - 0.011 for nats in eighths(ids)]
        await sampler.load_weights(Path("/weights/e"), 7, probe(off=0.01))


async def test_of_two_servers_the_stale_one_leaves() -> None:
    async with pool(2) as (sampler, [_, bad]):
        bad.score = lambda ids: [nats - 0.3 for nats in eighths(ids)]
        with pytest.warns(UserWarning, match=rf"a server leaves the pool: {bad.url}: is 0.3 nats"):
            await sampler.load_weights(Path("/weights/b"), 4, probe())
        bad.prompts.clear()
        for rollout in range(4):
            await sampler.generate(PROMPT, PARAMS, session=f"{rollout}/0")
        assert not bad.prompts


@pytest.mark.parametrize(
    "results", [[], [False], ["False"], [None, {"error": "no such file"}], ["Error: no such file"]]
)
async def test_a_server_that_reports_a_failed_load_is_an_error(results: list[Any]) -> None:
    async with pool() as (sampler, [server]):
        server.faults["/collective_rpc"] = lambda _: reply(200, {"results": results})
        with pytest.raises(SamplerError, match="to a reload of weights"):
            await sampler.load_weights(Path("/weights/b"), 4)
        server.faults["/collective_rpc"] = lambda _: reply(200, {"results": [None, None]})  # as vLLM does
        await sampler.load_weights(Path("/weights/b"), 4)


@pytest.mark.parametrize("described", [{"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": True}}])
async def test_a_server_with_tied_weights_is_an_error_with_the_fix(tmp_path: Path, described: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(described))
    async with pool(loaded=False) as (sampler, [server]):
        server.root = str(tmp_path)
        with pytest.raises(SamplerError, match="palimpsest export MODEL --untied --out FOLDER"):
            await sampler.load_weights(tmp_path, 0)
        (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
        await sampler.load_weights(tmp_path, 0)


async def test_a_learner_detects_a_server_that_keeps_its_initial_weights(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    async with wire() as server:
        servers = ["sampler.name=vllm", f"sampler.urls=[{server.url}]", f"sampler.max_model_len={server.window}"]
        moving = ["optim.learning_rate=0.05", "sampling.temperature=0.7", "sampling.top_p=1"]
        server.raw = False
        config = load_recipe("memagent-quickstart", [f"model.path={tiny_model_folder}", *servers, *moving])
        model = AutoModelForCausalLM.from_pretrained(tiny_model_folder)
        server.score = lambda ids: nats_by(model, ids)
        engine = open_engine(config, objective="policy", folder=tmp_path)
        try:
            assert engine.learner is not None
            await engine.learner.publish()
            draw = random.Random(0)
            await engine.learner.update([batch_of_rows(grown(draw, depth=2, length=12), draw)])
            with pytest.raises(SamplerError, match=rf"{server.url}: is .* nats per token off the learner"):
                await engine.learner.publish()
            server.faults["/collective_rpc"] = lambda body: load(Path(body["kwargs"]["weights_path"]))

            def load(folder: Path) -> bytes:
                nonlocal model
                model = AutoModelForCausalLM.from_pretrained(folder)
                return reply(200, {"results": [None]})

            await engine.learner.publish()
        finally:
            await engine.close()
