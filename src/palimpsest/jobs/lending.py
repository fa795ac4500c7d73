"""The agent that is served, and how another takes its place while episodes of the first still run.

Guaranteed: an episode ends with the agent it began with; an agent that was replaced is closed once its last episode
has ended; a checkpoint that can't be opened is told, and the agent before it goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol

from palimpsest.errors import PalimpsestError
from palimpsest.serve.agent.agents import Agent

EVERY_S = 5.0
"""Between two looks for a new checkpoint."""


class Closable(Agent, Protocol):
    """An agent that holds a model."""

    async def close(self) -> None: ...


class Lending:
    """The agent that new episodes begin with, and those that are still in use."""

    def __init__(self, agent: Closable) -> None:
        self.current = agent
        self._leases: Counter[int] = Counter()  # by identity

    def lease(self) -> Lease:
        """The current agent, from this call on until it is given back."""
        self._leases[id(self.current)] += 1
        return Lease(self, self.current)

    async def replace(self, agent: Closable) -> None:
        """Have new episodes begin with `agent`."""
        before, self.current = self.current, agent
        await self._close_unused(before)

    async def give_back(self, agent: Closable) -> None:
        self._leases[id(agent)] -= 1
        await self._close_unused(agent)

    async def _close_unused(self, agent: Closable) -> None:
        if agent is not self.current and not self._leases[id(agent)]:
            del self._leases[id(agent)]
            await agent.close()


class Lease:
    """An agent in use."""

    def __init__(self, lending: Lending, agent: Closable) -> None:
        self._lending, self._agent = lending, agent

    async def __aenter__(self) -> Agent:
        return self._agent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lending.give_back(self._agent)


async def follow(
    lending: Lending,
    newest: Callable[[], str | None],
    opened: Callable[[], Awaitable[Closable]],
    told: Callable[[str], None],
    *,
    seen: str | None,
    every_s: float = EVERY_S,
) -> None:
    """Serve what `opened` gives whenever `newest` names another than `seen`. Runs until it is cancelled."""
    while True:
        await asyncio.sleep(every_s)
        name = newest()
        if name is None or name == seen:
            continue
        seen = name
        try:
            agent = await opened()
        except (PalimpsestError, OSError) as error:  # damaged, or pruned meanwhile
            told(f"{name}: {error}; the checkpoint before it goes on")
            continue
        await lending.replace(agent)
        told(f"{name}: served from now on")
