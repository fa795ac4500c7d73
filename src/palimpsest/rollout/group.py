"""All episodes of a rollout batch, at once: G per problem, graded as they end.

Guaranteed: a group is handed over as soon as its last episode is graded, with its place among the problems, and `batch`
puts them back in order, trajectories in rollout order, whatever finished first; what a group holds depends neither on
that order nor on the other groups; a problem that occurs twice in a batch is played with draws of its own each time;
what a policy prepares of a problem (`MemoryPolicy.prepare`) is prepared once a group, beside the event loop, and for
all problems before the first episode begins, so that no episode's beginning depends on a clock; while a grade is
awaited (a judge), the other episodes go on; a consumer that stops early leaves no episode running.
Not covered: a bound on the number of episodes in flight. The sampler queues what it has no slot for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.engines.protocol import Sampler
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.reward.grading import Grades, graded
from palimpsest.rollout.episode import play
from palimpsest.rollout.roles import Roles
from palimpsest.rollout.variant import Variant
from palimpsest.seeding import Key
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group, Problem, Trajectory

OnEpisode = Callable[[Trajectory, Grade], None]
Preparations = tuple[Callable[[], Any], ...]
"""What came of the policy's `prepare` and of the variant's: each hands it over, or raises what was raised."""


@dataclass(frozen=True, slots=True)
class Player:
    """Plays groups of `group_size` episodes a problem; it holds what all batches of a run have in common."""

    policy: MemoryPolicy
    sampler: Sampler
    codec: Codec
    sampling: SamplingConfig
    grader: Grades
    group_size: int
    timeout_s: float | None = None
    """Of one episode."""
    retries: int = 2
    """Of one request to the sampler."""
    variant: Variant | None = None
    """Plays its share of the episodes in the policy's place."""
    roles: Roles = field(default_factory=dict)
    """That turns may have."""

    async def groups(
        self,
        problems: Sequence[Problem],
        *,
        key: tuple[Key, ...],
        group_prefix: str = "",
        on_episode: OnEpisode | None = None,
    ) -> AsyncGenerator[tuple[int, Group], None]:
        """(place in `problems`, group) of every problem, in the order in which groups become whole.

        The draws of a turn are keyed by `key`, the problem, the rollout and the turn. `group_prefix` goes before the
        problem's id in each group id, to keep groups of several batches apart. `on_episode` is called after each
        episode, in the order in which they end.
        """
        prepared = await asyncio.to_thread(self._prepare, problems)
        running = {}
        for place, (problem, occurrence) in enumerate(_occurrences(problems)):
            group_id = group_prefix + problem.id + (f"#{occurrence}" if occurrence else "")
            draws = (*key, "occurrence", occurrence) if occurrence else key
            running[asyncio.create_task(self._group(problem, prepared[place], group_id, draws, on_episode))] = place
        try:
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=running.__getitem__):
                    place = running.pop(task)
                    yield place, task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def batch(
        self,
        problems: Sequence[Problem],
        *,
        key: tuple[Key, ...],
        group_prefix: str = "",
        on_episode: OnEpisode | None = None,
    ) -> list[Group]:
        """The same groups, all at once, in the order of `problems`."""
        arriving = self.groups(problems, key=key, group_prefix=group_prefix, on_episode=on_episode)
        async with aclosing(arriving):
            groups = {place: group async for place, group in arriving}
        return [groups[place] for place in range(len(problems))]

    def _prepare(self, problems: Sequence[Problem]) -> list[Preparations]:
        """For each problem, what the policy prepares and what the variant's does."""
        policies = [self.policy, *([self.variant.policy] if self.variant else ())]
        return [tuple(_attempt(policy, problem, self.codec) for policy in policies) for problem in problems]

    async def _group(
        self,
        problem: Problem,
        prepared: Preparations,
        group_id: str,
        key: tuple[Key, ...],
        on_episode: OnEpisode | None,
    ) -> Group:
        async def episode(rollout: int) -> tuple[Trajectory, Grade]:
            trajectory = await self._episode(problem, prepared, group_id, key, rollout)
            grade = await graded(self.grader, problem, trajectory)
            if on_episode is not None:
                on_episode(trajectory, grade)
            return trajectory, grade

        try:
            async with asyncio.TaskGroup() as running:
                tasks = [running.create_task(episode(rollout)) for rollout in range(self.group_size)]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the others were cancelled because of it
        played = [task.result() for task in tasks]
        return Group(problem, tuple(trajectory for trajectory, _ in played), tuple(grade for _, grade in played))

    async def _episode(
        self, problem: Problem, prepared: Preparations, group_id: str, key: tuple[Key, ...], rollout: int
    ) -> Trajectory:
        variant = self.variant if self.variant and self.variant.plays(*key, problem.id, rollout) else None
        trajectory = await play(
            problem,
            policy=variant.policy if variant else self.policy,
            sampler=self.sampler,
            codec=self.codec,
            sampling=self.sampling,
            key=key,
            group_id=group_id,
            rollout=rollout,
            timeout_s=self.timeout_s,
            retries=self.retries,
            roles=self.roles,
            prepare=prepared[1 if variant else 0],
        )
        return variant.marked(trajectory) if variant else trajectory


def _attempt(policy: MemoryPolicy, problem: Problem, codec: Codec) -> Callable[[], Any]:
    attempt: Future[Any] = Future()
    try:
        attempt.set_result(policy.prepare(problem, codec))
    except Exception as error:  # noqa: BLE001  the policy's own code: the episodes tell of it
        attempt.set_exception(error)
    return attempt.result


def _occurrences(problems: Sequence[Problem]) -> list[tuple[Problem, int]]:
    """Each problem with the number of times its id stood earlier in the list."""
    seen: Counter[str] = Counter()
    result = []
    for problem in problems:
        result.append((problem, seen[problem.id]))
        seen[problem.id] += 1
    return result
