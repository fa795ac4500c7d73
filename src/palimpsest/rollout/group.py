"""Rollout batch: all episodes of several problems concurrently, G per problem, graded as they end.

Guaranteed: a group is yielded as soon as its last episode is graded, with its index among the problems; `batch`
restores the order of problems and rollouts. A group depends neither on that order nor on other groups; a problem that
occurs twice in a batch gets separate draws. `MemoryPolicy.prepare` runs once per group, off the event loop, and for all
problems before the first episode starts. While a grade is awaited (a judge), the other episodes continue. A consumer
that stops early leaves no episode running. Some training episodes have other policy options (variant.py).
Not covered: a bound on the number of episodes in flight, since the sampler queues requests.
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
from palimpsest.errors import deciding
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.reward.grading import Grades, graded
from palimpsest.rollout.episode import Roles, play
from palimpsest.rollout.speculation import Speculation
from palimpsest.rollout.variant import Variant
from palimpsest.seeding import Key
from palimpsest.text.codec import Codec
from palimpsest.tools.environment import OpenEnvironment
from palimpsest.types import Grade, Group, Problem, Trajectory

OnEpisode = Callable[[Trajectory, Grade], None]
Preparations = tuple[Callable[[], Any], ...]
"""Results of the policy's and the variant's `prepare`: each callable returns the result or raises its exception."""


@dataclass(frozen=True, slots=True)
class Player:
    """Runs groups of `group_size` episodes per problem; contains the state shared by all batches of a run."""

    policy: MemoryPolicy
    sampler: Sampler
    codec: Codec
    sampling: SamplingConfig
    grader: Grades
    group_size: int
    timeout_s: float | None = None
    """Limit of one episode."""
    retries: int = 2
    """Retries per request to the sampler."""
    variant: Variant | None = None
    """Replaces the policy in its share of the episodes."""
    roles: Roles = field(default_factory=dict)
    speculation: Speculation | None = None
    environment: OpenEnvironment | None = None

    async def groups(
        self,
        problems: Sequence[Problem],
        *,
        key: tuple[Key, ...],
        group_prefix: str = "",
        on_episode: OnEpisode | None = None,
    ) -> AsyncGenerator[tuple[int, Group], None]:
        """(index in `problems`, group) of every problem, in the order of completion.

        The draws of a turn are keyed by `key`, the problem, the rollout and the turn. `group_prefix` precedes the
        problem's id in each group id, to separate groups of several batches. `on_episode` is called after each
        episode, in the order in which they end.
        """
        prepared = await asyncio.to_thread(self._prepare, problems)
        running = {}
        for index, (problem, occurrence) in enumerate(_occurrences(problems)):
            group_id = group_prefix + problem.id + (f"#{occurrence}" if occurrence else "")
            draws = (*key, "occurrence", occurrence) if occurrence else key
            running[asyncio.create_task(self._group(problem, prepared[index], group_id, draws, on_episode))] = index
        try:
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=running.__getitem__):
                    index = running.pop(task)
                    yield index, task.result()
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
        """The same groups as a list, in the order of `problems`."""
        arriving = self.groups(problems, key=key, group_prefix=group_prefix, on_episode=on_episode)
        async with aclosing(arriving):
            groups = {index: group async for index, group in arriving}
        return [groups[index] for index in range(len(problems))]

    def _prepare(self, problems: Sequence[Problem]) -> list[Preparations]:
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
            error = deciding(failures)
            raise error from error.__cause__  # the others were cancelled because of it
        played = [task.result() for task in tasks]
        return Group(problem, tuple(trajectory for trajectory, _ in played), tuple(grade for _, grade in played), key)

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
            speculation=self.speculation,
            environment=self.environment,
            prepare=prepared[1 if variant else 0],
        )
        return variant.marked(trajectory) if variant else trajectory


def _attempt(policy: MemoryPolicy, problem: Problem, codec: Codec) -> Callable[[], Any]:
    attempt: Future[Any] = Future()
    try:
        attempt.set_result(policy.prepare(problem, codec))
    except Exception as error:  # noqa: BLE001  policy code may raise anything: the episodes report it
        attempt.set_exception(error)
    return attempt.result


def _occurrences(problems: Sequence[Problem]) -> list[tuple[Problem, int]]:
    counts: Counter[str] = Counter()
    result = []
    for problem in problems:
        result.append((problem, counts[problem.id]))
        counts[problem.id] += 1
    return result
