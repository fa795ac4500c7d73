"""The learner: gradients compared with plain PyTorch, steps, and saved state."""

from __future__ import annotations

import copy
import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import palimpsest
from palimpsest.config.schema import LossConfig, ModelConfig, RunConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.checkpoint_state import FACTS
from palimpsest.engines.embedded.engine import EmbeddedEngine
from palimpsest.engines.embedded.learner import ForestLearner, check_savable
from palimpsest.engines.embedded.model_loading import load_model
from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.errors import CheckpointError, ModelError
from palimpsest.types import Completion, StopReason
from support.forests import apart, completed, credited, gradients
from support.models import build_llama
from support.small_run import small_run

VOCAB = 200


def segment(draw: random.Random, *, first: int = 1) -> TrainSegment:
    """Random tokens with a few trained spans, and a credit per token."""
    length = draw.randint(6, 50)
    mask = tuple(i >= first and draw.random() < 0.3 for i in range(length))
    return credited([draw.randrange(VOCAB) for _ in range(length)], mask, draw)


def batch_of(count: int, seed: int = 0) -> StepBatch:
    draw = random.Random(seed)
    return StepBatch(tuple(segment(draw) for _ in range(count)))


def learner_of(model: Any, **changes: Any) -> ForestLearner:
    options = {"optim": OptimConfig(learning_rate=1e-3), "loss": LossConfig(), "micro_batch_tokens": 150}
    return ForestLearner(model, **{**options, **changes})


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_that_of_separate_unpadded_segments(temperature: float) -> None:
    model, batch = build_llama(VOCAB), batch_of(25)
    loss, wanted = apart(copy.deepcopy(model).double(), batch, temperature=temperature)
    stats = learner_of(model, temperature=temperature).accumulate(batch)
    assert math.isclose(stats.loss, loss, rel_tol=1e-4, abs_tol=1e-6)
    for name, gradient in gradients(model).items():
        assert torch.allclose(gradient.double(), wanted[name], atol=2e-6, rtol=1e-4), name
    assert stats.tokens == sum(len(item.segment.positions) for item in batch.segments)
    assert stats.logical_tokens >= stats.physical_tokens


def silenced(batch: StepBatch, silent: set[int]) -> StepBatch:
    """`batch` with advantages of 0 in some of its segments."""
    rows = enumerate(batch.segments)
    zeros = (replace(row, advantages=(0.0,) * len(row.advantages)) if n in silent else row for n, row in rows)
    return StepBatch(tuple(zeros))


@pytest.mark.parametrize("old", ["sampler", "recompute"])
def test_segments_without_a_signal_are_not_computed_and_the_gradient_is_the_same(old: Any) -> None:
    batch = silenced(batch_of(25), set(range(5, 25)))
    results = []
    for skips in (True, False):
        model = build_llama(VOCAB)
        learner = learner_of(model, loss=LossConfig(old_logprobs=old))
        learner._skips_silent = skips
        results.append((learner.accumulate(batch), gradients(model)))
    (few, ours), (every, full) = results
    assert (few.segments, every.segments) == (5, 25)
    assert math.isclose(few.loss, every.loss, abs_tol=1e-7)
    for name, gradient in full.items():
        assert torch.allclose(ours[name], gradient, atol=1e-7), name


@pytest.mark.parametrize("loss", [LossConfig(kl_loss_coef=0.1), LossConfig(entropy_coeff=0.01)])
def test_kl_and_entropy_terms_need_every_segment(loss: LossConfig) -> None:
    batch = silenced(batch_of(8), {1, 2, 3})
    assert learner_of(build_llama(VOCAB), loss=loss).accumulate(batch).segments == 8


def test_a_step_without_any_signal_is_a_step_on_a_zero_gradient() -> None:
    model = build_llama(VOCAB)
    learner = learner_of(model)
    learner.update([batch_of(4)])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    stats = learner.accumulate(silenced(batch_of(4), {0, 1, 2, 3}))
    assert stats.segments == 1
    assert learner.apply(stats).grad_norm == 0.0
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_one_batch_may_be_one_step_or_several() -> None:
    learner = learner_of(build_llama(VOCAB), loss=LossConfig(old_logprobs="recompute"))
    batch = batch_of(6)
    (stats,) = learner.update([batch])
    assert stats.token_sums["ratio"] == stats.tokens
    assert [each.tokens for each in learner.update([batch, batch])] == [stats.tokens] * 2
    assert learner.version == 3


def test_kl_compares_with_the_starting_weights() -> None:
    model = build_llama(VOCAB)
    learner = learner_of(model, loss=LossConfig(kl_loss_coef=0.1), optim=OptimConfig(learning_rate=1e-2))
    batch = batch_of(6)
    (stats,) = learner.update([batch])
    assert stats.token_sums["kl"] == 0.0
    assert learner.accumulate(batch).token_sums["kl"] > 0.01
    assert learner_of(model)._reference is None, "coefficient 0 keeps no reference model"


def test_supervised_training_lowers_the_loss_of_its_tokens() -> None:
    learner = learner_of(build_llama(VOCAB), objective="nll", optim=OptimConfig(learning_rate=1e-2))
    batch = batch_of(10)
    steps = [learner.update([batch])[0] for _ in range(15)]
    first, *_, last = (stats.token_sums["nll"] / stats.tokens for stats in steps)
    assert last < first - 1
    assert set(steps[0].token_sums) == {"nll", "entropy"}
    assert not steps[0].maxima  # no sampler wrote the tokens


def test_a_non_finite_gradient_changes_nothing_and_is_counted() -> None:
    model = build_llama(VOCAB)
    learner = learner_of(model)
    batch = batch_of(4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    good = batch.segments[0]
    bad = StepBatch((replace(good, advantages=(math.nan,) * len(good.advantages)),))
    (stats,) = learner.update([bad])
    assert (stats.skipped, stats.skipped_total, stats.grad_norm, learner.version) == (True, 1, None, 0)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    (stats,) = learner.update([batch])
    assert (stats.skipped, stats.skipped_total) == (False, 1)
    assert learner.version == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_state_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype, tiny_tokenizer: Any) -> None:
    models = [build_llama(VOCAB).to(dtype) for _ in range(2)]
    straight, resumed = (learner_of(model, tokenizer=tiny_tokenizer) for model in models)
    for seed in range(3):
        straight.update([batch_of(5, seed=seed)])
    straight.save(tmp_path)
    resumed.load(tmp_path)
    assert resumed.version == 3
    for learner in (straight, resumed):
        for seed in range(3, 6):
            learner.update([batch_of(5, seed=seed)])
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".pt", ".bin", ".pkl")]


def test_only_one_bfloat16_weight_has_two_gradients_at_a_time() -> None:
    model = build_llama(VOCAB).to(torch.bfloat16)
    counts, expected = list[int](), dict[str, Any]()
    micro_batches = [batch_of(4, seed) for seed in (0, 1)]
    for batch in micro_batches:
        alone = learner_of(copy.deepcopy(model))
        alone.accumulate(batch)
        for name, master in alone._optimizer._masters.items():
            expected[name] = expected.get(name, 0) + master.grad
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda _: counts.append(len(gradients(model))))
    learner = learner_of(model)
    for batch in micro_batches:
        learner.accumulate(batch)
    assert max(counts) == 1
    assert all(torch.equal(master.grad, expected[name]) for name, master in learner._optimizer._masters.items())


def test_a_checkpoint_of_another_model_is_rejected(tmp_path: Path) -> None:
    learner_of(build_llama(VOCAB)).save(tmp_path)
    with pytest.raises(CheckpointError, match="does not fit"):
        learner_of(build_llama(VOCAB, intermediate_size=32)).load(tmp_path)
    with pytest.raises(CheckpointError, match="learner"):
        learner_of(build_llama(VOCAB)).load(tmp_path / "nowhere")


def test_a_resumed_kl_needs_the_model_the_run_started_from(tmp_path: Path) -> None:
    loss = LossConfig(kl_loss_coef=0.1)
    learner_of(build_llama(VOCAB), loss=loss).save(tmp_path)
    learner_of(build_llama(VOCAB), loss=loss).load(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.path"):
        learner_of(build_llama(VOCAB, seed=1), loss=loss).load(tmp_path)


def test_segments_that_cannot_be_trained_are_rejected() -> None:
    learner = learner_of(build_llama(VOCAB, max_position_embeddings=16))
    long = completed((1,) * 17, Completion((1,), (0.0,), StopReason.STOP))
    with pytest.raises(ValueError, match="18 tokens"):
        learner.accumulate(StepBatch((long,)))
    headless = completed((), Completion((1, 2), (-1.0, -1.0), StopReason.STOP))
    with pytest.raises(ValueError, match="first token"):
        learner.accumulate(StepBatch((headless,)))


def test_a_model_that_cannot_be_saved_is_rejected_before_training(tiny_model: Any, tiny_tokenizer: Any) -> None:
    check_savable(tiny_model, tiny_tokenizer)

    class Unwritable:
        def save_pretrained(self, folder: str) -> None:
            raise OverflowError("too much\nof it")

    with pytest.raises(ModelError, match=r"model: not saveable \(OverflowError: too much of it\)"):
        check_savable(tiny_model, Unwritable())


SAMPLING = {"temperature": 0.6, "top_p": 0.9}


@pytest.mark.parametrize(
    ("wrong", "saved"),
    [(SAMPLING, {"do_sample": True, **SAMPLING}), ({"length_penalty": 2.0, "num_beams": 1}, {})],
)
def test_a_generation_config_that_transformers_does_not_save_is_fixed_before_training(
    wrong: dict[str, Any], saved: dict[str, Any], tiny_model_folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_model_folder, tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2], "pad_token_id": 0, **wrong}))
    engine = EmbeddedEngine(RunConfig(model=ModelConfig(path=str(model))), objective="policy")
    engine.trainer.save(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert written.items() >= ({"eos_token_id": [2], "pad_token_id": 0} | saved).items()
    load_model(ModelConfig(path=str(tmp_path / "saved")))


@pytest.mark.parametrize("wrong", [{"cache_implementation": "nonsense"}, {"num_return_sequences": 4}])
def test_a_generation_config_that_transformers_does_not_open_is_rejected(
    wrong: dict[str, Any], tiny_model_folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_model_folder, tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps(wrong))
    with pytest.raises(ModelError, match="not loadable"):
        palimpsest.train("memagent-quickstart", small_run(model), out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_with_wrong_facts_is_rejected(tmp_path: Path, tiny_model: Any) -> None:
    learner = ForestLearner(tiny_model, optim=OptimConfig())
    learner.save(tmp_path)
    facts = {"format": 1, "version": "5", "grad_skipped": 2, "reference": None}
    (tmp_path / "learner" / FACTS).write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=r"version='5' is not a whole number from 0; use an older one"):
        learner.load(tmp_path)
