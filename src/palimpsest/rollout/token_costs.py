"""Tokens that the turns of an episode cost, with a prefix cache and by role.

A server with a prefix cache computes a token once per distinct prefix. `computed_tokens` counts them for the prompts
and replies of an episode, as if its cache were unlimited and held nothing before. Each role has a cache of its own.

`ReuseCost` counts what an agent with a history costs: its calls in order, each with the previous call's prompt and
reply in the cache, so that an edit early in the history makes the rest new. With P prompt tokens of a call, R of them
in the cache, U = P - R new and G sampled ones, the formula of Context Language Models (arXiv 2609.37725) is

    F = C_token (U + G) + C_attention [ (P^2 - R^2) / 2 + G P + G^2 / 2 ]        FLOPs

with 2 FLOPs for each weight that a token uses and 4 for each layer, head and dimension of a pair of tokens. The paper
compares prompts only, which counts a reply as new again in the next prompt; a server keeps it.

Not covered: prefixes shared with other episodes, whole blocks of a cache, evictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from palimpsest.types import Trajectory, Turn

AGENT = "agent"
"""Name of turns without a role."""
_BLOCK = 128  # tokens compared at once, at C speed, before looking for the exact place of a difference


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
    start, stop = 0, min(len(a), len(b))
    while start < stop:
        end = min(start + _BLOCK, stop)
        if a[start:end] != b[start:end]:
            return next(index for index in range(start, end) if a[index] != b[index])
        start = end
    return stop


BILLED = (1.25, 0.1, 5.0)
"""Prices of a new prompt token, written to the cache, of a cached and of a sampled one, in those of an uncached prompt
token: the ratios of the usual price lists."""


@dataclass(frozen=True, slots=True)
class ReuseCost:
    """Tokens and pairs of tokens that the agent's calls of an episode cost."""

    new: int
    """Sum of U."""
    cached: int
    """Sum of R."""
    sampled: int
    """Sum of G."""
    pairs: float
    """Sum of the bracket in F: tokens times the tokens before them."""

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> ReuseCost:
        """Cost of the turns without a role, in order.

        >>> from palimpsest.types import Completion, StopReason
        >>> reply = Completion((9,), (0.0,), StopReason.STOP)
        >>> ReuseCost.of([Turn(prompt, reply, 0, "act") for prompt in ((1, 2), (1, 2, 9, 3), (1, 3))])
        ReuseCost(new=4, cached=4, sampled=3, pairs=16.5)
        """
        new = cached = sampled = 0
        pairs, before = 0.0, tuple[int, ...]()
        for turn in turns:
            if turn.role:
                continue
            shared, length = common_length(before, turn.prompt_ids), len(turn.prompt_ids)
            before = (*turn.prompt_ids, *turn.completion.token_ids)
            new, cached, sampled = new + length - shared, cached + shared, sampled + len(before) - length
            pairs += (len(before) ** 2 - shared**2) / 2
        return cls(new, cached, sampled, pairs)

    @property
    def computed(self) -> int:
        """Sum of U + G."""
        return self.new + self.sampled

    @property
    def billed(self) -> float:
        """Price of the episode in uncached prompt tokens."""
        return sum(price * count for price, count in zip(BILLED, (self.new, self.cached, self.sampled), strict=True))


def token_costs(trajectory: Trajectory, roles: Iterable[str] = ()) -> dict[str, float]:
    """`computed_tokens`; with roles also `role_tokens/ROLE` and `role_computed/ROLE`, the agent's too.

    `roles`: counted even without a turn.
    """
    by_role: dict[str, list[Turn]] = {role: [] for role in (AGENT, *roles)}
    for turn in trajectory.turns:
        by_role.setdefault(turn.role or AGENT, []).append(turn)
    computed = {role: float(computed_tokens(turns)) for role, turns in by_role.items()}
    costs = {"computed_tokens": sum(computed.values())}
    if by_role.keys() - {AGENT}:
        for role in sorted(by_role):
            tokens = sum(len(turn.prompt_ids) + len(turn.completion.token_ids) for turn in by_role[role])
            costs |= {f"role_tokens/{role}": float(tokens), f"role_computed/{role}": computed[role]}
    return costs


def cost_figures(measures: Mapping[str, float]) -> dict[str, float]:
    """Measured costs by their column in a table: computed tokens, billed ones, 10^9 FLOPs, and tokens by role.

    Billed tokens and FLOPs are those of the agent's history; with roles their columns say so.

    >>> cost_figures({"computed_tokens": 9.4, "reuse_flops": 12_345_678.0, "role_tokens/reader": 8.0})
    {'computed': 9, 'agent GFLOPs': 0.0123, 'reader tokens': 8}
    """
    own = f"{AGENT} " if any(name.startswith("role_") for name in measures) else ""
    found: dict[str, float] = {
        shown: round(measures[name])
        for name, shown in {"computed_tokens": "computed", "billed_tokens": f"{own}billed"}.items()
        if name in measures
    }
    if "reuse_flops" in measures:
        found[f"{own}GFLOPs"] = float(f"{measures['reuse_flops'] / 1e9:.3g}")
    for name, value in measures.items():
        kind, _, role = name.partition("/")
        if kind.startswith("role_"):
            found[f"{role} {kind.removeprefix('role_')}"] = round(value)
    return found
