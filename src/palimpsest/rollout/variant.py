"""Training episodes played with other options of the policy than the run's own: `train.variant`.

MemAct plays half of its training episodes without the pruning tool, so that the model also learns to do without it. The
policy knows nothing of that: here a second policy object is built from the changed options, and each episode is given
one of the two.

Guaranteed: which it is depends on the episode's key alone (run seed, step, problem, rollout); the two share no object
that could be changed; an episode so played begins with the event `variant`, which names the options. Only the training
loop has variants, so evaluation is always of the policy as configured.
Not covered: more than one variant of a run.
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
from palimpsest.memory.registry import build_policy, under_key
from palimpsest.seeding import Key, keyed_random
from palimpsest.types import Trajectory


@dataclass(frozen=True, slots=True)
class Variant:
    """The policy with its options changed, and how often it is played."""

    policy: MemoryPolicy
    share: float
    options: Mapping[str, Any]
    """What differs."""

    def plays(self, *key: Key) -> bool:
        """Whether the episode of this key (the rollout's, problem, rollout) is one of the share."""
        return keyed_random(*key, VariantPlayed.kind).random() < self.share

    def marked(self, trajectory: Trajectory) -> Trajectory:
        """`trajectory` with the event that tells it from the others."""
        played = VariantPlayed(copy.deepcopy(dict(self.options)))
        return replace(trajectory, events=(Event(played, before_turn=0), *trajectory.events))


def build_variant(config: RunConfig) -> Variant | None:
    """The configured variant, None without one. Raises ConfigError naming the option under `train.variant.options`."""
    wanted = config.train.variant
    if wanted is None:
        return None
    options = copy.deepcopy({**config.policy.options, **wanted.options})
    try:
        policy = build_policy(PolicyConfig(name=config.policy.name, options=options))
    except ConfigError as error:
        raise ConfigError(_renamed(str(error), wanted.options)) from None
    return Variant(policy, wanted.share, wanted.options)


def _renamed(message: str, options: Mapping[str, Any]) -> str:
    """A policy's message under the key the user wrote.

    >>> _renamed("policy.options.prun is unknown to prune; did you mean prune?", {"prun": False})
    'train.variant.options.prun is unknown to prune; did you mean prune?'
    >>> _renamed("the budgets of policy.options don't fit", {"max_turns": 1})
    "train.variant.options (max_turns): the budgets of policy.options don't fit"
    """
    named = under_key(message, options, "train.variant.options")
    return named if named != message else f"train.variant.options ({', '.join(options)}): {message}"


def is_variant(trajectory: Trajectory) -> bool:
    """Whether the episode was played with changed options.

    >>> from palimpsest.types import Outcome
    >>> is_variant(Trajectory("p", "g", 0, (), Outcome.ANSWERED, events=(Event(VariantPlayed(), 0),)))
    True
    """
    return any(isinstance(event.what, VariantPlayed) for event in trajectory.events)
