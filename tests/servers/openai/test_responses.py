"""The Responses API over a scripted model, whole and streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import SamplerError
from support.serving import FACTS, scripted, sse_events

PATH = "/v1/responses"


def about(question: str, **more: Any) -> dict[str, Any]:
    return {"model": "palimpsest", "input": f"<document>{FACTS}</document> {question}", **more}


async def test_a_response_has_the_content_of_a_chat_completion(tmp_path: Path) -> None:
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


async def test_a_stream_is_numbered_and_ends_with_the_response() -> None:
    client, _, _ = scripted(None)
    events = sse_events((await client.post(PATH, json=about("Who?", stream=True))).text)
    assert [item["sequence_number"] for item in events] == list(range(len(events)))
    ends = ["response.created", "response.in_progress", "response.completed"]
    assert [events[at]["type"] for at in (0, 1, -1)] == ends
    final = events[-1]["response"]
    deltas = "".join(item["delta"] for item in events if item["type"] == "response.output_text.delta")
    assert deltas == final["output"][0]["content"][0]["text"]
    added = [item["item"]["id"] for item in events if item["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in final["output"]]


async def test_a_failed_episode_is_a_failed_response() -> None:
    client, _, _ = scripted(None, failure=SamplerError("server gone"))
    assert (await client.post(PATH, json=about("Who?"))).status_code == 503
    last = sse_events((await client.post(PATH, json=about("Who?", stream=True))).text)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "engine_failed"


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"input": about("why " * 700)["input"]}, "input", "context_length_exceeded"),
        ({"input": [{"role": "system", "content": "Be brief."}]}, "input", "no_question"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", None),
        ({"background": True}, "background", None),
        ({"tools": [{"type": "web_search"}]}, "tools", None),
        ({"text": {"format": {"type": "json_schema"}}}, "text", None),
        ({"input": [{"type": "function_call"}]}, "input.0.type", None),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type", None),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"seed": 1}, "seed", None),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_an_error_names_the_parameter_of_the_responses_api(
    more: dict[str, Any], param: str, code: str | None
) -> None:
    client, _, _ = scripted(None)
    answer = await client.post(PATH, json=about("Who?", **more))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert code is None or (error["code"] == code and "messages" not in error["message"])
