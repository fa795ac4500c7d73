"""Questions of several files, each once, dealt into disjoint splits: train, dev, test, or other names.

The key (seed, question) determines the order of dealing, so the order of files does not matter. The `rest` split is
filled last: with disjoint gold documents, it takes nothing from the others.

Guaranteed: a question is in one split, once, regardless of case and punctuation, and never if excluded; skipped
questions are counted by reason; with `disjoint_gold` no document is gold in two splits; equal paragraphs of all files
share one text in memory; ids are unique over the files.
Not covered: paraphrases of a question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from palimpsest import files
from palimpsest.app.evaluate.baselines import CLOSED_BOOK
from palimpsest.data.assemble import Corpus
from palimpsest.data.formats.problem_files import ReadOptions, format_of, read_corpus, read_records, unused_id
from palimpsest.data.record import Record
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluation.sample_log import SAMPLES, SUMMARY, read_identity, read_samples
from palimpsest.seeding import derive_seed
from palimpsest.text.word_forms import normal_form

# ---- Splits --------------------------------------------------------------------------------------------------


REST = "rest"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Split:
    """Name and size of a split."""

    name: str
    size: float | None
    """Below 1 a fraction of all questions, from 1 their number; None: the rest."""

    def count(self, total: int) -> int:
        """Maximum of its questions out of `total`."""
        if self.size is None:
            return total
        return round(self.size * total) if self.size < 1 else int(self.size)


ALL = (Split("eval", None),)


def read_splits(text: str) -> tuple[Split, ...]:
    """Splits from a command line. Raises ConfigError.

    >>> read_splits("train=rest,dev=0.1,test=128")
    (Split(name='train', size=None), Split(name='dev', size=0.1), Split(name='test', size=128.0))
    """
    splits = tuple(_read_split(part, text) for part in text.split(","))
    names = [split.name for split in splits]
    if len(set(names)) < len(names) or sum(split.size is None for split in splits) > 1:
        raise ConfigError(f"--split {text}: use each name once, and {REST} at most once")
    return splits


def _read_split(part: str, text: str) -> Split:
    name, _, size = part.strip().partition("=")
    try:
        number = None if size == REST else float(size)
    except ValueError:
        number = 0.0
    valid = number is None or 0 < number < 1 or (number >= 1 and number.is_integer())
    if not _NAME.fullmatch(name) or not valid:
        raise ConfigError(f"--split {text}: expected names with a number, a share or {REST}: train={REST},test=128")
    return Split(name, number)


def question_key(question: str) -> str:
    """Words of a question without case and punctuation, to compare questions.

    >>> question_key("Who wrote  Frankenstein?") == question_key("who wrote frankenstein")
    True
    """
    plain = normal_form("NFKC", question).casefold()
    return " ".join(re.findall(r"\w+", plain)) or plain.strip()


def deal(
    records: Iterable[Record],
    splits: Sequence[Split],
    *,
    seed: int,
    disjoint_gold: bool = False,
    excluded_gold: Iterable[str] = (),
) -> tuple[dict[str, tuple[Record, ...]], int]:
    """Deal records of distinct questions into splits: the records of each, and the number of records without a split,
    whose gold documents are gold in other splits or excluded. Raises DataError if a split gets too few."""
    left = sorted(records, key=lambda record: derive_seed(seed, "split", question_key(record.question)))
    total, taken = len(left), set(excluded_gold) if disjoint_gold else set()
    chosen: dict[str, tuple[Record, ...]] = {}
    for split in sorted(splits, key=lambda split: split.size is None):
        wanted = split.count(total)
        free = [record for record in left if taken.isdisjoint(record.needed)]
        if len(free) < wanted and split.size is not None:
            raise DataError(f"split {split.name}: needs {wanted:,} questions, {len(free):,} remain; lower it")
        chosen[split.name] = tuple(free[:wanted])
        ids = {record.id for record in chosen[split.name]}
        left = [record for record in left if record.id not in ids]
        if disjoint_gold:
            taken.update(text for record in chosen[split.name] for text in record.needed)
    shared = sum(not taken.isdisjoint(record.needed) for record in left) if disjoint_gold else 0
    empty = [split.name for split in splits if not chosen[split.name]]
    if empty:
        raise DataError(f"split {empty[0]}: no question remains; read more files or make the others smaller")
    return {split.name: chosen[split.name] for split in splits}, shared


# ---- Questions of several files, each once -------------------------------------------------------------------


_YES_NO = {"yes", "no"}
_LICENCES = {
    "HotpotQA": "CC BY-SA 4.0 (Yang et al. 2018): what is made of it is under the same licence",
    "2WikiMultiHopQA": "Apache-2.0 (Ho et al. 2020); its paragraphs are Wikipedia's, CC BY-SA",
    "MuSiQue": "CC BY 4.0 (Trivedi et al. 2022)",
}
_TYPES_OF_2WIKI = {"compositional", "inference", "bridge_comparison"}
_CLOSED_BOOK_EVAL = "palimpsest eval --policy closed_book --data FILE --out DIR"
Content = Literal["paragraphs", "rows", "questions"]
"""Parts of a row to read: a question with paragraphs, for contexts; the unchanged row; only the question."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Selection of questions."""

    where: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Allowed values of metadata keys, as text."""
    without_yes_no: bool = False
    gold_documents: int | None = None
    """Required number of gold documents."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The files' columns by our name (`data.columns`)."""

    def reason(self, record: Record) -> str | None:
        """Reason to skip a question; None to use it."""
        for key, values in self.where.items():
            if str(record.metadata.get(key)) not in values:
                return f"another {key}"
        if self.without_yes_no and {gold.casefold().strip() for gold in record.answers} <= _YES_NO:
            return "answered by yes or no"
        if self.gold_documents is not None and len(record.gold) != self.gold_documents:
            return f"not {self.gold_documents} gold documents"
        return None


@dataclass(slots=True)
class Questions:
    """Questions and paragraphs of files."""

    records: list[Record] = field(default_factory=list)
    paragraphs: dict[str, str] = field(default_factory=dict)
    """Every paragraph of the sources and corpora, once."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Skipped questions, by reason."""
    sources: list[dict[str, object]] = field(default_factory=list)
    """Manifest entries of the files."""
    excluded_gold: set[str] = field(default_factory=set)

    @property
    def corpus(self) -> Corpus:
        """Source of distractors."""
        return Corpus.of([self.paragraphs])


def read_questions(
    sources: Sequence[Path],
    *,
    corpora: Sequence[Path] = (),
    exclude: Sequence[Path] = (),
    answered: Sequence[Path] = (),
    filters: Filters | None = None,
    content: Content = "paragraphs",
) -> Questions:
    """The questions of `sources`, without those of `exclude` and those that the evaluations in the folders `answered`
    got right without a document. Raises DataError."""
    questions, ids, filters = Questions(), Counter[str](), filters or Filters()
    reading = ReadOptions(columns=filters.columns)
    excluded = {key for path in exclude for key in _excluded(path, reading, questions)}
    solved = {key for folder in answered for key in _answered(folder, questions)}
    keys = set[str]()
    for path in sources:
        made: Counter[str] = Counter()
        for record in _records(path, reading, questions.paragraphs, content):
            made[_data_set(record)] += 1
            key = question_key(record.question)
            reason = "excluded" if not excluded.isdisjoint(_question_keys(record)) else filters.reason(record)
            reason = reason or ("answered without the document" if key in solved else None)
            if reason := reason or ("asked before" if key in keys else None):
                questions.left_out[reason] += 1
            else:
                keys.add(key)
                questions.records.append(replace(record, id=unused_id(record.id, ids)))
        questions.sources.append(_described(path, "source", reading, questions=made.total(), licences=_licences(made)))
    for path in corpora:
        texts = read_corpus(path).paragraphs
        questions.paragraphs.update((text, text) for text in texts if text not in questions.paragraphs)
        questions.sources.append(_described(path, "corpus", documents=len(texts)))
    if not questions.records:
        why = ", ".join(f"{reason}: {count:,}" for reason, count in questions.left_out.items())
        raise DataError(f"{sources[0]}: no question remains ({why}); remove a filter or read another file")
    return questions


def read_where(texts: Sequence[str]) -> dict[str, frozenset[str]]:
    """Filters from a command line. Raises ConfigError.

    >>> read_where(["type=bridge"])
    {'type': frozenset({'bridge'})}
    """
    pairs = [text.partition("=") for text in texts]
    for key, equals, values in pairs:
        if not key or not equals or not values:
            raise ConfigError(f"--where {key}{equals}{values}: expected KEY=VALUE or KEY=VALUE,VALUE of the metadata")
    return {key: frozenset(values.split(",")) for key, _, values in pairs}


def _records(path: Path, reading: ReadOptions, paragraphs: dict[str, str], content: Content) -> Iterator[Record]:
    for record in read_records(path, reading):
        named = {"source": path.name, **record.metadata}
        if content == "rows":
            yield replace(record, metadata=named)
        elif record.questions or record.metadata.get("objectives"):
            raise DataError(f"{path}: problem {record.id} has several questions; use files with one per problem")
        elif content == "questions":
            yield Record(record.id, record.question, record.answers, metadata=named)
        elif record.paragraphs is None:
            raise DataError(
                f"{path}: problem {record.id} has no paragraphs to build contexts from; read HotpotQA, "
                "2WikiMultiHopQA or MuSiQue, or omit --documents"
            )
        else:
            shared = {text: paragraphs.setdefault(text, text) for text in record.reusable}
            docs, gold = (tuple(shared.get(text, text) for text in texts) for texts in (record.paragraphs, record.gold))
            yield replace(record, paragraphs=docs, gold=gold, metadata=named)


def _question_keys(record: Record) -> Iterator[str]:
    for question in record.problem(None, record.metadata).by_question:
        yield question_key(question.question)
    for objective in record.metadata.get("objectives", ()):
        yield question_key(objective["question"])


def _excluded(path: Path, reading: ReadOptions, questions: Questions) -> Iterator[str]:
    number = 0
    for number, record in enumerate(read_records(path, reading), 1):  # noqa: B007  the manifest records it
        questions.excluded_gold.update(record.gold or record.metadata.get("evidence", ()))
        yield from _question_keys(record)
    questions.sources.append(_described(path, "excluded", reading, questions=number))


def _answered(folder: Path, questions: Questions) -> set[str]:
    if not (folder / SUMMARY).is_file():
        raise DataError(f"--drop-answered {folder}: no finished evaluation; create one with {_CLOSED_BOOK_EVAL}")
    policies = {policy["name"] for policy in read_identity(folder).get("policies", {}).values()}
    agents = policies == {"closed_book"}
    logged, _ = read_samples(folder / SAMPLES)
    samples = [sample for sample in logged if (sample.player == CLOSED_BOOK if sample.baseline else agents)]
    if not samples:
        raise DataError(f"--drop-answered {folder}: has no closed-book episodes; run {_CLOSED_BOOK_EVAL}")
    questions.sources.append(_described(folder / SAMPLES, "answered", questions=len({sample.id for sample in samples})))
    return {question_key(sample.question) for sample in samples if sample.value == 1.0}


def _described(path: Path, role: str, reading: ReadOptions | None = None, **facts: object) -> dict[str, object]:
    kind = {"format": format_of(path, reading).name} if reading else {}
    return {"file": path.name, "role": role, "sha256": files.sha256(path), **kind, **facts}


def _data_set(record: Record) -> str:
    if "hops" in record.metadata:
        return "MuSiQue"
    if record.metadata.get("type") in _TYPES_OF_2WIKI:
        return "2WikiMultiHopQA"
    return "HotpotQA" if record.metadata.get("level") else ""


def _licences(made: Counter[str]) -> list[str]:
    """A line per recognised set; comparison rows of 2Wiki look like no set, but its other rows identify it."""
    lines = [f"{name}: {_LICENCES[name]}" for name in sorted(made) if name]
    return lines or ["not recognised: ask the publisher of the file"]
