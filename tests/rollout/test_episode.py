"""Episodes: the recorded turns and events, and a name for every way to end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from palimpsest.config.schema import SamplingConfig
from palimpsest.errors import EngineError, PromptTooLong, SamplerError
from palimpsest.events import Event, SamplerFailed, ToolFailed
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.rollout.episode import Role, failure, play
from palimpsest.seeding import derive_seed
from palimpsest.types import Completion, Outcome, Problem, Prompt, Question, SamplingParams, StopReason, Trajectory
from support.clock import leap
from support.fakes import LetterCodec, SeedSampler, TwoTurnPolicy
from support.groups import make_episode

PROBLEM = Problem("p1", "yes? ", ("yes",), "fact.")
CODEC: Any = LetterCodec()
SESSION = "3/train/5/0/p1/2"


async def started(sampler: Any, policy: Any = None, problem: Problem = PROBLEM, **options: Any) -> Trajectory:
    values: dict[str, Any] = {"key": (3, "train", 5, 0), "group_id": "g", "rollout": 2, **options}
    policy = policy or TwoTurnPolicy()
    return await play(problem, policy=policy, sampler=sampler, codec=CODEC, sampling=SamplingConfig(), **values)


def episode(sampler: Any = None, policy: Any = None, problem: Problem = PROBLEM, **options: Any) -> Trajectory:
    return asyncio.run(started(sampler or SeedSampler(), policy, problem, **options))


def running(run: Callable[..., Any], **members: Any) -> MemoryPolicy:
    """A policy with this coroutine function as `run(problem, model)`."""
    made: MemoryPolicy = type("Policy", (MemoryPolicy,), {"run": lambda _, *args: run(*args), **members})()
    return made


class Sampler(SeedSampler):
    """Calls `before` ahead of each request, with the sampler; gives `completion` if there is one."""

    def __init__(self, before: Callable[[SeedSampler], Any] = lambda _: None, completion: Any = ()) -> None:
        super().__init__()
        self._before, self._completion = before, completion
        self.sessions: list[str | None] = []

    async def generate(self, prompt_ids: Any, params: SamplingParams, *, session: str | None = None) -> Any:
        self._before(self)
        self.sessions.append(session)
        sampled = await super().generate(prompt_ids, params, session=session)
        return sampled if self._completion == () else self._completion


def failed(trajectory: Trajectory, outcome: Outcome, message: str) -> bool:
    """True if the episode ended as `outcome` with an event whose message contains `message`."""
    return trajectory.outcome is outcome and message in trajectory.events[-1].detail["message"]


def test_turns_contain_prompt_completion_name_and_notes() -> None:
    sampler = SeedSampler()
    trajectory = episode(sampler)
    assert [(turn.name, turn.step, dict(turn.notes)) for turn in trajectory.turns] == [
        ("read", 0, {"chunk": 0, "memory_tokens": 0}),
        ("answer", 1, {}),
    ]
    assert [turn.prompt_ids for turn in trajectory.turns] == [prompt for prompt, _ in sampler.calls]
    assert trajectory.turns[1].prompt_ids == trajectory.turns[0].completion.token_ids
    assert [(event.kind, event.before_turn) for event in trajectory.events] == [("wrote", 1)]
    assert trajectory.outcome is Outcome.ANSWERED
    seeds = [params.seed for _, params in sampler.calls]
    assert seeds == [derive_seed(3, "train", 5, 0, "p1", 2, turn) for turn in (0, 1)]


def test_a_retried_request_has_the_same_seed_and_the_same_tokens() -> None:
    clean, flaky = SeedSampler(), SeedSampler(fail=[SamplerError("reset"), SamplerError("reset")])
    expected, trajectory = episode(clean), episode(flaky, retries=2)
    assert trajectory.turns == expected.turns
    assert [event.kind for event in trajectory.events] == ["sampler_error", "sampler_error", "wrote"]
    assert len({params.seed for _, params in flaky.calls[:3]}) == 1


@pytest.mark.parametrize(("shares", "sessions"), [(True, [SESSION] * 3), (False, [SESSION, None, None])])
def test_requests_name_their_session_where_they_share_a_prefix(shares: bool, sessions: list[str | None]) -> None:
    async def run(problem: Problem, model: Model) -> Answered:
        for _ in range(3):
            await model.generate([1], name="read", max_tokens=8)
        return Answered("yes", Outcome.ANSWERED)

    sampler = Sampler()
    episode(sampler, running(run, shares_prefixes=shares))
    assert sampler.sessions == sessions


def test_a_sampler_that_keeps_failing_ends_the_episode_with_the_turns_so_far() -> None:
    def fail(sampler: SeedSampler) -> None:
        if sampler.calls:
            raise SamplerError("server gone")

    trajectory = episode(Sampler(fail), retries=1)
    assert trajectory.outcome is Outcome.SAMPLER_FAILED
    assert [turn.name for turn in trajectory.turns] == ["read"]
    assert [event.detail.get("message") for event in trajectory.events[-2:]] == ["server gone", "server gone"]


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (None, "a NoneType came back instead of a Completion"),
        (Completion((1, 2), (-0.5,), StopReason.STOP), "2 tokens came with 1 log-probabilities"),
        (Completion((1,) * 9, (-0.5,) * 9, StopReason.STOP), "9 tokens came back"),
        (Completion((1, 2), (math.nan, 0.0), StopReason.STOP), "a log-probability is not finite"),
        (Completion((1, 2), (-0.5, -math.inf), StopReason.STOP), "a log-probability is not finite"),
    ],
)
def test_an_invalid_completion_is_a_failure_of_the_sampler_and_no_turn(completion: Any, reason: str) -> None:
    trajectory = episode(Sampler(completion=completion), retries=0)
    assert failed(trajectory, Outcome.SAMPLER_FAILED, reason)
    assert trajectory.turns == ()


def test_a_prompt_beyond_the_window_ends_as_out_of_context() -> None:
    trajectory = episode(SeedSampler(fail=[PromptTooLong("1200 tokens, the window is 1000")]))
    assert failed(trajectory, Outcome.OUT_OF_CONTEXT, "1200 tokens, the window is 1000")


def test_a_lost_engine_is_raised_and_no_outcome() -> None:
    with pytest.raises(EngineError, match="a process was lost"):
        episode(SeedSampler(fail=[EngineError("a process was lost")]))


async def raises(problem: Problem, model: Model) -> Answered:
    raise KeyError("memory")


def test_an_error_in_the_policy_is_an_outcome_with_type_message_and_line() -> None:
    trajectory = episode(policy=running(raises))
    assert trajectory.outcome is Outcome.POLICY_FAILED
    where = f"{__file__}:{raises.__code__.co_firstlineno + 1}"
    assert dict(trajectory.events[-1].detail) == {"type": "KeyError", "message": "'memory'", "where": where}


QUESTIONS = Problem.asking("p", [Question("Who ran?", ("Anna",)), Question("Where?", ("Rome",))], "Anna ran.")


@pytest.mark.parametrize(
    ("returned", "problem", "message"),
    [
        (None, PROBLEM, "run() must return Answered, returned NoneType"),
        ("yes", PROBLEM, "run() must return Answered, returned str"),
        (Answered(42, Outcome.ANSWERED), PROBLEM, "Answered.text must be a string or None, is int"),
        (Answered("a", "done"), PROBLEM, "Answered.outcome must be an Outcome, is 'done'"),
        (Answered("yes"), QUESTIONS, "Answered.answers is empty, the problem asks 2"),
        (Answered("yes", answers=("yes",)), QUESTIONS, "has 1, the problem asks 2"),
        (Answered("yes", answers=("yes",)), PROBLEM, "has 1, the problem asks 0"),
    ],
)
def test_a_policy_without_a_valid_answer_has_failed(returned: Any, problem: Problem, message: str) -> None:
    async def run(problem: Problem, model: Model) -> Any:
        await model.generate([1], name="answer", max_tokens=8)
        return returned

    trajectory = episode(policy=running(run), problem=problem)
    assert failed(trajectory, Outcome.POLICY_FAILED, message)
    assert (trajectory.answer, len(trajectory.turns)) == (None, 1)


async def waits_for_a_cancelled_task(problem: Problem, model: Model) -> Answered:
    other = asyncio.create_task(asyncio.sleep(60))
    other.cancel()
    await other
    raise AssertionError("unreachable")


async def times_out(problem: Problem, model: Model) -> Answered:
    raise TimeoutError("tool")


@pytest.mark.parametrize(("run", "name"), [(waits_for_a_cancelled_task, "CancelledError"), (times_out, "TimeoutError")])
def test_a_cancellation_or_timeout_of_the_policy_is_an_ordinary_error(run: Any, name: str) -> None:
    trajectory = episode(policy=running(run), timeout_s=30)
    assert trajectory.outcome is Outcome.POLICY_FAILED
    assert trajectory.events[-1].detail["type"] == name


async def sleeps(problem: Problem, model: Model) -> Answered:
    """Reads, then takes a minute."""
    await model.generate([1], name="read", max_tokens=8)
    leap(60)
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def test_an_episode_over_its_time_limit_keeps_its_turns() -> None:
    trajectory = episode(policy=running(sleeps), timeout_s=30)
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.TIMED_OUT, 1)


async def test_a_cancelled_episode_has_no_outcome() -> None:
    task = asyncio.create_task(started(SeedSampler(), running(sleeps)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("span", [(-1, 1), (0, 3), (2, 1)])
def test_a_piece_outside_the_prompt_is_a_failure_of_the_policy(span: tuple[int, int]) -> None:
    async def run(problem: Problem, model: Model) -> Answered:
        await model.generate(Prompt((1, 2), {"memory": span}), name="read", max_tokens=4)
        raise AssertionError("unreachable")

    assert failed(episode(policy=running(run)), Outcome.POLICY_FAILED, "is outside a prompt of 2 tokens")


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"critics": Role()}, "role 'critic' of a turn is unknown; did you mean critics?; known: critics"),
        ({}, "there are none: name it in the recipe, e.g. roles: {critic: {}}"),
    ],
)
def test_an_unknown_role_is_a_failure_of_the_policy(roles: dict[str, Role], message: str) -> None:
    async def run(problem: Problem, model: Model) -> Answered:
        await model.generate([1], name="criticise", max_tokens=8, role="critic")
        raise AssertionError("unreachable")

    trajectory = episode(policy=running(run), roles=roles)
    assert failed(trajectory, Outcome.POLICY_FAILED, message)
    assert trajectory.events[-1].detail["type"] == "ConfigError"


def test_the_reason_of_a_lost_episode_is_an_error_of_a_tool_only_without_another() -> None:
    tool, lost = Event(ToolFailed("unknown_tool", "r1", None, 3, "no tool"), 1), Event(SamplerFailed(0, "down"), 2)
    trajectory = make_episode(outcome=Outcome.SAMPLER_FAILED, events=(tool, lost))
    assert failure(trajectory) == "sampler_error: down"
    assert failure(replace(trajectory, events=(tool,))) == "tool_error: no tool"


class Breaks(SeedSampler):
    """Its first stream breaks after the first token."""

    breaks = 1

    async def stream(self, prompt_ids: Any, params: SamplingParams, **options: Any) -> Any:
        async for delta in super().stream(prompt_ids, params):
            yield delta
            if self.breaks:
                self.breaks -= 1
                raise SamplerError("reset")


@pytest.mark.parametrize("sampler", [SeedSampler(fail=[SamplerError("reset")]), Breaks()])
def test_the_tokens_of_an_answer_are_streamed_once_in_spite_of_retries(sampler: SeedSampler) -> None:
    tokens = list[int]()
    trajectory = episode(sampler, on_token=tokens.append)
    assert trajectory.turns == episode().turns
    assert tokens == list(trajectory.turns[1].completion.token_ids)
    assert [event.kind for event in trajectory.events].count("sampler_error") == 1


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_recorded_turns_are_not_sampled_again(taken: int) -> None:
    expected, sampler, tokens = episode(), SeedSampler(), list[int]()
    assert episode(sampler, recorded=expected.turns[:taken], on_token=tokens.append) == expected
    assert len(sampler.calls) == 2 - taken
    assert tokens == list(expected.turns[1].completion.token_ids)


def test_a_recorded_turn_of_another_prompt_is_sampled_again() -> None:
    expected, sampler = episode(), SeedSampler()
    other = replace(expected.turns[0], prompt_ids=(1, 2))
    assert episode(sampler, recorded=[other]) == expected
    assert len(sampler.calls) == 2
