"""Penalty for unsupported sentences, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.memory import overwrite
from palimpsest.reward.turn_rewards import FaithfulLayer
from palimpsest.text.template import user_turn
from palimpsest.types import Completion, Grade, Outcome, Problem, StopReason, Trajectory, Turn

QUESTION = "What is the color of Anna?"
PROBLEM = Problem("p", QUESTION, ("x",))


def episode(codec: Any, *readings: tuple[str, str, str]) -> Trajectory:
    """Read turns from (memory, section, response)."""
    prompts = overwrite.SHORT
    template = user_turn(codec, prompts.read, ("question", "memory", "section"))
    turns = []
    for step, (memory, section, response) in enumerate(readings):
        values = {"question": QUESTION, "memory": memory, "section": section}
        prompt = template.fill({name: codec.encode(text) for name, text in values.items()})
        ids = (*codec.encode(response), codec.stop_ids[-1])
        completion = Completion(ids, (0.0,) * len(ids), StopReason.STOP)
        turns.append(Turn(tuple(prompt), completion, step, "read", spans=prompt.spans))
    return Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED, "x")


@pytest.mark.parametrize(
    ("response", "value"),
    [
        (" Anna is blue.", 1.0),  # in the section
        (" Boris has a cat.", 1.0),  # in the memory
        (" Anna is red.", 0.5),  # unsupported
        (" Anna is blue. Anna is red.", 0.75),
        ("", 1.0),  # nothing written, nothing invented
    ],
)
def test_unsupported_sentences_cost_their_share(response: str, value: float, tiny_codec: Any) -> None:
    trajectory = episode(tiny_codec, (" Boris has a cat.", "- Anna is blue. Clara is in Rome.", response))
    grade = FaithfulLayer(tiny_codec, 0.5)(PROBLEM, trajectory, Grade(1.0, breakdown={"em": 1.0}))
    assert grade.value == pytest.approx(value)
    assert grade.breakdown["unsupported"] == pytest.approx((1 - value) / 0.5)
    assert grade.breakdown["em"] == 1.0


def test_an_unsupported_sentence_costs_once(tiny_codec: Any) -> None:
    trajectory = episode(tiny_codec, (" none", "- A.", " Anna is red."), (" Anna is red.", "- B.", " Anna is red."))
    grade = FaithfulLayer(tiny_codec, 1.0)(PROBLEM, trajectory, Grade(1.0, breakdown={"em": 1.0}))
    assert grade.value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("penalty", "reward", "value"),
    [(0.5, -2.0, -2.0), (0.5, -0.5, -0.5), (0.5, 0.0, 0.0), (0.5, 2.0, 1.0), (3.0, 1.0, 0.0), (1.0, None, None)],
)
def test_the_penalty_takes_only_from_positive_rewards(
    penalty: float, reward: float | None, value: float | None, tiny_codec: Any
) -> None:
    trajectory = episode(tiny_codec, (" none", "- A.", " Anna is red."))
    below = Grade(reward, None if reward is not None else "lost", breakdown={} if reward is None else {"em": 1.0})
    grade = FaithfulLayer(tiny_codec, penalty)(PROBLEM, trajectory, below)
    assert grade.value == value
    assert grade == below if reward is None else grade.breakdown["outcome"] == reward
