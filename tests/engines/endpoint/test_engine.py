"""The endpoint engine against servers on loopback that answer, stall, fail, lie and echo."""

from __future__ import annotations

import asyncio
import copy
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tokenizers import AddedToken

from palimpsest.config.schema import RunConfig
from palimpsest.engines.endpoint import client as client_module
from palimpsest.engines.endpoint.engine import EndpointEngine
from palimpsest.engines.endpoint.wire_formats import PLAIN, Fields, TextForm
from palimpsest.engines.open import open_engine, using
from palimpsest.errors import ConfigError, EngineError, ModelError, PalimpsestError, PromptTooLong, SamplerError
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, SamplingParams, StopReason
from support.clock import leap
from support.endpoint_server import MODEL, WINDOW, Server, endpoint_server, reply

T = TypeVar("T")
PROMPT = tuple(range(20, 40))
PROBES = 1
"""Completions that a server that takes everything is asked for before the first of ours."""
KEY = "s3cret/key+0123"
ECHOES = {
    "plain": KEY,
    "a slash": KEY.replace("/", r"\/"),
    "twice": KEY.replace("/", r"\\\/"),
    "a number": KEY.replace("s", r"\u0073"),
    "all numbers": "".join(f"\\u{ord(c):04X}" for c in KEY),
    "a URL": KEY.replace("/", "%2F").replace("+", "%2b"),
}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.EndpointClient, "pause", 0.001)


def test_an_error_in_a_reply_of_status_200_is_told_in_the_servers_words(tiny_model_folder: Path) -> None:
    said = reply(200, {"error": {"message": "upstream is busy " + "x" * 1000, "code": 502}})
    server = Server(fault=lambda number: said if number >= PROBES else None)
    with endpoint_server(server), pytest.raises(PalimpsestError, match="upstream is busy") as refused:
        asked(opened(server, tiny_model_folder))
    assert "KeyError" not in str(refused.value)
    assert len(str(refused.value)) < 600


def config_of(url: str, tokenizer: Path | None, model: str = MODEL, **settings: Any) -> RunConfig:
    named = {} if tokenizer is None else {"tokenizer": str(tokenizer)}
    section = {"name": "endpoint", "url": url, "timeout_s": 20.0, "attempts": 3, **named, **settings}
    return RunConfig.model_validate({"model": {"path": model}, "engine": section})


def opened(server: Server, tokenizer: Path | None, **settings: Any) -> EndpointEngine:
    engine = open_engine(config_of(server.url, tokenizer, **settings), objective=None)
    assert isinstance(engine, EndpointEngine)
    return engine


def asked(engine: EndpointEngine, prompt: tuple[int, ...] = PROMPT, **params: Any) -> Completion:
    wanted = SamplingParams(**{"max_tokens": 8, "seed": 5, "stop_ids": engine.codec.stop_ids, **params})
    return run(engine, lambda: engine.sampler.generate(prompt, wanted))


def run(engine: EndpointEngine, work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work()

    return asyncio.run(using(engine, main()))


@contextmanager
def refusing(kind: type[PalimpsestError], *words: str) -> Iterator[None]:
    """One line of that kind, with these words in it and no key."""
    with pytest.raises(kind) as caught:
        yield
    said = str(caught.value)
    assert "\n" not in said
    assert KEY not in said
    assert not [word for word in words if word not in said], said


# ---- what is asked, and what comes back --------------------------------------------------------------------------


def test_token_ids_and_log_probabilities_come_back_as_they_were_sampled(tiny_model_folder: Path) -> None:
    with endpoint_server() as server:
        engine = opened(server, tiny_model_folder)
        completion = asked(engine, temperature=0.7, top_p=0.9)
        told = server.asked[-1]
    assert (told["prompt"], told["temperature"], told["top_p"]) == (list(PROMPT), 0.7, 0.9)
    assert (told["seed"], told["max_tokens"], told["stop_token_ids"]) == (5, 8, list(engine.codec.stop_ids))
    assert (told["top_k"], told["min_p"], told["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert len(completion.token_ids) == len(completion.logprobs) == 6
    assert completion.stop_reason is StopReason.STOP
    assert max(completion.logprobs) < 0
    endpoint = engine.limits.endpoint
    assert endpoint is not None
    assert (endpoint.mode, endpoint.exact_prompt_ids, endpoint.exact_ids, endpoint.logprobs) == ("tokens", *[True] * 3)
    assert (engine.limits.max_context, engine.limits.concurrency) == (WINDOW, 64)
    stats = engine.sampler.stats()
    assert (stats.prompt_tokens, stats.computed_prompt_tokens, stats.generated_tokens) == (20, 18, 3)


@pytest.mark.parametrize(
    ("server", "mode", "exact"),
    [
        (Server(), "tokens", (True, True, True)),
        (Server(gives_ids=False), "tokens", (True, False, False)),
        (Server(plain=True), "tokens", (True, True, True)),
        (Server(takes="completions"), "completions", (False, False, False)),
        (Server(takes="chat"), "chat", (False, False, False)),
        (Server(takes="chat", plain=True, refuses=frozenset({"max_tokens"})), "chat", (False, False, False)),
    ],
)
def test_the_best_mode_that_works_is_taken_and_told(
    server: Server, mode: str, exact: tuple[bool, bool, bool], tiny_model_folder: Path
) -> None:
    with endpoint_server(server):
        engine = opened(server, tiny_model_folder)
    endpoint = engine.limits.endpoint
    assert endpoint is not None
    assert (endpoint.mode, (endpoint.exact_prompt_ids, endpoint.exact_ids, endpoint.logprobs)) == (mode, exact)
    assert f"mode {mode}: " in engine.limits.note
    assert "\n" not in engine.limits.note


def test_an_endpoint_that_lets_nobody_choose_the_temperature_is_asked_without_and_says_so() -> None:
    server = Server(takes="chat", plain=True, refuses=frozenset({"max_tokens", "temperature"}))
    with endpoint_server(server):
        engine = opened(server, None, thinking_tokens=100)
        prompt = engine.codec.encode_trusted("<|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>")
        asked(engine, tuple(prompt))
    last, endpoint = server.asked[-1], engine.limits.endpoint
    assert {"seed", "top_p", "max_completion_tokens"} <= set(last)
    assert not {"temperature", "max_tokens", "top_k"} & set(last)
    assert last["max_completion_tokens"] == 108
    assert endpoint is not None
    assert endpoint.sent == tuple(sorted(last))
    assert {"max_tokens", "temperature", "top_k"} <= set(endpoint.dropped)
    assert not {*endpoint.dropped} & {*last}
    assert "the endpoint sets temperature" in engine.limits.note


@pytest.mark.parametrize("plain", [True, False])
def test_an_endpoint_whose_errors_name_no_field_gets_fewer_step_by_step(plain: bool) -> None:
    allowed = {
        "model",
        "stream",
        "messages",
        "max_completion_tokens",
        *([] if plain else ["temperature", "top_p", "seed"]),
    }
    server = Server(takes="chat")
    server.fault = lambda number: None if set(server.asked[number]) <= allowed else reply(400, {"error": "bad request"})
    with endpoint_server(server):
        opened(server, None)
    assert set(server.asked[-1]) == allowed
    assert len(server.asked) == 3 + plain


def test_an_endpoint_that_takes_no_fields_reports_every_reason_in_order() -> None:
    reasons = iter(["unknown field `seed`", "first", "second", "third"] + ["last"] * 9)
    server = Server(takes="chat", fault=lambda number: reply(400, {"error": next(reasons)}))
    with endpoint_server(server), pytest.raises(ConfigError) as caught:
        opened(server, None)
    assert len(server.asked) == 5
    places = [str(caught.value).index(word) for word in ("`seed`", "first", "second", "third", "last")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("error", "limit", "dropped"),
    [
        ('Unknown name "seed": Cannot find field.', "max_tokens", {"seed"}),
        ("body.seed: Extra inputs are not permitted", "max_tokens", {"seed"}),
        ("`temperature` and `top_p` cannot both be specified", "max_tokens", {"top_p"}),
        ("'temperature' does not support 0.0", "max_tokens", {"temperature"}),
        ("Use 'max_completion_tokens' instead of 'max_tokens'.", "max_completion_tokens", set()),
        ("Unrecognized arguments: min_p, top_k", "max_tokens", {"min_p", "top_k"}),
        ("unknown field `top_k`, expected `seed`, `temperature`", "max_tokens", {"top_k"}),
    ],
)
def test_the_field_that_an_error_names_is_left_out(error: str, limit: str, dropped: set[str]) -> None:
    fields = Fields().without(error)
    assert fields is not None
    assert (fields.limit, set(fields.dropped)) == (limit, dropped)


@pytest.mark.parametrize(
    "error", ["bad request", "model seed-oss-36b", "http://h/seed", "http://seed.example:1", "max_completion_tokens"]
)
def test_an_error_that_names_no_field_leaves_none_out(error: str) -> None:
    assert Fields().without(error) is None
    assert Fields(extended=False, dropped=frozenset({"seed"})).without("seed, top_k") is None


# ---- how a reply ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "stop"),
    [
        *((end, StopReason.STOP) for end in ("stop", "STOP", "eos_token", "EOS", "end_turn", "COMPLETE", "", None)),
        *((end, StopReason.LENGTH) for end in ("LENGTH", "MAX_TOKENS")),
    ],
)
def test_a_complete_reply_may_end_under_other_names(ended: str | None, stop: str) -> None:
    server = Server(takes="chat", fault=lambda number: chat_reply({"content": "blue"}, ended))
    with endpoint_server(server):
        engine = opened(server, None)
        prompt = engine.codec.encode_trusted("<|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>")
        completion = asked(engine, tuple(prompt))
    assert completion.stop_reason == stop
    assert engine.codec.decode(completion.token_ids).startswith("blue")


@pytest.mark.parametrize("ended", ["content_filter", "tool_calls", "function_call", "error", "abort", "SAFETY"])
def test_an_end_that_leaves_a_reply_incomplete_is_no_reply(ended: str) -> None:
    server = Server(takes="chat")
    with endpoint_server(server):
        engine = opened(server, None)
        server.fault = lambda number: chat_reply({"content": "blue"}, ended)
        prompt = engine.codec.encode_trusted("<|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>")
        with refusing(SamplerError, ended):
            asked(engine, tuple(prompt))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "red"}]}, {"type": "text", "text": "blue"}],
            "blue",
        ),
        ([{"type": "text", "text": "bl"}, {"type": "text", "text": "ue"}], "blue"),
        ([{"type": "output_text", "text": "bl"}, {"type": "refusal", "refusal": "ue"}], "blue"),
        ([], ""),
        (None, ""),
    ],
)
def test_content_in_parts_is_the_text_of_them(content: Any, text: str) -> None:
    with endpoint_server(
        Server(takes="chat", fault=lambda number: chat_reply({"content": content}, "length"))
    ) as server:
        engine = opened(server, None)
        prompt = engine.codec.encode_trusted("<|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>")
        completion = asked(engine, tuple(prompt))
    assert engine.codec.decode(completion.token_ids) == text


def test_calls_that_a_server_took_out_of_the_text_are_no_reply() -> None:
    server = Server(takes="chat")
    with endpoint_server(server):
        engine = opened(server, None)
        calls = [{"type": "function", "function": {"name": "search", "arguments": "{}"}}]
        server.fault = lambda number: chat_reply({"content": None, "tool_calls": calls}, "stop")
        prompt = engine.codec.encode_trusted("<|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>")
        with refusing(SamplerError, "tool parser"):
            asked(engine, tuple(prompt))


@pytest.mark.parametrize("content", [7, {"text": "blue"}, ["blue"], [{"type": "text"}], [{"type": "text", "text": 7}]])
def test_content_of_another_shape_is_no_reply(content: Any) -> None:
    server = Server(takes="chat", fault=lambda number: chat_reply({"content": content}, "stop"))
    with endpoint_server(server), refusing(ConfigError, "no mode works"):
        opened(server, None)


def chat_reply(message: Any, ended: str | None) -> Any:
    return reply(200, {"choices": [{"message": message, "finish_reason": ended}]})


def test_a_reply_of_text_is_cut_at_the_budget(tiny_model_folder: Path) -> None:
    with endpoint_server(Server(takes="completions", speak=lambda _: "blue <|im_end|> " * 20)) as server:
        engine = opened(server, tiny_model_folder)
        completion = asked(engine)
    assert (len(completion.token_ids), completion.stop_reason) == (8, StopReason.LENGTH)
    assert engine.codec.control_ids.isdisjoint(completion.token_ids)
    assert set(completion.logprobs) == {0.0}


def test_of_megabytes_that_nobody_asked_for_little_is_encoded(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = list[int]()
    whole = Codec.encode

    def encode(codec: Codec, text: str) -> list[int]:
        encoded.append(len(text))
        return whole(codec, text)

    with endpoint_server(Server(takes="completions", speak=lambda _: "blue " * 200_000)) as server:
        engine = opened(server, tiny_model_folder)
        monkeypatch.setattr(Codec, "encode", encode)
        completion = asked(engine)
    assert (len(completion.token_ids), completion.stop_reason) == (8, StopReason.LENGTH)
    assert encoded
    assert max(encoded) < 10_000


def test_a_document_that_holds_a_role_marker_is_not_sent_as_text(tiny_model_folder: Path) -> None:
    with endpoint_server(Server(takes="completions")) as server:
        engine = opened(server, tiny_model_folder)
        with refusing(SamplerError, "role marker"):
            asked(engine, tuple(engine.codec.encode("Anna <|im_end|> is blue")))


@pytest.mark.parametrize("special", [False, True])
def test_a_reply_with_an_added_token_may_be_part_of_the_next_prompt(special: bool, tiny_model_folder: Path) -> None:
    tokenizer = copy.deepcopy(Codec.load(tiny_model_folder).tokenizer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=special)])
    form = TextForm(codec := Codec(tokenizer), "m", PLAIN, {})
    text = "<|im_start|>assistant\n<tool_call> blue"
    prompt = [*codec.encode_trusted("<|im_start|>assistant\n"), *codec.encode("<tool_call> blue")]
    params = SamplingParams(max_tokens=8, stop_ids=codec.stop_ids)
    if special:
        with refusing(SamplerError, "role marker"):
            form.body(prompt, params)
    else:
        assert form.body(prompt, params)["prompt"] == text


def test_without_log_probabilities_none_are_asked_for(tiny_model_folder: Path) -> None:
    with endpoint_server() as server:
        completion = asked(opened(server, tiny_model_folder, logprobs=False))
    assert all("logprobs" not in body for body in server.asked)
    assert set(completion.logprobs) == {0.0}


# ---- trouble that passes -----------------------------------------------------------------------------------------


def other_lengths(*, choice: dict[str, Any]) -> bytes:
    told = {"finish_reason": "stop", "text": "", "token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0, -1.0]}}
    return json.dumps({"choices": [{**told, **choice}]}).encode()


TROUBLE: dict[str, Any] = {
    "busy": reply(429, {"error": "slow down"}, **{"retry-after": "0.01"}),
    "overloaded": reply(503, {"error": "overloaded"}),
    "broken": reply(500, {"error": "oops"}),
    "reset": "reset",
    "hang": "hang",
    "endless": "endless",
    "garbage": reply(200, b"<html>not JSON"),
    "null": reply(200, None),
    "no choices": reply(200, {"choices": []}),
    "lengths": reply(200, other_lengths(choice={"token_ids": [5, 6, 7]})),
    "too many": reply(200, other_lengths(choice={"token_ids": [5] * 9, "logprobs": None})),
    "ids left out": reply(200, other_lengths(choice={"token_ids": None})),
    "log-probabilities left out": reply(200, other_lengths(choice={"logprobs": None})),
    "no ids": reply(200, other_lengths(choice={"token_ids": [5, "6"]})),
    "negative": reply(200, other_lengths(choice={"token_ids": [5, -6]})),
    "not finite": reply(200, other_lengths(choice={}).replace(b"-1.0]", b"1e999]")),
    "above 0": reply(200, other_lengths(choice={"logprobs": {"token_logprobs": [-1.0, 0.5]}})),
    "other prompt": reply(200, other_lengths(choice={"prompt_token_ids": [1, 2, 3]})),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_trouble_that_passes_is_outlasted(
    trouble: str, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module.EndpointClient, "reply_bytes", 1 << 20)
    server = Server(fault=lambda number: TROUBLE[trouble] if number == PROBES else None)

    async def outlasted(engine: EndpointEngine) -> Completion:
        params = SamplingParams(max_tokens=8, seed=5, stop_ids=engine.codec.stop_ids)
        task = asyncio.create_task(engine.sampler.generate(PROMPT, params))
        while len(server.asked) == PROBES:
            await asyncio.sleep(0.001)
        if trouble == "hang":
            leap(60)
        return await task

    with endpoint_server(server):
        engine = opened(server, tiny_model_folder, timeout_s=30.0)
        completion = run(engine, lambda: outlasted(engine))
    assert len(completion.token_ids) == 6
    assert len(server.asked) == PROBES + 2
    assert server.asked[-1] == server.asked[-2]  # the seed too


@pytest.mark.parametrize(
    ("trouble", "words"),
    [("busy", "status 429"), ("reset", "gave up after 3 attempts"), ("garbage", "not JSON"), ("lengths", "3 tokens")],
)
def test_trouble_that_stays_is_told_on_one_line(trouble: str, words: str, tiny_model_folder: Path) -> None:
    server = Server(fault=lambda number: TROUBLE[trouble] if number >= PROBES else None)
    with endpoint_server(server):
        engine = opened(server, tiny_model_folder)
        with refusing(SamplerError, server.url, words):
            asked(engine)
    assert len(server.asked) == PROBES + 3


def test_an_endpoint_that_stays_down_is_lost_for_all(tiny_model_folder: Path) -> None:
    server = Server(fault=lambda number: TROUBLE["broken"] if number >= PROBES else None)
    with endpoint_server(server):
        engine = opened(server, tiny_model_folder, patience_s=0.0, attempts=20)
        with refusing(EngineError, server.url, "down: 8 attempts in a row failed", "status 500"):
            asked(engine)
    assert len(server.asked) == PROBES + 8


def test_no_more_requests_are_under_way_than_allowed(tiny_model_folder: Path) -> None:
    async def many(engine: EndpointEngine) -> list[Completion]:
        params = [SamplingParams(max_tokens=8, seed=n, stop_ids=engine.codec.stop_ids) for n in range(60)]
        return await asyncio.gather(*(engine.sampler.generate(PROMPT, each) for each in params))

    together = threading.Barrier(11)  # more than one pool of connections

    def fault(number: int) -> None:
        if PROBES <= number < PROBES + 11:
            together.wait(20)

    with endpoint_server(Server(fault=fault)) as server:
        engine = opened(server, tiny_model_folder, concurrency=11)
        completions = run(engine, lambda: many(engine))
    assert server.most_at_once == 11
    assert len({completion.token_ids for completion in completions}) == 60


def test_a_cancelled_request_is_closed(tiny_model_folder: Path) -> None:
    server = Server(fault=lambda number: "hang" if number >= PROBES else None)

    async def cancelled(engine: EndpointEngine) -> None:
        params = SamplingParams(max_tokens=8, stop_ids=engine.codec.stop_ids)
        task = asyncio.create_task(engine.sampler.generate(PROMPT, params))
        while len(server.asked) == PROBES:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while not server.cut_off:
            await asyncio.sleep(0.001)

    with endpoint_server(server):
        engine = opened(server, tiny_model_folder)
        run(engine, lambda: cancelled(engine))
    assert engine.sampler.stats().cancelled == 1


# ---- what no attempt can mend -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {"error": "bad key"}, "--api-key-env"),
        (403, {"error": "bad key"}, "--api-key-env"),
        (429, {"error": {"code": "insufficient_quota"}}, "quota is exhausted"),
    ],
)
def test_what_concerns_every_request_fails_at_once(status: int, body: Any, words: str, tiny_model_folder: Path) -> None:
    with endpoint_server(Server(fault=lambda number: reply(status, body))) as server:
        with refusing(EngineError, words):
            opened(server, tiny_model_folder)
        assert len(server.asked) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_an_endpoint_without_time_is_not_taken_for_one_of_another_mode(status: int, tiny_model_folder: Path) -> None:
    server = Server(fault=lambda number: reply(status))
    with endpoint_server(server), refusing(EngineError, f"status {status}", "try again later"):
        opened(server, tiny_model_folder)
    assert {*server.paths} == {"/v1/models", "/v1/completions"}


def test_a_server_that_trips_over_token_ids_is_asked_in_text(tiny_model_folder: Path) -> None:
    server = Server(fault=lambda number: reply(500) if isinstance(server.asked[number]["prompt"], list) else None)
    with endpoint_server(server):
        assert "mode completions: " in opened(server, tiny_model_folder).limits.note


def test_redirects_are_not_followed(tiny_model_folder: Path) -> None:
    with endpoint_server() as other, endpoint_server() as server:
        server.fault = lambda number: reply(307, None, location=f"{other.url}/completions")
        with refusing(EngineError, "redirect to", other.url, "set engine.url (--base-url)"):
            opened(server, tiny_model_folder)
    assert other.paths == []


def test_nobody_there_is_told_at_once(tiny_model_folder: Path) -> None:
    with endpoint_server() as server:
        pass
    with refusing(EngineError, server.url, "unreachable", "check engine.url (--base-url), and that it runs"):
        opened(server, tiny_model_folder)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://127.0.0.1/v1", "not a server address"),
        (f"http://user:{KEY}@127.0.0.1/v1", "a user or a password"),
        (f"http://127.0.0.1/v1?key={KEY}", "a query"),
        ("https://me.openai.azure.com/openai/deployments/m?api-version=1", "https://me.openai.azure.com/openai/v1"),
        ("http://127.0.0.1:9/v1/chat/completions", "give what stands before it, http://127.0.0.1:9/v1"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, words: str, tiny_model_folder: Path) -> None:
    with refusing(ConfigError, words):
        open_engine(config_of(url, tiny_model_folder), objective=None)


def test_a_model_that_is_not_there_is_named_with_those_that_are(tiny_model_folder: Path) -> None:
    with endpoint_server() as server, refusing(ConfigError, "no model serve; did you mean served?", "it has served"):
        open_engine(config_of(server.url, tiny_model_folder, "serve"), objective=None)


def test_a_path_without_v1_is_told(tiny_model_folder: Path) -> None:
    with endpoint_server() as server:
        bare = server.url.removesuffix("/v1")
        server.takes = "chat"
        server.fault = lambda number: reply(404, {"detail": "Not Found"})
        with refusing(ConfigError, "does engine.url (--base-url) lack /v1?"):
            open_engine(config_of(bare, tiny_model_folder), objective=None)


def test_a_mode_that_needs_the_tokenizer_says_how_to_name_it() -> None:
    with endpoint_server() as server, refusing(ModelError, "--tokenizer", "model served"):
        opened(server, None, mode="tokens")


def test_a_window_that_nobody_says_must_be_given() -> None:
    with endpoint_server(Server(takes="chat", window=None)) as server:
        with refusing(ConfigError, "engine.max_model_len", "131072"):
            opened(server, None)
        assert opened(server, None, max_model_len=1000).limits.max_context == 1000


def test_a_window_larger_than_the_endpoints_is_refused(tiny_model_folder: Path) -> None:
    with endpoint_server() as server, refusing(ConfigError, "engine.max_model_len=5000", "4096"):
        opened(server, tiny_model_folder, max_model_len=5000)


def test_training_on_an_endpoint_is_refused() -> None:
    with refusing(ConfigError, "samples alone"):
        open_engine(config_of("http://127.0.0.1:9/v1", None), objective="policy")


# ---- prompts and tokenizers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 512 tokens. However, you requested 600",
        "the request exceeds the available context size, try increasing it",
        "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
    ],
)
def test_a_prompt_that_the_endpoint_finds_too_long_is_one(message: str, tiny_model_folder: Path) -> None:
    server = Server(fault=lambda number: reply(400, {"error": {"message": message}}) if number >= PROBES else None)
    with endpoint_server(server):
        engine = opened(server, tiny_model_folder)
        with refusing(PromptTooLong, "engine.max_model_len"):
            asked(engine)


def test_a_prompt_beyond_the_window_is_not_sent(tiny_model_folder: Path) -> None:
    with endpoint_server(Server(window=24)) as server:
        engine = opened(server, tiny_model_folder)
        with refusing(PromptTooLong, "window of 24"):
            asked(engine)
    assert len(server.asked) == PROBES


def test_a_tokenizer_that_is_not_the_servers_is_refused_by_a_text(tiny_model_folder: Path, tiny_codec: Any) -> None:
    def other(text: str) -> list[int]:
        ids: list[int] = tiny_codec.encode_trusted(text)
        return [*ids[:3], 7, *ids[4:]] if "Zürich" in text else ids

    with endpoint_server(Server(tokenize=other)) as server, refusing(ModelError, "Zürich", "token 3", "--tokenizer"):
        opened(server, tiny_model_folder)


def test_a_tokenizer_that_is_the_servers_is_said_to_be(tiny_model_folder: Path, tiny_codec: Any) -> None:
    with endpoint_server(Server(tokenize=tiny_codec.encode_trusted)) as server:
        note = opened(server, tiny_model_folder).limits.note
    assert "tokenizer compared with the server's" in note


def test_a_server_that_counts_other_tokens_is_asked_in_text(tiny_model_folder: Path) -> None:
    """As one that takes a list of ids for something else."""

    def fault(number: int) -> Any:
        body = server.asked[number]
        wrong = {"usage": {"prompt_tokens": 1}, "choices": [{"text": "a", "finish_reason": "stop"}]}
        return reply(200, wrong) if isinstance(body["prompt"], list) else None

    server = Server(fault=fault)
    with endpoint_server(server):
        engine = opened(server, tiny_model_folder)
    assert engine.limits.endpoint is not None
    assert engine.limits.endpoint.mode == "completions"


USAGES = [None, [], [1], "text", 5, {"prompt_tokens": "²"}, {"prompt_tokens": [1]}, {"prompt_tokens_details": [2]}]


@pytest.mark.parametrize("usage", [*USAGES, {"completion_tokens": 1e300}, {"prompt_tokens": {"cached": 1}}])
def test_counts_that_are_none_are_zero_and_the_reply_counts(usage: Any, tiny_model_folder: Path) -> None:
    said = {"choices": [{"text": "blue", "finish_reason": "stop"}], "usage": usage}
    with endpoint_server(Server(takes="completions", fault=lambda number: reply(200, said))) as server:
        engine = opened(server, tiny_model_folder, mode="completions")
        completion = asked(engine)
        assert engine.codec.decode(completion.token_ids, control=False) == "blue"
        stats = engine.sampler.stats()
        assert (stats.prompt_tokens, stats.generated_tokens) == (len(PROMPT), len(completion.token_ids))  # counted here
    assert len(server.asked) == PROBES + 1


# ---- the key ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 302, 400, 401, 418, 500])
@pytest.mark.parametrize("form", ECHOES)
def test_a_key_that_an_endpoint_echoes_is_in_no_message(
    form: str, status: int, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_ENDPOINT", KEY)
    server = Server()
    with endpoint_server(server):
        engine = opened(server, tiny_model_folder, api_key_env="OF_THE_ENDPOINT")
        body = f'{{"choices": [{{"text": "you sent Bearer {ECHOES[form]}", "finish_reason": "stop"}}]}}'
        server.fault = lambda number: reply(status, body.encode(), location=f"/login?key={ECHOES[form]}")
        with pytest.raises(PalimpsestError, match=r"redacted|contains the key") as refused:
            asked(engine)
    assert not [piece for piece in ("3cret", "key+", "0123", "0073", "0033") if piece in str(refused.value)]
    assert all(headers["authorization"] == f"Bearer {KEY}" for headers in server.headers)
    assert KEY not in repr(engine.limits)


CONCURRENT = """
import asyncio, resource, sys
from palimpsest.http_connections import Connections

async def main():
    service = Connections()
    replies = await asyncio.gather(*(service.ask("GET", sys.argv[1], limit=1 << 20) for _ in range(80)))
    await service.close()
    print({reply.status for reply in replies}, resource.getrlimit(resource.RLIMIT_NOFILE))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("limit", "after"), [("ulimit -n 50", (50, 50)), ("ulimit -Sn 50; ulimit -Hn 200", (200, 200))]
)
def test_requests_beyond_the_limit_of_open_files_wait_and_the_soft_limit_is_raised(
    limit: str, after: tuple[int, int]
) -> None:
    with endpoint_server(Server(takes="chat", delay=0.3)) as server:
        words = shlex.join([sys.executable, "-c", CONCURRENT, f"{server.url}/models"])
        done = subprocess.run(["bash", "-c", f"{limit}; exec {words}"], capture_output=True, text=True, timeout=60)
    assert done.stdout.split(maxsplit=1) == ["{200}", f"{after}\n"], done.stderr
