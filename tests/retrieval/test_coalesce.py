"""Queries of many callers in a few calls: who gets what, who fails, who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from palimpsest.retrieval.search import Coalescer


class Service:
    """Answers a query with itself and topk; keeps the calls; lets none through while the gate is shut."""

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


async def asked(coalescer: Coalescer[str], *asks: tuple[list[str], int]) -> list[asyncio.Task[list[str]]]:
    tasks = [asyncio.create_task(coalescer.ask(queries, topk)) for queries, topk in asks]
    await asyncio.sleep(0.01)
    return tasks


async def test_what_waits_goes_together_and_each_gets_its_own() -> None:
    service = Service()
    coalescer = Coalescer(service, running=1, together=4)
    tasks = await asked(coalescer, (["a"], 1))
    assert service.calls == [["a"]]  # at once, without waiting for company
    tasks += await asked(coalescer, (["b", "c"], 1), (["d"], 1), (["e", "f"], 1), (["g"], 2), (list("hijklm"), 2))
    assert coalescer.waiting == 5
    service.gate.set()
    answers = await asyncio.gather(*tasks)
    assert answers == [["a1"], ["b1", "c1"], ["d1"], ["e1", "f1"], ["g2"], [f"{q}2" for q in "hijklm"]]
    assert service.calls == [["a"], ["b", "c", "d"], ["e", "f"], ["g"], list("hijklm")]
    assert (coalescer.running, coalescer.waiting) == (0, 0)


async def test_no_more_calls_at_a_time_than_allowed() -> None:
    service = Service()
    coalescer = Coalescer(service, running=2, together=1)
    tasks = [(await asked(coalescer, ([str(i)], 1)))[0] for i in range(5)]
    assert (len(service.calls), coalescer.running) == (2, 2)
    service.gate.set()
    assert await asyncio.gather(*tasks) == [[f"{i}1"] for i in range(5)]


async def test_a_bad_query_fails_its_caller_only_and_a_failed_service_all() -> None:
    service = Service()
    coalescer = Coalescer(service, running=1, together=9, divide=(ValueError,))
    tasks = await asked(coalescer, (["first"], 1))
    tasks += await asked(coalescer, (["a"], 1), (["bad"], 1), (["b"], 1))
    service.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answers[0], answers[1], answers[3]] == [["first1"], ["a1"], ["b1"]]
    assert isinstance(answers[2], ValueError)
    service.gate.clear()
    tasks = await asked(coalescer, (["first"], 1))
    tasks += await asked(coalescer, (["a"], 1), (["down"], 1))
    service.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[0] == ["first1"]
    assert all(isinstance(answer, OSError) for answer in answers[1:])


async def test_a_caller_that_gives_up_disturbs_no_one() -> None:
    service = Service()
    coalescer = Coalescer(service, running=1, together=9)
    tasks = await asked(coalescer, (["a"], 1))
    tasks += await asked(coalescer, (["b"], 1), (["c"], 1))
    tasks[0].cancel()  # under way
    tasks[1].cancel()  # waiting
    await asyncio.sleep(0)
    service.gate.set()
    assert await tasks[2] == ["c1"]
    assert service.calls == [["a"], ["c"]]


async def test_closing_cancels_whoever_waits() -> None:
    coalescer = Coalescer(Service(), running=1, together=1)
    tasks = await asked(coalescer, (["a"], 1), (["b"], 1))
    await coalescer.close()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)


async def test_too_few_answers_are_an_error_and_no_caller_hangs() -> None:
    async def short(queries: Sequence[str], topk: int) -> list[str]:
        return ["one"]

    coalescer = Coalescer(short, running=1, together=9)
    with pytest.raises(ValueError, match="1 answers to 2 queries"):
        await asyncio.wait_for(coalescer.ask(["a", "b"], 1), 60)


async def test_a_query_that_comes_as_the_last_call_ends_is_asked() -> None:
    """Callers come back at every point of the loop's iteration; a worker that has ended must not count as running."""

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
