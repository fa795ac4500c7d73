"""Groups of episodes: order, seeds, grades, failures, roles."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.errors import SamplerError
from palimpsest.memory.document_baselines import FullContextPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.memory.recall import RecallPolicy
from palimpsest.rollout.episode import Role
from palimpsest.rollout.group import Player
from palimpsest.rollout.segments import segments_of
from palimpsest.rollout.variant import Variant, is_variant
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group, Outcome, Problem, Trajectory
from support.fakes import LetterCodec, SeedSampler, TwoTurnPolicy, YesGrader

PROBLEMS = [Problem("a", "yes? ", ("yes",)), Problem("b", "yes? ", ("yes",)), Problem("a", "yes? ", ("yes",))]


def player(**options: Any) -> Player:
    codec: Any = LetterCodec()
    values = {"policy": TwoTurnPolicy(), "sampler": SeedSampler(), "grader": YesGrader(), **options}
    return Player(group_size=8, codec=codec, sampling=SamplingConfig(), **values)


def groups(**options: Any) -> list[Group]:
    on_episode = options.pop("on_episode", None)
    return asyncio.run(player(**options).batch(PROBLEMS, key=(0, 1), on_episode=on_episode))


class LaterFirst(MemoryPolicy):
    """Episodes that start later end earlier."""

    def __init__(self) -> None:
        self.started = 0

    async def run(self, problem: Problem, model: Model) -> Answered:
        self.started += 1
        await asyncio.sleep(0.02 / self.started)
        completion = await model.generate([1], name="answer", max_tokens=8)
        return Answered(model.codec.decode(completion.token_ids))


def test_groups_and_rollouts_are_in_order_whatever_ends_first() -> None:
    result = groups(policy=LaterFirst())
    assert [group.problem.id for group in result] == ["a", "b", "a"]
    assert all([t.rollout for t in group.trajectories] == list(range(8)) for group in result)


def test_a_group_is_the_same_again_and_alone_and_differs_for_a_repeated_problem() -> None:
    first, second, third = groups()
    assert groups() == [first, second, third]
    assert asyncio.run(player().batch(PROBLEMS[1:2], key=(0, 1))) == [second]
    assert first.trajectories[0].group_id != third.trajectories[0].group_id
    assert [t.answer for t in first.trajectories] != [t.answer for t in third.trajectories]


def test_grades_belong_to_their_trajectories_and_progress_is_reported_once_per_episode() -> None:
    graded: list[tuple[Trajectory, Grade]] = []
    result = groups(on_episode=lambda trajectory, grade: graded.append((trajectory, grade)))
    for group in result:
        assert [grade.value for grade in group.grades] == [float(t.answer == "yes") for t in group.trajectories]
    assert len(graded) == 24


def test_a_failed_request_leaves_only_its_episode_ungraded() -> None:
    result = groups(sampler=SeedSampler(fail=[SamplerError("down")]), retries=0)
    lost = [(t, g) for group in result for t, g in zip(group.trajectories, group.grades, strict=True) if not g.graded]
    assert [(t.outcome, g.value) for t, g in lost] == [(Outcome.SAMPLER_FAILED, None)]


class ShortForB(MemoryPolicy):
    """Problem b takes one call, the others take several."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        for _ in range(1 if problem.id == "b" else 20):
            completion = await model.generate([1], name="answer", max_tokens=8)
        return Answered(model.codec.decode(completion.token_ids))


async def test_a_finished_group_is_yielded_with_its_index_among_the_problems() -> None:
    arrived = [(index, group) async for index, group in player(policy=ShortForB()).groups(PROBLEMS, key=(0, 1))]
    assert [index for index, _ in arrived] == [1, 0, 2]
    together = await player(policy=ShortForB()).batch(PROBLEMS, key=(0, 1))
    assert [group for _, group in sorted(arrived, key=lambda pair: pair[0])] == together


async def test_a_consumer_that_stops_early_leaves_no_episode_running() -> None:
    arriving = player(policy=ShortForB()).groups(PROBLEMS, key=(0, 1))
    index, _ = await anext(arriving)
    await arriving.aclose()
    assert index == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Preparing(MemoryPolicy):
    """Records where and how often it prepared; its episodes answer with the result."""

    def __init__(self, *, fails: bool = False) -> None:
        self.prepared: list[tuple[str, bool]] = []
        self.started = 0
        self._fails = fails

    def prepare(self, problem: Problem, codec: Any) -> list[str]:
        off_loop = threading.current_thread() is not threading.main_thread()
        self.prepared.append((problem.id, off_loop and not self.started))
        if self._fails:
            raise LookupError(f"{problem.id} has no beginning")
        return [problem.id]

    async def run(self, problem: Problem, model: Model) -> Answered:
        self.started += 1
        await model.generate([1], name="answer", max_tokens=8)
        return Answered(str(model.prepared))


def test_a_problem_is_prepared_once_per_group_off_the_loop_and_before_the_first_episode() -> None:
    policy = Preparing()
    result = groups(policy=policy)
    assert policy.prepared == [("a", True), ("b", True), ("a", True)]
    assert [{t.answer for t in group.trajectories} for group in result] == [{"['a']"}, {"['b']"}, {"['a']"}]
    for trajectory in (t for group in groups(policy=Preparing(fails=True)) for t in group.trajectories):
        assert trajectory.outcome is Outcome.POLICY_FAILED
        assert trajectory.events[0].detail["message"] == f"{trajectory.problem_id} has no beginning"


def test_episodes_of_a_variant_get_the_result_of_its_preparation() -> None:
    class Other(Preparing):
        def prepare(self, problem: Problem, codec: Any) -> list[str]:
            return ["other"]

    played = [t for group in groups(variant=Variant(Other(), 0.5, {})) for t in group.trajectories]
    answers = [t.answer == "['other']" for t in played]
    assert answers == [is_variant(t) for t in played]
    assert 0 < sum(answers) < 24


def test_the_document_is_encoded_once_per_group(tiny_codec: Codec) -> None:
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


class Criticised(MemoryPolicy):
    """Writes, is criticised by another role, answers after both."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        prompt = model.codec.encode(problem.question)
        for name, role in (("write", None), ("criticise", "critic"), ("answer", None)):
            completion = await model.generate(prompt, name=name, max_tokens=8, role=role)
            prompt = [*prompt, *completion.token_ids, *model.codec.encode("? ")]
        return Answered(model.codec.decode(completion.token_ids))


def test_a_role_with_a_sampler_is_sampled_there_with_the_same_seeds() -> None:
    critic, agent, shared = SeedSampler(), SeedSampler(), SeedSampler()
    both = groups(policy=Criticised(), sampler=agent, roles={"critic": Role(critic)})
    assert (len(critic.calls), len(agent.calls)) == (24, 48)
    assert groups(policy=Criticised(), sampler=shared, roles={"critic": Role()}) == both
    seeds = {params.seed for _, params in shared.calls}
    assert seeds == {params.seed for _, params in (*critic.calls, *agent.calls)}
    trajectory = both[0].trajectories[0]
    assert [(turn.role, turn.trained) for turn in trajectory.turns] == [(None, True), ("critic", False), (None, True)]
    (segment,) = segments_of(trajectory)
    assert {index for index in segment.turn_index if index >= 0} == {0, 2}


def test_a_role_has_its_own_temperature_and_at_most_its_own_budget() -> None:
    critic, agent = SeedSampler(), SeedSampler()
    groups(policy=Criticised(), sampler=agent, roles={"critic": Role(critic, temperature=0.25, max_tokens=5)})
    assert {(params.temperature, params.max_tokens) for _, params in critic.calls} == {(0.25, 5)}
    assert {(params.temperature, params.max_tokens) for _, params in agent.calls} == {(1.0, 8)}
    more = SeedSampler()
    groups(policy=Criticised(), sampler=agent, roles={"critic": Role(more, max_tokens=9)})
    assert {(params.temperature, params.max_tokens) for _, params in more.calls} == {(1.0, 8)}
