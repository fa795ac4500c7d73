"""Scripted episodes in an environment as SFT examples: the walkthrough of each problem, with random edits between.

`metadata.walkthrough` of a problem has the actions. Agents that edit or prune do so from a fill of the context drawn
per episode, and occasionally before, on random blocks. A note is one or two random lines that the prompt shows: the
examples teach the form of edits and commands, not which lines matter. A summary is such lines too.

Guaranteed: an example is a pure function of (seed, index), the policy, the problem and the environment. An environment
is asked once per problem and step of its walkthrough.
Not covered: commands that depend on luck; exploring, which a walkthrough lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from palimpsest.errors import ConfigError, DataError, RunError
from palimpsest.events import EnvironmentStepped
from palimpsest.memory.parts.tool_agent import Action, ToolAgentPolicy
from palimpsest.seeding import keyed_random
from palimpsest.text.codec import Codec
from palimpsest.text.tool_calls import calls_text
from palimpsest.tools.environment import EnvironmentLost, EpisodeEnvironment, OpenEnvironment, Step
from palimpsest.training.supervised.scripted_episodes import EARLY, Teacher
from palimpsest.types import Problem, Trajectory

MOST_LINES = 2
"""Lines of a note."""
FILL = (0.5, 0.8)
"""Range of the filled share of the context at which an example edits."""


@dataclass(frozen=True, slots=True)
class WalkthroughLessons:
    """Draws SFT examples for one policy, one codec and an environment."""

    policy: Any
    codec: Codec
    environment: OpenEnvironment
    problem: Callable[[int], Problem]
    """The problem of an example's number."""
    seed: int
    walks: dict[str, list[Any]] = field(default_factory=dict, repr=False, compare=False)
    """First observation and steps along each problem's walkthrough, as far as an example came."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a policy that does not act."""
        if not isinstance(self.policy, ToolAgentPolicy):
            name = type(self.policy).__name__
            raise ConfigError(
                f"{name} has no scripted episodes in an environment: set cold_start=null", key="cold_start"
            )

    def draw(self, index: int) -> Trajectory:
        """Raises DataError for a problem without a walkthrough, RunError for an environment that fails."""
        problem = self.problem(index)
        walker = Walker(self.codec, problem, self.policy, keyed_random(self.seed, "walkthrough", index))
        walker.environment = Retraced(self.environment, walker.event, self.walks.setdefault(problem.id, []))
        try:
            return walker.played(index)
        except EnvironmentLost as error:
            where = error.where and f" ({error.where})"
            raise RunError(f"cold_start: problem {problem.id}: the environment failed: {error}{where}") from error


class Retraced(EpisodeEnvironment):
    """An episode along a walkthrough. What another one saw there is not played again."""

    def __init__(self, opened: OpenEnvironment, record: Callable[[EnvironmentStepped], None], walk: list[Any]) -> None:
        super().__init__(opened, record)
        self._walk, self._before = walk, list[str]()

    async def reset(self, problem: Problem) -> str:
        self._problem = problem
        if not self._walk:
            self._walk.append(await super().reset(problem))
        first: str = self._walk[0]
        return first

    async def step(self, action: str) -> Step:
        at = len(self._before) + 1
        if at == len(self._walk):
            if self._built is None:
                await super().reset(self._problem)
                for earlier in self._before:
                    await self.act(earlier)
            self._walk.append(await self.act(action))
        self._before.append(action)
        return self.recorded(action, self._walk[at])


@dataclass
class Walker(Teacher):
    """The `memory.policy.Model` of one walkthrough."""

    environment: EpisodeEnvironment | None = None
    lines: dict[str, None] = field(default_factory=dict, init=False)
    """Lines of observations so far."""

    def begin(self) -> None:
        actions = self.problem.metadata.get("walkthrough")
        if not actions or not all(isinstance(action, str) for action in actions):
            raise DataError(
                f"problem {self.problem.id}: has no metadata.walkthrough, a list of actions, for cold_start"
            )
        self.actions: list[str] = list(actions)
        self.fill = self.rng.uniform(*FILL) * self.policy.context_tokens

    def _act(self, text: str, length: int) -> str:
        self.lines |= dict.fromkeys(
            line for name in self._in_sight(text, Action.name) for line in self._shown(name, text)
        )
        blocks, verbs, calls = self._in_sight(text, Action.name), self._verbs(), []
        if blocks and verbs and (length > self.fill or self.rng.random() < EARLY):
            calls = self._edit(self.rng.choice(verbs), blocks, text)
        self.kinds += [*(name for name, _ in calls), Action.name]
        action = self.actions.pop(0) if self.actions else "look"
        return "\n".join([calls_text(calls, self.policy.style(self.codec)), action] if calls else [action])

    def _shown(self, block: str, text: str) -> list[str]:
        """Lines of a block in the prompt."""
        body = text.split(self.policy.shown(block, ""), 1)[1].split("<|", 1)[0].split("\n\n", 1)[0]
        return [line.strip() for line in body.splitlines() if line.strip()]

    def _fact(self, result: str, text: str) -> str | None:
        lines = self._shown(result, text)
        return f" {self.rng.choice(lines)}" if lines else None

    def _memory(self, text: str) -> str:
        there = [line for line in self.lines if line in text] or [self.problem.question]
        chosen = self.rng.sample(there, min(len(there), self.rng.randint(1, MOST_LINES)))
        return "".join(f" {line}" for line in chosen)

    def _summary(self, text: str) -> str:
        return self._memory(text)
