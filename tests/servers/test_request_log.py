"""One line for each request, without keys and texts."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator

import pytest

from palimpsest.servers.openai.agent_app import ServerOptions
from support.serving import CHAT, body, scripted, until

SECRET = "s3cret-key"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Messages of the request log, as they come."""
    logger = logging.getLogger("uvicorn.requests")
    result = list[str]()

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            result.append(record.getMessage())

    handler, level = Collect(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield result
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_a_line_names_rule_episode_and_outcome(lines: list[str]) -> None:
    client, _, _ = scripted(None)
    answer = await client.post(CHAT, json=body("<document>Anna sells tea.</document> Who sells Zanzibar?"))
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
    request = asyncio.create_task(client.post(CHAT, json=body("Who?", stream=True)))
    await until(lambda: sampler.prompts)
    assert not lines
    gate.set()
    await request
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


async def test_the_log_can_be_switched_off(lines: list[str]) -> None:
    client, _, _ = scripted(None, options=ServerOptions(log_requests=False))
    assert (await client.get("/health")).status_code == 200
    assert not lines


def test_a_model_name_that_no_header_or_path_can_contain_is_rejected(refused) -> None:  # type: ignore[no-untyped-def]
    assert "--served-model-name 'a b'" in refused("serve", "embedded", "--served-model-name", "a b")
