"""The shortened forwards are taken by what a model is made of, never by the values of its weights."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from palimpsest.engines.embedded.architecture import is_plain, last_layer_is_plain
from palimpsest.engines.embedded.sampling.forward import FusedForward, HFForward
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.types import Completion, SamplingParams
from support.models import build_llama

VOCAB = 200


def sampled(sampler: EmbeddedSampler, prompt: list[int]) -> Completion:
    return asyncio.run(sampler.generate(prompt, SamplingParams(max_tokens=20, temperature=0.7)))


def off(model: Any, prompt: list[int], completion: Completion) -> float:
    """In nats, from the model's own forward."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0] / 0.7
    exact = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return float(
        (exact.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0] - torch.tensor(completion.logprobs))
        .abs()
        .max()
    )


@pytest.mark.parametrize("bias", ["attention_bias", "mlp_bias"])
def test_biases_that_are_zero_when_the_sampler_is_built_and_trained_later_are_sampled(bias: str) -> None:
    model = build_llama(VOCAB, **{bias: True})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
    sampler = EmbeddedSampler(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
    asyncio.run(sampler.publish(1))
    draw = random.Random(0)
    prompt = [draw.randrange(VOCAB) for _ in range(40)]
    assert off(model, prompt, sampled(sampler, prompt)) < 1e-4


def hooked(model: Any) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: output)


def replaced(model: Any) -> None:
    model.model.norm.forward = lambda hidden: hidden


def added(model: Any) -> None:
    model.model.layers[1].extra = nn.Identity()


def activated(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = nn.GELU()


def scaled(model: Any) -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) * 2

    model.model.embed_tokens = Scaled(VOCAB, 32)


def parametrised(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)


def with_a_parameter(model: Any) -> None:
    model.model.layers[1].self_attn.sinks = nn.Parameter(torch.zeros(4))


CHANGES = [hooked, replaced, added, activated, scaled, parametrised, with_a_parameter]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_the_fused_forward_would_leave_out_keeps_it_from_being_taken(change: Callable[[Any], None]) -> None:
    model = build_llama(VOCAB)
    assert is_plain(model)
    assert isinstance(EmbeddedSampler(model)._batch._forward, FusedForward)
    change(model)
    assert isinstance(EmbeddedSampler(model)._batch._forward, HFForward)


@pytest.mark.parametrize("change", [added, with_a_parameter], ids=lambda change: change.__name__)
def test_a_last_layer_with_parts_that_are_not_known_is_computed_by_its_own_class(change: Callable[[Any], None]) -> None:
    model = build_llama(VOCAB)
    assert last_layer_is_plain(model)
    change(model)
    assert not last_layer_is_plain(model)


def test_a_hook_on_the_last_layers_attention_is_not_passed_over() -> None:
    model = build_llama(VOCAB)
    model.model.layers[-1].self_attn.register_forward_hook(lambda module, inputs, output: output)
    assert not last_layer_is_plain(model)
