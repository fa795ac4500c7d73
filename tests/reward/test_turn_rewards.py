"""Rewards of single turns and the advantages they give, against tables worked by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.config.load import parse_config
from palimpsest.config.reward import StateRewardConfig
from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import assign, build_rule
from palimpsest.credit.state import mixed, state_advantages
from palimpsest.errors import ConfigError, RunError
from palimpsest.events import Event, MemoryWritten, Recalled, ReplyMalformed
from palimpsest.reward.turn_rewards import StateLayer, turn_rewards, word_recall
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn
from support.credit import group, only, state_mix, trained, trajectory
from support.fakes import LetterCodec

CODEC: Any = LetterCodec()


def said(text: str) -> Completion:
    ids = tuple(map(ord, text))
    return Completion(ids, (-0.5,) * len(ids), StopReason.STOP)


def episode(*turns: dict[str, Any], answer: str = "\\boxed{New York}") -> Trajectory:
    """Reading turns given by memory, section, written (None: malformed) and found; then the answer."""
    played, events, before = [], [], " none"
    for step, turn in enumerate(turns):
        prompt = f"Problem: {turn.get('question', 'Who?')}\nMemory:\n{before}\n{turn['section']}"
        start = len(prompt) - len(turn["section"])
        memory = prompt.index(before)
        spans = {"memory": (memory, memory + len(before)), "section": (start, len(prompt))}
        played.append(Turn(tuple(map(ord, prompt)), said("reply"), step, "read", spans=spans))
        written = turn["written"]
        if written is None:
            events.append(Event(ReplyMalformed("no <update>"), step + 1))
        if turn.get("found"):
            events.append(Event(Recalled("q", 0, turn["found"]), step + 1))
        before = before if written is None else written
        events.append(Event(MemoryWritten(tuple(map(ord, before)), before, written is not None), step + 1))
    played.append(Turn((1,), said(answer), len(turns), "answer"))
    return Trajectory("p", "g", 0, tuple(played), Outcome.ANSWERED, answer, tuple(events))


GOLDS = ("New York", "the big city")

RECALL_BY_HAND = {
    # text: (paper: whole words, max), (code: substrings with case, mean)
    "He lives in New York.": (1.0, 0.5),
    "new yorkers": (0.5, 0.0),  # the code finds neither "New" nor "York"
    "Newark is a bigger city": (0.5, (0.5 + 2 / 3) / 2),  # "New" stands in Newark, "big" in bigger
    "the big city": (1.0, 0.5),
    "": (0.0, 0.0),
}


@pytest.mark.parametrize("text", RECALL_BY_HAND)
def test_recall_by_hand(text: str) -> None:
    found = [word_recall(text, GOLDS, StateRewardConfig(variant=variant)) for variant in ("paper", "code")]
    assert found == pytest.approx(list(RECALL_BY_HAND[text]))


def test_yes_and_short_golds_do_not_saturate() -> None:
    """ReMemR1 counts substrings, with the question in sight: "no" is in "nobody", "a" in anything."""
    config = StateRewardConfig()
    assert word_recall("Nobody knows. Yes.", ["no"], config) == 0.0
    assert word_recall("an apple", ["A"], config) == 0.0  # a word of its own, though an article
    assert word_recall("vitamin A", ["A"], config) == 1.0
    code = StateRewardConfig(variant="code")
    assert word_recall("Nobody knows", ["no"], code) == 1.0


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
    expected = [*(parts for _, parts in GAINS_BY_HAND), (0.0, 0.0, 1.0)]
    assert [(r.update, r.callback, r.format) for r in rewards] == expected
    grade = StateLayer(CODEC, StateRewardConfig())(problem, played, Grade(1.0))
    assert grade.value == 1.0
    assert grade.per_turn == tuple(sum(parts) for parts in expected)
    assert grade.breakdown["state_format"] == 7 / 8
    assert grade.turn_weights is None


def test_a_memory_over_several_lines_is_found_and_the_gain_is_a_gain() -> None:
    """ReMemR1's expressions stop at line breaks: the previous memory counts as empty, a long update as malformed."""
    problem = Problem("p", "Who?", ("New York",))
    played = episode({"section": "a", "written": "New\nYork"}, {"section": "a", "written": "New\n\nYork\n"})
    assert [r.update for r in turn_rewards(problem, played, CODEC, StateRewardConfig())] == [1.0, 0.0, 0.0]
    quirk = turn_rewards(problem, played, CODEC, StateRewardConfig(variant="code"))
    assert [r.update for r in quirk] == [1.0, 1.0, 0.0]


def test_the_question_is_not_what_a_recall_is_measured_against() -> None:
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
    turns = [Turn((1,), said(text), step, "read") for step, text in enumerate(["York", "", "New York"])]
    played = Trajectory("p", "g", 0, (*turns, Turn((1,), said("\\boxed{x}"), 3, "answer")), Outcome.ANSWERED)
    rewards = turn_rewards(Problem("p", "?", ("New York",)), played, CODEC, StateRewardConfig())
    assert [r.update for r in rewards] == [0.5, -0.5, 1.0, 0.0]


# ---- advantages ----------------------------------------------------------------------------------------------


def with_turn_rewards(rewards: Sequence[float | None], per_turn: Sequence[Sequence[float]], **grades: Any) -> Group:
    """Each trajectory with a turn of one token for each of its turn rewards."""
    played = tuple(trajectory(*(1,) * len(own), rollout=i) for i, own in enumerate(per_turn))
    graded = [Grade(r, per_turn=tuple(own), **grades) for r, own in zip(rewards, per_turn, strict=True)]
    return Group(Problem("p", "?", ("a",)), played, tuple(graded))


def advantages(batch_group: Group, **credit: Any) -> list[float]:
    """Of every turn, in order of trajectories and turns."""
    batch = only(assign([batch_group], CreditConfig(**credit), 1))
    return [a for segment in batch.segments for a, _ in trained(segment)]


REWARDS = [1.0, 0.0, 0.0]
PER_TURN = [[2.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 2.0]]
# outcome: mean 1/3. State: step 0 mean 1, step 1 mean 1, step 2 mean 1 of two, step 3 has one turn alone.
OUT = [2 / 3, -1 / 3, -1 / 3]
STATE = [[1.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0], [-1.0, 1.0]]


def test_the_mixed_advantage_of_trajectories_of_unequal_length_by_hand() -> None:
    assert state_advantages(PER_TURN) == STATE
    expected = [0.8 * out + 0.2 * own for out, owns in zip(OUT, STATE, strict=True) for own in owns]
    assert advantages(with_turn_rewards(REWARDS, PER_TURN), **state_mix(0.8)) == pytest.approx(expected)
    assert expected[0] == pytest.approx(0.7333, abs=1e-4)  # 0.8 * 2/3 + 0.2 * 1


def test_a_turn_alone_at_its_step_has_nothing_to_compare_with() -> None:
    alone = advantages(with_turn_rewards(REWARDS, PER_TURN), **state_mix(0.8))[3]
    assert alone == pytest.approx(0.8 * 2 / 3)
    raw = advantages(with_turn_rewards(REWARDS, PER_TURN), **state_mix(0.8, lone_step="raw"))[3]
    assert raw == pytest.approx(0.8 * 2 / 3 + 0.2 * 1.0)  # the published code


def test_the_state_advantage_counts_once_and_not_twice() -> None:
    """ReMemR1 tiles it to two columns and adds them up: an effective weight of 0.4 at alpha 0.8."""
    played = with_turn_rewards([0.5, 0.5], [[1.0], [0.0]])
    assert advantages(played, **state_mix(0.8)) == pytest.approx([0.1, -0.1])
    assert advantages(played, **state_mix(0.8, state_scale=2.0)) == pytest.approx([0.2, -0.2])


@given(
    rewards=st.lists(st.floats(0, 1), min_size=2, max_size=5),
    lengths=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    own=st.lists(st.floats(-2, 2), min_size=20, max_size=20),
)
def test_alpha_1_gives_memagents_advantages_to_the_bit(
    rewards: list[float], lengths: list[int], own: list[float]
) -> None:
    per_turn = [own[4 * i : 4 * i + n] for i, n in enumerate(lengths[: len(rewards)])]
    plain = group(list(rewards), [(1,) * n for n in lengths[: len(rewards)]])
    for baseline in ("mean", "mean_std", "leave_one_out"):
        ours = advantages(with_turn_rewards(rewards, per_turn), **state_mix(1.0, outcome=baseline))
        assert ours == advantages(plain, adv_estimator=baseline)


def test_an_ungraded_trajectory_takes_no_part_in_the_state_means() -> None:
    played = with_turn_rewards([1.0, None, 0.0], [[1.0], [9.0], [0.0]])
    assert advantages(played, **state_mix(0.5)) == pytest.approx([0.5 * 0.5 + 0.5 * 0.5, -0.5])


@pytest.mark.parametrize("lone_step", ["zero", "raw"])
def test_an_episode_without_a_turn_counts_in_the_outcomes_baseline_alone(lone_step: str) -> None:
    """A blank document ends an episode before its first turn; its grade has no turn rewards."""
    played = with_turn_rewards([1.0, 0.0, 0.5], [[1.0], [0.0], []])
    played = replace(played, grades=(*played.grades[:2], Grade(0.5)))
    assert advantages(played, **state_mix(0.5, lone_step=lone_step)) == pytest.approx([0.5, -0.5])


def test_turn_weights_multiply_the_advantage_at_any_alpha() -> None:
    """ReMemR1's action_reweight with alpha 1 reads a name that was never set."""
    played = with_turn_rewards([1.0, 0.0], [[1.0, 1.0], [1.0, 1.0]], turn_weights=(1.5, 1.0))
    for alpha in (1.0, 0.8):
        assert advantages(played, **state_mix(alpha)) == pytest.approx(
            [0.75 * alpha, 0.5 * alpha, -0.75 * alpha, -0.5 * alpha]
        )


def test_action_reweight_is_half_plus_what_a_turn_had_in_sight() -> None:
    played = episode({"section": "York", "written": "b"}, {"section": "New York", "written": "b"})
    layer = StateLayer(CODEC, StateRewardConfig(action_reweight=True))
    assert layer(Problem("p", "?", ("New York",)), played, Grade(1.0)).turn_weights == (1.0, 1.5, 1.0)


def test_the_state_mix_without_turn_rewards_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"credit.adv_estimator=state_mix mixes in rewards of turns"):
        parse_config("credit: {adv_estimator: state_mix}")
    assert parse_config("credit: {adv_estimator: state_mix}\nreward: {state: {}}").credit.adv_estimator == "state_mix"
    with pytest.raises(RunError, match="group p, rollout 0: 2 turns, none turn rewards"):
        assign([group([1, 0], [(1, 1), (1, 1)])], CreditConfig(**state_mix(0.5)), 1)


def test_mixed_by_hand() -> None:
    assert mixed([0.25, 0.25], [1.0, -1.0], 0.5, 0.5) == (0.625, -0.375)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": "half"}, "credit.options.alpha='half': must be a number"),
        ({"alpha": 1.5}, "credit.options.alpha=1.5: must be from 0 to 1"),
        ({"state_scale": 0}, "credit.options.state_scale=0.0: must be greater than 0"),
        ({"lone_step": "row"}, "credit.options.lone_step='row': choose one of zero, raw"),
        ({"alhpa": 0.5}, "credit.options.alhpa is unknown to state_mix; did you mean alpha"),
        ({"outcome": "maen"}, "credit.options.outcome='maen': no such credit rule; did you mean mean"),
        ({"outcome": "state_mix"}, "credit.options.outcome='state_mix': choose one of mean"),
        (
            {"outcome_options": {"a": 1}},
            "credit.options.outcome_options.a is unknown to mean",
        ),
    ],
)
def test_options_of_the_mix_are_checked_at_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_rule(CreditConfig(adv_estimator="state_mix", options=options))
