"""Question formats (format_registry.py): the general reader, paragraphs, long conversations.

Paragraphs of hotpotqa and musique allow contexts of any length. A policy can cut a long conversation anywhere: every
session is a document of the context, and every line starts with the date of its session and the speaker. A turn of more
than `LINE` characters continues in further lines with the same start:

    Document 1:
    [2023/05/20 (Sat) 02:21] user: I bought a car.
    [2023/05/20 (Sat) 02:21] assistant: Which one?

Guaranteed: gold paragraphs or sessions missing from the row raise MissingGold; any stretch of a session longer than
`LINE` characters and two line starts contains its date.
Not covered: reordered sessions (the file's order counts); contexts of N sessions (`data.documents`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from palimpsest.data.assemble import document_block
from palimpsest.data.files.rows import Row
from palimpsest.data.files.text_files import paragraph_of
from palimpsest.data.formats import fields
from palimpsest.data.formats.fields import Roles
from palimpsest.data.record import Record
from palimpsest.errors import DataError, shown_names
from palimpsest.text.json_text import valid
from palimpsest.types import Problem

# ---- Long conversations --------------------------------------------------------------------------------------


LINE = 1000
"""Maximum characters of a turn on one line."""


def longmemeval(row: Row, fallback: str) -> Record:
    """A record whose question starts with its date."""
    values = row.values
    listed = fields.get(row, values, "haystack_sessions")
    count = len(listed) if isinstance(listed, list) else 0
    dates = values.get("haystack_dates") or [""] * count
    names = values.get("haystack_session_ids") or list(range(1, count + 1))
    if not all(isinstance(column, list) and len(column) == count for column in (listed, dates, names)):
        raise DataError(
            f"{row.where}: haystack_sessions, haystack_dates and haystack_session_ids must be lists of equal length"
        )
    sessions = [{"id": id, "date": date, "turns": turns} for id, date, turns in zip(names, dates, listed, strict=True)]
    needed = values.get("answer_session_ids")
    context, metadata = sessions_context(row, sessions, needed, ("haystack_sessions", "", "answer_session_ids"))
    date = values.get("question_date")
    metadata = {key: values[key] for key in ("question_type", "question_date") if values.get(key)} | metadata
    if fields.identity(row, fallback).endswith("_abs"):
        metadata["abstention"] = True
    query = fields.text(row, fields.get(row, values, "question"), "question")
    content = {"question": f"[{date}] {query}" if date else query, "context": context, "metadata": metadata}
    return by_roles(replace(row, values={**ids(row), **content, "answers": values["answer"]}), fallback)


def sessions_context(
    row: Row,
    listed: Any,
    needed: Any,
    names: tuple[str, str, str] = ("sessions", ".turns", "metadata.evidence_sessions"),
) -> tuple[str, dict[str, Any]]:
    """One context of sessions, objects with date, turns and maybe id, and its metadata; `needed` are the ids of those
    that an answer needs, `names` those of the columns and of the turns in a session."""
    column, inside, evidence = names
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{row.where}: {column} must be a list of objects with date and turns, is {listed!r:.60}")
    about, texts = [], []
    for at, session in enumerate(listed):
        location = f"{column}[{at}]"
        date, turns = (fields.get(row, session, key, location) for key in ("date", "turns"))
        about.append({"id": valid(str(session.get("id") or at + 1)), "date": valid(str(date))})
        texts.append(_lines(row, about[-1]["date"], turns, location + inside))
    positions = {session["id"]: at for at, session in enumerate(about, 1)}
    wanted = [str(session_id) for session_id in (needed if isinstance(needed, list) else [needed] if needed else [])]
    if absent := [session_id for session_id in wanted if session_id not in positions]:
        raise fields.MissingGold(
            f"{row.where}: {evidence}: no session has the id {absent[0]!r}; skip such rows with "
            "data.on_missing_gold=skip"
        )
    return document_block(texts), {
        "sessions": about,
        "num_docs": len(about),
        "evidence": [texts[positions[session_id] - 1] for session_id in wanted],
        "evidence_positions": [positions[session_id] for session_id in wanted],
    }


def _lines(row: Row, date: str, turns: Any, location: str) -> str:
    if not isinstance(turns, list):
        raise DataError(f"{row.where}: {location} must be a list of turns with role and content, is {turns!r:.60}")
    lines = []
    for at, turn in enumerate(turns):
        said = fields.turn_of(turn)
        if said is None:
            raise DataError(f"{row.where}: {location}[{at}] must be an object with role and content, is {turn!r:.60}")
        role = fields.text(row, said[0], f"{location}[{at}].role")
        content = fields.text(row, said[1], f"{location}[{at}].content", blank=True)
        lines += [f"[{date}] {role}: {piece}" if date else f"{role}: {piece}" for piece in pieces(content, LINE)]
    return "\n".join(lines)


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
    paragraphs = _pairs(row, "context", "sentences")
    titles, sentences = _supporting(row, dict(paragraphs))
    titled = titled_paragraphs(row)
    for title in titles:
        if not any(title == other for other, _ in titled):
            raise fields.MissingGold(
                f"{row.where}: supporting title {title!r} is not among its paragraphs; use the file's distractor "
                "setting, which has every gold paragraph, or skip such rows with data.on_missing_gold=skip"
            )
    gold = [text for wanted in titles for title, text in titled if title == wanted]
    metadata = {"supporting_titles": tuple(titles)} | ({"supporting_sentences": sentences} if sentences else {})
    return _with_gold(row, fallback, "context", [text for _, text in titled], gold, metadata)


def _with_gold(
    row: Row, fallback: str, column: str, texts: Sequence[str], gold: Sequence[str], metadata: Mapping[str, Any]
) -> Record:
    values = {**row.values, column: list(texts)}
    record = by_roles(replace(row, values=values), fallback, Roles("question", "answer", column))
    return replace(record, gold=tuple(dict.fromkeys(gold)), metadata={**record.metadata, **metadata})


def titled_paragraphs(row: Row) -> list[tuple[str, str]]:
    """(title, "title\\nsentences") of each paragraph, from either layout of HotpotQA."""
    pairs = _pairs(row, "context", "sentences")
    for title, sentences in pairs:
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise DataError(f"{row.where}: context: paragraph {title!r} must be a list of sentences")
    space = _space(sentence for _, sentences in pairs for sentence in sentences[1:])
    texts = (fields.text(row, space.join(sentences), "context sentences", blank=True) for _, sentences in pairs)
    return [(title, f"{title}\n{text}") for (title, _), text in zip(pairs, texts, strict=True)]


def _space(later: Iterable[str]) -> str:
    """Separator of sentences; `later`: all but the first of a paragraph. HotpotQA's begin with a space,
    2WikiMultiHopQA's do not.

    >>> _space([" Two.", "Three."]), _space(["Two."])
    ('', ' ')
    """
    return "" if any(sentence[:1].isspace() for sentence in later) else " "


def corpus_paragraphs(row: Row) -> list[str]:
    """The paragraphs of a HotpotQA or MuSiQue row, or the passage of a row with text."""
    if "paragraphs" in row.values:
        return musique_paragraphs(row)
    if "context" in row.values:
        return [text for _, text in titled_paragraphs(row)]
    if any(row.values.get(key) is not None for key in ("text", "contents")):
        return _passages(row, [row.values], "row")
    raise DataError(
        f"{row.where}: no 'text' or 'contents' (there: {shown_names(row.values) or 'nothing'}); rename the column of "
        "the passage to text; a corpus has passages (title, text) or rows of HotpotQA or MuSiQue"
    )


def _supporting(row: Row, paragraphs: Mapping[str, list[str]]) -> tuple[list[str], tuple[str, ...]]:
    """Titles of the supporting paragraphs, and their supporting sentences; no sentences if a number has none."""
    pairs = _pairs(row, "supporting_facts", "sent_id") if row.values.get("supporting_facts") else []
    titles = list(dict.fromkeys(title for title, _ in pairs))
    found = []
    for title, number in pairs:
        sentences = paragraphs.get(title, [])
        if type(number) is not int or not 0 <= number < len(sentences) or not sentences[number].strip():
            return titles, ()
        found.append(sentences[number].strip())
    return titles, tuple(found)


def _pairs(row: Row, name: str, second: str) -> list[tuple[str, Any]]:
    """(title, second) pairs of [[title, x], ...], {title: [...], second: [...]} or [{title, second}, ...]."""
    value = fields.get(row, row.values, name)
    if isinstance(value, Mapping):
        fields.get(row, value, second, name)
    pairs = []
    for item in _items(row, value, name):
        if isinstance(item, Mapping):
            pairs.append((fields.get(row, item, "title", name), fields.get(row, item, second, name)))
        elif isinstance(item, list) and len(item) == 2:
            pairs.append((item[0], item[1]))
        else:
            raise DataError(f"{row.where}: {name} must be a list of [title, {second}] pairs, found {item!r:.60}")
    return [(fields.text(row, title, f"{name} title", blank=True), value) for title, value in pairs]


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
    items = zip(texts, _items(row, values["paragraphs"], "paragraphs"), strict=True)
    marked = (text for text, item in items if isinstance(item, Mapping) and item.get("is_supporting"))
    gold = [*(texts[index] for index in used), *marked]
    record = _with_gold(row, fallback, "paragraphs", texts, gold, {"hops": len(hops)} if hops else {})
    aliases = fields.golds(row, values.get("answer_aliases") or [], "answer_aliases")
    return replace(record, answers=tuple(dict.fromkeys((*record.answers, *aliases))))


def musique_paragraphs(row: Row) -> list[str]:
    """`title\\ntext` of each paragraph of MuSiQue."""
    return _passages(row, fields.get(row, row.values, "paragraphs"), "paragraphs")


# ---- Questions with a fixed context, with documents, or without ----------------------------------------------


_LINK = re.compile(r"""(?:'([^']+)'|"([^"]+)")""")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{8,}={0,2}")


def by_roles(row: Row, fallback: str, taken: Roles | None = None) -> Record:
    """A record of any row with a question and a document, by the names of its columns (`fields.roles`). Short other
    columns become metadata."""
    taken, values = taken or fields.roles(row), row.values
    metadata = {**_short(row, taken), **_metadata(row)}
    name = fields.identity(row, fallback)
    problem = Problem.asking(name, fields.questions(row, taken, metadata))
    if values.get("sessions") is not None and taken.document != "sessions":
        raise DataError(f"{row.where}: has both {taken.document} and sessions; remove one of them")
    content = _document(row, taken.document, metadata) if values.get(taken.document) is not None else {}
    memory = values.get("memory")
    return Record(
        id=name,
        question=problem.question,
        answers=problem.answers,
        questions=problem.questions,
        memory="" if memory is None else fields.text(row, memory, "memory", blank=True),
        **{"metadata": metadata, **content},
    )


def unread(row: Row, taken: Roles) -> list[str]:
    """Names of the columns that `by_roles` doesn't read."""
    read = {taken.question, taken.answers, taken.document, *_OWN, *fields.IDS, *_short(row, taken)}
    return [name for name, value in row.values.items() if name not in read and value is not None]


_OWN = ("questions", "metadata", "memory", "sessions")
_SHORT = 1000
"""Characters of a text that becomes metadata."""


def _short(row: Row, taken: Roles) -> dict[str, Any]:
    used = {taken.question, taken.answers, taken.document, *_OWN, *fields.IDS, "objectives", "passages"}
    kinds = {"num_docs": int, "chunks": int, "evidence": list}
    return {
        key: value
        for key, value in row.values.items()
        if key not in used
        and value is not None
        and type(value) is kinds.get(key, type(value))
        and (not isinstance(value, list | Mapping | str | bytes) or _fits(key, value))
    }


def _fits(key: str, value: Any) -> bool:
    if isinstance(value, str | bytes):
        return len(value) <= _SHORT
    return key == "evidence" and all(isinstance(text, str) for text in value)


def _document(row: Row, column: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`Record` fields of a document: a text, texts, passages, [title, sentences] pairs, or turns of a conversation."""
    value = row.values[column]
    if isinstance(value, str):
        return {"context": fields.text(row, value, column, blank=True)}
    items = _items(row, value, column)
    first = next(filter(None, items), None)
    if fields.turn_of(first):
        items = [{"date": "", "turns": items}]
    elif isinstance(first, list) and fields.turn_of(first[0]):
        items = [{"date": "", "turns": turns} for turns in items]
    if column == "sessions" or (isinstance(items[0], Mapping) and "turns" in items[0]):
        context, about = sessions_context(
            row, items, metadata.get("evidence_sessions"), (column, ".turns", "metadata.evidence_sessions")
        )
        return {"context": context, "metadata": {**metadata, **about}}
    texts = _passages(row, items, column)
    paragraphs = tuple(dict.fromkeys(text for text in texts if text.strip()))
    evidence = [text for text in metadata.get("evidence") or () if isinstance(text, str)]
    if not all(any(piece in text for text in paragraphs) for piece in evidence):  # across passages, or not at all
        return {"context": document_block(paragraphs), "metadata": {**metadata, "num_docs": len(paragraphs)}}
    marked = [
        text for text, item in zip(texts, items, strict=True) if isinstance(item, Mapping) and item.get("is_supporting")
    ]
    needed = [text for text in paragraphs if text in marked or any(piece in text for piece in evidence)]
    return {"paragraphs": paragraphs, "gold": tuple(needed)}


def _items(row: Row, value: Any, column: str) -> list[Any]:
    """`value` as a nonempty list; an object of lists (the hub's) as the objects that it lists."""
    if isinstance(value, Mapping):
        lists = {key: listed for key, listed in value.items() if isinstance(listed, list)}
        if not lists or isinstance(value.get("title"), str):
            return [value]
        if len(set(map(len, lists.values()))) > 1:
            raise DataError(f"{row.where}: {column}: {' and '.join(map(str, lists))} must be lists of equal length")
        value = [dict(zip(lists, each, strict=True)) for each in zip(*lists.values(), strict=True)]
    if not isinstance(value, list) or not value:
        raise DataError(f"{row.where}: {column} must be a text or a nonempty list of texts, is {value!r:.60}")
    return value


_TEXTS = (
    *("text", "contents", "content", "paragraph_text", "passage_text", "passage", "paragraph", "page_content"),
    *("body", "snippet", "chunk", "sentences"),
)
"""Keys of a passage's text; the first one counts."""


def _passages(row: Row, value: Any, column: str) -> list[str]:
    texts = [_passage(row, item, f"{column}[{at}]") for at, item in enumerate(_items(row, value, column))]
    if not any(text.strip() for text in texts):
        raise DataError(f"{row.where}: {column} has no text; remove the row or fill it in")
    return texts


def _passage(row: Row, item: Any, name: str) -> str:
    """Title, if any, and text of a passage: a text, an object, a [title, sentences] pair or a list of sentences."""
    title, body = "", item
    if isinstance(item, Mapping):
        key = next((key for key in _TEXTS if item.get(key) is not None), "text")
        title, body, name = item.get("title") or "", fields.get(row, item, key, name), f"{name}.{key}"
    elif isinstance(item, list) and len(item) == 2:
        title, body = item
    if isinstance(body, list) and all(isinstance(sentence, str) for sentence in body):
        body = _space(body[1:]).join(body)
    body = fields.text(row, body, name, blank=True)
    return f"{fields.text(row, title, f'{name} title')}\n{body}" if title else body


def flashrag(row: Row, fallback: str) -> Record:
    """A record with the paragraphs in the metadata of HotpotQA and 2WikiMultiHopQA; the other sets have none."""
    metadata = _metadata(row)
    if "context" not in metadata:
        return by_roles(row, fallback)
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
    metadata = {"wiki_links": listed or []} | ({"reasoning_types": types} if types else {})
    read = {key: row.values[key] for key in ("Prompt", "Answer")}
    return by_roles(replace(row, values={**ids(row), **read, "metadata": metadata}), fallback)


def browsecomp_plus(row: Row, fallback: str) -> Record:
    """A record whose gold is the evidence documents, which include the file's gold documents."""
    query = fields.text(row, fields.get(row, row.values, "query"), "query")
    if _BASE64.fullmatch(query):
        raise DataError(
            f"{row.where}: query={query!r:.30} is encrypted; decrypt the file with the script of BrowseComp-Plus and "
            "read the result"
        )
    keys = [key for key in ("evidence_docs", "gold_docs", "negative_docs") if row.values.get(key)]
    documents = {key: _passages(row, row.values[key], key) for key in keys}
    needed = [*documents.get("evidence_docs", ()), *documents.get("gold_docs", ())]
    values = {**ids(row), "question": query, "answer": row.values["answer"]}
    if not documents:
        return by_roles(replace(row, values=values), fallback)
    return _with_gold(
        replace(row, values=values), fallback, "context", [*needed, *documents.get("negative_docs", ())], needed, {}
    )


def texts(row: Row, fallback: str) -> Record:
    """A record whose gold is its documents; `data.corpus` may add the folder's other files."""
    named = row.values["document"]
    names = [fields.text(row, name, "document") for name in (named if isinstance(named, list) else [named])]
    read = tuple(dict.fromkeys(paragraph_of(row.path.parent, name, row.where) for name in names))
    if not read:
        raise DataError(f"{row.where}: document is empty; name a text file next to {row.path.name}")
    values = {**row.values, "answer": row.values["answers"]}
    return _with_gold(replace(row, values=values), fallback, "document", read, read, {})


def ids(row: Row) -> dict[str, Any]:
    """The columns of a row's id."""
    return {key: row.values[key] for key in fields.IDS if key in row.values}


def _metadata(row: Row) -> Mapping[str, Any]:
    metadata = row.values.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise DataError(f"{row.where}: metadata must be an object, is {metadata!r:.60}")
    return metadata
