"""Problems of several questions out of question files: to be searched for, or asked of one document.

    make_objectives(["hotpot_dev.json"], (2, 4), out=Path("sets/several"), documents=50)

writes `objectives_K.jsonl` for each number of questions. Without `documents` they are problems of search
(data/objectives.py); with it, `questions` on one context of so many documents, in which all their gold documents are.

Guaranteed: a question is in one problem of a size, and asked once; every gold document of every question is in its
context; the same files, settings and seed give the same bytes.
Not covered: two questions of one problem of which one answers the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from palimpsest import files
from palimpsest.data.assemble import Record, assemble
from palimpsest.data.manifest import write_manifest
from palimpsest.data.objectives import Objective, search_problem
from palimpsest.data.problems import problem_row
from palimpsest.data.question_files import Questions, read_questions
from palimpsest.data.splitting import question_key
from palimpsest.errors import DataError
from palimpsest.jobs.set_folder import Made, new_folder
from palimpsest.progress.progress import Progress, Silent, Tick
from palimpsest.seeding import derive_seed
from palimpsest.types import Problem, Question


def make_objectives(
    sources: Sequence[str | Path],
    sizes: Sequence[int],
    *,
    out: Path,
    documents: int | None = None,
    count: int | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Problems of so many questions each, `count` of each size, or as many as there are. Raises DataError."""
    progress = progress or Silent()
    with new_folder(out, force=force, progress=progress) as folder:
        read = read_questions([Path(path) for path in sources], searched=documents is None)
        order = sorted(read.records, key=lambda record: derive_seed(seed, "several", question_key(record.question)))
        groups = {size: _groups(order, size, count) for size in sizes}
        problems: dict[str, int] = {}
        with progress.count("problems", sum(map(len, groups.values()))) as tick:
            for size, dealt in groups.items():
                made = _searched(dealt) if documents is None else _on_documents(dealt, read, documents, seed)
                problems[f"objectives_{size}.jsonl"] = _write(folder / f"objectives_{size}.jsonl", made, tick)
        edition = write_manifest(
            folder,
            made_by="palimpsest data objectives",
            seed=seed,
            described={name: {"problems": number} for name, number in problems.items()},
            settings={"objectives": list(sizes), "documents": documents, "count": count},
            sources=read.sources,
            left_out=dict(read.left_out),
        )
    return Made(out, edition, problems)


def _groups(order: Sequence[Record], size: int, count: int | None) -> list[Sequence[Record]]:
    there = len(order) // size
    if not there or there < (count or 0):
        raise DataError(
            f"{len(order):,} questions are {there:,} problems of {size}, not {count or 1:,}; lower --n or --objectives "
            "or read more files"
        )
    return [order[size * number : size * (number + 1)] for number in range(there if count is None else count)]


def _searched(groups: Sequence[Sequence[Record]]) -> Iterator[Problem]:
    for group in groups:
        asked = [Objective(each.question, each.answers) for each in group]
        yield search_problem(_name(group), asked)


def _on_documents(groups: Sequence[Sequence[Record]], read: Questions, documents: int, seed: int) -> Iterator[Problem]:
    corpus = read.corpus
    for group in groups:
        yield assemble(together(group), corpus=corpus, documents=documents, seed=seed)


def together(group: Sequence[Record]) -> Record:
    """One record that asks all of them, with all their paragraphs; each of one question."""
    asked = Problem.asking(_name(group), [Question(each.question, each.answers) for each in group])
    return Record(
        asked.id,
        asked.question,
        asked.answers,
        paragraphs=tuple(dict.fromkeys(text for each in group for text in each.paragraphs or ())),
        gold=tuple(dict.fromkeys(text for each in group for text in each.needed)),
        questions=asked.questions,
    )


def _name(group: Sequence[Record]) -> str:
    return "+".join(each.id for each in group)


def _write(path: Path, problems: Iterator[Problem], tick: Tick) -> int:
    number = 0
    with files.drafted(path) as file:
        for number, problem in enumerate(problems, 1):  # noqa: B007  told at the end
            file.write(json.dumps(problem_row(problem), ensure_ascii=False, allow_nan=False) + "\n")
            tick()
    return number
