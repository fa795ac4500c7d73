"""`palimpsest serve embedded` as a process, asked by real clients."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import palimpsest
from support.serving import body, server

FACTS = " ".join(f"Anna{n} sells tea and Bob{n} sells honey." for n in range(30))
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("store"), "--queue", "150", "--concurrency", "16") as (address, _):
        yield address


def part(text: str) -> dict[str, Any]:
    data = base64.b64encode(text.encode()).decode()
    return {"type": "file", "file": {"file_data": f"data:text/plain;base64,{data}", "filename": "a.txt"}}


def test_the_server_answers_what_ask_answers(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(FACTS)
    asked = palimpsest.ask("embedded", tmp_path / "a.txt", "What does Bob3 sell?")
    content = [part(FACTS), {"type": "text", "text": "What does Bob3 sell?"}]
    answer = httpx2.post(url + PATH, json=body(content), timeout=120).json()
    assert answer["palimpsest"]["answer"] == asked.answer
    assert answer["palimpsest"]["tokens_in"] == asked.tokens_in
    assert answer["palimpsest"]["input"] == "file_parts"
    assert [(q["text"], q["start"]) for q in answer["palimpsest"]["quotes"]] == [
        (q.text, q.start) for q in asked.quotes
    ]


@pytest.mark.parametrize(
    ("text", "codes"), [("It rained. Omar sells tea.", []), ("It rained in the hills.", ["unknown_to_bundled"])]
)
def test_a_text_that_the_bundled_model_cannot_read_is_noted(url: str, text: str, codes: list[str]) -> None:
    content = [part(text), {"type": "text", "text": "What does Bob3 sell?"}]
    answer = httpx2.post(url + PATH, json=body(content), timeout=120).json()
    assert [note["code"] for note in answer["palimpsest"].get("notes", [])] == codes


def test_a_long_message_is_read(url: str) -> None:
    answer = httpx2.post(url + PATH, json=body(f"{FACTS * 4}\n\nWhat does Bob3 sell?"), timeout=120).json()
    assert answer["palimpsest"]["input"] == "last_paragraph"
    assert answer["palimpsest"]["turns"] > 30


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_streams(url: str) -> None:
    command = ["curl", "-sN", url + PATH, "-d", json.dumps(body(f"<document>{FACTS}</document> Who?", stream=True))]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]
    assert json.loads(lines[0][6:])["choices"][0]["delta"]["role"] == "assistant"


def test_many_at_once_are_answered_or_told_to_come_later(url: str) -> None:
    """Two hundred requests, and malformed ones between them."""

    async def many() -> list[httpx2.Response]:
        limits = httpx2.Limits(max_connections=250)
        async with httpx2.AsyncClient(timeout=300, limits=limits) as client:
            asks = [client.post(url + PATH, json=body(f"Who is {n}?", max_tokens=4)) for n in range(200)]
            wrong = [client.post(url + PATH, content=random.Random(n).randbytes(50)) for n in range(20)]
            return list(await asyncio.gather(*asks, *wrong))

    answers = asyncio.run(many())
    assert {answer.status_code for answer in answers[:200]} <= {200, 429}
    assert sum(answer.status_code == 200 for answer in answers[:200]) >= 150
    assert all(set(answer.json()["error"]) == {"message", "type", "param", "code"} for answer in answers[200:])
    metrics = httpx2.get(f"{url}/metrics").text
    assert re.search(r"^palimpsest_episodes_running 0$", metrics, re.MULTILINE)


def test_a_head_that_never_ends_is_refused(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nA: " + b"b" * 20_000)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400")


def test_openai_python(url: str) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)
    assert "palimpsest" in [model.id for model in client.models.list()]
    messages = [{"role": "user", "content": [part(FACTS), {"type": "text", "text": "What does Bob3 sell?"}]}]
    whole = client.chat.completions.create(model="palimpsest", messages=messages)
    pieces, told = "", ""
    for chunk in client.chat.completions.create(model="palimpsest", messages=messages, stream=True):
        pieces += chunk.choices[0].delta.content or ""
        told += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
    assert pieces == whole.choices[0].message.content
    assert "section 1 of" in told
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="palimpsest", messages=messages, n=2)
    assert (refused.value.param, refused.value.code) == ("n", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=messages)


def test_a_read_timeout_with_retries_makes_one_episode(url: str) -> None:
    openai = pytest.importorskip("openai")
    begun = re.compile(r"^palimpsest_episodes_begun_total (\d+)$", re.MULTILINE)

    def count() -> int:
        found = begun.search(httpx2.get(f"{url}/metrics").text)
        assert found
        return int(found[1])

    before = count()
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=0.2, max_retries=8)
    text = f"<document>{FACTS * 3}</document> What does Bob7 sell?"
    messages = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model="palimpsest", messages=messages, temperature=0.9)
    assert answer.model_extra["palimpsest"]["outcome"] in ("answered", "answer_truncated")
    assert count() == before + 1


def test_openai_python_responses(url: str) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)
    text = f"<document>{FACTS}</document> What does Bob5 sell?"
    whole = client.responses.create(model="palimpsest", input=text)
    seen = list(client.responses.create(model="palimpsest", input=text, stream=True))
    assert "".join(each.delta for each in seen if each.type == "response.output_text.delta") == whole.output_text
    assert seen[-1].response.output_text == whole.output_text
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="palimpsest", input=text, background=True)
    assert refused.value.param == "background"


async def test_openai_python_async(url: str) -> None:
    openai = pytest.importorskip("openai")
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as client:
        asks = [
            client.chat.completions.create(model="palimpsest", messages=[{"role": "user", "content": f"Who is {n}?"}])
            for n in range(8)
        ]
        assert all(answer.choices[0].message.content is not None for answer in await asyncio.gather(*asks))


@pytest.mark.slow
def test_a_server_killed_while_it_reads_goes_on_to_the_same_tokens(tmp_path: Path) -> None:
    ask = body(f"<document>{FACTS * 2}</document> What does Bob3 sell?")
    with server(tmp_path / "whole") as (url, _):
        whole = httpx2.post(url + PATH, json=ask, timeout=120).json()
    name = f"{whole['palimpsest']['episode']}.jsonl"
    log = tmp_path / "killed" / name
    with server(tmp_path / "killed") as (url, child):
        with httpx2.stream("POST", url + PATH, json={**ask, "stream": True}, timeout=120) as answer:
            for line in answer.iter_lines():
                if "section 5 of" in line:
                    child.send_signal(signal.SIGKILL)
                    break
        child.wait()
    taken = log.read_bytes().count(b'{"turn"')
    assert 4 <= taken < whole["palimpsest"]["turns"]
    with server(tmp_path / "killed") as (url, child):
        again = httpx2.post(url + PATH, json=ask, timeout=120).json()
        assert (again["choices"], again["palimpsest"]) == (whole["choices"], whole["palimpsest"])
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 0
    lines = [
        [json.JSONDecoder().raw_decode(line)[0] for line in path.read_text().splitlines()[1:]]
        for path in (log, tmp_path / "whole" / name)
    ]
    for resumed, uninterrupted in zip(*lines, strict=True):  # read ahead in other batches: last bits may differ
        nats = [line["turn"].pop("logprobs") if "turn" in line else [] for line in (resumed, uninterrupted)]
        assert nats[0] == pytest.approx(nats[1], abs=1e-4)
        assert resumed == uninterrupted
    assert os.stat(log).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--server-key-env"),
        (["--server-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--no-store", "--store", "x"], "--store x and --no-store"),
        (["--policy", "prune"], "reads no documents"),
    ],
)
def test_what_can_not_be_served_is_told_at_once(refused: Any, options: list[str], said: str) -> None:
    assert said in refused("serve", "embedded", *options)
