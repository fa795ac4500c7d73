"""The server is killed again and again while clients of every kind wait for it."""

from __future__ import annotations

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

from support.serving import body, server

KILLS = 10
FACTS = " ".join(f"Anna{n} sells tea and Bob{n} sells honey." for n in range(120))
EACH = 6
"""Requests of each kind."""


class Clients:
    """Ask until they have an answer, wherever the server is by then."""

    def __init__(self) -> None:
        self.url = ""
        self.broken = 0
        self._http = httpx2.Client(timeout=300, trust_env=False)  # one per request would read certificates each time
        self.given_up = False

    def ask_all(self, pool: ThreadPoolExecutor) -> list[Any]:
        """Futures of the answers, `EACH` of each kind."""
        kinds: tuple[Callable[[int], str], ...] = (self._whole, self._streamed)
        return [
            pool.submit(self._persistently, kind, 10 * at + n) for at, kind in enumerate(kinds) for n in range(EACH)
        ]

    def _persistently(self, kind: Callable[[int], str], number: int) -> str:
        while not self.given_up:
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
        told, ended = "", False
        asked = body(self._text(number), stream=True)
        with self._http.stream("POST", f"{self.url}/v1/chat/completions", json=asked) as answer:
            for line in answer.iter_lines():
                ended = ended or line == "data: [DONE]"
                if line.startswith("data: {"):
                    told += orjson.loads(line[6:])["choices"][0]["delta"].get("content", "")
        assert ended
        return told


def logs(store: Path) -> dict[str, list[Any]]:
    """Turns and end of each episode; not the head, which holds the time, nor log-probabilities, whose last bits depend
    on what else is computed at once."""
    kept = {}
    for path in store.glob("ep_*.jsonl"):
        lines = path.read_bytes().splitlines()[1:]
        kept[path.name] = [orjson.loads(line.partition(b"\t")[0]) for line in lines]  # a checksum follows
        for line in kept[path.name]:
            line.get("turn", {}).pop("logprobs", None)
    return kept


def written(store: Path) -> int:
    """Bytes of all logs: told from the folder alone, so that it can be asked often."""
    return sum(path.stat().st_size for path in store.glob("ep_*.jsonl"))


@pytest.mark.slow
def test_a_server_killed_ten_times_loses_nothing(tmp_path: Path) -> None:
    """Whole and streamed requests at once: every answer, turn and end is that of a server that lived."""
    drawn = random.Random(0)
    with ThreadPoolExecutor(2 * EACH) as pool:
        undisturbed = Clients()
        with server(tmp_path / "whole") as (undisturbed.url, _):
            expected = [each.result() for each in undisturbed.ask_all(pool)]
        whole = written(tmp_path / "whole")
        clients, store = Clients(), tmp_path / "killed"
        answers = list[Any]()
        try:
            for _ in range(KILLS):
                with server(store) as (clients.url, child):
                    answers = answers or clients.ask_all(pool)
                    enough = written(store) + drawn.randrange(whole // 20)
                    while written(store) <= enough:
                        assert not all(each.done() for each in answers), "all had ended before the last kill"
                        time.sleep(0.02)
                    child.send_signal(signal.SIGKILL)
                    child.wait()
            with server(store) as (clients.url, _):
                assert [each.result() for each in answers] == expected
        finally:
            clients.given_up = True  # the pool waits for them
    assert clients.broken >= KILLS
    assert logs(store) == logs(tmp_path / "whole")
