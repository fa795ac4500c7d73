"""Rewards of gate decisions, turn by turn, for an agent with an update gate and an exit gate (memory/gated.py).

GRU-Mem (arXiv 2602.10560) rewards "correct updating and exiting" per turn beside the outcome. Its formulas were not at
hand; ours take what the data names as evidence. For the section c_t of a reading turn:

    update   1 if the gate is open and c_t holds a piece of evidence, or shut and it holds none; else 0
    exit     1 if it ends where sections 1..t hold all evidence, or goes on where they don't; else 0
    format   1 if the reply could be read, else 0
    state    the sum, each times its weight; any other turn gets the format point alone

Guaranteed: one number a turn. A problem without `metadata["evidence"]` gives format alone.
Not covered: evidence cut in two by a chunk's end (`chunk_boundary: line` avoids it); evidence in other words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from palimpsest.config.reward import GateRewardConfig
from palimpsest.measures.texts import Texts
from palimpsest.measures.trace import Reading, readings
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Problem, Trajectory


@dataclass(frozen=True, slots=True)
class GateReward:
    """The parts of a turn's reward, unweighted."""

    update: float = 0.0
    exit: float = 0.0
    format: float = 1.0

    def total(self, config: GateRewardConfig) -> float:
        """The weighted sum."""
        return self.update * config.update + self.exit * config.exit + self.format * config.format


def gate_rewards(problem: Problem, trajectory: Trajectory, codec: Codec) -> tuple[GateReward, ...]:
    """[turns] the reward of each turn."""
    evidence = [_flat(str(text)) for text in problem.metadata.get("evidence", ())]
    missing = set(evidence)
    rewards: dict[int, GateReward] = {}
    for reading in readings(trajectory, Texts(codec)):
        section = _flat(str(reading.section or ""))
        held = {text for text in evidence if text in section}
        missing -= held
        rewards[reading.turn.step] = _decision(reading, bool(held), not missing) if evidence else _format(reading)
    return tuple(rewards.get(turn.step, GateReward()) for turn in trajectory.turns)


def _decision(reading: Reading, needed: bool, complete: bool) -> GateReward:
    if reading.gates is None:
        return _format(reading)
    return GateReward(float(reading.gates.update == needed), float(reading.gates.exit == complete))


def _format(reading: Reading) -> GateReward:
    return GateReward(format=float(reading.malformed is None))


def _flat(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class GateLayer:
    """Adds gate rewards to a grade; for training, evaluation needs none."""

    codec: Codec
    config: GateRewardConfig

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        """The grade with `per_turn`; its value is untouched."""
        if not trajectory.turns:
            return grade
        rewards = gate_rewards(problem, trajectory, self.codec)
        parts = {f"gate_{name}": fmean(getattr(r, name) for r in rewards) for name in ("update", "exit", "format")}
        per_turn = tuple(reward.total(self.config) for reward in rewards)
        return replace(grade, per_turn=per_turn, breakdown={**grade.breakdown, **parts})
