"""Samples of older weights: their loss compared with float64 loops, and their versions."""

from __future__ import annotations

import copy
import json
import math
import random
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import palimpsest
from palimpsest.config.schema import LossConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.rollout.trajectory_file import read_groups
from support.forests import exact, masked
from support.models import build_llama, sampling_gap
from support.small_run import small_run

VOCAB = 60
LOSS = LossConfig(
    old_logprobs="recompute", importance_sampling_cap=1.3, clip_ratio_low=0.2, clip_ratio_high=0.28, dual_clip=3.0,
    entropy_coeff=0.003, kl_loss_coef=0.01,
)  # fmt: skip


def distribution(model: Any, ids: list[int]) -> Tensor:
    """[V] nats of the token after `ids`."""
    logits: Tensor = model(torch.tensor([ids])).logits[0, -1]
    return logits - torch.logsumexp(logits, 0)


def moved(model: Any, scale: float) -> Any:
    """A copy with weights as after several optimizer steps."""
    model, draw = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=draw, dtype=p.dtype), alpha=scale)
    return model


def sampled_by(model: Any, draw: random.Random) -> StepBatch:
    """Segments whose log-probabilities are those of `model`."""
    segments = []
    for _ in range(3):
        ids = [draw.randrange(VOCAB) for _ in range(draw.randint(6, 12))]
        mask = [False, *(draw.random() < 0.6 for _ in ids[1:])]
        with torch.no_grad():
            logprobs = [float(distribution(model, ids[:t])[ids[t]]) if mask[t] else 0.0 for t in range(len(ids))]
        columns = ([draw.uniform(low, 1) for _ in ids] for low in (-1, 0.1))
        advantages, weights = (tuple(compress(column, mask)) for column in columns)
        segments.append(TrainSegment(masked(ids, mask, logprobs), advantages, weights))
    return StepBatch(tuple(segments))


def looped(model: Any, before: Any, reference: Any, batch: StepBatch) -> tuple[Tensor, int]:
    """The loss of docs/explanation/credit-and-loss.md token by token, and the number of truncated weights."""
    total, truncated = torch.zeros((), dtype=torch.float64), 0
    for item in batch.segments:
        ids = list(item.segment.token_ids)
        rows = zip(item.segment.positions, item.segment.logprobs, item.advantages, item.weights, strict=True)
        for t, sampled, advantage, weight in rows:
            new = distribution(model, ids[:t])
            with torch.no_grad():
                old = float(distribution(before, ids[:t])[ids[t]])
                anchor = float(distribution(reference, ids[:t])[ids[t]])
            ratio = torch.exp(new[ids[t]] - old)
            loss = -advantage * ratio
            if (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8):
                loss = torch.tensor(-advantage * (1.28 if advantage > 0 else 0.8), dtype=torch.float64)
            if advantage < 0 and ratio > 3.0:
                loss = torch.tensor(-advantage * 3.0, dtype=torch.float64)
            importance = math.exp(old - sampled)
            truncated += importance > 1.3
            gap = anchor - new[ids[t]]
            loss = loss * min(importance, 1.3) + 0.01 * (torch.exp(gap) - gap - 1) + 0.003 * (new.exp() * new).sum()
            total = total + weight * loss
    return total, truncated


@pytest.mark.parametrize("ahead", [1, 2])
def test_truncated_importance_sampling_of_stale_batches_equals_the_loops(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled_with = exact(build_llama(VOCAB, hidden_size=16, intermediate_size=24))
    start = moved(sampled_with, 0.02 * ahead)
    model, draw = copy.deepcopy(start), random.Random(ahead)
    batches = [sampled_by(sampled_with, draw) for _ in range(2)]
    optim = OptimConfig(learning_rate=1e-2, weight_decay=0.0, max_grad_norm=None)
    learner = ForestLearner(model, optim=optim, loss=LOSS, micro_batch_tokens=20)
    truncated, applied = 0, learner.apply

    def compared(stats: Any) -> Any:
        nonlocal truncated
        now = copy.deepcopy(model)
        ours = {name: p.grad for name, p in model.named_parameters()}
        now.zero_grad()
        loss, count = looped(now, start, start, batches[learner.version])
        loss.backward()
        assert stats.loss == pytest.approx(loss.item(), abs=1e-12)
        for name, p in now.named_parameters():
            assert torch.allclose(p.grad, ours[name], atol=1e-12, rtol=0), name
        truncated += count
        return applied(stats)

    monkeypatch.setattr(learner, "apply", compared)
    learner.update(batches)
    assert learner.version == 2
    assert truncated > 0


def test_completions_name_the_weights_that_sampled_them(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sums.py").write_text("def ids(problem, trajectory):\n    return float(len(str(trajectory)) % 7)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    steps, run = 3, tmp_path / "run"
    train = {"max_steps": steps, "max_off_policy_steps": 1, "save_total_limit": steps, "group_size": 4}
    rest = {"optim": {"learning_rate": 0.01}, "reward": {"name": "sums:ids", "unsupported_penalty": 0.0}}
    overrides = small_run(tiny_model_folder, **train) | rest
    palimpsest.train("memagent-quickstart", overrides, out=run)
    folders = {0: tiny_model_folder}
    for saved in sorted((run / "checkpoints").iterdir()):
        folders[json.loads((saved / "learner" / "learner.json").read_text())["version"]] = saved
    assert sorted(folders) == [0, 1, 2, 3]
    models = {v: AutoModelForCausalLM.from_pretrained(f, attn_implementation="eager") for v, f in folders.items()}
    for step, version in ((1, 0), (2, 0), (3, 1)):
        groups = read_groups(run / "trajectories" / f"step-{step:06d}.jsonl.zst").groups
        turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
        for turn in turns:
            done = turn.completion
            gaps = {v: sampling_gap(model, turn.prompt_ids, done) for v, model in models.items()}
            assert (done.policy_version, done.last_policy_version) == (version, version)
            assert gaps.pop(version) < 1e-4 < min(gaps.values())
