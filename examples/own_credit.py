"""A credit rule: against the group's median, and only for the last turns, which are nearest to the answer.

palimpsest check examples.own_credit:MedianRule
palimpsest train memagent-quickstart credit.adv_estimator=examples.own_credit:MedianRule credit.options.decay=0.8
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from palimpsest.types import Group


@dataclass(frozen=True, slots=True)
class MedianRule:
    """A_i,t = (R_i - median(R)) * decay ** (turns after t)"""

    decay: float = 0.9

    def turn_advantages(self, group: Group) -> list[list[float]]:
        """[trajectories][turns] advantages of a group with only graded trajectories."""
        rewards = [grade.value or 0.0 for grade in group.grades]
        middle = median(rewards)
        return [
            [(reward - middle) * self.decay**after for after in reversed(range(len(trajectory.turns)))]
            for reward, trajectory in zip(rewards, group.trajectories, strict=True)
        ]
