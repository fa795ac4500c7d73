"""The embedded engine computes on a thread of its own: the event loop goes on, and nothing computes side by side."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from palimpsest.config.load import load_recipe
from palimpsest.engines.embedded.compute import ComputeThread
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
    """Holds up a call, on the thread that makes it, until the event loop has opened it."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.entered, self.open, self.threads = call, threading.Event(), threading.Event(), set[int]()

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.open.wait(30), "the event loop stood still while this was computed"
        return self.call(*args, **options)

    async def opened_by_the_loop(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.001)
        self.open.set()


def test_the_loop_goes_on_while_tokens_are_sampled(tiny_model_folder: Path) -> None:
    engine = engine_of(tiny_model_folder, None)
    forward: Any = engine.sampler._batch._forward
    forward.step = gate = Gate(forward.step)

    async def go() -> None:
        await asyncio.gather(engine.sampler.generate(PROMPT, LONG), gate.opened_by_the_loop())

    asyncio.run(go())
    assert threading.get_ident() not in gate.threads
    asyncio.run(engine.close())


@pytest.mark.parametrize("call", ["update", "save"])
def test_the_loop_goes_on_while_the_learner_learns_and_saves(
    tiny_model_folder: Path, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(tiny_model_folder)
    gate = Gate(getattr(engine.trainer, call))
    monkeypatch.setattr(engine.trainer, call, gate)

    async def go() -> None:
        learner = learner_of(engine)
        work = learner.update([batch()]) if call == "update" else learner.save(tmp_path)
        await asyncio.gather(work, gate.opened_by_the_loop())
        await engine.close()

    asyncio.run(go())
    assert threading.get_ident() not in gate.threads


def test_sampler_and_learner_of_shared_weights_take_turns(tiny_model_folder: Path) -> None:
    """A completion that is asked for during an update is sampled from the weights after it, none from both."""
    engine = engine_of(tiny_model_folder)
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

    async def go() -> None:
        learner = learner_of(engine)
        sampled = [engine.sampler.generate(PROMPT, LONG) for _ in range(4)]
        await asyncio.gather(*sampled, *(learner.update([batch()]) for _ in range(4)))
        await engine.close()

    asyncio.run(go())
    assert not overlaps
    assert engine.trainer.version == 4


def test_a_completion_says_which_weights_its_first_and_last_token_came_from(tiny_model_folder: Path) -> None:
    engine = engine_of(tiny_model_folder)

    async def go() -> Completion:
        learner = learner_of(engine)
        completion = asyncio.ensure_future(engine.sampler.generate(PROMPT, LONG))
        while not engine.sampler.stats().generated_tokens:
            await asyncio.sleep(0)
        await learner.update([batch()])
        await learner.publish()
        return await completion

    completion = asyncio.run(go())
    assert (completion.policy_version, completion.last_policy_version) == (0, 1)
    asyncio.run(engine.close())


def test_separate_weights_are_the_samplers_own_until_they_are_published(tiny_model_folder: Path) -> None:
    engine = engine_of(tiny_model_folder, separate=True)
    ids = tuple(range(5, 13))

    async def score() -> float:
        return sum(await engine.sampler.score(ids[:4], ids[4:]))

    async def go() -> None:
        learner = learner_of(engine)
        before = await score()
        await learner.update([batch()])
        assert await score() == before
        assert engine.sampler.version == 0
        assert await learner.publish() == engine.sampler.version == 1
        published = await score()
        assert published > before
        await learner.update([batch()])
        assert await score() == published
        await engine.close()

    asyncio.run(go())


def test_separate_weights_are_sampled_from_while_the_learner_computes(tiny_model_folder: Path) -> None:
    engine = engine_of(tiny_model_folder, separate=True)
    alone = asyncio.run(engine.sampler.generate(PROMPT, LONG))
    trainer: Any = engine.trainer
    trainer.update = gate = Gate(trainer.update)

    async def go() -> Completion:
        update = asyncio.ensure_future(learner_of(engine).update([batch()]))
        completion = await engine.sampler.generate(PROMPT, LONG)  # the update stands before its gate meanwhile
        assert not update.done()
        gate.open.set()
        await update
        await engine.close()
        return completion

    assert asyncio.run(go()) == alone


def test_the_same_weights_and_steps_give_the_same_bytes_shared_or_separate(tiny_model_folder: Path) -> None:
    async def go(engine: EmbeddedEngine) -> Completion:
        await learner_of(engine).update([batch(), batch()])
        await learner_of(engine).publish()
        completion = await engine.sampler.generate(PROMPT, LONG)
        await engine.close()
        return completion

    shared, separate = (engine_of(tiny_model_folder, separate=each) for each in (False, True))
    assert asyncio.run(go(shared)) == asyncio.run(go(separate))


def test_a_stream_that_is_left_early_frees_what_it_holds(tiny_model_folder: Path) -> None:
    engine = engine_of(tiny_model_folder, None)

    async def go() -> None:
        stream = engine.sampler.stream(PROMPT, LONG)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        await engine.sampler.generate(PROMPT, SamplingParams(max_tokens=3))
        stats = engine.sampler.stats()
        assert (stats.requests, stats.cancelled, stats.failed) == (2, 1, 0)
        assert stats.generated_tokens < LONG.max_tokens
        assert not engine.sampler._batch._requests
        await engine.close()

    asyncio.run(go())


def test_closing_cancels_what_is_in_flight_and_refuses_what_comes_after(tiny_model_folder: Path) -> None:
    engine = engine_of(tiny_model_folder, None)

    async def go() -> None:
        left = asyncio.ensure_future(engine.sampler.generate(PROMPT, LONG))
        while not engine.sampler.stats().generated_tokens:
            await asyncio.sleep(0)
        await engine.close()
        assert (await asyncio.gather(left, return_exceptions=True))[0].__class__ is asyncio.CancelledError
        with pytest.raises(SamplerError, match="closed"):
            await engine.sampler.generate(PROMPT, LONG)
        with pytest.raises(SamplerError, match="closed"):
            await engine.sampler.score(PROMPT, PROMPT)

    asyncio.run(go())


def test_a_score_that_breaks_on_the_thread_is_a_failure_of_the_sampler(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(tiny_model_folder, None)

    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("out of memory")

    async def go() -> None:
        monkeypatch.setattr("palimpsest.engines.embedded.sampling.continuous_batch.score", broken)
        with pytest.raises(SamplerError, match="scoring failed: RuntimeError: out of memory"):
            await engine.sampler.score(PROMPT, PROMPT)
        monkeypatch.undo()
        assert len(await engine.sampler.score(PROMPT, PROMPT)) == len(PROMPT)
        await engine.close()

    asyncio.run(go())


def test_a_request_that_no_step_has_seen_is_cancelled_too(tiny_model_folder: Path) -> None:
    engine = engine_of(tiny_model_folder, None)

    async def go() -> None:
        waiting = asyncio.ensure_future(engine.sampler.generate(PROMPT, LONG))
        await asyncio.sleep(0)
        await engine.close()
        assert not engine.sampler.stats().steps
        async with asyncio.timeout(30):
            assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)

    asyncio.run(go())


def test_an_engine_that_another_loop_closes_ends_its_requests_in_silence(tiny_model_folder: Path) -> None:
    """As where a loop is left with requests under way, and only ended once the engine is closed."""
    engine = engine_of(tiny_model_folder, None)
    complaints: list[dict[str, Any]] = []

    async def begin() -> asyncio.Future[Completion]:
        waiting = asyncio.ensure_future(engine.sampler.generate(PROMPT, LONG))
        while not engine.sampler.stats().generated_tokens:
            await asyncio.sleep(0)
        return waiting

    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
        waiting = runner.run(begin())
        asyncio.run(engine.close())
    gc.collect()
    assert waiting.cancelled()
    assert complaints == []


def test_who_waits_on_a_running_loop_hears_of_a_close_on_another(tiny_model_folder: Path) -> None:
    """A caller hears either that it was cancelled or that the engine was closed, whichever comes first."""
    engine = engine_of(tiny_model_folder, None)
    began = threading.Event()
    complaints: list[dict[str, Any]] = []

    async def go() -> list[Completion | BaseException]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        waiting = [asyncio.ensure_future(engine.sampler.generate(PROMPT, LONG)) for _ in range(2)]
        while not engine.sampler.stats().generated_tokens:
            await asyncio.sleep(0)
        began.set()
        async with asyncio.timeout(30):
            return await asyncio.gather(*waiting, return_exceptions=True)

    with ThreadPoolExecutor(1) as other:
        ended = other.submit(asyncio.run, go())
        assert began.wait(30)
        asyncio.run(engine.close())
        results = ended.result(30)
    gc.collect()
    assert all(isinstance(result, Completion | SamplerError | asyncio.CancelledError) for result in results)
    assert all("closed" in str(result) for result in results if isinstance(result, SamplerError))
    assert complaints == []


def test_grad_mode_and_thread_settings_hold_on_the_thread() -> None:
    thread = ComputeThread(1)
    assert asyncio.run(thread.run(torch.is_grad_enabled))
    assert not asyncio.run(thread.run(torch.is_inference_mode_enabled))
    assert asyncio.run(thread.run(torch.get_num_threads)) == 1
    asyncio.run(thread.close())


def test_an_error_on_the_thread_is_the_callers_and_the_next_call_works() -> None:
    def broken() -> None:
        raise ValueError("no")

    thread = ComputeThread()
    with pytest.raises(ValueError, match="no"):
        asyncio.run(thread.run(broken))
    assert asyncio.run(thread.run(int, "3")) == 3
    asyncio.run(thread.close())


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
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, str(tiny_model_folder)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
