r"""Problems that ask one question or several, to be answered by searching.

One objective is a problem like any other, without a context. Several are one problem whose question lists them:

    question              "Q1: What does Alice drink?\nQ2: Which city did Bob visit?"
    answers               ('{"Q1": "tea", "Q2": "Rome"}',)        the first gold of each
    metadata.objectives   ({"name": "Q1", "question": "What does Alice drink?", "answers": ["tea"]}, ...)

Not covered: whether one objective gives away another's answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.types import Problem

_ASKED = re.compile(r"^(Q\d+):[ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Objective:
    """One question of a problem."""

    question: str
    answers: tuple[str, ...]
    """One or more golds."""


def search_problem(id: str, objectives: Sequence[Objective], metadata: Mapping[str, Any] | None = None) -> Problem:
    """The problem of at least one objective.

    >>> search_problem("a", [Objective("What does Alice drink?", ("tea",))]).answers
    ('tea',)
    >>> both = search_problem("b", [Objective("Who?", ("Bob", "Rob")), Objective("Where?", ("Rome",))])
    >>> both.question, both.answers
    ('Q1: Who?\\nQ2: Where?', ('{"Q1": "Bob", "Q2": "Rome"}',))
    """
    rest = dict(metadata or {})
    if len(objectives) == 1:
        return Problem(id, objectives[0].question, objectives[0].answers, None, rest)
    named = {f"Q{number}": objective for number, objective in enumerate(objectives, 1)}
    listed = tuple(
        {"name": name, "question": one.question, "answers": list(one.answers)} for name, one in named.items()
    )
    golds = answer_text({name: one.answers[0] for name, one in named.items()})
    question = "\n".join(f"{name}: {one.question}" for name, one in named.items())
    return Problem(id, question, (golds,), None, {"objectives": listed, **rest})


def listed_questions(text: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """The question of each name, asked as `Q1: ...` on a line of its own; None unless each is there once, in order.

    >>> listed_questions("Answer:\\n\\nQ1: Who?\\n\\nQ2: Where?\\n\\nFINAL_ANSWER: {...}", ("Q1", "Q2"))
    ('Who?', 'Where?')
    """
    found = [(match[1], match[2].strip()) for match in _ASKED.finditer(text)]
    if tuple(name for name, _ in found) != tuple(names) or not all(question for _, question in found):
        return None
    return tuple(question for _, question in found)


def objective_count(problem: Problem) -> int:
    """How many questions a problem asks.

    >>> objective_count(search_problem("a", [Objective("Who?", ("Bob",)), Objective("Where?", ("Rome",))]))
    2
    """
    return len(problem.metadata.get("objectives", ())) or 1


def answer_text(answers: Mapping[str, str]) -> str:
    """What an agent should answer, without the marker before it: the answer alone, or a JSON object of several.

    >>> answer_text({"Q1": "tea"}), answer_text({"Q1": "tea", "Q2": "Rome"})
    ('tea', '{"Q1": "tea", "Q2": "Rome"}')
    """
    if len(answers) == 1:
        return next(iter(answers.values()))
    return json.dumps(dict(answers), ensure_ascii=False)
