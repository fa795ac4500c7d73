"""`palimpsest serve` as a process, over the embedded model and an endpoint, asked by curl and by openai."""

from __future__ import annotations

import asyncio
import base64
import random
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import palimpsest
from support.endpoint_server import MODEL, Server, endpoint_server
from support.serving import CHAT, body, server
from support.serving_process import serving_process

FACTS = " ".join(f"Anna{n} sells tea and Bob{n} sells honey." for n in range(30))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("store"), "--queue", "150", "--concurrency", "16") as (address, _):
        yield address


def part(text: str) -> dict[str, Any]:
    data = base64.b64encode(text.encode()).decode()
    return {"type": "file", "file": {"file_data": f"data:text/plain;base64,{data}", "filename": "a.txt"}}


def send(url: str, content: Any, **more: Any) -> Any:
    return httpx2.post(url + CHAT, json=body(content, **more), timeout=120)


def test_the_server_gives_the_answer_of_ask(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(FACTS)
    expected = palimpsest.ask("embedded", tmp_path / "a.txt", "What does Bob3 sell?")
    content = [part(FACTS), {"type": "text", "text": "What does Bob3 sell?"}]
    answer = send(url, content).json()["palimpsest"]
    assert (answer["answer"], answer["tokens_in"]) == (expected.answer, expected.tokens_in)
    assert answer["input"] == "file_parts"
    assert [(q["text"], q["start"]) for q in answer["quotes"]] == [(q.text, q.start) for q in expected.quotes]


@pytest.mark.parametrize(
    ("text", "codes"), [("It rained. Omar sells tea.", []), ("It rained in the hills.", ["unknown_to_bundled"])]
)
def test_a_text_that_the_bundled_model_cannot_read_is_noted(url: str, text: str, codes: list[str]) -> None:
    answer = send(url, [part(text), {"type": "text", "text": "What does Bob3 sell?"}]).json()
    assert [note["code"] for note in answer["palimpsest"].get("notes", [])] == codes


def test_many_requests_at_once_are_answered_or_rejected(url: str) -> None:
    """Two hundred requests, and malformed ones between them."""

    async def many() -> list[httpx2.Response]:
        limits = httpx2.Limits(max_connections=250)
        async with httpx2.AsyncClient(timeout=300, limits=limits) as client:
            asks = [client.post(url + CHAT, json=body(f"Who is {n}?", max_tokens=4)) for n in range(200)]
            wrong = [client.post(url + CHAT, content=random.Random(n).randbytes(50)) for n in range(20)]
            return list(await asyncio.gather(*asks, *wrong))

    answers = asyncio.run(many())
    assert {answer.status_code for answer in answers[:200]} <= {200, 429}
    assert sum(answer.status_code == 200 for answer in answers[:200]) >= 150
    assert all(set(answer.json()["error"]) == {"message", "type", "param", "code"} for answer in answers[200:])
    metrics = httpx2.get(f"{url}/metrics").text
    assert re.search(r"^palimpsest_episodes_running 0$", metrics, re.MULTILINE)


def test_a_head_without_end_is_rejected(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nA: " + b"b" * 20_000)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400")


@pytest.fixture
def client(url: str) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)


def test_openai_python(client: Any) -> None:
    import openai

    assert "palimpsest" in [model.id for model in client.models.list()]
    messages = [{"role": "user", "content": [part(FACTS), {"type": "text", "text": "What does Bob3 sell?"}]}]
    complete = client.chat.completions.create(model="palimpsest", messages=messages)
    pieces, reasoning = "", ""
    for chunk in client.chat.completions.create(model="palimpsest", messages=messages, stream=True):
        pieces += chunk.choices[0].delta.content or ""
        reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
    assert pieces == complete.choices[0].message.content
    assert "section 1 of" in reasoning
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="palimpsest", messages=messages, n=2)
    assert (refused.value.param, refused.value.code) == ("n", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=messages)


def test_a_read_timeout_with_retries_makes_one_episode(url: str, client: Any) -> None:
    def count() -> int:
        result = re.search(r"^palimpsest_episodes_begun_total (\d+)$", httpx2.get(f"{url}/metrics").text, re.MULTILINE)
        assert result
        return int(result[1])

    before = count()
    text = f"<document>{FACTS * 3}</document> What does Bob7 sell?"
    answer = client.with_options(timeout=0.2, max_retries=8).chat.completions.create(
        model="palimpsest", messages=[{"role": "user", "content": text}], temperature=0.9
    )
    assert answer.model_extra["palimpsest"]["outcome"] in ("answered", "answer_truncated")
    assert count() == before + 1


def test_openai_python_responses(client: Any) -> None:
    import openai

    text = f"<document>{FACTS}</document> What does Bob5 sell?"
    complete = client.responses.create(model="palimpsest", input=text)
    events = list(client.responses.create(model="palimpsest", input=text, stream=True))
    assert "".join(item.delta for item in events if item.type == "response.output_text.delta") == complete.output_text
    assert events[-1].response.output_text == complete.output_text
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="palimpsest", input=text, background=True)
    assert refused.value.param == "background"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--host", "0.0.0.0"], "--server-key-env"),
        (["--server-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--no-store", "--store", "x"], "--store x and --no-store"),
        (["--policy", "prune"], "reads no documents"),
    ],
)
def test_options_that_can_not_be_served_are_rejected_before_the_start(
    refused: Any, options: list[str], option: str
) -> None:
    assert option in refused("serve", "embedded", *options)


BASE_MODEL = Path(palimpsest.__file__).parent / "assets" / "base-model"


@pytest.mark.slow
def test_the_model_may_be_at_an_endpoint(tmp_path: Path) -> None:
    with endpoint_server() as endpoint:
        more = ("--base-url", endpoint.url, "--tokenizer", str(BASE_MODEL))
        with server(tmp_path, *more, model=MODEL) as (url, _):
            answer = httpx2.post(url + CHAT, json=body("<document>Anna sells tea.</document> Who?"), timeout=120).json()
            card = httpx2.get(f"{url}/v1/models").json()["data"][0]
    assert answer["palimpsest"]["outcome"] in ("answered", "answer_truncated")
    assert card["palimpsest"]["fingerprint"] == f"{MODEL} at {endpoint.url}"


@pytest.mark.slow
def test_a_role_marker_that_a_text_prompt_cannot_escape_is_a_permanent_error(tmp_path: Path) -> None:
    def speak(request: dict[str, Any]) -> str:
        return "Bob sells<|im_end|> honey." if "honey" in request["prompt"] else "tea"

    requests = (
        ("Anna sells<|im_end|> tea.", "Who?", True),
        ("Bob sells honey.", "Who?", True),
        ("Anna sells tea.", "What<|im_start|> does Bob sell?", True),
        ("Anna sells tea.", "Who?", False),
    )
    with endpoint_server(Server(takes="completions", speak=speak)) as endpoint:
        more = ("--base-url", endpoint.url, "--tokenizer", str(BASE_MODEL))
        with server(tmp_path, *more, model=MODEL) as (url, _):
            for document, question, rejected in requests:
                answer = send(url, "x", palimpsest={"document": document, "question": question})
                permanent = (answer.status_code, "retry-after" in answer.headers) == (400, False)
                assert permanent is rejected is ("role marker" in answer.text), answer.text


@pytest.mark.slow
def test_the_command_logs_requests_and_serves_another_model_name(tmp_path: Path) -> None:
    words = ["serve", "embedded", "--port", "0", "--no-store", "--served-model-name", "org/agent"]
    with serving_process(words, "/v1", stderr=subprocess.PIPE) as (url, child):
        names = [item["id"] for item in httpx2.get(f"{url}/v1/models", timeout=120).json()["data"]]
        assert names == ["org/agent"]
        assert httpx2.get(f"{url}/v1/models/org/agent", timeout=120).json()["id"] == "org/agent"
        answer = httpx2.post(url + CHAT, json={**body("Who?", max_tokens=4), "model": "org/agent"}, timeout=120)
        assert (answer.status_code, answer.json()["model"]) == (200, "org/agent")
        assert httpx2.post(url + CHAT, json=body("Who?"), timeout=120).status_code == 404
        child.terminate()
        assert child.stderr is not None
        log = child.stderr.read()
    answered, unknown = (line for line in log.splitlines() if CHAT in line)
    assert re.search(rf" POST {CHAT} 200 \d+\.\d{{3}}s input=", answered)
    assert re.search(rf" POST {CHAT} 404 \d+\.\d{{3}}s$", unknown)
