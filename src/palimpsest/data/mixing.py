"""Several files in one training: each gives its share of every step.

With weights 3 and 1, a step of 8 problems takes 6 of the first file and 2 of the second; where the shares are no whole
numbers, each step draws which file gets the odd problem (systematic sampling, so that every step is within one of its
share). Each file has epochs of its own, as if it were alone: all of its problems once, in a new order each time; what
doesn't fill its part of a step is left out of that epoch.

Guaranteed: a pure function of (seed, step, round, count), whatever was asked for before: resuming needs no state. A
step holds no problem twice.
Not covered: evaluation, which reads the files one after the other, whatever the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import ceil

from palimpsest.data.dealing import shuffled, window
from palimpsest.data.file_source import FileSource
from palimpsest.data.problems import unused_id
from palimpsest.errors import DataError
from palimpsest.seeding import Key, keyed_random
from palimpsest.types import Problem


@dataclass(frozen=True, slots=True)
class MixedSource:
    """Problems of several files, drawn by weight."""

    parts: tuple[FileSource, ...]
    weights: tuple[float, ...]
    seed: int
    _starts: dict[int, list[tuple[int, ...]]] = field(default_factory=dict, compare=False, repr=False)
    """By count, of each step so far: where each file's part of it begins, counted over all of its epochs."""

    @classmethod
    def of(cls, parts: Sequence[FileSource], weights: Sequence[float], seed: int) -> MixedSource:
        """A mix of files; ids that several files have are told apart as in one file."""
        seen: Counter[str] = Counter()
        unique = []
        for part in parts:
            records = tuple(replace(record, id=unused_id(record.id, seen)) for record in part.records)
            unique.append(replace(part, records=records))
        return cls(tuple(unique), tuple(weights), seed)

    def __iter__(self) -> Iterator[Problem]:
        """Every problem once, file after file."""
        return (problem for part in self.parts for problem in part)

    @property
    def skipped(self) -> tuple[str, ...]:
        """What is said of each row that was left out."""
        return tuple(said for part in self.parts for said in part.skipped)

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems, file after file. Raises DataError if a file holds fewer than its part of a step."""
        counts = shares(self.weights, count, (self.seed, "files", step, round))
        for part, most in zip(self.parts, self._most(count), strict=True):
            if most > len(part):
                raise DataError(
                    f"{part.path} holds {len(part)} problems, its data.weights make it give up to {most} of the "
                    f"{count} of a step: lower its weight or train.prompts_per_step, or read a larger file"
                )
        if round:
            return [one for at, number in enumerate(counts) for one in self._refill(at, step, number, round)]
        starts = self._start(step, count)
        return [one for at, number in enumerate(counts) for one in self._take(at, starts[at], number)]

    def _most(self, count: int) -> list[int]:
        total = sum(self.weights)
        return [int(-(-count * weight // total)) for weight in self.weights]

    def _take(self, at: int, start: int, count: int) -> list[Problem]:
        part = self.parts[at]
        epoch, place = divmod(start, len(part))
        order = shuffled(len(part), self.seed, f"epoch of file {at}", epoch)
        return [part.built(part.records[order[place + i]]) for i in range(count)]

    def _refill(self, at: int, step: int, count: int, round: int) -> list[Problem]:
        part = self.parts[at]
        if not count:
            return []
        (_, number), places = window(len(part), step=step, count=count, round=round, path=part.path)
        order = shuffled(len(part), self.seed, f"refill of file {at}", number)
        return [part.built(part.records[order[place]]) for place in places]

    def _start(self, step: int, count: int) -> tuple[int, ...]:
        """[files] where their parts of a step begin."""
        starts = self._starts.setdefault(count, [(0,) * len(self.parts)])
        while len(starts) <= step + 1:
            taken = shares(self.weights, count, (self.seed, "files", len(starts) - 1, 0))
            begun = tuple(map(_begin, starts[-1], taken, map(len, self.parts)))
            starts[-1] = begun
            starts.append(tuple(start + number for start, number in zip(begun, taken, strict=True)))
        return starts[step]


def _begin(start: int, count: int, size: int) -> int:
    """`start`, or the next epoch where what is left of this one is too little.

    >>> _begin(6, 3, 10), _begin(8, 3, 10)
    (6, 10)
    """
    return start if start % size + count <= size else start + size - start % size


def shares(weights: Sequence[float], count: int, key: tuple[Key, ...]) -> list[int]:
    """[files] how many of `count` each gives: its share, rounded up or down so that they add up, drawn by `key`.

    >>> shares([3, 1], 8, ("a",))
    [6, 2]
    """
    total = sum(weights)
    ends = [count * end / total for end in accumulate(weights)]
    ends[-1] = float(count)
    offset = keyed_random(*key).random()
    points = [ceil(max(0.0, end - offset)) for end in ends]  # of offset, offset + 1...: how many lie before each end
    return [after - before for before, after in pairwise([0, *points])]
