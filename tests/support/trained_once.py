"""Every sampled token is trained once, where it was sampled."""

from __future__ import annotations

from palimpsest.rollout.segments import segments_of
from palimpsest.types import Trajectory


def trained_once(trajectory: Trajectory) -> None:
    """Each sampled token in exactly one segment, in the very context it was sampled in."""
    found = []
    for segment in segments_of(trajectory):
        for at, trained in enumerate(segment.loss_mask):
            if trained:
                turn = trajectory.turns[segment.turn_index[at]]
                place = at - len(turn.prompt_ids)
                assert segment.token_ids[: at + 1] == (turn.prompt_ids + turn.completion.token_ids)[: at + 1]
                found.append((segment.turn_index[at], place))
    assert sorted(found) == [
        (number, place)
        for number, turn in enumerate(trajectory.turns)
        for place in range(len(turn.completion.token_ids))
    ]
