"""The advantages of a group's rollouts, turns and tokens.

They are those that training gave (credit/assign.py) where the run's `credit` section is known and its rule is one of
the library's. A rule of the user's own is not run for a look: then, where nothing is known of the run, and for groups
of very many tokens they are the reward less the mean of the group's, and `what` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import credit_group
from palimpsest.credit.dynamic import has_signal
from palimpsest.errors import PalimpsestError
from palimpsest.plugins import is_own
from palimpsest.types import Group, Segment, Trajectory

_MOST = 5_000_000  # tokens of prompts and completions: some seconds
_DIFFERENCE = "reward less the mean of its group's"


@dataclass(frozen=True, slots=True)
class Advantages:
    """Of a group."""

    what: str
    """How they were taken, in words."""
    of_rollouts: tuple[float | None, ...]
    """[G] None where ungraded."""
    of_tokens: dict[tuple[int, int], tuple[float, ...]]
    """(rollout, turn) to [T] of each sampled token; missing where all are the rollout's."""

    def of_turn(self, rollout: int, turn: int, size: int) -> list[float | None]:
        """[T] of each token that a turn sampled."""
        known = self.of_tokens.get((rollout, turn))
        return list(known) if known is not None else [self.of_rollouts[rollout]] * size


def advantages(group: Group, credit: CreditConfig | None) -> Advantages:
    """What training learns from each rollout of a group."""
    if credit is None:
        return _difference(group, f"{_DIFFERENCE}: the run's credit section isn't known here")
    if (why := _why_not(group, credit)) is not None:
        return _difference(group, f"{_DIFFERENCE}: {why}")
    if credit.dynamic_sampling and not has_signal(group):
        nothing = tuple(None if grade.value is None else 0.0 for grade in group.grades)
        return Advantages(
            f"by credit.rule={credit.rule}: all rewards are equal, so the group was left out", nothing, {}
        )
    plain = credit.model_copy(update={"segments": None, "final_segment": "new_only"})  # every token once
    try:
        given = credit_group(group, plain)
    except (PalimpsestError, ValueError) as error:
        return _difference(group, f"{_DIFFERENCE}: credit.rule={credit.rule} can't be taken ({error})")
    of_tokens: dict[tuple[int, int], list[float]] = {}
    places = [place for place, segments in enumerate(given.segments) for _ in range(segments)]
    for place, row in zip(places, given.rows, strict=True):
        for turn, advantage in zip(row.segment.turn_index, row.advantages, strict=True):
            if turn >= 0:
                of_tokens.setdefault((place, turn), []).append(advantage)
    tokens = {key: tuple(values) for key, values in of_tokens.items()}
    return Advantages(f"by credit.rule={credit.rule}", given.advantages, tokens)


def trained_rows(group: Group, credit: CreditConfig | None) -> list[tuple[Segment, tuple[float, ...]]] | None:
    """The segments that training is given of a group, each with the advantage of each token [T].

    None where that isn't known: without the run's credit section, under a rule of the user's own, and under
    `credit.segments`, which draws some by the step they are of.
    """
    if credit is None or credit.segments is not None or _why_not(group, credit) is not None:
        return None
    if credit.dynamic_sampling and not has_signal(group):
        return []
    try:
        given = credit_group(group, credit)
    except (PalimpsestError, ValueError):
        return None
    return [(row.segment, tuple(row.advantages)) for row in given.rows]


def _why_not(group: Group, credit: CreditConfig) -> str | None:
    """Why credit isn't given again for a look; None where it is."""
    if sum(_tokens(trajectory) for trajectory in group.trajectories) > _MOST:
        return "the group is too long to give credit to again for a look"
    if is_own(credit.rule) or any(is_own(str(value)) for value in credit.options.values()):
        return f"credit.rule={credit.rule} is your own, and is not run for a look"
    return None


def _difference(group: Group, what: str) -> Advantages:
    rewards = [grade.value for grade in group.grades]
    known = [reward for reward in rewards if reward is not None]
    mean = fmean(known) if known else 0.0
    return Advantages(what, tuple(None if reward is None else reward - mean for reward in rewards), {})


def _tokens(trajectory: Trajectory) -> int:
    return sum(len(turn.prompt_ids) + len(turn.completion.token_ids) for turn in trajectory.turns)
