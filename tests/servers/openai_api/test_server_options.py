"""What whoever starts the server chooses: which pages may ask, and whether unsupported parameters are ignored."""

from __future__ import annotations

import re
from typing import Any

import pytest

from palimpsest.errors import ConfigError
from palimpsest.servers.openai.agent_app import ServerOptions, check_origins
from support.serving import body, scripted

PATH = "/v1/chat/completions"
CHAT = "https://chat.example"
QUESTION = "<document>Anna sells tea.</document> Who sells tea?"


def asked_from(origin: str, **more: str) -> dict[str, str]:
    return {"Origin": origin, **more}


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.mark.parametrize("token", [None, "secret"])
async def test_a_page_that_is_named_may_ask_and_no_other(token: str | None) -> None:
    client, _, _ = scripted(None, token=token, options=ServerOptions(cors_origins=(CHAT,)))
    key = {"Authorization": f"Bearer {token}"} if token else {}
    allowed = await client.options(PATH, headers=asked_from(CHAT, **PREFLIGHT))
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, CHAT)
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in allowed.headers
    answer = await client.post(PATH, json=body(QUESTION), headers=asked_from(CHAT, **key))
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, CHAT)
    assert "X-Palimpsest-Input" in answer.headers["access-control-expose-headers"]
    other = await client.options(PATH, headers=asked_from("https://evil.example", **PREFLIGHT))
    assert (other.status_code, other.headers.get("access-control-allow-origin")) == (400, None)
    answer = await client.post(PATH, json=body(QUESTION), headers=asked_from("https://evil.example", **key))
    assert answer.status_code == (200 if token else 403)
    assert "access-control-allow-origin" not in answer.headers


async def test_an_error_is_readable_by_the_page_that_asked() -> None:
    client, _, _ = scripted(None, token="secret", options=ServerOptions(cors_origins=("*",)))
    answer = await client.get("/v1/models", headers=asked_from(CHAT))
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "*")


async def test_no_page_may_ask_by_default() -> None:
    client, _, _ = scripted(None, token="secret")
    answer = await client.options(PATH, headers=asked_from(CHAT, **PREFLIGHT))
    assert answer.status_code == 401
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_named_page_under_another_name_of_this_machine_is_rejected() -> None:
    client, _, _ = scripted(None, options=ServerOptions(cors_origins=(CHAT,)))
    answer = await client.get("/v1/models", headers=asked_from(CHAT, Host="evil.example"))
    assert answer.status_code == 403


@pytest.mark.parametrize("origin", ["*", "chat.example", "https://chat.example/", "null", "https://a b", "file://x"])
def test_origins_that_no_browser_sends_and_all_pages_without_a_key_are_rejected(origin: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("--cors-origin")):
        check_origins([origin], None)
    check_origins(["*"], "key")


ASKED: dict[str, Any] = {
    "top_k": 40,
    "presence_penalty": 0.5,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "response_format": {"type": "json_object"},
    "stream_options": {"include_usage": True, "chunk_include_usage": True},
    "chat_template_kwargs": {"enable_thinking": False},
}


@pytest.mark.parametrize("stream", [False, True])
async def test_unsupported_parameters_are_ignored_and_named_where_that_is_wanted(stream: bool) -> None:
    client, _, _ = scripted(None)
    assert (await client.post(PATH, json=body(QUESTION, **ASKED, stream=stream))).status_code == 400
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=True))
    plain = await client.post(PATH, json=body(QUESTION))
    assert "X-Palimpsest-Ignored" not in plain.headers
    answer = await client.post(PATH, json=body(QUESTION, **ASKED, stream=stream))
    assert answer.status_code == 200
    assert set(answer.headers["X-Palimpsest-Ignored"].split(",")) == {
        "top_k",
        "presence_penalty",
        "tools",
        "response_format",
        "stream_options.chunk_include_usage",
        "chat_template_kwargs",
    }
    if not stream:
        assert answer.json()["choices"] == plain.json()["choices"]


async def test_unsupported_parameters_of_responses_and_of_messages_are_ignored_too() -> None:
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=True))
    given = {"model": "palimpsest", "input": QUESTION, "reasoning": {"effort": "high"}, "top_logprobs": 2}
    answer = await client.post("/v1/responses", json=given)
    assert (answer.status_code, answer.headers["X-Palimpsest-Ignored"]) == (200, "top_logprobs,reasoning")
    said = [
        {"role": "assistant", "content": "Hello.", "function_call": {"name": "f"}},
        {"role": "user", "content": QUESTION},
    ]
    answer = await client.post(PATH, json={"model": "palimpsest", "messages": said})
    assert (answer.status_code, answer.headers["X-Palimpsest-Ignored"]) == (200, "messages.0.function_call")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"palimpsest": {"documnt": "x"}}, "palimpsest.documnt"),
        ({"temperature": 3}, "temperature"),
        ({"stop": ""}, "stop"),
    ],
)
async def test_wrong_values_and_misspelt_keys_of_ours_are_rejected_all_the_same(
    more: dict[str, Any], param: str
) -> None:
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=True))
    answer = await client.post(PATH, json=body(QUESTION, top_k=3, **more))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_names_of_a_client_never_break_a_header() -> None:
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=True))
    wild = {"a\r\nSet-Cookie: b": 1, "ü": 2, "x" * 5000: 3} | {f"key{n}": n for n in range(1000)}
    answer = await client.post(PATH, json=body(QUESTION, **wild))
    names = answer.headers["X-Palimpsest-Ignored"].split(",")
    assert (answer.status_code, names[0], len(names)) == (200, "other", 16)
    assert "set-cookie" not in answer.headers


async def test_reasoning_that_a_client_sends_back_is_no_error() -> None:
    client, _, _ = scripted(None)
    back = {"role": "assistant", "content": "Hello.", "reasoning_content": "section 1", "reasoning": "section 1"}
    answer = await client.post(
        PATH, json={"model": "palimpsest", "messages": [back, {"role": "user", "content": QUESTION}]}
    )
    assert answer.status_code == 200
