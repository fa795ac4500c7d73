"""Training on prefix forests compared with separate segments: loss and every gradient."""

from __future__ import annotations

import asyncio
import copy
import random
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palimpsest.config.schema import CreditConfig, LossConfig, ModelConfig, SamplingConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.credit.assign import assign
from palimpsest.engines.embedded.forest import attention as forest_attention
from palimpsest.engines.embedded.forest import layout as forest
from palimpsest.engines.embedded.forest.forest_model import adopt
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import load_model, recompute_layers
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.protocol import FOREST_REUSE, StepBatch, UpdateStats
from palimpsest.memory.document_baselines import FullContextPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.rollout.group import Player
from palimpsest.rollout.segments import segments_of
from palimpsest.types import Completion, Grade, Outcome, Problem, StopReason, Trajectory, Turn
from support.architectures import built
from support.forests import VOCAB, apart, batch_of_rows, completed, credited, exact, gradients, grown, largest_error
from support.models import build_llama


def learner_of(model: Any, **changes: Any) -> ForestLearner:
    options: dict[str, Any] = {"optim": OptimConfig(), "loss": LossConfig(), "micro_batch_tokens": 100_000}
    return ForestLearner(model, **{**options, **changes})


def compared(model: Any, batch: StepBatch, **options: Any) -> tuple[float, UpdateStats]:
    """Largest relative error of loss and gradients against separate segments, and the learner's stats."""
    loss, wanted = apart(model, batch)
    model.zero_grad(set_to_none=True)
    stats = learner_of(model, **options).accumulate(batch)
    terms = [abs(a * w) for item in batch.segments for a, w in zip(item.advantages, item.weights, strict=True)]
    return max(abs(stats.loss - loss) / sum(terms), largest_error(gradients(model), wanted)), stats


@pytest.fixture(scope="module")
def model() -> Any:
    """Grouped queries, float64."""
    return exact(build_llama(VOCAB, num_key_value_heads=2))


@given(
    seed=st.integers(0, 2**31),
    depth=st.integers(0, 6),
    square=st.sampled_from([1, 6, 128]),
    tokens=st.sampled_from([20, 100_000]),
    shared=st.sampled_from([1, 8]),
)
@example(seed=384, depth=0, square=1, tokens=20, shared=1)  # every token is clipped: no gradient at all
@settings(max_examples=25, deadline=None)
def test_random_forests_have_the_gradient_of_separate_segments(
    model: Any, seed: int, depth: int, square: int, tokens: int, shared: int
) -> None:
    draw = random.Random(seed)
    rows = grown(draw, depth=depth, length=9, branches=2) + grown(draw, depth=1, length=9)  # two groups
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forest_attention, "SQUARE", square)
        patch.setattr(forest_attention, "TILE", 8)
        patch.setattr(forest.pack, "__defaults__", ("forest", shared))
        error, stats = compared(model, batch_of_rows(rows, draw), micro_batch_tokens=tokens)
    assert error < 1e-9
    assert stats.reuse == stats.logical_tokens / stats.physical_tokens


@pytest.mark.parametrize("tokens", [20, 300, 100_000])
def test_separate_segments_have_the_same_gradient_and_report_what_a_forest_would_save(model: Any, tokens: int) -> None:
    draw, alone = random.Random(tokens), copy.deepcopy(model)
    rows = grown(draw, depth=3, length=30)[:12]
    adopt(alone, "segments")
    error, stats = compared(alone, batch_of_rows(rows, draw), micro_batch_tokens=tokens)
    assert error < 1e-9
    assert stats.logical_tokens == stats.physical_tokens == sum(len(row) - 1 for row in rows)
    prefixes = {tuple(row[:end]) for row in rows for end in range(1, len(row))}
    assert stats.extra == {FOREST_REUSE: pytest.approx(stats.logical_tokens / len(prefixes))}


def test_a_long_forest_with_every_kind_of_part(model: Any) -> None:
    draw = random.Random(0)
    rows = [list(range(40)) + row for row in grown(draw, depth=3, length=150)][:14]
    error, stats = compared(model, batch_of_rows(rows, draw, share=0.2))
    assert error < 1e-9
    assert stats.reuse > 1.5
    (laid_out,) = forest.build_forests(batch_of_rows(rows, draw).segments, 100_000, 512)
    kinds = {(p.causal, p.mask is not None) for p in forest_attention.plan_of(laid_out, torch.float32).parts}
    assert kinds == {(True, False), (False, False), (False, True)}


def test_one_sampled_token_in_two_trajectories_is_trained_with_both_advantages(model: Any) -> None:
    done = Completion((8, 9), (-4.0, -5.0), StopReason.STOP)
    pair = [completed(range(8), done, advantage, 0.5) for advantage in (1.0, -0.25)]
    error, stats = compared(model, StepBatch(tuple(pair)))
    assert error < 1e-9
    assert (stats.tokens, stats.physical_tokens, stats.logical_tokens) == (4, 9, 18)


class HalfRight:
    """Grades by the rollout, so that every group has a signal."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        return Grade(float(trajectory.rollout % 2))


SIZES: dict[str, Any] = {"question_tokens": 60, "answer_tokens": 8, "prompts": "short"}
POLICIES = {
    "section_first": OverwritePolicy(**SIZES, chunk_size=20, memory_tokens=12, layout="section_first"),
    "full_context": FullContextPolicy(**SIZES),
}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_recorded_episodes_of_the_policies(name: str, tiny_codec: Any, tiny_model: Any) -> None:
    text = "one two three.\nfour five six.\nseven eight.\n"
    problems = [Problem(f"p{i}", f"What is {i}?", ("x",), text) for i in range(2)]
    parts: dict[str, Any] = {
        "sampler": EmbeddedSampler(tiny_model),
        "sampling": SamplingConfig(),
        "grader": HalfRight(),
    }
    player = Player(group_size=4, policy=POLICIES[name], codec=tiny_codec, **parts)
    (batch,) = assign(asyncio.run(player.batch(problems, key=(0,))), CreditConfig(), 1)
    error, stats = compared(exact(tiny_model), batch)
    assert error < 1e-9
    assert stats.reuse > 1.2


def turn(step: int, prompt: list[int], draw: random.Random) -> Turn:
    sampled = tuple(draw.randrange(VOCAB) for _ in range(6))
    return Turn(tuple(prompt), Completion(sampled, (-5.0,) * 6, StopReason.STOP), step, "act")


def pruning(draw: random.Random, start: list[int]) -> list[Turn]:
    """Tool results are appended, and the oldest cut out (MemAct)."""
    turns, context = [], list(start)
    for step in range(7):
        turns.append(turn(step, context, draw))
        context = [*context, *turns[-1].completion.token_ids, *(draw.randrange(VOCAB) for _ in range(9))]
        if step in (2, 4):
            context = context[: len(start) + 6] + context[-12:]
    return turns


def recalling(draw: random.Random, start: list[int]) -> list[Turn]:
    """Prompts of a question, a recalled memory, the current one and a new section (ReMemR1)."""
    memories = [[draw.randrange(VOCAB) for _ in range(6)]]
    turns = []
    for step in range(5):
        recalled = memories[draw.randrange(len(memories))]
        turns.append(turn(step, [*start, *recalled, *memories[-1], *(100 + step for _ in range(10))], draw))
        memories.append(list(turns[-1].completion.token_ids))
    return turns


@pytest.mark.parametrize("way", [pruning, recalling])
def test_trajectories_that_rewrite_their_context(way: Any, model: Any) -> None:
    draw = random.Random(0)
    start = [draw.randrange(VOCAB) for _ in range(25)]
    items = []
    for rollout in range(4):
        played = Trajectory("p", "g", rollout, tuple(way(draw, start)), Outcome.ANSWERED)
        items += [credited(s.token_ids, s.loss_mask, draw) for s in segments_of(played)]
    error, stats = compared(model, StepBatch(tuple(items)))
    assert error < 1e-9
    assert stats.reuse > 1.5
    assert stats.segments == len(items)


def test_the_shipped_model_in_single_precision() -> None:
    model = load_model(ModelConfig(device="cpu"))
    draw = random.Random(0)
    batch = batch_of_rows(grown(draw, depth=3, length=40, vocab=1000)[:8], draw, share=0.1)
    wanted = apart(exact(model), batch)
    _, alone = apart(copy.deepcopy(model), batch)
    stats = learner_of(model).accumulate(batch)
    assert stats.loss == pytest.approx(wanted[0], rel=1e-4)
    doubled = ({n: g.double() for n, g in grads.items()} for grads in (gradients(model), alone))
    error, rounding = (largest_error(grads, wanted[1]) for grads in doubled)
    assert error < 8 * rounding  # that of separate segments in float32 on this processor
    assert rounding < 1e-3


@pytest.mark.parametrize("layout", ["forest", "segments"])
def test_recomputing_every_second_layer_changes_no_bit(layout: Literal["forest", "segments"]) -> None:
    model = built("Llama", num_hidden_layers=4).float()
    adopt(model, layout)
    draw, results, calls = random.Random(0), list[tuple[float, Any, list[int]]](), list[int]()
    batch = batch_of_rows(grown(draw, depth=3, length=20)[:8], draw)
    for number, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_pre_hook(lambda module, inputs, number=number: calls.append(number))
    values: tuple[Any, ...] = (True, "every_second", False)
    for value in values:
        model.zero_grad(set_to_none=True)
        model.gradient_checkpointing_disable()
        recompute_layers(model, ModelConfig(gradient_checkpointing=value))
        learner = learner_of(model)
        calls.clear()
        loss = learner.accumulate(batch).loss
        results.append((loss, gradients(model), [calls.count(number) for number in range(4)]))
    for loss, grads, _ in results[1:]:
        assert loss == results[0][0]
        assert all(torch.equal(grads[name], grad) for name, grad in results[0][1].items())
    last = 2 if layout == "segments" else 1  # a forest computes it only at trained tokens, and once
    assert [counts for *_, counts in results] == [[2, 2, 2, last], [2, 1, 2, 1], [1, 1, 1, 1]]


def test_a_model_without_a_forest_is_unchanged(tmp_path: Path) -> None:
    model = built("Llama").float()
    ids = torch.arange(20)[None]
    mask = torch.ones(1, 20, dtype=torch.long)
    mask[0, :5] = 0
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).logits
        model.save_pretrained(tmp_path / "before")
        learner_of(model)
        assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before)
    model.save_pretrained(tmp_path / "after")
    for file in (tmp_path / "before").iterdir():
        assert file.read_bytes() == (tmp_path / "after" / file.name).read_bytes()


def test_low_rank_adapters_train_on_forests() -> None:
    peft = pytest.importorskip("peft", reason="pip install 'palimpsest-rl[lora]'")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = peft.get_peft_model(built("Qwen3").float(), config)
    draw = random.Random(0)
    batch = batch_of_rows(grown(draw, depth=3, length=20)[:12], draw)
    _, wanted = apart(copy.deepcopy(model), batch)
    learner_of(model).accumulate(batch)
    assert all("lora_" in name for name in wanted)
    assert largest_error(gradients(model), wanted) < 1e-4


def test_the_same_forest_gives_the_same_bytes() -> None:
    draw = random.Random(0)
    batch = batch_of_rows(grown(draw, depth=4, length=40)[:10], draw)
    results = []
    for _ in range(2):
        model = built("Llama").float()
        learner_of(model).accumulate(batch)
        results.append(gradients(model))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
