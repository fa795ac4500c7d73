"""Groups with chosen rewards and lengths, and their credit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import assign
from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn


def trajectory(*lengths: int, rollout: int = 0) -> Trajectory:
    """One segment for each length: prompts are unrelated, as with an agent that overwrites."""
    turns = [
        Turn((1000 * rollout + i, 1), Completion((7,) * n, (-1.0,) * n, StopReason.STOP), i, "read")
        for i, n in enumerate(lengths)
    ]
    return Trajectory("p", "g", rollout, tuple(turns), Outcome.ANSWERED)


def group(rewards: Sequence[float | None], lengths: Sequence[Sequence[int]] | None = None, name: str = "p") -> Group:
    """Trajectory i has reward `rewards[i]`, None for ungraded, and a segment for each of `lengths[i]`."""
    played = [trajectory(*one, rollout=i) for i, one in enumerate(lengths or [(1,)] * len(rewards))]
    return group_of([Grade(reward) for reward in rewards], *played, name=name)


def group_of(grades: Sequence[Grade], *trajectories: Trajectory, name: str = "p") -> Group:
    return Group(Problem(name, "?", ("a",)), trajectories, tuple(grades))


def trained(segment: TrainSegment) -> list[tuple[float, float]]:
    """Advantage and weight of each trained token."""
    return list(zip(segment.advantages, segment.weights, strict=True))


def state_mix(alpha: float, **options: Any) -> dict[str, Any]:
    """The fields of a `CreditConfig` that mixes rewards of turns in."""
    return {"adv_estimator": "state_mix", "options": {"alpha": alpha, **options}}


def only(batches: tuple[StepBatch, ...]) -> StepBatch:
    (batch,) = batches
    return batch


def one_batch(*groups: Group, key: tuple[int | str, ...] = (), **credit: Any) -> StepBatch:
    """The groups as one optimizer step; `credit` is fields of a `CreditConfig`."""
    return only(assign(groups, CreditConfig(**credit), 1, key))


def advantages(*groups: Group, **credit: Any) -> list[float]:
    """Advantages of the trained tokens, in order of trajectories and turns."""
    return [advantage for segment in one_batch(*groups, **credit).segments for advantage in segment.advantages]
