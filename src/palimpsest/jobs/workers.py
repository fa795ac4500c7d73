"""The worker processes of a quickstart, and what they tell of their progress."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from palimpsest.jobs.pool import Task, WorkerPool
from palimpsest.jobs.shards import Shard, play_shard
from palimpsest.progress.progress import Progress, Tick


class Workers:
    """The worker processes of a quickstart, and the shards that are played."""

    def __init__(self, pool: WorkerPool, progress: Progress) -> None:
        self.shards: list[Shard] = []
        self.playing: list[Future[None]] = []
        self.progress = progress
        self.played = 0
        """Turns, here and in the workers."""
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._tick: Tick | None = None

    def begin(self, task: Task) -> Future[None]:
        """Train a rival in the next free process."""
        return self._pool.submit(task, self)

    def play(self, shard: Shard) -> Future[None]:
        """Play a shard in the next free process."""
        self.shards.append(shard)
        self.playing.append(self._pool.submit(shard, self))
        return self.playing[-1]

    async def play_here(self, shard: Shard) -> None:
        """Play a shard in this process."""
        self.shards.append(shard)
        await play_shard(shard, self)

    def part(self, count: int = 1) -> None:
        """Turns were played, here or in a worker."""
        self._loop.call_soon_threadsafe(self._count, count)

    def message(self, text: str) -> None:
        """A worker has something to say."""
        self._loop.call_soon_threadsafe(self.progress.message, text)

    def show(self, tick: Tick) -> None:
        """Count turns on `tick` from now on."""
        self._tick = tick

    def _count(self, count: int) -> None:
        self.played += count
        if self._tick is not None:
            self._tick(count)
