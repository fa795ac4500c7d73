"""Sides of a comparison under errata: items left out, and golds corrected, on every side alike.

Guaranteed: no model and no judge is asked. What only they could grade by its corrected golds is ungraded, with the way
to have it graded as the reason.
Not covered: several objectives of one search problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.errors import PalimpsestError
from palimpsest.evaluation.errata import Corrected, Errata
from palimpsest.evaluation.samples import Sample
from palimpsest.jobs.blocking import finish
from palimpsest.jobs.regrading import check_regradable, regraded
from palimpsest.jobs.sides import Side

_ASK_AGAIN = "its corrected golds can't be compared without what graded it: palimpsest rescore --errata does"


@dataclass(frozen=True, slots=True)
class Correction:
    """What errata change in all sides together."""

    sides: tuple[Side, ...]
    sha256: str
    items: int
    excluded: tuple[str, ...]
    corrected: tuple[str, ...]
    unknown: tuple[str, ...]
    """Items that no side has."""

    def to_json(self) -> dict[str, Any]:
        """Keys of compare.json."""
        lists = {name: list(getattr(self, name)) for name in ("excluded", "corrected", "unknown")}
        return {"sha256": self.sha256, "items": self.items, **lists}

    @property
    def told(self) -> str:
        """In a sentence."""
        unknown = f"; no side has {', '.join(self.unknown)}" if self.unknown else ""
        counts = f"{len(self.excluded)} items left out, {len(self.corrected)} with corrected golds"
        return f"errata {self.sha256[:12]}: {counts}{unknown}"


def corrected_sides(sides: Sequence[Side], errata: Errata) -> Correction:
    """The sides as the errata have them."""
    fixed = {side.name: errata.corrected(side.samples) for side in sides}
    return Correction(
        sides=tuple(
            replace(
                side, samples=_anew(side, fixed[side.name]), baselines=_anew(side, errata.corrected(side.baselines))
            )
            for side in sides
        ),
        sha256=errata.sha256,
        items=len(errata.errata),
        excluded=tuple(sorted({sample.id for each in fixed.values() for sample in each.excluded})),
        corrected=tuple(sorted({sample.id for each in fixed.values() for sample in each.stale})),
        unknown=tuple(sorted(set.intersection(*(set(each.unknown) for each in fixed.values())))),
    )


def _anew(side: Side, fixed: Corrected) -> tuple[Sample, ...]:
    return (*fixed.kept, *_graded(side, fixed.stale))


def _graded(side: Side, stale: Sequence[Sample]) -> list[Sample]:
    reward = side.reward
    try:
        if stale and reward is not None and reward.judge is None:
            check_regradable(reward, stale)
            return finish(lambda: regraded(stale, reward, None))
    except PalimpsestError:
        pass  # a reward of one's own, or several objectives: below
    return [replace(sample, value=None, metrics={}, reason=_ASK_AGAIN) for sample in stale]
