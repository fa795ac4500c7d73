"""The served agent: memory it returns, and an endpoint without torch."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import palimpsest
from palimpsest.servers.openai import served_agent
from palimpsest.servers.openai.served_episodes import ServerLimits
from support.endpoint_server import MODEL, endpoint_server
from support.serving import CHAT, FACTS, about, body, scripted, until


async def test_an_idle_server_returns_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    client, service, _ = scripted(None, limits=ServerLimits(rest_s=0.2))
    rests = list[int]()
    monkeypatch.setattr(type(service.agent), "rest", lambda _: rests.append(service.episodes.running))
    for question in ("Who?", "What?"):
        await client.post(CHAT, json=about(question))
    assert rests == []
    await until(lambda: rests)
    await asyncio.sleep(0.2)
    assert rests == [0]


async def test_encoding_a_large_document_returns_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, _ = scripted(None)
    calls = list[None]()
    monkeypatch.setattr(served_agent, "give_back_freed_memory", lambda: calls.append(None))
    monkeypatch.setattr(served_agent, "_LARGE", 100)
    for document, count in (("Anna sells tea.", 0), (FACTS, 1)):
        assert (await client.post(CHAT, json=body("Who?", palimpsest={"document": document}))).status_code == 200
        assert len(calls) == count


BASE_MODEL = Path(palimpsest.__file__).parent / "assets" / "base-model"
WITHOUT_TORCH = """
import asyncio, sys
from palimpsest.app.agent.serve_agent import _opened_agent
from palimpsest.servers.openai.served_agent import ServedAgent
from palimpsest.config.schema import RunConfig
from palimpsest.data.files.text_files import TextDocument
from palimpsest.servers.openai.served_agent import Query

async def answered(url, tokenizer):
    engine = {"name": "endpoint", "url": url, "tokenizer": tokenizer}
    config = RunConfig.model_validate({"model": {"path": "MODEL"}, "engine": engine})
    agent = await _opened_agent(config)
    query = Query(TextDocument("Anna sells tea.", ()), ("Who?",), "", config.eval_sampling, 0)
    plan = agent.plan(query)
    trajectory = await agent.play(plan, lambda turn, events: None, None, [], None)
    agent.facts(plan, trajectory)
    agent.rest()
    await agent.close()
    return trajectory

print(len(asyncio.run(answered(*sys.argv[1:])).turns), "torch" in sys.modules)
""".replace("MODEL", MODEL)


def test_a_server_of_an_endpoint_never_imports_torch() -> None:
    with endpoint_server() as endpoint:
        command = [sys.executable, "-c", WITHOUT_TORCH, endpoint.url, str(BASE_MODEL)]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "False"]
