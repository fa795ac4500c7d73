"""Credit rules of a user's own, and credit of single tokens: what holds whatever the rule and the spans."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.config.load import parse_config
from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import assign, build_rule, unread_rewards
from palimpsest.credit.state import state_advantages
from palimpsest.errors import ConfigError, RunError
from palimpsest.rollout.trajectory_file import grade_from_json, grade_to_json
from palimpsest.types import Grade, Group, Problem, SpanReward
from support.credit import only, state_mix, trained, trajectory

MODULE = """
from statistics import median
SEEN = []

def by_median(group, *, scale=1.0):
    middle = median(grade.value for grade in group.grades)
    SEEN.append([trajectory.rollout for trajectory in group.trajectories])
    return [scale * (grade.value - middle) for grade in group.grades]

class LastTurn:
    def __init__(self, share: float = 1.0): self.share = share
    def turn_advantages(self, group):
        return [[0.0] * (len(t.turns) - 1) + [self.share * g.value] for t, g in zip(group.trajectories, group.grades)]

def by_token(group): return [[[float(k) for k in range(len(turn.completion.token_ids))] for turn in t.turns]
                             for t in group.trajectories]
def one_token(group): return [[[1.0] for _ in t.turns] for t in group.trajectories]
def short(group): return [0.0]
def ragged(group): return [[0.0, 1.0, 2.0] for _ in group.grades]
def nan(group): return [float("nan") for _ in group.grades]
def words(group): return ["high" for _ in group.grades]
def leaves(group): raise SystemExit(3)
def huge(group): return [10**400] * len(group.trajectories)
def raises(group): raise KeyError("style")
"""


@pytest.fixture(autouse=True)
def module(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Path = tmp_path_factory.mktemp("rules")
    (folder / "own_rules.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))


def played(grades: list[Grade], lengths: list[tuple[int, ...]]) -> Group:
    turns = tuple(trajectory(*length, rollout=rollout) for rollout, length in enumerate(lengths))
    return Group(Problem("p", "?", ("a",)), turns, tuple(grades))


def advantages(group: Group, **credit: Any) -> list[float]:
    """Of every trained token, in order of trajectories and turns."""
    return [a for segment in only(assign([group], CreditConfig(**credit), 1)).segments for a, _ in trained(segment)]


REWARDS = [Grade(1.0), Grade(None, reason="judge"), Grade(0.25), Grade(0.0)]
LENGTHS = [(1, 2), (1, 1), (1,), (3, 1)]


def test_an_own_rule_is_shown_graded_trajectories_alone() -> None:
    found = advantages(played(REWARDS, LENGTHS), adv_estimator="own_rules:by_median", options={"scale": 2.0})
    assert found == [1.5] * 3 + [0.0] + [-0.5] * 4
    import own_rules  # type: ignore[import-not-found]

    assert own_rules.SEEN[-1] == [0, 2, 3]
    assert median([1.0, 0.25, 0.0]) == 0.25


def test_a_rule_may_tell_turns_apart_and_its_turns_take_part_in_the_mix() -> None:
    group = played([Grade(1.0, per_turn=(1.0, 0.0)), Grade(0.0, per_turn=(0.0, 0.0))], [(1, 1), (1, 1)])
    assert advantages(group, adv_estimator="own_rules:LastTurn") == [0.0, 1.0, 0.0, 0.0]
    mixed = advantages(group, **state_mix(0.5, outcome="own_rules:LastTurn"))
    assert mixed == [0.5 * 0.0 + 0.5 * 0.5, 0.5 * 1.0, -0.25, 0.0]


def test_a_rule_may_tell_tokens_apart() -> None:
    group = played([Grade(1.0, turn_weights=(1.0, 0.5)), Grade(0.0)], [(2, 3), (1,)])
    assert advantages(group, adv_estimator="own_rules:by_token") == [0.0, 1.0, 0.0, 0.5, 1.0, 0.0]
    mixed = advantages(
        played([Grade(1.0, per_turn=(2.0,)), Grade(0.0, per_turn=(0.0,))], [(2,), (1,)]),
        **state_mix(0.5, outcome="own_rules:by_token"),
    )
    assert mixed == [0.5, 1.0, -0.5]


def test_a_lone_survivor_is_not_shown_to_a_rule() -> None:
    group = played([Grade(1.0), Grade(None, reason="lost")], [(2,), (1,)])
    assert advantages(group, adv_estimator="own_rules:LastTurn") == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("short", "credit.adv_estimator=own_rules:short: group p: 3 trajectories, advantages of 1"),
        ("ragged", "group p, rollout 0: 2 turns, 3 advantages"),
        ("one_token", "rollout 0, turn 2: 2 sampled tokens, 1 advantages"),
        ("nan", "rollout 0, turn 1: the advantage is nan; use a finite number"),
        ("words", "rollout 0: 'high' is neither a number nor a list of numbers, one per turn"),
        ("raises", "group p: it raised KeyError: 'style'"),
        ("leaves", "group p: it raised SystemExit: 3"),
        ("huge", "rollout 0, turn 1: the advantage is int; use a finite number"),
    ],
)
def test_what_can_not_be_advantages_ends_the_run_in_words(rule: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        advantages(played(REWARDS, LENGTHS), adv_estimator=f"own_rules:{rule}")


async def waits(group: Group) -> list[float]:
    return [0.0] * len(group.trajectories)


class Waits:
    async def turn_advantages(self, group: Group) -> list[float]:
        return await waits(group)


@pytest.mark.parametrize("name", ["waits", "Waits"])
def test_an_asynchronous_rule_is_refused_before_the_run(name: str) -> None:
    for config in (
        CreditConfig(adv_estimator=f"{__name__}:{name}"),
        CreditConfig(adv_estimator="state_mix", options={"outcome": f"{__name__}:{name}"}),
    ):
        with pytest.raises(ConfigError, match="is asynchronous: write def"):
            build_rule(config)


def test_names_and_options_are_checked_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"credit.adv_estimator='maen': no such credit rule; did you mean mean\?"):
        parse_config("credit: {adv_estimator: maen}")
    with pytest.raises(ConfigError, match=r"credit.adv_estimator=mean has none"):
        parse_config("credit: {options: {scale: 1}}")
    with pytest.raises(ConfigError, match=r"options.scael is unknown to own_rules:by_median; did you mean scale"):
        build_rule(CreditConfig(adv_estimator="own_rules:by_median", options={"scael": 1}))


# ---- spans ---------------------------------------------------------------------------------------------------

values = st.floats(-2, 2, width=32)
lengths = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=2, max_size=4)


@st.composite
def groups_with_spans(draw: st.DrawFn) -> Group:
    """Trajectories with rewards of turns and spans of some of their tokens."""
    shapes = draw(lengths)
    grades = []
    for shape in shapes:
        spans = []
        for _ in range(draw(st.integers(0, 3))):
            turn = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[turn]))
            spans.append(SpanReward(turn, start, draw(st.integers(start, shape[turn])), draw(values)))
        per_turn = tuple(draw(values) for _ in shape)
        grades.append(Grade(draw(values), per_turn=per_turn, spans=tuple(spans)))
    return played(grades, [tuple(shape) for shape in shapes])


def with_grades(group: Group, change: Any) -> Group:
    return replace(group, grades=tuple(change(place, grade) for place, grade in enumerate(group.grades)))


CREDIT = state_mix(0.75, state_scale=2.0, lone_step="raw")


@settings(deadline=None)
@given(group=groups_with_spans(), rewards=st.lists(values, min_size=12, max_size=12))
def test_a_span_over_a_whole_turn_is_a_reward_of_that_turn(group: Group, rewards: list[float]) -> None:
    def more(place: int, shape: Any) -> list[float]:
        return [rewards[3 * place + turn] for turn in range(len(shape))]

    def as_turns(place: int, grade: Grade) -> Grade:
        own = grade.per_turn or ()
        return replace(grade, per_turn=tuple(a + b for a, b in zip(own, more(place, own), strict=True)))

    def as_spans(place: int, grade: Grade) -> Grade:
        turns = group.trajectories[place].turns
        whole = [
            SpanReward(turn, 0, len(turns[turn].completion.token_ids), value)
            for turn, value in enumerate(more(place, turns))
        ]
        return replace(grade, spans=(*grade.spans, *whole))

    expected = advantages(with_grades(group, as_turns), **CREDIT)
    assert advantages(with_grades(group, as_spans), **CREDIT) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(group=groups_with_spans(), at=st.integers(0, 5))
def test_cutting_a_span_in_two_and_adding_empty_ones_changes_nothing(group: Group, at: int) -> None:
    def cut(place: int, grade: Grade) -> Grade:
        parts = [SpanReward(0, 0, 0, 9.0)]
        for span in grade.spans:
            middle = min(span.start + at, span.end)
            parts += [replace(span, end=middle), replace(span, start=middle)]
        return replace(grade, spans=tuple(parts))

    assert advantages(with_grades(group, cut), **CREDIT) == pytest.approx(advantages(group, **CREDIT), abs=1e-9)


@settings(deadline=None)
@given(group=groups_with_spans())
def test_spans_move_credit_within_a_turn_and_leave_its_mean_to_the_groups_comparison(group: Group) -> None:
    """Independent: the mean over a turn's tokens is the advantage the turn has if its spans' mean is its reward."""

    def flat(place: int, grade: Grade) -> Grade:
        rewards = []
        for index, turn in enumerate(group.trajectories[place].turns):
            covered = [s.value * (s.end - s.start) for s in grade.spans if s.turn == index]
            rewards.append((grade.per_turn or ())[index] + math.fsum(covered) / len(turn.completion.token_ids))
        return replace(grade, per_turn=tuple(rewards), spans=())

    tokens, turns = iter(advantages(group, **CREDIT)), iter(advantages(with_grades(group, flat), **CREDIT))
    for each in group.trajectories:
        for turn in each.turns:
            size = len(turn.completion.token_ids)
            expected = [next(turns) for _ in range(size)]
            assert math.fsum(next(tokens) for _ in range(size)) / size == pytest.approx(expected[0], abs=1e-9)


def test_the_credit_of_a_span_by_hand() -> None:
    """One turn of four tokens each; the first trajectory's last token is worth 4: m = 1, the group's mean 0.5."""
    graded = [Grade(0.0, per_turn=(0.0,), spans=(SpanReward(0, 3, 4, 4.0),)), Grade(0.0, per_turn=(0.0,))]
    found = advantages(played(graded, [(4,), (4,)]), **state_mix(0.5))
    assert found == [0.5 * (0.5 + s - 1.0) for s in (0.0, 0.0, 0.0, 4.0)] + [-0.25] * 4
    without = [replace(grade, per_turn=None) for grade in graded]
    with pytest.raises(RunError, match="rollout 1: 1 turns, none turn rewards"):
        advantages(played(without, [(4,), (4,)]), **state_mix(0.5))


def test_a_rule_that_looks_at_the_outcome_alone_leaves_spans_out_and_says_so() -> None:
    group = played([Grade(1.0, spans=(SpanReward(0, 0, 1, 4.0),)), Grade(0.0)], [(2,), (2,)])
    assert advantages(group) == advantages(group, **state_mix(1.0)) == [0.5, 0.5, -0.5, -0.5]
    unread = {"parts": "spans", "rule": "credit.adv_estimator=mean"}
    assert unread_rewards([group], CreditConfig()) == unread
    alpha_1 = CreditConfig(**state_mix(1.0))
    assert unread_rewards([group], alpha_1) == unread | {"rule": "credit.options.alpha=1"}
    for credit in (state_mix(0.5), {"adv_estimator": "own_rules:LastTurn"}):
        assert unread_rewards([group], CreditConfig(**credit)) is None
    assert unread_rewards([played([Grade(1.0), Grade(0.0)], [(2,), (2,)])], CreditConfig()) is None


def test_spans_are_in_the_record() -> None:
    grade = Grade(1.0, per_turn=(0.0,), spans=(SpanReward(0, 1, 2, 0.5),))
    assert grade_from_json(grade_to_json(grade)) == grade


@pytest.mark.parametrize("value", [0.2, 1 / 9, 0.1, 1 / 3, 0.7])
def test_equal_rewards_of_turns_have_no_advantage_at_all(value: float) -> None:
    """A mean of them that is off in its last bit would take an optimizer step."""
    for size in range(2, 26):
        assert state_advantages([[value, value]] * size) == [[0.0, 0.0]] * size
