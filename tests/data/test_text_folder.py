"""Folders of plain text, as documents of questions and as a corpus."""

import json
from pathlib import Path

import pytest

from palimpsest.data.formats import corpus as search_corpus
from palimpsest.data.formats.problem_files import ReadOptions, read_corpus, read_problems
from palimpsest.data.sources.file_source import FileSource
from palimpsest.errors import DataError


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Three texts, one of them in a folder of its own, and a question on two of them."""
    folder = tmp_path / "book"
    (folder / "part").mkdir(parents=True)
    (folder / "b.txt").write_text("Ann ran.")
    (folder / "a.md").write_text("Bob sat.\n")
    (folder / "part" / "c.txt").write_text("Cid slept.")
    (folder / "figure.png").write_bytes(b"\x89PNG\0")
    ask(folder, {"question": "Who ran?", "answers": ["Ann"], "document": ["b.txt", "part/c.txt"]})
    return folder


def ask(folder: Path, *rows: dict[str, object]) -> None:
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_questions_are_about_the_texts_they_name(book: Path) -> None:
    for path in (book, book / "questions.jsonl"):
        (problem,) = read_problems(path)
        assert problem.context == "Document 1:\nb\nAnn ran.\n\nDocument 2:\nc\nCid slept."
        assert problem.metadata["evidence"] == ("b\nAnn ran.", "c\nCid slept.")


def test_every_text_is_a_passage_in_the_order_of_names(book: Path) -> None:
    assert list(read_corpus(book).paragraphs) == ["a\nBob sat.\n", "b\nAnn ran.", "c\nCid slept."]
    assert [passage["id"] for passage in search_corpus.read_corpus(book)] == ["a.md", "b.txt", "part/c.txt"]


def test_the_other_texts_of_the_folder_may_be_distractors(book: Path) -> None:
    source = FileSource.open(book, split="eval", documents=3, reading=ReadOptions(corpus=book))
    (problem,) = source.problems(step=0, count=1)
    assert "Bob sat." in (problem.context or "")
    assert (problem.metadata["num_docs"], len(problem.metadata["evidence"])) == (3, 2)


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/passwd", "out.txt", "loop.txt", "x\0y"])
def test_a_name_that_leads_out_of_the_folder_is_refused(book: Path, name: str) -> None:
    (book.parent / "secret.txt").write_text("secret")
    (book / "out.txt").symlink_to(book.parent / "secret.txt")
    (book / "loop.txt").symlink_to(book / "loop.txt")
    ask(book, {"question": "Who?", "answers": ["Ann"], "document": name})
    with pytest.raises(DataError, match=r"questions\.jsonl line 1: document .*(is outside|no such file in)"):
        list(read_problems(book))


def test_links_that_go_round_in_circles_are_not_followed(book: Path) -> None:
    (book / "part" / "again").symlink_to(book)
    assert len(read_corpus(book).paragraphs) == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a\0b", "not text, it has NUL bytes"),
        (b"one\ncaf\xe9", r"not UTF-8 at byte 7 \(line 2\); convert it"),
    ],
)
def test_a_file_that_is_no_text_is_named(book: Path, content: bytes, says: str) -> None:
    (book / "b.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"b\.txt: {says}"):
        read_corpus(book)
    with pytest.raises(DataError, match=rf"b\.txt: {says}"):
        list(read_problems(book))


def test_a_folder_without_texts_or_without_questions_says_what_is_wanted(book: Path) -> None:
    (book / "questions.csv").write_text("question,answers,document\n")
    with pytest.raises(DataError, match=r"has questions\.jsonl and questions\.csv; remove all but one"):
        list(read_problems(book))
    for name in ("questions.csv", "questions.jsonl"):
        (book / name).unlink()
    with pytest.raises(DataError, match=r"a folder without questions; add questions\.jsonl"):
        list(read_problems(book))
    binaries = book.parent / "binaries"
    binaries.mkdir()
    (binaries / "a.bin").write_bytes(b"\0\1")
    with pytest.raises(DataError, match=r"has no text files \(\.txt, \.md\)"):
        read_corpus(binaries)


def test_many_questions_on_one_text_hold_it_once(book: Path) -> None:
    ask(book, *({"question": f"Q{i}?", "answers": ["A"], "document": "b.txt"} for i in range(3)))
    source = FileSource.open(book, split="train")
    assert len({id(record.gold[0]) for record in source.records}) == 1
