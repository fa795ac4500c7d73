"""Tokens that the turns of an episode cost, with a prefix cache and by role.

A server with a prefix cache computes a token once per distinct prefix. `computed_tokens` counts them for the prompts
and replies of an episode, as if its cache were unlimited and held nothing before. Each role has a cache of its own.

Not covered: prefixes shared with other episodes, whole blocks of a cache, evictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from palimpsest.rollout.segments import first_difference
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
    return distinct_tokens([(*turn.prompt_ids, *turn.completion.token_ids) for turn in turns])


def distinct_tokens(rows: Sequence[tuple[int, ...]]) -> int:
    """Tokens of sequences without those in a prefix that two share: the nodes of their trie."""
    ordered = sorted(rows)
    return sum(map(len, ordered)) - sum(common_length(before, row) for before, row in pairwise(ordered))


def common_length(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the common prefix of two sequences.

    >>> common_length((1, 2, 3), (1, 2, 4, 5)), common_length((), (1,))
    (2, 0)
    """
    return first_difference(a, b, 0, min(len(a), len(b)))


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


def costs_by_role(costs: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """(`tokens` or `computed`, role, number) of those in `token_costs`.

    >>> list(costs_by_role({"computed_tokens": 9.0, "role_tokens/reader": 8.0}))
    [('tokens', 'reader', 8.0)]
    """
    for name, value in costs.items():
        kind, _, role = name.partition("/")
        if kind.startswith("role_"):
            yield kind.removeprefix("role_"), role, value
