"""Problem files: reading in any known format, renamed columns (`data.columns`), writing in our own format.

    for problem in read_problems("hotpotqa_dev.json"): ...
    write_problems("mine.jsonl", problems)

`data.columns` maps our names to the file's; a column with the whole name takes precedence over a dotted path. A mapped
column loses its old name.

Guaranteed: only one row is in memory; ids are unique in a file (a repeated one gains `#2`, `#3`...), rows without an id
get the file's name and their index; metadata is JSON, other values become text; files of `write_problems` read back
equal, tuples in metadata as lists; an unknown name of ours, or a path missing from the first row, is an error with the
nearest name. A path missing from a later row is an absent value.
Not covered: the token budget of a question, which its memory policy checks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.config.data import columns_for
from palimpsest.data.assemble import Corpus, assemble
from palimpsest.data.files.rows import Row, read_rows
from palimpsest.data.files.text_files import questions_file, unpacked_name
from palimpsest.data.formats import custom_format, fields
from palimpsest.data.formats.benchmark_formats import memagent_eval_by_index
from palimpsest.data.formats.custom_format import DataFormat
from palimpsest.data.formats.format_registry import COLUMNS, Format, fits, named, recognise, require
from palimpsest.data.formats.question_formats import by_roles, corpus_paragraphs, unread
from palimpsest.data.record import Record, problem_row
from palimpsest.errors import DataError, nearest, shown_names
from palimpsest.plugin_kinds import OBJECT
from palimpsest.text.display_text import counted
from palimpsest.types import Problem

# ---- Renamed columns -----------------------------------------------------------------------------------------


_ABSENT = object()


def renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """`row` with the columns of `columns` under our names.

    >>> renamed(Row({"q": "Who?", "gold": {"text": ["Ann"]}}, "a"), {"question": "q", "answers": "gold.text"}).values
    {'gold': {'text': ['Ann']}, 'question': 'Who?', 'answers': ['Ann']}
    """
    values = {ours: _at(row.values, theirs) for ours, theirs in columns.items()}
    if row.index == 0:
        _check(row, columns, values)
    left = set(columns.values())
    rest = {name: value for name, value in row.values.items() if name not in left}
    return replace(row, values=rest | {ours: value for ours, value in values.items() if value is not _ABSENT})


def _check(row: Row, columns: Mapping[str, str], values: Mapping[str, Any]) -> None:
    for ours, theirs in columns.items():
        lead = f"{row.where}: data.columns {ours}={theirs}:"
        if theirs in COLUMNS and ours in row.values and values[ours] is _ABSENT:
            raise DataError(f"{lead} palimpsest's name is left of '=', the file's right: write {theirs}={ours}")
        if ours not in COLUMNS:
            raise DataError(
                f"{lead} no format reads a column {ours}{nearest(ours, COLUMNS)} (palimpsest's name is left of '=', "
                "the file's right)"
            )
        if values[ours] is _ABSENT:
            raise DataError(
                f"{lead} the row has no {theirs}{nearest(theirs, row.values)} (there: "
                f"{shown_names(row.values) or 'nothing'}); if another file has it, name the file: FILE:{ours}={theirs}"
            )


def _at(values: Any, path: str) -> Any:
    if isinstance(values, Mapping) and path in values:
        return values[path]
    name, _, rest = path.partition(".")
    if isinstance(values, Mapping):
        inner = values.get(name, _ABSENT)
    elif isinstance(values, list) and name.isdecimal() and int(name) < len(values):
        inner = values[int(name)]
    else:
        inner = _ABSENT
    return _at(inner, rest) if rest and inner is not _ABSENT else inner


# ---- Problem files -------------------------------------------------------------------------------------------


INDEXED_CORPUS = "hotpotqa_dev.json"
"""The corpus of MemAgent's eval files above 10,000 documents, expected in their folder."""


Paths = str | Path | Sequence[str | Path]
"""One file, or several to read in sequence."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading files."""

    format: str | DataFormat | None = None
    """None: recognised by the columns."""
    corpus: str | Path | None = None
    """Target of document indices."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our names to the file's."""
    skip_missing_gold: bool = False
    """Skip rows with MissingGold instead of raising."""
    split_questions: bool = False
    """Split a record with several questions into one record per question."""


AS_IT_IS = ReadOptions()


def read_problems(
    path: Paths, *, format: str | DataFormat | None = None, limit: int | None = None, reading: ReadOptions | None = None
) -> Iterator[Problem]:
    """The problems of a file, with the file's contexts. `format` None: recognised by the columns."""
    return (assemble(record) for record in read_records(path, reading or ReadOptions(format), limit=limit))


def read_records(
    path: Paths,
    reading: ReadOptions = AS_IT_IS,
    limit: int | None = None,
    skipped: list[str] | None = None,
    ids: Counter[str] | None = None,
) -> Iterator[Record]:
    """The first `limit` records of each file. Raises DataError.

    Appends the reason for each skipped row to `skipped`. Ids are unique among all calls with the same `ids`.
    """
    taken = Counter[str]() if ids is None else ids
    for file in paths_of(path):
        records = _records(file, reading, skipped)
        expanded = chain.from_iterable(map(one_by_one, records)) if reading.split_questions else records
        for record in islice(expanded, limit):
            yield replace(record, id=unused_id(record.id, taken))


def one_by_one(record: Record) -> Iterator[Record]:
    """A record per question of `record`, with the same context. Drops evidence metadata, which covers all questions.

    >>> from palimpsest.types import Question
    >>> record = Record("r", "", (), "A text.", questions=(Question("Who?", ("Ann",)), Question("Where?", ("Rome",))))
    >>> [(each.id, each.question, each.answers) for each in one_by_one(record)]
    [('r-q1', 'Who?', ('Ann',)), ('r-q2', 'Where?', ('Rome',))]
    """
    if not record.questions:
        yield record
    shared = {key: value for key, value in record.metadata.items() if key not in _OF_ALL_QUESTIONS}
    categories = record.metadata.get("categories")
    for number, item in enumerate(record.questions, 1):
        metadata = {**shared, "question_number": number}
        if isinstance(categories, list) and len(categories) == len(record.questions):
            metadata["category"] = categories[number - 1]
        name = f"{record.id}-q{number}"
        yield replace(record, id=name, question=item.text, answers=item.answers, questions=(), metadata=metadata)


_OF_ALL_QUESTIONS = ("evidence", "evidence_positions", "categories")
"""Metadata keys that cover all questions of a record."""


def paths_of(path: Paths) -> list[Path]:
    return [Path(path)] if isinstance(path, str | Path) else [Path(file) for file in path]


def _records(path: Path, reading: ReadOptions, skipped: list[str] | None) -> Iterator[Record]:
    reader = format_of(path, reading)
    if isinstance(reader, RowFormat):
        return reader.read(path, skipped)
    return reader.read(path)


def format_of(path: Path, reading: ReadOptions = AS_IT_IS) -> DataFormat:
    """The format that reads `path`: `reading.format` if it is a shipped name or recognises the file, otherwise the
    shipped format of the first row's columns. Raises DataError."""
    format = reading.format
    if format is not None and not isinstance(format, str):
        if format.recognises(path):
            return format
        format = None
    if format is None:
        return RowFormat(recognise(next(_rows(path, reading))), reading)
    return RowFormat(named(format), reading)


def _rows(path: Path, reading: ReadOptions) -> Iterator[Row]:
    rows, columns = read_rows(questions_file(path) if path.is_dir() else path), columns_for(path, reading.columns)
    return (renamed(row, columns) for row in rows) if columns else rows


@dataclass(frozen=True, slots=True)
class RowFormat:
    """A shipped format: rows of JSON, JSON lines, parquet or a table, recognised by their columns."""

    columns: Format
    reading: ReadOptions = AS_IT_IS

    @property
    def name(self) -> str:
        return self.columns.name

    def recognises(self, path: Path) -> bool:
        """True if the first row has the columns."""
        return fits(self.columns, next(_rows(path, self.reading)).values)

    def taken(self, path: Path) -> dict[str, str]:
        """The column of each role in the first row, the content of the document, and the columns that aren't read."""
        row = next(_rows(path, self.reading))
        taken, theirs, content = self.columns.taken(row), columns_for(path, self.reading.columns), ""
        if held := document_kind(self.columns.parse(row, "")):
            content = f"{theirs.get(taken.document, taken.document) or 'metadata'}: {held}"
        columns = {
            "question": taken.question or "questions",
            "answers": taken.answers or "none",
            "document": content or "none",
        }
        if self.columns.parse is by_roles and (left := unread(row, taken)):
            columns["not read"] = ", ".join(left)
        return {role: theirs.get(column, column) for role, column in columns.items()}

    def read(self, path: Path, skipped: list[str] | None = None) -> Iterator[Record]:
        """One record per row. Appends the reason for each skipped row to `skipped`."""
        columns, count, left_out = self.columns, 0, list[str]()
        for row in _rows(path, self.reading):
            if row.index == 0:
                columns = _with_corpus(columns, row, path, self.reading.corpus)
            require(columns, row)
            try:
                record = columns.parse(row, f"{unpacked_name(path).stem.removeprefix(OBJECT)}-{row.index}")
            except fields.MissingGold as error:
                if not self.reading.skip_missing_gold:
                    raise
                left_out.append(str(error))
                if skipped is not None:
                    skipped.append(str(error))
                continue
            count += 1
            yield replace(record, metadata=custom_format.checked(row, record.metadata))
        if not count:
            raise DataError(f"{path}: data.on_missing_gold=skip skips every row, the first because: {left_out[0]}")


def document_kind(record: Record) -> str:
    """The content of a record's document in words; empty without one."""
    if isinstance(sessions := record.metadata.get("sessions"), list):
        return "a conversation" if len(sessions) == 1 else counted(len(sessions), "session")
    if record.paragraphs is not None:
        return counted(len(record.paragraphs), "passage")
    return "" if record.context is None else f"a text of {len(record.context):,} characters"


def refuse_ungraded(records: Iterable[Record | Problem]) -> None:
    """Raise DataError for a problem with a question without gold, which training can't use."""
    for record in records:
        if not all(one.answers for one in record.questions or (record,)):
            raise DataError(
                f"problem {record.id}: has no gold answer, and training needs one for every question; remove the "
                "problem or add a gold (evaluation runs it ungraded)"
            )


def unused_id(name: str, ids: Counter[str]) -> str:
    """`name`, or the first unused of `name#2`, `name#3`...; updates `ids`."""
    chosen = name
    while ids[chosen]:
        ids[name] += 1
        chosen = f"{name}#{ids[name]}"
    ids[chosen] += 1
    return chosen


def _with_corpus(format: Format, row: Row, path: Path, corpus: str | Path | None) -> Format:
    if format.name != "memagent_eval" or not isinstance(row.values.get("context"), list):
        return format
    corpus_path = Path(corpus) if corpus else path.parent / INDEXED_CORPUS
    if not corpus and not corpus_path.is_file():
        return format  # its parser reports the missing file
    return replace(format, parse=memagent_eval_by_index(read_corpus(corpus_path)))


def is_question_file(path: Path) -> bool:
    """True for a file whose first row has a question in a shipped layout; False for others, records of episodes
    included."""
    if not path.is_file():
        return False
    try:
        return bool(format_of(path))
    except DataError:
        return False


def read_corpus(path: str | Path) -> Corpus:
    """Paragraphs for distractors, from a HotpotQA or MuSiQue file or from rows {title, text}."""
    return Corpus.of(corpus_paragraphs(row) for row in read_rows(Path(path)))


def write_problems(path: str | Path, problems: Iterable[Problem]) -> int:
    """Write one JSON object per line, atomically. Returns the number of problems."""
    return write_rows(Path(path), map(problem_row, problems))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON object per line, atomically. Returns the number of rows."""
    count = 0
    with files.drafted(path) as file:
        for row in rows:
            count += 1
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    return count
