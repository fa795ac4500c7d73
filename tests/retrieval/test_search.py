"""BM25 compared with the formula, and queries of many callers in a few calls."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from palimpsest.retrieval.search import Bm25Index, Coalescer, LocalSearch

PASSAGES = [
    {"title": "Rome", "text": "Rome is the capital of Italy."},
    {"title": "Paris", "text": "Paris is the capital of France, the country."},
    {"title": "Tiber", "text": "The Tiber flows through Rome, Rome and again Rome."},
    {"title": "", "text": ""},
    {"title": "Twin", "text": "same words"},
    {"title": "Twin", "text": "same words"},
]


def by_the_formula(texts: list[str], query: str, k1: float = 1.5, b: float = 0.75) -> list[tuple[int, float]]:
    """(place, score) of every passage with a word of the query, by the definition of BM25."""
    documents = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    mean = sum(sum(d.values()) for d in documents) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            n = sum(word in d for d in documents)
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            tf = document[word]
            score += idf * tf / (tf + k1 * (1 - b + b * sum(document.values()) / mean))
        scores.append(score)
    return sorted(((i, s) for i, s in enumerate(scores) if s > 0), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("query", ["Rome", "the capital of Rome", "rome rome italy", "same", "country unknownword"])
def test_ranking_and_scores_equal_the_formula(tmp_path: Path, query: str) -> None:
    index = Bm25Index.build([{"id": str(i), **p} for i, p in enumerate(PASSAGES)], tmp_path / "index")
    expected = by_the_formula([f"{p['title']}\n{p['text']}" for p in PASSAGES], query)
    for topk in (1, 2, 10):
        (hits,) = index.search([query], topk)
        assert [int(hit.document["id"]) for hit in hits] == [position for position, _ in expected[:topk]]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected[:topk]], rel=1e-5)


@pytest.mark.parametrize("query", ["", "   ", "?!", "zebra", "\x00"])
def test_a_query_of_unknown_words_has_no_hits(tmp_path: Path, query: str) -> None:
    index = Bm25Index.build(PASSAGES, tmp_path / "index")
    assert [len(hits) for hits in index.search([query, "Rome"], 3)] == [0, 2]


def test_a_caller_may_change_a_hit(tmp_path: Path) -> None:
    index = Bm25Index.build(PASSAGES, tmp_path / "index")
    index.search(["Tiber"], 1)[0][0].document.clear()
    assert index.search(["Tiber"], 1)[0][0].document["title"] == "Tiber"


async def test_search_in_this_process_needs_no_server(tmp_path: Path) -> None:
    search = LocalSearch(Bm25Index.build(PASSAGES, tmp_path / "index"))
    assert (await search.search(["Paris"], 1))[0][0].document["text"].startswith("Paris")


def test_the_titles_of_2wiki_find_their_passages(real_data: Path, tmp_path: Path) -> None:
    index = Bm25Index.of_corpus(real_data / "2wiki_corpus_6119.json", tmp_path / "index")
    titles = [p["title"] for p in json.loads((real_data / "2wiki_corpus_6119.json").read_text("utf-8"))]
    assert len(index) == len(titles) == 6119
    results = zip(titles, index.search(titles, 10), strict=True)
    result = [title in {hit.document["title"] for hit in hits} for title, hits in results]
    assert sum(result) / len(result) > 0.99  # some titles consist of frequent words


class Service:
    """Answers a query with itself and topk, records the calls, and waits for its gate."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = asyncio.Event()

    async def __call__(self, queries: Sequence[str], topk: int) -> list[str]:
        self.calls.append(list(queries))
        await self.gate.wait()
        if "bad" in queries:
            raise ValueError("bad query")
        if "down" in queries:
            raise OSError("down")
        return [f"{query}{topk}" for query in queries]


async def started(coalescer: Coalescer[str], *asks: tuple[list[str], int]) -> list[asyncio.Task[list[str]]]:
    tasks = [asyncio.create_task(coalescer.ask(queries, topk)) for queries, topk in asks]
    await asyncio.sleep(0.01)
    return tasks


async def test_waiting_queries_are_sent_together() -> None:
    service = Service()
    coalescer = Coalescer(service, running=1, together=4)
    tasks = await started(coalescer, (["a"], 1))
    assert service.calls == [["a"]]  # at once, alone
    tasks += await started(coalescer, (["b", "c"], 1), (["d"], 1), (["e", "f"], 1), (["g"], 2), (list("hijklm"), 2))
    assert coalescer.waiting == 5
    service.gate.set()
    answers = await asyncio.gather(*tasks)
    assert answers == [["a1"], ["b1", "c1"], ["d1"], ["e1", "f1"], ["g2"], [f"{q}2" for q in "hijklm"]]
    assert service.calls == [["a"], ["b", "c", "d"], ["e", "f"], ["g"], list("hijklm")]
    assert (coalescer.running, coalescer.waiting) == (0, 0)


async def test_concurrent_calls_are_bounded() -> None:
    service = Service()
    coalescer = Coalescer(service, running=2, together=1)
    tasks = [(await started(coalescer, ([str(i)], 1)))[0] for i in range(5)]
    assert (len(service.calls), coalescer.running) == (2, 2)
    service.gate.set()
    assert await asyncio.gather(*tasks) == [[f"{i}1"] for i in range(5)]


@pytest.mark.parametrize(("query", "error", "failed"), [("bad", ValueError, [2]), ("down", OSError, [1, 2, 3])])
async def test_errors_reach_the_callers_concerned(query: str, error: type[Exception], failed: list[int]) -> None:
    service = Service()
    coalescer = Coalescer(service, running=1, together=9, divide=(ValueError,))
    tasks = await started(coalescer, (["first"], 1))
    tasks += await started(coalescer, (["a"], 1), ([query], 1), (["b"], 1))
    service.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [at for at, answer in enumerate(answers) if isinstance(answer, error)] == failed
    expected = {0: ["first1"], 1: ["a1"], 3: ["b1"]}
    assert all(answers[at] == answer for at, answer in expected.items() if at not in failed)


async def test_a_cancelled_caller_affects_no_other() -> None:
    service = Service()
    coalescer = Coalescer(service, running=1, together=9)
    tasks = await started(coalescer, (["a"], 1))
    tasks += await started(coalescer, (["b"], 1), (["c"], 1))
    tasks[0].cancel()  # running
    tasks[1].cancel()  # waiting
    await asyncio.sleep(0)
    service.gate.set()
    assert await tasks[2] == ["c1"]
    assert service.calls == [["a"], ["c"]]


async def test_closing_cancels_waiting_callers() -> None:
    coalescer = Coalescer(Service(), running=1, together=1)
    tasks = await started(coalescer, (["a"], 1), (["b"], 1))
    await coalescer.close()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)


async def test_too_few_answers_are_an_error() -> None:
    async def short(queries: Sequence[str], topk: int) -> list[str]:
        return ["one"]

    coalescer = Coalescer(short, running=1, together=9)
    with pytest.raises(ValueError, match="1 answers to 2 queries"):
        await asyncio.wait_for(coalescer.ask(["a", "b"], 1), 60)


async def test_a_query_that_arrives_while_the_last_call_ends_is_sent() -> None:
    """Callers return at every point of the loop's iteration; a finished worker must not count as running."""

    async def call(queries: Sequence[str], topk: int) -> list[str]:
        await asyncio.sleep(0)
        return list(queries)

    coalescer = Coalescer(call, running=1, together=2)

    async def caller(number: int) -> None:
        for turn in range(50):
            assert await coalescer.ask([str(turn)], 1) == [str(turn)]
            for _ in range((turn + number) % 5):
                await asyncio.sleep(0)

    for callers in (1, 2, 3, 5):
        await asyncio.wait_for(asyncio.gather(*map(caller, range(callers))), 60)
