"""Registry of shipped row layouts: the columns that identify each, and its parser.

Guaranteed: every row becomes a record with a nonblank question, or raises DataError; a gold is never blank; a record
without a gold is ungraded, not wrong.
Not covered: a context without the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.data.files.rows import Row
from palimpsest.data.formats import benchmark_formats as benchmarks
from palimpsest.data.formats import fields
from palimpsest.data.formats import question_formats as published
from palimpsest.data.record import Record
from palimpsest.errors import DataError, nearest

Parse = Callable[[Row, str], Record]
"""(row, fallback id) to record."""


@dataclass(frozen=True, slots=True)
class Format:
    """A layout: its identifying columns and its parser."""

    name: str
    columns: str
    """The identifying columns. Those of a layout with its own parser are question, answers, document."""
    about: str
    """Its data sets, for a table."""
    parse: Parse
    suits: Callable[[Mapping[str, Any]], bool]
    """Check of the first row's values, if it has the columns."""
    instead: str | None
    """A column that replaces all of `needs`."""
    takes: str
    """Columns of question, answers and document, if others."""
    declares: tuple[str, ...]
    """Grading rules (`types.GRADING`) that its records may declare."""

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(self.columns.split())

    def taken(self, row: Row) -> fields.Roles:
        """The columns of each role in a row of this format."""
        if self.parse in (published.by_roles, published.flashrag):
            return fields.roles(row)
        return fields.Roles(*(self.takes or self.columns).split()[:3])


def _is_hotpotqa(values: Mapping[str, Any]) -> bool:
    context = values.get("context")
    first = context[0] if isinstance(context, list) and context else None
    is_pair = isinstance(first, list) and len(first) == 2 and isinstance(first[1], list)
    named = "questions" not in values or "supporting_facts" in values
    return named and (is_pair or _first_has(context, "sentence"))


def _names_files(values: Mapping[str, Any]) -> bool:
    named = values["document"]
    names = named if isinstance(named, list) else [named]
    return all(isinstance(name, str) and _FILE.fullmatch(name) for name in names)


_FILE = re.compile(r"[^\s]{0,255}|[^\n]{1,250}\.\w{1,5}")


def _first_has(value: Any, key: str) -> bool:
    """True for an object, or a list of objects, with a key that starts with `key`."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, Mapping) and any(str(name).startswith(key) for name in first)


def _general(values: Mapping[str, Any]) -> str:
    try:
        taken = fields.roles(Row(dict(values), ""))
    except DataError:
        return ""
    return "qa" if taken.answers else "question"


_LAYOUTS = """
    longmemeval | question answer haystack_sessions | LongMemEval: dated sessions
    longbench_v2 | question choice_A choice_B choice_C choice_D answer context | LongBench v2: multiple choice \
        | question answer context
    locomo | conversation qa | LoCoMo: several questions on dated sessions | qa qa conversation
    memoryagentbench | questions answers context | MemoryAgentBench: several questions on a text
    beam | chat probing_questions | BEAM: several questions on a long chat, each with a rubric \
        | probing_questions probing_questions chat
    squad | question answers context | SQuAD: `answers` is an object with `text`
    hotpotqa | question answer context | HotpotQA, 2WikiMultiHopQA: `context` is paragraphs
    musique | question answer paragraphs | MuSiQue
    memagent | prompt context reward_model | MemAgent's training | extra_info.question reward_model.ground_truth context
    memact | prompt reward_model extra_info agent_name | MemAct's RL files: no context \
        | extra_info.question reward_model.ground_truth
    memagent_eval | input answers context | MemAgent's and ReMemR1's evaluation
    ruler | input context outputs | RULER
    vime | prompt label metadata | vime | prompt metadata.ground_truth metadata.context
    flashrag | question golden_answers | FlashRAG: paragraphs if its metadata has them
    frames | Prompt Answer wiki_links | Frames: no context
    bamboogle | Question Answer | Bamboogle: no context
    browsecomp_plus | query answer gold_docs | BrowseComp-Plus, decrypted
    texts | question answers document | questions on text files next to the file
    palimpsest | question answers | our own
    qa |  | any [question, answers and document](#qa)
    question | question | no gold: evaluated, never graded
"""
"""Name, columns, about, takes."""
_READERS: tuple[Parse, ...] = (
    *(published.longmemeval, published.hotpotqa, published.musique, published.flashrag, published.frames),
    *(published.browsecomp_plus, published.texts, benchmarks.longbench_v2, benchmarks.locomo, benchmarks.beam),
    *(benchmarks.memoryagentbench, benchmarks.memagent, benchmarks.memact, benchmarks.memagent_eval, benchmarks.vime),
)
"""Parsers of the layouts with their names; the others' is `by_roles`."""
_SUITS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "memoryagentbench": lambda values: isinstance(q := values["questions"], list) and [*map(type, q[:1])] == [str],
    "squad": lambda values: _first_has(values["answers"], "text"),
    "hotpotqa": _is_hotpotqa,
    "musique": lambda values: _first_has(values["paragraphs"], "paragraph_text"),
    "texts": _names_files,
    "qa": lambda values: _general(values) == "qa" and not {"question", "answers"} <= values.keys(),
    "question": lambda values: _general(values) == "question",
}
"""Checks of a first row's values."""
_DECLARES = {"longmemeval": ("abstention",), "longbench_v2": ("choice_letters",)}


def _layout(name: str, columns: str, about: str, takes: str = "") -> Format:
    parse = next((reader for reader in _READERS if reader.__name__ == name), published.by_roles)
    suits, instead = _SUITS.get(name, lambda values: True), "questions" if name in ("hotpotqa", "palimpsest") else None
    return Format(name, columns, about, parse, suits, instead, takes, _DECLARES.get(name, ()))


FORMATS = {
    format.name: format
    for format in (_layout(*map(str.strip, row.split("|"))) for row in _LAYOUTS.strip().splitlines())
}

_FURTHER = (
    *("metadata", "memory", "sessions", "title", "type", "level", "supporting_facts"),
    *("answerable", "answer_aliases", "question_decomposition", "evidence_docs", "negative_docs", "reasoning_types"),
    *("question_date", "question_type", "haystack_dates", "haystack_session_ids", "answer_session_ids"),
    *("domain", "sub_domain", "difficulty", "length", "sample_id", "conversation_id", "plans"),
    *("data_source", "ability", "num_docs", "chunks", "index", "evidence", "evidence_positions", "evidence_idx"),
)
"""Optional columns of the layouts."""
COLUMNS = dict.fromkeys(
    (
        *(name for format in FORMATS.values() for name in (*format.needs, format.instead) if name),
        *fields.IDS,
        *_FURTHER,
    )
)
"""All columns of the layouts, the commonest first."""


def named(name: str) -> Format:
    """The shipped format `name`. Raises DataError."""
    if name not in FORMATS:
        raise DataError(f"unknown data format {name!r}{nearest(name, FORMATS)}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def recognise(row: Row) -> Format:
    """The format of `row` by its columns. Raises DataError naming the role without a column."""
    for format in FORMATS.values():
        if fits(format, row.values):
            return format
    fields.roles(row)
    return FORMATS["qa"]


def fits(format: Format, values: Mapping[str, Any]) -> bool:
    """True if a first row with these values has this format."""
    return not missing(format, values) and format.suits(values)


def require(format: Format, row: Row) -> None:
    """Raise DataError if `row` lacks a column of `format`."""
    if missing(format, row.values):
        raise fields.lacks(row, f"format {format.name!r}, which needs column", missing(format, row.values))


def missing(format: Format, columns: Container[str | None]) -> list[str]:
    return [] if format.instead in columns else [name for name in format.needs if name not in columns]
