"""Question formats: fixed contexts, paragraphs, long conversations, or only a question.

    qa               question and answer with a text context
    squad            SQuAD: context, question, answers.text
    flashrag         FlashRAG: question, golden_answers, metadata, which may contain paragraphs
    frames           Frames: Prompt, Answer, wiki_links; the file has no pages
    bamboogle        Bamboogle: Question, Answer
    browsecomp_plus  BrowseComp-Plus, decrypted: query, answer, gold_docs, evidence_docs, negative_docs
    texts            question, answers and document: the name of a text file next to the file
    palimpsest       our own: question and answers, or questions; optionally id, context or sessions, metadata, memory
    question         only a question: evaluated, never graded
    hotpotqa         HotpotQA, 2WikiMultiHopQA: official JSON ([[title, [sentence]]]) or hub ({title, sentences})
    musique          MuSiQue: paragraphs with is_supporting, question_decomposition in reasoning order
    longmemeval      LongMemEval: question, answer, haystack_sessions, haystack_dates, question_date, answer_session_ids
    sessions         a column of our own layout instead of `context`: objects with date, turns and optionally id

Paragraphs of hotpotqa and musique allow contexts of any length. A policy can cut a long conversation anywhere: every
session is a document of the context, and every line starts with the date of its session and the speaker. A turn of more
than `LINE` characters continues in further lines with the same start:

    Document 1:
    [2023/05/20 (Sat) 02:21] user: I bought a car.
    [2023/05/20 (Sat) 02:21] assistant: Which one?

Guaranteed: every row becomes a record with a nonblank question, or raises DataError; gold paragraphs or sessions
missing from the row raise MissingGold; any stretch of a session longer than `LINE` characters and two line starts
contains its date.
Not covered: reordered sessions (the file's order counts); contexts of N sessions (`data.documents`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.data.assemble import document_block
from palimpsest.data.files.rows import Row
from palimpsest.data.files.text_files import paragraph_of
from palimpsest.data.formats import fields
from palimpsest.data.record import Record
from palimpsest.errors import DataError
from palimpsest.text.json_text import valid
from palimpsest.types import Problem

# ---- Long conversations --------------------------------------------------------------------------------------


LINE = 1000
"""Maximum characters of a turn on one line."""


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation on one date."""

    id: str
    date: str
    text: str
    """Lines as in the context."""


def longmemeval(row: Row, fallback: str) -> Record:
    """A record whose question starts with its date."""
    values = row.values
    listed = fields.get(row, values, "haystack_sessions")
    if not isinstance(listed, list):
        raise DataError(f"{row.where}: haystack_sessions must be a list of sessions, is {listed!r:.60}")
    dates = values.get("haystack_dates") or [""] * len(listed)
    names = values.get("haystack_session_ids") or [str(number) for number in range(1, len(listed) + 1)]
    if not all(isinstance(column, list) and len(column) == len(listed) for column in (listed, dates, names)):
        raise DataError(
            f"{row.where}: haystack_sessions, haystack_dates and haystack_session_ids must be lists of equal length"
        )
    sessions = [
        _session(row, str(name), date, turns, f"haystack_sessions[{at}]")
        for at, (name, date, turns) in enumerate(zip(names, dates, listed, strict=True))
    ]
    context, metadata = together(row, sessions, values.get("answer_session_ids") or [], "answer_session_ids")
    query = fields.text(row, fields.get(row, values, "question"), "question")
    date = values.get("question_date")
    answer, identity = values["answer"], fields.identity(row, fallback)
    given = {key: values[key] for key in ("question_type", "question_date") if values.get(key)}
    return Record(
        id=identity,
        question=f"[{date}] {query}" if date else query,
        answers=fields.golds(row, str(answer) if type(answer) is int else answer, "answer"),
        context=context,
        metadata=given | metadata | ({"abstention": True} if identity.endswith("_abs") else {}),
    )


def sessions_context(row: Row, listed: Any, needed: Any) -> tuple[str, dict[str, Any]]:
    """Context and metadata of the column `sessions`; `needed` are the ids of sessions that an answer needs."""
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{row.where}: sessions must be a list of objects with date and turns, is {listed!r:.60}")
    sessions = []
    for at, session in enumerate(listed):
        location = f"sessions[{at}]"
        date, turns = (fields.get(row, session, key, location) for key in ("date", "turns"))
        sessions.append(_session(row, str(session.get("id") or at + 1), date, turns, f"{location}.turns"))
    return together(row, sessions, needed or [], "metadata.evidence_sessions")


def together(row: Row, sessions: list[Session], needed: Any, name: str) -> tuple[str, dict[str, Any]]:
    """One context of all sessions, and its metadata."""
    positions = {session.id: number for number, session in enumerate(sessions, 1)}
    wanted = [str(session_id) for session_id in needed] if isinstance(needed, list) else [str(needed)]
    for session_id in wanted:
        if session_id not in positions:
            raise fields.MissingGold(
                f"{row.where}: {name}: no session has the id {session_id!r}; skip such rows with "
                "data.on_missing_gold=skip"
            )
    return document_block([session.text for session in sessions]), {
        "sessions": [{"id": session.id, "date": session.date} for session in sessions],
        "num_docs": len(sessions),
        "evidence": [sessions[positions[session_id] - 1].text for session_id in wanted],
        "evidence_positions": [positions[session_id] for session_id in wanted],
    }


def _session(row: Row, name: str, date: Any, turns: Any, location: str) -> Session:
    if not isinstance(turns, list):
        raise DataError(f"{row.where}: {location} must be a list of turns with role and content, is {turns!r:.60}")
    date_text = str(date)
    lines = [line for at, turn in enumerate(turns) for line in _lines(row, date_text, turn, f"{location}[{at}]")]
    return Session(valid(name), valid(date_text), "\n".join(lines))


def _lines(row: Row, date: str, turn: Any, location: str) -> Iterator[str]:
    if not isinstance(turn, Mapping):
        raise DataError(f"{row.where}: {location} must be an object with role and content, is {turn!r:.60}")
    role = fields.text(row, fields.get(row, turn, "role", location), f"{location}.role")
    content = fields.text(row, turn.get("content") or "", f"{location}.content", blank=True)
    beginning = f"[{valid(date)}] {role}: " if date else f"{role}: "
    yield from (beginning + piece for piece in pieces(content, LINE))


def pieces(text: str, size: int) -> Iterator[str]:
    """Pieces of `text` with at most `size` characters, cut at a space or newline in their second half if there is one.

    >>> list(pieces("one two three", 8))
    ['one two', 'three']
    """
    while len(text) > size:
        cut = max(text.rfind(mark, size // 2, size) for mark in " \n")
        yield text[: cut if cut > 0 else size]
        text = text[cut + 1 if cut > 0 else size :]
    yield text


# ---- Questions with paragraphs -------------------------------------------------------------------------------


def hotpotqa(row: Row, fallback: str) -> Record:
    values = row.values
    paragraphs = _paragraphs(row)
    titled = _joined(row, paragraphs)
    titles, sentences = _supporting(row, values.get("supporting_facts"), dict(paragraphs))
    for title in titles:
        if not any(title == other for other, _ in titled):
            raise fields.MissingGold(
                f"{row.where}: supporting title {title!r} is not among its paragraphs; use the file's distractor "
                "setting, which has every gold paragraph, or skip such rows with data.on_missing_gold=skip"
            )
    return Record(
        id=fields.identity(row, fallback),
        question=fields.text(row, fields.get(row, values, "question"), "question"),
        answers=fields.golds_at(row, values, "answer"),
        paragraphs=tuple(dict.fromkeys(text for _, text in titled)),
        gold=tuple(dict.fromkeys(text for wanted in titles for title, text in titled if title == wanted)),
        metadata={
            **{key: values[key] for key in ("type", "level") if values.get(key) is not None},
            "supporting_titles": tuple(titles),
            **({"supporting_sentences": sentences} if sentences else {}),
        },
    )


def titled_paragraphs(row: Row) -> list[tuple[str, str]]:
    """(title, "title\\nsentences") of each paragraph, from either layout of HotpotQA."""
    return _joined(row, _paragraphs(row))


def _paragraphs(row: Row) -> list[tuple[str, list[str]]]:
    """(title, sentences) of each paragraph."""
    result = []
    for title, sentences in _pairs(row, fields.get(row, row.values, "context"), "context", "sentences"):
        title = fields.text(row, title, "context title", blank=True)
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise DataError(f"{row.where}: context: paragraph {title!r} must be a list of sentences")
        result.append((title, sentences))
    if not result:
        raise DataError(f"{row.where}: context has no paragraphs")
    return result


def _joined(row: Row, paragraphs: list[tuple[str, list[str]]]) -> list[tuple[str, str]]:
    return [
        (title, f"{title}\n{fields.text(row, ''.join(sentences), 'context sentences', blank=True)}")
        for title, sentences in paragraphs
    ]


def _supporting(row: Row, facts: Any, paragraphs: Mapping[str, list[str]]) -> tuple[list[str], tuple[str, ...]]:
    """Titles of the supporting paragraphs, and their supporting sentences; no sentences if a number has none."""
    if facts is None:
        return [], ()
    pairs = _pairs(row, facts, "supporting_facts", "sent_id")
    titles = [fields.text(row, title, "supporting_facts title", blank=True) for title, _ in pairs]
    found = []
    for title, (_, number) in zip(titles, pairs, strict=True):
        sentences = paragraphs.get(title, [])
        if type(number) is not int or not 0 <= number < len(sentences) or not sentences[number].strip():
            return list(dict.fromkeys(titles)), ()
        found.append(sentences[number].strip())
    return list(dict.fromkeys(titles)), tuple(found)


def _pairs(row: Row, value: Any, name: str, second: str) -> list[tuple[Any, Any]]:
    """(title, second) pairs of [[title, x], ...], {title: [...], second: [...]} or [{title, second}, ...]."""
    if isinstance(value, Mapping):
        titles = fields.get(row, value, "title", name)
        values = fields.get(row, value, second, name)
        if not isinstance(titles, list) or not isinstance(values, list) or len(titles) != len(values):
            raise DataError(f"{row.where}: {name}.title and {name}.{second} must be lists of equal length")
        return list(zip(titles, values, strict=True))
    if not isinstance(value, list):
        raise DataError(f"{row.where}: {name} must be a list of pairs or an object, is {value!r:.60}")
    pairs = []
    for item in value:
        if isinstance(item, Mapping):
            pairs.append((fields.get(row, item, "title", name), fields.get(row, item, second, name)))
        elif isinstance(item, list) and len(item) == 2:
            pairs.append((item[0], item[1]))
        else:
            raise DataError(f"{row.where}: {name} must be a list of [title, {second}] pairs, found {item!r:.60}")
    return pairs


def musique(row: Row, fallback: str) -> Record:
    values = row.values
    if values.get("answerable") is False:
        raise DataError(f"{row.where}: answerable is false; use the answerable set (musique_ans)")
    texts = musique_paragraphs(row)
    hops = values.get("question_decomposition") or []
    if not isinstance(hops, list):
        raise DataError(f"{row.where}: question_decomposition must be a list of objects, is {hops!r:.60}")
    used = [fields.get(row, hop, "paragraph_support_idx", "question_decomposition") for hop in hops]
    if any(not isinstance(index, int) or not 0 <= index < len(texts) for index in used):
        raise fields.MissingGold(
            f"{row.where}: question_decomposition.paragraph_support_idx {used!r:.60} is not in its paragraphs; skip "
            "such rows with data.on_missing_gold=skip"
        )
    marked = [
        text for text, paragraph in zip(texts, values["paragraphs"], strict=True) if paragraph.get("is_supporting")
    ]
    answers = fields.golds_at(row, values, "answer")
    aliases = values.get("answer_aliases") or []
    return Record(
        id=fields.identity(row, fallback),
        question=fields.text(row, fields.get(row, values, "question"), "question"),
        answers=tuple(dict.fromkeys((*answers, *fields.golds(row, aliases, "answer_aliases")))),
        paragraphs=tuple(dict.fromkeys(texts)),
        gold=tuple(dict.fromkeys((*(texts[index] for index in used), *marked))),
        metadata={"hops": len(hops)} if hops else {},
    )


def musique_paragraphs(row: Row) -> list[str]:
    """`title\\ntext` of each paragraph of MuSiQue."""
    listed = fields.get(row, row.values, "paragraphs")
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{row.where}: paragraphs must be a list of objects, is {listed!r:.60}")
    return [_musique_paragraph(row, paragraph) for paragraph in listed]


def _musique_paragraph(row: Row, paragraph: Any) -> str:
    title, body = (fields.get(row, paragraph, key, "paragraphs") for key in ("title", "paragraph_text"))
    return f"{fields.text(row, title, 'title', blank=True)}\n{fields.text(row, body, 'paragraph_text', blank=True)}"


# ---- Questions with a fixed context, with documents, or without ----------------------------------------------


_LINK = re.compile(r"""(?:'([^']+)'|"([^"]+)")""")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{8,}={0,2}")


def qa(row: Row, fallback: str) -> Record:
    return Record(
        id=fields.identity(row, fallback),
        question=_question(row, "question"),
        answers=fields.golds_at(row, row.values, "answer"),
        context=_context(row),
        metadata=_metadata(row),
    )


def squad(row: Row, fallback: str) -> Record:
    """A record with the annotators' distinct golds; SQuAD 2's unanswerable questions have none."""
    answers = row.values["answers"]
    texts = [fields.get(row, answer, "text", "answers") for answer in answers] if isinstance(answers, list) else answers
    golds = fields.golds(row, texts, "answers") if isinstance(texts, list) else fields.golds_at(row, texts, "text")
    return Record(
        id=fields.identity(row, fallback),
        question=_question(row, "question"),
        answers=tuple(dict.fromkeys(golds)),
        context=_context(row),
        metadata={key: row.values[key] for key in ("title",) if row.values.get(key)},
    )


def is_squad(values: Mapping[str, Any]) -> bool:
    """True if `answers` is an object, or a list of objects."""
    value = values["answers"]
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def has_text(values: Mapping[str, Any]) -> bool:
    """True if the context is a text, not paragraphs."""
    return isinstance(values["context"], str)


def flashrag(row: Row, fallback: str) -> Record:
    """A record with the paragraphs in the metadata of HotpotQA and 2WikiMultiHopQA; the other sets have none."""
    metadata = _metadata(row)
    if "context" in metadata:
        return _with_paragraphs(row, fallback, metadata)
    return Record(
        id=fields.identity(row, fallback),
        question=_question(row, "question"),
        answers=fields.golds_at(row, row.values, "golden_answers"),
        metadata=_metadata(row),
    )


def _with_paragraphs(row: Row, fallback: str, metadata: Mapping[str, Any]) -> Record:
    """The record of a row with the original `context` and `supporting_facts` of its set in its metadata."""
    context = metadata["context"]
    if isinstance(context, Mapping) and "sentences" not in context and "content" in context:  # 2WikiMultiHopQA's
        context = {"title": context.get("title"), "sentences": context["content"]}
    values = {**metadata, "context": context, "question": row.values["question"]}
    values |= {"answer": row.values["golden_answers"], "id": row.values.get("id")}
    record = hotpotqa(replace(row, values=values), fallback)
    rest = {key: value for key, value in metadata.items() if key not in ("context", "supporting_facts")}
    return replace(record, metadata={**rest, **record.metadata})


def frames(row: Row, fallback: str) -> Record:
    """A record with the links as metadata: `wiki_links` is a list, or the text of one in the hub's table."""
    links = row.values["wiki_links"]
    listed = [one or two for one, two in _LINK.findall(links)] if isinstance(links, str) else links
    types = row.values.get("reasoning_types")
    return Record(
        id=fields.identity(row, fallback),
        question=_question(row, "Prompt"),
        answers=fields.golds_at(row, row.values, "Answer"),
        metadata={"wiki_links": listed or []} | ({"reasoning_types": types} if types else {}),
    )


def bamboogle(row: Row, fallback: str) -> Record:
    name = fields.identity(row, fallback)
    return Record(name, _question(row, "Question"), fields.golds_at(row, row.values, "Answer"))


def browsecomp_plus(row: Row, fallback: str) -> Record:
    """A record whose gold is the evidence documents, which include the file's gold documents."""
    query = _question(row, "query")
    if _BASE64.fullmatch(query):
        raise DataError(
            f"{row.where}: query={query!r:.30} is encrypted; decrypt the file with the script of BrowseComp-Plus and "
            "read the result"
        )
    needed = [text for key in ("evidence_docs", "gold_docs") for text in _documents(row, key)]
    negatives = _documents(row, "negative_docs")
    paragraphs = tuple(dict.fromkeys((*needed, *negatives)))
    return Record(
        id=fields.identity(row, fallback),
        question=query,
        answers=fields.golds_at(row, row.values, "answer"),
        paragraphs=paragraphs or None,
        gold=tuple(dict.fromkeys(needed)),
    )


def _documents(row: Row, key: str) -> list[str]:
    listed = row.values.get(key) or []
    if not isinstance(listed, list):
        raise DataError(f"{row.where}: {key} must be a list of objects with text, is {listed!r:.60}")
    texts = [fields.get(row, document, "text", f"{key}[{at}]") for at, document in enumerate(listed)]
    return [fields.text(row, text, f"{key}[{at}].text", blank=True) for at, text in enumerate(texts)]


def texts(row: Row, fallback: str) -> Record:
    """A record whose gold is its documents; `data.corpus` may add the folder's other files."""
    named = row.values["document"]
    names = [fields.text(row, name, "document") for name in (named if isinstance(named, list) else [named])]
    read = tuple(dict.fromkeys(paragraph_of(row.path.parent, name, row.where) for name in names))
    if not read:
        raise DataError(f"{row.where}: document is empty; name a text file next to {row.path.name}")
    return Record(
        id=fields.identity(row, fallback),
        question=_question(row, "question"),
        answers=fields.golds_at(row, row.values, "answers"),
        paragraphs=read,
        gold=read,
        metadata=_metadata(row),
    )


def palimpsest(row: Row, fallback: str) -> Record:
    metadata, memory = _metadata(row), row.values.get("memory")
    name = fields.identity(row, fallback)
    problem = Problem.asking(name, fields.questions(row, metadata))
    context = _context(row) if row.values.get("context") is not None else None
    if (listed := row.values.get("sessions")) is not None:
        if context is not None:
            raise DataError(f"{row.where}: has both context and sessions; remove one of them")
        context, session_metadata = sessions_context(row, listed, metadata.get("evidence_sessions"))
        metadata = {**metadata, **session_metadata}
    return Record(
        id=name,
        question=problem.question,
        answers=problem.answers,
        context=context,
        metadata=metadata,
        questions=problem.questions,
        memory="" if memory is None else fields.text(row, memory, "memory", blank=True),
    )


def question(row: Row, fallback: str) -> Record:
    context = _context(row) if row.values.get("context") is not None else None
    name = fields.identity(row, fallback)
    return Record(name, _question(row, "question"), (), context, metadata=_metadata(row))


def has_nothing_else(values: Mapping[str, Any]) -> bool:
    """True if no column could be a gold under another name."""
    return set(values) <= {"question", "context", "metadata", "memory", *fields.IDS}


def _question(row: Row, key: str) -> str:
    return fields.text(row, fields.get(row, row.values, key), key)


def _context(row: Row) -> str:
    return fields.text(row, fields.get(row, row.values, "context"), "context", blank=True)


def _metadata(row: Row) -> Mapping[str, Any]:
    metadata = row.values.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise DataError(f"{row.where}: metadata must be an object, is {metadata!r:.60}")
    return metadata
