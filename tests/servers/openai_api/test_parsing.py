"""Files are parsed beside other requests, and an exit doesn't wait for a parser that is stuck."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

import palimpsest.servers.openai.request_resolver
from palimpsest.servers.http_service import Refused
from palimpsest.servers.openai.request_resolver import Parsers
from support.serving import body, scripted

STUCK = """
import asyncio, threading
from palimpsest.servers.openai.request_resolver import Parsers
async def main():
    parsing = asyncio.create_task(Parsers().run("a.pdf", threading.Event().wait))
    await asyncio.sleep(0.05)
    parsing.cancel()
asyncio.run(main())
"""


def test_an_exit_does_not_wait_for_a_parser() -> None:
    assert subprocess.run([sys.executable, "-c", STUCK], timeout=60, check=False).returncode == 0


async def test_what_work_returns_or_raises_is_handed_on() -> None:
    assert await Parsers().run("a.pdf", divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await Parsers().run("a.pdf", divmod, 7, 0)


async def test_two_parse_at_once_and_a_further_one_waits_or_is_refused() -> None:
    parsers, held = Parsers(2, wait_s=0.05), threading.Event()
    stuck = [asyncio.create_task(parsers.run("a.pdf", held.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Refused) as refused:
        await parsers.run("a.pdf", divmod, 7, 2)
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "5"})
    stuck[0].cancel()  # its thread goes on, and keeps its place
    with pytest.raises(Refused):
        await parsers.run("a.pdf", divmod, 7, 2)
    held.set()
    assert await stuck[1]
    assert await parsers.run("a.pdf", divmod, 7, 2) == (3, 1)


async def test_files_that_are_never_done_give_their_place_back_and_are_named() -> None:
    parsers, held = Parsers(1, wait_s=20, limit_s=0.05), threading.Event()
    stuck = asyncio.create_task(parsers.run("a.pdf", held.wait))
    with pytest.raises(Refused, match=r"a\.pdf: not read within 0\.05 s") as refused:
        await stuck
    assert (refused.value.status, refused.value.code) == (400, "invalid_file")
    assert not held.is_set()
    assert await parsers.run("b.pdf", divmod, 7, 2) == (3, 1)
    held.set()
    for number in range(3):  # the place that was given back is not given twice
        assert await parsers.run("c.pdf", divmod, number, 2) == divmod(number, 2)
    assert parsers._places._value == 1


async def test_a_file_that_is_never_done_is_named_to_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    monkeypatch.setattr(palimpsest.servers.openai.request_resolver, "text_of", lambda *_: held.wait(20) or "text")
    monkeypatch.setattr(Parsers.__init__, "__defaults__", (1, 20.0, 0.05))
    client, _, _ = scripted(None)
    part = {"type": "file", "file": {"file_data": "QW5uYQ==", "filename": "notes.pdf"}}
    asked = await client.post("/v1/chat/completions", json=body([part, {"type": "text", "text": "Who?"}]))
    held.set()
    assert (asked.status_code, asked.json()["error"]["code"]) == (400, "invalid_file")
    assert "notes.pdf" in asked.json()["error"]["message"]


async def test_files_that_are_parsed_hold_up_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, _ = scripted(None)
    held, running = threading.Event(), list[int]()

    def slow(*_: Any) -> str:
        running.append(1)
        held.wait(20)
        return "Anna sells tea."

    monkeypatch.setattr(palimpsest.servers.openai.request_resolver, "text_of", slow)
    part = {"type": "file", "file": {"file_data": "QW5uYQ==", "filename": "a.pdf"}}
    content = [part, {"type": "text", "text": "Who?"}]
    path = "/v1/chat/completions"
    asked = [asyncio.create_task(client.post(path, json=body(content, seed=n))) for n in range(40)]
    while len(running) < 2:
        await asyncio.sleep(0.01)
    plain = await asyncio.wait_for(client.post(path, json=body("Who?")), 20)
    assert (plain.status_code, len(running)) == (200, 2)
    held.set()
    assert {(await each).status_code for each in asked} == {200}
