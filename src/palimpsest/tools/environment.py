"""Environments: tasks that an agent acts in, step by step, until they are done.

    environment.name=my_module:MyEnvironment

    class MyEnvironment:                                 one object per episode; options go to the constructor
        def reset(self, problem): return "A hall. Exits: north."
        def step(self, action): return "A study. There is a coin.", 0.0, False     observation, reward, done

The policy sees `model.environment`, an `EpisodeEnvironment`: tool agents do (memory/parts/tool_agent.py), and a custom
policy may. Each step is an event with the action and its reward; `reward.name=environment` adds the rewards up. A step
may return a `Step` with `info`, numbers that become metrics: their last values, but of `invalid` the sum.

Guaranteed: plain methods run on threads, so none blocks the event loop; a resumed episode repeats its actions; steps of
several episodes run side by side, but end in the order in which they began, and the embedded sampler waits for them: a
run's bytes don't depend on how long steps take. An error, a result of another form and a time-out end the episode
ungraded, never with a zero.
Not covered: environments that answer the same actions differently; a method that never returns keeps its thread.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from numbers import Real
from typing import Any, NamedTuple

from palimpsest import plugins
from palimpsest.config.schema import EnvironmentConfig
from palimpsest.engines.protocol import Turns
from palimpsest.errors import ConfigError, raised_at
from palimpsest.events import EnvironmentStepped
from palimpsest.types import Problem

# ---- The contract --------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """The result of an action."""

    observation: str
    reward: float = 0.0
    done: bool = False
    info: Mapping[str, float] = {}
    """Metrics, such as `won` and `invalid`."""


class Environment(ABC):
    """One object per episode. A custom class need not inherit this; methods may be coroutines."""

    def admit(self, problem: Problem) -> None:  # noqa: B027  most environments accept every problem
        """Raise DataError at load for a problem that the environment lacks."""

    @abstractmethod
    def reset(self, problem: Problem) -> str:
        """Begin; returns the first observation."""

    @abstractmethod
    def step(self, action: str) -> Step | tuple[str, float, bool]:
        """Do `action`, a line of the model's reply. An invalid one is an observation too."""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """End, after the last step or before it."""


class EnvironmentLost(Exception):
    """An environment failed: the episode is ungraded."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class EnvironmentTimeout(EnvironmentLost):
    """An environment did not answer in time."""


# ---- An environment of an episode ----------------------------------------------------------------------------


@dataclass(slots=True)
class OpenEnvironment:
    """The environment of a run."""

    config: EnvironmentConfig
    turns: Turns = field(default_factory=Turns)
    """Shared with the samplers of this process."""

    def build(self) -> Environment:
        """A new object. Raises ConfigError."""
        if not isinstance(plugins.load("environment", self.config.name), type):
            message = "name a class: every episode gets a new object"
            raise ConfigError(message, key="environment.name", value=self.config.name)
        built: Environment = plugins.build("environment", self.config.name, self.config.options)
        return built

    def episode(self, record: Callable[[EnvironmentStepped], None]) -> EpisodeEnvironment:
        """For one episode; `record` gets each step."""
        return EpisodeEnvironment(self, record)


class EpisodeEnvironment:
    """An episode's environment: `model.environment` of a policy."""

    def __init__(self, opened: OpenEnvironment, record: Callable[[EnvironmentStepped], None]) -> None:
        self.done = False
        """True after the last step."""
        self._opened, self._record = opened, record
        self._built: Any = None

    async def reset(self, problem: Problem) -> str:
        """The first observation. Raises EnvironmentLost."""
        self._built = self._opened.build()
        observation = await self._call("reset", problem)
        if not isinstance(observation, str):
            raise EnvironmentLost(f"reset returned {type(observation).__name__}, not text")
        return observation

    async def step(self, action: str) -> Step:
        """The result of `action`, recorded as an event. Raises EnvironmentLost."""
        step = _checked(await self._call("step", action))
        self.done = step.done
        self._record(EnvironmentStepped(action[:400], float(step.reward), step.done, dict(step.info)))
        return step

    async def close(self) -> None:
        if self._built is not None:
            with suppress(EnvironmentLost):
                await self._call("close")

    async def _call(self, name: str, *arguments: Any) -> Any:
        method, limit = getattr(self._built, name), self._opened.config.timeout_s
        work: Awaitable[Any] = (
            method(*arguments) if iscoroutinefunction(method) else asyncio.to_thread(method, *arguments)
        )
        running = asyncio.ensure_future(asyncio.wait_for(work, limit))
        try:
            async with self._opened.turns.lock():
                return await running
        except TimeoutError:
            raise EnvironmentTimeout(f"{name} gave no answer within {limit:g} s") from None
        except Exception as error:
            raise EnvironmentLost(f"{name}: {type(error).__name__}: {error}", raised_at(error)) from error
        finally:
            running.cancel()


def _checked(made: Any) -> Step:
    """
    >>> _checked(("A hall.", 1, False)).reward
    1
    """
    if not isinstance(made, tuple) or not 3 <= len(made) <= 4:
        raise EnvironmentLost("step must return (observation, reward, done) or a Step")
    step = Step(*made)
    numbers = {"reward": step.reward, **step.info}
    if not isinstance(step.observation, str) or not isinstance(step.done, bool):
        raise EnvironmentLost("step must return (observation, reward, done): text, a number, true or false")
    if bad := next((name for name, value in numbers.items() if not _finite(value)), None):
        raise EnvironmentLost(f"step returned {bad}={numbers[bad]!r:.60}, which must be a finite number")
    return step


def _finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
