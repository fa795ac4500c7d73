"""Credit of single tokens: rewards of spans (`Grade.spans`) join those of turns.

With s_k the sum of the spans that cover token k of a turn of T sampled tokens, and m the mean of s_k over the turn:

    R_t'    = R_t + m                                           the turn's reward, which is compared with the group's
    A_t,k   = A_t' + (1 - alpha) * state_scale * (s_k - m)      the token's advantage, A_t' being the turn's from R_t'

both times the turn's weight, where it has one. So a span over a whole turn is worth what the same reward of the turn
is, a part of a turn is credited against the rest of it, and the turn as a whole against the group's turns at its step.

Guaranteed: spans of no token, and a span cut in two of the same value, change nothing; without spans every token of a
turn has exactly the turn's advantage. As rewards of turns, spans count where `credit.alpha` is below 1.
Not covered: a token that is trained once more in another context (`credit.final_segment: all`): there it has the turn's
advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from palimpsest.types import Grade, Segment, Trajectory


def span_rewards(trajectory: Trajectory, grade: Grade) -> list[list[float]]:
    """[turns][T] reward of each sampled token.

    >>> from palimpsest.types import Completion, Outcome, SpanReward, StopReason, Turn
    >>> turn = Turn((1,), Completion((5, 6, 7), (-0.5,) * 3, StopReason.STOP), 0, "act")
    >>> spans = (SpanReward(0, 0, 2, 1.0), SpanReward(0, 1, 3, 0.5))
    >>> span_rewards(Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED), Grade(1.0, spans=spans))
    [[1.0, 1.5, 0.5]]
    """
    rewards = [[0.0] * len(turn.completion.token_ids) for turn in trajectory.turns]
    for span in grade.spans:
        for place in range(span.start, span.end):
            rewards[span.turn][place] += span.value
    return rewards


def span_means(trajectory: Trajectory, grade: Grade) -> list[float]:
    """[turns] mean reward of a turn's tokens; 0 for a turn that sampled none."""
    return [fsum(row) / len(row) if row else 0.0 for row in span_rewards(trajectory, grade)]


def deviations(trajectory: Trajectory, grade: Grade, share: float) -> list[tuple[float, ...]]:
    """[turns][T] what a token's advantage has over its turn's, `share` being what turns' own rewards count."""
    rewards, weights = span_rewards(trajectory, grade), grade.turn_weights or (1.0,) * len(trajectory.turns)
    return [
        tuple(share * weight * (reward - mean) for reward in row)
        for row, mean, weight in zip(rewards, span_means(trajectory, grade), weights, strict=True)
    ]


def spread(
    segments: Sequence[Segment], turns: Sequence[float], over: Sequence[Sequence[float]] | None
) -> list[tuple[float, ...]]:
    """[segments][T] from [turns] advantages and, where there are spans, [turns][T] what tokens have over them.

    0.0 where nothing is trained.
    """
    if over is None:
        return [tuple(turns[turn] if turn >= 0 else 0.0 for turn in segment.turn_index) for segment in segments]
    trained: set[int] = set()
    rows = []
    for segment in segments:
        places = dict.fromkeys({*segment.turn_index} - {-1}, 0)  # how far each turn's completion has come
        row = []
        for turn in segment.turn_index:
            if turn < 0:
                row.append(0.0)
                continue
            row.append(turns[turn] if turn in trained else turns[turn] + over[turn][places[turn]])
            places[turn] += 1
        trained |= places.keys()
        rows.append(tuple(row))
    return rows
