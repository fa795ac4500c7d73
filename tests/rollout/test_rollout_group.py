"""Groups: order, seeds, grading, failure."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from palimpsest.config.schema import SamplingConfig
from palimpsest.errors import SamplerError
from palimpsest.memory.document_baselines import FullContextPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.memory.recall import RecallPolicy
from palimpsest.rollout.group import Player
from palimpsest.rollout.variant import Variant, is_variant
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group, Outcome, Problem, Trajectory
from support.fakes import LetterCodec, SeedSampler, TwoTurnPolicy, YesGrader

PROBLEMS = [Problem("a", "yes? ", ("yes",)), Problem("b", "yes? ", ("yes",)), Problem("a", "yes? ", ("yes",))]


def player(**options: Any) -> Player:
    given: dict[str, Any] = {"policy": TwoTurnPolicy(), "sampler": SeedSampler(), "grader": YesGrader(), **options}
    codec: Any = LetterCodec()
    return Player(group_size=8, codec=codec, sampling=SamplingConfig(), **given)


def groups(**options: Any) -> list[Group]:
    on_episode = options.pop("on_episode", None)
    return asyncio.run(player(**options).batch(PROBLEMS, key=(0, 1), on_episode=on_episode))


class LaterFirst(MemoryPolicy):
    """Finishes in an order of its own."""

    def __init__(self) -> None:
        self.started = 0

    async def run(self, problem: Problem, model: Model) -> Answered:
        self.started += 1
        await asyncio.sleep(0.02 / self.started)
        said = await model.generate([1], name="answer", max_tokens=8)
        return Answered(model.codec.decode(said.token_ids))


def test_groups_and_rollouts_come_back_in_order_whatever_ends_first() -> None:
    result = groups(policy=LaterFirst())
    assert [group.problem.id for group in result] == ["a", "b", "a"]
    assert all([t.rollout for t in group.trajectories] == list(range(8)) for group in result)


def test_playing_a_batch_again_gives_the_same_trajectories() -> None:
    assert groups() == groups()


def test_a_problem_twice_in_a_batch_has_its_own_group_and_its_own_draws() -> None:
    first, _, second = groups()
    assert first.trajectories[0].group_id != second.trajectories[0].group_id
    assert [t.answer for t in first.trajectories] != [t.answer for t in second.trajectories]


def test_an_episode_has_the_same_tokens_alone_and_in_a_batch() -> None:
    alone = asyncio.run(player().batch(PROBLEMS[1:2], key=(0, 1)))
    assert alone[0] == groups()[1]


def test_grades_belong_to_their_trajectories_and_progress_is_told_once_an_episode() -> None:
    seen: list[tuple[Trajectory, Grade]] = []
    result = groups(on_episode=lambda trajectory, grade: seen.append((trajectory, grade)))
    for group in result:
        assert [grade.value for grade in group.grades] == [float(t.answer == "yes") for t in group.trajectories]
    assert len(seen) == 24


def test_a_failed_request_leaves_its_episode_ungraded_and_the_others_alone() -> None:
    result = groups(sampler=SeedSampler(fail=[SamplerError("down")]), retries=0)
    lost = [(t, g) for group in result for t, g in zip(group.trajectories, group.grades, strict=True) if not g.graded]
    assert [(t.outcome, g.value) for t, g in lost] == [(Outcome.SAMPLER_FAILED, None)]


def test_an_error_of_the_grader_ends_the_batch_as_itself() -> None:
    class Faulty:
        def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
            raise ZeroDivisionError("judge")

    with pytest.raises(ZeroDivisionError, match="judge"):
        groups(grader=Faulty())


class ShortForB(MemoryPolicy):
    """Problem b is done with one call, the others take several."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        for _ in range(1 if problem.id == "b" else 20):
            said = await model.generate([1], name="answer", max_tokens=8)
        return Answered(model.codec.decode(said.token_ids))


async def test_a_group_arrives_when_it_is_whole_with_its_place_among_the_problems() -> None:
    arrived = [(place, group) async for place, group in player(policy=ShortForB()).groups(PROBLEMS, key=(0, 1))]
    assert [place for place, _ in arrived] == [1, 0, 2]
    together = await player(policy=ShortForB()).batch(PROBLEMS, key=(0, 1))
    assert [group for _, group in sorted(arrived, key=lambda pair: pair[0])] == together


async def test_a_consumer_that_stops_early_leaves_no_episode_running() -> None:
    arriving = player(policy=ShortForB()).groups(PROBLEMS, key=(0, 1))
    place, _ = await anext(arriving)
    await arriving.aclose()
    assert place == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Preparing(MemoryPolicy):
    """Says where and how often it prepared; its episodes answer with what they were handed."""

    def __init__(self, *, fails: bool = False) -> None:
        self.prepared: list[tuple[str, bool]] = []
        self.begun: list[str] = []
        self._fails = fails

    def prepare(self, problem: Problem, codec: Any) -> list[str]:
        beside = threading.current_thread() is not threading.main_thread()
        self.prepared.append((problem.id, beside and not self.begun))
        if self._fails:
            raise LookupError(f"{problem.id} has no beginning")
        return [problem.id]

    async def run(self, problem: Problem, model: Model) -> Answered:
        self.begun.append(problem.id)
        await model.generate([1], name="answer", max_tokens=8)
        return Answered(str(model.prepared))


def test_a_problem_is_prepared_once_a_group_beside_the_loop_and_before_any_episode_begins() -> None:
    policy = Preparing()
    result = groups(policy=policy)
    assert policy.prepared == [("a", True), ("b", True), ("a", True)]
    assert [{t.answer for t in group.trajectories} for group in result] == [{"['a']"}, {"['b']"}, {"['a']"}]


def test_a_policy_that_fails_to_prepare_fails_as_one_that_fails_to_run() -> None:
    for trajectory in (t for group in groups(policy=Preparing(fails=True)) for t in group.trajectories):
        assert trajectory.outcome is Outcome.POLICY_FAILED
        assert trajectory.events[0].detail["message"] == f"{trajectory.problem_id} has no beginning"


def test_episodes_with_changed_options_are_handed_what_their_own_policy_prepared() -> None:
    class Other(Preparing):
        def prepare(self, problem: Problem, codec: Any) -> list[str]:
            return ["other"]

    result = groups(variant=Variant(Other(), 0.5, {}))
    answers = [t.answer == "['other']" for group in result for t in group.trajectories]
    assert answers == [is_variant(t) for group in result for t in group.trajectories]
    assert 0 < sum(answers) < 24


def test_the_document_is_encoded_once_a_group(tiny_codec: Codec) -> None:
    class Counting(Codec):
        def encode(self, text: str) -> list[int]:
            encoded.append(text)
            return super().encode(text)

    encoded: list[str] = []
    document = "Bob has a cat.\nAnna is blue.\n" * 4
    for policy in (OverwritePolicy(chunk_size=16), RecallPolicy(chunk_size=16), FullContextPolicy()):
        encoded.clear()
        played = Player(policy, SeedSampler(), Counting(tiny_codec.tokenizer), SamplingConfig(), YesGrader(), 4)
        (group,) = asyncio.run(played.batch([Problem("a", "Who?", ("x",), document)], key=(0,)))
        assert {t.outcome for t in group.trajectories} <= {Outcome.ANSWERED, Outcome.OUT_OF_CONTEXT}
        assert encoded.count(document) == 1
