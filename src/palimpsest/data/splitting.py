"""Questions dealt into splits that share none: train, dev, test, or whatever they are called.

The order in which questions are dealt is keyed by (seed, question), so that it doesn't depend on the order of files.
The split of all the rest is filled last: where no gold document may be shared, the others lose nothing to it.

Guaranteed: a question is in one split, once, also where it is written in another case or with other punctuation, and
never where it is excluded; with `disjoint_gold` no document is gold in two splits.
Not covered: questions that ask the same in other words; where a split's distractors come from (jobs/building.py).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from palimpsest.data.assemble import Record
from palimpsest.errors import ConfigError, DataError
from palimpsest.seeding import derive_seed

REST = "rest"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Split:
    """How many of the questions go into which file."""

    name: str
    size: float | None
    """Below 1 a share of all questions, from 1 their number; None: those that the others leave."""

    def count(self, total: int) -> int:
        """Questions that it takes of `total`, at most."""
        if self.size is None:
            return total
        return round(self.size * total) if self.size < 1 else int(self.size)


ALL = (Split("eval", None),)


def read_splits(text: str) -> tuple[Split, ...]:
    """Splits as a command line gives them. Raises ConfigError.

    >>> read_splits("train=rest,dev=0.1,test=128")
    (Split(name='train', size=None), Split(name='dev', size=0.1), Split(name='test', size=128.0))
    """
    splits = tuple(_read_split(part, text) for part in text.split(","))
    names = [split.name for split in splits]
    if len(set(names)) < len(names) or sum(split.size is None for split in splits) > 1:
        raise ConfigError(f"--split {text}: each name once, and {REST} once at the most")
    return splits


def _read_split(part: str, text: str) -> Split:
    name, _, size = part.strip().partition("=")
    try:
        number = None if size == REST else float(size)
    except ValueError:
        number = 0.0
    whole = number is None or 0 < number < 1 or (number >= 1 and number.is_integer())
    if not _NAME.fullmatch(name) or not whole:
        raise ConfigError(f"--split {text}: expected names with a number, a share or {REST}: train={REST},test=128")
    return Split(name, number)


def question_key(question: str) -> str:
    """What two askings of one question have in common: its words, without case and punctuation.

    >>> question_key("Who wrote  Frankenstein?") == question_key("who wrote frankenstein")
    True
    """
    plain = unicodedata.normalize("NFKC", question).casefold()
    return " ".join(re.findall(r"\w+", plain)) or plain.strip()


@dataclass(frozen=True, slots=True)
class Dealt:
    """Which records each split got."""

    splits: Mapping[str, tuple[Record, ...]]
    """In the order in which they were asked for."""
    shared_gold: int
    """Records in none, for their gold documents are gold in other splits or excluded."""


def deal(
    records: Iterable[Record],
    splits: Sequence[Split],
    *,
    seed: int,
    disjoint_gold: bool = False,
    excluded_gold: Iterable[str] = (),
) -> Dealt:
    """Records of distinct questions into splits. Raises DataError if one can't have as many as it asks for."""
    left = sorted(records, key=lambda record: derive_seed(seed, "split", question_key(record.question)))
    total, taken = len(left), set(excluded_gold) if disjoint_gold else set()
    chosen: dict[str, tuple[Record, ...]] = {}
    for split in sorted(splits, key=lambda split: split.size is None):
        wanted = split.count(total)
        free = [record for record in left if taken.isdisjoint(record.needed)]
        if len(free) < wanted and split.size is not None:
            raise DataError(f"split {split.name}: asks for {wanted:,} questions, {len(free):,} are left; lower it")
        chosen[split.name] = tuple(free[:wanted])
        own = {record.id for record in chosen[split.name]}
        left = [record for record in left if record.id not in own]
        if disjoint_gold:
            taken.update(text for record in chosen[split.name] for text in record.needed)
    shared = sum(not taken.isdisjoint(record.needed) for record in left) if disjoint_gold else 0
    empty = [split.name for split in splits if not chosen[split.name]]
    if empty:
        raise DataError(f"split {empty[0]}: no question is left for it; read more files or make the others smaller")
    return Dealt({split.name: chosen[split.name] for split in splits}, shared)
