"""The Responses API over a scripted model: whole, streamed, resumed, in the background."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import SamplerError
from palimpsest.servers.openai.episode_store import Quota
from support.serving import scripted

FACTS = " ".join(f"Anna{n} sells tea and Bob{n} sells honey." for n in range(12))
PATH = "/v1/responses"


def about(question: str, **more: Any) -> dict[str, Any]:
    return {"model": "palimpsest", "input": f"<document>{FACTS}</document> {question}", **more}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def ended(client: Any, name: str) -> Any:
    while (found := (await client.get(f"{PATH}/{name}")).json())["status"] in ("queued", "in_progress"):
        await asyncio.sleep(0.01)
    return found


async def test_a_response_is_the_chat_completion_in_another_form(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path)
    response = (await client.post(PATH, json=about("Who?", instructions="Be brief.", metadata={"a": "b"}))).json()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": about("Who?")["input"]}]
    chat = (await client.post("/v1/chat/completions", json={"model": "palimpsest", "messages": messages})).json()
    assert service.episodes.counts["begun"] == 1
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][1]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert response["palimpsest"]["instructions"] == chat["palimpsest"]["instructions"] == "passed"
    assert response["usage"]["total_tokens"] == chat["usage"]["total_tokens"]
    assert (response["status"], response["metadata"]) == ("completed", {"a": "b"})
    again = (await client.get(f"{PATH}/{response['id']}")).json()
    assert again["output"] == response["output"]
    assert (await client.delete(f"{PATH}/{response['id']}")).json()["deleted"]
    assert (await client.get(f"{PATH}/{response['id']}")).status_code == 404


async def test_a_stream_is_numbered_and_resumed_after_any_event(tmp_path: Path) -> None:
    client, _, _ = scripted(tmp_path)
    whole = events((await client.post(PATH, json=about("Who?", stream=True))).text)
    assert [each["sequence_number"] for each in whole] == list(range(len(whole)))
    assert [whole[0]["type"], whole[1]["type"], whole[-1]["type"]] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    final = whole[-1]["response"]
    deltas = "".join(each["delta"] for each in whole if each["type"] == "response.output_text.delta")
    assert deltas == final["output"][1]["content"][0]["text"]
    told = "".join(each["delta"] for each in whole if each["type"] == "response.reasoning_summary_text.delta")
    assert told == final["output"][0]["summary"][0]["text"]
    for after in (0, 3, len(whole) - 2):
        url = f"{PATH}/{final['id']}?stream=true&starting_after={after}"
        rest = events((await client.get(url)).text)
        assert [each["sequence_number"] for each in rest] == list(range(after + 1, len(whole)))
        assert rest[:-1] == whole[after + 1 : -1]
    assert (await client.get(f"{PATH}/{final['id']}?stream=true&starting_after=x")).status_code == 400
    added = [each["item"]["id"] for each in whole if each["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in final["output"]]


async def test_a_response_in_the_background_is_polled_and_cancelled(tmp_path: Path) -> None:
    gate = asyncio.Event()
    client, service, sampler = scripted(tmp_path, gate=gate)
    first = (await client.post(PATH, json=about("Who?", background=True))).json()
    assert first["status"] in ("queued", "in_progress")
    second = (await client.post(PATH, json=about("Where?", background=True))).json()
    while len(sampler.prompts) < 2:
        await asyncio.sleep(0.01)
    cancelled = (await client.post(f"{PATH}/{second['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    gate.set()
    assert (await ended(client, first["id"]))["status"] == "completed"
    assert (await ended(client, second["id"]))["status"] == "cancelled"
    assert service.episodes.counts["outcome:cancelled"] == 1
    assert not list((tmp_path / "documents").iterdir())


async def test_the_one_who_cancels_does_not_take_it_from_another(tmp_path: Path) -> None:
    gate = asyncio.Event()
    client, _, sampler = scripted(tmp_path, gate=gate)
    names = [(await client.post(PATH, json=about("Who?", background=True))).json()["id"] for _ in range(2)]
    while not sampler.prompts:
        await asyncio.sleep(0.01)
    await client.post(f"{PATH}/{names[0]}/cancel")
    gate.set()
    assert (await ended(client, names[1]))["status"] == "completed"
    assert (await ended(client, names[0]))["status"] == "cancelled"


async def test_what_ran_in_the_background_goes_on_when_the_server_starts_again(tmp_path: Path) -> None:
    client, _, _ = scripted(tmp_path / "whole")
    whole = await ended(client, (await client.post(PATH, json=about("Who?", background=True))).json()["id"])
    gate = asyncio.Event()
    client, service, sampler = scripted(tmp_path / "ended", gate=gate)
    begun = (await client.post(PATH, json=about("Who?", background=True))).json()
    gate.set()
    while len(sampler.prompts) < 4:
        await asyncio.sleep(0)
    gate.clear()
    await service.episodes.drain()
    service.store.close()
    taken = len(list(service.store.lines(service.store.names("documents")[0]))) - 1
    assert 2 <= taken <= 4
    client, service, sampler = scripted(tmp_path / "ended")
    service.resume()
    again = await ended(client, begun["id"])
    assert [item["content"] for item in again["output"][1:]] == [item["content"] for item in whole["output"][1:]]
    assert again["output"][0]["summary"] == whole["output"][0]["summary"]
    assert len(sampler.prompts) == whole["palimpsest"]["turns"] - taken


async def test_a_response_in_progress_says_how_far_it_is(tmp_path: Path) -> None:
    gate = asyncio.Event()
    client, _, sampler = scripted(tmp_path, gate=gate)
    begun = (await client.post(PATH, json=about("Who?", background=True))).json()
    assert (begun["output"], begun["palimpsest"]["progress"]) == ([], {"turns": 0, "tokens_sampled": 0})
    gate.set()
    while len(sampler.prompts) < 3:
        await asyncio.sleep(0)
    gate.clear()
    await asyncio.sleep(0.05)
    halfway = (await client.get(f"{PATH}/{begun['id']}")).json()
    gate.set()
    found = await ended(client, begun["id"])
    progress = halfway["palimpsest"]["progress"]
    assert halfway["status"] == "in_progress"
    assert 2 <= progress["section"] == progress["turns"] < progress["sections"] == found["palimpsest"]["turns"] - 1
    assert 0 < progress["tokens_sampled"] < found["palimpsest"]["tokens_sampled"]
    (item,) = halfway["output"]
    assert (item["type"], item["status"]) == ("reasoning", "in_progress")
    assert item["summary"][0]["text"] == f"section {progress['section']} of {progress['sections']}\n"
    assert halfway["palimpsest"]["episode"] == found["palimpsest"]["episode"]
    assert found["status"] == "completed"
    assert "progress" not in found["palimpsest"]


async def test_with_other_weights_what_ran_in_the_background_is_cancelled(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path, gate=asyncio.Event())
    begun = (await client.post(PATH, json=about("Who?", background=True))).json()
    await service.episodes.drain()
    service.store.close()
    client, service, sampler = scripted(tmp_path)
    service.agents.current.__dict__["fingerprint"] = "other weights"
    service.resume()
    assert (await client.get(f"{PATH}/{begun['id']}")).json()["status"] == "cancelled"
    assert (service.store.names("documents"), sampler.prompts) == ([], [])
    assert service.store.get("responses", begun["id"])["cancelled"]


async def test_a_server_starts_whose_store_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client, service, _ = scripted(tmp_path, gate=asyncio.Event())
    begun = (await client.post(PATH, json=about("Who?", background=True))).json()
    await service.episodes.drain()
    service.store.close()
    client, service, _ = scripted(tmp_path)
    service.store.quota = Quota(episodes=1)
    logging.getLogger("uvicorn").propagate, before = True, logging.getLogger("uvicorn").propagate
    service.resume()
    logging.getLogger("uvicorn").propagate = before
    assert f"response {begun['id']} doesn't go on: the store is full" in caplog.text
    service.store.quota = Quota()
    service.resume()
    assert (await ended(client, begun["id"]))["status"] == "completed"


async def test_a_failure_is_told_of_a_response_too(tmp_path: Path) -> None:
    client, _, _ = scripted(tmp_path, failure=SamplerError("server gone"))
    assert (await client.post(PATH, json=about("Who?"))).status_code == 503
    begun = (await client.post(PATH, json=about("Who?", background=True))).json()
    failed = await ended(client, begun["id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "engine_failed")
    streamed = events((await client.post(PATH, json=about("Who?", stream=True))).text)
    assert streamed[-1]["type"] == "response.failed"


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


async def test_without_a_store_a_response_is_answered_and_gone() -> None:
    client, _, _ = scripted(None)
    response = (await client.post(PATH, json=about("Who?", store=False))).json()
    assert response["status"] == "completed"
    assert (await client.get(f"{PATH}/{response['id']}")).status_code == 404
    assert (await client.post(PATH, json=about("Who?", background=True))).json()["error"]["param"] == "background"
