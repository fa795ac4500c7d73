"""The retrieval server under concurrent clients compared with its index called directly, on a synthetic corpus.

    python benchmarks/retrieval.py --passages 100000 --clients 32

    direct   one caller in this process, one query per call: milliseconds of the search
    server   `clients` connections to `palimpsest retrieval serve`, each sending its next query after the answer
    client   the same through `RemoteSearch`, including its time in this process
    limit    direct mean * clients / cores: the wait of each of `clients` callers if only searching took time

Words follow Zipf's law in passages and queries, so most queries contain words of most passages: the expensive case. The
three alternate, each query is new to the server's cache, and the best round of each counts, to exclude other work on
the machine. Times are in milliseconds unless the key ends in `_s`.

Not covered: answers from the cache, several queries per request, clients on other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from palimpsest.retrieval.search import Bm25Index
from palimpsest.retrieval.search_client import RemoteSearch

TOPK = 5
WORDS = 6
"""Words per query."""
Round = tuple[list[float], float]
"""Seconds of each query; seconds from the first query to the last answer."""
Search = Callable[[str], Awaitable[object]]


def words(rng: np.random.Generator, count: int, vocabulary: int) -> list[str]:
    weights = np.cumsum(1 / np.arange(1, vocabulary + 1))
    places = np.searchsorted(weights, rng.random(count) * weights[-1])
    return [f"w{place}" for place in places.tolist()]


def write_corpus(path: Path, passages: int, vocabulary: int) -> None:
    """Passages of 20 to 59 words."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 60, passages)
    drawn = iter(words(rng, int(lengths.sum()), vocabulary))
    with path.open("wb") as file:
        for i, length in enumerate(lengths.tolist()):
            text = " ".join(next(drawn) for _ in range(length))
            file.write(orjson.dumps({"id": str(i), "title": f"passage {i}", "text": text}) + b"\n")


@contextmanager
def serving(corpus: Path, folder: Path) -> Iterator[str]:
    """The address of a server process."""
    command = [sys.executable, "-m", "palimpsest.cli.main", "retrieval", "serve", "--port", "0"]
    given = [str(corpus), "--index", str(folder)]
    with subprocess.Popen([*command, *given], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            found = re.search(r"http://\S+(?=/retrieve)", child.stdout.readline())
            assert found, "the server did not start"
            yield found.group()
        finally:
            child.terminate()


def direct(index: Bm25Index, queries: Sequence[str]) -> Round:
    latencies = [timed(lambda query=query: index.search([query], TOPK))[0] for query in queries]  # type: ignore[misc]
    return latencies, sum(latencies)


async def together(searches: Sequence[Search], queries: Sequence[str]) -> Round:
    """Every search takes its share of the queries, one after the other."""
    latencies: list[float] = []

    async def client(number: int, search: Search) -> None:
        for query in queries[number :: len(searches)]:
            began = time.perf_counter()
            await search(query)
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(client(*each) for each in enumerate(searches)))
    return latencies, time.perf_counter() - began


async def through_sockets(url: str, queries: Sequence[str], clients: int) -> Round:
    """Prepared bytes over persistent connections: almost only the server's time."""
    host, port = url.removeprefix("http://").split(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(clients)]

    def search_by(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Search:
        async def search(query: str) -> None:
            body = orjson.dumps({"queries": [query], "topk": TOPK, "return_scores": True})
            head = f"POST /retrieve HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", answer)
            assert length
            assert answer.startswith(b"HTTP/1.1 200"), answer
            await reader.readexactly(int(length[1]))

        return search

    found = await together([search_by(*each) for each in opened], queries)
    for _, writer in opened:
        writer.close()
    return found


async def through_client(url: str, queries: Sequence[str], clients: int) -> Round:
    """The library's client, one instance shared by all callers, as in a rollout."""
    async with RemoteSearch(url, connections=clients) as remote:
        return await together([lambda query: remote.search([query], TOPK)] * clients, queries)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = function()
    return time.perf_counter() - began, found


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Build, open again, measure."""

    def queries(seed: int) -> list[str]:
        drawn = words(np.random.default_rng(seed), options.queries * WORDS, options.vocabulary)
        return [" ".join(drawn[at : at + WORDS]) for at in range(0, len(drawn), WORDS)]

    rounds: dict[str, list[Round]] = {"direct": [], "server": [], "client": []}
    with tempfile.TemporaryDirectory() as name:
        corpus, folder = Path(name) / "passages.jsonl", Path(name) / "index"
        write_corpus(corpus, options.passages, options.vocabulary)
        build_s, _ = timed(lambda: Bm25Index.of_corpus(corpus, folder))
        reopen_s, index = timed(lambda: Bm25Index.of_corpus(corpus, folder))
        direct(index, queries(0))  # warm-up
        with serving(corpus, folder) as url:
            for number in range(0, 3 * options.rounds, 3):  # no query twice: none comes from the cache
                rounds["direct"].append(direct(index, queries(number + 1)))
                rounds["server"].append(asyncio.run(through_sockets(url, queries(number + 2), options.clients)))
                rounds["client"].append(asyncio.run(through_client(url, queries(number + 3), options.clients)))
    result = {"cores": os.cpu_count() or 1, "build_s": build_s, "reopen_s": reopen_s}
    for side, each in rounds.items():
        latencies, seconds = max(each, key=lambda found: len(found[0]) / found[1])
        p50, p99 = np.percentile(latencies, (50, 99)) * 1e3
        result |= {f"{side}_p50": p50, f"{side}_p99": p99, f"{side}_queries_per_s": len(latencies) / seconds}
        result[f"{side}_mean"] = float(np.mean(latencies)) * 1e3
    return result | {"limit_mean": result["direct_mean"] * options.clients / result["cores"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"passages": 100_000, "vocabulary": 30_000, "clients": 32, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--queries", type=int, default=960, help="of a round, over all clients")
    print(json.dumps(measured(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
