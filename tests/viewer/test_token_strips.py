"""Tokens of a reply with log-probability, mask and advantage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from palimpsest.config.schema import CreditConfig, DynamicSamplingConfig
from palimpsest.credit.assign import credit_group
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, SpanReward, StopReason, Trajectory, Turn
from palimpsest.viewer.screens.group_screen import Opened
from palimpsest.viewer.screens.turn_screen import token_view
from support.agents import family_codec
from support.views import LETTERS, episodes


def group(*rewards: float | None, **grade: Any) -> Group:
    turn = Turn((1, 2), Completion((65, 66, 0), (-0.5, -1.0, -0.1), StopReason.STOP), 0, "act")
    trajectories = tuple(Trajectory("p", "g", place, (turn,), Outcome.ANSWERED) for place in range(len(rewards)))
    return Group(Problem("p", "?", ("a",)), trajectories, tuple(Grade(reward, **grade) for reward in rewards))


def column(view: dict[str, Any], name: str) -> list[Any]:
    return [row[name] for row in view["tokens"]]


def test_tokens_are_what_was_sampled() -> None:
    view = token_view(Opened(group(1.0, 0.0), LETTERS), 0, 0)
    assert column(view, "logprob") == [-0.5, -1.0, -0.1]
    assert column(view, "text")[:2] == ["A", "B"]
    assert column(view, "control") == [False, False, True]
    assert column(view, "trained") == [True] * 3
    assert view["entropy"] is None


def test_advantages_are_those_of_training_where_its_credit_is_known() -> None:
    credit = CreditConfig(adv_estimator="mean_std")
    found = token_view(Opened(group(1.0, 0.0, None), LETTERS, credit), 0, 0)
    assert found["advantage_is"] == "by credit.adv_estimator=mean_std"
    given = credit_group(group(1.0, 0.0, None), credit).advantages
    assert column(found, "advantage") == [given[0]] * 3
    assert column(token_view(Opened(group(1.0, 0.0, None), LETTERS, credit), 2, 0), "advantage") == [None] * 3


def test_a_group_that_training_leaves_out_has_no_advantages() -> None:
    """A group whose turns were rewarded apart stays in."""
    plain = group(1.0, 1.0, None)
    credit = CreditConfig(adv_estimator="state_mix", options={"alpha": 0.5}, dynamic_sampling=DynamicSamplingConfig())
    apart = replace(plain, grades=(Grade(1.0, per_turn=(2.0,)), Grade(1.0, per_turn=(0.0,)), plain.grades[2]))
    assert Opened(apart, LETTERS, credit).advantages.of_rollouts == (0.5, -0.5, None)
    graded = replace(plain, grades=(Grade(1.0, per_turn=(2.0,)), Grade(1.0, per_turn=(2.0,)), plain.grades[2]))
    opened = Opened(graded, LETTERS, credit)
    assert opened.advantages.of_rollouts == (0.0, 0.0, None)
    found = token_view(opened, 0, 0)
    assert column(found, "advantage") == [0.0] * 3
    assert "skips" in found["advantage_is"]


def test_rewards_of_spans_reach_their_tokens() -> None:
    credit = CreditConfig(adv_estimator="state_mix", options={"alpha": 0.5})
    graded = group(1.0, 0.0, spans=(SpanReward(0, 1, 2, 4.0),), per_turn=(0.5,))
    view = token_view(Opened(graded, LETTERS, credit), 0, 0)
    first, second, third = column(view, "advantage")
    assert first == third != second
    assert view["reward_of_turn"] == 0.5
    assert view["reward_of_spans"] == [{"start": 1, "end": 2, "value": 4.0}]


@pytest.mark.parametrize(
    ("credit", "says"),
    [(None, "unknown"), (CreditConfig(adv_estimator="nobody_has:this"), "is custom")],
)
def test_without_a_known_rule_it_is_the_difference_to_the_mean_and_says_so(
    credit: CreditConfig | None, says: str
) -> None:
    view = token_view(Opened(group(1.0, 0.0), LETTERS, credit), 0, 0)
    assert column(view, "advantage") == [0.5] * 3
    assert says in view["advantage_is"]


def test_a_turn_of_a_frozen_role_is_not_trained() -> None:
    played = group(1.0, 0.0)
    frozen = replace(played.trajectories[0].turns[0], trained=False)
    trajectories = (replace(played.trajectories[0], turns=(frozen,)), played.trajectories[1])
    view = token_view(Opened(replace(played, trajectories=trajectories), LETTERS), 0, 0)
    assert column(view, "trained") == [False] * 3
    assert column(view, "advantage") == [None] * 3


def test_a_character_of_several_tokens_stands_at_the_last_of_them() -> None:
    codec = family_codec("qwen")
    ids = tuple(codec.encode("a é—☃ b"))
    turn = Turn((1,), Completion(ids, (-0.5,) * len(ids), StopReason.STOP), 0, "act")
    played = Group(Problem("p", "?", ("a",)), (Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED),), (Grade(1.0),))
    texts = column(token_view(Opened(played, codec), 0, 0), "text")
    assert "".join(texts) == "a é—☃ b"
    assert "" in texts


def test_what_is_not_there_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="turn 5: the episode has"):
        token_view(episodes()["overwrite"], 0, 5)
    with pytest.raises(IndexError, match="turn -1"):
        token_view(episodes()["overwrite"], 0, -1)
