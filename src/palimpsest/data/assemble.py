"""Long contexts assembled from paragraphs: a question's gold paragraphs among distractors.

A context is `Document 1:\\n<paragraph>`, a blank line, `Document 2:...` (MemAgent's layout). Distractors and their
order are drawn from a generator keyed by (seed, problem id). MemAgent's own script shuffles every sample with the same
permutation, which ties a paragraph's place in the file to its place in every context.

Distant evidence (ReMemR1, arXiv 2509.23040): `order: reverse` puts the gold paragraphs in reverse reasoning order,
`min_distance` keeps them at least that many documents apart.

Guaranteed: every gold paragraph is in the context; every placement that order and distance admit is equally likely, and
placements are independent between problems; the same (record, corpus, documents, seed, placing) gives the same bytes.
Not covered: a distractor that happens to answer the question; near-duplicate paragraphs (only equal ones are merged).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from palimpsest.data.record import Record
from palimpsest.errors import DataError
from palimpsest.seeding import keyed_random
from palimpsest.types import Problem

# ---- Slots of evidence ---------------------------------------------------------------------------------------


Order = Literal["any", "forward", "reverse"]
"""Of evidence in reasoning order: any, first hop first, last hop first (ReMemR1's distant evidence)."""


def spaced(rng: random.Random, count: int, slots: int, distance: int) -> list[int]:
    """`count` ascending slots, neighbours at least `distance` >= 1 apart; there must be room for them.

    >>> spaced(random.Random(0), 3, 5, 2)
    [0, 2, 4]
    """
    gap = distance - 1
    drawn = sorted(rng.sample(range(slots - (count - 1) * gap), count))
    return [slot + index * gap for index, slot in enumerate(drawn)]


def room(count: int, distance: int) -> int:
    """Slots that `count` pieces `distance` apart need at the least.

    >>> room(2, 100), room(1, 100), room(3, 1)
    (101, 1, 3)
    """
    return (count - 1) * distance + 1


def ordered(rng: random.Random, slots: Sequence[int], order: Order) -> list[int]:
    """Ascending slots to slots in reasoning order.

    >>> ordered(random.Random(0), [1, 5], "forward"), ordered(random.Random(0), [1, 5], "reverse")
    ([1, 5], [5, 1])
    """
    if order == "any":
        return rng.sample(slots, len(slots))
    return list(slots) if order == "forward" else list(slots)[::-1]


def at_positions(positions: Sequence[float], count: int, slots: int, what: str) -> list[int]:
    """The slot of each of `count` pieces at relative places of 0.0 to 1.0. Raises DataError, which begins with `what`.

    >>> at_positions([0.0, 0.5, 1.0], 3, 101, "")
    [0, 50, 100]
    """
    if len(positions) != count:
        raise DataError(f"{what}: {count} gold documents, but {len(positions)} positions; give one for each")
    chosen = [round(position * (slots - 1)) for position in positions]
    if len(set(chosen)) < count:
        raise DataError(
            f"{what}: two of the positions fall on one of {slots} documents; give others, or more documents"
        )
    return chosen


# ---- Contexts from paragraphs --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Corpus:
    """Distinct paragraphs in code-point order: where distractors come from, and what document indices index."""

    paragraphs: tuple[str, ...]

    @classmethod
    def of(cls, lists: Iterable[Iterable[str]]) -> Corpus:
        """
        >>> Corpus.of([["b", "a"], ["b"]]).paragraphs
        ('a', 'b')
        """
        return cls(tuple(sorted({paragraph for paragraphs in lists for paragraph in paragraphs})))

    def draw(self, count: int, without: frozenset[str], rng: random.Random) -> list[str]:
        """`count` distinct paragraphs that are not in `without`, uniformly; the corpus must hold that many."""
        spare = min(len(self.paragraphs), count + len(without))  # at most so many of the drawn are thrown out
        drawn = (self.paragraphs[i] for i in rng.sample(range(len(self.paragraphs)), spare))
        return [paragraph for paragraph in drawn if paragraph not in without][:count]


def document_block(paragraphs: Sequence[str]) -> str:
    """Numbered documents, a blank line between them.

    >>> document_block(["Title\\nText.", "Other\\nText."])
    'Document 1:\\nTitle\\nText.\\n\\nDocument 2:\\nOther\\nText.'
    """
    return "\n\n".join(f"Document {i}:\n{paragraph}" for i, paragraph in enumerate(paragraphs, 1))


@dataclass(frozen=True, slots=True)
class Placing:
    """How gold paragraphs stand in an assembled context."""

    order: Order = "any"
    min_distance: int = 0
    positions: tuple[float, ...] = ()
    """Where each gold paragraph stands, in reasoning order, 0.0 (first document) to 1.0 (last); empty: by chance, as
    `order` and `min_distance` admit."""


ANYWHERE = Placing()


def assemble(
    record: Record,
    *,
    corpus: Corpus | None = None,
    documents: int | None = None,
    seed: int = 0,
    placing: Placing = ANYWHERE,
) -> Problem:
    """The problem of `record`, with `documents` documents in its context.

    Gold paragraphs come first in the choice, then the question's own others (the hardest distractors), then the
    corpus. `documents=None` keeps the record's own paragraphs in their order. Metadata gains `num_docs`, `evidence`
    (gold texts) and `evidence_positions` (the numbers of their documents, from 1).
    Raises DataError if the count can't be met.
    """
    if record.paragraphs is None:
        check_fixed(record, documents)
        return record.problem(record.context, record.metadata)
    paragraphs = record.paragraphs
    if documents is not None:
        rng = keyed_random(seed, "documents", record.id)
        paragraphs = _choose(record, corpus or Corpus(()), documents, rng)
        if placing != ANYWHERE:
            paragraphs = _arrange(record, paragraphs, placing, rng)
    metadata = {
        **record.metadata,
        "num_docs": len(paragraphs),
        "evidence_positions": tuple(paragraphs.index(text) + 1 for text in record.gold),
        "evidence": record.gold,
    }
    return record.problem(document_block(paragraphs), metadata)


def _choose(record: Record, corpus: Corpus, documents: int, rng: random.Random) -> tuple[str, ...]:
    """Gold and distractors in a shuffled order."""
    assert record.paragraphs is not None
    chosen = list(record.needed)
    if len(chosen) > documents:
        raise DataError(
            f"problem {record.id}: {len(chosen)} gold paragraphs don't fit data.documents={documents}; raise it"
        )
    rest = [paragraph for paragraph in record.paragraphs if paragraph not in chosen]
    room = documents - len(chosen)
    chosen += rest if len(rest) <= room else rng.sample(rest, room)
    missing = documents - len(chosen)
    drawn = corpus.draw(missing, frozenset(record.paragraphs), rng) if missing else []
    if len(drawn) < missing:
        raise DataError(
            f"problem {record.id}: data.documents={documents} needs {missing} distractors from the corpus, which "
            f"holds {len(drawn)} besides this question's own {len(record.paragraphs)}; lower data.documents or read a "
            "file with more questions"
        )
    chosen += drawn
    rng.shuffle(chosen)
    return tuple(chosen)


def _arrange(record: Record, paragraphs: tuple[str, ...], placing: Placing, rng: random.Random) -> tuple[str, ...]:
    """The same paragraphs with the gold ones where `placing` wants them, the others in their shuffled order."""
    gold = record.gold
    if not gold:
        raise DataError(
            f"problem {record.id}: its file doesn't say which paragraphs are gold, so data.order and data.min_distance "
            "have no meaning; unset them or read a file with supporting facts"
        )
    distance = max(1, placing.min_distance)
    if room(len(gold), distance) > len(paragraphs):
        raise DataError(
            f"problem {record.id}: {len(gold)} gold paragraphs {distance} documents apart need "
            f"{room(len(gold), distance)} documents, data.documents={len(paragraphs)}; raise it or lower "
            "data.min_distance"
        )
    if placing.positions:
        slots = at_positions(placing.positions, len(gold), len(paragraphs), f"problem {record.id}")
    else:
        slots = ordered(rng, spaced(rng, len(gold), len(paragraphs), distance), placing.order)
    at = dict(zip(slots, gold, strict=True))
    rest = iter([paragraph for paragraph in paragraphs if paragraph not in gold])
    return tuple(at[slot] if slot in at else next(rest) for slot in range(len(paragraphs)))


def check_fixed(record: Record, documents: int | None) -> None:
    """Refuse a number of documents for a context that the file itself fixes, unless it has just that many."""
    if documents is None or record.metadata.get("num_docs") == documents:
        return
    if record.context is None and record.stored is None:
        raise DataError(f"problem {record.id}: has no context, so data.documents={documents} has no meaning; unset it")
    raise DataError(
        f"problem {record.id}: data.documents={documents}, but its file holds finished contexts "
        f"(num_docs={record.metadata.get('num_docs', 'unknown')}); unset data.documents or read a HotpotQA file"
    )
