"""The penalty on invented facts, worked by hand."""

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
        (" Anna is blue.", 1.0),  # stands in the section
        (" Boris has a cat.", 1.0),  # stands in the memory
        (" Anna is red.", 0.5),  # invented
        (" Anna is blue. Anna is red.", 0.75),
        ("", 1.0),  # nothing written, nothing invented
    ],
)
def test_invented_sentences_cost_their_share(response: str, value: float, tiny_codec: Any) -> None:
    trajectory = episode(tiny_codec, (" Boris has a cat.", "- Anna is blue. Clara is in Rome.", response))
    grade = FaithfulLayer(tiny_codec, 0.5)(PROBLEM, trajectory, Grade(1.0, breakdown={"em": 1.0}))
    assert grade.value == pytest.approx(value)
    assert grade.breakdown["unsupported"] == pytest.approx((1 - value) / 0.5)
    assert grade.breakdown["em"] == 1.0


def test_what_an_earlier_turn_invented_is_a_source_for_the_next_but_was_paid_for_once(tiny_codec: Any) -> None:
    trajectory = episode(tiny_codec, (" none", "- A.", " Anna is red."), (" Anna is red.", "- B.", " Anna is red."))
    grade = FaithfulLayer(tiny_codec, 1.0)(PROBLEM, trajectory, Grade(1.0, breakdown={"em": 1.0}))
    assert grade.value == pytest.approx(0.5)


@pytest.mark.parametrize(("reward", "value"), [(-2.0, -2.0), (-0.5, -0.5), (0.0, 0.0), (2.0, 1.0)])
def test_hallucination_never_raises_a_reward(reward: float, value: float, tiny_codec: Any) -> None:
    trajectory = episode(tiny_codec, (" none", "- A.", " Anna is red."))
    assert FaithfulLayer(tiny_codec, 0.5)(PROBLEM, trajectory, Grade(reward)).value == value


def test_a_wrong_answer_is_not_worth_less_for_what_was_invented_and_nothing_falls_below_zero(tiny_codec: Any) -> None:
    trajectory = episode(tiny_codec, (" none", "- A.", " Anna is red."))
    for reward in (0.0, 1.0):
        grade = FaithfulLayer(tiny_codec, 3.0)(PROBLEM, trajectory, Grade(reward, breakdown={"em": 1.0}))
        assert grade.value == 0.0
        assert grade.breakdown["outcome"] == reward


def test_an_ungraded_episode_stays_ungraded(tiny_codec: Any) -> None:
    trajectory = episode(tiny_codec, (" none", "- A.", " Anna is red."))
    lost = Grade(None, reason="lost")
    assert FaithfulLayer(tiny_codec, 1.0)(PROBLEM, trajectory, lost) == lost
