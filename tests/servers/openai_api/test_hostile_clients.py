"""Clients that mean no good, at a real server: each is told so in OpenAI's form, and the others are served."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from palimpsest.bench.served import CHAT, malformed
from palimpsest.bench.served import body as asking
from support.serving import server

FIELDS = {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """(address, process)"""
    with server(tmp_path_factory.mktemp("store")) as (url, child):
        yield url, child.pid


def held(process: int) -> tuple[int, int]:
    """(descriptors, threads)"""
    return len(list(Path(f"/proc/{process}/fd").iterdir())), len(list(Path(f"/proc/{process}/task").iterdir()))


def test_a_thousand_malformed_bodies_are_each_told_what_is_wrong(served: tuple[str, int]) -> None:
    url, process = served
    drawn, whole = random.Random(0), json.dumps(asking("Anna drinks tea.")).encode()
    with httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
        assert client.post(CHAT, content=whole).status_code == 200
        before, statuses = held(process), Counter[int]()
        for _ in range(1000):
            answer = client.post(CHAT, content=malformed(drawn, whole))
            statuses[answer.status_code] += 1
            assert set(answer.json()["error"]) == FIELDS
        assert all(400 <= status < 500 for status in statuses), statuses
        assert held(process) == before
        told = client.get("/metrics").text
        assert re.search(r"^palimpsest_episodes_begun_total 1$", told, re.MULTILINE)
        again = client.post(CHAT, content=whole)
        assert again.json()["palimpsest"]["stored"]


def test_clients_whose_head_never_ends_are_told_so_and_keep_nothing(served: tuple[str, int]) -> None:
    url, process = served
    address = httpx2.URL(url)

    async def slow() -> bytes:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nX-Slow: ".encode())
        answer = asyncio.create_task(reader.read())
        while not answer.done():
            writer.write(b"a")
            await asyncio.wait((answer,), timeout=0.5)
        writer.close()
        return answer.result()

    async def attacked() -> list[bytes]:
        slow_ones = asyncio.gather(*(slow() for _ in range(50)))
        async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            answers = [await client.post(CHAT, json=asking("Anna drinks tea.", f"Who is {n}?")) for n in range(5)]
        assert {answer.status_code for answer in answers} == {200}
        return await slow_ones

    before = held(process)
    for said in asyncio.run(attacked()):
        head, _, content = said.partition(b"\r\n\r\n")
        told: dict[str, Any] = json.loads(content)
        assert head.startswith(b"HTTP/1.1 408")
        assert set(told["error"]) == FIELDS
    descriptors, _ = held(process)
    assert descriptors <= before[0] + 5  # of fifty
