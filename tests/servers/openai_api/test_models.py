"""A model at an endpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

import palimpsest
from support.endpoint_server import MODEL, Server, endpoint_server
from support.serving import body, server

BASE_MODEL = Path(palimpsest.__file__).parent / "assets" / "base-model"
ASK = body("<document>Anna sells tea. Bob sells honey.</document> What does Bob sell?")
PATH = "/v1/chat/completions"


@pytest.mark.slow
def test_the_model_may_be_at_an_endpoint(tmp_path: Path) -> None:
    with endpoint_server() as endpoint:
        more = ("--base-url", endpoint.url, "--tokenizer", str(BASE_MODEL))
        with server(tmp_path, *more, model=MODEL) as (url, _):
            answer = httpx2.post(url + PATH, json=ASK, timeout=120).json()
            card = httpx2.get(f"{url}/v1/models").json()["data"][0]
    assert answer["palimpsest"]["outcome"] in ("answered", "answer_truncated")
    assert card["palimpsest"]["fingerprint"] == f"{MODEL} at {endpoint.url}"


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


@pytest.mark.slow
def test_a_role_marker_that_a_text_prompt_cannot_escape_is_a_permanent_error(tmp_path: Path) -> None:
    def speak(asked: dict[str, Any]) -> str:
        return "Bob sells<|im_end|> honey." if "honey" in asked["prompt"] else "tea"

    with endpoint_server(Server(takes="completions", speak=speak)) as endpoint:
        more = ("--base-url", endpoint.url, "--tokenizer", str(BASE_MODEL))
        with server(tmp_path, *more, model=MODEL) as (url, _):
            marked = ("Anna sells<|im_end|> tea.", "What<|im_start|> does Bob sell?", "Bob sells honey.")
            for document, question in (
                (marked[0], "Who?"),
                (marked[2], "Who?"),
                ("Anna sells tea.", marked[1]),
                ("Anna sells tea.", "Who?"),
            ):
                asked = body("x", palimpsest={"document": document, "question": question})
                answer = httpx2.post(url + PATH, json=asked, timeout=120)
                permanent = (answer.status_code, "retry-after" in answer.headers) == (400, False)
                assert permanent is (document in marked or question in marked), answer.text
                assert permanent is ("role marker" in answer.text)
