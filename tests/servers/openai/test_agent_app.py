"""The agent server's routes, keys, origins, limits, options and metrics, over a scripted model."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from palimpsest.engines.protocol import SamplerStats
from palimpsest.errors import ConfigError
from palimpsest.servers.openai.agent_app import ServerOptions, check_origins
from palimpsest.servers.openai.served_episodes import ServerLimits
from support.serving import CHAT, about, body, scripted


async def test_probes_need_no_key() -> None:
    client, _, _ = scripted(None, token="secret")
    for path, headers in (("/health", {}), ("/ready", {}), ("/health", {"Authorization": "Bearer wrong"})):
        assert (await client.get(path, headers=headers)).status_code == 200
    assert (await client.post("/health")).status_code == 405


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, None),
        ("Bearer wrong", "invalid_api_key"),
        ("Bearer secrets", "invalid_api_key"),
        ("Basic secret", "invalid_api_key"),
    ],
)
async def test_a_wrong_key_has_the_code_of_openai_and_is_not_repeated(header: str | None, code: str | None) -> None:
    client, _, _ = scripted(None, token="secret")
    answer = await client.get("/v1/models", headers={} if header is None else {"Authorization": header})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (401, code, None)
    assert "wrong" not in answer.text
    assert "secret" not in answer.text


async def test_every_path_but_probes_needs_the_key() -> None:
    client, _, _ = scripted(None, token="secret")
    paths = ["/v1/models", "/metrics", "/nowhere", "/health/"]
    for path in paths:
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "invalid_request_error")
    key = {"Authorization": "Bearer secret"}
    assert [(await client.get(path, headers=key)).status_code for path in paths[:2]] == [200] * 2


async def test_other_hosts_and_origins_are_rejected_without_a_key() -> None:
    client, _, _ = scripted(None)
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "[::"}):
        assert (await client.get("/health", headers=headers)).status_code == 403
    for headers in ({"Host": "127.0.0.1:8400"}, {"Host": "[::1]:1"}, {"Origin": "http://localhost"}):
        assert (await client.get("/health", headers=headers)).status_code == 200


async def test_the_agent_is_the_one_model() -> None:
    client, _, _ = scripted(None)
    models = (await client.get("/v1/models")).json()
    (model,) = models["data"]
    assert models["object"] == "list"
    assert {"id", "object", "created", "owned_by"} <= model.keys()
    assert (model["id"], model["palimpsest"]["policy"]) == ("palimpsest", "overwrite")
    assert model["max_model_len"] == ServerLimits().body_bytes
    assert (model["palimpsest"]["chunk_size"], model["palimpsest"]["window"]) == (24, 1024)
    assert (await client.get("/v1/models/palimpsest")).json() == model
    start = (await client.get("/")).json()
    assert start["models"] == [model["id"]]
    assert {"GET /v1/models", "POST /v1/chat/completions"} <= set(start["paths"])
    assert start["documentation"].endswith("docs/reference/server-api.md")
    refused = await client.post(CHAT, json={**about("Who?"), "model": "gpt-5"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert 'palimpsest_requests_total{status="404"} 1' in (await client.get("/metrics")).text


async def test_a_body_that_comes_too_slowly_is_rejected() -> None:
    client, service, _ = scripted(None, limits=ServerLimits(body_seconds=0.05))

    async def slowly() -> Any:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    answer = await asyncio.wait_for(client.post(CHAT, content=slowly()), 30)
    assert (answer.status_code, answer.json()["error"]["type"]) == (408, "invalid_request_error")
    assert service.episodes.counts["begun"] == 0


async def test_the_error_of_a_body_beyond_the_limit_says_what_to_do() -> None:
    client, _, _ = scripted(None, limits=ServerLimits(body_bytes=100))
    answer = await client.post(CHAT, json=about("Who?"))
    assert answer.status_code == 413
    assert "divide the document" in answer.json()["error"]["message"]


PAGE = "https://chat.example"
QUESTION = "<document>Anna sells tea.</document> Who sells tea?"


def preflight(origin: str) -> dict[str, str]:
    requested = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    return {"Origin": origin, **requested}


@pytest.mark.parametrize("token", [None, "secret"])
async def test_only_a_page_of_an_allowed_origin_may_ask(token: str | None) -> None:
    client, _, _ = scripted(None, token=token, options=ServerOptions(cors_origins=(PAGE,)))
    key = {"Authorization": f"Bearer {token}"} if token else {}
    allowed = await client.options(CHAT, headers=preflight(PAGE))
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in allowed.headers
    answer = await client.post(CHAT, json=body(QUESTION), headers={"Origin": PAGE, **key})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "X-Palimpsest-Input" in answer.headers["access-control-expose-headers"]
    other = await client.options(CHAT, headers=preflight("https://evil.example"))
    assert (other.status_code, other.headers.get("access-control-allow-origin")) == (400, None)
    answer = await client.post(CHAT, json=body(QUESTION), headers={"Origin": "https://evil.example", **key})
    assert answer.status_code == (200 if token else 403)
    assert "access-control-allow-origin" not in answer.headers


async def test_an_allowed_page_can_read_errors() -> None:
    client, _, _ = scripted(None, token="secret", options=ServerOptions(cors_origins=("*",)))
    answer = await client.get("/v1/models", headers={"Origin": PAGE})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "*")


async def test_no_page_may_ask_by_default() -> None:
    client, _, _ = scripted(None, token="secret")
    answer = await client.options(CHAT, headers=preflight(PAGE))
    assert answer.status_code == 401
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_an_allowed_page_is_rejected_under_another_host_name() -> None:
    client, _, _ = scripted(None, options=ServerOptions(cors_origins=(PAGE,)))
    answer = await client.get("/v1/models", headers={"Origin": PAGE, "Host": "evil.example"})
    assert answer.status_code == 403


@pytest.mark.parametrize("origin", ["*", "chat.example", "https://chat.example/", "null", "https://a b", "file://x"])
def test_origins_that_no_browser_sends_are_rejected_and_all_origins_without_a_key(origin: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("--cors-origin")):
        check_origins([origin], None)
    check_origins(["*"], "key")


UNSUPPORTED: dict[str, Any] = {
    "top_k": 40,
    "presence_penalty": 0.5,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "response_format": {"type": "json_object"},
    "stream_options": {"include_usage": True, "chunk_include_usage": True},
    "chat_template_kwargs": {"enable_thinking": False},
}


@pytest.mark.parametrize("stream", [False, True])
async def test_unsupported_parameters_are_ignored_and_named_with_the_option(stream: bool) -> None:
    client, _, _ = scripted(None)
    assert (await client.post(CHAT, json=body(QUESTION, **UNSUPPORTED, stream=stream))).status_code == 400
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=True))
    plain = await client.post(CHAT, json=body(QUESTION))
    assert "X-Palimpsest-Ignored" not in plain.headers
    answer = await client.post(CHAT, json=body(QUESTION, **UNSUPPORTED, stream=stream))
    assert answer.status_code == 200
    names = {*UNSUPPORTED, "stream_options.chunk_include_usage"} - {"stream_options"}
    assert set(answer.headers["X-Palimpsest-Ignored"].split(",")) == names
    assert stream or answer.json()["choices"] == plain.json()["choices"]


NESTED = {"task": "title_generation", "task_body": {"model": "x", "messages": []}, "chat_id": None}
"""Metadata of a task of Open WebUI."""


@pytest.mark.parametrize(
    ("path", "request_body", "ignored"),
    [
        (
            "/v1/responses",
            {"model": "palimpsest", "input": QUESTION, "reasoning": {"effort": "high"}, "top_logprobs": 2},
            "top_logprobs,reasoning",
        ),
        (
            CHAT,
            {
                "model": "palimpsest",
                "messages": [
                    {"role": "assistant", "content": "Hello.", "function_call": {"name": "f"}},
                    {"role": "user", "content": QUESTION},
                ],
            },
            "messages.0.function_call",
        ),
        (CHAT, body(QUESTION, metadata=NESTED), "metadata"),
    ],
    ids=["a response", "a message", "metadata"],
)
async def test_unsupported_keys_of_responses_messages_and_metadata_are_ignored(
    path: str, request_body: Any, ignored: str
) -> None:
    assert (await scripted(None)[0].post(path, json=request_body)).status_code == 400
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=True))
    answer = await client.post(path, json=request_body)
    assert (answer.status_code, answer.headers["X-Palimpsest-Ignored"]) == (200, ignored)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"palimpsest": {"documnt": "x"}}, "palimpsest.documnt"),
        ({"temperature": 3}, "temperature"),
        ({"stop": ""}, "stop"),
    ],
)
async def test_wrong_values_and_unknown_keys_of_ours_are_still_rejected(more: dict[str, Any], param: str) -> None:
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=True))
    answer = await client.post(CHAT, json=body(QUESTION, top_k=3, **more))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_parameter_names_never_break_a_header() -> None:
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=True))
    wild = {"a\r\nSet-Cookie: b": 1, "ü": 2, "x" * 5000: 3} | {f"key{n}": n for n in range(1000)}
    answer = await client.post(CHAT, json=body(QUESTION, **wild))
    names = answer.headers["X-Palimpsest-Ignored"].split(",")
    assert (answer.status_code, names[0], len(names)) == (200, "other", 16)
    assert "set-cookie" not in answer.headers


async def test_reasoning_that_a_client_sends_back_is_no_error() -> None:
    client, _, _ = scripted(None)
    back = {"role": "assistant", "content": "Hello.", "reasoning_content": "section 1", "reasoning": "section 1"}
    messages = [back, {"role": "user", "content": QUESTION}]
    assert (await client.post(CHAT, json={"model": "palimpsest", "messages": messages})).status_code == 200


async def test_metrics_include_the_engines_token_counts() -> None:
    client, _, sampler = scripted(None)
    stats = SamplerStats(prompt_tokens=70, computed_prompt_tokens=50, generated_tokens=8)
    sampler.stats = lambda: stats
    lines = (await client.get("/metrics")).text.splitlines()
    assert [line for line in lines if line.startswith("palimpsest_engine_")] == [
        "palimpsest_engine_prompt_tokens_total 70",
        "palimpsest_engine_computed_prompt_tokens_total 50",
        "palimpsest_engine_generated_tokens_total 8",
    ]


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\"n])*)"')


@dataclass
class Family:
    """A family as a scraper reads it."""

    kind: str = ""
    help: str = ""
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)


def families_of(text: str) -> dict[str, Family]:
    """By the rules of the format: HELP and TYPE before the samples of a name, which come in one group, each once."""
    assert text.endswith("\n")
    families, current = dict[str, Family](), ""
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            _, what, name, text = line.split(" ", 3)
            if what == "HELP":
                assert name not in families
                families[name] = Family(help=text)
            else:
                assert (what, name, families[name].samples) == ("TYPE", current, {})
                assert text in ("counter", "gauge")
                families[name].kind = text
            current = name
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        family = families[current]
        assert match[1] == current, line
        key = tuple(sorted(LABEL.findall(match[2] or "")))
        assert key not in family.samples
        family.samples[key] = float(match[3])
    return families


async def test_metrics_follow_the_text_format_of_prometheus() -> None:
    client, _, _ = scripted(None)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert all(item.help and item.kind for item in families_of(answer.text).values())
    for stream in (False, True):
        question = f"<document>Anna sells tea.</document> Who sells tea, {stream}?"
        reply = await client.post(CHAT, json=body(question, stream=stream))
        assert reply.status_code == 200
    await client.get('/no"where\\')
    families = families_of((await client.get("/metrics")).text)
    assert all(item.help and item.kind for item in families.values())
    assert all(name.endswith("_total") == (item.kind == "counter") for name, item in families.items())


async def test_counters_count_requests_turns_and_tokens() -> None:
    client, _, _ = scripted(None)
    answers = [await client.post(CHAT, json=body(f"<document>Tea.</document> Who {n}?")) for n in range(3)]
    await client.get("/nowhere")
    families = families_of((await client.get("/metrics")).text)
    assert families["palimpsest_requests_total"].samples == {(("status", "200"),): 3, (("status", "404"),): 1}
    assert families["palimpsest_episodes_total"].samples == {(("outcome", "answered"),): 3}
    for name in ("turns", "tokens_in", "tokens_sampled"):
        expected = sum(item.json()["palimpsest"][name] for item in answers)
        assert families[f"palimpsest_{name}_total"].samples == {(): expected}
