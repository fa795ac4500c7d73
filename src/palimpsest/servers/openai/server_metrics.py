"""What the server measures, in Prometheus' text format 0.0.4.

Guaranteed: a family has HELP and TYPE before its samples; buckets are cumulative and end with +Inf, which is the count;
labels are routes, outcomes and statuses of ours, never text of a client, so that their number is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
TOKENS = tuple(float(4**power) for power in range(1, 13))
"""4 to 16,777,216."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    help: str
    samples: Sequence[tuple[str, Mapping[str, str], float]]
    """(suffix of the name, labels, value)."""

    def lines(self) -> Iterator[str]:
        """
        >>> list(Family("a_total", "counter", "Of a.", [("", {"b": "c"}, 2)]).lines())
        ['# HELP a_total Of a.', '# TYPE a_total counter', 'a_total{b="c"} 2']
        """
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for suffix, labels, value in self.samples:
            named = ",".join(f'{name}="{_escaped(each)}"' for name, each in labels.items())
            labelled = f"{{{named}}}" if named else ""
            yield f"{self.name}{suffix}{labelled} {value:.15g}"


def text_of(families: Iterable[Family]) -> str:
    return "".join(f"{line}\n" for family in families for line in family.lines())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass(slots=True)
class _Counts:
    """Of one histogram."""

    buckets: list[int]
    """As many as bounds, and one for what is beyond; not cumulative."""
    total: float = 0.0


class Histogram:
    """Of values, with one label or none.

    >>> sizes = Histogram("a", "Of a.", (1.0, 4.0))
    >>> sizes.observe(3), sizes.observe(9)
    (None, None)
    >>> [line.removeprefix("a_") for line in sizes.family().lines()][2:]
    ['bucket{le="1"} 0', 'bucket{le="4"} 1', 'bucket{le="+Inf"} 2', 'sum 12', 'count 2']
    """

    def __init__(self, name: str, said: str, bounds: Sequence[float], label: str = "") -> None:
        self._name, self._help, self._bounds, self._label = name, said, bounds, label
        self._counts: dict[str, _Counts] = {} if label else {"": _Counts([0] * (len(bounds) + 1))}

    def observe(self, value: float, label: str = "") -> None:
        counts = self._counts.setdefault(label, _Counts([0] * (len(self._bounds) + 1)))
        counts.buckets[bisect_left(self._bounds, value)] += 1
        counts.total += value

    def family(self) -> Family:
        samples = list[tuple[str, Mapping[str, str], float]]()
        for label, counts in sorted(self._counts.items()):
            labels, below = {self._label: label} if self._label else {}, 0
            for bound, count in zip((*self._bounds, None), counts.buckets, strict=True):
                below += count
                samples.append(("_bucket", {**labels, "le": "+Inf" if bound is None else f"{bound:.15g}"}, below))
            samples += [("_sum", labels, counts.total), ("_count", labels, below)]
        return Family(self._name, "histogram", self._help, samples)


@dataclass(slots=True)
class RequestMeasures:
    """Of requests that have ended."""

    seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "palimpsest_request_duration_seconds", "From the head of a request to its answer's end.", SECONDS, "route"
        )
    )
    first_byte: Histogram = field(
        default_factory=lambda: Histogram(
            "palimpsest_request_first_byte_seconds", "From the head of a request to its first byte.", SECONDS, "route"
        )
    )

    def ended(self, route: str, seconds: float, first_byte: float | None) -> None:
        self.seconds.observe(seconds, route or "none")
        if first_byte is not None:
            self.first_byte.observe(first_byte, route or "none")


class EpisodeMeasures:
    """Of episodes that were played to an end."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._read = Histogram("palimpsest_episode_prompt_tokens", "Prompt tokens of an episode, all turns.", TOKENS)
        self._said = Histogram("palimpsest_episode_sampled_tokens", "Sampled tokens of an episode, all turns.", TOKENS)

    def played(self, result: Mapping[str, Any]) -> None:
        for name in ("turns", "tokens_in", "tokens_sampled"):
            self.counts[name] += result[name]
        self._read.observe(result["tokens_in"])
        self._said.observe(result["tokens_sampled"])

    def families(self) -> Iterator[Family]:
        counts = self.counts
        outcomes = [(name, n) for name, n in sorted(counts.items()) if name.startswith("outcome:")]
        samples = [("", {"outcome": name.removeprefix("outcome:")}, n) for name, n in outcomes]
        yield Family("palimpsest_episodes_total", "counter", "Episodes that have ended.", samples)
        for name, said in _EPISODE_COUNTERS.items():
            yield _one(f"palimpsest_{name}_total", "counter", said, counts[name.removeprefix("episodes_")])
        yield self._read.family()
        yield self._said.family()


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


def families_of(
    statuses: Mapping[int, int], requests: RequestMeasures, episodes: EpisodeMeasures, stats: object
) -> Iterator[Family]:
    """All but the gauges; `stats`: of the engine."""
    by_status = [("", {"status": str(code)}, n) for code, n in sorted(statuses.items())]
    yield Family("palimpsest_requests_total", "counter", "Requests by the status of their answer.", by_status)
    yield requests.seconds.family()
    yield requests.first_byte.family()
    yield from episodes.families()
    for name, said in _ENGINE_COUNTERS.items():
        yield _one(f"palimpsest_engine_{name}_total", "counter", said, getattr(stats, name))


def gauge(name: str, said: str, value: float) -> Family:
    return _one(name, "gauge", said, value)


def _one(name: str, kind: str, said: str, value: float) -> Family:
    return Family(name, kind, said, [("", {}, value)])
