"""Credit of single tokens: rewards of spans (`Grade.spans`) join those of turns in the state mix (credit/state.py).

With s_k the sum of the spans that cover token k of a turn of T sampled tokens, and m the mean of s_k over the turn:

    R_t'    = R_t + m                                           the turn's reward, which is compared with the group's
    A_t,k   = A_t' + (1 - alpha) * state_scale * (s_k - m)      the token's advantage, A_t' being the turn's from R_t'

both times the turn's weight, where it has one. So a span over a whole turn is worth what the same reward of the turn
is, a part of a turn is credited against the rest of it, and the turn as a whole against the group's turns at its step.

Guaranteed: spans of no token, and a span cut in two of the same value, change nothing; without spans every token of a
turn has exactly the turn's advantage. As rewards of turns, spans count under `credit.rule: state_mix` with an alpha
below 1, or where a rule of the user's own looks at them.
Not covered: a token that is trained once more in another context (`credit.final_segment: all`): there it has the mean
of its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from palimpsest.credit.outcome import TurnAdvantage, turn_mean
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


def on_top(
    trajectory: Trajectory, grade: Grade, turns: Sequence[TurnAdvantage], share: float
) -> tuple[TurnAdvantage, ...]:
    """[turns] with what each token of a turn with spans has over it; `share` is what turns' own rewards count.

    >>> from palimpsest.types import Completion, Outcome, SpanReward, StopReason, Turn
    >>> played = [Turn((1,), Completion((5, 6), (-0.5,) * 2, StopReason.STOP), step, "act") for step in range(2)]
    >>> grade = Grade(1.0, spans=(SpanReward(0, 0, 1, 1.0),))
    >>> on_top(Trajectory("p", "g", 0, tuple(played), Outcome.ANSWERED), grade, [0.25, 0.5], 0.5)
    ((0.5, 0.0), 0.5)
    """
    if not grade.spans:
        return tuple(turns)
    with_spans = {span.turn for span in grade.spans}
    rows, means = span_rewards(trajectory, grade), span_means(trajectory, grade)
    return tuple(
        tuple(
            own + share * (reward - means[turn])
            for own, reward in zip(_each(given, rows[turn]), rows[turn], strict=True)
        )
        if turn in with_spans
        else given
        for turn, given in enumerate(turns)
    )


def _each(given: TurnAdvantage, row: Sequence[float]) -> Sequence[float]:
    return [given] * len(row) if isinstance(given, float) else given


def spread(segments: Sequence[Segment], turns: Sequence[TurnAdvantage]) -> list[tuple[float, ...]]:
    """[segments][T] from the advantages of [turns] or, where a rule tells them apart, of their tokens.

    0.0 where nothing is trained.
    """
    trained: set[int] = set()
    rows = []
    for segment in segments:
        places = dict.fromkeys({*segment.turn_index} - {-1}, 0)  # how far each turn's completion has come
        row = []
        for turn in segment.turn_index:
            if turn < 0:
                row.append(0.0)
                continue
            given = turns[turn]
            row.append(turn_mean(given) if isinstance(given, float) or turn in trained else given[places[turn]])
            places[turn] += 1
        trained |= places.keys()
        rows.append(tuple(row))
    return rows
