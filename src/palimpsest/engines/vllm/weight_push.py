"""New weights on their way to servers without a file: `sampler.publish=nccl` and `ipc`.

    nccl    every worker of every server joins one group with the learner, which broadcasts each weight once to all
    ipc     one server on the learner's GPU copies from the learner's memory

The learner's end is its engine's (engines/embedded/weight_transfer.py); here servers are asked what the two have to
agree on.

Guaranteed: where one of those that take part fails, the others don't wait for it.
Not covered: a server that says it has the weights and hasn't; the pool scores it (client.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from palimpsest.engines.protocol import WeightsDescription
from palimpsest.engines.vllm.client import Client, ServerFailed
from palimpsest.errors import GOES_ON, EngineError, ProcessesLost, SamplerError

_GRACE_S = 2.0  # for a server to say that it failed, where the learner did


class Broadcasts(Protocol):
    """A learner that sends by NCCL."""

    async def describe(self) -> WeightsDescription: ...

    async def invite(self) -> str:
        """An id by which peers meet."""
        ...

    async def join(self, invitation: str, size: int) -> None:
        """Be the first of a group of `size`; returns once all are there."""
        ...

    async def send(self) -> None:
        """Broadcast every weight in the order of the description."""
        ...

    async def abort(self, reason: str) -> None:
        """Leave the group, whatever `join` and `send` wait for; `reason`: why."""
        ...

    async def part(self) -> None:
        """Leave the group, over which nothing is on its way."""
        ...


class Exposes(Protocol):
    """A learner whose GPU a server shares."""

    async def describe(self) -> WeightsDescription: ...

    async def expose(self) -> str:
        """Handles of all weights in the order of the description, pickled, in base64."""
        ...

    async def release(self) -> None:
        """The handles are used no more."""
        ...


class Transfer(Protocol):
    """One way."""

    async def describe(self) -> WeightsDescription:
        """What the learner sends."""
        ...

    async def meet(self, clients: Sequence[Client], limit_s: float) -> None:
        """Have servers that are paused be ready for `carry`. Raises SamplerError, and EngineError where the learner
        can't go on."""
        ...

    async def carry(self, clients: Sequence[Client]) -> None:
        """Have servers that have met take the learner's present weights. Raises SamplerError, EngineError."""
        ...

    async def close(self) -> None:
        """Part from the servers; a second call does nothing."""
        ...


class OverNccl:
    """The group is made anew where other servers are there than the last time."""

    def __init__(self, learner: Broadcasts, workers: int) -> None:
        """`workers` of each server."""
        self._learner, self._workers = learner, workers
        self._joined: tuple[Client, ...] = ()
        self.describe = learner.describe

    async def meet(self, clients: Sequence[Client], limit_s: float) -> None:
        """See `Transfer.meet`. A learner that waits for a peer in vain does so for ever, and its GPU may with it."""
        if tuple(clients) == self._joined:
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._join(clients)
        except (ServerFailed, TimeoutError) as error:
            told = str(error) or f"not within {limit_s:g} s; raise sampler.publish_timeout_s"
            raise ProcessesLost(f"sampler.publish: servers and learner did not meet ({told}); {GOES_ON}") from None
        except SamplerError as error:
            told = f"sampler.publish: servers refuse to meet the learner ({error}); set sampler.publish=safetensors"
            raise EngineError(told) from None

    async def carry(self, clients: Sequence[Client]) -> None:
        """See `Transfer.carry`."""
        told = payload(await self.describe())
        await asyncio.gather(*(client.start_update() for client in clients))
        await self._together(self._learner.send(), *(client.update(told) for client in clients))
        await asyncio.gather(*(client.finish_update() for client in clients))

    async def close(self) -> None:
        """See `Transfer.close`."""
        joined, self._joined = self._joined, ()
        if joined:
            await self._learner.part()

    async def _join(self, clients: Sequence[Client]) -> None:
        former, self._joined = self._joined, ()
        await asyncio.gather(*(client.part() for client in clients if client in former))
        invitation, size = await self._learner.invite(), 1 + self._workers * len(clients)
        group = {"nccl_unique_id_b64": invitation, "world_size": size, "packed": False}
        joining = [client.join(group | {"rank_offset": 1 + self._workers * n}) for n, client in enumerate(clients)]
        await self._together(self._learner.join(invitation, size), *joining)
        self._joined = tuple(clients)

    async def _together(self, learner: Awaitable[None], *servers: Awaitable[None]) -> None:
        """Wait for parts that wait for each other; where one fails, none can end, and the group is lost."""
        tasks = [asyncio.ensure_future(part) for part in (learner, *servers)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if tasks[0].done() and tasks[0].exception() is not None:
                await asyncio.wait(tasks, timeout=_GRACE_S)  # a server that is gone may show at the learner first
            for task in reversed(tasks):
                if task.done():
                    task.result()
        except BaseException as error:
            self._joined = ()
            for task in tasks:
                task.cancel()
            await self._learner.abort(str(error) or "no answer in time")
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


class OverIpc:
    """To one server."""

    def __init__(self, learner: Exposes) -> None:
        self._learner = learner
        self._joined: Client | None = None
        self.describe = learner.describe

    async def meet(self, clients: Sequence[Client], limit_s: float) -> None:
        """See `Transfer.meet`."""
        (client,) = clients
        if client is self._joined:
            return
        try:
            async with asyncio.timeout(limit_s):
                await client.join({"packed": False})
        except TimeoutError:
            raise SamplerError(
                f"{client.name}: not ready for weights within {limit_s:g} s; raise sampler.publish_timeout_s"
            ) from None
        self._joined = client

    async def carry(self, clients: Sequence[Client]) -> None:
        """See `Transfer.carry`."""
        (client,) = clients
        told = payload(await self.describe())
        await client.start_update()
        try:
            await client.update(told | {"ipc_handles_pickled": await self._learner.expose()})
            await client.finish_update()  # which may still copy from what is exposed
        finally:
            await self._learner.release()

    async def close(self) -> None:
        """Nothing is kept between two versions."""


def payload(described: WeightsDescription) -> dict[str, Any]:
    """As vLLM has it.

    >>> payload(WeightsDescription(("norm.weight",), ("float32",), ((8,),)))
    {'names': ['norm.weight'], 'dtype_names': ['float32'], 'shapes': [[8]]}
    """
    shapes = [list(shape) for shape in described.shapes]
    return {"names": list(described.names), "dtype_names": list(described.dtypes), "shapes": shapes}
