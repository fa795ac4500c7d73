"""The endpoint engine against servers on loopback that stall, fail, misreport and echo the key."""

from __future__ import annotations

import asyncio
import copy
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from palimpsest.config.schema import RunConfig
from palimpsest.engines.endpoint import client as client_module
from palimpsest.engines.endpoint.engine import EndpointEngine
from palimpsest.engines.endpoint.wire_formats import PLAIN, Fields, TextForm
from palimpsest.engines.open import open_engine, using
from palimpsest.engines.protocol import Endpoint
from palimpsest.errors import ConfigError, EngineError, ModelError, PalimpsestError, PromptTooLong, SamplerError
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, SamplingParams, StopReason
from support.clock import leap
from support.endpoint_server import MODEL, WINDOW, Server, endpoint_server, reply

PROMPT = tuple(range(20, 40))
PROBES = 1  # completions that a server which accepts everything gets before the first of the test
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


def config_of(url: str, tokenizer: Path | None, model: str = MODEL, **settings: Any) -> RunConfig:
    named = {} if tokenizer is None else {"tokenizer": str(tokenizer)}
    section = {"name": "endpoint", "url": url, "timeout_s": 20.0, "attempts": 3, **named, **settings}
    return RunConfig.model_validate({"model": {"path": model}, "engine": section})


def opened(server: Server, tokenizer: Path | None, **settings: Any) -> EndpointEngine:
    engine = open_engine(config_of(server.url, tokenizer, **settings), objective=None)
    assert isinstance(engine, EndpointEngine)
    return engine


def endpoint_of(engine: EndpointEngine) -> Endpoint:
    assert engine.limits.endpoint is not None
    return engine.limits.endpoint


async def generate(engine: EndpointEngine, prompt: Sequence[int] = PROMPT, seed: int = 5, **params: Any) -> Completion:
    if endpoint_of(engine).mode == "chat":
        prompt = engine.codec.encode_trusted("<|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>")
    wanted = SamplingParams(**{"max_tokens": 8, "seed": seed, "stop_ids": engine.codec.stop_ids, **params})
    return await engine.sampler.generate(prompt, wanted)


def run(engine: EndpointEngine, work: Callable[[EndpointEngine], Awaitable[Any]] = generate) -> Any:
    async def main() -> Any:
        return await work(engine)

    return asyncio.run(using(engine, main()))


@contextmanager
def rejecting(kind: type[PalimpsestError], *words: str) -> Iterator[None]:
    """Expect one line of that kind, with these words and without the key."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert KEY not in message
    assert len(message) < 900
    assert not [word for word in words if word not in message], message


def test_token_ids_and_log_probabilities_are_those_that_were_sampled(tiny_model_folder: Path) -> None:
    with endpoint_server() as server:
        engine = opened(server, tiny_model_folder)
        completion = run(engine, lambda engine: generate(engine, temperature=0.7, top_p=0.9))
        sent = server.asked[-1]
    assert (sent["prompt"], sent["temperature"], sent["top_p"]) == (list(PROMPT), 0.7, 0.9)
    assert (sent["seed"], sent["max_tokens"], sent["stop_token_ids"]) == (5, 8, list(engine.codec.stop_ids))
    assert (sent["top_k"], sent["min_p"], sent["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert len(completion.token_ids) == len(completion.logprobs) == 6
    assert completion.stop_reason is StopReason.STOP
    assert max(completion.logprobs) < 0
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
def test_the_best_mode_that_works_is_used_and_reported(
    server: Server, mode: str, exact: tuple[bool, bool, bool], tiny_model_folder: Path
) -> None:
    with endpoint_server(server):
        engine = opened(server, tiny_model_folder)
    endpoint = endpoint_of(engine)
    assert (endpoint.mode, (endpoint.exact_prompt_ids, endpoint.exact_ids, endpoint.logprobs)) == (mode, exact)
    assert f"mode {mode}: " in engine.limits.note
    assert "\n" not in engine.limits.note


def test_an_endpoint_that_rejects_a_temperature_gets_none_and_the_note_says_so() -> None:
    server = Server(takes="chat", plain=True, refuses=frozenset({"max_tokens", "temperature"}))
    with endpoint_server(server):
        engine = opened(server, None, thinking_tokens=100)
        run(engine)
    last, endpoint = server.asked[-1], endpoint_of(engine)
    assert {"seed", "top_p", "max_completion_tokens"} <= set(last)
    assert not {"temperature", "max_tokens", "top_k"} & set(last)
    assert last["max_completion_tokens"] == 108
    assert endpoint.sent == tuple(sorted(last))
    assert {"max_tokens", "temperature", "top_k"} <= set(endpoint.dropped)
    assert not {*endpoint.dropped} & {*last}
    assert "the endpoint sets temperature" in engine.limits.note


@pytest.mark.parametrize("plain", [True, False])
def test_an_endpoint_whose_errors_name_no_field_gets_fewer_step_by_step(plain: bool) -> None:
    allowed = {"model", "stream", "messages", "max_completion_tokens"}
    allowed |= set() if plain else {"temperature", "top_p", "seed"}
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


def chat_reply(message: Any, ended: str | None = "stop") -> Any:
    return reply(200, {"choices": [{"message": message, "finish_reason": ended}]})


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "red"}]}


@pytest.mark.parametrize(
    ("content", "ended", "text", "stop"),
    [
        *(("blue", end, "blue", "stop") for end in ("STOP", "eos_token", "EOS", "end_turn", "COMPLETE", "", None)),
        *(("blue", end, "blue", "length") for end in ("LENGTH", "MAX_TOKENS")),
        ([THOUGHT, {"type": "text", "text": "blue"}], "length", "blue", "length"),
        ([{"type": "text", "text": "bl"}, {"type": "text", "text": "ue"}], "length", "blue", "length"),
        ([{"type": "output_text", "text": "bl"}, {"type": "refusal", "refusal": "ue"}], "length", "blue", "length"),
        ([], "length", "", "length"),
        (None, "length", "", "length"),
    ],
)
def test_text_and_end_of_a_chat_reply_may_have_other_forms(
    content: Any, ended: str | None, text: str, stop: str
) -> None:
    with endpoint_server(Server(takes="chat", fault=lambda _: chat_reply({"content": content}, ended))) as server:
        engine = opened(server, None)
        completion = run(engine)
    assert completion.stop_reason == stop
    assert engine.codec.decode(completion.token_ids, control=False) == text


CALLS = [{"type": "function", "function": {"name": "search", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("message", "ended", "words"),
    [
        *(
            ({"content": "blue"}, end, end)
            for end in ("content_filter", "tool_calls", "function_call", "error", "abort", "SAFETY")
        ),
        ({"content": None, "tool_calls": CALLS}, "stop", "tool parser"),
    ],
)
def test_an_incomplete_reply_is_an_error(message: Any, ended: str, words: str) -> None:
    server = Server(takes="chat")
    with endpoint_server(server):
        engine = opened(server, None)
        server.fault = lambda number: chat_reply(message, ended)
        with rejecting(SamplerError, words):
            run(engine)


@pytest.mark.parametrize("content", [7, {"text": "blue"}, ["blue"], [{"type": "text"}], [{"type": "text", "text": 7}]])
def test_content_of_another_shape_is_an_error(content: Any) -> None:
    server = Server(takes="chat", fault=lambda number: chat_reply({"content": content}))
    with endpoint_server(server), rejecting(ConfigError, "no mode works"):
        opened(server, None)


@pytest.mark.parametrize("text", ["blue <|im_end|> " * 20, "blue " * 200_000])
def test_a_reply_of_text_is_cut_at_the_budget_and_the_excess_is_not_encoded(
    text: str, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, encode_text = list[int](), Codec.encode

    def encode(codec: Codec, text: str) -> list[int]:
        encoded.append(len(text))
        return encode_text(codec, text)

    with endpoint_server(Server(takes="completions", speak=lambda _: text)) as server:
        engine = opened(server, tiny_model_folder)
        monkeypatch.setattr(Codec, "encode", encode)
        completion = run(engine)
    assert (len(completion.token_ids), completion.stop_reason) == (8, StopReason.LENGTH)
    assert engine.codec.control_ids.isdisjoint(completion.token_ids)
    assert set(completion.logprobs) == {0.0}
    assert 0 < max(encoded) < 10_000


def test_a_document_with_a_role_marker_is_not_sent_as_text(tiny_model_folder: Path) -> None:
    with endpoint_server(Server(takes="completions")) as server:
        engine = opened(server, tiny_model_folder)
        with rejecting(SamplerError, "role marker"):
            run(engine, lambda engine: generate(engine, engine.codec.encode("Anna <|im_end|> is blue")))


@pytest.mark.parametrize("special", [False, True])
def test_a_reply_with_an_added_token_may_be_part_of_the_next_prompt(special: bool, tiny_model_folder: Path) -> None:
    tokenizer = copy.deepcopy(Codec.load(tiny_model_folder).tokenizer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=special)])
    form = TextForm(codec := Codec(tokenizer), "m", PLAIN, {})
    text = "<|im_start|>assistant\n<tool_call> blue"
    prompt = [*codec.encode_trusted("<|im_start|>assistant\n"), *codec.encode("<tool_call> blue")]
    params = SamplingParams(max_tokens=8, stop_ids=codec.stop_ids)
    if special:
        with rejecting(SamplerError, "role marker"):
            form.body(prompt, params)
    else:
        assert form.body(prompt, params)["prompt"] == text


def test_without_log_probabilities_none_are_requested(tiny_model_folder: Path) -> None:
    with endpoint_server() as server:
        completion = run(opened(server, tiny_model_folder, logprobs=False))
    assert all("logprobs" not in body for body in server.asked)
    assert set(completion.logprobs) == {0.0}


def altered(**choice: Any) -> bytes:
    good = {"finish_reason": "stop", "text": "", "token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0, -1.0]}}
    return json.dumps({"choices": [good | choice]}).encode()


TROUBLE: dict[str, Any] = {
    "busy": reply(429, {"error": "slow down"}, **{"retry-after": "0.01"}),
    "overloaded": reply(503, {"error": "overloaded"}),
    "broken": reply(500, {"error": "oops"}),
    "error": reply(200, {"error": {"message": "upstream is busy " + "x" * 1000, "code": 502}}),
    "reset": "reset",
    "hang": "hang",
    "endless": "endless",
    "garbage": reply(200, b"<html>not JSON"),
    "null": reply(200, None),
    "no choices": reply(200, {"choices": []}),
    "lengths": reply(200, altered(token_ids=[5, 6, 7])),
    "too many": reply(200, altered(token_ids=[5] * 9, logprobs=None)),
    "ids left out": reply(200, altered(token_ids=None)),
    "log-probabilities left out": reply(200, altered(logprobs=None)),
    "no ids": reply(200, altered(token_ids=[5, "6"])),
    "negative": reply(200, altered(token_ids=[5, -6])),
    "not finite": reply(200, altered().replace(b"-1.0]", b"1e999]")),
    "above 0": reply(200, altered(logprobs={"token_logprobs": [-1.0, 0.5]})),
    "other prompt": reply(200, altered(prompt_token_ids=[1, 2, 3])),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_an_error_that_passes_is_retried(
    trouble: str, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module.EndpointClient, "reply_bytes", 1 << 20)
    server = Server(fault=lambda number: TROUBLE[trouble] if number == PROBES else None)

    async def retried(engine: EndpointEngine) -> Completion:
        task = asyncio.create_task(generate(engine))
        while len(server.asked) == PROBES:
            await asyncio.sleep(0.001)
        if trouble == "hang":
            leap(60)
        return await task

    with endpoint_server(server):
        completion = run(opened(server, tiny_model_folder, timeout_s=30.0), retried)
    assert len(completion.token_ids) == 6
    assert len(server.asked) == PROBES + 2
    assert server.asked[-1] == server.asked[-2]  # the seed too


@pytest.mark.parametrize(
    ("trouble", "settings", "attempts", "kind", "words"),
    [
        ("busy", {}, 3, SamplerError, ["status 429"]),
        ("reset", {}, 3, SamplerError, ["gave up after 3 attempts"]),
        ("garbage", {}, 3, SamplerError, ["not JSON"]),
        ("lengths", {}, 3, SamplerError, ["3 tokens"]),
        ("error", {}, 3, SamplerError, ["upstream is busy"]),
        ("broken", {"patience_s": 0.0, "attempts": 20}, 8, EngineError, ["down: 8 attempts in a row", "status 500"]),
    ],
)
def test_an_error_that_stays_is_reported_on_one_line(
    trouble: str, settings: Any, attempts: int, kind: Any, words: list[str], tiny_model_folder: Path
) -> None:
    server = Server(fault=lambda number: TROUBLE[trouble] if number >= PROBES else None)
    with endpoint_server(server), rejecting(kind, server.url, *words):
        run(opened(server, tiny_model_folder, **settings))
    assert len(server.asked) == PROBES + attempts


def test_no_more_requests_are_in_flight_than_allowed(tiny_model_folder: Path) -> None:
    async def many(engine: EndpointEngine) -> list[Completion]:
        return await asyncio.gather(*(generate(engine, seed=n) for n in range(60)))

    together = threading.Barrier(11)  # more than one pool of connections

    def fault(number: int) -> None:
        if PROBES <= number < PROBES + 11:
            together.wait(20)

    with endpoint_server(Server(fault=fault)) as server:
        completions = run(opened(server, tiny_model_folder, concurrency=11), many)
    assert server.most_at_once == 11
    assert len({completion.token_ids for completion in completions}) == 60


def test_a_cancelled_request_is_closed(tiny_model_folder: Path) -> None:
    server = Server(fault=lambda number: "hang" if number >= PROBES else None)

    async def cancelled(engine: EndpointEngine) -> None:
        task = asyncio.create_task(generate(engine))
        while len(server.asked) == PROBES:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while not server.cut_off:
            await asyncio.sleep(0.001)

    with endpoint_server(server):
        engine = opened(server, tiny_model_folder)
        run(engine, cancelled)
    assert engine.sampler.stats().cancelled == 1


@pytest.mark.parametrize(
    ("status", "body", "words", "requests"),
    [
        (401, {"error": "bad key"}, ["--api-key-env"], 1),
        (403, {"error": "bad key"}, ["--api-key-env"], 1),
        (429, {"error": {"code": "insufficient_quota"}}, ["quota is exhausted"], 1),
        (429, None, ["status 429", "try again later"], 4),
        (503, None, ["status 503", "try again later"], 4),
    ],
)
def test_an_error_of_every_request_is_not_mistaken_for_an_unsupported_mode(
    status: int, body: Any, words: list[str], requests: int, tiny_model_folder: Path
) -> None:
    server = Server(fault=lambda number: reply(status, body))
    with endpoint_server(server), rejecting(EngineError, *words):
        opened(server, tiny_model_folder)
    assert {*server.paths} == {"/v1/models", "/v1/completions"}
    assert len(server.asked) == requests


@pytest.mark.parametrize("wrong", [reply(500), reply(200, {"usage": {"prompt_tokens": 1}, "choices": [{"text": "a"}]})])
def test_a_server_that_misreads_token_ids_gets_text(wrong: Any, tiny_model_folder: Path) -> None:
    server = Server(fault=lambda number: wrong if isinstance(server.asked[number]["prompt"], list) else None)
    with endpoint_server(server):
        assert endpoint_of(opened(server, tiny_model_folder)).mode == "completions"


def test_redirects_are_not_followed(tiny_model_folder: Path) -> None:
    with endpoint_server() as other, endpoint_server() as server:
        server.fault = lambda number: reply(307, None, location=f"{other.url}/completions")
        with rejecting(EngineError, "redirect to", other.url, "set engine.url (--base-url)"):
            opened(server, tiny_model_folder)
    assert other.paths == []


def test_an_endpoint_that_does_not_listen_is_reported_at_once(tiny_model_folder: Path) -> None:
    with endpoint_server() as server:
        pass
    with rejecting(EngineError, server.url, "unreachable", "check engine.url (--base-url), and that it runs"):
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
def test_an_invalid_address_is_an_error(url: str, words: str, tiny_model_folder: Path) -> None:
    with rejecting(ConfigError, words):
        open_engine(config_of(url, tiny_model_folder), objective=None)


@pytest.mark.parametrize(
    ("server", "folder", "settings", "kind", "words"),
    [
        (Server(), True, {"model": "serve"}, ConfigError, ["no model serve; did you mean served?", "it has served"]),
        (Server(), True, {"max_model_len": 5000}, ConfigError, ["engine.max_model_len=5000", "4096"]),
        (Server(), False, {"mode": "tokens"}, ModelError, ["--tokenizer", "model served"]),
        (Server(takes="chat", window=None), False, {}, ConfigError, ["engine.max_model_len", "131072"]),
    ],
)
def test_settings_that_do_not_fit_the_endpoint_are_an_error(
    server: Server, folder: bool, settings: Any, kind: Any, words: list[str], tiny_model_folder: Path
) -> None:
    with endpoint_server(server), rejecting(kind, *words):
        opened(server, tiny_model_folder if folder else None, **settings)


def test_a_path_without_v1_is_reported(tiny_model_folder: Path) -> None:
    server = Server(takes="chat", fault=lambda _: reply(404, {"detail": "Not Found"}))
    with endpoint_server(server), rejecting(ConfigError, "does engine.url (--base-url) lack /v1?"):
        open_engine(config_of(server.url.removesuffix("/v1"), tiny_model_folder), objective=None)


def test_the_window_of_an_endpoint_that_reports_none_is_the_users() -> None:
    with endpoint_server(Server(takes="chat", window=None)) as server:
        assert opened(server, None, max_model_len=1000).limits.max_context == 1000


def test_training_on_an_endpoint_is_an_error() -> None:
    with rejecting(ConfigError, "samples alone"):
        open_engine(config_of("http://127.0.0.1:9/v1", None), objective="policy")


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 512 tokens. However, you requested 600",
        "the request exceeds the available context size, try increasing it",
        "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
    ],
)
def test_a_prompt_that_the_endpoint_finds_too_long_is_a_separate_error(message: str, tiny_model_folder: Path) -> None:
    server = Server(fault=lambda number: reply(400, {"error": {"message": message}}) if number >= PROBES else None)
    with endpoint_server(server), rejecting(PromptTooLong, "engine.max_model_len"):
        run(opened(server, tiny_model_folder))


def test_a_prompt_beyond_the_window_is_not_sent(tiny_model_folder: Path) -> None:
    with endpoint_server(Server(window=24)) as server, rejecting(PromptTooLong, "window of 24"):
        run(opened(server, tiny_model_folder))
    assert len(server.asked) == PROBES


def test_a_tokenizer_is_compared_with_the_servers(tiny_model_folder: Path, tiny_codec: Any) -> None:
    def other(text: str) -> list[int]:
        ids: list[int] = tiny_codec.encode_trusted(text)
        return [*ids[:3], 7, *ids[4:]] if "Zürich" in text else ids

    with endpoint_server(Server(tokenize=other)) as server, rejecting(ModelError, "Zürich", "token 3", "--tokenizer"):
        opened(server, tiny_model_folder)
    with endpoint_server(Server(tokenize=tiny_codec.encode_trusted)) as server:
        note = opened(server, tiny_model_folder).limits.note
    assert "tokenizer compared with the server's" in note


USAGES = [None, [], [1], "text", 5, {"prompt_tokens": "²"}, {"prompt_tokens": [1]}, {"prompt_tokens_details": [2]}]


@pytest.mark.parametrize("usage", [*USAGES, {"completion_tokens": 1e300}, {"prompt_tokens": {"cached": 1}}])
def test_invalid_counts_of_a_reply_are_replaced_by_the_engines(usage: Any, tiny_model_folder: Path) -> None:
    body = {"choices": [{"text": "blue", "finish_reason": "stop"}], "usage": usage}
    with endpoint_server(Server(takes="completions", fault=lambda number: reply(200, body))) as server:
        engine = opened(server, tiny_model_folder, mode="completions")
        completion = run(engine)
    assert engine.codec.decode(completion.token_ids, control=False) == "blue"
    stats = engine.sampler.stats()
    assert (stats.prompt_tokens, stats.generated_tokens) == (len(PROMPT), len(completion.token_ids))
    assert len(server.asked) == PROBES + 1


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
        with pytest.raises(PalimpsestError, match=r"redacted|contains the key") as caught:
            run(engine)
    assert not [piece for piece in ("3cret", "key+", "0123", "0073", "0033") if piece in str(caught.value)]
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
