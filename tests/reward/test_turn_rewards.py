"""Rewards of single turns against tables worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.config.reward import StateRewardConfig
from palimpsest.events import Event, MemoryWritten, Recalled, ReplyMalformed
from palimpsest.reward.turn_rewards import StateLayer, turn_rewards, word_recall
from palimpsest.types import Completion, Grade, Outcome, Problem, StopReason, Trajectory, Turn
from support.fakes import LetterCodec

CODEC: Any = LetterCodec()


def completion(text: str) -> Completion:
    ids = tuple(map(ord, text))
    return Completion(ids, (-0.5,) * len(ids), StopReason.STOP)


def episode(*turns: dict[str, Any], answer: str = "\\boxed{New York}") -> Trajectory:
    """Reading turns with section, written (None: malformed), found and question; then the answer."""
    played, events, before = [], [], " none"
    for step, turn in enumerate(turns):
        prompt = f"Problem: {turn.get('question', 'Who?')}\nMemory:\n{before}\n{turn['section']}"
        start = len(prompt) - len(turn["section"])
        memory = prompt.index(before)
        spans = {"memory": (memory, memory + len(before)), "section": (start, len(prompt))}
        played.append(Turn(tuple(map(ord, prompt)), completion("reply"), step, "read", spans=spans))
        written = turn["written"]
        if written is None:
            events.append(Event(ReplyMalformed("no <update>"), step + 1))
        if turn.get("found"):
            events.append(Event(Recalled("q", 0, turn["found"]), step + 1))
        before = before if written is None else written
        events.append(Event(MemoryWritten(tuple(map(ord, before)), before, written is not None), step + 1))
    played.append(Turn((1,), completion(answer), len(turns), "answer"))
    return Trajectory("p", "g", 0, tuple(played), Outcome.ANSWERED, answer, tuple(events))


GOLDS = ("New York", "the big city")

RECALL_BY_HAND = {
    # text: (paper: whole words, max), (code: substrings with case, mean)
    "He lives in New York.": (1.0, 0.5),
    "new yorkers": (0.5, 0.0),  # the code finds neither "New" nor "York"
    "Newark is a bigger city": (0.5, (0.5 + 2 / 3) / 2),  # "New" in Newark, "big" in bigger
    "the big city": (1.0, 0.5),
    "": (0.0, 0.0),
}


@pytest.mark.parametrize("text", RECALL_BY_HAND)
def test_recall_by_hand(text: str) -> None:
    recalls = [word_recall(text, GOLDS, StateRewardConfig(variant=variant)) for variant in ("paper", "code")]
    assert recalls == pytest.approx(list(RECALL_BY_HAND[text]))


@pytest.mark.parametrize(
    ("text", "gold", "variant", "recall"),
    [
        ("Nobody knows. Yes.", "no", "paper", 0.0),
        ("an apple", "A", "paper", 0.0),
        ("vitamin A", "A", "paper", 1.0),
        ("Nobody knows", "no", "code", 1.0),  # ReMemR1's code counts substrings
    ],
)
def test_short_golds_match_complete_words_only(text: str, gold: str, variant: Any, recall: float) -> None:
    assert word_recall(text, [gold], StateRewardConfig(variant=variant)) == recall


GAINS_BY_HAND: list[tuple[dict[str, Any], tuple[float, float, float]]] = [
    # memory before " none": writes half of the gold
    ({"section": "New York is large.", "written": "York is large"}, (0.5, 0.0, 1.0)),
    # memory has one half; writes both
    ({"section": "a", "written": "New\nYork"}, (0.5, 0.0, 1.0)),
    # memory has all; keeps all: no gain, though the absolute recall is 1
    ({"section": "a", "written": "It is New York"}, (0.0, 0.0, 1.0)),
    # forgets half
    ({"section": "New York", "written": "York"}, (-0.5, 0.0, 1.0)),
    # the recalled memory adds the other half to memory and section
    ({"section": "nothing", "written": "York", "found": "New York"}, (0.0, 0.5, 1.0)),
    # here the section had it already
    ({"section": "something new", "written": "York", "found": "New York"}, (0.0, 0.0, 1.0)),
    # malformed: nothing changes
    ({"section": "New York", "written": None}, (0.0, 0.0, 0.0)),
]


def test_gain_of_update_and_recall_and_format_by_hand() -> None:
    problem = Problem("p", "Who?", ("New York",))
    played = episode(*(turn for turn, _ in GAINS_BY_HAND))
    rewards = turn_rewards(problem, played, CODEC, StateRewardConfig())
    expected = [*(values for _, values in GAINS_BY_HAND), (0.0, 0.0, 1.0)]
    assert [(r.update, r.callback, r.format) for r in rewards] == expected
    grade = StateLayer(CODEC, StateRewardConfig())(problem, played, Grade(1.0))
    assert grade.value == 1.0
    assert grade.per_turn == tuple(sum(values) for values in expected)
    assert grade.breakdown["state_format"] == 7 / 8
    assert grade.turn_weights is None


def test_a_memory_of_several_lines_has_a_gain() -> None:
    """ReMemR1's regular expressions stop at line breaks."""
    problem = Problem("p", "Who?", ("New York",))
    played = episode({"section": "a", "written": "New\nYork"}, {"section": "a", "written": "New\n\nYork\n"})
    assert [r.update for r in turn_rewards(problem, played, CODEC, StateRewardConfig())] == [1.0, 0.0, 0.0]
    quirk = turn_rewards(problem, played, CODEC, StateRewardConfig(variant="code"))
    assert [r.update for r in quirk] == [1.0, 1.0, 0.0]


def test_a_recall_is_compared_with_memory_and_section_but_not_the_question() -> None:
    problem = Problem("p", "Is it New York?", ("New York",))
    turn = {"question": "Is it New York?", "section": "a", "written": "b", "found": "New York"}
    assert turn_rewards(problem, episode(turn), CODEC, StateRewardConfig())[0].callback == 1.0
    assert turn_rewards(problem, episode(turn), CODEC, StateRewardConfig(variant="code"))[0].callback == 0.0


@pytest.mark.parametrize(
    ("answer", "points"),
    [
        ("\\boxed{a}", 1.0),
        ("\\boxed{\\text{a}}.", 1.0),
        ("a", 0.0),
        ("\\boxed{a} \\boxed{b}", 0.0),
        ("\\boxed{}", 0.0),
        ("\\boxed{ }", 0.0),
        ("\\boxed{a", 0.0),
        ("\\boxed{\\text{a}", 0.0),
    ],
)
def test_the_answer_turn_is_worth_its_single_box(answer: str, points: float) -> None:
    rewards = turn_rewards(Problem("p", "?", ("a",)), episode(answer=answer), CODEC, StateRewardConfig())
    assert [(r.update, r.callback, r.format) for r in rewards] == [(0.0, 0.0, points)]


def test_an_overwriting_agent_gets_gains_too() -> None:
    turns = [Turn((1,), completion(text), step, "read") for step, text in enumerate(["York", "", "New York"])]
    played = Trajectory("p", "g", 0, (*turns, Turn((1,), completion("\\boxed{x}"), 3, "answer")), Outcome.ANSWERED)
    rewards = turn_rewards(Problem("p", "?", ("New York",)), played, CODEC, StateRewardConfig())
    assert [r.update for r in rewards] == [0.5, -0.5, 1.0, 0.0]


def test_action_reweight_is_half_plus_the_recall_of_the_prompt() -> None:
    played = episode({"section": "York", "written": "b"}, {"section": "New York", "written": "b"})
    layer = StateLayer(CODEC, StateRewardConfig(action_reweight=True))
    assert layer(Problem("p", "?", ("New York",)), played, Grade(1.0)).turn_weights == (1.0, 1.5, 1.0)
