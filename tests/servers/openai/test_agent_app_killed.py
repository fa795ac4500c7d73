"""The server is killed while clients wait for it, and started again."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from support.serving import CHAT, body, server

KILLS = 10
FACTS = " ".join(f"Anna{n} sells tea and Bob{n} sells honey." for n in range(120))
EACH = 6
"""Requests of each kind."""


class Clients:
    """Send requests until they are answered, at the server's address of the moment."""

    def __init__(self) -> None:
        self.url = ""
        self.broken = 0
        self._http = httpx2.Client(timeout=300, trust_env=False)  # one per request would read certificates each time
        self.stopped = False

    def ask_all(self, pool: ThreadPoolExecutor) -> list[Any]:
        """Futures of the answers, `EACH` of each kind."""
        kinds: tuple[Callable[[int], str], ...] = (self._whole, self._streamed)
        return [
            pool.submit(self._persistently, kind, 10 * at + n) for at, kind in enumerate(kinds) for n in range(EACH)
        ]

    def _persistently(self, kind: Callable[[int], str], number: int) -> str:
        while not self.stopped:
            try:
                return kind(number)
            except httpx2.TransportError:
                self.broken += 1
                time.sleep(0.2)
        raise AssertionError("the test ended before the answer came")

    def _text(self, number: int) -> str:
        return f"<document>{FACTS}</document> What does Bob{number} sell?"

    def _whole(self, number: int) -> str:
        answer = self._http.post(f"{self.url}/v1/chat/completions", json=body(self._text(number)))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    def _streamed(self, number: int) -> str:
        content, ended = "", False
        request = body(self._text(number), stream=True)
        with self._http.stream("POST", f"{self.url}/v1/chat/completions", json=request) as answer:
            for line in answer.iter_lines():
                ended = ended or line == "data: [DONE]"
                if line.startswith("data: {"):
                    content += orjson.loads(line[6:])["choices"][0]["delta"].get("content", "")
        assert ended
        return content


def logs(store: Path) -> dict[str, list[Any]]:
    """Turns and end of each episode; not the head, which holds the time, nor log-probabilities, whose last bits depend
    on what else is computed at once."""
    lines_by_log = {}
    for path in store.glob("ep_*.jsonl"):
        lines = path.read_bytes().splitlines()[1:]
        lines_by_log[path.name] = [orjson.loads(line.partition(b"\t")[0]) for line in lines]  # a checksum follows
        for line in lines_by_log[path.name]:
            line.get("turn", {}).pop("logprobs", None)
    return lines_by_log


def written(store: Path) -> int:
    """Bytes of all logs, from the entries of the folder."""
    return sum(path.stat().st_size for path in store.glob("ep_*.jsonl"))


@pytest.mark.slow
def test_a_server_killed_ten_times_loses_nothing(tmp_path: Path) -> None:
    """Whole and streamed requests at once: every answer, turn and end is that of a server that lived."""
    drawn = random.Random(0)
    with ThreadPoolExecutor(2 * EACH) as pool:
        undisturbed = Clients()
        with server(tmp_path / "whole") as (undisturbed.url, _):
            expected = [item.result() for item in undisturbed.ask_all(pool)]
        complete = written(tmp_path / "whole")
        clients, store = Clients(), tmp_path / "killed"
        answers = list[Any]()
        try:
            for _ in range(KILLS):
                with server(store) as (clients.url, child):
                    answers = answers or clients.ask_all(pool)
                    enough = written(store) + drawn.randrange(complete // 20)
                    while written(store) <= enough:
                        assert not all(item.done() for item in answers), "all had ended before the last kill"
                        time.sleep(0.02)
                    child.send_signal(signal.SIGKILL)
                    child.wait()
            with server(store) as (clients.url, _):
                assert [item.result() for item in answers] == expected
        finally:
            clients.stopped = True  # the pool waits for them
    assert clients.broken >= KILLS
    assert logs(store) == logs(tmp_path / "whole")


@pytest.mark.slow
def test_a_server_killed_while_it_reads_continues_with_the_same_tokens(tmp_path: Path) -> None:
    send = body(f"<document>{FACTS * 2}</document> What does Bob3 sell?")
    with server(tmp_path / "whole") as (url, _):
        complete = httpx2.post(url + CHAT, json=send, timeout=120).json()
    name = f"{complete['palimpsest']['episode']}.jsonl"
    log = tmp_path / "killed" / name
    with server(tmp_path / "killed") as (url, child):
        with httpx2.stream("POST", url + CHAT, json={**send, "stream": True}, timeout=120) as answer:
            for line in answer.iter_lines():
                if "section 5 of" in line:
                    child.send_signal(signal.SIGKILL)
                    break
        child.wait()
    taken = log.read_bytes().count(b'{"turn"')
    assert 4 <= taken < complete["palimpsest"]["turns"]
    with server(tmp_path / "killed") as (url, child):
        again = httpx2.post(url + CHAT, json=send, timeout=120).json()
        assert (again["choices"], again["palimpsest"]) == (complete["choices"], complete["palimpsest"])
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
