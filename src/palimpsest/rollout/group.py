"""All episodes of a rollout batch, at once: G per problem, graded as they end.

Guaranteed: groups come back in the order of `problems`, trajectories in rollout order, whatever finished first; a
problem that occurs twice in a batch is played with draws of its own each time; while a grade is awaited (a judge), the
other episodes go on.
Not covered: a bound on the number of episodes in flight. The sampler queues what it has no slot for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from palimpsest.config.schema import SamplingConfig
from palimpsest.engines.protocol import Sampler
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.reward.grading import Grades, graded
from palimpsest.rollout.episode import play
from palimpsest.rollout.variant import Variant
from palimpsest.seeding import Key
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group, Problem, Trajectory

OnEpisode = Callable[[Trajectory, Grade], None]


async def play_groups(
    problems: Sequence[Problem],
    *,
    group_size: int,
    policy: MemoryPolicy,
    sampler: Sampler,
    codec: Codec,
    sampling: SamplingConfig,
    grader: Grades,
    key: tuple[Key, ...],
    group_prefix: str = "",
    timeout_s: float | None = None,
    retries: int = 2,
    on_episode: OnEpisode | None = None,
    variant: Variant | None = None,
) -> list[Group]:
    """Play `group_size` episodes of every problem and grade them.

    `group_prefix` goes before the problem's id in each group id, to keep groups of several batches apart.
    `on_episode` is called after each episode, in the order in which they end. `variant` plays its share of the
    episodes in the policy's place.
    """

    async def episode(problem: Problem, occurrence: int, rollout: int) -> tuple[Trajectory, Grade]:
        again = ("occurrence", occurrence) if occurrence else ()
        other = variant if variant and variant.plays(*key, *again, problem.id, rollout) else None
        trajectory = await play(
            problem,
            policy=other.policy if other else policy,
            sampler=sampler,
            codec=codec,
            sampling=sampling,
            key=(*key, *again),
            group_id=group_prefix + problem.id + (f"#{occurrence}" if occurrence else ""),
            rollout=rollout,
            timeout_s=timeout_s,
            retries=retries,
        )
        trajectory = other.marked(trajectory) if other else trajectory
        grade = await graded(grader, problem, trajectory)
        if on_episode is not None:
            on_episode(trajectory, grade)
        return trajectory, grade

    tasks: list[list[asyncio.Task[tuple[Trajectory, Grade]]]] = []
    try:
        async with asyncio.TaskGroup() as running:
            for problem, occurrence in _occurrences(problems):
                tasks.append([running.create_task(episode(problem, occurrence, g)) for g in range(group_size)])
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the others were cancelled because of it
    return [_group(problem, [task.result() for task in row]) for problem, row in zip(problems, tasks, strict=True)]


def _group(problem: Problem, episodes: Sequence[tuple[Trajectory, Grade]]) -> Group:
    return Group(problem, tuple(t for t, _ in episodes), tuple(g for _, g in episodes))


def _occurrences(problems: Sequence[Problem]) -> list[tuple[Problem, int]]:
    """Each problem with the number of times its id stood earlier in the list."""
    seen: Counter[str] = Counter()
    result = []
    for problem in problems:
        result.append((problem, seen[problem.id]))
        seen[problem.id] += 1
    return result
