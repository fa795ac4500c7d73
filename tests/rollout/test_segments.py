"""Segments: every sampled token trained once, in its own context, whatever a policy does to its prompts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import palimpsest.rollout.segments as segments_module
from palimpsest.rollout.segments import segments_of
from palimpsest.types import Completion, Outcome, Segment, StopReason, Trajectory, Turn


def turn(step: int, prompt: tuple[int, ...], sampled: tuple[int, ...], stop: StopReason = StopReason.STOP) -> Turn:
    logprobs = tuple(-(step + 1) - offset / 100 for offset in range(len(sampled)))
    return Turn(prompt, Completion(sampled, logprobs, stop), step, "act")


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory("p", "g", 0, turns, Outcome.ANSWERED)


TOKENS = st.lists(st.integers(0, 2), max_size=4).map(tuple)  # three ids only, so that prefixes collide by chance
MOVES = st.sampled_from(["append", "append", "rewrite", "prune", "again", "branch", "unchanged"])


@st.composite
def fracturing(draw: st.DrawFn) -> Trajectory:
    """Appends, rewrites, pruned histories, repeated prompts and returns to older turns, in any order."""
    turns: list[Turn] = []
    for step in range(draw(st.integers(0, 12))):
        move, extra = draw(MOVES), draw(TOKENS)
        if not turns or move == "rewrite":
            prompt = extra
        else:
            base = turns[draw(st.integers(0, step - 1))] if move == "branch" else turns[-1]
            history = base.prompt_ids + base.completion.token_ids
            cut = draw(st.integers(0, len(history)))
            prompt = {
                "append": history + extra,
                "branch": history + extra,
                "unchanged": history,
                "prune": history[:cut] + history[cut + 1 :],
                "again": base.prompt_ids,
            }[move]
        turns.append(turn(step, prompt, draw(TOKENS), draw(st.sampled_from(list(StopReason)))))
    return trajectory(*turns)


@given(fracturing())
@settings(max_examples=400, deadline=None)
def test_every_sampled_token_is_trained_once_in_the_context_it_was_sampled_in(played: Trajectory) -> None:
    trained = []
    for segment in segments_of(played):
        assert len(segment.token_ids) == len(segment.loss_mask) == len(segment.turn_index)
        logprobs = iter(segment.logprobs)
        for place, (mask, index) in enumerate(zip(segment.loss_mask, segment.turn_index, strict=True)):
            assert mask is (index >= 0) is (place in segment.positions)
            if not mask:
                continue
            source = played.turns[index]
            offset = place - len(source.prompt_ids)
            assert segment.token_ids[:place] == source.prompt_ids + source.completion.token_ids[:offset]
            assert segment.token_ids[place] == source.completion.token_ids[offset]
            assert next(logprobs) == source.completion.logprobs[offset]
            trained.append((index, offset))
        assert next(logprobs, None) is None
    sampled = [(i, k) for i, t in enumerate(played.turns) for k in range(len(t.completion.token_ids))]
    assert sorted(trained) == sampled


@given(fracturing())
@settings(max_examples=200, deadline=None)
def test_segments_are_as_few_as_the_fractures_allow(played: Trajectory) -> None:
    sampling = [t for t in played.turns if t.completion.token_ids]
    fractures = 0
    for before, after in pairwise(sampling):
        history = list(before.prompt_ids) + list(before.completion.token_ids)
        fractures += list(after.prompt_ids)[: len(history)] != history
    assert len(segments_of(played)) == (fractures + 1 if sampling else 0)


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return max(n for n in range(min(len(left), len(right)) + 1) if left[:n] == right[:n])


def brute_force_parent(segments: tuple[Segment, ...], number: int) -> tuple[int | None, int]:
    shared = [common(earlier.token_ids, segments[number].token_ids) for earlier in segments[:number]]
    longest = max(shared, default=0)
    return (shared.index(longest) if longest else None), longest


@given(fracturing())
@settings(max_examples=400, deadline=None)
def test_the_parent_is_the_earliest_segment_with_the_longest_common_prefix(played: Trajectory) -> None:
    segments = segments_of(played)
    for number, segment in enumerate(segments):
        assert (segment.parent, segment.shared_length) == brute_force_parent(segments, number)


def test_prefixes_longer_than_a_comparison_block_are_measured_to_the_token() -> None:
    long = tuple(range(1000))
    other = long[:700] + (-1,) * 300
    _, segment = segments_of(trajectory(turn(0, long, (7,)), turn(1, other, (8,))))
    assert (segment.parent, segment.shared_length) == (0, 700)


def test_the_example_of_the_design_page() -> None:
    p1, c1, t1, c2, q, c3, t3, c4 = ((n, n + 50) for n in range(1, 9))
    first, second = segments_of(
        trajectory(turn(0, p1, c1), turn(1, p1 + c1 + t1, c2), turn(2, q, c3), turn(3, q + c3 + t3, c4))
    )
    assert first.token_ids == p1 + c1 + t1 + c2
    assert first.loss_mask == (False,) * 2 + (True,) * 2 + (False,) * 2 + (True,) * 2
    assert second.token_ids == q + c3 + t3 + c4
    assert second.turn_index == (-1, -1, 2, 2, -1, -1, 3, 3)


def test_an_overwriting_agent_gets_a_segment_a_turn() -> None:
    reads = [turn(i, (1, 2, 100 + i), (200 + i, 3)) for i in range(5)]
    segments = segments_of(trajectory(*reads))
    assert [s.token_ids for s in segments] == [(1, 2, 100 + i, 200 + i, 3) for i in range(5)]
    assert [(s.parent, s.shared_length) for s in segments] == [(None, 0)] + [(0, 2)] * 4


def test_the_tokens_of_an_aborted_completion_are_trained_as_far_as_they_got() -> None:
    (segment,) = segments_of(trajectory(turn(0, (1,), (2, 3), StopReason.ABORTED)))
    assert segment.loss_mask == (False, True, True)


def test_a_turn_that_sampled_nothing_is_passed_over() -> None:
    aborted = turn(1, (9, 9), (), StopReason.ABORTED)
    (segment,) = segments_of(trajectory(turn(0, (1,), (2,)), aborted, turn(2, (1, 2, 5), (3,))))
    assert (segment.token_ids, segment.turn_index) == ((1, 2, 5, 3), (-1, 0, -1, 2))
    assert segments_of(trajectory(aborted)) == ()
    assert segments_of(trajectory()) == ()


def test_a_missing_logprob_is_refused() -> None:
    broken = Turn((1,), Completion((2, 3), (-0.5,), StopReason.STOP), 0, "act")
    with pytest.raises(ValueError, match="turn 0: 2 tokens, 1 log-prob"):
        segments_of(trajectory(broken))


def test_a_thousand_turns_are_not_compared_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counting(left: tuple[int, ...], right: tuple[int, ...], start: int, stop: int) -> int:
        compared.append(stop - start)
        return first_difference(left, right, start, stop)

    first_difference = segments_module._first_difference
    monkeypatch.setattr(segments_module, "_first_difference", counting)
    shared = tuple(range(500))
    reads = [turn(i, (*shared, 5000 + i // 10, 6000 + i), (6, 7)) for i in range(1000)]
    assert len(segments_of(trajectory(*reads))) == 1000
    assert sum(compared) < 2 * sum(len(read.prompt_ids) for read in reads)  # every pair: 500 times as many
