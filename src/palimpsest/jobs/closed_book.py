"""Questions that a model answers without their document, left out: they measure what it knows, not what it read.

Each question is asked `asks` times of an OpenAI-compatible endpoint, alone; if one reply is right (equal to a gold, or
holding one), the question is left out. MemAgent's data was filtered so, by two models and two replies each; run it once
for each model.

Guaranteed: rows that stay are written as they were read, one object a line, in their order; a question that got no
reply stays and is counted; the file appears whole or not at all.
Not covered: going on with a probing that was ended; a model that would know the answer if it were asked otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from palimpsest import files
from palimpsest.config.reward import JudgeConfig
from palimpsest.data.problems import read_problems
from palimpsest.data.rows import read_rows
from palimpsest.errors import DataError, JudgeError
from palimpsest.jobs.blocking import finish
from palimpsest.jobs.set_folder import free_file
from palimpsest.progress.progress import Progress, Silent, Tick
from palimpsest.reward.grader import measure
from palimpsest.reward.judge_client import ChatClient
from palimpsest.reward.match import gold_in_answer
from palimpsest.text.storable import storable
from palimpsest.types import Problem, Question

_PROMPT = "Answer in a few words and put the answer in \\boxed{{}}. If you don't know it, guess.\n\n{question}"
_AT_ONCE = 256  # questions under way


@dataclass(slots=True)
class Filtered:
    """What was written."""

    path: Path
    kept: int = 0
    known: int = 0
    """Questions that were answered without the document."""
    unanswered: int = 0
    """Questions that got no reply, among those kept."""
    failures: list[str] = field(default_factory=list)
    """Why not, the first."""


def filter_known(
    file: Path,
    endpoint: JudgeConfig,
    *,
    out: Path,
    asks: int = 2,
    force: bool = False,
    progress: Progress | None = None,
) -> Filtered:
    """Leave out of `file` what the model at `endpoint` knows. Raises DataError; JudgeError if it never replies."""
    progress = progress or Silent()
    questions = [_question(problem) for problem in read_problems(file)]
    if len(questions) != sum(1 for _ in read_rows(file)):
        raise DataError(f"{file}: its rows are not one question each, so that none can be left out")
    free_file(out, force=force, progress=progress)
    filtered = Filtered(out)
    with progress.count("questions", len(questions)) as tick:
        known = finish(lambda: _probed(questions, endpoint, asks, filtered, tick))
    filtered.known = sum(known)
    filtered.kept = len(known) - filtered.known
    if filtered.unanswered == len(known):
        raise JudgeError(filtered.failures[0])
    if not filtered.kept:
        raise DataError(f"{file}: all {len(known):,} questions are answered without their document; nothing is left")
    with files.drafted(out) as draft:
        for row, left_out in zip(read_rows(file), known, strict=True):
            if not left_out:
                draft.write(json.dumps(storable(row.values, []), ensure_ascii=False) + "\n")
    return filtered


def _question(problem: Problem) -> Question:
    if problem.questions or problem.metadata.get("objectives"):
        raise DataError(f"problem {problem.id}: asks several questions; filter the questions before they are combined")
    return Question(problem.question, problem.answers)


async def _probed(
    questions: Sequence[Question], endpoint: JudgeConfig, asks: int, filtered: Filtered, tick: Tick
) -> list[bool]:
    """Whether each was answered right."""
    client = ChatClient(endpoint, None)
    known: list[bool] = []
    try:
        for start in range(0, len(questions), _AT_ONCE):
            some = questions[start : start + _AT_ONCE]
            known += await asyncio.gather(*(_known(client, question, asks, filtered, tick) for question in some))
    finally:
        await client.close()
    return known


async def _known(client: ChatClient, question: Question, asks: int, filtered: Filtered, tick: Tick) -> bool:
    replies = 0
    for _ in range(asks):
        try:
            reply = await client.complete([{"role": "user", "content": _PROMPT.format(question=question.text)}])
        except JudgeError as error:
            filtered.failures.append(str(error))
            continue
        replies += 1
        if right(reply, question.answers):
            tick()
            return True
    filtered.unanswered += not replies
    tick()
    return False


def right(reply: str, golds: Sequence[str]) -> bool:
    r"""Whether a reply equals a gold or says it, word for word; yes and no must be the whole answer.

    >>> right("I think of Paris.", ["Paris"]), right("No idea.", ["no"]), right(r"\boxed{No}", ["no"])
    (True, False, True)
    """
    said = [gold for gold in golds if gold.strip().lower() not in ("yes", "no")]
    return measure(reply, golds)["em"] == 1.0 or any(gold_in_answer(reply, gold) == 1.0 for gold in said)
