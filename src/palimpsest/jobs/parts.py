"""Building what a configuration names: engine and policy."""

from __future__ import annotations

from dataclasses import dataclass

from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.build import Engine, build_engine, set_threads
from palimpsest.engines.embedded.learner import EmbeddedLearner
from palimpsest.engines.embedded.model import model_path, trainable
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import build_policy
from palimpsest.reward.compose import check_reward
from palimpsest.rollout.variant import build_variant
from palimpsest.text.codec import Codec


@dataclass(frozen=True, slots=True)
class Parts:
    engine: Engine
    policy: MemoryPolicy


def build_parts(config: RunConfig, *, train: bool = True) -> Parts:
    """Cheap parts first, so that a wrong option is named before a model is loaded."""
    policy = policy_of(config)
    check_reward(config.reward)  # refuses what the run would trip over
    return Parts(build_engine(config, train=train), policy)


def supervised_learner(config: RunConfig) -> EmbeddedLearner:
    """A learner that imitates, on the configured model."""
    set_threads(config.engine.threads)
    return EmbeddedLearner(
        trainable(config.model),
        optim=config.optim,
        objective="nll",
        micro_batch_tokens=config.engine.micro_batch_tokens,
        total_steps=config.train.steps,
        tokenizer=Codec.load(model_path(config.model)).tokenizer,
    )


def policy_of(config: RunConfig) -> MemoryPolicy:
    """The configured policy; ConfigError if an option is wrong, of its training variant too."""
    build_variant(config)
    return build_policy(config.policy)
