"""Credit for cheap edits of the context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import build_rule, has_signal
from palimpsest.errors import ConfigError
from palimpsest.events import Event, Pruned, SummedUp
from palimpsest.planning.model_shape import shape_of
from palimpsest.rollout.token_costs import ReuseCost
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn


def episode(rollout: int, lengths: list[tuple[int, int, int]], *events: Event) -> Trajectory:
    """Turns of (prompt tokens, those that the call before holds, sampled tokens)."""
    turns, before = list[Turn](), list[int]()
    for number, (prompt, shared, sampled) in enumerate(lengths):
        ids = before[:shared] + [100 * number + position for position in range(prompt - shared)]
        reply = [10_000 * number + position for position in range(sampled)]
        completion = Completion(tuple(reply), (-0.5,) * sampled, StopReason.STOP)
        turns.append(Turn(tuple(ids), completion, number, "act"))
        before = ids + reply
    return Trajectory("p", "g", rollout, tuple(turns), Outcome.ANSWERED, events=events)


def edit(turn: int, start: int, end: int) -> Event:
    return Event(Pruned("b", ("a",), "tea", 3, tokens=(start, end)), turn + 1)


def group(rewards: list[float], *played: Trajectory) -> Group:
    return Group(Problem("p", "Who?", ("Ann",)), played, tuple(Grade(reward) for reward in rewards))


def advantages(of: Group, **options: Any) -> Any:
    return build_rule(CreditConfig(adv_estimator="success_gated", options=options))(of)


def test_a_group_worked_by_hand() -> None:
    """Costs of the successes 20 and 12, mean 16: 4 / 16 more or less, times the weight; the failure gets neither."""
    long = episode(0, [(8, 0, 4), (14, 12, 6)], edit(0, 1, 3))
    short = episode(1, [(8, 0, 4)], edit(0, 0, 2))
    failed = episode(2, [(2, 0, 4)], edit(0, 0, 4))
    mean = 2 / 3
    assert advantages(group([1.0, 1.0, 0.0], long, short, failed), outcome="mean", weight=0.25) == [
        ((1 - mean, 1 - mean - 0.0625, 1 - mean - 0.0625, 1 - mean), 1 - mean),
        ((1 - mean + 0.0625, 1 - mean + 0.0625, 1 - mean, 1 - mean),),
        (-mean,),
    ]


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.9, 0.9, 0.0]])
def test_fewer_than_two_successes_leave_the_outcome(rewards: list[float]) -> None:
    played = [episode(number, [(8 + number, 0, 4)], edit(0, 0, 4)) for number in range(3)]
    of = group(rewards, *played)
    assert advantages(of) == [(value,) for value in build_rule(CreditConfig(adv_estimator="mean_std"))(of)]


def test_a_summary_is_an_edit_as_a_whole_and_a_success_without_one_gets_the_outcome() -> None:
    played = episode(0, [(8, 0, 4), (3, 2, 2)], Event(SummedUp(4, "tea", 0), 1))
    summary = replace(played, turns=(replace(played.turns[0], name="summarise"), *played.turns[1:]))
    none = episode(1, [(30, 0, 4)])
    (first, second), (only,) = advantages(group([1.0, 1.0], summary, none), weight=1.0)
    saved = (24.5 - 15) / 24.5
    assert first == pytest.approx((saved,) * 4)
    assert (second, only) == (0.0, 0.0)


def test_equal_rewards_have_a_signal_if_their_edits_differ_in_cost() -> None:
    cheap, dear = episode(0, [(8, 0, 4)], edit(0, 0, 4)), episode(1, [(9, 0, 4)], edit(0, 0, 4))
    config = CreditConfig(adv_estimator="success_gated")
    assert has_signal(group([1.0, 1.0], cheap, dear), config)
    assert not has_signal(group([1.0, 1.0], cheap, episode(1, [(8, 0, 4)], edit(0, 0, 4))), config)


@pytest.mark.parametrize(
    ("option", "value"), [("weight", -1), ("attention", float("nan")), ("outcome", "state_mix"), ("outcome", "x")]
)
def test_invalid_options_name_their_key(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"credit.options.{option}"):
        build_rule(CreditConfig(adv_estimator="success_gated", options={option: value}))


# ---- the cost of prefixes that are used again ----------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=6))
def test_reuse_cost_is_a_loop_over_computed_tokens(drawn: list[tuple[int, int, int]]) -> None:
    """Every computed token attends to the tokens up to the middle of itself; cached ones cost nothing."""
    lengths, held = list[tuple[int, int, int]](), 0
    for prompt, shared, sampled in drawn:
        lengths.append((prompt, min(prompt, shared, held), sampled))
        held = prompt + sampled
    cost = ReuseCost.of(episode(0, lengths).turns)
    computed, pairs = 0, 0.0
    for prompt, shared, sampled in lengths:
        for position in range(shared, prompt + sampled):
            computed += 1
            pairs += position + 0.5
    assert (cost.computed, cost.pairs) == (computed, pairs)
    assert cost.cached == sum(shared for _, shared, _ in lengths)
    assert cost.billed == pytest.approx(1.25 * cost.new + 0.1 * cost.cached + 5 * cost.sampled)


def test_flops_of_a_model_worked_by_hand() -> None:
    """Qwen2.5-7B: all weights but the embeddings, 28 layers, 28 heads of 128."""
    shape = shape_of("Qwen/Qwen2.5-7B-Instruct")
    weights = 7_615_616_512 - 544_997_376
    assert shape.flops(10, 3) == 2 * weights * 10 + 4 * 28 * 28 * 128 * 3


def test_the_recipe_has_the_ratio_of_its_model() -> None:
    recipe = load_recipe("edit-quickstart")
    shape = shape_of(recipe.model.path)
    ratio = shape.flops(0, 1) / shape.flops(1, 0)
    assert recipe.credit.options["attention"] == pytest.approx(ratio, rel=0.01)
