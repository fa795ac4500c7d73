"""A slow request never delays others: encoding, long bodies, episodes that block their loop."""

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
from support.serving import CHAT, Scripted, body, scripted, sse_events, until


async def first_chunk(app: Any, content: dict[str, Any]) -> bytes:
    """The first piece of a streamed answer, from the application itself: httpx2's transport waits for the end."""
    received, sent = asyncio.Queue[Any](), asyncio.Queue[Any]()
    received.put_nowait({"type": "http.request", "body": json.dumps(content).encode(), "more_body": False})
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode()}
    scope |= {"query_string": b"", "headers": [(b"host", b"localhost")], "http_version": "1.1"}
    task = asyncio.create_task(app({**scope, "asgi": {"version": "3.0"}}, received.get, sent.put))
    head, piece = await sent.get(), await sent.get()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert head["status"] == 200
    return bytes(piece["body"])


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_stream_starts_while_many_documents_are_encoded(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    client, service, _ = scripted(None)
    released, agent = threading.Event(), service.agent
    plan = agent.plan
    monkeypatch.setattr(agent, "plan", lambda *query: released.wait(60) and plan(*query))
    slow = [asyncio.create_task(client.post(CHAT, json=body(f"<document>Anna.</document> {n}?"))) for n in range(40)]
    await until(lambda: service.episodes.running == len(slow))
    request = body(f"<document>Anna sells tea. {'a' * size}</document> Who?", stream=True)
    assert b'"role":"assistant"' in await asyncio.wait_for(first_chunk(service.app(), request), 30)
    released.set()
    assert {answer.status_code for answer in await asyncio.gather(*slow)} == {200}


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        (CHAT, body("<document>Anna sells tea.</document> Who?", metadata={})),
        ("/v1/responses", {"model": "palimpsest", "input": "Who?"}),
    ],
)
async def test_requests_are_answered_while_a_long_body_is_parsed(
    monkeypatch: pytest.MonkeyPatch, path: str, request_body: dict[str, Any]
) -> None:
    client, _, _ = scripted(None)
    entered, released, deeper = threading.Event(), threading.Event(), request_bodies.deeper_than

    def slow(value: object, levels: int) -> bool:
        entered.set()
        assert released.wait(60), "no other request was answered"
        return deeper(value, levels)

    monkeypatch.setattr(request_bodies, "deeper_than", slow)
    long = asyncio.create_task(client.post(path, content=json.dumps(request_body) + " " * 20_000))
    await until(entered.is_set)
    assert (await client.get("/health")).status_code == 200
    released.set()
    assert (await long).status_code == 200


async def test_objects_of_an_open_agent_are_frozen_for_the_collector() -> None:
    opened = await serve_agent._opened_agent(Agent("embedded").config({}))
    try:
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()
        await opened.close()


async def test_health_answers_while_an_episode_blocks_its_loop() -> None:
    async with serve_agent._episode_loop() as loop:
        client, service, sampler = scripted(loop=loop)
        entered, released = threading.Event(), threading.Event()

        async def blocking(*args: Any, **options: Any) -> Any:
            entered.set()
            assert released.wait(60)
            return await Scripted.generate(sampler, *args, **options)

        sampler.generate = blocking
        answer = asyncio.create_task(client.post(CHAT, json=body("<document>Anna sells tea.</document> Who?")))
        assert await asyncio.to_thread(entered.wait, 60)
        assert (await client.get("/health")).status_code == 200
        assert not answer.done()
        released.set()
        assert (await answer).status_code == 200
        await service.close()


async def test_a_stream_is_the_same_from_an_episode_on_another_loop() -> None:
    request = body(f"<document>{'Anna sells tea. ' * 30}</document> Who?", stream=True)
    streams = []
    for elsewhere in (False, True):
        async with serve_agent._episode_loop() as loop:
            client, service, _ = scripted(loop=loop if elsewhere else None)
            text = (await client.post(CHAT, json=request)).text.removesuffix("data: [DONE]\n\n")
            streams.append(json.dumps([event["choices"] for event in sse_events(text)]))
            await service.close()
    assert streams[0] == streams[1]
    assert "section 2" in streams[0]
