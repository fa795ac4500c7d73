"""Single-hop questions on real paragraphs, made by patterns from any corpus of titled paragraphs, such as HotpotQA's.

    Who directed FILM?    When was PERSON born?    When did PERSON die?

The answer and the title stand in one sentence, the row's supporting fact. Rows have HotpotQA's layout: the paragraph of
that sentence and `OTHERS` more, half of the question's kind, none with the answer. `data.documents` makes contexts of
any length of them.

Guaranteed: the same corpus and seed give the same bytes; no title of a held-out question is one of training.
Not covered: a second paragraph with the same fact in other words; patterns for languages other than English.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.data.formats.problem_files import read_corpus, write_rows
from palimpsest.data.set_manifest import write_manifest
from palimpsest.errors import DataError
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.folder_guard import Made, new_folder
from palimpsest.seeding import keyed_random

OTHERS = 3
WORDS = 45  # of a paragraph, whole sentences
CHARACTERS = 220  # of a supporting sentence: longer ones fit no short memory

_WORD = r"(?:[A-Z]\.|[A-Z][\w'’-]+|de|von|van|der|di|la|le|el|al)"
_NAME = rf"({_WORD}(?: {_WORD}){{1,3}})"
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = rf"(\d{{1,2}} {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}})"
_SENTENCE = re.compile(r"(?<=[a-z0-9)\"”]\.) (?=[A-Z\"“])")
KINDS = {
    "director": (
        re.compile(rf"(?:film|movie|series|drama|comedy|documentary|thriller)\b[^.]*? directed by {_NAME}"),
        "Who directed {}?",
    ),
    "born": (re.compile(rf"\([^()–]*?(?:born )?{_DATE}(?: [–-]|\)|,| in)"), "When was {} born?"),
    "died": (re.compile(rf"[–-] ?{_DATE}\)"), "When did {} die?"),
}
"""Pattern of the answer in its sentence, and question, by kind."""


@dataclass(frozen=True, slots=True)
class _Paragraph:
    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


@dataclass(frozen=True, slots=True)
class _Item:
    kind: str
    paragraph: _Paragraph
    sentence: int
    """Number of the supporting sentence."""
    answer: str


def make_wiki_questions(
    corpora: Sequence[str | Path],
    *,
    out: Path,
    held_out: int = 300,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Write train.jsonl, and dev.jsonl with the questions of `held_out` titles.

    `corpora`: HotpotQA, 2WikiMultiHopQA or MuSiQue files, or rows {title, text}. Raises DataError for too few titles.
    """
    with new_folder(out, force=force, progress=progress or Silent()) as folder:
        texts = {text for path in corpora for text in read_corpus(path).paragraphs}
        paragraphs = [found for text in sorted(texts) if (found := _paragraph(text))]
        items = [item for paragraph in paragraphs for item in _items(paragraph)]
        held = _held_out(items, held_out, seed)
        alike = {kind: [item.paragraph for item in items if item.kind == kind] for kind in KINDS}
        made = {}
        for name, split in (("train", False), ("dev", True)):
            rng = keyed_random(seed, "wiki rows", name)
            chosen = [item for item in items if (item.paragraph.title in held) == split]
            rng.shuffle(chosen)
            rows = (_row(f"{name}-{at}", item, alike[item.kind], paragraphs, rng) for at, item in enumerate(chosen))
            made[f"{name}.jsonl"] = write_rows(folder / f"{name}.jsonl", rows)
        sources = [{"file": path.name, "role": "corpus", "sha256": files.sha256(path)} for path in map(Path, corpora)]
        described = {name: {"problems": number} for name, number in made.items()}
        made_by, settings = "palimpsest data wiki", {"held_out": held_out}
        edition = write_manifest(
            folder, made_by=made_by, seed=seed, described=described, settings=settings, sources=sources
        )
    return Made(out, edition, made)


def _held_out(items: Sequence[_Item], count: int, seed: int) -> set[str]:
    titles = sorted({item.paragraph.title for item in items})
    if len(titles) <= count + 2 * OTHERS:
        raise DataError(
            f"{len(titles):,} titles of the corpus give questions, and {count:,} are for evaluation; lower --held-out, "
            "or add paragraphs"
        )
    keyed_random(seed, "wiki titles").shuffle(titles)
    return set(titles[:count])


def _paragraph(text: str) -> _Paragraph | None:
    """The start of a paragraph "title\\nbody" of some sentences; None if it is too short or too long."""
    title, _, body = text.partition("\n")
    body = re.sub(r"(\w)\(", r"\1 (", re.sub(r"\( ", "(", re.sub(r"\s+", " ", body))).strip()
    kept: list[str] = []
    for sentence in _SENTENCE.split(body):
        if kept and len(" ".join([*kept, sentence]).split()) > WORDS:
            break
        kept.append(sentence)
    title = re.sub(r" \([^()]*\)$", "", title.strip())
    return _Paragraph(title, tuple(kept)) if title and 6 <= len(" ".join(kept).split()) <= WORDS + 15 else None


def _items(paragraph: _Paragraph) -> Iterator[_Item]:
    of_film = re.search(r"\bfilm\b", paragraph.text) is not None
    for kind, (pattern, _) in KINDS.items():
        for number, sentence in enumerate(paragraph.sentences):
            found = pattern.search(sentence)
            fits = found and (kind == "director") == of_film and len(sentence) <= CHARACTERS
            if found and fits and paragraph.title in sentence:
                yield _Item(kind, paragraph, number, found[1])
                break


def _row(
    id: str, item: _Item, alike: Sequence[_Paragraph], paragraphs: Sequence[_Paragraph], rng: random.Random
) -> dict[str, Any]:
    """`alike`: paragraphs of the item's kind."""
    others: list[_Paragraph] = []
    while len(others) < OTHERS:
        other = rng.choice(alike if rng.random() < 0.5 else paragraphs)
        if other.title != item.paragraph.title and other not in others and item.answer not in other.text:
            others.append(other)
    others.insert(rng.randrange(OTHERS + 1), item.paragraph)
    return {
        "_id": id,
        "question": KINDS[item.kind][1].format(item.paragraph.title),
        "answer": item.answer,
        "type": item.kind,
        "context": [
            [each.title, [f" {one}" if at else one for at, one in enumerate(each.sentences)]] for each in others
        ],
        "supporting_facts": [[item.paragraph.title, item.sentence]],
    }
