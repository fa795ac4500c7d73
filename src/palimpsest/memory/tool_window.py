"""A baseline without memory: an agent with tools that sees the last tokens of its tool history only.

Source: the sliding-window baseline of MemAct (arXiv 2510.12635), whose window is 8K. Before each turn the oldest
replies leave with their results, whole, until the rest has at most `window_tokens`; the question stays.

Guaranteed: the latest reply stays with its results, even if they alone are longer than the window.
Not covered: telling the model that something has left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from palimpsest.errors import ConfigError, DataError
from palimpsest.events import ExchangesDropped
from palimpsest.memory.parts.tool_agent import Episode, ToolAgentPolicy
from palimpsest.text.codec import Codec
from palimpsest.types import Problem


@dataclass(frozen=True, slots=True)
class ToolWindowPolicy(ToolAgentPolicy):
    """Options of the tool agent, and the window."""

    window_tokens: int = 8192
    """Tokens of replies and results that stay in sight."""

    def __post_init__(self) -> None:
        ToolAgentPolicy.__post_init__(self)
        if self.window_tokens < 1:
            raise ConfigError(f"policy.options.window_tokens={self.window_tokens}: must be at least 1 token")

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Refuse, at load, a problem beside which a full window leaves no room for a reply."""
        ToolAgentPolicy.admit(self, problem, codec)
        length = len(self.begin(problem, codec).ids())
        if length + self.window_tokens >= self.context_tokens:
            raise DataError(
                f"problem {problem.id}: its first prompt has {length} tokens, which with policy.options.window_tokens="
                f"{self.window_tokens} leaves no room for a reply in policy.options.context_tokens="
                f"{self.context_tokens}; lower the former or raise the latter"
            )

    async def make_room(self, episode: Episode) -> None:
        """Drop the oldest exchanges."""
        first = dropped_exchanges(episode.history.exchange_lengths(), self.window_tokens)
        if first:
            episode.history = replace(episode.history, exchanges=episode.history.exchanges[first:])
            episode.model.event(ExchangesDropped(first))


def dropped_exchanges(lengths: list[int], window: int) -> int:
    """How many of the oldest must go.

    >>> dropped_exchanges([5, 4, 3], 12), dropped_exchanges([5, 4, 3], 7), dropped_exchanges([5, 4, 3], 1)
    (0, 1, 2)
    """
    first, total = 0, sum(lengths)
    while total > window and first < len(lengths) - 1:
        total -= lengths[first]
        first += 1
    return first
