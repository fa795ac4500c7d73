"""Training episodes with other policy options (`train.variant`).

MemAct runs half of them without the pruning tool, so that the model also learns to do without it. A second policy
object is built from the changed options, and each episode uses one of the two; the policy knows nothing of it.

Guaranteed: the variant depends only on the episode's key (run seed, step, problem, rollout); the two policies share no
mutable object; a varied episode starts with the event `variant`, which names the options. Only the training loop has
variants, so evaluation always uses the policy as configured.
Not covered: more than one variant.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.errors import ConfigError
from palimpsest.events import Event, VariantPlayed
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import build_policy, option_of
from palimpsest.seeding import Key, keyed_random
from palimpsest.types import Trajectory


@dataclass(frozen=True, slots=True)
class Variant:
    """The policy with changed options, and its share of the episodes."""

    policy: MemoryPolicy
    share: float
    options: Mapping[str, Any]
    """The changed options."""

    def plays(self, *key: Key) -> bool:
        """Whether the variant runs the episode of this key (the rollout's, problem, rollout)."""
        return keyed_random(*key, VariantPlayed.kind).random() < self.share

    def marked(self, trajectory: Trajectory) -> Trajectory:
        """`trajectory` with the event that marks the variant."""
        played = VariantPlayed(copy.deepcopy(dict(self.options)))
        return replace(trajectory, events=(Event(played, before_turn=0), *trajectory.events))


def build_variant(config: RunConfig) -> Variant | None:
    """The configured variant, or None. Raises ConfigError naming the option under `train.variant.options`."""
    wanted = config.train.variant
    if wanted is None:
        return None
    options = copy.deepcopy({**config.policy.options, **wanted.options})
    try:
        policy = build_policy(PolicyConfig(name=config.policy.name, options=options))
    except ConfigError as error:
        key, option = "train.variant.options", option_of(error)
        if option in wanted.options:
            raise error.under(f"{key}.{option}") from None
        raise ConfigError(f"({', '.join(wanted.options)}): {error}", key=key) from None
    return Variant(policy, wanted.share, wanted.options)


def is_variant(trajectory: Trajectory) -> bool:
    """Whether the episode ran with changed options.

    >>> from palimpsest.types import Outcome
    >>> is_variant(Trajectory("p", "g", 0, (), Outcome.ANSWERED, events=(Event(VariantPlayed(), 0),)))
    True
    """
    return any(isinstance(event.what, VariantPlayed) for event in trajectory.events)


def policy_of(config: RunConfig) -> MemoryPolicy:
    """The configured policy. Raises ConfigError for a wrong option, also of its training variant."""
    build_variant(config)
    return build_policy(config.policy)
