"""Building what a configuration names: engine and policy."""

from __future__ import annotations

from dataclasses import dataclass

from palimpsest.config.schema import RunConfig
from palimpsest.credit.rules import build_rule
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import build_policy
from palimpsest.reward.compose import check_reward
from palimpsest.rollout.variant import build_variant


@dataclass(frozen=True, slots=True)
class Parts:
    engine: Engine
    policy: MemoryPolicy


def build_parts(config: RunConfig) -> Parts:
    """Cheap parts first, so that a wrong option is named before a model is loaded."""
    policy = policy_of(config)
    build_rule(config.credit)
    check_reward(config.reward)  # refuses what the run would trip over
    return Parts(open_engine(config, objective="policy"), policy)


def policy_of(config: RunConfig) -> MemoryPolicy:
    """The configured policy; ConfigError if an option is wrong, of its training variant too."""
    build_variant(config)
    return build_policy(config.policy)
