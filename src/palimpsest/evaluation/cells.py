"""Parts of an evaluation's problems: a set, at one length where it has several."""

from __future__ import annotations

import re
from dataclasses import dataclass

from palimpsest.evaluation.samples import Sample


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A part of the problems: a set, at one length where it has several."""

    set: str
    size: int

    @property
    def label(self) -> str:
        """In words; -1 stands for no size."""
        return self.set if self.size < 0 or str(self.size) in self.set else f"{self.set}, size {self.size}"

    @property
    def task(self) -> str:
        """A set's name without the length that stands in it: cells of one task are points of one line.

        >>> Cell("1 chunk", 1).task, Cell("4 chunks", 4).task, Cell("agent@16", 64).task
        ('chunks', 'chunks', 'agent')
        >>> Cell("eval_50", 50).task, Cell("eval_50_hard", 50).task, Cell("musique", -1).task
        ('eval', 'eval__hard', 'musique')
        >>> Cell("eval_50, closed book", 50).task, Cell("1 chunk, closed book", 1).task
        ('eval, closed book', 'chunks, closed book')
        """
        several = re.sub(r"^1 (chunk|objective)\b", r"1 \1s", self.set)
        without_point = re.sub(r"@\d+$", "", several)  # a quickstart's points are multiples of the length trained on
        return re.sub(rf"(?<!\d){self.size}(?!\d)", "", without_point).replace("_,", ",").strip(" _-@.|") or self.set


def cell_of(sample: Sample) -> Cell:
    """The part that a sample belongs to."""
    return Cell(sample.name, -1 if sample.size is None else sample.size)
