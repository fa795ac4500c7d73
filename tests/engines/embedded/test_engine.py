"""The embedded engine: one compute thread, shared and separate weights, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from palimpsest.config.load import load_recipe
from palimpsest.engines.embedded.engine import EmbeddedEngine, EmbeddedLearner
from palimpsest.engines.protocol import Objective, StepBatch
from palimpsest.errors import SamplerError
from palimpsest.types import Completion, SamplingParams, StopReason
from support.forests import completed

PROMPT = (5, 9, 30, 31, 7)
LONG = SamplingParams(max_tokens=40, seed=3)


def engine_of(folder: Path, objective: Objective | None = "policy", *, separate: bool = False) -> EmbeddedEngine:
    config = load_recipe("memagent-quickstart", [f"model.path={folder}", "optim.learning_rate=0.01"])
    return EmbeddedEngine(config, objective=objective, separate=separate)


def learner_of(engine: EmbeddedEngine) -> EmbeddedLearner:
    assert engine.learner is not None
    return engine.learner


def batch() -> StepBatch:
    done = Completion(tuple(range(9, 13)), (-2.0,) * 4, StopReason.STOP)
    return StepBatch((completed(range(5, 9), done, 1.0, 0.25),))


class Gate:
    """Blocks a call until the event loop opens it."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.entered, self.open, self.threads = call, threading.Event(), threading.Event(), set[int]()

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.open.wait(30), "the event loop was blocked"
        return self.call(*args, **options)

    async def opened_by_the_loop(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.001)
        self.open.set()


@pytest.fixture
def open_one(tiny_model_folder: Path) -> Iterator[Callable[..., EmbeddedEngine]]:
    """Opens engines that are closed after the test."""
    opened: list[EmbeddedEngine] = []

    def open_engine(objective: Objective | None = "policy", **options: Any) -> EmbeddedEngine:
        opened.append(engine_of(tiny_model_folder, objective, **options))
        return opened[-1]

    yield open_engine
    for engine in opened:
        asyncio.run(engine.close())


Open = Callable[..., EmbeddedEngine]


async def until_sampling(engine: EmbeddedEngine) -> None:
    while not engine.sampler.stats().generated_tokens:
        await asyncio.sleep(0)


async def score(engine: EmbeddedEngine) -> float:
    return sum(await engine.sampler.score(tuple(range(5, 9)), tuple(range(9, 13))))


@pytest.mark.parametrize("call", ["step", "update", "save"])
async def test_the_loop_runs_during_sampling_updates_and_saves(open_one: Open, tmp_path: Path, call: str) -> None:
    engine = open_one()
    owner: Any = engine.sampler._batch._forward if call == "step" else engine.trainer
    gate = Gate(getattr(owner, call))
    setattr(owner, call, gate)
    learner = learner_of(engine)
    work: dict[str, Callable[[], Any]] = {
        "step": lambda: engine.sampler.generate(PROMPT, LONG),
        "update": lambda: learner.update([batch()]),
        "save": lambda: learner.save(tmp_path),
    }
    await asyncio.gather(work[call](), gate.opened_by_the_loop())
    assert threading.get_ident() not in gate.threads


async def test_sampler_and_learner_of_shared_weights_take_turns(open_one: Open) -> None:
    engine = open_one()
    trainer: Any = engine.trainer
    inside: list[str] = []
    overlaps: list[str] = []

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: Any) -> Any:
            overlaps.extend(inside)
            inside.append(name)
            try:
                return call(*args)
            finally:
                inside.remove(name)

        return watch

    trainer.update = watched("update", trainer.update)
    engine.sampler._batch.step = watched("step", engine.sampler._batch.step)
    sampled = [engine.sampler.generate(PROMPT, LONG) for _ in range(4)]
    await asyncio.gather(*sampled, *(learner_of(engine).update([batch()]) for _ in range(4)))
    assert not overlaps
    assert engine.trainer.version == 4


async def test_a_completion_names_the_weights_of_its_first_and_last_token(open_one: Open) -> None:
    engine = open_one()
    pending = asyncio.ensure_future(engine.sampler.generate(PROMPT, LONG))
    await until_sampling(engine)
    await learner_of(engine).update([batch()])
    await learner_of(engine).publish()
    completion = await pending
    assert (completion.policy_version, completion.last_policy_version) == (0, 1)


async def test_the_sampler_has_separate_weights_until_a_publication(open_one: Open) -> None:
    engine = open_one(separate=True)
    learner, before = learner_of(engine), await score(engine)
    await learner.update([batch()])
    assert await score(engine) == before
    assert engine.sampler.version == 0
    assert await learner.publish() == engine.sampler.version == 1
    published = await score(engine)
    assert published > before
    await learner.update([batch()])
    assert await score(engine) == published


async def test_separate_weights_are_sampled_from_while_the_learner_computes(open_one: Open) -> None:
    engine = open_one(separate=True)
    alone = await engine.sampler.generate(PROMPT, LONG)
    trainer: Any = engine.trainer
    trainer.update = gate = Gate(trainer.update)
    update = asyncio.ensure_future(learner_of(engine).update([batch()]))
    completion = await engine.sampler.generate(PROMPT, LONG)  # while the update waits at its gate
    assert not update.done()
    gate.open.set()
    await update
    assert completion.token_ids == alone.token_ids
    assert completion.logprobs == pytest.approx(alone.logprobs, abs=1e-5)  # the prompt's values are cached by now


async def test_shared_and_separate_weights_give_the_same_bytes(open_one: Open) -> None:
    completions = []
    for separate in (False, True):
        engine = open_one(separate=separate)
        await learner_of(engine).update([batch(), batch()])
        await learner_of(engine).publish()
        completions.append(await engine.sampler.generate(PROMPT, LONG))
    assert completions[0] == completions[1]


def test_a_saved_folder_opens_as_a_model(tmp_path: Path, tiny_model_folder: Path) -> None:
    opened = engine_of(tiny_model_folder)
    opened.trainer.update([batch()])
    opened.trainer.save(tmp_path)
    again = engine_of(tmp_path, None)
    assert again.learner is None
    assert all(torch.equal(a, b) for a, b in zip(opened.model.parameters(), again.model.parameters(), strict=True))
    assert again.codec.encode("Anna is blue") == opened.codec.encode("Anna is blue")


async def test_a_stream_left_early_frees_its_row(open_one: Open) -> None:
    engine = open_one(None)
    stream = engine.sampler.stream(PROMPT, LONG)
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    await engine.sampler.generate(PROMPT, SamplingParams(max_tokens=3))
    stats = engine.sampler.stats()
    assert (stats.requests, stats.cancelled, stats.failed) == (2, 1, 0)
    assert stats.generated_tokens < LONG.max_tokens
    assert not engine.sampler._batch._requests


@pytest.mark.parametrize("sampled", [False, True])
async def test_closing_cancels_requests_and_rejects_later_ones(open_one: Open, sampled: bool) -> None:
    engine = open_one(None)
    waiting = asyncio.ensure_future(engine.sampler.generate(PROMPT, LONG))
    await (until_sampling(engine) if sampled else asyncio.sleep(0))
    await engine.close()
    assert bool(engine.sampler.stats().steps) is sampled
    async with asyncio.timeout(30):
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)
    for call in (engine.sampler.generate(PROMPT, LONG), engine.sampler.score(PROMPT, PROMPT)):
        with pytest.raises(SamplerError, match="closed"):
            await call


async def test_a_failed_score_is_an_error_of_the_sampler(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_one(None)

    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("palimpsest.engines.embedded.sampling.continuous_batch.score", broken)
        with pytest.raises(SamplerError, match="scoring failed: RuntimeError: out of memory"):
            await engine.sampler.score(PROMPT, PROMPT)
    assert len(await engine.sampler.score(PROMPT, PROMPT)) == len(PROMPT)


def test_an_engine_closed_by_another_loop_cancels_its_requests_silently(tiny_model_folder: Path) -> None:
    engine = engine_of(tiny_model_folder, None)
    reports: list[dict[str, Any]] = []

    async def start() -> asyncio.Future[Completion]:
        waiting = asyncio.ensure_future(engine.sampler.generate(PROMPT, LONG))
        await until_sampling(engine)
        return waiting

    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: reports.append(context))
        waiting = runner.run(start())
        asyncio.run(engine.close())
    gc.collect()
    assert waiting.cancelled()
    assert reports == []


def test_a_close_on_another_loop_ends_requests_of_a_running_loop(tiny_model_folder: Path) -> None:
    engine = engine_of(tiny_model_folder, None)
    started = threading.Event()
    reports: list[dict[str, Any]] = []

    async def go() -> list[Completion | BaseException]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        waiting = [asyncio.ensure_future(engine.sampler.generate(PROMPT, LONG)) for _ in range(2)]
        await until_sampling(engine)
        started.set()
        async with asyncio.timeout(30):
            return await asyncio.gather(*waiting, return_exceptions=True)

    with ThreadPoolExecutor(1) as other:
        ended = other.submit(asyncio.run, go())
        assert started.wait(30)
        asyncio.run(engine.close())
        results = ended.result(30)
    gc.collect()
    assert all(isinstance(result, Completion | SamplerError | asyncio.CancelledError) for result in results)
    assert all("closed" in str(result) for result in results if isinstance(result, SamplerError))
    assert reports == []


async def test_a_closed_engine_frees_memory(tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []  # without this, a process grows by megabytes per engine (benchmarks/soak.py)
    monkeypatch.setattr("palimpsest.engines.embedded.engine.give_back_freed_memory", lambda: calls.append(True))
    await engine_of(tiny_model_folder, None).close()
    assert calls == [True]


async def test_an_unreferenced_engine_is_freed_with_its_model_at_once(tiny_model_folder: Path) -> None:
    gc.disable()  # the cycle collector runs late if tensors are few
    try:
        opened = engine_of(tiny_model_folder)
        references = [weakref.ref(each) for each in (opened, opened.model, opened.sampler, opened.learner)]
        await opened.close()
        del opened
        assert [reference() for reference in references] == [None] * 4
    finally:
        gc.enable()


LEAVES = """
import asyncio, sys
from palimpsest.config.load import load_recipe
from palimpsest.engines.open import open_engine
from palimpsest.types import SamplingParams
engine = open_engine(load_recipe("memagent-quickstart", ["model.path=" + sys.argv[1]]), objective="policy")
print(len(asyncio.run(engine.sampler.generate([5, 6, 7], SamplingParams(max_tokens=3))).token_ids))
"""


@pytest.mark.slow
def test_leaving_without_closing_ends_the_process(tiny_model_folder: Path) -> None:
    command = [sys.executable, "-c", LEAVES, str(tiny_model_folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
