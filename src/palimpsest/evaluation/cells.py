"""Parts of an evaluation's problems: a set, at one length where it has several."""

from __future__ import annotations

import re
from collections.abc import Mapping
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

    def title(self, titles: Mapping[str, str]) -> str | None:
        """What the tables of a quickstart call a set that it named NAME@POINT; None for any other set.

        >>> titles = {"agent": "agent after RL"}
        >>> Cell("agent@16", 64).title(titles), Cell("agent", 64).title(titles), Cell("mine@16", 64).title(titles)
        ('agent after RL', None, None)
        """
        name, _, point = self.set.rpartition("@")
        return titles.get(name) if point.isdecimal() else None

    def label_by(self, titles: Mapping[str, str]) -> str:
        """`label`, with the set's title.

        >>> Cell("agent@16", 64).label_by({"agent": "agent after RL"}), Cell("agent@16", 64).label_by({})
        ('agent after RL, size 64', 'agent@16, size 64')
        """
        title = self.title(titles)
        return self.label if title is None else Cell(title, self.size).label

    def task_by(self, titles: Mapping[str, str]) -> str:
        """`task`, or the set's title."""
        return self.title(titles) or self.task

    def set_by(self, titles: Mapping[str, str]) -> str:
        """The set's name alone, unless it has a title."""
        return self.label_by(titles) if self.title(titles) else self.set


def cell_of(sample: Sample) -> Cell:
    """The part that a sample belongs to."""
    return Cell(sample.name, -1 if sample.size is None else sample.size)
