"""The Responses API over a scripted model: whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import SamplerError
from support.serving import scripted

FACTS = " ".join(f"Anna{n} sells tea and Bob{n} sells honey." for n in range(12))
PATH = "/v1/responses"


def about(question: str, **more: Any) -> dict[str, Any]:
    return {"model": "palimpsest", "input": f"<document>{FACTS}</document> {question}", **more}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def test_a_response_is_the_chat_completion_in_another_form(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path)
    response = (await client.post(PATH, json=about("Who?", instructions="Be brief.", metadata={"a": "b"}))).json()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": about("Who?")["input"]}]
    chat = (await client.post("/v1/chat/completions", json={"model": "palimpsest", "messages": messages})).json()
    assert service.episodes.counts["begun"] == 1
    (message,) = response["output"]
    assert message["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert response["palimpsest"]["instructions"] == chat["palimpsest"]["instructions"] == "passed"
    assert response["usage"]["total_tokens"] == chat["usage"]["total_tokens"]
    assert (response["status"], response["metadata"]) == ("completed", {"a": "b"})


async def test_a_stream_is_numbered_and_ends_with_the_whole_response() -> None:
    client, _, _ = scripted(None)
    whole = events((await client.post(PATH, json=about("Who?", stream=True))).text)
    assert [each["sequence_number"] for each in whole] == list(range(len(whole)))
    assert [whole[0]["type"], whole[1]["type"], whole[-1]["type"]] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    final = whole[-1]["response"]
    deltas = "".join(each["delta"] for each in whole if each["type"] == "response.output_text.delta")
    assert deltas == final["output"][0]["content"][0]["text"]
    added = [each["item"]["id"] for each in whole if each["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in final["output"]]


async def test_a_failure_is_told_of_a_response_too() -> None:
    client, _, _ = scripted(None, failure=SamplerError("server gone"))
    assert (await client.post(PATH, json=about("Who?"))).status_code == 503
    streamed = events((await client.post(PATH, json=about("Who?", stream=True))).text)
    failed = streamed[-1]["response"]
    assert (streamed[-1]["type"], failed["status"]) == ("response.failed", "failed")
    assert failed["error"]["code"] == "engine_failed"


async def test_what_is_too_long_or_asks_nothing_is_told_of_the_input() -> None:
    client, _, _ = scripted(None)
    for given, code in (
        (about("why " * 700), "context_length_exceeded"),
        (about("Who?") | {"input": [{"role": "system", "content": "Be brief."}]}, "no_question"),
    ):
        answer = await client.post(PATH, json=given)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
        assert answer.json()["error"]["param"] == "input"
        assert "messages" not in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"input": [{"type": "function_call"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"seed": 1}, "seed"),
    ],
)
async def test_what_is_not_possible_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    client, _, _ = scripted(None)
    answer = await client.post(PATH, json=about("Who?", **more))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
