"""Every class in the table of docs/reference/models: computed as its own eager forward would, or refused in words."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from palimpsest.config.schema import OptimConfig
from palimpsest.engines.embedded.architecture import max_context, ways_of
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import disable_noise
from palimpsest.engines.embedded.parity import admit
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.protocol import FOREST_REUSE
from palimpsest.errors import ModelError
from palimpsest.types import Completion, SamplingParams
from support.architectures import CASES, VOCAB, built, class_of
from support.forests import apart, batch_of_rows, gradients

FAST = (
    "Llama",
    "Gemma3",
    "Gemma2",
    "Phi3-longrope",
    "DeepseekV3",
    "StableLm",
    "Bert",
    "T5",
    "RecurrentGemma",
    "GPTNeo",
    "Qwen3_5Text",
    "GptOss",
)
CHECKPOINTED = [n for n, case in CASES.items() if not case.refused and n not in ("DiffLlama", "Rwkv")]
"""DiffLlama refuses dropout itself."""
DROPOUT = ("dropout", "attention_dropout", "hidden_dropout", "residual_dropout", "activation_dropout", "layerdrop")
NOISY = dict.fromkeys((*DROPOUT, "resid_pdrop", "embd_pdrop", "attn_pdrop", "router_jitter_noise"), 0.3)
NOISY["input_jitter_noise"] = 0.3
LONGEST = 120  # tokens: five times the sliding windows


def ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, VOCAB) for _ in range(count)]


def sampled(model: Any, prompts: Sequence[Sequence[int]]) -> list[Completion]:
    sampler = EmbeddedSampler(model, max_num_seqs=4)

    async def go() -> list[Completion]:
        return await asyncio.gather(
            *(sampler.generate(p, SamplingParams(max_tokens=8, seed=i)) for i, p in enumerate(prompts))
        )

    return asyncio.run(go())


def eager(model: Any) -> Any:
    """A copy that computes attention as its class is written."""
    model = copy.deepcopy(model)
    if model._can_set_attn_implementation():
        model.set_attn_implementation("eager")
    return model


def largest_gap(reference: Any, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> float:
    """In nats, between the sampler's log-probabilities and those of one forward over each prompt and completion."""
    gaps = []
    for prompt, completion in zip(prompts, completions, strict=True):
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([[*prompt, *completion.token_ids]]), use_cache=False).logits
        exact = logits[0].double().log_softmax(-1)[len(prompt) - 1 : -1]
        exact = exact.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        gaps.append(float((exact - torch.tensor(completion.logprobs).double()).abs().max()))
    return max(gaps)


def largest_error(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Of all gradients, relative to the parameter's largest, or a hundredth of the model's largest where that is more.

    Classes take softmax and norms in float32, whatever the model's precision. A sum that cancels out keeps some
    roundings of 2^-24 of the model's largest gradient: the bias of OPT's keys, whose gradient is 0, has one of them.
    An error of 1e-4 of a hundredth is 16.
    """
    least = 1e-2 * max(float(g.abs().max()) for g in wanted.values())
    unwanted = max((float(g.abs().max()) for n, g in found.items() if n not in wanted), default=0.0)
    errors = [float((found[n] - g).abs().max()) / max(float(g.abs().max()), least) for n, g in wanted.items()]
    return max(*errors, unwanted / least)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES])
def test_a_class_is_computed_as_it_is_written_or_refused_in_words(name: str) -> None:
    case, draw = CASES[name], random.Random(0)
    if case.refused:
        with pytest.raises(ModelError, match=case.refused) as refusal:
            admit(built(name))
        assert class_of(name) in str(refusal.value)
        assert "\n" not in str(refusal.value)
        return
    model = built(name)
    admit(model)
    assert ways_of(model).sampling == case.sampling
    reference, longest = eager(model), min(LONGEST, max_context(model))
    head = ids(draw, 30)
    prompts = [head[:n] + ids(draw, m) for n, m in ((3, 0), (20, 2), (20, 7), (30, longest - 38), (10, 20))]
    assert largest_gap(reference, prompts, sampled(model, prompts)) < 2e-5
    rows = [head + ids(draw, n) for n in (5, 10, 20)] + [ids(draw, longest)]
    batch = batch_of_rows(rows, draw)
    stats = ForestLearner(model, optim=OptimConfig(), micro_batch_tokens=250).accumulate(batch)
    loss, wanted = apart(reference, batch)
    assert case.apart in ways_of(model).layout_reason
    assert stats.loss == pytest.approx(loss, rel=1e-5)
    assert max(stats.reuse, stats.extra.get(FOREST_REUSE, 0)) > 1.2
    assert (stats.reuse == 1, ways_of(model).layout) == (bool(case.apart), case.layout)
    assert largest_error(gradients(model), wanted) < 1e-4


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("OPT", "Phimoe") else pytest.mark.slow) for n in CHECKPOINTED]
)
def test_gradient_checkpointing_adds_no_noise_and_changes_no_gradient(name: str) -> None:
    """It asks for training mode, where classes drop numbers out, blur their routers or choose at random."""
    model, draw = built(name, **NOISY), random.Random(0)
    reference = eager(model)
    disable_noise(model)
    admit(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    head = ids(draw, 30)
    batch = batch_of_rows([head + ids(draw, n) for n in (5, 10, 20)], draw)
    stats = ForestLearner(model, optim=OptimConfig()).accumulate(batch)
    loss, wanted = apart(reference, batch)
    assert stats.loss == pytest.approx(loss, rel=1e-5)
    assert largest_error(gradients(model), wanted) < 1e-4
