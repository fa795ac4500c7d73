"""Roles: the turns of an episode may be taken by several, of whom some are trained and others are not.

A policy asks for a turn with `model.generate(..., role="answerer")`; the configuration says under `roles` who that is.
The turn is recorded with its role and whether it is trained, so that segments, credit and imitation know it from the
record alone. Turns without a role are the agent's own: sampled from the run's model and trained.

Guaranteed: a frozen role's tokens carry no weight anywhere; where a later prompt of the agent holds them they are
context. A role that the configuration doesn't name is an error that tells the names it has.
Not covered: training two models at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from palimpsest.engines.protocol import Sampler
from palimpsest.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Role:
    """Who takes the turns of one role."""

    sampler: Sampler | None = None
    """None: the run's own."""
    trained: bool = True


Roles = Mapping[str, Role]

AGENT = Role()
"""Who takes the turns that name no role."""


def role_of(name: str | None, roles: Roles) -> Role:
    """The role called `name`. Raises ConfigError for one that isn't there.

    >>> role_of("answerer", {"answerer": Role(trained=False)}).trained, role_of(None, {}).trained
    (False, True)
    """
    if name is None:
        return AGENT
    if name not in roles:
        known = f"known: {', '.join(roles)}" if roles else "there are none"
        raise ConfigError(
            f"role {name!r} of a turn is unknown{nearest(name, roles)}; {known}: name it in the recipe, e.g. "
            f"roles: {{{name}: {{trained: false}}}}"
        )
    return roles[name]
