r"""Data record: one or several questions with a document, in memory or on disk.

One objective is an ordinary problem without a context. Several objectives are one problem whose question lists them:

    question              "Q1: What does Alice drink?\nQ2: Which city did Bob visit?"
    answers               ('{"Q1": "tea", "Q2": "Rome"}',)        the first gold of each
    metadata.objectives   ({"name": "Q1", "question": "What does Alice drink?", "answers": ["tea"]}, ...)

Guaranteed: `DocumentStore` writes each distinct long document to disk once; it returns the exact text, including lone
surrogates; its unnamed file is freed when the process ends.
Not covered: an objective that gives away another's answer; a temporary folder in memory (set TMPDIR to another).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from palimpsest.errors import DataError
from palimpsest.types import Problem, Question

_ASKED = re.compile(r"^(Q\d+):[ \t]*(.*)$", re.MULTILINE)


def search_problem(id: str, objectives: Sequence[Question], metadata: Mapping[str, Any] | None = None) -> Problem:
    """The problem of one or more objectives.

    >>> search_problem("a", [Question("What does Alice drink?", ("tea",))]).answers
    ('tea',)
    >>> both = search_problem("b", [Question("Who?", ("Bob", "Rob")), Question("Where?", ("Rome",))])
    >>> both.question, both.answers
    ('Q1: Who?\\nQ2: Where?', ('{"Q1": "Bob", "Q2": "Rome"}',))
    """
    rest = dict(metadata or {})
    if len(objectives) == 1:
        return Problem(id, objectives[0].text, objectives[0].answers, None, rest)
    named = {f"Q{number}": objective for number, objective in enumerate(objectives, 1)}
    listed = tuple({"name": name, "question": one.text, "answers": list(one.answers)} for name, one in named.items())
    golds = answer_text({name: one.answers[0] for name, one in named.items()})
    question = "\n".join(f"{name}: {one.text}" for name, one in named.items())
    return Problem(id, question, (golds,), None, {"objectives": listed, **rest})


def listed_questions(text: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """The question after each name, as in a line `Q1: ...`; None unless each name occurs once, in order.

    >>> listed_questions("Answer:\\n\\nQ1: Who?\\n\\nQ2: Where?\\n\\nFINAL_ANSWER: {...}", ("Q1", "Q2"))
    ('Who?', 'Where?')
    """
    matches = [(match[1], match[2].strip()) for match in _ASKED.finditer(text)]
    if tuple(name for name, _ in matches) != tuple(names) or not all(question for _, question in matches):
        return None
    return tuple(question for _, question in matches)


def objective_count(problem: Problem) -> int:
    """Number of questions in a problem.

    >>> objective_count(search_problem("a", [Question("Who?", ("Bob",)), Question("Where?", ("Rome",))]))
    2
    """
    return len(problem.metadata.get("objectives", ())) or 1


def answer_text(answers: Mapping[str, str]) -> str:
    """The expected answer without its marker: plain text, or a JSON object of several answers.

    >>> answer_text({"Q1": "tea"}), answer_text({"Q1": "tea", "Q2": "Rome"})
    ('tea', '{"Q1": "tea", "Q2": "Rome"}')
    """
    if len(answers) == 1:
        return next(iter(answers.values()))
    return json.dumps(dict(answers), ensure_ascii=False)


# ---- Long documents on disk ----------------------------------------------------------------------------------


LONG = 4096
"""Minimum length in characters of a document stored on disk."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Location of a document in the store's file, in bytes."""

    start: int
    size: int


class DocumentStore:
    """Texts in an unnamed temporary file. Several threads may read; only one may write."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0
        self._stored: dict[bytes, Stored] = {}

    def put(self, text: str) -> Stored:
        """Write `text` unless the store has it. Raises DataError if the write fails."""
        data = text.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if digest not in self._stored:
            try:
                self._write(data)
            except OSError as error:
                raise DataError(
                    f"{tempfile.tempdir or 'temporary files'}: {error.strerror}; long documents are stored there: set "
                    "TMPDIR to a folder with room for all of them"
                ) from None
            self._stored[digest] = Stored(self._end, len(data))
            self._end += len(data)
        return self._stored[digest]

    def text(self, stored: Stored) -> str:
        data = os.pread(self._opened(), stored.size, stored.start)
        assert len(data) == stored.size
        return data.decode("utf-8", "surrogatepass")

    def _write(self, data: bytes) -> None:
        """Append after the last complete document, which overwrites a failed write."""
        at = self._end
        while data:
            written = os.pwrite(self._opened(), data, at)
            data, at = data[written:], at + written

    def _opened(self) -> int:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  open for as long as the store lives
        return self._file.fileno()


@dataclass(frozen=True, slots=True)
class Record:
    """A row of a data file: a problem with a fixed context or a list of paragraphs."""

    id: str
    question: str
    answers: tuple[str, ...]
    context: str | None = None
    """The document, if the file fixes it."""
    paragraphs: tuple[str, ...] | None = None
    """Otherwise the question's paragraphs in file order, without duplicates."""
    gold: tuple[str, ...] = ()
    """The `paragraphs` that an answer needs, in the file's (reasoning) order; empty if unknown."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()
    memory: str = ""
    stored: Stored | None = None
    """Location of a long document; `context` is then None."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Paragraphs required in every context: the gold ones, or all if gold is unknown."""
        return self.gold or self.paragraphs or ()

    @property
    def outdated(self) -> int:
        """Number of first gold paragraphs that a later one replaces, as `data wiki` declares it for `updates`."""
        number = self.metadata.get("outdated")
        return max(0, min(number, len(self.gold) - 1)) if type(number) is int else 0

    @property
    def reusable(self) -> tuple[str, ...]:
        """The paragraphs that may join other contexts: all without the sentence that `data wiki` added."""
        added = self.metadata.get("added_sentence")
        return tuple(text for text in self.paragraphs or () if not (isinstance(added, str) and text.endswith(added)))

    def problem(self, context: str | None, metadata: Mapping[str, Any]) -> Problem:
        return Problem(self.id, self.question, self.answers, context, metadata, self.questions, self.memory)


def problem_row(problem: Problem) -> dict[str, object]:
    questions = [{"question": item.question, "answers": list(item.answers)} for item in problem.by_question]
    return {
        "id": problem.id,
        **({"questions": questions} if problem.questions else questions[0]),
        "context": problem.context,
        "metadata": dict(problem.metadata),
        **({"memory": problem.memory} if problem.memory else {}),
    }
