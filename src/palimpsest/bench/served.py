"""The agent server in a process of its own, requests of it, and what the process holds (Linux)."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from palimpsest.data.synthetic.documents import make_problem

CHAT = "/v1/chat/completions"
PARAGRAPH_TOKENS = 25
"""Of a paragraph of five facts, about."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server and its process."""

    url: str
    process: int

    def client(self) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=512)
        return httpx2.AsyncClient(base_url=self.url, timeout=None, limits=limits, trust_env=False)

    def memory_mb(self, name: str = "VmRSS") -> float:
        """Resident memory now, or with `VmHWM` at its greatest."""
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.process}/status").read_text())
        return int(found[1]) * 1024 / 1e6 if found else float("nan")

    def metric(self, name: str) -> int:
        lines = httpx2.get(f"{self.url}/metrics", trust_env=False, timeout=60).text
        found = re.search(rf"^palimpsest_{name} (\d+)$", lines, re.MULTILINE)
        assert found, f"/metrics has no palimpsest_{name}"
        return int(found[1])


@contextmanager
def served(model: str, *options: str) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="palimpsest-serving-") as folder:
        command = [sys.executable, "-m", "palimpsest", "serve", model, "--port", "0", "--store", folder, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            found = re.search(r"http://\S+(?=/v1)", process.stdout.readline())
            try:
                if found is None:
                    raise RuntimeError("the server didn't start")
                yield Served(found[0], process.pid)
            finally:
                process.kill()


def document(tokens: int, number: int = 0) -> str:
    """Paragraphs of some `tokens` tokens in all, document `number`."""
    count, texts = max(1, round(tokens / PARAGRAPH_TOKENS)), list[str]()
    for at in range(0, count, 1024):
        problem = make_problem(number, "eval", at, chunks=min(1024, count - at))
        texts.append(problem.context or "")
    return "\n".join(texts)


def body(text: str, question: str = "What does Anna drink?", **more: Any) -> dict[str, Any]:
    own = {"document": text, "question": question}
    return {"model": "palimpsest", "messages": [{"role": "user", "content": question}], "palimpsest": own, **more}


async def asked(client: httpx2.AsyncClient, content: dict[str, Any]) -> dict[str, Any]:
    """What the reply says of the episode."""
    answer = await client.post(CHAT, json=content)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return {**told["palimpsest"], "content": told["choices"][0]["message"]["content"], "usage": told["usage"]}


def malformed(drawn: random.Random, whole: bytes) -> bytes:
    """A body that is no request: noise, cut off, of other types, with keys that nobody knows, or nested deeply."""
    request = json.loads(whole)
    key = drawn.choice(list(request))
    wrong: Sequence[Callable[[], bytes]] = (
        lambda: drawn.randbytes(drawn.randrange(1, 4000)),
        lambda: whole[: drawn.randrange(len(whole) - 1)],
        lambda: json.dumps({**request, key: drawn.choice([{"a": 1}, [[]], True, -1, ""])}).encode(),
        lambda: json.dumps({**request, f"key{drawn.randrange(1000)}": 1}).encode(),
        lambda: b"[" * drawn.randrange(65, 5000),
        lambda: json.dumps({**request, "n": drawn.randrange(2, 9)}).encode(),
    )
    return drawn.choice(wrong)()
