"""Problems that grow as the agent learns: the stage of a curriculum, carried in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from palimpsest.config.data import CurriculumConfig


class Curriculum:
    """The present stage, and the mean rewards of the last steps spent at it.

    >>> sizes = Curriculum(CurriculumConfig(chunks=(1, 2), advance_at=0.8, window=2))
    >>> [sizes.update(reward) for reward in (0.9, 0.6, 1.0)], sizes.size, sizes.unit
    ([False, False, True], 2, 'chunks')
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self._config = config
        self.stage = 0
        self._rewards: list[float] = []

    @property
    def size(self) -> int:
        """Of the problems drawn now, in `unit`."""
        return self.size_at(self.stage)

    def size_at(self, stage: int) -> int:
        """Of a stage's problems."""
        return self._config.sizes[stage]

    @property
    def unit(self) -> str:
        """chunks of documents, or objectives of search problems."""
        return self._config.unit

    def update(self, reward: float | None) -> bool:
        """Take in one step's mean reward, None if nothing was graded; True if the problems grow from here on."""
        if reward is None:
            return False
        self._rewards = [*self._rewards, reward][-self._config.window :]
        full = len(self._rewards) == self._config.window
        last = self.stage == len(self._config.sizes) - 1
        if last or not full or fmean(self._rewards) < self._config.advance_at:
            return False
        self.stage += 1
        self._rewards = []
        return True

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"stage": self.stage, "rewards": list(self._rewards)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state from a checkpoint."""
        self.stage = state["stage"]
        self._rewards = list(state["rewards"])
