"""New weights are taken between episodes."""

from __future__ import annotations

import asyncio
from typing import Any

from palimpsest.app.agent.serve_agent import Lending, follow
from palimpsest.errors import CheckpointError


class Fake:
    def __init__(self, name: str) -> None:
        self.name, self.closed = name, 0

    async def close(self) -> None:
        self.closed += 1


async def test_an_agent_is_closed_once_its_last_episode_has_ended() -> None:
    first, second = Fake("1"), Fake("2")
    lending: Any = Lending(first)
    one, two = lending.lease(), lending.lease()
    async with one as agent:
        assert agent is first
        await lending.replace(second)
        async with lending.lease() as later:
            assert later is second
        assert (first.closed, second.closed) == (0, 0)
    assert first.closed == 0
    async with two as agent:
        assert agent is first
    assert (first.closed, second.closed) == (1, 0)


async def test_an_agent_in_no_use_is_closed_at_once() -> None:
    first = Fake("1")
    lending: Any = Lending(first)
    async with lending.lease():
        pass
    assert first.closed == 0
    await lending.replace(Fake("2"))
    assert first.closed == 1


async def test_new_checkpoints_are_taken_and_damaged_ones_told() -> None:
    names, told = ["step-1"], list[str]()
    lending: Any = Lending(Fake("step-1"))

    async def opened() -> Fake:
        if names[-1] == "step-2":
            raise CheckpointError("damaged")
        return Fake(names[-1])

    task = asyncio.create_task(follow(lending, lambda: names[-1], opened, told.append, seen="step-1", every_s=0.001))
    for name in ("step-2", "step-3"):
        names.append(name)
        while not any(line.startswith(name) for line in told):
            await asyncio.sleep(0.001)
    task.cancel()
    assert told == ["step-2: damaged; the checkpoint before it goes on", "step-3: served from now on"]
    assert lending.current.name == "step-3"
