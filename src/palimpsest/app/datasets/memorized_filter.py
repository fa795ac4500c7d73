"""Questions that a model answers without their document, left out: they measure what it knows, not what it read.

Each question is asked `asks` times of an OpenAI-compatible endpoint, alone; if one reply is right (equal to a gold, or
holding one), the question is left out. MemAgent's data was filtered so, by two models and two replies each; run it once
for each model.

Guaranteed: rows that stay are written as they were read, one object a line, in their order; a question that got no
reply stays and is counted; the file appears whole or not at all.
A probing that was ended goes on by the same call: what was found so far lies beside the file, hidden, until that is
there.
Not covered: a model that would know the answer if it were asked otherwise.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from palimpsest import files
from palimpsest.app.python_calls import finish
from palimpsest.config.reward import JudgeConfig
from palimpsest.data.files.rows import read_rows
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.errors import ConfigError, DataError, JudgeError
from palimpsest.http_services import check_address, token_from
from palimpsest.progress.reporter import Progress, Silent, Tick
from palimpsest.reward.answer_match import gold_in_answer, measure
from palimpsest.reward.judge.chat_client import ChatClient
from palimpsest.runs.folder_guard import free_file
from palimpsest.text.json_text import storable
from palimpsest.types import Problem, Question

_PROMPT = "Answer in a few words and put the answer in \\boxed{{}}. If you don't know it, guess.\n\n{question}"
_AT_ONCE = 256  # questions under way
_REPLY_TOKENS = 512
OPTIONS = {
    "url": "--endpoint",
    "model": "--model",
    "api_key_env": "--api-key-env",
    "temperature": "--temperature",
    "max_tokens": f"the limit of {_REPLY_TOKENS} tokens",
}
"""What the command calls keys of the endpoint."""


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


def endpoint_of(**values: Any) -> JudgeConfig:
    """An endpoint by the command's options. Raises ConfigError in the words of those."""
    try:
        return JudgeConfig(**values, max_tokens=_REPLY_TOKENS)
    except ValidationError as error:
        (name, *_), value = error.errors()[0]["loc"], error.errors()[0]["input"]
        example = "one like http://127.0.0.1:8000/v1" if name == "url" else "another value"
        raise ConfigError(f"{OPTIONS.get(str(name), name)} {value!r:.80}: give {example}") from None


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
    check_address(endpoint.url, OPTIONS["url"], example="one like http://127.0.0.1:8000/v1")
    token_from(endpoint.api_key_env, OPTIONS["api_key_env"])
    free_file(out, force=force, progress=progress)
    filtered = Filtered(out)
    found = _Found(out, f"{endpoint.url} {endpoint.model} {endpoint.temperature} {asks}")
    with progress.count("questions", len(questions)) as tick:
        known = finish(lambda: _probed(questions, endpoint, asks, filtered, found, tick))
    filtered.known = sum(known)
    filtered.kept = len(known) - filtered.known
    if filtered.unanswered == len(known):
        raise JudgeError(filtered.failures[0])
    if not filtered.kept:
        found.path.unlink(missing_ok=True)
        raise DataError(f"{file}: all {len(known):,} questions are answered without their document; nothing is left")
    with files.drafted(out) as draft:
        for row, left_out in zip(read_rows(file), known, strict=True):
            if not left_out:
                draft.write(json.dumps(storable(row.values, []), ensure_ascii=False) + "\n")
    found.path.unlink(missing_ok=True)
    return filtered


class _Found:
    """Whether questions were known, one line each, for a call that goes on."""

    def __init__(self, out: Path, how: str) -> None:
        """`how`: what they were asked by, in a text."""
        self.path, self._how = files.hidden_name(out).with_suffix(".palimpsest-asked"), how
        lines = self.path.read_text("utf-8").splitlines() if self.path.is_file() else []
        self._known = {line[:64]: line[65:] == "known" for line in lines if line[65:] in ("known", "not")}

    def of(self, question: Question) -> bool | None:
        """None: it wasn't asked, or got no reply."""
        return self._known.get(self._key(question))

    def add(self, question: Question, known: bool) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{self._key(question)} {'known' if known else 'not'}\n")

    def _key(self, question: Question) -> str:
        return hashlib.sha256(repr((self._how, question.text, question.answers)).encode()).hexdigest()


def _question(problem: Problem) -> Question:
    if problem.questions or problem.metadata.get("objectives"):
        raise DataError(f"problem {problem.id}: asks several questions; filter the questions before they are combined")
    return Question(problem.question, problem.answers)


async def _probed(
    questions: Sequence[Question], endpoint: JudgeConfig, asks: int, filtered: Filtered, found: _Found, tick: Tick
) -> list[bool]:
    """Whether each was answered right."""
    client = ChatClient(endpoint, None, options=OPTIONS)

    async def probed(question: Question) -> bool:
        known = found.of(question)
        if known is None:
            known = await _known(client, question, asks, filtered)
            if known is None:
                filtered.unanswered += 1
            else:
                found.add(question, known)
        tick()
        return bool(known)

    known: list[bool] = []
    try:
        for start in range(0, len(questions), _AT_ONCE):
            some = questions[start : start + _AT_ONCE]
            known += await asyncio.gather(*map(probed, some))
    finally:
        await client.close()
    return known


async def _known(client: ChatClient, question: Question, asks: int, filtered: Filtered) -> bool | None:
    """None: it got no reply."""
    replies = 0
    for _ in range(asks):
        try:
            reply = await client.complete([{"role": "user", "content": _PROMPT.format(question=question.text)}])
        except JudgeError as error:
            filtered.failures.append(str(error))
            continue
        replies += 1
        if right(reply, question.answers):
            return True
    return False if replies else None


def right(reply: str, golds: Sequence[str]) -> bool:
    r"""Whether a reply equals a gold or says it, word for word; yes and no must be the whole answer.

    >>> right("I think of Paris.", ["Paris"]), right("No idea.", ["no"]), right(r"\boxed{No}", ["no"])
    (True, False, True)
    """
    said = [gold for gold in golds if gold.strip().lower() not in ("yes", "no")]
    return measure(reply, golds)["em"] == 1.0 or any(gold_in_answer(reply, gold) == 1.0 for gold in said)
