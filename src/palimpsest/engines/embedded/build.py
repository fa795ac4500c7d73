"""Builds the embedded engine of a run: one model, its codec, a sampler and a learner that share the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.learner import EmbeddedLearner
from palimpsest.engines.embedded.model import load_model, model_path, trainable
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.text.codec import Codec


@dataclass(frozen=True, slots=True)
class Engine:
    codec: Codec
    sampler: EmbeddedSampler
    learner: EmbeddedLearner | None
    """None where the engine was built for sampling only."""
    model: Any


def set_threads(threads: int) -> None:
    """Threads of this process, and repeatable results where they cost nothing (CPU)."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(not torch.cuda.is_available(), warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a costly debugging aid


def build_engine(config: RunConfig, *, train: bool = True) -> Engine:
    """Load `config.model` and put the engine together; raises ModelError with the reason if it can't be used."""
    set_threads(config.engine.threads)
    model = trainable(config.model) if train else load_model(config.model)
    codec = Codec.load(model_path(config.model))
    sampler = EmbeddedSampler(
        model,
        batch_slots=config.engine.batch_slots,
        prefill_tokens=config.engine.prefill_tokens,
        cache_tokens=config.engine.cache_tokens,
    )
    learner = None
    if train:
        learner = EmbeddedLearner(
            model,
            optim=config.optim,
            loss=config.loss,
            temperature=config.sampling.temperature,
            micro_batch_tokens=config.engine.micro_batch_tokens,
            total_steps=config.train.steps * config.train.optimizer_steps,
            tokenizer=codec.tokenizer,
            on_publish=sampler.publish,
        )
    else:
        model.requires_grad_(False)
    return Engine(codec, sampler, learner, model)
