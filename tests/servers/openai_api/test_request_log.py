"""One line for each request, which holds nothing that a client or an operator keeps to himself."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from palimpsest.servers.openai.agent_app import ServerOptions
from support.serving import body, scripted
from support.serving_process import serving_process

PATH = "/v1/chat/completions"
SECRET = "s3cret-key"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Messages of the request log, as they come."""
    logger = logging.getLogger("uvicorn.requests")
    found = list[str]()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    kept, level = Kept(), logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(kept)
    logger.setLevel(level)


async def test_a_line_names_model_rule_episode_and_how_it_ended(lines: list[str]) -> None:
    client, _, _ = scripted(None)
    answer = await client.post(PATH, json=body("<document>Anna sells tea.</document> Who sells Zanzibar?"))
    (line,) = lines
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ 127\.0\.0\.1 POST /v1/chat/completions 200 \d+\.\d{3}s "
        rf"input=document_tags episode={answer.json()['palimpsest']['episode']} outcome=answered",
        line,
    )
    assert not re.search("Anna|Zanzibar", line)


async def test_a_stream_has_one_line_when_it_ends(lines: list[str]) -> None:
    gate = asyncio.Event()
    client, _, sampler = scripted(None, gate=gate)
    asked = asyncio.create_task(client.post(PATH, json=body("Who?", stream=True)))
    while not sampler.prompts:
        await asyncio.sleep(0.01)
    assert not lines
    gate.set()
    await asked
    (line,) = lines
    assert re.search(r" 200 \d+\.\d{3}s first_byte=\d+\.\d{3}s input=\w+ .* outcome=answered$", line)


async def test_no_key_query_header_or_line_break_of_a_client_is_in_the_log(lines: list[str]) -> None:
    client, _, _ = scripted(None, token=SECRET)
    wrong = {"Authorization": "Bearer other-secret", "X-Forwarded-For": "a\tb"}
    await client.get(f"/v1/{SECRET}/a%0d%0aINFO%20forged%e2%80%a8?key={SECRET}&q=text", headers=wrong)
    await client.get(f"/{'x' * 5000}", headers={"Authorization": f"Bearer {SECRET}"})
    assert len(lines) == 2
    assert " GET /v1/***/a\\r\\nINFO\\x20forged\\u2028 401 " in lines[0]
    assert all(line.isascii() and line.isprintable() and len(line) < 250 for line in lines)
    assert not any(re.search("secret|s3cret|q=text", line) for line in lines)


async def test_the_log_is_left_out_where_it_is_not_wanted(lines: list[str]) -> None:
    client, _, _ = scripted(None, options=ServerOptions(log_requests=False))
    assert (await client.get("/health")).status_code == 200
    assert not lines


@pytest.mark.slow
def test_the_command_logs_requests_and_serves_under_another_name(tmp_path: Path) -> None:
    words = ["serve", "embedded", "--port", "0", "--no-store", "--served-model-name", "org/agent"]
    with serving_process(words, "/v1", stderr=subprocess.PIPE) as (url, child):
        names = [each["id"] for each in httpx2.get(f"{url}/v1/models", timeout=120).json()["data"]]
        assert names == ["org/agent"]
        assert httpx2.get(f"{url}/v1/models/org/agent", timeout=120).json()["id"] == "org/agent"
        answer = httpx2.post(url + PATH, json={**body("Who?", max_tokens=4), "model": "org/agent"}, timeout=120)
        assert (answer.status_code, answer.json()["model"]) == (200, "org/agent")
        assert httpx2.post(url + PATH, json=body("Who?"), timeout=120).status_code == 404
        child.terminate()
        assert child.stderr is not None
        log = child.stderr.read()
    answered, unknown = (line for line in log.splitlines() if PATH in line)
    assert re.search(rf" POST {PATH} 200 \d+\.\d{{3}}s input=", answered)
    assert re.search(rf" POST {PATH} 404 \d+\.\d{{3}}s$", unknown)


def test_a_name_that_no_header_or_path_can_hold_is_rejected(refused) -> None:  # type: ignore[no-untyped-def]
    assert "--served-model-name 'a b'" in refused("serve", "embedded", "--served-model-name", "a b")
