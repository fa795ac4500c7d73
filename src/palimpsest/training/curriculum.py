"""Curriculum: problems grow, stage by stage, once the mean reward of the last steps reaches `advance_at`.

A stage is a number of chunks per document (`data.curriculum.chunks`). The training loop passes the rewards of batches
that started in the current stage; those collected ahead in an earlier one count for none. Checkpoints contain the
state, so a resumed run continues in its stage.
Not covered: a return to an earlier stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from palimpsest.config.data import CurriculumConfig

_CURRICULUM_STEPS = 2
"""Consecutive steps whose mean reward decides."""


class Curriculum:
    """The current stage, and the mean rewards of its last steps.

    >>> sizes = Curriculum(CurriculumConfig(chunks=(1, 2), advance_at=0.8))
    >>> [sizes.update(reward) for reward in (0.9, 0.6, 1.0)], sizes.size
    ([False, False, True], 2)
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self._config = config
        self.stage = 0
        self._rewards: list[float] = []

    @property
    def size(self) -> int:
        """Chunks per document in the current stage."""
        return self.size_at(self.stage)

    def size_at(self, stage: int) -> int:
        return self._config.chunks[stage]

    def update(self, reward: float | None) -> bool:
        """Add one step's mean reward (None: nothing graded); True if the problems grow now."""
        if reward is None:
            return False
        self._rewards = [*self._rewards, reward][-_CURRICULUM_STEPS:]
        full = len(self._rewards) == _CURRICULUM_STEPS
        last = self.stage == len(self._config.chunks) - 1
        if last or not full or fmean(self._rewards) < self._config.advance_at:
            return False
        self.stage += 1
        self._rewards = []
        return True

    def state(self) -> dict[str, Any]:
        return {"stage": self.stage, "rewards": list(self._rewards)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.stage = state["stage"]
        self._rewards = list(state["rewards"])
