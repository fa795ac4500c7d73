"""What a stream waits for before its head and role: nothing that grows with the documents of others."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from typing import Any

import pytest

from palimpsest.app.agent import serve_agent
from palimpsest.app.config_resolution import Agent
from palimpsest.servers.openai import request_bodies
from support.serving import Scripted, body, scripted

PATH = "/v1/chat/completions"


async def first_chunk(app: Any, content: dict[str, Any]) -> bytes:
    """The head and the first piece of a streamed answer, from the application itself: the transport of httpx2 gives it
    once it has ended."""
    sent, told = asyncio.Queue[Any](), asyncio.Queue[Any]()
    sent.put_nowait({"type": "http.request", "body": json.dumps(content).encode(), "more_body": False})
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
    }
    scope |= {"headers": [(b"host", b"localhost")], "http_version": "1.1", "asgi": {"version": "3.0"}}
    asked = asyncio.create_task(app(scope, sent.get, told.put))
    head, piece = await told.get(), await told.get()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert head["status"] == 200
    return bytes(piece["body"])


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_stream_begins_while_many_documents_are_encoded(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    client, service, _ = scripted(None)
    going_on, agent = threading.Event(), service.agent
    plan = agent.plan
    monkeypatch.setattr(agent, "plan", lambda *asked: going_on.wait(60) and plan(*asked))
    long = [asyncio.create_task(client.post(PATH, json=body(f"<document>Anna.</document> {n}?"))) for n in range(40)]
    while service.episodes.running < len(long):
        await asyncio.sleep(0.01)
    asked = body(f"<document>Anna sells tea. {'a' * size}</document> Who?", stream=True)
    assert b'"role":"assistant"' in await asyncio.wait_for(first_chunk(service.app(), asked), 30)
    going_on.set()
    assert {answer.status_code for answer in await asyncio.gather(*long)} == {200}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (PATH, body("<document>Anna sells tea.</document> Who?", metadata={})),
        ("/v1/responses", {"model": "palimpsest", "input": "Who?"}),
    ],
)
async def test_others_are_answered_while_a_long_body_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any]
) -> None:
    client, _, _ = scripted(None)
    begun, going_on, deeper = threading.Event(), threading.Event(), request_bodies.deeper_than

    def slow(value: object, levels: int) -> bool:
        begun.set()
        assert going_on.wait(60), "nobody else was answered"
        return deeper(value, levels)

    monkeypatch.setattr(request_bodies, "deeper_than", slow)
    data = json.dumps(asked) + " " * 20_000
    long = asyncio.create_task(client.post(path, content=data))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    assert (await client.get("/health")).status_code == 200
    going_on.set()
    assert (await long).status_code == 200


async def test_what_stays_is_kept_from_the_collector() -> None:
    opened = await serve_agent._opened_agent(Agent("embedded").config({}))
    try:
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()
        await opened.close()


async def test_health_answers_while_the_work_of_an_episode_blocks_its_loop() -> None:
    async with serve_agent._episode_loop() as loop:
        client, service, sampler = scripted(loop=loop)
        entered, released = threading.Event(), threading.Event()

        async def blocking(*args: Any, **options: Any) -> Any:
            entered.set()
            assert released.wait(60)
            return await Scripted.generate(sampler, *args, **options)

        sampler.generate = blocking
        answer = asyncio.create_task(client.post(PATH, json=body("<document>Anna sells tea.</document> Who?")))
        assert await asyncio.to_thread(entered.wait, 60)
        assert (await client.get("/health")).status_code == 200
        assert not answer.done()
        released.set()
        assert (await answer).status_code == 200
        await service.close()


async def test_news_of_an_episode_on_another_loop_are_those_of_one_here() -> None:
    streams = list[str]()
    for elsewhere in (False, True):
        async with serve_agent._episode_loop() as loop:
            client, service, _ = scripted(loop=loop if elsewhere else None)
            asked = body(f"<document>{'Anna sells tea. ' * 30}</document> Who?", stream=True)
            text = (await client.post(PATH, json=asked)).text
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            streams.append(json.dumps([event["choices"] for event in events]))
            await service.close()
    assert streams[0] == streams[1]
    assert "section 2" in streams[0]
