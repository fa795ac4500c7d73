"""Problems as other systems' files have them.

    palimpsest         our own, one object a line
    memagent-parquet   MemAgent's training rows: prompt, context, reward_model, extra_info
    memagent-eval      MemAgent's and ReMemR1's eval_{N}.json, contexts as text or as numbers of documents of a corpus
    vime               prompt, label, metadata
    memact             MemAct's RL rows: questions to be searched for, no context

Guaranteed: files appear whole or not at all, a row is written and forgotten; what a format can't hold is refused, or
left out and counted in `dropped`, never lost silently. Read again, a file gives the questions, golds and contexts that
went in.
Not covered: ids, for which the parquet layouts have no column; the system prompts of MemAct's files, whose place takes
the question alone; how its golds, a text of JSON, spell a letter (`É`, `\\u00c9`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.data.assemble import Corpus
from palimpsest.data.formats.problem_files import eval_row, problem_row
from palimpsest.errors import DataError
from palimpsest.types import Problem

_BATCH = 64  # rows of a parquet batch


@dataclass(slots=True)
class Writing:
    """How problems are written, and what was left out."""

    to: str
    index: Mapping[str, int] | None = None
    """Numbers of documents by their text, where contexts are to be numbers."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Problems that lost something, by what."""

    def row(self, number: int, problem: Problem) -> dict[str, Any]:
        """The row of a problem. Raises DataError for what the format can't hold."""
        return _ROWS[self.to](self, number, problem)

    def write(self, path: Path, problems: Iterable[Problem]) -> int:
        """Write them; how many. Raises DataError."""
        rows = (self.row(number, problem) for number, problem in enumerate(problems))
        if self.to in ("memagent-parquet", "memact"):
            return _write_parquet(path, rows, self.to)
        return _write_json(path, rows, array=self.to == "memagent-eval")


def indexed_by(corpus: Corpus) -> dict[str, int]:
    """Numbers of its documents."""
    return {text: number for number, text in enumerate(corpus.paragraphs)}


def documents_of(problem: Problem) -> list[str]:
    """The documents of a context that is written as numbered documents. Raises DataError.

    >>> documents_of(Problem("a", "?", ("x",), "Document 1:\\nA\\nText.\\n\\nDocument 2:\\nB"))
    ['A\\nText.', 'B']
    """
    context, found, number = problem.context or "", [], 1
    while context:
        heading = f"Document {number}:\n"
        if not context.startswith(heading):
            raise DataError(f"problem {problem.id}: its context is no list of numbered documents; write it as text")
        number += 1
        text, _, context = context.removeprefix(heading).partition(f"\n\nDocument {number}:\n")
        context = f"Document {number}:\n{context}" if context else ""
        found.append(text)
    return found


def _eval(writing: Writing, number: int, problem: Problem) -> dict[str, Any]:
    row = eval_row(number, problem)
    if writing.index is None:
        return row
    texts = documents_of(problem)
    for text in texts:
        if text not in writing.index:
            raise DataError(f"problem {problem.id}: {text!r:.60} is not a document of the corpus; name the right one")
    return {**row, "context": [writing.index[text] for text in texts]}


def _memagent(writing: Writing, number: int, problem: Problem) -> dict[str, Any]:
    _one_question(problem, writing.to)
    if problem.context is None:
        raise DataError(f"problem {problem.id}: has no context, which {writing.to} needs; write memact or palimpsest")
    known = problem.metadata.get("num_docs")
    return {
        "data_source": str(problem.metadata.get("data_source", "hotpotqa")),
        "prompt": [{"role": "user", "content": problem.question}],
        "context": problem.context,
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": list(problem.answers)},
        "extra_info": {"index": number, "question": problem.question, "num_docs": known},
    }


def _vime(writing: Writing, number: int, problem: Problem) -> dict[str, Any]:
    _one_question(problem, writing.to)
    if problem.context is None:
        raise DataError(f"problem {problem.id}: has no context, which vime needs; write memact or palimpsest")
    kept = {key: value for key, value in problem.metadata.items() if key not in ("context", "ground_truth")}
    metadata = {**kept, "context": problem.context, "ground_truth": list(problem.answers)}
    return {"id": problem.id, "prompt": problem.question, "label": problem.answers[0], "metadata": metadata}


def _memact(writing: Writing, number: int, problem: Problem) -> dict[str, Any]:
    if problem.questions:
        raise DataError(f"problem {problem.id}: asks several questions of a document, which memact has no place for")
    if problem.context is not None:
        writing.dropped["the context"] += 1
    objectives = problem.metadata.get("objectives", ())
    if len(problem.answers) > 1 or any(len(each["answers"]) > 1 for each in objectives):
        writing.dropped["golds but the first of a question"] += 1
    asked = {"question": problem.question, "ground_truth": problem.answers[0]}
    tools = {"search": {"create_kwargs": {"ground_truth": ""}}}
    return {
        "data_source": "memagent",
        "prompt": [{"content": problem.question, "role": "user"}],
        "ability": "",
        "agent_name": "mem_agent",
        "reward_model": {"ground_truth": problem.answers[0]},
        "extra_info": {**asked, "need_tools_kwargs": True, "tools_kwargs": tools},
    }


def _one_question(problem: Problem, to: str) -> None:
    if problem.questions or problem.metadata.get("objectives"):
        raise DataError(f"problem {problem.id}: asks several questions, a row of {to} asks one; write palimpsest")
    if problem.memory:
        raise DataError(f"problem {problem.id}: brings a memory, for which {to} has no column; write palimpsest")


def _palimpsest(writing: Writing, number: int, problem: Problem) -> dict[str, Any]:
    return problem_row(problem)


_ROWS: dict[str, Callable[[Writing, int, Problem], dict[str, Any]]] = {
    "palimpsest": _palimpsest,
    "memagent-parquet": _memagent,
    "memagent-eval": _eval,
    "vime": _vime,
    "memact": _memact,
}
LAYOUTS = tuple(_ROWS)


def _write_json(path: Path, rows: Iterator[dict[str, Any]], *, array: bool) -> int:
    """One object a line, or all in one array."""
    before, between, after = ("[", ", ", "]\n") if array else ("", "\n", "\n")
    number = 0
    with files.drafted(path) as file:
        for number, row in enumerate(rows, 1):
            file.write((between if number > 1 else before) + json.dumps(row, ensure_ascii=False, allow_nan=False))
        file.write(after)
    return number


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]], to: str) -> int:
    import pyarrow.parquet as pq  # 0.2 s, and most files are JSON
    from pyarrow import Table

    schema, number = _schema(to), 0
    draft = files.hidden_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with pq.ParquetWriter(draft, schema) as writer:
            while batch := list(islice(rows, _BATCH)):
                writer.write_table(Table.from_pylist(batch, schema=schema))
                number += len(batch)
        files.sync(draft)
        files.rename(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return number


def _schema(to: str) -> Any:
    """The published columns."""
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    common = [("data_source", pa.string()), ("prompt", pa.list_(message)), ("ability", pa.string())]
    search = pa.struct([("create_kwargs", pa.struct([("ground_truth", pa.string())]))])
    own = {
        "memagent-parquet": [
            ("context", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.list_(pa.string()))])),
            ("extra_info", pa.struct([("index", pa.int64()), ("question", pa.string()), ("num_docs", pa.int64())])),
        ],
        "memact": [
            ("agent_name", pa.string()),
            ("reward_model", pa.struct([("ground_truth", pa.string())])),
            (
                "extra_info",
                pa.struct(
                    [
                        ("ground_truth", pa.string()),
                        ("need_tools_kwargs", pa.bool_()),
                        ("question", pa.string()),
                        ("tools_kwargs", pa.struct([("search", search)])),
                    ]
                ),
            ),
        ],
    }
    return pa.schema(common + own[to])
