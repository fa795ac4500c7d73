"""The learner on a GPU, compared with separate segments in float64 on the CPU."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from palimpsest.config.schema import LossConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.protocol import StepBatch
from support.forests import VOCAB, apart, batch_of_rows, exact, grown, largest_error
from support.models import build_llama

pytestmark = pytest.mark.gpu

# at a clip, rounding turns a token's gradient off
SMOOTH = LossConfig(clip_ratio_low=0.999, clip_ratio_high=1e9, dual_clip=None)
TOLERANCE = 1e-4  # of a parameter's largest gradient, in float32
BFLOAT16 = 2.0, 0.02  # times the error of separate segments, plus this
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "initializer_range": 0.08,
}


MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: build_llama(VOCAB, hidden_size=64, num_key_value_heads=2),
    # seven queries per key, as in Qwen2.5 0.5B and 7B: no power of two
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, hidden_size=224, num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True)
    ),
    # most segments are longer than the window
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(**SIZES, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, sliding_window=40)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_forest_on_the_gpu_has_the_loss_and_the_gradients_of_its_segments(
    name: str, dtype: torch.dtype, device: str, record_property: Callable[[str, object], None]
) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype).eval()
    draw = random.Random(0)
    rows = [row for seed in range(2) for row in grown(random.Random(seed), depth=3, length=80)[:6]]
    batch = batch_of_rows(rows, draw, share=0.3)
    wanted_loss, wanted = apart(exact(model), batch, clipped=False)
    _, separate = apart(copy.deepcopy(model).to(device), batch, clipped=False)
    learner = ForestLearner(model.to(device), optim=OptimConfig(), loss=SMOOTH, micro_batch_tokens=1500)
    stats = learner.accumulate(batch)
    plain, forest = largest_error(doubled(separate), wanted), largest_error(collected(learner), wanted)
    loss = abs(stats.loss - wanted_loss) / size_of(batch)
    record_property("largest error of a gradient", forest)
    record_property("of separate segments", plain)
    record_property("error of the loss", loss)
    assert stats.reuse > 1.3
    bound = TOLERANCE if dtype == torch.float32 else BFLOAT16[0] * plain + BFLOAT16[1]
    assert max(forest, loss) < bound


def size_of(batch: StepBatch) -> float:
    """Sum of the absolute terms of a loss whose ratios are 1."""
    return sum(
        abs(advantage * weight)
        for item in batch.segments
        for advantage, weight in zip(item.advantages, item.weights, strict=True)
    )


def doubled(gradients_: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: gradient.cpu().double() for name, gradient in gradients_.items()}


def collected(learner: ForestLearner) -> dict[str, Tensor]:
    """The gradients of the next step, by name."""
    masters = learner._optimizer._masters
    return doubled({name: master.grad for name, master in masters.items() if master.grad is not None})
