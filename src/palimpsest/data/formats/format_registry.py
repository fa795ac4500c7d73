"""Registry of shipped row layouts: the columns that identify each, and its parser.

The parsers are in question_formats.py and benchmark_formats.py.

Guaranteed: every row becomes a record with a nonblank question, or raises DataError; a gold is never blank; a record
without a gold is ungraded, not wrong.
Not covered: a context without the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from shlex import quote
from typing import Any

from palimpsest.data.files.rows import Row
from palimpsest.data.formats import benchmark_formats, fields, question_formats
from palimpsest.data.formats import question_formats as conversations
from palimpsest.data.formats import question_formats as paragraph_formats
from palimpsest.data.record import Record
from palimpsest.errors import DataError, nearest, shown_names
from palimpsest.plugin_kinds import OBJECT

Parse = Callable[[Row, str], Record]
"""(row, fallback id) to record."""


@dataclass(frozen=True, slots=True)
class Format:
    """A layout: its identifying columns and its parser."""

    name: str
    needs: tuple[str, ...]
    parse: Parse
    about: str
    """Its data sets, for a table."""
    instead: str | None = None
    """A column that replaces all of `needs`."""
    suits: Callable[[Mapping[str, Any]], bool] = lambda values: True
    """Check of the first row's values, if it has the columns."""
    declares: tuple[str, ...] = ()
    """Grading rules (`types.GRADING`) that its records may declare."""


def _paragraphs(values: Mapping[str, Any]) -> bool:
    return not question_formats.has_text(values)


FORMATS = {
    format.name: format
    for format in (
        Format(
            "longmemeval",
            ("question", "answer", "haystack_sessions"),
            conversations.longmemeval,
            "LongMemEval: dated sessions",
            declares=("abstention",),
        ),
        Format(
            "longbench_v2",
            ("question", "choice_A", "choice_B", "choice_C", "choice_D", "answer", "context"),
            benchmark_formats.longbench_v2,
            "LongBench v2: multiple choice",
            declares=("choice_letters",),
        ),
        Format(
            "locomo", ("conversation", "qa"), benchmark_formats.locomo, "LoCoMo: several questions on dated sessions"
        ),
        Format(
            "memoryagentbench",
            ("context", "questions", "answers"),
            benchmark_formats.memoryagentbench,
            "MemoryAgentBench: several questions on a text",
            suits=benchmark_formats.is_memoryagentbench,
        ),
        Format(
            "beam",
            ("chat", "probing_questions"),
            benchmark_formats.beam,
            "BEAM: several questions on a long chat, each with a rubric",
        ),
        Format(
            "squad",
            ("question", "context", "answers"),
            question_formats.squad,
            "SQuAD: `answers` is an object with `text`",
            suits=question_formats.is_squad,
        ),
        Format(
            "hotpotqa",
            ("question", "answer", "context"),
            paragraph_formats.hotpotqa,
            "HotpotQA, 2WikiMultiHopQA: `context` is paragraphs",
            suits=_paragraphs,
        ),
        Format(
            "qa",
            ("question", "answer", "context"),
            question_formats.qa,
            "`answer` and a text `context`",
            suits=question_formats.has_text,
        ),
        Format("musique", ("question", "answer", "paragraphs"), paragraph_formats.musique, "MuSiQue"),
        Format("memagent", ("prompt", "context", "reward_model"), benchmark_formats.memagent, "MemAgent's training"),
        Format(
            "memact",
            ("prompt", "reward_model", "extra_info", "agent_name"),
            benchmark_formats.memact,
            "MemAct's RL files: no context",
        ),
        Format(
            "memagent_eval",
            ("input", "context", "answers"),
            benchmark_formats.memagent_eval,
            "MemAgent's and ReMemR1's evaluation",
        ),
        Format("ruler", ("input", "context", "outputs"), benchmark_formats.ruler, "RULER"),
        Format("vime", ("prompt", "label", "metadata"), benchmark_formats.vime, "vime"),
        Format(
            "flashrag",
            ("question", "golden_answers"),
            question_formats.flashrag,
            "FlashRAG: paragraphs if its metadata has them",
        ),
        Format("frames", ("Prompt", "Answer", "wiki_links"), question_formats.frames, "Frames: no context"),
        Format("bamboogle", ("Question", "Answer"), question_formats.bamboogle, "Bamboogle: no context"),
        Format(
            "browsecomp_plus",
            ("query", "answer", "gold_docs"),
            question_formats.browsecomp_plus,
            "BrowseComp-Plus, decrypted",
        ),
        Format(
            "texts",
            ("question", "answers", "document"),
            question_formats.texts,
            "questions on text files next to the file",
        ),
        Format("palimpsest", ("question", "answers"), question_formats.palimpsest, "our own", instead="questions"),
        Format(
            "question",
            ("question",),
            question_formats.question,
            "no gold: evaluated, never graded",
            suits=question_formats.has_nothing_else,
        ),
    )
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

_ALIASES = {
    "question": ("q", "query", "prompt", "input", "problem", "instruction", "ask"),
    "answers": (*str.split("a answer gold golds label labels target targets output completion ground_truth"),),
    "answer": ("a", "answers", "gold", "golds", "label", "target", "output", "completion", "ground_truth"),
    "context": ("document", "text", "passage", "article", "story", "doc", "body"),
}
"""Other names of the commonest columns, for hints."""
_LOOKED_AT = 1000
"""Maximum number of columns searched for a hint."""


def named(name: str) -> Format:
    """The shipped format `name`. Raises DataError."""
    if name not in FORMATS:
        raise DataError(f"unknown data format {name!r}{nearest(name, FORMATS)}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def recognise(row: Row) -> Format:
    """The format of `row` by its columns. Raises DataError with the closest format and its missing columns."""
    for format in FORMATS.values():
        if fits(format, row.values):
            return format
    if {"messages", "conversations"} & set(row.values):
        raise DataError(f"{row.where}: a conversation, for supervised training: palimpsest sft RECIPE --data FILE")
    lacking = [format for format in FORMATS.values() if missing(format, row.values) and format.name != "texts"]
    closest = max(lacking, key=lambda format: _likeness(format, row.values))
    raise _lacks(row, closest, "no known format; the closest is")


def fits(format: Format, values: Mapping[str, Any]) -> bool:
    """True if a first row with these values has this format."""
    return not missing(format, values) and format.suits(values)


def require(format: Format, row: Row) -> None:
    """Raise DataError if `row` lacks a column of `format`."""
    if missing(format, row.values):
        raise _lacks(row, format, "format")


def missing(format: Format, columns: Container[str | None]) -> list[str]:
    return [] if format.instead in columns else [name for name in format.needs if name not in columns]


def _likeness(format: Format, names: Collection[str]) -> tuple[float, bool]:
    """(share of the needed columns present, where a misspelt one, or one with another name, counts about half;
    whether it is the general format, for rows that call their text something else)."""
    guessed = {need: 0.6 if nearest(need, names) else 0.5 for need in format.needs if _other_name(need, names)}
    share = sum(1.0 if need in names else guessed.get(need, 0.0) for need in format.needs) / len(format.needs)
    return share, format.name == "qa" and "context" not in names


def _other_name(need: str, columns: Iterable[str]) -> str | None:
    """The column that may be `need` under another name."""
    names = [name for name in islice(columns, _LOOKED_AT) if isinstance(name, str)]
    if near := nearest(need, names):
        return next(name for name in names if f" {name}?" in near)
    lowered = {name.lower(): name for name in names}
    return next((lowered[alias] for alias in (need.lower(), *_ALIASES.get(need, ())) if alias in lowered), None)


def _lacks(row: Row, format: Format, lead: str) -> DataError:
    used, mends, hints = set[str](), list[tuple[str, str]](), list[str]()
    for name in missing(format, row.values):
        other = _other_name(name, (key for key in row.values if key not in format.needs and key not in used))
        used |= {other} if other else set()
        hints.append(f"{name!r}" + (f" (did you mean {other!r}?)" if other else ""))
        mends.append((name, other or "COLUMN"))
    fix = f"map columns with other names: data.columns={quote(','.join(map('='.join, mends)))}"
    if str(row.path).startswith(OBJECT):  # rows passed in Python
        fix = f"rename {', '.join(f'{theirs} to {ours}' for ours, theirs in mends)}"
    return DataError(
        f"{row.where}: {lead} {format.name!r}, which needs column {', '.join(hints)}; the row has "
        f"{shown_names(row.values) or 'none'}; {fix}"
    )
