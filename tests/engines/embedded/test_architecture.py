"""Window, decoder, output projection and structure of a model."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from palimpsest.engines.embedded import architecture
from palimpsest.engines.embedded.architecture import context_of, decoder_of, head_of, is_plain, last_layer_is_plain
from support.architectures import VOCAB, built
from support.models import build_llama


def test_the_window_of_a_multimodal_model_is_that_of_its_text_model() -> None:
    context = context_of(built("Gemma3"))
    assert (context.tokens, context.sliding, context.mixed) == (256, 24, True)


def test_a_frozen_projection_gets_no_gradient() -> None:
    weight, hidden = torch.randn(300, 64).bfloat16(), torch.randn(20, 64).bfloat16()
    context = SimpleNamespace(saved_tensors=(hidden, weight), needs_input_grad=(True, False))
    of_hidden, of_weight = architecture.WideProduct.backward(context, torch.ones(20, 300))
    assert of_hidden is not None
    assert torch.equal(of_hidden, torch.ones(20, 300).bfloat16() @ weight)
    assert of_weight is None


@pytest.mark.parametrize("name", ["Mamba", "Mamba2"])
def test_a_float32_residual_stream_is_projected_in_the_weights_dtype(name: str) -> None:
    model = built(name).bfloat16()
    ids = torch.arange(9)[None]
    with torch.no_grad():
        logits = head_of(model)(decoder_of(model)(input_ids=ids).last_hidden_state)
        assert torch.equal(logits.float(), model(input_ids=ids).logits.float())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_logits_have_the_adapter_of_the_output_projection(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft", reason="pip install 'palimpsest-rl[lora]'")
    monkeypatch.setattr(architecture, "WIDE", {device})
    settings = peft.LoraConfig(r=4, target_modules=["lm_head"], task_type="CAUSAL_LM", init_lora_weights=False)
    model = peft.get_peft_model(built("Qwen2").bfloat16(), settings).eval()
    with torch.no_grad():
        states = architecture.decoder_of(model)(input_ids=torch.tensor([[5, 9, 30, 31, 7, 40]])).last_hidden_state
        assert torch.equal(architecture.head_of(model)(states), model.get_output_embeddings()(states))


CHANGES: dict[str, Callable[[Any], object]] = {
    "module": lambda layer: setattr(layer, "extra", nn.Identity()),
    "parameter": lambda layer: setattr(layer.self_attn, "sinks", nn.Parameter(torch.zeros(4))),
    "hook": lambda layer: layer.self_attn.register_forward_hook(lambda module, inputs, output: output),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_last_layer_is_computed_by_its_class(change: str) -> None:
    model = build_llama(VOCAB)
    assert is_plain(model)
    assert last_layer_is_plain(model)
    CHANGES[change](model.model.layers[-1])
    assert not last_layer_is_plain(model)
