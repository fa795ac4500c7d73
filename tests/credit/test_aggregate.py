"""The policy gradient of whole groups in float64, compared with loops over turns and tokens."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palimpsest.config.schema import CreditConfig, LossConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.credit.assign import assign
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.losses import policy_loss
from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.types import Grade, Trajectory, Turn
from support.credit import group_of
from support.forests import exact
from support.groups import make_episode, make_turn

LOSS = LossConfig(clip_ratio_low=0.2, clip_ratio_high=0.28, dual_clip=3.0, kl_loss_coef=0.05)
VOCAB = 60
PLANS: dict[str, Sequence[Sequence[str]]] = {
    "one": (["rewrite", "append", "append"], ["rewrite"] * 4, ["rewrite", "again", "append"], ["rewrite"]),
    "two": (["rewrite", "append", "rewrite", "append"], ["rewrite"], ["rewrite", "rewrite"]),
}
REWARDS: dict[str, list[float | None]] = {"one": [1.0, 0.0, 0.5, None], "two": [0.0, 1.0, 0.0]}

Score = Callable[[Sequence[int], int], Tensor]


def play(plan: Sequence[str], rollout: int, draw: random.Random, score: Score) -> Trajectory:
    """Turns that append to the context, rewrite it, or repeat the last prompt.

    Their log-probabilities differ from the model's by up to 1.5 nats, so that every clip is reached.
    """
    turns: list[Turn] = []
    for step, move in enumerate(plan):
        fresh = tuple(draw.choices(range(VOCAB), k=draw.randint(2, 4)))
        if move == "append" and turns:
            prompt = turns[-1].prompt_ids + turns[-1].completion.token_ids + fresh
        else:
            prompt = turns[-1].prompt_ids if move == "again" and turns else (1, 2, *fresh)
        sampled = tuple(draw.choices(range(VOCAB), k=draw.randint(1, 4)))
        scores = [score((*prompt, *sampled[:i]), token).item() for i, token in enumerate(sampled)]
        made = make_turn(prompt, sampled, step, move)
        logprobs = tuple(value + draw.uniform(-1.5, 1.5) for value in scores)
        turns.append(replace(made, completion=replace(made.completion, logprobs=logprobs)))
    return make_episode(*turns, rollout=rollout)


def scorer(model: Any) -> Score:
    def score(ids: Sequence[int], token: int) -> Tensor:
        logits: Tensor = model(input_ids=torch.tensor([list(ids)])).logits[0, -1]
        return logits[token] - torch.logsumexp(logits, 0)

    return score


class Case:
    """A model, the reference it started from, and two groups of uneven size; one trajectory is ungraded."""

    def __init__(self, model: Any) -> None:
        self.reference, self.model = copy.deepcopy(model), model
        with torch.no_grad():
            for number, p in enumerate(model.parameters()):
                noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(number))
                p.add_(noise, alpha=0.02)  # k3 stays below its cap
        draw, score = random.Random(3), scorer(exact(model))
        self.groups = []
        for name, plans in PLANS.items():
            played = [play(plan, i, draw, score) for i, plan in enumerate(plans)]
            self.groups.append(group_of([Grade(reward) for reward in REWARDS[name]], *played, name=name))


@pytest.fixture
def case(tiny_model: Any) -> Case:
    return Case(tiny_model)


def looped_advantages(rewards: list[float], baseline: str) -> list[float]:
    n = len(rewards)
    mean = sum(rewards) / n
    if baseline == "leave_one_out":
        return [r - (sum(rewards) - r) / (n - 1) for r in rewards]
    if baseline == "mean_std":
        return [(r - mean) / (math.sqrt(sum((x - mean) ** 2 for x in rewards) / (n - 1)) + 1e-6) for r in rewards]
    return [r - mean for r in rewards]


def looped_token_loss(new: Tensor, old: float, reference: Tensor, advantage: float) -> Tensor:
    ratio = torch.exp(new - old)
    value = -advantage * ratio
    if advantage > 0 and ratio > 1.28:
        value = torch.tensor(-advantage * 1.28, dtype=torch.float64)
    if advantage < 0 and ratio < 0.8:
        value = torch.tensor(-advantage * 0.8, dtype=torch.float64)
    if advantage < 0 and ratio > 3.0:
        value = torch.tensor(-advantage * 3.0, dtype=torch.float64)
    return value + 0.05 * (torch.exp(reference - new) - (reference - new) - 1)


def looped_loss(case: Case, model: Any, baseline: str, aggregate: str) -> Tensor:
    """Sum over units of the mean token loss in the unit, divided by the number of units."""
    new, ref = scorer(model), scorer(exact(case.reference))
    units: dict[Any, list[Tensor]] = {}
    for group in case.groups:
        graded = [(t, g.value) for t, g in zip(group.trajectories, group.grades, strict=True) if g.value is not None]
        advantages = looped_advantages([value for _, value in graded], baseline)
        for (played, _), advantage in zip(graded, advantages, strict=True):
            segment, unit = 0, (group.problem.id, played.rollout)
            for turn in played.turns:
                segment += turn.name != "append"  # the plan says where the context fractures
                ids = list(turn.prompt_ids)
                for token, old in zip(turn.completion.token_ids, turn.completion.logprobs, strict=True):
                    loss = looped_token_loss(new(ids, token), old, ref(ids, token).detach(), advantage)
                    keys = {"token": 0, "segment": (*unit, segment), "trajectory": unit, "prompt": unit[0]}
                    units.setdefault(keys[aggregate], []).append(loss)
                    ids.append(token)
    return torch.stack([torch.stack(losses).mean() for losses in units.values()]).mean()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def segment_columns(model: Any, item: TrainSegment) -> dict[str, Tensor]:
    """Log-probabilities, advantages, weights and the sampler's log-probabilities of a segment's trained tokens."""
    where = torch.tensor(item.segment.positions, dtype=torch.long)
    ids = torch.tensor(item.segment.token_ids)
    logits = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], -1)
    columns = {"advantages": item.advantages, "weights": item.weights, "old": item.segment.logprobs}
    tensors = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
    return tensors | {"new": logits.gather(1, ids[1:, None])[:, 0][where - 1]}


def batch_loss(model: Any, reference: Any, batch: StepBatch) -> Tensor:
    losses = []
    for item in batch.segments:
        column = segment_columns(model, item)
        with torch.no_grad():
            anchor = segment_columns(reference, item)["new"]
        logprobs = {"logprobs": column["new"], "old_logprobs": column["old"], "sampler_logprobs": column["old"]}
        credit = {name: column[name] for name in ("advantages", "weights")}
        losses.append(policy_loss(**logprobs, **credit, ref_logprobs=anchor, entropy=None, config=LOSS)[0])
    return torch.stack(losses).sum()


@pytest.mark.parametrize(
    ("baseline", "aggregate"),
    [("mean", "token"), ("mean_std", "segment"), ("leave_one_out", "trajectory"), ("mean_std", "prompt")],
)
def test_the_gradient_of_whole_groups_equals_the_loops(case: Case, baseline: Any, aggregate: Any) -> None:
    looped, ours = exact(case.model), exact(case.model)
    expected = looped_loss(case, looped, baseline, aggregate)
    expected.backward()
    (batch,) = assign(case.groups, CreditConfig(adv_estimator=baseline, agg_mode=aggregate), 1)
    loss = batch_loss(ours, exact(case.reference), batch)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    reference_gradients = gradients(looped)
    assert max(g.abs().max() for g in reference_gradients.values()) > 1e-3
    for name, gradient in gradients(ours).items():
        torch.testing.assert_close(gradient, reference_gradients[name], rtol=1e-9, atol=1e-13)
    learner_gradient_equals(case, batch, expected.item(), reference_gradients)


def learner_gradient_equals(case: Case, batch: StepBatch, loss: float, reference_gradients: dict[str, Tensor]) -> None:
    """The same for the embedded learner, in float32."""
    model = copy.deepcopy(case.reference)  # the KL term compares with the learner's first weights
    learner = ForestLearner(model, optim=OptimConfig(), loss=LOSS, micro_batch_tokens=40)
    model.load_state_dict(case.model.state_dict())
    stats = learner.accumulate(batch)
    assert stats.loss == pytest.approx(loss, rel=1e-5)
    assert stats.token_sums["clip_fraction"] > stats.token_sums["dual_clip"] > 0  # the case reaches every branch
    for name, gradient in gradients(model).items():
        bound = 1e-5 * reference_gradients[name].abs().max().item()
        torch.testing.assert_close(gradient.double(), reference_gradients[name], rtol=1e-4, atol=bound)
