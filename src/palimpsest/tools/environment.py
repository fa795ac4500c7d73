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
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

import numpy as np

from palimpsest import plugins
from palimpsest.config.schema import EnvironmentConfig
from palimpsest.engines.protocol import Turns
from palimpsest.errors import ConfigError, being_cancelled, raised_at
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
    """One object per episode. A custom class need not inherit this; `reset`, `step` and `close` may be coroutines."""

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


# ---- An environment of an episode ----------------------------------------------------------------------------


_LOADING = threading.Lock()


@dataclass(slots=True)
class OpenEnvironment:
    """The environment of a run."""

    config: EnvironmentConfig
    turns: Turns = field(default_factory=Turns)
    """Shared with the samplers of this process."""

    def build(self) -> Environment:
        """A new object. Raises ConfigError."""
        with _LOADING:  # a module that another thread imports is incomplete
            loaded = plugins.load("environment", self.config.name)
        if not isinstance(loaded, type):
            message = "name a class: every episode gets a new object"
            raise ConfigError(message, key="environment.name", value=self.config.name)
        built: Environment = plugins.build("environment", self.config.name, self.config.options)
        return built

    @contextmanager
    def built(self) -> Iterator[Environment]:
        """A new object to ask before any episode. Raises ConfigError."""
        environment = self.build()
        try:
            if iscoroutinefunction(environment.admit):
                raise ConfigError("admit must be a plain method", key="environment.name", value=self.config.name)
            yield environment
        finally:
            if not iscoroutinefunction(environment.close):
                environment.close()

    def check(self) -> None:
        """Raise ConfigError unless an object can be made."""
        with self.built():
            pass

    def episode(self, record: Callable[[EnvironmentStepped], None]) -> EpisodeEnvironment:
        """For one episode; `record` gets each step."""
        return EpisodeEnvironment(self, record)


Made = tuple[Any, BaseException | None]
"""The result of a method, or its error."""


class EpisodeEnvironment:
    """An episode's environment: `model.environment` of a policy."""

    def __init__(self, opened: OpenEnvironment, record: Callable[[EnvironmentStepped], None]) -> None:
        self.done = False
        """True after the last step."""
        self._opened, self._record = opened, record
        self._built: Any = None

    async def reset(self, problem: Problem) -> str:
        """The first observation, of a new object. Raises EnvironmentLost."""
        await self.close()
        self.done = False
        self._built = await self._call(self._opened.build)
        observation = await self._call(self._built.reset, problem)
        if not isinstance(observation, str):
            raise EnvironmentLost(f"reset returned {type(observation).__name__}, not text")
        return observation

    async def step(self, action: str) -> Step:
        """The result of `action`, recorded as an event. Raises EnvironmentLost."""
        return self.recorded(action, await self.act(action))

    async def act(self, action: str) -> Step:
        """The result of `action`, not yet recorded. Raises EnvironmentLost."""
        if self._built is None:
            raise RuntimeError("call environment.reset(problem) before environment.step")
        return _checked(await self._call(self._built.step, action))

    def recorded(self, action: str, step: Step) -> Step:
        """`step`, the result of `action`, after its event."""
        self.done = step.done
        self._record(EnvironmentStepped(action[:400], step.reward, step.done, step.info))
        return step

    async def close(self) -> None:
        built, self._built = self._built, None
        if built is not None:
            with suppress(EnvironmentLost):
                await self._call(built.close)

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        running = asyncio.ensure_future(self._made(method, arguments))
        try:
            async with self._opened.turns.lock():
                made, error = await running
        finally:
            running.cancel()
        if isinstance(error, EnvironmentLost):
            raise error
        if error is not None:
            raise EnvironmentLost(f"{method.__name__}: {plugins.error_text(error)}", raised_at(error)) from error
        return made

    async def _made(self, method: Callable[..., Any], arguments: Sequence[Any]) -> Made:
        """The result of a method, on a thread unless it is a coroutine, within the limit."""
        timeout_s = self._opened.config.timeout_s
        limit = asyncio.timeout(timeout_s)
        call = _awaited if iscoroutinefunction(method) else _threaded
        try:
            async with limit:
                return await call(method, arguments)
        except TimeoutError:
            return None, EnvironmentLost(f"{method.__name__} gave no answer within {timeout_s:g} s")


async def _awaited(method: Callable[..., Awaitable[Any]], arguments: Sequence[Any]) -> Made:
    try:
        return await method(*arguments), None
    except asyncio.CancelledError as error:
        if being_cancelled():
            raise
        return None, error
    except BaseException as error:  # noqa: BLE001  user code raises anything
        return None, error


async def _threaded(method: Callable[..., Any], arguments: Sequence[Any]) -> Made:
    """On a thread of this call: one that never returns delays no other call, and not the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Made] = loop.create_future()

    def deliver(made: Made) -> None:
        if not future.done():
            future.set_result(made)

    def run() -> None:
        made: Made
        try:
            made = method(*arguments), None
        except BaseException as error:  # noqa: BLE001  user code raises anything
            made = None, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(deliver, made)

    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    return await future


def _checked(made: Any) -> Step:
    """
    >>> _checked(("A hall.", 1, False))
    Step(observation='A hall.', reward=1.0, done=False, info={})
    """
    if not isinstance(made, tuple) or not 3 <= len(made) <= 4:
        raise EnvironmentLost("step must return (observation, reward, done) or a Step")
    step = Step(*made)
    if not isinstance(step.observation, str) or not isinstance(step.done, bool | np.bool_):
        got = ", ".join(type(part).__name__ for part in made[:3])
        raise EnvironmentLost(f"step must return (observation, reward, done): str, a number, bool; it returned {got}")
    info: Any = {} if step.info is None else step.info
    if not isinstance(info, Mapping) or not all(isinstance(name, str) for name in info):
        raise EnvironmentLost("step returned an info that is no mapping of names to numbers")
    return Step(
        str(step.observation),
        _number("reward", step.reward),
        bool(step.done),
        {str(name): _number(name, value) for name, value in info.items()},
    )


def _number(name: str, value: Any) -> float:
    if not plugins.finite(value):
        raise EnvironmentLost(f"step returned {name}={value!r:.60}, which must be a finite number")
    return float(value)
