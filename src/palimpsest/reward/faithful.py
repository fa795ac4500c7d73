"""A reward counts less where the memory holds invented facts: what is written should stand in what was read.

    value = reward * max(0, 1 - penalty * (1 - copy fidelity of the episode's read turns))

A reward for the answer alone never sees a made-up fact in a memory that holds nothing yet, and such facts keep out the
true one later, the more often the longer the document. Ours; none of the published systems has it. A factor, because a
penalty that is subtracted is best avoided by writing nothing at all (seen in training).

Not covered: memories in other words than the text's; use it where faithful copying is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from palimpsest.measures.memory import copy_fidelity
from palimpsest.measures.texts import Texts
from palimpsest.measures.trace import readings
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Problem, Trajectory


@dataclass(frozen=True, slots=True)
class FaithfulLayer:
    """For training only, evaluation grades the answer."""

    codec: Codec
    penalty: float

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        """The grade times the factor.

        `breakdown` keeps the share as `unsupported` and the value before as `outcome`.
        """
        if grade.value is None:
            return grade
        fidelity = copy_fidelity(readings(trajectory, Texts(self.codec)))
        unsupported = 0.0 if fidelity is None else 1.0 - fidelity
        breakdown = {**grade.breakdown, "unsupported": unsupported, "outcome": grade.value}
        factor = max(0.0, 1.0 - self.penalty * unsupported)
        return replace(grade, value=grade.value * factor, breakdown=breakdown)
