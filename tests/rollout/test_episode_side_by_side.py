"""Calls side by side: the record and the end of an episode don't depend on the order of replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from palimpsest.config.schema import SamplingConfig
from palimpsest.errors import EngineError, PromptTooLong, SamplerError
from palimpsest.events import Event, PolicyFailed, SamplerFailed
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.rollout.episode import play
from palimpsest.rollout.speculation import Speculation
from palimpsest.types import Completion, Outcome, Problem, SamplingParams, Trajectory, Turn
from support.clock import leap
from support.fakes import LetterCodec, SeedSampler

CALLS = 8


class Shuffled(SeedSampler):
    """Replies in an order drawn from `order`; None: in the order of the calls. `errors`: by first token of a prompt."""

    def __init__(self, order: int | None = None, errors: dict[int, Exception] | None = None) -> None:
        super().__init__()
        self._random = None if order is None else Random(order)
        self._errors = errors or {}
        self.finished: list[int] = []

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        for _ in range(0 if self._random is None else self._random.randrange(20)):
            await asyncio.sleep(0)
        if prompt_ids[0] in self._errors:
            raise self._errors[prompt_ids[0]]
        completion = await super().generate(prompt_ids, params)
        self.finished.append(prompt_ids[0])
        return completion


async def by_generate_all(model: Model) -> list[Completion]:
    notes = [{"chunk": at} for at in range(CALLS)]
    return await model.generate_all([[1 + at] for at in range(CALLS)], name="look", max_tokens=8, notes=notes)


async def one(model: Model, at: int) -> Completion:
    completion = await model.generate([1 + at], name="look", max_tokens=8, chunk=at)
    model.event("looked", turn=completion.turn, text=model.codec.decode(completion.token_ids))
    return completion


async def by_gather(model: Model) -> list[Completion]:
    return list(await asyncio.gather(*(one(model, at) for at in range(CALLS))))


async def by_task_group(model: Model) -> list[Completion]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(model, at)) for at in range(CALLS)]
    return [task.result() for task in running]


WAYS = [by_generate_all, by_gather, by_task_group]
Way = Callable[[Model], Any]


class Looks(MemoryPolicy):
    """Looks at eight things, in two passes, then answers with all that it saw."""

    def __init__(self, way: Way) -> None:
        self.way = way

    async def run(self, problem: Problem, model: Model) -> Answered:
        for number in range(2):
            replies = await self.way(model)
            model.event("pass", number=number)
        seen = [i for reply in replies for i in reply.token_ids[:3]]
        reply = await model.generate(seen, name="answer", max_tokens=8)
        return Answered(model.codec.decode(reply.token_ids))


class Shortly(Looks):
    """Returns while calls are in flight."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        running = asyncio.ensure_future(self.way(model))
        await asyncio.sleep(0)
        return Answered(f"{running.done()}")


def started(sampler: Any, policy: MemoryPolicy, **options: Any) -> Any:
    values: dict[str, Any] = {"key": (3,), "group_id": "g", "rollout": 0, **options}
    codec: Any = LetterCodec()
    problem = Problem("p", "yes?", ("yes",), "text")
    return play(problem, policy=policy, sampler=sampler, codec=codec, sampling=SamplingConfig(), **values)


def episode(sampler: Any, policy: MemoryPolicy, **options: Any) -> Trajectory:
    trajectory: Trajectory = asyncio.run(started(sampler, policy, **options))
    return trajectory


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", range(4))
def test_the_record_is_the_same_for_any_order_of_replies(way: Way, order: int) -> None:
    sampler = Shuffled(order)
    trajectory = episode(sampler, Looks(way))
    assert trajectory == episode(Shuffled(), Looks(way))
    assert sampler.finished[:CALLS] != sorted(sampler.finished[:CALLS])
    assert [turn.step for turn in trajectory.turns] == list(range(2 * CALLS + 1))
    assert [turn.notes.get("chunk") for turn in trajectory.turns] == [*range(CALLS), *range(CALLS), None]
    own = [event.before_turn for event in trajectory.events if event.kind == "looked"]
    assert own == ([] if way is by_generate_all else [step + 1 for step in range(2 * CALLS)])
    assert [event.before_turn for event in trajectory.events if event.kind == "pass"] == [CALLS, 2 * CALLS]


@pytest.mark.parametrize("way", WAYS)
def test_a_turn_has_the_draws_of_its_number(way: Way) -> None:
    sequential = Shuffled()
    episode(sequential, Looks(way))
    shuffled = Shuffled(1)
    episode(shuffled, Looks(way))
    drawn = [{prompt: params.seed for prompt, params in sampler.calls[:CALLS]} for sampler in (sequential, shuffled)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].values())) == CALLS


async def both_fail(model: Model) -> Any:
    async with asyncio.TaskGroup() as tasks:
        for error in (ValueError("own"), EngineError("a process was lost")):
            tasks.create_task(raising(error))


async def raising(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PromptTooLong("1200 tokens"), Outcome.OUT_OF_CONTEXT),
        (SamplerError("server gone"), Outcome.SAMPLER_FAILED),
        (KeyError("own"), Outcome.POLICY_FAILED),
    ],
)
async def test_the_first_error_of_calls_side_by_side_ends_the_episode_and_the_other_calls(
    way: Way, error: Exception, outcome: Outcome
) -> None:
    sampler = Shuffled(errors={4: error})
    reported: list[int] = []
    trajectory = await started(
        sampler, Looks(way), retries=0, on_turn=lambda turn, events: reported.append(turn.step), timeout_s=60
    )
    assert trajectory.outcome is outcome
    finished = len(sampler.finished)
    await asyncio.sleep(0.02)
    assert len(sampler.finished) == finished < CALLS
    assert reported == list(range(len(reported)))
    if outcome is Outcome.POLICY_FAILED:
        assert [event.detail["type"] for event in trajectory.events if isinstance(event.what, PolicyFailed)] == [
            "KeyError"
        ]


@pytest.mark.parametrize("way", [*WAYS, both_fail])
def test_a_lost_engine_among_calls_side_by_side_is_raised(way: Way) -> None:
    with pytest.raises(EngineError, match="a process was lost"):
        episode(Shuffled(errors={4: EngineError("a process was lost")}), Looks(way))


@pytest.mark.parametrize("way", WAYS)
async def test_calls_in_flight_at_the_end_are_cancelled(way: Way) -> None:
    sampler = Shuffled(2)
    trajectory = await started(sampler, Shortly(way))
    await asyncio.sleep(0.02)
    assert (trajectory.answer, sampler.finished) == ("False", [])


async def waits(model: Model) -> Any:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(model.generate([1], name="look", max_tokens=8))
        leap(60)
        await asyncio.Event().wait()


def test_an_episode_over_its_time_limit_ends_its_task_group() -> None:
    assert episode(Shuffled(), Looks(waits), timeout_s=30).outcome is Outcome.TIMED_OUT


async def test_a_cancelled_episode_with_a_task_group_has_no_outcome() -> None:
    task = asyncio.create_task(started(Shuffled(), Looks(waits)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", range(3))
def test_turns_are_reported_in_order_with_their_events(way: Way, order: int) -> None:
    reported: list[tuple[int, list[str]]] = []

    def on_turn(turn: Turn, events: Sequence[Event]) -> None:
        reported.append((turn.step, [event.kind for event in events]))

    trajectory = episode(Shuffled(order), Looks(way), on_turn=on_turn)
    own = [] if way is by_generate_all else ["looked"]
    after = [own if step % CALLS != CALLS - 1 else [*own, "pass"] for step in range(2 * CALLS)]
    assert reported == [*enumerate(after), (2 * CALLS, [])]
    assert len(trajectory.turns) == len(reported)


@pytest.mark.parametrize("count", [0, 3, CALLS, CALLS + 2])
def test_an_episode_continues_from_its_recorded_turns(count: int) -> None:
    whole = episode(Shuffled(), Looks(by_generate_all))
    sampler = Shuffled(1)
    assert episode(sampler, Looks(by_generate_all), recorded=whole.turns[:count]) == whole
    assert len(sampler.calls) == len(whole.turns) - count


def test_answers_side_by_side_are_not_mixed_in_the_stream() -> None:
    async def votes(model: Model) -> list[Completion]:
        return await model.generate_all([[1 + at] for at in range(3)], name="answer", max_tokens=8)

    class Votes(Looks):
        async def run(self, problem: Problem, model: Model) -> Answered:
            return Answered(model.codec.decode((await votes(model))[0].token_ids))

    tokens: list[int] = []
    trajectory = episode(Shuffled(3), Votes(votes), on_token=tokens.append)
    assert tuple(tokens) == trajectory.turns[0].completion.token_ids


def test_reads_ahead_and_calls_side_by_side_give_the_record_of_neither() -> None:
    class Reads(Looks):
        async def run(self, problem: Problem, model: Model) -> Answered:
            for at in range(6):
                ahead = lambda more, at=at: [20 + at + more]  # noqa: E731
                await model.generate([20 + at], name="read", max_tokens=8, ahead=ahead)
            return await super().run(problem, model)

    plain = episode(Shuffled(), Reads(by_generate_all))
    early = episode(Shuffled(1), Reads(by_generate_all), speculation=Speculation("auto", 64))
    assert early == plain


@pytest.mark.parametrize("turn", [-1, 8])
def test_an_event_of_a_turn_that_has_not_begun_is_a_failure_of_the_policy(turn: int) -> None:
    async def early(model: Model) -> Any:
        await by_generate_all(model)
        model.event("looked", turn=turn)

    trajectory = episode(Shuffled(), Looks(early))
    assert (trajectory.outcome, trajectory.events[-1].detail["type"]) == (Outcome.POLICY_FAILED, "ValueError")


def test_notes_of_another_length_are_a_failure_of_the_policy() -> None:
    async def short(model: Model) -> Any:
        return await model.generate_all([[1], [2]], name="look", max_tokens=8, notes=[{}])

    trajectory = episode(Shuffled(), Looks(short))
    assert (trajectory.outcome, trajectory.turns) == (Outcome.POLICY_FAILED, ())


def test_retries_belong_to_the_turn_that_failed() -> None:
    class Flaky(Shuffled):
        async def generate(self, prompt_ids: Any, params: SamplingParams, *, session: str | None = None) -> Any:
            if prompt_ids[0] == 3 and prompt_ids not in [prompt for prompt, _ in self.calls]:
                self.calls.append((prompt_ids, params))
                raise SamplerError("busy")
            return await super().generate(prompt_ids, params, session=session)

    events = episode(Flaky(1), Looks(by_generate_all)).events
    assert [event.before_turn for event in events if isinstance(event.what, SamplerFailed)] == [3]
