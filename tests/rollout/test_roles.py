"""Roles: who takes a turn, and that nothing of a frozen one's is ever learnt from."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from palimpsest.config.schema import CreditConfig, OverlongConfig, SamplingConfig
from palimpsest.credit.assign import assign
from palimpsest.credit.dapo import penalty
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.rollout.episode import Roles
from palimpsest.rollout.group import Player
from palimpsest.rollout.segments import segments_of
from palimpsest.rollout.trajectory_file import trajectory_from_json, trajectory_to_json
from palimpsest.training.supervised.supervised_loop import audible
from palimpsest.types import Completion, Group, Outcome, Problem, StopReason, Trajectory, Turn
from support.fakes import LetterCodec, SeedSampler, YesGrader

CODEC: Any = LetterCodec()


class AskedTwice(MemoryPolicy):
    """Writes, is criticised by another, answers in sight of both."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        prompt = model.codec.encode(problem.question)
        for name, role in (("write", None), ("criticise", "critic"), ("answer", None)):
            said = await model.generate(prompt, name=name, max_tokens=8, role=role)
            prompt = [*prompt, *said.token_ids, *model.codec.encode("? ")]
        return Answered(model.codec.decode(said.token_ids))


def played(roles: Roles, sampler: SeedSampler | None = None) -> list[Group]:
    player = Player(
        policy=AskedTwice(),
        sampler=sampler or SeedSampler(),
        codec=CODEC,
        sampling=SamplingConfig(),
        grader=YesGrader(),
        group_size=8,
        roles=roles,
    )
    problems = [Problem(f"p{i}", "yes? ", ("yes",)) for i in range(4)]
    return asyncio.run(player.batch(problems, key=(0,)))


FROZEN: Roles = {"critic": None}


def test_a_frozen_turn_is_context_and_the_turns_around_it_stay_one_segment() -> None:
    trajectory = played(FROZEN)[0].trajectories[0]
    (segment,) = segments_of(trajectory)
    assert [(turn.role, turn.trained) for turn in trajectory.turns] == [(None, True), ("critic", False), (None, True)]
    assert segment.token_ids == trajectory.turns[-1].prompt_ids + trajectory.turns[-1].completion.token_ids
    assert {index for index in segment.turn_index if index >= 0} == {0, 2}
    assert sum(segment.loss_mask) == sum(len(trajectory.turns[i].completion.token_ids) for i in (0, 2))


def test_a_frozen_turn_gives_the_same_gradient_as_words_of_a_tool() -> None:
    frozen = played(FROZEN)
    as_tool = [
        replace(group, trajectories=tuple(replace(t, turns=(t.turns[0], t.turns[2])) for t in group.trajectories))
        for group in frozen
    ]
    for aggregate in ("token", "segment", "trajectory", "prompt"):
        config = CreditConfig(agg_mode=aggregate, adv_estimator="mean_std")
        (ours,), (theirs,) = assign(frozen, config, 1), assign(as_tool, config, 1)
        assert len(ours.segments) == len(theirs.segments) == 32
        for row, other in zip(ours.segments, theirs.segments, strict=True):
            assert (row.segment.token_ids, row.segment.loss_mask) == (other.segment.token_ids, other.segment.loss_mask)
            assert (row.advantages, row.weights) == (other.advantages, other.weights)


def test_what_a_frozen_turn_said_is_not_trained_when_earlier_turns_are_trained_again() -> None:
    """The released code's `final_segment: all` on a context that was rewritten and still holds both turns."""
    end, agent, critic = (9,), (4, 5, 0), (6, 7, 0)
    turns = (
        Turn((1, *end), Completion(agent, (-0.5,) * 3, StopReason.STOP), 0, "act"),
        Turn((1, *end, *agent, *end), Completion(critic, (-0.5,) * 3, StopReason.STOP), 1, "act", role="critic"),
        Turn((2, *end, *agent, *end, *critic, *end), Completion((8, 0), (-0.5,) * 2, StopReason.STOP), 2, "act"),
    )
    for trained, expected in ((True, [0, 0, 0, 1, 1, 1, 2, 2]), (False, [0, 0, 0, 2, 2])):
        criticised = (turns[0], replace(turns[1], trained=trained), turns[2])
        last = segments_of(Trajectory("p", "g", 0, criticised, Outcome.ANSWERED), "all")[-1]
        assert [index for index in last.turn_index if index >= 0] == expected


def test_a_role_with_a_sampler_of_its_own_is_sampled_there_and_draws_do_not_move() -> None:
    critic, agent = SeedSampler(), SeedSampler()
    both = played({"critic": critic}, agent)
    assert (len(critic.calls), len(agent.calls)) == (32, 64)
    shared = SeedSampler()
    assert played(FROZEN, shared) == both
    seeds = {params.seed for _, params in shared.calls}
    assert seeds == {params.seed for _, params in (*critic.calls, *agent.calls)}


def test_a_role_nobody_named_is_told_with_the_names_there_are() -> None:
    (event,) = played({"critics": None})[0].trajectories[0].events
    assert event.detail["type"] == "ConfigError"
    assert "role 'critic' of a turn is unknown; did you mean critics?; known: critics" in event.detail["message"]
    (event,) = played({})[0].trajectories[0].events
    assert "there are none: name it in the recipe, e.g. roles: {critic: {}}" in event.detail["message"]


def test_roles_come_back_from_a_record() -> None:
    trajectory = played(FROZEN)[0].trajectories[0]
    assert trajectory_from_json(trajectory_to_json(trajectory)) == trajectory


def test_long_frozen_turns_are_no_reason_for_a_penalty() -> None:
    def turn(length: int, *, trained: bool) -> Turn:
        return Turn((1,), Completion((2,) * length, (0.0,) * length, StopReason.STOP), 0, "act", trained=trained)

    config = OverlongConfig(max_tokens=10, buffer=4)
    trajectory = Trajectory("p", "g", 0, (turn(8, trained=True), turn(50, trained=False)), Outcome.ANSWERED)
    assert penalty(trajectory, config) == 0.5


def test_an_episode_of_frozen_turns_alone_teaches_nothing() -> None:
    heard = played(FROZEN)[0].trajectories[0]
    frozen = replace(heard, turns=tuple(replace(turn, trained=False) for turn in heard.turns))
    assert segments_of(frozen) == ()
    assert list(audible([frozen, heard])) == [heard]
