"""Credit rules of a user's own module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.load import parse_config
from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import build_rule
from palimpsest.errors import ConfigError, RunError
from palimpsest.types import Grade, Group
from support.credit import advantages, group_of, state_mix, trajectory

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
    return group_of(grades, *(trajectory(*row, rollout=rollout) for rollout, row in enumerate(lengths)))


FOUR = played([Grade(1.0), Grade(None, reason="judge"), Grade(0.25), Grade(0.0)], [(1, 2), (1, 1), (1,), (3, 1)])


def test_a_custom_rule_gets_only_the_graded_trajectories() -> None:
    rule: dict[str, Any] = {"adv_estimator": "own_rules:by_median", "options": {"scale": 2.0}}
    assert advantages(FOUR, **rule) == [1.5] * 3 + [0.0] + [-0.5] * 4  # the median is 0.25
    import own_rules  # type: ignore[import-not-found]

    assert own_rules.SEEN[-1] == [0, 2, 3]


def test_advantages_of_turns_and_of_tokens_enter_the_mix() -> None:
    turns = played([Grade(1.0, per_turn=(1.0, 0.0)), Grade(0.0, per_turn=(0.0, 0.0))], [(1, 1), (1, 1)])
    assert advantages(turns, adv_estimator="own_rules:LastTurn") == [0.0, 1.0, 0.0, 0.0]
    mixed = advantages(turns, **state_mix(0.5, outcome="own_rules:LastTurn"))
    assert mixed == [0.5 * 0.0 + 0.5 * 0.5, 0.5 * 1.0, -0.25, 0.0]
    weighted = played([Grade(1.0, turn_weights=(1.0, 0.5)), Grade(0.0)], [(2, 3), (1,)])
    assert advantages(weighted, adv_estimator="own_rules:by_token") == [0.0, 1.0, 0.0, 0.5, 1.0, 0.0]
    tokens = played([Grade(1.0, per_turn=(2.0,)), Grade(0.0, per_turn=(0.0,))], [(2,), (1,)])
    assert advantages(tokens, **state_mix(0.5, outcome="own_rules:by_token")) == [0.5, 1.0, -0.5]


def test_a_lone_survivor_is_not_passed_to_the_rule() -> None:
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
def test_a_rule_without_valid_advantages_ends_the_run(rule: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        advantages(FOUR, adv_estimator=f"own_rules:{rule}")


async def waits(group: Group) -> list[float]:
    return [0.0] * len(group.trajectories)


class Waits:
    async def turn_advantages(self, group: Group) -> list[float]:
        return await waits(group)


@pytest.mark.parametrize("name", ["waits", "Waits"])
def test_an_asynchronous_rule_is_rejected_before_the_run(name: str) -> None:
    rule = f"{__name__}:{name}"
    for config in (CreditConfig(adv_estimator=rule), CreditConfig(**state_mix(0.8, outcome=rule))):
        with pytest.raises(ConfigError, match="is asynchronous: write def"):
            build_rule(config)


@pytest.mark.parametrize(
    ("credit", "message"),
    [
        ("{adv_estimator: maen}", r"credit.adv_estimator='maen': no such credit rule; did you mean mean\?"),
        ("{options: {scale: 1}}", r"credit.adv_estimator=mean has none"),
        (
            "{adv_estimator: 'own_rules:by_median', options: {scael: 1}}",
            r"options.scael is unknown to own_rules:by_median; did you mean scale",
        ),
    ],
)
def test_names_and_options_are_checked_before_the_run(credit: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_rule(parse_config(f"credit: {credit}").credit)
