"""A reward for right and short answers, and a layer that marks the superfluous tokens of the last turn.

palimpsest check examples.own_reward:reward
palimpsest train memagent-quickstart reward.name=examples.own_reward:reward reward.options.price=0.2
palimpsest train memagent-quickstart reward.layers=[examples.own_reward:Rambling] credit.adv_estimator=state_mix
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from palimpsest.text.answers import extract
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Problem, SpanReward, Trajectory


def reward(problem: Problem, trajectory: Trajectory, *, price: float = 0.1, free_words: int = 20) -> Grade:
    """1 for an answer that contains a gold, less `price` per additional `free_words` words; never below 0."""
    text = trajectory.answer or ""
    answer = extract(text)
    right = answer is not None and any(gold.lower() in answer.text.lower() for gold in problem.answers)
    surplus = max(0, len(text.split()) - free_words) / free_words
    return Grade(max(0.0, float(right) - price * surplus), breakdown={"right": float(right), "surplus": surplus})


@dataclass(frozen=True, slots=True)
class Rambling:
    """Tokens of the last turn from the `free_tokens`-th on are worth -1 each, as rewards of a span of that turn."""

    codec: Codec
    free_tokens: int = 16

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        if not trajectory.turns:
            return grade
        last = len(trajectory.turns) - 1
        sampled = len(self.codec.strip_stop(trajectory.turns[last].completion.token_ids))
        start = min(self.free_tokens, sampled)
        span = SpanReward(last, start, sampled, -1.0)
        breakdown = {**grade.breakdown, "rambling": float(sampled - start)}
        return replace(grade, spans=(*grade.spans, span), breakdown=breakdown)
