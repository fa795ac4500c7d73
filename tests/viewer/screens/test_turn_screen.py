"""The view of a turn: pieces, difference, marks, and tokens with log-probability, mask and advantage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from palimpsest.config.schema import CreditConfig, DynamicSamplingConfig
from palimpsest.credit.assign import credit_group
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, SpanReward, StopReason, Trajectory, Turn
from palimpsest.viewer.screens.episode_screen import blame_view
from palimpsest.viewer.screens.group_screen import Opened
from palimpsest.viewer.screens.turn_screen import token_view, turn_view
from support.agents import family_codec
from support.views import LETTERS, episodes, reading

ROME = "Ann lives in Rome."


@pytest.mark.parametrize("name", ["overwrite", "recall", "retrieval"])
def test_the_first_memory_of_an_episode_is_empty(name: str) -> None:
    group = episodes()[name]
    assert group.story(0).trajectory.turns[0].piece("memory"), "the policy's text for an empty memory"
    view = turn_view(group, 0, 0)
    assert (view["memory"]["before"], view["memory"]["before_tokens"], view["counts"]["dropped"]) == ("", 0, 0)
    assert not [part for part in view["diff"] if part["origin"] == "dropped"]


def test_a_memory_with_the_policys_text_for_an_empty_one_is_empty_unless_the_problem_sets_it() -> None:
    view = turn_view(reading(("It rains.", "none"), ("It snows.", ROME), ("It is dry.", "none of it")), 0, 0)
    assert (view["memory"]["before"], view["memory"]["after"], view["diff"]) == ("", "", [])
    group = reading((ROME, f"none {ROME}")).group
    opened_group = Opened(replace(group, problem=replace(group.problem, memory="none")), LETTERS)
    assert turn_view(opened_group, 0, 0)["memory"]["before"] == "none"


def test_the_difference_of_a_turn_reads_as_its_memories() -> None:
    for group in episodes().values():
        for step in group.story(0).steps:
            view = turn_view(group, 0, step.turn)
            after = "".join(part["text"] for part in view["diff"] if part["origin"] != "dropped")
            assert after == view["memory"]["after"]
            sources = {piece["name"]: piece["text"] for piece in view["pieces"]} | {"memory": view["memory"]["before"]}
            for part in view["diff"]:
                if part.get("source"):
                    start, end = part["source"]["characters"]
                    assert sources[part["source"]["name"]][start:end].strip()


def test_invented_sentences_are_listed_also_without_an_invented_word() -> None:
    view = turn_view(reading((ROME, f"{ROME} Bo flies.")), 0, 0)
    (one,) = view["invented"]
    assert view["memory"]["after"][slice(*one["characters"])] == one["text"] == "Bo flies."
    assert view["counts"]["nowhere"] == 2
    view = turn_view(reading(("Ann lives here. Bo sings.", "Ann sings.")), 0, 0)
    assert ([one["text"] for one in view["invented"]], view["counts"]["nowhere"]) == (["Ann sings."], 0)


def test_a_prompt_without_named_pieces_is_one_piece() -> None:
    (piece,) = turn_view(episodes()["nothing named"], 0, 0)["pieces"]
    assert (piece["name"], piece["text"], piece["whole"]) == ("prompt", "ABC", True)


@pytest.mark.parametrize("view", [turn_view, blame_view, token_view])
def test_a_missing_turn_or_rollout_is_an_index_error(view: Any) -> None:
    for rollout, turn, error in ((0, 99, "turn 99"), (7, 0, "rollout 7"), (0, -1, "turn -1")):
        with pytest.raises(IndexError, match=error):
            view(episodes()["overwrite"], rollout, turn)


def group(*rewards: float | None, **grade: Any) -> Group:
    turn = Turn((1, 2), Completion((65, 66, 0), (-0.5, -1.0, -0.1), StopReason.STOP), 0, "act")
    trajectories = tuple(Trajectory("p", "g", position, (turn,), Outcome.ANSWERED) for position in range(len(rewards)))
    return Group(Problem("p", "?", ("a",)), trajectories, tuple(Grade(reward, **grade) for reward in rewards))


def column(view: dict[str, Any], name: str) -> list[Any]:
    return [row[name] for row in view["tokens"]]


def test_tokens_have_log_probability_text_and_mask() -> None:
    view = token_view(Opened(group(1.0, 0.0), LETTERS), 0, 0)
    assert column(view, "logprob") == [-0.5, -1.0, -0.1]
    assert column(view, "text")[:2] == ["A", "B"]
    assert column(view, "control") == [False, False, True]
    assert column(view, "trained") == [True] * 3


def test_advantages_are_those_of_training_with_its_credit() -> None:
    credit = CreditConfig(adv_estimator="mean_std")
    opened_group = Opened(group(1.0, 0.0, None), LETTERS, credit)
    view = token_view(opened_group, 0, 0)
    assert view["advantage_is"] == "by credit.adv_estimator=mean_std"
    assert column(view, "advantage") == [credit_group(group(1.0, 0.0, None), credit).advantages[0]] * 3
    assert column(token_view(opened_group, 2, 0), "advantage") == [None] * 3


def test_a_group_that_training_skips_has_advantages_of_zero() -> None:
    """A group whose turns were rewarded separate stays in."""
    plain = group(1.0, 1.0, None)
    credit = CreditConfig(adv_estimator="state_mix", options={"alpha": 0.5}, dynamic_sampling=DynamicSamplingConfig())
    separate = replace(plain, grades=(Grade(1.0, per_turn=(2.0,)), Grade(1.0, per_turn=(0.0,)), plain.grades[2]))
    assert Opened(separate, LETTERS, credit).advantages.of_rollouts == (0.5, -0.5, None)
    graded = replace(plain, grades=(Grade(1.0, per_turn=(2.0,)), Grade(1.0, per_turn=(2.0,)), plain.grades[2]))
    opened = Opened(graded, LETTERS, credit)
    assert opened.advantages.of_rollouts == (0.0, 0.0, None)
    view = token_view(opened, 0, 0)
    assert column(view, "advantage") == [0.0] * 3
    assert "skips" in view["advantage_is"]


def test_rewards_of_spans_reach_their_tokens() -> None:
    credit = CreditConfig(adv_estimator="state_mix", options={"alpha": 0.5})
    graded = group(1.0, 0.0, spans=(SpanReward(0, 1, 2, 4.0),), per_turn=(0.5,))
    view = token_view(Opened(graded, LETTERS, credit), 0, 0)
    first, second, third = column(view, "advantage")
    assert first == third != second
    assert view["reward_of_turn"] == 0.5
    assert view["reward_of_spans"] == [{"start": 1, "end": 2, "value": 4.0}]


@pytest.mark.parametrize(
    ("credit", "rule"), [(None, "unknown"), (CreditConfig(adv_estimator="nobody_has:this"), "is custom")]
)
def test_without_a_known_rule_the_advantage_is_the_difference_to_the_mean(
    credit: CreditConfig | None, rule: str
) -> None:
    view = token_view(Opened(group(1.0, 0.0), LETTERS, credit), 0, 0)
    assert column(view, "advantage") == [0.5] * 3
    assert rule in view["advantage_is"]


def test_a_turn_of_a_frozen_role_is_not_trained() -> None:
    played = group(1.0, 0.0)
    frozen = replace(played.trajectories[0].turns[0], trained=False)
    trajectories = (replace(played.trajectories[0], turns=(frozen,)), played.trajectories[1])
    view = token_view(Opened(replace(played, trajectories=trajectories), LETTERS), 0, 0)
    assert column(view, "trained") == [False] * 3
    assert column(view, "advantage") == [None] * 3


def test_a_character_of_several_tokens_is_text_of_the_last_one() -> None:
    codec = family_codec("qwen")
    ids = tuple(codec.encode("a é—☃ b"))
    turn = Turn((1,), Completion(ids, (-0.5,) * len(ids), StopReason.STOP), 0, "act")
    played = Group(Problem("p", "?", ("a",)), (Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED),), (Grade(1.0),))
    texts = column(token_view(Opened(played, codec), 0, 0), "text")
    assert "".join(texts) == "a é—☃ b"
    assert "" in texts
