"""Probes of a loaded model: positions, logits, windows, kernels."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from palimpsest.engines.embedded import parity
from palimpsest.engines.embedded.architecture import context_of, max_context, ways_of
from palimpsest.engines.embedded.forest import attention, forest_model
from palimpsest.engines.embedded.parity import admit, gap
from palimpsest.engines.embedded.sampling.forward import Masks
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.errors import ModelError, PromptTooLong
from palimpsest.types import Completion, SamplingParams
from support.architectures import VOCAB, built
from support.models import build_llama

DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}}


def prompt(length: int) -> list[int]:
    draw = random.Random(length)
    return [draw.randrange(3, VOCAB) for _ in range(length)]


def sampled(model: Any, *prompts: list[int]) -> list[Completion]:
    sampler = EmbeddedSampler(model)

    async def go() -> list[Completion]:
        return await asyncio.gather(*(sampler.generate(p, SamplingParams(max_tokens=8)) for p in prompts))

    return asyncio.run(go())


def test_a_window_that_the_configuration_does_not_name_is_rejected() -> None:
    model = built("Bloom", seq_length=None)
    with pytest.raises(ModelError, match=r"BloomConfig names no max_position_embeddings.*add it to config\.json"):
        admit(model)


@pytest.mark.parametrize("name", ["Mistral", "Gemma3Text"])
def test_the_probe_of_a_sampler_reaches_beyond_a_sliding_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_window(self: Masks, positions: Tensor, length: int) -> Tensor:
        return torch.arange(length) <= positions[:, None, :, None]

    model = built(name)
    admit(model)
    assert ways_of(model).sampling == "pool"
    monkeypatch.setattr(Masks, "__call__", without_window)
    admit(model)
    assert ways_of(model).sampling == "cache"
    assert "logits differ" in ways_of(model).sampling_reason


@pytest.mark.parametrize("name", ["Mistral", "Gemma3"])
def test_the_probe_of_a_learner_reaches_beyond_a_sliding_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_window(*args: Any, window: int | None = None) -> attention.AttentionPlan:
        return attention.plan_of(*args)

    model = built(name)
    forest_model.adopt(model)
    assert ways_of(model).layout == "forest"
    monkeypatch.setattr(forest_model, "plan_of", without_window)
    with pytest.raises(ModelError, match="supports sampling but not training"):
        forest_model.adopt(model, "forest")
    forest_model.adopt(model)
    assert ways_of(model).layout == "segments"
    assert max_context(model) == 256, "the window was put back"
    assert context_of(model).sliding == 24


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_long_request_in_the_batch_does_not_change_a_short_one(kind: str) -> None:
    model = built("Phi3-longrope") if kind == "longrope" else built("Llama", **DYNAMIC)
    admit(model)
    (alone,) = sampled(model, prompt(9))
    _, together = sampled(model, prompt(max_context(model) - 8), prompt(9))
    assert alone.token_ids == together.token_ids
    assert alone.logprobs == pytest.approx(together.logprobs, abs=1e-5)


def test_longrope_ends_the_window_where_positions_would_switch() -> None:
    model = built("Phi3-longrope")
    assert max_context(model) == 64
    with pytest.raises(PromptTooLong, match=r"the window of 64 \(of 512, because longrope"):
        sampled(model, prompt(60))


def test_positions_that_depend_on_the_call_are_rejected() -> None:
    class Stretched(torch.nn.Module):
        def __init__(self, rotary: Any) -> None:
            super().__init__()
            self.inner = rotary

        def forward(self, x: Tensor, position_ids: Tensor) -> Any:
            return self.inner(x, position_ids / (1 + position_ids.max() // 64))

    Stretched.__name__ = "StretchedRotaryEmbedding"
    model = built("Llama")
    model.model.rotary_emb = Stretched(model.model.rotary_emb)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM can't be sampled: .*longest position in the call"):
        admit(model)


@pytest.mark.parametrize("name", ["Granite", "Cohere", "Gemma2"])
def test_a_change_of_logits_after_the_projection_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(name).bfloat16()
    admit(model)
    monkeypatch.setattr(parity, "head_of", lambda model: model.get_output_embeddings())
    with pytest.raises(ModelError, match="changes its logits after the output projection"):
        admit(model)


def with_huge_units(scale: float) -> Any:
    """A bfloat16 model with some hidden units `scale` times as large as the others, as after training."""
    model = build_llama(VOCAB, num_hidden_layers=4, hidden_size=64, tie_word_embeddings=False)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight[:3] *= scale
            layer.self_attn.o_proj.weight[:3] *= scale
        model.model.norm.weight[:3] = 0.05
    return model.bfloat16()


@pytest.mark.parametrize("scale", [1.0, 8.0, 40.0])
def test_a_right_kernel_passes_at_any_rounding(scale: float) -> None:
    model = with_huge_units(scale)
    admit(model)
    forest_model.adopt(model)


def with_scale(factor: float) -> Any:
    return lambda q, k, v, plan, scale=None: EXACT(q, k, v, plan, None if scale is None else scale * factor)


EXACT = attention.attend
FAULTS: dict[str, tuple[Any, Any]] = {
    "float32, result": (lambda: build_llama(VOCAB), lambda *args: EXACT(*args) * 1.01),
    "bfloat16, scale": (lambda: with_huge_units(1.0), with_scale(2)),
    "bfloat16 with huge units, scale": (lambda: with_huge_units(8.0), with_scale(2)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_rejected_at_any_rounding(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, wrong = FAULTS[fault]
    model = made()
    monkeypatch.setattr(attention, "attend", wrong)
    monkeypatch.setattr(forest_model, "attend", wrong)
    with pytest.raises(ModelError, match="supports sampling but not training: computed as a prefix forest"):
        forest_model.adopt(model, "forest")


def test_encoders_with_an_output_projection_are_rejected_by_name() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model = transformers.BertLMHeadModel(transformers.BertConfig(vocab_size=VOCAB, **sizes))
    with pytest.raises(ModelError, match="BertLMHeadModel can't be sampled: its tokens see later ones"):
        admit(model.eval())


def test_the_gap_leaves_out_ids_that_a_class_masks() -> None:
    masked = torch.tensor([[1.0, -torch.inf, 3.0]])
    assert gap(masked + 1, masked) == 0
    assert gap(torch.tensor([[1.0, 0.0, 4.0]]), masked) > 0.1
