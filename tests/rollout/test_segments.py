"""Segments: every sampled token is trained once in its own context, whatever a policy does to its prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.rollout.segments import segments_of
from palimpsest.types import Completion, Grade, StopReason, Trajectory, Turn
from support.credit import advantages, group_of
from support.groups import make_episode, make_turn


def turn(step: int, prompt: Sequence[int], sampled: Sequence[int], stop: StopReason = StopReason.STOP) -> Turn:
    """With different log-probabilities for all tokens."""
    logprobs = tuple(-(step + 1) - offset / 100 for offset in range(len(sampled)))
    return Turn(tuple(prompt), Completion(tuple(sampled), logprobs, stop), step, "act")


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
            prompts = {"unchanged": history, "prune": history[:cut] + history[cut + 1 :], "again": base.prompt_ids}
            prompt = prompts.get(move, history + extra)
        turns.append(turn(step, prompt, draw(TOKENS), draw(st.sampled_from(list(StopReason)))))
    return make_episode(*turns)


@given(fracturing())
@settings(max_examples=150)
def test_every_sampled_token_is_trained_once_in_the_context_it_was_sampled_in(played: Trajectory) -> None:
    trained = []
    for segment in segments_of(played):
        assert len(segment.token_ids) == len(segment.loss_mask) == len(segment.turn_index)
        logprobs = iter(segment.logprobs)
        for at, (mask, index) in enumerate(zip(segment.loss_mask, segment.turn_index, strict=True)):
            assert mask is (index >= 0) is (at in segment.positions)
            if not mask:
                continue
            source = played.turns[index]
            offset = at - len(source.prompt_ids)
            assert segment.token_ids[:at] == source.prompt_ids + source.completion.token_ids[:offset]
            assert segment.token_ids[at] == source.completion.token_ids[offset]
            assert next(logprobs) == source.completion.logprobs[offset]
            trained.append((index, offset))
        assert next(logprobs, None) is None
    assert sorted(trained) == [(i, k) for i, t in enumerate(played.turns) for k in range(len(t.completion.token_ids))]


@given(fracturing())
@settings(max_examples=100)
def test_segments_are_as_few_as_the_fractures_allow(played: Trajectory) -> None:
    sampling = [t for t in played.turns if t.completion.token_ids]
    fractures = 0
    for before, after in pairwise(sampling):
        history = list(before.prompt_ids) + list(before.completion.token_ids)
        fractures += list(after.prompt_ids)[: len(history)] != history
    assert len(segments_of(played)) == (fractures + 1 if sampling else 0)


def test_aborted_turns_train_the_tokens_they_sampled() -> None:
    aborted = turn(1, (9, 9), (), StopReason.ABORTED)
    (segment,) = segments_of(make_episode(turn(0, (1,), (2,), StopReason.ABORTED), aborted, turn(2, (1, 2, 5), (3,))))
    assert (segment.token_ids, segment.turn_index) == ((1, 2, 5, 3), (-1, 0, -1, 2))
    assert segments_of(make_episode(aborted)) == segments_of(make_episode()) == ()


def test_a_missing_logprob_is_rejected() -> None:
    with pytest.raises(ValueError, match="turn 0: 2 tokens, 1 log-prob"):
        segments_of(make_episode(Turn((1,), Completion((2, 3), (-0.5,), StopReason.STOP), 0, "act")))


def test_a_frozen_turn_is_context_within_one_segment_like_text_of_a_tool() -> None:
    frozen = make_turn((1, 2, 3, 4), (5,), 1, trained=False)
    turns = [make_turn((1,), (2, 3)), frozen, make_turn((1, 2, 3, 4, 5, 6), (7,), 2)]
    (segment,) = segments_of(make_episode(*turns))
    (tool,) = segments_of(make_episode(turns[0], turns[2]))
    assert (segment.token_ids, segment.turn_index) == ((1, 2, 3, 4, 5, 6, 7), (-1, 0, 0, -1, -1, -1, 2))
    assert (tool.token_ids, tool.loss_mask, tool.logprobs) == (segment.token_ids, segment.loss_mask, segment.logprobs)
    assert segments_of(make_episode(frozen)) == ()


@pytest.mark.parametrize(("trained", "expected"), [(True, [0, 0, 0, 1, 1, 1, 2, 2]), (False, [0, 0, 0, 2, 2])])
def test_a_frozen_turn_is_not_trained_when_earlier_turns_are_trained_again(trained: bool, expected: list[int]) -> None:
    end, agent, critic = (9,), (4, 5, 0), (6, 7, 0)
    turns = [make_turn((1, *end), agent), make_turn((1, *end, *agent, *end), critic, 1, trained=trained)]
    last = segments_of(make_episode(*turns, make_turn((2, *end, *agent, *end, *critic, *end), (8, 0), 2)), "all")[-1]
    assert [index for index in last.turn_index if index >= 0] == expected


HEAD, STOP = (8, 9), 0
"""The tokens before a reply, and the one that ends it."""


def headed(step: int, prompt: Sequence[int], sampled: Sequence[int]) -> Turn:
    return turn(step, (*prompt, *HEAD), sampled)


def pruning(*, cut: bool = True) -> Trajectory:
    """Question 1; searches 21, 22, 23 with results 31, 32, 33; the last prunes 31, its call and half of the second."""
    first, second, third = (21, STOP), (22, 50, 51, STOP), (23, STOP)
    two = (1, *HEAD, *first, 31)
    three = (*two, *HEAD, *second, 32)
    rewritten = (1, *HEAD, *((22, 51, STOP) if cut else second), 32, *HEAD, *third, 33)
    prompts = ((1,), two, three, rewritten)
    return make_episode(*map(headed, range(4), prompts, (first, second, third, (24, STOP))))


@pytest.mark.parametrize(("cut", "again"), [(True, [22, 51, STOP]), (False, [22, 50, 51, STOP])])
def test_all_trains_surviving_assistant_tokens_again_as_the_code_does(cut: bool, again: list[int]) -> None:
    played = pruning(cut=cut)
    first, once = segments_of(played)
    trained = [segment.token_ids[i] for segment in (first, once) for i in segment.positions]
    assert trained == [21, STOP, 22, 50, 51, STOP, 23, STOP, 24, STOP]
    *earlier, final = segments_of(played, "all")
    assert earlier == [first]
    assert [final.token_ids[i] for i in final.positions] == [*again, 23, STOP, 24, STOP]
    for i, logprob in zip(final.positions, final.logprobs, strict=True):  # the one of that sampled token
        sampled = played.turns[final.turn_index[i]].completion
        assert (final.token_ids[i], logprob) in zip(sampled.token_ids, sampled.logprobs, strict=True)
    group = group_of([Grade(1.0), Grade(0.0)], played, make_episode(headed(0, (1,), (30, STOP)), rollout=1))
    credit = advantages(group, adv_estimator="mean_std", final_segment="all")
    assert credit == pytest.approx([2**-0.5] * (len(credit) - 2) + [-(2**-0.5)] * 2, abs=1e-5)


@pytest.mark.parametrize(
    "turns",
    [
        [headed(0, (1,), (2, STOP)), headed(1, (1, *HEAD, 2, STOP, 3), (4, STOP))],  # nothing was pruned
        [headed(0, (1, 5), (7, STOP)), headed(1, (1, 7, 6), (4, STOP))],  # a reply as memory is not assistant text
    ],
)
def test_all_equals_the_default_where_no_assistant_text_survives_a_prune(turns: list[Turn]) -> None:
    assert segments_of(make_episode(*turns), "all") == segments_of(make_episode(*turns))


def test_all_finds_every_reply_of_a_random_history_after_deletions() -> None:
    for seed in range(300):
        draw = random.Random(seed)
        turns: list[Turn] = []
        history: list[tuple[int, tuple[int, ...], int]] = []  # turn, reply, result of the tool
        for step in range(draw.randrange(2, 9)):
            prompt = [1, *(i for _, reply, result in history for i in (*HEAD, *reply, result))]
            sampled = (100 + step, *(draw.randrange(20, 24) for _ in range(draw.randrange(4))), STOP)
            turns.append(headed(step, prompt, sampled))
            history.append((step, sampled, draw.randrange(30, 34)))
        prompt, expected = [1], []
        for step, reply, result in (entry for entry in history if draw.random() < 0.6):
            expected += [(len(prompt) + len(HEAD) + i, step) for i in range(len(reply))]
            prompt += [*HEAD, *reply, result]
        turns.append(headed(len(turns), [*prompt, 5], (99, STOP)))
        segments = segments_of(make_episode(*turns), "all")
        if len(segments) > 1:
            indices = segments[-1].turn_index[: len(prompt) + 1 + len(HEAD)]
            assert [(at, step) for at, step in enumerate(indices) if step >= 0] == expected
