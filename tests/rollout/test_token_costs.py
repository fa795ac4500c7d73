"""Tokens computed with a prefix cache, counted against a set of all prefixes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from palimpsest.rollout.token_costs import common_length, computed_tokens, token_costs
from palimpsest.types import Completion, Outcome, StopReason, Trajectory, Turn

IDS = st.lists(st.integers(0, 2), max_size=8).map(tuple)


def turn(step: int, prompt: tuple[int, ...], reply: tuple[int, ...], role: str | None = None) -> Turn:
    completion = Completion(reply, (0.0,) * len(reply), StopReason.STOP)
    return Turn(prompt, completion, step, "read", role=role, trained=role is None)


@given(st.lists(st.tuples(IDS, IDS), max_size=6))
def test_computed_tokens_are_the_distinct_prefixes(pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    rows = [prompt + reply for prompt, reply in pairs]
    prefixes = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    assert computed_tokens([turn(at, *pair) for at, pair in enumerate(pairs)]) == len(prefixes)


@given(IDS, IDS)
def test_a_shared_prefix_ends_at_the_first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    equal = [a == b for a, b in zip(one, other, strict=False)]
    assert common_length(one, other) == (equal.index(False) if False in equal else len(equal))


def test_a_prefix_longer_than_a_comparison_block_is_measured_to_the_token() -> None:
    assert common_length(tuple(range(1000)), (*range(700), *range(1, 301))) == 700


def test_costs_by_role_are_there_if_a_role_took_a_turn() -> None:
    turns = (turn(0, (1, 2), (3,)), turn(1, (1, 5), (6, 7), "reader"), turn(2, (1, 5, 8), (6,), "reader"))
    alone, both = (token_costs(Trajectory("p", "g", 0, chosen, Outcome.ANSWERED)) for chosen in (turns[:1], turns))
    assert alone == {"computed_tokens": 3}
    assert both == {
        "computed_tokens": 3 + 6,
        "role_tokens/agent": 3,
        "role_computed/agent": 3,
        "role_tokens/reader": 8,
        "role_computed/reader": 6,
    }
    assert token_costs(Trajectory("p", "g", 0, turns[:1], Outcome.ANSWERED), ["reader"]) == {
        "computed_tokens": 3,
        "role_tokens/agent": 3,
        "role_computed/agent": 3,
        "role_tokens/reader": 0,
        "role_computed/reader": 0,
    }
