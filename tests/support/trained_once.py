"""Each sampled token trains exactly once."""

from __future__ import annotations

from palimpsest.rollout.segments import segments_of
from palimpsest.types import Trajectory


def trained_once(trajectory: Trajectory) -> None:
    """Check that each sampled token is in exactly one segment, after the context that produced it."""
    trained = []
    for segment in segments_of(trajectory):
        for at in segment.positions:
            turn = trajectory.turns[segment.turn_index[at]]
            assert segment.token_ids[: at + 1] == (turn.prompt_ids + turn.completion.token_ids)[: at + 1]
            trained.append((segment.turn_index[at], at - len(turn.prompt_ids)))
    turns = enumerate(trajectory.turns)
    assert sorted(trained) == [(n, index) for n, turn in turns for index in range(len(turn.completion.token_ids))]
