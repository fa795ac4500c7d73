"""The fused forward: its log-probabilities, and its models."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from palimpsest.engines.embedded.sampling.forward import FusedForward, HFForward
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.types import Completion, SamplingParams
from support.architectures import VOCAB, built
from support.models import build_llama, sampling_gap
from support.prompts import grouped

PACKS = "palimpsest.engines.embedded.sampling.forward.packs_weights"
LLAMAS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-grouped": {"num_key_value_heads": 2},
    "llama-untied": {"tie_word_embeddings": False},
}


def model_of(family: str) -> Any:
    if family in LLAMAS:
        return build_llama(VOCAB, **LLAMAS[family])
    return built(family, **({"sliding_window": 256} if family == "Mistral" else {})).float()


def complete(sampler: EmbeddedSampler, prompts: Sequence[Sequence[int]]) -> list[Completion]:
    async def go() -> list[Completion]:
        params = [SamplingParams(max_tokens=1 + i % 13, seed=i, stop_ids=(3, 4, 5, 6, 7)) for i in range(len(prompts))]
        return await asyncio.gather(*map(sampler.generate, prompts, params))

    return asyncio.run(go())


def gap_of(sampler: EmbeddedSampler, exact: Any) -> float:
    prompts = grouped(3, 5)
    return max(sampling_gap(exact, *pair) for pair in zip(prompts, complete(sampler, prompts), strict=True))


@pytest.mark.parametrize(
    ("family", "way"),
    [
        *((family, "fused") for family in (*LLAMAS, "Qwen3", "Qwen2", "Mistral", "GPTNeoX")),
        *(
            (family, way)
            for family in ("llama", "llama-untied", "Qwen2")
            for way in ("plain products", "packed products")
        ),
        *((family, "generic") for family in ("llama-grouped", "Qwen2", "GPTNeoX")),
    ],
)
def test_log_probabilities_are_the_models(family: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way.endswith("products"):  # either is the faster on some CPU
        monkeypatch.setattr(PACKS, lambda dtype, numbers: way == "packed products")
    model, fused = model_of(family), way != "generic"
    sampler = EmbeddedSampler(model, max_num_seqs=8, fused=fused)
    assert isinstance(sampler._batch._forward, FusedForward if fused and family != "GPTNeoX" else HFForward)
    assert gap_of(sampler, model) < 1e-4


@pytest.mark.parametrize(
    ("family", "plain"), [("llama", False), ("llama-untied", True), ("Qwen3", False), ("Qwen2", True), ("Qwen2", False)]
)
def test_bfloat16_is_as_close_to_float32_as_the_models_class(
    family: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:  # as on a CPU without products of bfloat16
        monkeypatch.setattr(PACKS, lambda dtype, numbers: False)
    exact = model_of(family)
    rounded = copy.deepcopy(exact).bfloat16()
    exact.load_state_dict(rounded.state_dict())
    gaps = {}
    for fused in (True, False):
        sampler = EmbeddedSampler(rounded, max_num_seqs=8, fused=fused)
        assert isinstance(sampler._batch._forward, FusedForward if fused else HFForward)
        gaps[fused] = gap_of(sampler, exact)
    assert gaps[True] < max(1.5 * gaps[False], 0.02)


def test_a_forward_that_disagrees_with_the_model_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = FusedForward._unit
    monkeypatch.setattr(FusedForward, "_unit", lambda self, x: exact(self, x) * 1.01)
    assert isinstance(EmbeddedSampler(build_llama(VOCAB))._batch._forward, HFForward)


@pytest.mark.parametrize("bias", ["attention_bias", "mlp_bias"])
def test_biases_that_are_zero_at_first_and_trained_later_are_sampled(bias: str) -> None:
    model = build_llama(VOCAB, **{bias: True})
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith(".bias")]
    with torch.no_grad():
        for parameter in biases:
            parameter.zero_()
        sampler = EmbeddedSampler(model)
        for parameter in biases:
            parameter.copy_(0.3 * torch.randn_like(parameter))
    asyncio.run(sampler.publish(1))
    assert gap_of(sampler, model) < 1e-4


class Scaled(nn.Embedding):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 2


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "hook": lambda model, layer: layer.mlp.register_forward_hook(lambda module, inputs, output: output),
    "forward": lambda model, layer: setattr(model.model.norm, "forward", lambda hidden: hidden),
    "module": lambda model, layer: setattr(layer, "extra", nn.Identity()),
    "activation": lambda model, layer: setattr(layer.mlp, "act_fn", nn.GELU()),
    "embedding": lambda model, layer: setattr(model.model, "embed_tokens", Scaled(VOCAB, 32)),
    "parametrization": lambda model, layer: nn.utils.parametrizations.weight_norm(layer.mlp.up_proj),
    "parameter": lambda model, layer: setattr(layer.self_attn, "sinks", nn.Parameter(torch.zeros(4))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_computed_by_its_class(change: str) -> None:
    model = build_llama(VOCAB)
    assert isinstance(EmbeddedSampler(model)._batch._forward, FusedForward)
    CHANGES[change](model, model.model.layers[1])
    assert isinstance(EmbeddedSampler(model)._batch._forward, HFForward)
