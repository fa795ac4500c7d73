"""Memory metrics: evidence retained, lost and hallucinated, for reading turns, episodes and groups.

`memory_metrics` covers a group, and so one episode. Training metrics have these names under memory/.
`evidence_position` depends only on the problem: the position of the evidence in the document.

| key | meaning |
|---|---|
| tokens | mean length of the memories written |
| truncated | share of replies for a memory, merges included, that exceeded their budget |
| overwrite_rate | share of memory tokens that changed from one written memory to the next |
| evidence_retention | share of the named evidence in the final memory, see below |
| copy_fidelity | share of written sentences that are verbatim in the section or the previous memory |
| dropped_share | share of written sentences, of reads and merges, that `grounded` dropped, if it is on |
| recall_rate | share of reading turns that requested an earlier memory, if recall is on |
| recall_hit_rate | share of these that retrieved a memory with a piece of the evidence |
| malformed_rate | share of reading turns with an unreadable reply, for replies with a format |

Evidence: if every text of `metadata["evidence"]` is a single sentence, each must be in the memory. If one is longer
(the gold paragraphs of HotpotQA), the memory must contain one of the gold answers instead; yes/no questions have no
value then. Several questions are averaged.

Not covered: paraphrased facts. `evidence_retention` and `copy_fidelity` compare text, ignoring case and white space,
so they are lower bounds for a model that paraphrases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from palimpsest.metrics.reading_trace import GroupTexts, ReadingTurn, readings
from palimpsest.text.sentences import flat, offset_in, sentences, stands_in
from palimpsest.types import Group, Problem, StopReason

EVIDENCE_FIRST, EVIDENCE_LAST = "evidence_first", "evidence_last"
"""Keys of `evidence_position`."""
CHOICES = frozenset({"yes", "no", "noanswer", "unknown"})  # answers that need no text


def memory_metrics(group: Group, texts: GroupTexts) -> dict[str, float | None]:
    """The table above: means over the reading turns of all trajectories; evidence over their last memories.

    None for metrics without data: no reading turns, no evidence in the problem's metadata, no such replies.
    """
    episodes = [readings(trajectory, texts) for trajectory in group.trajectories]
    reads = [reading for episode in episodes for reading in episode]
    memories = [[reading.memory_after for reading in episode if reading.changed] for episode in episodes]
    return {
        "tokens": mean(float(len(memory.ids)) for episode in memories for memory in episode),
        "truncated": mean(
            float(turn.completion.stop_reason is StopReason.LENGTH) for reading in reads for turn in reading.writers
        ),
        "overwrite_rate": mean(changed_share(a.ids, b.ids) for episode in memories for a, b in pairwise(episode)),
        "evidence_retention": mean(
            evidence_retention(group.problem, episode[-1].memory_after.text) for episode in episodes if episode
        ),
        "copy_fidelity": copy_fidelity(reads),
        "dropped_share": dropped_share(reads),
        **_reply_metrics(group.problem, reads),
    }


def _reply_metrics(problem: Problem, reads: Sequence[ReadingTurn]) -> dict[str, float | None]:
    looking = [reading for reading in reads if reading.asks]
    shares = [evidence_retention(problem, reading.recall_result) for reading in looking if reading.query is not None]
    return {
        "recall_rate": mean(float(reading.query is not None) for reading in looking),
        "recall_hit_rate": mean(None if share is None else float(share > 0) for share in shares),
        "malformed_rate": mean(float(reading.malformed is not None) for reading in reads if reading.in_tags),
    }


def unsupported(reading: ReadingTurn) -> tuple[str, ...] | None:
    """Sentences that a turn wrote without a source in its prompt; None if the sources are unknown.

    Sources are the named pieces of the prompt except the question: section, previous memory, recalled memory. The
    memory given to a replay is not the agent's and counts as input.
    """
    if reading.sources is None:
        return None
    if not reading.changed or reading.substituted:
        return ()
    written, sources = reading.memory_after, reading.sources
    pairs = zip(written.sentences, written.flat_sentences, strict=True)
    return tuple(sentence for sentence, form in pairs if not any(source.holds(form) for source in sources))


def copy_fidelity(reads: Iterable[ReadingTurn]) -> float | None:
    """Share of written sentences that are not `unsupported`, pooled; None without any, or with unknown sources."""
    true = total = 0
    for reading in reads:
        invented = unsupported(reading)
        if invented is not None and reading.changed and not reading.substituted:
            count = len(reading.memory_after.sentences)
            true, total = true + count - len(invented), total + count
    return true / total if total else None


def dropped_share(reads: Iterable[ReadingTurn]) -> float | None:
    """Share of written sentences that `grounded` dropped from the memory, pooled; None without it."""
    dropped = total = 0
    for reading in reads:
        if reading.turn.notes.get("grounded") and not reading.substituted:
            out = sum(len(sentences(unit)) for unit in reading.dropped)
            remaining = sum(len(text.sentences) for text in reading.kept)
            dropped, total = dropped + out, total + out + remaining
    return dropped / total if total else None


def changed_share(before: Sequence[int], after: Sequence[int]) -> float:
    """Share of the longer memory's tokens that the other lacks, ignoring order.

    >>> changed_share([1, 2, 3, 4], [4, 3, 2, 1]), changed_share([1, 2, 3, 4], [1, 2, 9]), changed_share([1], [])
    (0.0, 0.5, 1.0)
    """
    longer = max(len(before), len(after))
    common = (Counter(before) & Counter(after)).total()
    return 1 - common / longer if longer else 0.0


def evidence_retention(problem: Problem, memory: str) -> float | None:
    """Share of the evidence in `memory`, 0 to 1; None if the data has no evidence.

    >>> metadata = {"evidence": ["Rome\\nRome is old. It lies in Italy."]}
    >>> problem = Problem("p", "Where?", ("Italy", "Italia"), metadata=metadata)
    >>> evidence_retention(problem, "It is in Italy."), evidence_retention(problem, "It is old.")
    (1.0, 0.0)
    """
    evidence, text = _evidence(problem), flat(memory)
    if not evidence:
        return None
    if all(len(sentences(text)) == 1 for text in evidence):
        return fmean(float(stands_in(flat(piece), text)) for piece in evidence)
    return mean(_holds_gold(question, text) for question in problem.by_question)


def _holds_gold(problem: Problem, flat_memory: str) -> float | None:
    """True if the memory contains a gold of a single question; None for a yes/no question, or without golds."""
    if not problem.answers or any(flat(answer) in CHOICES for answer in problem.answers):
        return None
    return float(any(stands_in(flat(answer), flat_memory) for answer in problem.answers))


def evidence_position(problem: Problem) -> dict[str, float]:
    """Positions of the first and last piece of evidence in the document: 0 at its start, 1 at its end. A repeated
    piece counts at its first position. Empty if the data names no evidence or the document lacks it.

    >>> evidence = {"evidence": ["Anna ran.", "Bob is old."]}
    >>> evidence_position(Problem("p", "?", (), "It rains. Bob is old.\\nAnna ran.", metadata=evidence))
    {'evidence_first': 0.5, 'evidence_last': 1.0}
    """
    document, places = flat(problem.context or ""), list[float]()
    for piece in map(flat, _evidence(problem)):
        if (start := offset_in(piece, document)) >= 0:
            places.append(start / max(1, len(document) - len(piece)))
    return {EVIDENCE_FIRST: min(places), EVIDENCE_LAST: max(places)} if places else {}


def _evidence(problem: Problem) -> list[str]:
    return [str(text) for text in problem.metadata.get("evidence", ())]


def mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def folded(rows: Iterable[Mapping[str, float]], fold: Callable[[list[float]], float]) -> dict[str, float]:
    """The values that rows have under each name, folded.

    >>> folded([{"b": 1.0}, {"a": 3.0, "b": 5.0}], max)
    {'a': 3.0, 'b': 5.0}
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return {name: fold(values[name]) for name in sorted(values)}
