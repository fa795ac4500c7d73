"""`credit.final_segment: all`, the rows of DCPO in the learner, and what the configuration refuses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from palimpsest.config.schema import CreditConfig, LossConfig, OptimConfig
from palimpsest.credit.assign import assign
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.rollout.segments import segments_of
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn
from support.models import build_llama

HEAD = (8, 9)
"""What the model speaks after."""
STOP = 0


def turn(step: int, prompt: Sequence[int], sampled: Sequence[int]) -> Turn:
    logprobs = tuple(-0.01 * (100 * step + place + 1) for place in range(len(sampled)))
    return Turn((*prompt, *HEAD), Completion(tuple(sampled), logprobs, StopReason.STOP), step, "act")


def pruning(*, cut: bool = True) -> Trajectory:
    """Question 1; three searches 21, 22, 23 with results 31, 32, 33; the last reply prunes result 31, with its call,
    and half of the second reply; then the answer."""
    first, second, third = (21, STOP), (22, 50, 51, STOP), (23, STOP)
    one = (1,)
    two = (*one, *HEAD, *first, 31)
    three = (*two, *HEAD, *second, 32)
    kept = (22, 51, STOP) if cut else second
    rewritten = (1, *HEAD, *kept, 32, *HEAD, *third, 33)
    turns = (turn(0, one, first), turn(1, two, second), turn(2, three, third), turn(3, rewritten, (24, STOP)))
    return Trajectory("p", "g", 0, turns, Outcome.ANSWERED)


def test_the_final_segment_trains_what_was_sampled_in_it_and_no_more() -> None:
    """C9.1: the original trains every assistant token of the last context again, off the context it was sampled in."""
    first, final = segments_of(pruning())
    assert [final.token_ids[i] for i in final.positions] == [24, STOP]
    trained = [segment.token_ids[i] for segment in (first, final) for i in segment.positions]
    assert trained == [21, STOP, 22, 50, 51, STOP, 23, STOP, 24, STOP]  # every sampled token once


@pytest.mark.parametrize("cut", [True, False])
def test_all_trains_surviving_assistant_tokens_again_as_the_code_does(cut: bool) -> None:
    played = pruning(cut=cut)
    final = segments_of(played, "all")[-1]
    again = [22, 51, STOP] if cut else [22, 50, 51, STOP]
    places = final.positions
    assert [final.token_ids[i] for i in places] == [*again, 23, STOP, 24, STOP]
    for i, logprob in zip(places, final.logprobs, strict=True):  # that of the very token that was sampled
        sampled = played.turns[final.turn_index[i]].completion
        assert (final.token_ids[i], logprob) in zip(sampled.token_ids, sampled.logprobs, strict=True)
    assert segments_of(played, "all")[:-1] == segments_of(played)[:-1]


def test_all_is_the_same_where_nothing_was_pruned_or_nothing_survived() -> None:
    straight = Trajectory(
        "p", "g", 0, (turn(0, (1,), (2, STOP)), turn(1, (1, *HEAD, 2, STOP, 3), (4, STOP))), Outcome.ANSWERED
    )
    assert segments_of(straight, "all") == segments_of(straight)
    memory = Trajectory("p", "g", 0, (turn(0, (1, 5), (7, STOP)), turn(1, (1, 7, 6), (4, STOP))), Outcome.ANSWERED)
    assert segments_of(memory, "all") == segments_of(memory)  # a reply carried over as a memory is no assistant text


def test_a_random_history_is_found_again_whatever_was_deleted() -> None:
    """Whole turns are deleted at random; expected by construction, not by searching."""
    for seed in range(300):
        draw = random.Random(seed)
        turns: list[Turn] = []
        history: list[tuple[int, tuple[int, ...], int]] = []  # turn, what it said, the tool's result
        for step in range(draw.randrange(2, 9)):
            prompt = [1]
            for _, said, result in history:
                prompt += [*HEAD, *said, result]
            sampled = (100 + step, *(draw.randrange(20, 24) for _ in range(draw.randrange(4))), STOP)
            turns.append(turn(step, prompt, sampled))
            history.append((step, sampled, draw.randrange(30, 34)))
        history = [entry for entry in history if draw.random() < 0.6]
        prompt, expected = [1], []
        for step, said, result in history:
            expected += [(len(prompt) + len(HEAD) + i, step) for i in range(len(said))]
            prompt += [*HEAD, *said, result]
        turns.append(turn(len(turns), [*prompt, 5], (99, STOP)))
        played = Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED)
        segments = segments_of(played, "all")
        if len(segments) == 1:
            continue
        begin = len(prompt) + 1 + len(HEAD)
        found = [(place, step) for place, step in enumerate(segments[-1].turn_index[:begin]) if step >= 0]
        assert found == expected


def group(rewards: Sequence[float], *played: Trajectory) -> Group:
    return Group(Problem("p", "?", ("a",)), played, tuple(map(Grade, rewards)))


def other(rollout: int = 1) -> Trajectory:
    return Trajectory("p", "g", rollout, (turn(0, (1,), (30, STOP)),), Outcome.ANSWERED)


def test_tokens_trained_again_get_their_trajectorys_advantage() -> None:
    config = CreditConfig(adv_estimator="mean_std", final_segment="all")
    (batch,) = assign([group([1, 0], pruning(), other())], config, 1)
    final = batch.segments[1]
    assert final.advantages == pytest.approx((2**-0.5,) * 7, abs=1e-5)


def test_rows_drawn_are_counted_repeated_and_unused() -> None:
    config = CreditConfig(adv_estimator="mean_std", segments_per_group=6)
    (batch,) = assign([group([1, 0], pruning(), other())], config, 1, (0, "dcpo", 1))
    counts = batch.counts
    assert (counts["segments"], counts["segments_repeated"], counts["segments_unused"]) == (6, 3, 0)
    (few,) = assign([group([1, 0], pruning(), other())], CreditConfig(segments_per_group=1), 1, (0, "dcpo", 1))
    assert (few.counts["segments_repeated"], few.counts["segments_unused"]) == (0, 2)
    assert few.counts["untrained_tokens"] == few.counts["sampled_tokens"] - few.counts["trained_tokens"] > 0
    assert counts["untrained_tokens"] == 0
    assert few.minima["effective_weight_min"] == 0  # the trajectory that was not drawn
    assert few.maxima["effective_weight_max"] == 2


def test_draws_are_keyed_by_what_a_group_is_and_not_by_its_place_in_the_batch() -> None:
    """C9.14: the original samples from one global generator and aligns groups by the order of a dictionary."""

    def named(name: str) -> Group:
        played = tuple(
            Trajectory(
                name,
                f"1/0/{name}",
                g,
                tuple(turn(i, (ord(name), g, i), (g, i, STOP)) for i in range(4)),
                Outcome.ANSWERED,
            )
            for g in range(4)
        )
        return Group(Problem(name, "?", ("a",)), played, tuple(map(Grade, (1.0, 0.0, 0.5, 0.0))))

    config = CreditConfig(adv_estimator="mean_std", segments_per_group=6)

    def drawn(names: str, step: int = 1) -> dict[int, set[tuple[int, ...]]]:
        (batch,) = assign([named(name) for name in names], config, 1, (0, "dcpo", step))
        rows: dict[int, set[tuple[int, ...]]] = {}
        for one in batch.segments:
            rows.setdefault(one.segment.token_ids[0], set()).add(one.segment.token_ids)
        return rows

    assert drawn("abc") == drawn("cab")
    assert drawn("a") == {ord("a"): drawn("abc")[ord("a")]}  # neither are other groups' draws in the way
    assert drawn("a", step=2) != drawn("a")


@pytest.mark.parametrize("aggregate", ["token", "segment", "prompt"])
def test_batches_of_drawn_rows_weigh_one_and_hold_exactly_n_a_group(aggregate: str) -> None:
    config = CreditConfig(
        adv_estimator="mean_std",
        agg_mode=aggregate,
        segments_per_group=5,
        dynamic_sampling={},
        overlong={"max_tokens": 4, "buffer": 2},
    )
    groups = [group([1, 0], pruning(), other()) for _ in range(5)] + [group([1, 1], pruning(), other())]
    batches = assign(groups, config, 2, (0, "dcpo", 1))
    assert [len(batch.segments) for batch in batches] == [15, 10]  # 3 and 2 groups; the sixth has no signal
    for batch in batches:
        assert sum(w for one in batch.segments for w in one.weights) == pytest.approx(1)


def test_sampling_under_aggregate_trajectory_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ValidationError, match=r"credit\.segments_per_group=12 .*credit\.agg_mode=trajectory.*token, segment or"
    ):
        CreditConfig(segments_per_group=12, agg_mode="trajectory")
    assert CreditConfig(agg_mode="trajectory").segments_per_group is None


def test_a_segment_drawn_twice_is_computed_once_and_pulls_twice() -> None:
    """Gradient of a doubled row against the same row with twice its weight; the forest lays it out once."""
    long = Trajectory("p", "g", 1, (turn(0, (5,) * 200, (30, 31, STOP)),), Outcome.ANSWERED)
    (batch,) = assign([group([1, 0], pruning(), long)], CreditConfig(agg_mode="segment"), 1)
    first, final, lone = batch.segments
    heavy = TrainSegment(lone.segment, lone.advantages, tuple(2 * w for w in lone.weights))
    twice, once = learnt([first, final, lone, lone]), learnt([first, final, heavy])
    assert twice[1] == once[1]
    assert all((a - b).abs().max() < 1e-6 for a, b in zip(twice[0], once[0], strict=True))


def learnt(rows: Sequence[TrainSegment]) -> tuple[list[Any], float]:
    """Gradients and the number of tokens computed."""
    model = build_llama(64)
    learner = ForestLearner(model, optim=OptimConfig(), loss=LossConfig(), micro_batch_tokens=4096)
    batch = StepBatch(tuple(rows))
    stats = learner.accumulate(batch)
    return [p.grad.clone() for p in model.parameters() if p.grad is not None], stats.physical_tokens
