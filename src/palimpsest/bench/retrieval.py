"""The retrieval server under concurrent clients beside its index called directly, on a synthetic corpus.

    direct   one caller in this process, one query a call: milliseconds of the search alone
    server   `clients` connections to `palimpsest retrieval serve`, each sending its next query once it has the answer
    client   the same through `tools.client.RemoteSearch`, whose own time in this process counts too
    limit    direct mean * clients / cores: what each of so many callers would wait if only searching took time

Words follow Zipf's law, in the passages and in the queries, so most queries hold words that most passages have: the
dear case. The three alternate, round by round, each query is new to the server's cache, and the best round of each
counts, so that a busy neighbour does not decide.

Not covered: answers from the cache, several queries a request, clients on other machines.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from palimpsest.retrieval.bm25 import Bm25Index
from palimpsest.retrieval.search_client import RemoteSearch

Latencies = list[float]
"""Seconds of each query."""


@dataclass(frozen=True, slots=True)
class Sizes:
    passages: int = 100_000
    vocabulary: int = 30_000
    queries: int = 960
    """A round, over all clients."""
    clients: int = 32
    words: int = 6
    """Of a query."""
    topk: int = 5
    rounds: int = 3


TINY = Sizes(passages=200, vocabulary=100, queries=16, clients=4, rounds=1)


@dataclass(frozen=True, slots=True)
class Round:
    latencies: Latencies
    seconds: float
    """From the first query to the last answer."""

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def milliseconds(self, percentile: float) -> float:
        return float(np.percentile(self.latencies, percentile)) * 1e3


def run(sizes: Sizes | None = None) -> dict[str, Any]:
    """Build, reopen, measure; times in milliseconds unless the key ends in `_s`."""
    sizes = sizes or Sizes()
    with tempfile.TemporaryDirectory(prefix="palimpsest-bench-") as name:
        corpus, folder = Path(name) / "passages.jsonl", Path(name) / "index"
        write_corpus(corpus, sizes)
        build_s, _ = _timed(lambda: Bm25Index.of_corpus(corpus, folder))
        reopen_s, index = _timed(lambda: Bm25Index.of_corpus(corpus, folder))
        with serving(corpus, folder) as url:
            rounds = _alternate(index, url, sizes)
    best = {name: max(of, key=lambda r: r.rate) for name, of in rounds.items()}
    mean = float(np.mean(best["direct"].latencies)) * 1e3
    limit = mean * sizes.clients / (os.cpu_count() or 1)
    result: dict[str, Any] = {"passages": sizes.passages, "clients": sizes.clients, "cores": os.cpu_count()}
    result |= {"build_s": build_s, "reopen_s": reopen_s}
    for side, found in best.items():
        result |= {f"{side}_p50": found.milliseconds(50), f"{side}_p99": found.milliseconds(99)}
        result[f"{side}_queries_per_s"] = found.rate
    server = float(np.mean(best["server"].latencies)) * 1e3
    return result | {
        "direct_mean": mean,
        "limit_mean": limit,
        "server_mean": server,
        "server_over_limit": server / limit,
    }


def write_corpus(path: Path, sizes: Sizes) -> None:
    """Passages of 20 to 59 words."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 60, sizes.passages)
    words = iter(_words(rng, int(lengths.sum()), sizes.vocabulary))
    with path.open("wb") as file:
        for i, length in enumerate(lengths.tolist()):
            text = " ".join(next(words) for _ in range(length))
            file.write(orjson.dumps({"id": str(i), "title": f"passage {i}", "text": text}) + b"\n")


def queries_of(sizes: Sizes, seed: int) -> list[str]:
    words = _words(np.random.default_rng(seed), sizes.queries * sizes.words, sizes.vocabulary)
    return [" ".join(words[at : at + sizes.words]) for at in range(0, len(words), sizes.words)]


def _words(rng: np.random.Generator, count: int, vocabulary: int) -> list[str]:
    weights = np.cumsum(1 / np.arange(1, vocabulary + 1))
    places = np.searchsorted(weights, rng.random(count) * weights[-1])
    return [f"w{place}" for place in places.tolist()]


@contextmanager
def serving(corpus: Path, folder: Path, **environment: str) -> Iterator[str]:
    """The address of a server process."""
    command = [sys.executable, "-m", "palimpsest.cli.main", "retrieval", "serve", "--port", "0"]
    child = subprocess.Popen(
        [*command, "--corpus", str(corpus), "--index", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert child.stdout
        found = re.search(r"http://\S+(?=/retrieve)", child.stdout.readline())
        assert found, "the server did not start"
        yield found.group()
    finally:
        child.terminate()
        child.wait()


def _alternate(index: Bm25Index, url: str, sizes: Sizes) -> dict[str, list[Round]]:
    rounds: dict[str, list[Round]] = {"direct": [], "server": [], "client": []}
    direct(index, queries_of(sizes, 0), sizes.topk)  # warm-up
    for number in range(sizes.rounds):
        seeds = (3 * number + offset for offset in (1, 2, 3))  # no query twice: none comes from the cache
        rounds["direct"].append(direct(index, queries_of(sizes, next(seeds)), sizes.topk))
        rounds["server"].append(asyncio.run(through_sockets(url, queries_of(sizes, next(seeds)), sizes)))
        rounds["client"].append(asyncio.run(through_client(url, queries_of(sizes, next(seeds)), sizes)))
    return rounds


def direct(index: Bm25Index, queries: Sequence[str], topk: int) -> Round:
    began = time.perf_counter()
    latencies = [_timed(lambda query=query: index.search([query], topk))[0] for query in queries]  # type: ignore[misc]
    return Round(latencies, time.perf_counter() - began)


async def through_sockets(url: str, queries: Sequence[str], sizes: Sizes) -> Round:
    """Prepared bytes over kept connections: next to nothing but the server's own time."""
    host, port = url.removeprefix("http://").split(":")
    latencies: Latencies = []

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for query in queries[number :: sizes.clients]:
            body = orjson.dumps({"queries": [query], "topk": sizes.topk, "return_scores": True})
            head = f"POST /retrieve HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
            began = time.perf_counter()
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", answer)
            assert length
            assert answer.startswith(b"HTTP/1.1 200"), answer
            await reader.readexactly(int(length[1]))
            latencies.append(time.perf_counter() - began)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*map(client, range(sizes.clients)))
    return Round(latencies, time.perf_counter() - began)


async def through_client(url: str, queries: Sequence[str], sizes: Sizes) -> Round:
    """The library's client, one instance shared by all callers, as in a rollout."""
    latencies: Latencies = []
    async with RemoteSearch(url, connections=sizes.clients) as search:

        async def client(number: int) -> None:
            for query in queries[number :: sizes.clients]:
                began = time.perf_counter()
                await search.search([query], sizes.topk)
                latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*map(client, range(sizes.clients)))
        return Round(latencies, time.perf_counter() - began)


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = function()
    return time.perf_counter() - began, found
