"""Layouts of questions with paragraphs of their own, of which contexts of any length are made.

    hotpotqa       HotpotQA, 2WikiMultiHopQA: official JSON ([[title, [sentence]]]) or hub ({title, sentences})
    musique        MuSiQue: paragraphs with is_supporting, question_decomposition in reasoning order

Guaranteed: what a row calls gold is among its paragraphs, or the row raises MissingGold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.data import fields
from palimpsest.data.assemble import Record
from palimpsest.data.rows import Row
from palimpsest.errors import DataError


def hotpotqa(row: Row, fallback: str) -> Record:
    values = row.values
    titled = titled_paragraphs(row)
    titles = _supporting_titles(row, values.get("supporting_facts"))
    for title in titles:
        if not any(title == own for own, _ in titled):
            raise fields.MissingGold(
                f"{row.where}: supporting title {title!r} is not among its paragraphs; use the distractor setting of "
                "the file, which holds every gold paragraph, or leave such rows out with data.on_missing_gold=skip"
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
        },
    )


def titled_paragraphs(row: Row) -> list[tuple[str, str]]:
    """(title, "title\\nsentences") of each paragraph, from either layout of HotpotQA."""
    pairs = _pairs(row, fields.get(row, row.values, "context"), "context", "sentences")
    result = []
    for title, sentences in pairs:
        title = fields.text(row, title, "context title", blank=True)
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise DataError(f"{row.where}: context: paragraph {title!r} must be a list of sentences")
        body = fields.text(row, "".join(sentences), "context sentences", blank=True)
        result.append((title, f"{title}\n{body}"))
    if not result:
        raise DataError(f"{row.where}: context holds no paragraphs")
    return result


def _supporting_titles(row: Row, facts: Any) -> list[str]:
    if facts is None:
        return []
    pairs = _pairs(row, facts, "supporting_facts", "sent_id")
    return list(dict.fromkeys(fields.text(row, title, "supporting_facts title", blank=True) for title, _ in pairs))


def _pairs(row: Row, value: Any, name: str, second: str) -> list[tuple[Any, Any]]:
    """(title, second) pairs of [[title, x], ...], {title: [...], second: [...]} or [{title, second}, ...]."""
    if isinstance(value, Mapping):
        titles = fields.get(row, value, "title", name)
        others = fields.get(row, value, second, name)
        if not isinstance(titles, list) or not isinstance(others, list) or len(titles) != len(others):
            raise DataError(f"{row.where}: {name}.title and {name}.{second} must be lists of one length")
        return list(zip(titles, others, strict=True))
    if not isinstance(value, list):
        raise DataError(f"{row.where}: {name} must be a list of pairs or an object, is {value!r:.60}")
    pairs = []
    for item in value:
        if isinstance(item, Mapping):
            pairs.append((fields.get(row, item, "title", name), fields.get(row, item, second, name)))
        elif isinstance(item, list) and len(item) == 2:
            pairs.append((item[0], item[1]))
        else:
            raise DataError(f"{row.where}: {name} must hold [title, {second}] pairs, found {item!r:.60}")
    return pairs


def musique(row: Row, fallback: str) -> Record:
    values = row.values
    if values.get("answerable") is False:
        raise DataError(
            f"{row.where}: answerable is false; use the answerable set (musique_ans), which has an answer each"
        )
    texts = musique_paragraphs(row)
    hops = values.get("question_decomposition") or []
    if not isinstance(hops, list):
        raise DataError(f"{row.where}: question_decomposition must be a list of objects, is {hops!r:.60}")
    used = [fields.get(row, hop, "paragraph_support_idx", "question_decomposition") for hop in hops]
    if any(not isinstance(index, int) or not 0 <= index < len(texts) for index in used):
        raise fields.MissingGold(
            f"{row.where}: question_decomposition.paragraph_support_idx {used!r:.60} is not in its paragraphs; leave "
            "such rows out with data.on_missing_gold=skip"
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
    """Title, newline and text of each paragraph of MuSiQue."""
    listed = fields.get(row, row.values, "paragraphs")
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{row.where}: paragraphs must be a list of objects, is {listed!r:.60}")
    return [_musique_paragraph(row, paragraph) for paragraph in listed]


def _musique_paragraph(row: Row, paragraph: Any) -> str:
    title, body = (fields.get(row, paragraph, key, "paragraphs") for key in ("title", "paragraph_text"))
    return f"{fields.text(row, title, 'title', blank=True)}\n{fields.text(row, body, 'paragraph_text', blank=True)}"
