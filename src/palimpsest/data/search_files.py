"""Search problems out of question files: contexts dropped, questions dealt into problems of several objectives.

An epoch is one keyed shuffle of the questions, dealt out in problems of `data.search.objectives` questions. Where that
is several numbers to draw from, the sequence of numbers is drawn once, so that every epoch has as many problems:

    5 questions, objectives (1, 2)      sizes 2 1 2        epoch 0: ca e bd        epoch 1: eb a dc

Guaranteed: a pure function of (seed, step, round, size); no question comes twice in a step, nor in an epoch of one
size. Evaluation takes the first of one deal that never changes; of single questions, the first of the file.
Not covered: passages (`palimpsest retrieval serve` and the search tool read them, with data/corpus.py); two questions
of one problem that are equal or answer each other; files whose rows ask several questions already, which are read
without `data.search`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from palimpsest.data.dealing import shuffled, window
from palimpsest.data.objectives import Objective, search_problem
from palimpsest.data.problems import AS_IT_IS, Paths, Reading, paths_of, read_records, refuse_ungraded
from palimpsest.errors import DataError
from palimpsest.seeding import keyed_random
from palimpsest.types import Problem


@dataclass(frozen=True, slots=True)
class SearchFileSource:
    """The questions of one file, or of several as one, combined."""

    path: str
    """As messages name it."""
    questions: tuple[Problem, ...]
    """One objective each, in file order."""
    objectives: tuple[int, ...]
    split: str
    seed: int
    skipped: tuple[str, ...] = ()
    """What is said of each row that was left out."""

    @classmethod
    def open(
        cls,
        path: Paths,
        *,
        split: str,
        objectives: Sequence[int],
        limit: int | None = None,
        seed: int = 0,
        reading: Reading = AS_IT_IS,
    ) -> SearchFileSource:
        """Read and check files of any known format. Raises DataError."""
        questions, skipped = list[Problem](), list[str]()
        named = ", ".join(map(str, paths_of(path)))
        for record in read_records(path, reading, limit=limit, skipped=skipped):
            if "objectives" in record.metadata:
                raise DataError(
                    f"{named}: problem {record.id} asks several questions already; "
                    "unset data.search to read it as it is"
                )
            questions.append(Problem(record.id, record.question, record.answers, None, record.metadata))
        if split == "train":
            refuse_ungraded(questions)
        source = cls(named, tuple(questions), tuple(objectives), split, seed, tuple(skipped))
        source._deal(None)
        return source

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems; `size` objectives each instead of `objectives`. DataError if a step asks too much."""
        deal = self._deal(size)
        if self.split == "eval":
            order = tuple(range(len(self.questions)))
            if len(deal) < len(order):
                order = shuffled(len(order), self.seed, "objectives", 0)
            places = list(range(min(count, len(deal))))
        else:
            (what, number), places = window(len(deal), step=step, count=count, round=round, path=self.path)
            order = shuffled(len(self.questions), self.seed, what, number)
        return [self._combined([self.questions[at] for at in order[slice(*deal[place])]]) for place in places]

    def _deal(self, size: int | None) -> tuple[tuple[int, int], ...]:
        """[start, end) in a shuffled order of the questions of each problem. Raises DataError if there is none."""
        deal = _spans(len(self.questions), (size,) if size else self.objectives, self.seed)
        if not deal:
            asked = size or max(self.objectives)
            raise DataError(
                f"{self.path} holds {len(self.questions)} questions, a problem asks {asked}: lower "
                "data.search.objectives or data.limit, or read a larger file"
            )
        return deal

    def _combined(self, questions: Sequence[Problem]) -> Problem:
        if len(questions) == 1:
            return questions[0]
        refuse_ungraded(questions)
        asked = [Objective(one.question, one.answers) for one in questions]
        return search_problem("+".join(one.id for one in questions), asked)


@lru_cache(maxsize=16)
def _spans(total: int, sizes: tuple[int, ...], seed: int) -> tuple[tuple[int, int], ...]:
    """Spans of drawn sizes over range(total), until one doesn't fit."""
    rng, at, spans = keyed_random(seed, "objectives"), 0, []
    while at + (size := rng.choice(sizes)) <= total:
        spans.append((at, at + size))
        at += size
    return tuple(spans)
