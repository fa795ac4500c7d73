"""Tokens that the turns of an episode cost, with a prefix cache and by role.

A server with a prefix cache computes a token once per distinct prefix. `computed_tokens` counts them for the prompts
and replies of an episode, as if its cache were unlimited and held nothing before. Each role has a cache of its own.

Not covered: prefixes shared with other episodes, whole blocks of a cache, evictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from palimpsest.types import Trajectory, Turn

AGENT = "agent"
"""Name of turns without a role."""


def computed_tokens(turns: Sequence[Turn]) -> int:
    """Distinct prefixes, of one token or more, of the turns' prompts with replies.

    >>> from palimpsest.types import Completion, StopReason
    >>> prompts = ((1, 2, 3), (1, 2, 4), (1, 2, 3, 9))
    >>> replies = [Completion((9,), (0.0,), StopReason.STOP)] * 3
    >>> computed_tokens([Turn(prompt, reply, 0, "read") for prompt, reply in zip(prompts, replies)])
    7
    """
    rows = sorted((*turn.prompt_ids, *turn.completion.token_ids) for turn in turns)
    return sum(map(len, rows)) - sum(shared_prefix(before, row) for before, row in pairwise(rows))


def shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix.

    >>> shared_prefix((1, 2, 3), (1, 2, 4)), shared_prefix((1, 2), (1, 2, 4)), shared_prefix((), (1,))
    (2, 2, 0)
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def token_costs(trajectory: Trajectory) -> dict[str, float]:
    """`computed_tokens`; for episodes with roles also `role_tokens/ROLE` and `role_computed/ROLE`, the agent's too."""
    by_role: dict[str, list[Turn]] = {}
    for turn in trajectory.turns:
        by_role.setdefault(turn.role or AGENT, []).append(turn)
    computed = {role: float(computed_tokens(turns)) for role, turns in by_role.items()}
    costs = {"computed_tokens": sum(computed.values())}
    if by_role.keys() - {AGENT}:
        for role in sorted(by_role):
            tokens = sum(len(turn.prompt_ids) + len(turn.completion.token_ids) for turn in by_role[role])
            costs |= {f"role_tokens/{role}": float(tokens), f"role_computed/{role}": computed[role]}
    return costs
