"""Every class in the table of docs/reference/models: computed as its eager forward, or rejected."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.architecture import max_context, ways_of
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import disable_noise
from palimpsest.engines.embedded.parity import admit
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.protocol import FOREST_REUSE, StepBatch, UpdateStats
from palimpsest.errors import ModelError
from palimpsest.types import Completion, SamplingParams
from support.architectures import CASES, VOCAB, built, class_of
from support.forests import apart, batch_of_rows, gradients
from support.models import sampling_gap

FAST = (
    *("Llama", "Gemma3", "Gemma2", "Phi3-longrope", "DeepseekV3", "StableLm", "Bert", "T5", "RecurrentGemma"),
    *("GPTNeo", "MiniMax", "GptOss", "Mistral", "GPTNeoX"),
)
CHECKPOINTED = [n for n, case in CASES.items() if not case.refused and n not in ("DiffLlama", "Rwkv")]
"""DiffLlama itself rejects dropout."""
DROPOUT = ("dropout", "attention_dropout", "hidden_dropout", "residual_dropout", "activation_dropout", "layerdrop")
OTHER_NOISE = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "router_jitter_noise", "input_jitter_noise")
NOISY = dict.fromkeys((*DROPOUT, *OTHER_NOISE), 0.3)
LONGEST = 120  # tokens: five times the sliding windows


def ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, VOCAB) for _ in range(count)]


def sampled(model: Any, prompts: Sequence[Sequence[int]]) -> list[Completion]:
    sampler = EmbeddedSampler(model, max_num_seqs=4)

    async def go() -> list[Completion]:
        params = [SamplingParams(max_tokens=8, seed=i) for i in range(len(prompts))]
        return await asyncio.gather(*map(sampler.generate, prompts, params))

    return asyncio.run(go())


def eager(model: Any) -> Any:
    """A copy with eager attention."""
    model = copy.deepcopy(model)
    if model._can_set_attn_implementation():
        model.set_attn_implementation("eager")
    return model


def largest_error(result: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Largest error relative to the parameter's largest gradient, or to 1 % of the model's largest if that is more.

    Classes compute softmax and norms in float32: a sum that cancels out, as for the bias of OPT's keys, has a few
    roundings of 2^-24 of the model's largest gradient; 1e-4 of 1 % is 16 of them.
    """
    least = 1e-2 * max(float(g.abs().max()) for g in wanted.values())
    unwanted = max((float(g.abs().max()) for n, g in result.items() if n not in wanted), default=0.0)
    errors = [float((result[n] - g).abs().max()) / max(float(g.abs().max()), least) for n, g in wanted.items()]
    return max(*errors, unwanted / least)


def assert_trains_as(reference: Any, model: Any, batch: StepBatch, micro_batch_tokens: int = 16_384) -> UpdateStats:
    """Loss and gradients of `model` are those of `reference` with one forward per segment."""
    stats = ForestLearner(model, optim=OptimConfig(), micro_batch_tokens=micro_batch_tokens).accumulate(batch)
    loss, wanted = apart(reference, batch)
    assert stats.loss == pytest.approx(loss, rel=1e-5)
    assert largest_error(gradients(model), wanted) < 1e-4
    return stats


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES])
def test_a_class_is_computed_as_its_eager_forward_or_rejected(name: str) -> None:
    case, draw = CASES[name], random.Random(0)
    if case.refused:
        with pytest.raises(ModelError, match=case.refused) as error:
            admit(built(name))
        assert class_of(name) in str(error.value)
        assert "\n" not in str(error.value)
        return
    model = built(name)
    admit(model)
    assert ways_of(model).sampling == case.sampling
    reference, longest = eager(model), min(LONGEST, max_context(model))
    head = ids(draw, 30)
    prompts = [head[:n] + ids(draw, m) for n, m in ((3, 0), (20, 2), (20, 7), (30, longest - 38), (10, 20))]
    pairs = zip(prompts, sampled(model, prompts), strict=True)
    assert max(sampling_gap(reference, *pair) for pair in pairs) < 2e-5
    rows = [head + ids(draw, n) for n in (5, 10, 20)] + [ids(draw, longest)]
    stats = assert_trains_as(reference, model, batch_of_rows(rows, draw), micro_batch_tokens=250)
    assert case.apart in ways_of(model).layout_reason
    assert max(stats.reuse, stats.extra.get(FOREST_REUSE, 0)) > 1.2
    assert (stats.reuse == 1, ways_of(model).layout) == (bool(case.apart), case.layout)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("OPT", "Phimoe") else pytest.mark.slow) for n in CHECKPOINTED]
)
def test_gradient_checkpointing_adds_no_noise_and_changes_no_gradient(name: str) -> None:
    """It needs training mode, in which classes apply dropout, blur their routers or choose at random."""
    model, draw = built(name, **NOISY), random.Random(0)
    reference = eager(model)
    disable_noise(model)
    admit(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    head = ids(draw, 30)
    assert_trains_as(reference, model, batch_of_rows([head + ids(draw, n) for n in (5, 10, 20)], draw))
