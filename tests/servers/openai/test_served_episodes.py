"""Episodes of a server: equal requests, the store, resumption, cancellation, the queue."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from palimpsest.servers.openai.answer_text import unboxed
from palimpsest.servers.openai.served_episodes import ServerLimits
from support.serving import CHAT, about, body, scripted, sse_events, until


async def test_equal_requests_at_once_are_one_episode() -> None:
    gate = asyncio.Event()
    client, service, sampler = scripted(None, gate=gate)
    requests = [asyncio.create_task(client.post(CHAT, json=about("Who?"))) for _ in range(3)]
    await until(lambda: service.episodes.counts["joined"] == 2)
    gate.set()
    answers = [(await item).json() for item in requests]
    assert len({answer["palimpsest"]["episode"] for answer in answers}) == 1
    assert len(sampler.prompts) == answers[0]["palimpsest"]["turns"]


async def test_a_reply_names_the_rule_of_its_request(tmp_path: Path) -> None:
    client, _, sampler = scripted(tmp_path)
    field = body("Who?", palimpsest={"document": "Anna is here."})
    tags = body("<document>Anna is here.</document> Who?")
    answers = [(await client.post(CHAT, json=item)).json()["palimpsest"] for item in (field, tags)]
    assert [answer["input"] for answer in answers] == ["palimpsest_field", "document_tags"]
    assert (answers[0]["episode"], len(sampler.prompts)) == (answers[1]["episode"], answers[0]["turns"])


async def test_an_equal_request_is_answered_from_the_store(tmp_path: Path) -> None:
    client, service, sampler = scripted(tmp_path)
    first = (await client.post(CHAT, json=about("Who?"))).json()
    count = len(sampler.prompts)
    second = (await client.post(CHAT, json=about("Who?"))).json()
    assert len(sampler.prompts) == count
    assert (first["palimpsest"].pop("stored"), second["palimpsest"].pop("stored")) == (False, True)
    assert (first["choices"], first["palimpsest"]) == (second["choices"], second["palimpsest"])
    for more in ({"seed": 1}, {"temperature": 0.5, "seed": 0}, {"max_tokens": 5}, {"stop": "x"}):
        await client.post(CHAT, json=about("Who?", **more))
    assert service.episodes.counts["begun"] == 5
    lines = list(service.store.lines(first["palimpsest"]["episode"]))
    assert sum("turn" in line for line in lines) == first["palimpsest"]["turns"]
    assert unboxed(lines[-1]["result"]["content"]) == first["choices"][0]["message"]["content"]


async def test_without_a_seed_only_a_retry_has_the_same_draw(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path)
    warm = about("Who?", temperature=1.0)
    retry = {"x-stainless-retry-count": "1"}
    answers = [
        (await client.post(CHAT, json=warm, headers=headers)).json()["palimpsest"]["episode"]
        for headers in ({}, {}, retry)
    ]
    assert answers[0] != answers[1] == answers[2]
    assert service.episodes.counts["begun"] == 2
    service.store.close()
    client, service, _ = scripted(tmp_path)
    again = await client.post(CHAT, json=warm, headers=retry)
    assert (again.json()["palimpsest"]["episode"], again.json()["palimpsest"]["stored"]) == (answers[1], True)


async def test_a_retry_after_a_timeout_joins_the_running_episode() -> None:
    gate = asyncio.Event()
    client, service, sampler = scripted(None, gate=gate)
    first = asyncio.create_task(client.post(CHAT, json=about("Who?", temperature=1.0)))
    await until(lambda: sampler.prompts)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(
        client.post(CHAT, json=about("Who?", temperature=1.0), headers={"x-stainless-retry-count": "1"})
    )
    await until(lambda: service.episodes.counts["joined"])
    gate.set()
    assert (await second).json()["palimpsest"]["outcome"] == "answered"
    assert service.episodes.counts["begun"] == 1


async def test_an_episode_that_nobody_waits_for_is_cancelled() -> None:
    client, service, sampler = scripted(None, gate=asyncio.Event(), limits=ServerLimits(linger_s=0.01))
    request = asyncio.create_task(client.post(CHAT, json=about("Who?")))
    await until(lambda: sampler.prompts)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await until(lambda: service.episodes.counts["outcome:cancelled"])
    assert service.episodes.running == service.episodes.waiting == 0


async def test_requests_beyond_the_queue_are_rejected_with_retry_after() -> None:
    gate = asyncio.Event()
    client, service, _ = scripted(None, gate=gate, limits=ServerLimits(running=1, waiting=1))
    episodes, requests = service.episodes, list[asyncio.Task[Any]]()
    for number in range(2):
        requests.append(asyncio.create_task(client.post(CHAT, json=about(f"Who{number}?"))))
        await until(lambda number=number: episodes.running and episodes.running + episodes.waiting > number)  # type: ignore[misc]
    refused = await client.post(CHAT, json=about("Who9?"))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    gate.set()
    assert [(await item).status_code for item in requests] == [200, 200]
    client, *_ = scripted(None, limits=ServerLimits(running=2, waiting=0))  # without a queue, as many as run
    both = await asyncio.gather(*(client.post(CHAT, json=about(f"Who{number}?")) for number in range(2)))
    assert [answer.status_code for answer in both] == [200, 200]


async def test_an_episode_lingers_from_its_last_leave() -> None:
    client, service, sampler = scripted(None, gate=asyncio.Event(), limits=ServerLimits(linger_s=0.4))
    first = asyncio.create_task(client.post(CHAT, json=about("Who?", stream=True)))
    await until(lambda: sampler.prompts)
    (episode,) = service.episodes._running.values()
    service.episodes.join(episode)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    service.episodes.leave(episode)
    earlier, now = episode.lingers, asyncio.get_running_loop().time()
    service.episodes.join(episode)
    service.episodes.leave(episode)
    assert earlier.cancelled()
    assert (episode.lingers.when() >= now + 0.4, episode.result) == (True, None)
    await until(lambda: episode.result is not None)
    assert episode.result["outcome"] == "cancelled"


async def test_a_resumed_episode_continues_at_its_last_turn(tmp_path: Path) -> None:
    """The log of an episode cut after each of its turns, and within a line, comes to the same bytes."""
    client, service, sampler = scripted(tmp_path / "whole")
    complete = (await client.post(CHAT, json=about("Who?"))).json()
    name, turns = complete["palimpsest"]["episode"], complete["palimpsest"]["turns"]
    log = (tmp_path / "whole" / f"{name}.jsonl").read_bytes()
    lines = log.splitlines(keepends=True)
    assert len(lines) == turns + 2
    for count in range(1, turns + 2):
        folder = tmp_path / f"cut{count}"
        client, service, sampler = scripted(folder)
        torn = lines[count][: len(lines[count]) // 2]
        (folder / f"{name}.jsonl").write_bytes(b"".join(lines[:count]) + torn)
        again = (await client.post(CHAT, json=about("Who?"))).json()
        assert (again["choices"], again["palimpsest"]) == (complete["choices"], complete["palimpsest"])
        assert len(sampler.prompts) == turns + 1 - count
        assert (folder / f"{name}.jsonl").read_bytes() == log
        service.store.close()


def failing(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Have the store fail at lines of that kind, as a full disk does, which takes some bytes first."""
    write, rest = os.write, list[int]()

    def full(descriptor: int, data: bytes) -> int:
        if rest or data.startswith(f'{{"{line}"'.encode()):
            if not rest:
                rest.append(write(descriptor, data[:5]))
                return rest[0]
            rest.clear()
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)


@pytest.mark.parametrize("line", ["turn", "result"])
async def test_a_store_that_fails_ends_the_episode_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    client, service, _ = scripted(tmp_path)
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)  # a server of this process turns it off
    failing(monkeypatch, line)
    complete = await asyncio.wait_for(client.post(CHAT, json=about("Who?")), 20)
    assert (complete.status_code, complete.json()["error"]["code"]) == (507, "store_failed")
    streamed = await asyncio.wait_for(client.post(CHAT, json=about("Who?", stream=True)), 20)
    assert sse_events(streamed.text.removesuffix("data: [DONE]\n\n"))[-1]["error"]["code"] == "store_failed"
    for text in (complete.text, streamed.text):
        assert str(tmp_path) not in text
    assert "No space left on device" in caplog.text
    assert service.episodes.running == service.episodes.waiting == 0
    monkeypatch.undo()  # there is room again; the partial line is ignored
    assert (await client.post(CHAT, json=about("Who?"))).status_code == 200
    service.store.close()
    again, _, _ = scripted(tmp_path)
    assert (await again.post(CHAT, json=about("Who?"))).json()["palimpsest"]["stored"]


async def test_a_store_that_fails_at_the_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, _ = scripted(tmp_path)
    failing(monkeypatch, "head")
    refused = await client.post(CHAT, json=about("Who?"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "store_failed")
    assert not list(tmp_path.glob("ep_*"))
    opened = os.open

    def full(path: Any, *arguments: Any) -> int:
        if tmp_path in Path(path).parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", full)
    refused = await client.post(CHAT, json=about("Who?"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "store_failed")


async def test_an_episode_that_is_cancelled_before_its_start_ends() -> None:
    client, service, _ = scripted(None)
    begin = service.episodes.begin

    def cancelled(*arguments: Any) -> Any:
        episode = begin(*arguments)
        service.episodes.cancel(episode)
        return episode

    service.episodes.begin = cancelled
    answer = await asyncio.wait_for(client.post(CHAT, json=about("Who?")), 20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "cancelled")
    assert service.episodes.running == service.episodes.waiting == 0


async def test_a_defect_ends_only_its_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    client, service, _ = scripted(None)
    monkeypatch.setattr(service.agent, "facts", lambda *_: 1 / 0)
    answer = await asyncio.wait_for(client.post(CHAT, json=about("Who?")), 20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "server_failed")
    assert service.episodes.running == 0
