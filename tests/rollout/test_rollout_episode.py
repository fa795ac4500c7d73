"""Episodes: what is recorded, and that every end has a name."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from palimpsest.config.schema import SamplingConfig
from palimpsest.errors import EngineError, PromptTooLong, SamplerError
from palimpsest.events import Event, SamplerFailed, ToolFailed
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.rollout.episode import failure, play
from palimpsest.seeding import derive_seed
from palimpsest.types import Completion, Outcome, Problem, Prompt, SamplingParams, StopReason, Trajectory
from support.clock import leap
from support.fakes import LetterCodec, SeedSampler, TwoTurnPolicy

PROBLEM = Problem("p1", "yes? ", ("yes",), "fact.")
CODEC: Any = LetterCodec()
SESSION = "3/train/5/0/p1/2"


def episode(sampler: Any, policy: Any = None, **options: Any) -> Trajectory:
    given: dict[str, Any] = {"key": (3, "train", 5, 0), "group_id": "g", "rollout": 2, **options}
    policy = policy or TwoTurnPolicy()
    return asyncio.run(play(PROBLEM, policy=policy, sampler=sampler, codec=CODEC, sampling=SamplingConfig(), **given))


def test_turns_hold_prompt_completion_name_and_notes_as_they_happened() -> None:
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


def test_the_seed_of_a_turn_is_keyed_by_run_step_problem_rollout_and_turn() -> None:
    sampler = SeedSampler()
    episode(sampler)
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
    found: list[str | None] = []

    class Listening(SeedSampler):
        async def generate(self, prompt_ids: Any, params: SamplingParams, **options: Any) -> Completion:
            found.append(options["session"])
            return await super().generate(prompt_ids, params, **options)

    class Reading(MemoryPolicy):
        shares_prefixes = shares

        async def run(self, problem: Problem, model: Model) -> Answered:
            for _ in range(3):
                await model.generate([1], name="read", max_tokens=8)
            return Answered("yes", Outcome.ANSWERED)

    episode(Listening(), Reading())
    assert found == sessions


def test_a_sampler_that_keeps_failing_ends_the_episode_with_the_turns_so_far() -> None:
    class FailsOnTheSecondTurn(SeedSampler):
        async def generate(self, prompt_ids: Any, params: SamplingParams, **options: Any) -> Completion:
            if self.calls:
                raise SamplerError("server gone")
            return await super().generate(prompt_ids, params, **options)

    trajectory = episode(FailsOnTheSecondTurn(), retries=1)
    assert trajectory.outcome is Outcome.SAMPLER_FAILED
    assert [turn.name for turn in trajectory.turns] == ["read"]
    assert [event.detail.get("message") for event in trajectory.events[-2:]] == ["server gone", "server gone"]


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": (-0.5,) * 3},
        {"logprobs": (-0.5, float("nan"), -0.5, -0.5)},
        {"logprobs": (-0.5, float("-inf"), -0.5, -0.5)},
        {"token_ids": (1,) * 9, "logprobs": (-0.5,) * 9},
    ],
)
def test_a_malformed_completion_is_a_sampler_failure_and_never_a_turn(change: dict[str, Any]) -> None:
    class Broken(SeedSampler):
        async def generate(self, prompt_ids: Any, params: SamplingParams, **options: Any) -> Completion:
            return replace(Completion((1, 2, 3, 4), (-0.5,) * 4, StopReason.STOP), **change)

    trajectory = episode(Broken(), retries=0)
    assert trajectory.outcome is Outcome.SAMPLER_FAILED
    assert trajectory.turns == ()


def test_a_prompt_beyond_the_window_ends_as_out_of_context() -> None:
    trajectory = episode(SeedSampler(fail=[PromptTooLong("1200 tokens, the window is 1000")]))
    assert trajectory.outcome is Outcome.OUT_OF_CONTEXT
    assert trajectory.events[-1].detail["message"] == "1200 tokens, the window is 1000"


def test_a_lost_engine_is_no_outcome_of_an_episode_but_everybody_s_error() -> None:
    with pytest.raises(EngineError, match="a process was lost"):
        episode(SeedSampler(fail=[EngineError("a process was lost")]))


def test_an_error_in_the_policy_is_an_outcome_with_type_and_message() -> None:
    class Faulty(MemoryPolicy):
        async def run(self, problem: Problem, model: Model) -> Answered:
            raise KeyError("memory")

    trajectory = episode(SeedSampler(), Faulty())
    assert trajectory.outcome is Outcome.POLICY_FAILED
    line = Faulty.run.__code__.co_firstlineno + 1
    where = f"{__file__}:{line}"
    assert dict(trajectory.events[-1].detail) == {"type": "KeyError", "message": "'memory'", "where": where}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "run() must return Answered, returned NoneType"),
        ("yes", "run() must return Answered, returned str"),
        (Answered(42, Outcome.ANSWERED), "Answered.text must be a string or None, is int"),
        (Answered("a", "done"), "Answered.outcome must be an Outcome, is 'done'"),
    ],
)
def test_a_policy_that_returns_something_else_than_an_answer_has_failed(returned: Any, message: str) -> None:
    class Careless(MemoryPolicy):
        async def run(self, problem: Problem, model: Model) -> Any:
            await model.generate([1], name="answer", max_tokens=8)
            return returned

    trajectory = episode(SeedSampler(), Careless())
    assert (trajectory.outcome, trajectory.answer, len(trajectory.turns)) == (Outcome.POLICY_FAILED, None, 1)
    detail = dict(trajectory.events[-1].detail)
    assert (detail["type"], detail["message"]) == ("TypeError", message)


def test_a_cancellation_that_a_policy_makes_itself_is_an_error_like_any_other() -> None:
    class WaitsForTheCancelled(MemoryPolicy):
        async def run(self, problem: Problem, model: Model) -> Answered:
            other = asyncio.create_task(asyncio.sleep(60))
            other.cancel()
            await other
            raise AssertionError("unreachable")

    trajectory = episode(SeedSampler(), WaitsForTheCancelled(), timeout_s=30)
    assert trajectory.outcome is Outcome.POLICY_FAILED
    assert trajectory.events[-1].detail["type"] == "CancelledError"


class Sleeper(MemoryPolicy):
    """Reads, then spends a minute."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        await model.generate([1], name="read", max_tokens=8)
        leap(60)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


def test_an_episode_over_its_time_limit_keeps_its_turns() -> None:
    trajectory = episode(SeedSampler(), Sleeper(), timeout_s=30)
    assert trajectory.outcome is Outcome.TIMED_OUT
    assert len(trajectory.turns) == 1


def test_a_timeout_raised_by_the_policy_itself_is_not_the_time_limit() -> None:
    class OwnTimeout(MemoryPolicy):
        async def run(self, problem: Problem, model: Model) -> Answered:
            raise TimeoutError("tool")

    assert episode(SeedSampler(), OwnTimeout(), timeout_s=30).outcome is Outcome.POLICY_FAILED


async def test_cancelling_an_episode_is_not_an_outcome() -> None:
    task = asyncio.create_task(
        play(
            PROBLEM,
            policy=Sleeper(),
            sampler=SeedSampler(),
            codec=CODEC,
            sampling=SamplingConfig(),
            key=(0,),
            group_id="g",
            rollout=0,
        )
    )
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (None, "a NoneType came back instead of a Completion"),
        (Completion((1, 2), (-0.5,), StopReason.STOP), "2 tokens came with 1 log-probabilities"),
        (Completion((1,) * 999, (-0.5,) * 999, StopReason.STOP), "999 tokens came back"),
        (Completion((1, 2), (math.nan, 0.0), StopReason.STOP), "a log-probability is not finite"),
        (Completion((1, 2), (math.inf, -math.inf), StopReason.STOP), "a log-probability is not finite"),
    ],
)
def test_what_no_sampler_may_give_is_a_failure_of_the_sampler(completion: Any, reason: str) -> None:
    class Wrong(SeedSampler):
        async def generate(self, *prompt: Any, **options: Any) -> Any:
            return completion

    trajectory = episode(Wrong(), retries=0)
    assert trajectory.outcome is Outcome.SAMPLER_FAILED
    assert trajectory.turns == ()
    assert reason in trajectory.events[0].detail["message"]


@pytest.mark.parametrize("span", [(-1, 1), (0, 3), (2, 1)])
def test_a_piece_that_does_not_lie_in_the_prompt_is_a_failure_of_the_policy(span: tuple[int, int]) -> None:
    class Misplaced(TwoTurnPolicy):
        async def run(self, problem: Problem, model: Model) -> Answered:
            await model.generate(Prompt((1, 2), {"memory": span}), name="read", max_tokens=4)
            raise AssertionError("not reached")

    trajectory = episode(SeedSampler(), Misplaced())
    assert trajectory.outcome is Outcome.POLICY_FAILED
    assert "is outside a prompt of 2 tokens" in trajectory.events[0].detail["message"]


def test_an_answer_is_told_token_by_token_and_once() -> None:
    told = list[int]()
    flaky = SeedSampler(fail=[SamplerError("reset")])
    trajectory = episode(flaky, on_token=told.append)
    assert trajectory.turns == episode(SeedSampler()).turns
    assert told == list(trajectory.turns[1].completion.token_ids)


def test_a_stream_that_breaks_in_the_middle_is_told_once() -> None:
    class Breaks(SeedSampler):
        breaks = 1

        async def stream(self, prompt_ids: Any, params: SamplingParams, **options: Any) -> Any:
            async for delta in super().stream(prompt_ids, params):
                yield delta
                if self.breaks:
                    self.breaks -= 1
                    raise SamplerError("reset")

    told = list[int]()
    trajectory = episode(Breaks(), on_token=told.append)
    assert told == list(trajectory.turns[1].completion.token_ids)
    assert [event.kind for event in trajectory.events].count("sampler_error") == 1


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_recorded_turns_are_not_sampled_again(taken: int) -> None:
    whole, sampler = episode(SeedSampler()), SeedSampler()
    told = list[int]()
    again = episode(sampler, recorded=whole.turns[:taken], on_token=told.append)
    assert again == whole
    assert len(sampler.calls) == 2 - taken
    assert told == list(whole.turns[1].completion.token_ids)


def test_a_recorded_turn_of_another_prompt_is_sampled_anew() -> None:
    whole, sampler = episode(SeedSampler()), SeedSampler()
    other = replace(whole.turns[0], prompt_ids=(1, 2))
    assert episode(sampler, recorded=[other]) == whole
    assert len(sampler.calls) == 2


def test_the_reason_of_a_lost_episode_is_no_error_of_a_tool_unless_there_is_no_other() -> None:
    tool, lost = Event(ToolFailed("unknown_tool", "r1", None, 3, "no tool"), 1), Event(SamplerFailed(0, "down"), 2)
    trajectory = Trajectory("p", "g", 0, (), Outcome.SAMPLER_FAILED, events=(tool, lost))
    assert failure(trajectory) == "sampler_error: down"
    assert failure(replace(trajectory, events=(tool,))) == "tool_error: no tool"
