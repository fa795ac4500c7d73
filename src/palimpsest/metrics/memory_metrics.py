"""Memory metrics: evidence kept, lost and invented, for reading turns, episodes and groups.

`memory_steps` has the evidence held, the unsupported text and the losses of each step; `memory_metrics` covers a group,
and so one episode. In the metrics of training the names are under memory/. `evidence_position` depends on the problem
alone: where in the document the evidence is.

| key | what |
|---|---|
| tokens | mean length of the memories written |
| truncated | share of reading turns whose reply was cut by its budget |
| overwrite_rate | share of memory tokens that changed from one memory to the next; 0 kept, 1 all new |
| evidence_retention | share of what the data names as evidence that is in the final memory, see below |
| copy_fidelity | share of sentences written that are verbatim in what was read or the memory before |
| dropped_share | share of sentences written that `grounded` kept out of the memory, where it is on |
| recall_rate | share of reading turns that asked for an earlier memory, where they may |
| recall_hit_rate | share of those that brought up a memory with a piece of the evidence in it |
| malformed_rate | share of reading turns whose reply could not be read, where replies have a form |

Evidence: if every text of `metadata["evidence"]` is a single sentence, each must be in the memory. If one is longer
(the gold paragraphs of HotpotQA), the memory must hold one of the gold answers instead; yes/no questions are not
measured then. Several questions are averaged.

Not covered: facts in other words. `evidence_retention` and `copy_fidelity` compare text, without case and white space,
so they are lower bounds for a model that paraphrases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from palimpsest.metrics.reading_trace import GroupTexts, ReadingTurn, readings
from palimpsest.text.codec import Codec
from palimpsest.text.sentences import flat, offset_in, sentences, stands_in
from palimpsest.types import Group, Problem, StopReason, Trajectory

EVIDENCE_FIRST, EVIDENCE_LAST = "evidence_first", "evidence_last"
"""Keys of `evidence_position`."""
CHOICES = frozenset({"yes", "no", "noanswer", "unknown"})  # answers no text needs to hold


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """What one reading turn did to the memory."""

    reading: ReadingTurn
    held: tuple[int, ...]
    """Indices in `metadata["evidence"]` of the texts that stand in the memory after it."""
    retention: float | None
    """`evidence_retention` of the memory after it."""
    written: tuple[str, ...]
    """Sentences of the memory it wrote; empty if it wrote none."""
    unsupported: tuple[str, ...] | None
    """Those of them that stand in nothing that was in sight; None where the prompt doesn't say what was."""
    lost: tuple[str, ...]
    """Sentences of the memory before that don't stand in the one after."""


def memory_steps(problem: Problem, trajectory: Trajectory, codec: Codec) -> list[MemoryStep]:
    """What each reading turn kept, invented and lost, in order."""
    return [_step(problem, reading) for reading in readings(trajectory, GroupTexts(codec))]


def memory_metrics(group: Group, texts: GroupTexts) -> dict[str, float | None]:
    """The table above: means over the reading turns of all trajectories; of their last memories for the evidence.

    None where there is nothing to measure: no reading turns, no evidence in the problem's metadata, no such replies.
    """
    episodes = [readings(trajectory, texts) for trajectory in group.trajectories]
    reads = [reading for episode in episodes for reading in episode]
    memories = [[reading.memory_after for reading in episode if reading.changed] for episode in episodes]
    return {
        "tokens": _mean(float(len(memory.ids)) for episode in memories for memory in episode),
        "truncated": _mean(float(reading.turn.completion.stop_reason is StopReason.LENGTH) for reading in reads),
        "overwrite_rate": _mean(changed_share(a.ids, b.ids) for episode in memories for a, b in pairwise(episode)),
        "evidence_retention": _mean(
            evidence_retention(group.problem, episode[-1].text) for episode in memories if episode
        ),
        "copy_fidelity": copy_fidelity(reads),
        "dropped_share": dropped_share(reads),
        **_reply_metrics(group.problem, reads),
    }


def _reply_metrics(problem: Problem, reads: Sequence[ReadingTurn]) -> dict[str, float | None]:
    """What replies in tags asked for."""
    looking = [reading for reading in reads if reading.asks]
    shares = [evidence_retention(problem, reading.recall_result) for reading in looking if reading.query is not None]
    return {
        "recall_rate": _mean(float(reading.query is not None) for reading in looking),
        "recall_hit_rate": _mean(None if share is None else float(share > 0) for share in shares),
        "malformed_rate": _mean(float(reading.malformed is not None) for reading in reads if reading.in_tags),
    }


def _step(problem: Problem, reading: ReadingTurn) -> MemoryStep:
    memory = reading.memory_after
    evidence = [flat(text) for text in _evidence(problem)]
    before = zip(reading.memory_before.sentences, reading.memory_before.flat_sentences, strict=True)
    return MemoryStep(
        reading=reading,
        held=tuple(number for number, text in enumerate(evidence) if stands_in(text, memory.flat)),
        retention=evidence_retention(problem, memory.text),
        written=reading.memory_after.sentences if reading.changed else (),
        unsupported=unsupported(reading),
        lost=tuple(sentence for sentence, form in before if not memory.holds(form)),
    )


def unsupported(reading: ReadingTurn) -> tuple[str, ...] | None:
    """Sentences that a turn wrote and that stand in nothing it had in sight; None where that isn't known.

    In sight are the named pieces of its prompt but the question: the section, the memory before, a recalled one. A
    memory that a replay was given is not the agent's, and counts as input.
    """
    if reading.sources is None:
        return None
    if not reading.changed or reading.substituted:
        return ()
    written, sources = reading.memory_after, reading.sources
    pairs = zip(written.sentences, written.flat_sentences, strict=True)
    return tuple(sentence for sentence, form in pairs if not any(source.holds(form) for source in sources))


def copy_fidelity(reads: Iterable[ReadingTurn]) -> float | None:
    """Share of the sentences written that are not `unsupported`, pooled; None if nothing was written, or is known."""
    true = total = 0
    for reading in reads:
        invented = unsupported(reading)
        if invented is not None and reading.changed and not reading.substituted:
            count = len(reading.memory_after.sentences)
            true, total = true + count - len(invented), total + count
    return true / total if total else None


def dropped_share(reads: Iterable[ReadingTurn]) -> float | None:
    """Share of the sentences written that the rule of `grounded` kept out of the memory, pooled; None without it."""
    dropped = total = 0
    for reading in reads:
        if reading.turn.notes.get("grounded") and not reading.substituted:
            out = sum(len(sentences(unit)) for unit in reading.dropped)
            remaining = len(reading.memory_after.sentences) if reading.changed else 0
            dropped, total = dropped + out, total + out + remaining
    return dropped / total if total else None


def changed_share(before: Sequence[int], after: Sequence[int]) -> float:
    """Share of tokens, of the longer of two memories, that the other doesn't hold; order is not looked at.

    >>> changed_share([1, 2, 3, 4], [4, 3, 2, 1]), changed_share([1, 2, 3, 4], [1, 2, 9]), changed_share([1], [])
    (0.0, 0.5, 1.0)
    """
    longer = max(len(before), len(after))
    common = (Counter(before) & Counter(after)).total()
    return 1 - common / longer if longer else 0.0


def evidence_retention(problem: Problem, memory: str) -> float | None:
    """How much of what an answer needs stands in `memory`, 0 to 1; None where the data doesn't say.

    >>> metadata = {"evidence": ["Rome\\nRome is old. It lies in Italy."]}
    >>> problem = Problem("p", "Where?", ("Italy", "Italia"), metadata=metadata)
    >>> evidence_retention(problem, "It is in Italy."), evidence_retention(problem, "It is old.")
    (1.0, 0.0)
    """
    evidence = _evidence(problem)
    if not evidence:
        return None
    if all(len(sentences(text)) == 1 for text in evidence):
        return retained_share(evidence, memory)
    text = flat(memory)
    return _mean(_holds_gold(question, text) for question in problem.by_question)


def _holds_gold(problem: Problem, flat_memory: str) -> float | None:
    """Whether one of a single question's golds stands in the memory; None for a yes/no question, or without golds."""
    if not problem.answers or any(flat(answer) in CHOICES for answer in problem.answers):
        return None
    return float(any(stands_in(flat(answer), flat_memory) for answer in problem.answers))


def evidence_position(problem: Problem) -> dict[str, float]:
    """Where the first and the last piece of evidence lie in the document: 0 at its beginning, 1 at its end. Empty where
    the data names none, or none stands in the document. Of a piece that stands there several times the first counts.

    >>> evidence = {"evidence": ["Anna ran.", "Bob is old."]}
    >>> evidence_position(Problem("p", "?", (), "It rains. Bob is old.\\nAnna ran.", metadata=evidence))
    {'evidence_first': 0.5, 'evidence_last': 1.0}
    """
    document, places = flat(problem.context or ""), list[float]()
    for piece in map(flat, _evidence(problem)):
        if (start := offset_in(piece, document)) >= 0:
            places.append(start / max(1, len(document) - len(piece)))
    return {EVIDENCE_FIRST: min(places), EVIDENCE_LAST: max(places)} if places else {}


def retained_share(evidence: Sequence[str], memory: str) -> float:
    """Share of the evidence texts that stand in `memory`.

    >>> retained_share(["Anna lives in Rome.", "Rome is old."], "Facts:\\n anna  lives in Rome. The end")
    0.5
    """
    text = flat(memory)
    return fmean(float(stands_in(flat(piece), text)) for piece in evidence)


def _evidence(problem: Problem) -> list[str]:
    return [str(text) for text in problem.metadata.get("evidence", ())]


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
