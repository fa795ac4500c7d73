r"""What a memory kept, lost and invented: measures of the reading turns of a group.

Evidence: where every text of `metadata["evidence"]` is a single sentence, each must stand in the memory. Where one is
longer (the gold paragraphs of HotpotQA), nobody would keep it word for word: the memory then must hold one of the
gold answers, which says nothing, and is not measured, for yes/no questions.

Not covered: memories that keep a fact in other words. `evidence_retention` and `copy_fidelity` compare text (without
regard to case and white space), so they are lower bounds for a model that paraphrases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from palimpsest.measures.trace import Reading, readings
from palimpsest.memory.parts.prompts import read_slots
from palimpsest.text.codec import Codec
from palimpsest.types import Group, Problem, StopReason, Turn

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_MARKS = " \t\r-*•"
_CHOICES = frozenset({"yes", "no", "noanswer", "unknown"})  # answers no text needs to hold


def memory_metrics(group: Group, codec: Codec, *, rollouts: int | None = None) -> dict[str, float | None]:
    """Means over the "read" turns of a group: tokens, truncated, overwrite_rate, evidence_retention, copy_fidelity.

    None where there is nothing to measure: no read turns, or no `evidence` in the problem's metadata. `rollouts`
    takes only the first so many trajectories.
    """
    episodes = [readings(trajectory, codec) for trajectory in group.trajectories[:rollouts]]
    reads = [reading for episode in episodes for reading in episode]
    memories = [[reading.memory_ids for reading in episode if reading.changed] for episode in episodes]
    finals = [codec.decode(each[-1]) for each in memories if each]
    return {
        "tokens": _mean(float(len(memory)) for each in memories for memory in each),
        "truncated": _mean(float(reading.turn.completion.stop_reason is StopReason.LENGTH) for reading in reads),
        "overwrite_rate": _mean(changed_share(before, after) for each in memories for before, after in pairwise(each)),
        "evidence_retention": _mean(evidence_retention(group.problem, final) for final in finals),
        "copy_fidelity": written_fidelity(reads, group.problem.question, codec),
    }


def reply_metrics(group: Group, codec: Codec) -> dict[str, float | None]:
    """What replies in tags asked for and decided, over all trajectories: the last four of the memory metrics."""
    reads = [reading for trajectory in group.trajectories for reading in readings(trajectory, codec)]
    tagged = [reading for reading in reads if "memory" in reading.turn.notes]
    looking = [reading for reading in tagged if "recalled" in reading.turn.notes]
    found = [evidence_retention(group.problem, reading.found) for reading in looking if reading.query is not None]
    return {
        "recall_rate": _mean(float(reading.query is not None) for reading in looking),
        "recall_hit_rate": _mean(None if share is None else float(share > 0) for share in found),
        "malformed_rate": _mean(float(reading.malformed is not None) for reading in tagged),
        "update_rate": _mean(float(reading.gates["update"]) for reading in tagged if reading.gates is not None),
    }


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
    evidence = [str(text) for text in problem.metadata.get("evidence", ())]
    if not evidence:
        return None
    if all(len(sentences(text)) == 1 for text in evidence):
        return retained_share(evidence, memory)
    if any(_flat(answer) in _CHOICES for answer in problem.answers):
        return None
    text = _flat(memory)
    return float(any(_stands_in(_flat(answer), text) for answer in problem.answers))


def retained_share(evidence: Sequence[str], memory: str) -> float:
    """Share of the evidence texts that stand in `memory`.

    >>> retained_share(["Anna lives in Rome.", "Rome is old."], "Facts:\\n anna  lives in Rome. The end")
    0.5
    """
    text = _flat(memory)
    return fmean(float(_stands_in(_flat(piece), text)) for piece in evidence)


def sentences(text: str) -> list[str]:
    """Sentences and lines of a text, each with its full stop, list marks taken off.

    >>> sentences("- Anna lives in Rome. She is 9.5 years\\nold.")
    ['Anna lives in Rome.', 'She is 9.5 years', 'old.']
    """
    pieces = (piece.strip(_MARKS) for piece in _SENTENCE_END.split(text))
    return [piece for piece in pieces if piece]


def copied(memory: str, source: str) -> tuple[int, int]:
    """Sentences of `memory` that stand verbatim in `source`, and all its sentences.

    A sentence must stand there as whole words, so a value cut short doesn't pass:

    >>> copied("The code is 12.", "The code is 12. More."), copied("The code is 1", "The code is 12.")
    ((1, 1), (0, 1))
    """
    text = _flat(source)
    written = sentences(memory)
    return sum(_stands_in(_flat(sentence), text) for sentence in written), len(written)


def copy_fidelity(reads: Sequence[Turn], question: str, codec: Codec) -> float | None:
    """`written_fidelity` of turns whose whole reply is the memory."""
    texts = [codec.decode(turn.completion.token_ids, control=False) for turn in reads]
    return _fidelity(zip(reads, texts, strict=True), question, codec)


def written_fidelity(reads: Iterable[Reading], question: str, codec: Codec) -> float | None:
    """Share of the sentences written in `reads` that stand in what was read, pooled; None if nothing was written.

    What may be copied is the section, the previous memory and a recalled one. In prompts other than our own they can't
    be told from the template, so there all of the prompt counts but for the question.
    """
    written = ((reading.turn, reading.memory_after) for reading in reads if reading.changed)
    return _fidelity(written, question, codec)


def _fidelity(written: Iterable[tuple[Turn, str]], question: str, codec: Codec) -> float | None:
    true = total = 0
    for turn, memory in written:
        prompt = codec.decode(turn.prompt_ids, control=False)
        slots = read_slots(prompt)
        source = f"{slots['section']}\n{slots['memory']}" if slots else prompt.replace(question, " ")
        hits, count = copied(memory, source)
        true, total = true + hits, total + count
    return true / total if total else None


def _flat(text: str) -> str:
    return " ".join(text.casefold().split())


def _stands_in(piece: str, text: str) -> bool:
    """Whether `piece` stands in `text` between word boundaries. Both flat."""
    start = text.find(piece) if piece else -1
    while start >= 0:
        end = start + len(piece)
        before, after = text[start - 1 : start], text[end : end + 1]
        cut_left = piece[0].isalnum() and before.isalnum()
        cut_right = piece[-1].isalnum() and after.isalnum()
        if not (cut_left or cut_right):
            return True
        start = text.find(piece, start + 1)
    return False


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
