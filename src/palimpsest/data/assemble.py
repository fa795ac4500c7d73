"""Long contexts assembled from paragraphs: a question's gold paragraphs among distractors.

A context is `Document 1:\\n<paragraph>`, a blank line, `Document 2:...` (MemAgent's layout). A generator keyed by
(seed, problem id) draws distractors and order. MemAgent's own script shuffles every sample with one permutation.

Distant evidence (ReMemR1, arXiv 2509.23040): `order: reverse` puts the gold paragraphs in reverse reasoning order,
`min_distance` is their minimum distance in documents.

Guaranteed: every gold paragraph is in the context; those of a record with outdated ones stay in the file's order,
whatever `order` says, and only the others are evidence; all placements that order and distance admit are equally likely
and independent between problems; the same (record, corpus, documents, seed, placing) gives the same bytes.
Not covered: a distractor that answers the question; near-duplicate paragraphs (only equal ones are merged).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from palimpsest.data.record import Record
from palimpsest.errors import DataError
from palimpsest.seeding import keyed_random
from palimpsest.types import Problem

# ---- Slots of evidence ---------------------------------------------------------------------------------------


Piece = TypeVar("Piece")
Order = Literal["any", "forward", "reverse"]
"""Order of the evidence: any, first hop first, last hop first (ReMemR1's distant evidence)."""


def spaced(rng: random.Random, count: int, slots: int, distance: int) -> list[int]:
    """`count` ascending slots, neighbours at least `distance` >= 1 apart. Needs `room(count, distance)` slots.

    >>> spaced(random.Random(0), 3, 5, 2)
    [0, 2, 4]
    """
    gap = distance - 1
    drawn = sorted(rng.sample(range(slots - (count - 1) * gap), count))
    return [slot + index * gap for index, slot in enumerate(drawn)]


def room(count: int, distance: int) -> int:
    """Minimum number of slots for `count` pieces at `distance`.

    >>> room(2, 100), room(1, 100), room(3, 1)
    (101, 1, 3)
    """
    return (count - 1) * distance + 1


def ordered(rng: random.Random, slots: Sequence[int], order: Order) -> list[int]:
    """Map ascending slots to slots in reasoning order.

    >>> ordered(random.Random(0), [1, 5], "forward"), ordered(random.Random(0), [1, 5], "reverse")
    ([1, 5], [5, 1])
    """
    if order == "any":
        return rng.sample(slots, len(slots))
    return list(slots) if order == "forward" else list(slots)[::-1]


def at_positions(positions: Sequence[float], count: int, slots: int, what: str) -> list[int]:
    """Slots of `count` pieces at relative positions from 0.0 to 1.0. Raises DataError with the prefix `what`.

    >>> at_positions([0.0, 0.5, 1.0], 3, 101, "")
    [0, 50, 100]
    """
    if len(positions) != count:
        raise DataError(f"{what}: {count} gold documents, but {len(positions)} positions; set one per document")
    chosen = [round(position * (slots - 1)) for position in positions]
    if len(set(chosen)) < count:
        raise DataError(
            f"{what}: two positions fall on the same of {slots} documents; use other positions or more documents"
        )
    return chosen


# ---- Contexts from paragraphs --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Corpus:
    """Distinct paragraphs in code-point order: the source of distractors and the target of document indices."""

    paragraphs: tuple[str, ...]

    @classmethod
    def of(cls, lists: Iterable[Iterable[str]]) -> Corpus:
        """
        >>> Corpus.of([["b", "a"], ["b"]]).paragraphs
        ('a', 'b')
        """
        return cls(tuple(sorted({paragraph for paragraphs in lists for paragraph in paragraphs})))

    def draw(self, count: int, without: frozenset[str], rng: random.Random) -> list[str]:
        """`count` distinct paragraphs outside `without`, drawn uniformly; fewer if the corpus is too small."""
        spare = min(len(self.paragraphs), count + len(without))  # at most len(without) drawn ones are dropped
        drawn = (self.paragraphs[i] for i in rng.sample(range(len(self.paragraphs)), spare))
        return [paragraph for paragraph in drawn if paragraph not in without][:count]


def document_block(paragraphs: Sequence[str]) -> str:
    """Numbered documents separated by blank lines.

    >>> document_block(["Title\\nText.", "Other\\nText."])
    'Document 1:\\nTitle\\nText.\\n\\nDocument 2:\\nOther\\nText.'
    """
    return "\n\n".join(f"Document {i}:\n{paragraph}" for i, paragraph in enumerate(paragraphs, 1))


@dataclass(frozen=True, slots=True)
class Placing:
    """Placement of gold paragraphs in an assembled context."""

    order: Order = "any"
    min_distance: int = 0
    positions: tuple[float, ...] = ()
    """Relative position per gold paragraph in reasoning order, 0.0 (first document) to 1.0 (last); empty: random within
    `order` and `min_distance`."""


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

    Selects gold paragraphs first, then the question's other paragraphs (the hardest distractors), then the corpus.
    `documents=None` uses the record's own paragraphs in file order. Metadata gains `num_docs`, `evidence` (gold texts)
    and `evidence_positions` (1-based document numbers). Raises DataError if there are too few or too many paragraphs.
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
        if record.outdated:
            paragraphs = tuple(in_order(record.gold, paragraphs))
    evidence = record.gold[record.outdated :]
    metadata = {
        **record.metadata,
        "num_docs": len(paragraphs),
        "evidence_positions": tuple(paragraphs.index(text) + 1 for text in evidence),
        "evidence": evidence,
    }
    return record.problem(document_block(paragraphs), metadata)


def in_order(first: Sequence[Piece], pieces: Sequence[Piece]) -> list[Piece]:
    """`pieces` with those of `first`, in their slots, in the order of `first`."""
    following = iter(first)
    return [next(following) if piece in first else piece for piece in pieces]


def _choose(record: Record, corpus: Corpus, documents: int, rng: random.Random) -> tuple[str, ...]:
    assert record.paragraphs is not None
    chosen = list(record.needed)
    if len(chosen) > documents:
        raise DataError(
            f"problem {record.id}: {len(chosen)} gold paragraphs exceed data.documents={documents}; raise it"
        )
    rest = [paragraph for paragraph in record.paragraphs if paragraph not in chosen]
    room = documents - len(chosen)
    chosen += rest if len(rest) <= room else rng.sample(rest, room)
    missing = documents - len(chosen)
    drawn = corpus.draw(missing, frozenset(record.paragraphs), rng) if missing else []
    if len(drawn) < missing:
        raise DataError(
            f"problem {record.id}: data.documents={documents} needs {missing} distractors, but the corpus has only "
            f"{len(drawn)} outside this question's {len(record.paragraphs)}; lower data.documents or read a file with "
            "more questions"
        )
    chosen += drawn
    rng.shuffle(chosen)
    return tuple(chosen)


def _arrange(record: Record, paragraphs: tuple[str, ...], placing: Placing, rng: random.Random) -> tuple[str, ...]:
    gold = record.gold
    if not gold:
        raise DataError(
            f"problem {record.id}: its file marks no gold paragraphs; unset data.order and data.min_distance or read a "
            "file with supporting facts"
        )
    distance = max(1, placing.min_distance)
    if room(len(gold), distance) > len(paragraphs):
        raise DataError(
            f"problem {record.id}: {len(gold)} gold paragraphs {distance} documents apart need "
            f"{room(len(gold), distance)} documents, but data.documents={len(paragraphs)}; raise it or lower "
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
    """Raise DataError for a fixed context unless `documents` is None or its number of documents."""
    if documents is None or record.metadata.get("num_docs") == documents:
        return
    if record.context is None and record.stored is None:
        raise DataError(f"problem {record.id}: has no context; unset data.documents={documents}")
    raise DataError(
        f"problem {record.id}: data.documents={documents}, but its file has fixed contexts "
        f"(num_docs={record.metadata.get('num_docs', 'unknown')}); unset data.documents or read a HotpotQA file"
    )
