"""What the server counts, in Prometheus' text format 0.0.4.

Guaranteed: a family has HELP and TYPE before its samples; labels are outcomes and statuses of ours, never text of a
client, so that their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from palimpsest.engines.protocol import SamplerStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_EPISODE_COUNTERS = {
    "episodes_begun": "Episodes that were started.",
    "episodes_joined": "Requests whose episode was running already.",
    "episodes_stored": "Requests whose episode was in the store.",
    "turns": "Turns of episodes that have ended.",
    "tokens_in": "Prompt tokens of episodes that have ended.",
    "tokens_sampled": "Sampled tokens of episodes that have ended.",
}
_ENGINE_COUNTERS = {
    "prompt_tokens": "Prompt tokens that the model was asked for.",
    "computed_prompt_tokens": "Prompt tokens that were computed, not shared with another prompt.",
    "generated_tokens": "Tokens that the model sampled.",
}


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name."""

    name: str
    kind: str
    """`counter` or `gauge`."""
    help: str
    samples: Sequence[tuple[str, float]]
    """(labels as they are printed, value)."""

    def lines(self) -> Iterator[str]:
        """
        >>> list(Family("a_total", "counter", "Of a.", [('{b="c"}', 2)]).lines())
        ['# HELP a_total Of a.', '# TYPE a_total counter', 'a_total{b="c"} 2']
        """
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            yield f"{self.name}{labels} {value:.15g}"


def metrics_text(
    statuses: Mapping[int, int], counts: Mapping[str, int], stats: SamplerStats, *, running: int, waiting: int
) -> str:
    """`counts`: of episodes, as `Episodes.counts` has them."""

    def families() -> Iterator[Family]:
        by_status = [(f'{{status="{code}"}}', n) for code, n in sorted(statuses.items())]
        yield Family("palimpsest_requests_total", "counter", "Requests by the status of their answer.", by_status)
        outcomes = [(name.removeprefix("outcome:"), n) for name, n in sorted(counts.items()) if ":" in name]
        by_outcome = [(f'{{outcome="{name}"}}', n) for name, n in outcomes]
        yield Family("palimpsest_episodes_total", "counter", "Episodes that have ended.", by_outcome)
        for name, said in _EPISODE_COUNTERS.items():
            value = counts.get(name.removeprefix("episodes_"), 0)
            yield Family(f"palimpsest_{name}_total", "counter", said, [("", value)])
        for name, said in _ENGINE_COUNTERS.items():
            yield Family(f"palimpsest_engine_{name}_total", "counter", said, [("", getattr(stats, name))])
        yield Family("palimpsest_episodes_running", "gauge", "Episodes that run.", [("", running)])
        yield Family("palimpsest_episodes_waiting", "gauge", "Episodes that wait for a place.", [("", waiting)])

    return "".join(f"{line}\n" for family in families() for line in family.lines())
