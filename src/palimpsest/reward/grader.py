"""Grades from string comparison: one extraction and one set of metrics for training and evaluation.

Guaranteed: every graded trajectory has all of `METRICS` in its breakdown, whatever the reward is called; all golds
are tried and the best counts (`fraction`: the share of golds the answer contains). An episode that ended without an
answer text is worth 0.0; one that the machinery lost (`not outcome.gradable`) is ungraded, with the reason and an
empty breakdown, so that it can't be averaged in as a zero.
Not covered: meaning (paraphrases, translations); see match.py for what each comparison knowingly accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palimpsest.reward import match
from palimpsest.text.answers import extract
from palimpsest.types import Grade, Problem, Trajectory

METRICS = (
    "boxed",  # the last box equals a gold, normalised
    "boxed_strict",  # MemAgent's training reward
    "em",  # as boxed, but "the answer is" counts too
    "f1",
    "sub_em",  # a gold stands in the answer
    "sub_em_reverse",  # the answer stands in a gold
    "sub_em_either",  # MemAgent's evaluation
    "fraction",  # share of golds that stand in the answer
    "string_match_all",  # RULER's: share of golds that stand in the whole reply
    "string_match_part",  # RULER's: a gold stands in the whole reply
    "answered",  # an answer was found
)


@dataclass(frozen=True, slots=True)
class MatchGrader:
    """Compares the final answer with the golds; `metric` names the one that is the reward."""

    metric: str

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        """`Grade.value` is 0.0 to 1.0, or None where the episode's end says nothing about the agent."""
        if not trajectory.outcome.gradable:
            return Grade(None, reason=f"episode ended as {trajectory.outcome}")
        breakdown = measure(trajectory.answer or "", problem.answers)
        return Grade(breakdown[self.metric], breakdown=breakdown)


def measure(text: str, golds: Sequence[str]) -> dict[str, float]:
    r"""All metrics of one final text.

    >>> m = measure(r"Born there, so \\boxed{Paris, France}.", ["Paris", "Lutetia"])
    >>> m["boxed"], m["sub_em"], m["fraction"], round(m["f1"], 2)
    (0.0, 1.0, 0.5, 0.67)
    """
    found = extract(text)
    answer = found.text if found else ""
    boxed = found.text if found and found.rule == "boxed" else ""

    def best(rule: Callable[[str, str], float], said: str) -> float:
        return max(rule(said, gold) for gold in golds)

    return {
        "boxed": best(match.exact, boxed),
        "boxed_strict": best(match.published_boxed, text),
        "em": best(match.exact, answer),
        "f1": best(match.f1, answer),
        "sub_em": best(match.gold_in_answer, answer),
        "sub_em_reverse": best(match.answer_in_gold, answer),
        "sub_em_either": best(match.published_sub_em, answer),
        "fraction": sum(match.gold_in_answer(answer, gold) for gold in golds) / len(golds),
        "string_match_all": match.string_match_all(text, golds),
        "string_match_part": match.string_match_part(text, golds),
        "answered": float(answer.strip() != ""),
    }
