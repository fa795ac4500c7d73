"""Files and folders of text as one document, as passages and as documents of questions."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palimpsest.data.files.rows import read_rows
from palimpsest.data.files.text_files import html_text, read_files, text_of
from palimpsest.data.formats import corpus as search_corpus
from palimpsest.data.formats.problem_files import ReadOptions, read_corpus, read_problems
from palimpsest.data.sources.file_source import FileSource
from palimpsest.errors import DataError
from support.records import one_line_error, save


def names(folder: Path) -> list[str]:
    return [Path(part.file).name for part in read_files([folder]).parts]


def test_one_file_is_its_text_and_several_are_headed_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffÄ one.\n".encode())
    (tmp_path / "b.py").write_text("two = 2")
    assert read_files([tmp_path / "a.txt"]).text == "Ä one.\n"
    document = read_files([tmp_path / "b.py", tmp_path / "a.txt"])
    assert document.text == f"{tmp_path}/b.py\ntwo = 2\n\n{tmp_path}/a.txt\nÄ one.\n"
    for part, text in zip(document.parts, ["two = 2", "Ä one.\n"], strict=True):
        assert document.text[part.start : part.end] == text
        assert document.locate(part.start, part.end) == (part.file, 0, len(text))
        assert document.locate(part.start - 2, part.start) is None, "the heading is in no file"


def test_a_folder_is_read_in_the_order_of_names_without_its_hidden_files(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "sub/c.html", ".hidden/d.txt", ".e.txt", "picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"<p>{name}</p>" if name.endswith("html") else name)
    document = read_files([tmp_path])
    assert [Path(part.file).name for part in document.parts] == ["a.txt", "b.md", "c.html"]
    assert document.skipped == (str(tmp_path / "picture.png"),)


def test_compressed_texts_are_read_as_documents(tmp_path: Path) -> None:
    save(tmp_path / "a.jsonl.gz", b'{"title": "T", "text": "one"}\n')
    save(tmp_path / "b.txt.zst", b"two")
    assert names(tmp_path) == ["a.jsonl.gz", "b.txt.zst"]
    assert read_files([tmp_path / "a.jsonl.gz"]).text == "T\none"


@pytest.mark.parametrize("name", ["a b.docx", "a.epub"])
def test_an_office_document_is_rejected_with_the_command_that_converts_it(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, b"PK\x03\x04\0\0")
    for act in (lambda: read_files([path]), lambda: list(read_rows(path))):
        assert re.search(r"pandoc .*\.txt'?$", one_line_error(DataError, act))


def test_a_foreign_file_in_a_folder_is_rejected_unless_its_name_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    foreign = save(tmp_path / "log.jsonl", {"level": "info"})
    with pytest.raises(DataError, match=r"log\.jsonl, line 1: .* \.log\.jsonl"):
        read_files([tmp_path])
    foreign.rename(tmp_path / ".log.jsonl")
    assert read_files([tmp_path]).text == "text"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            "<!doctype html><html><head><title>T</title><style>p{}</style></head><body><h1>Head</h1><p>One <b>two</b>"
            "&nbsp;&lt;3<br>line</p><script>if (a</b) x('<p>no</p>')</script><table><tr><td>a<td>b</table>"
            "<svg><text>no</text></svg><!-- no -->end",
            "T\nHead\nOne two <3\nline\na\nb\nend",
        ),
        (
            "a < b <b>and</b> 3<4 <3 <a title='x>y' href=\"<p>\">link</a> <?php no ?> <!doctype html>end",
            "a < b and 3<4 <3 link end",
        ),
        (
            "<p>one<noscript>no<p>no</noscript>two<svg/>three<STYLE>p{}</sTyle>four<script>no",
            "one\ntwo\nthree\nfour",
        ),
    ],
)
def test_html_is_its_visible_text(page: str, text: str) -> None:
    assert html_text(page) == text


@pytest.mark.parametrize(
    "page",
    [
        *("<svg>" * 75_000 + "</b>" * 75_000, "<svg>" * 50_000 + "<math></math>" * 25_000, "<a" * 250_000),
        *("<!--" * 125_000, "</" * 250_000, "<" * 500_000, "<script>" * 75_000, "<a x='" * 75_000, "&" * 500_000),
        *("""<a b="'><a b='">""" * 50_000, "<p>x" * 125_000),
    ],
    ids=lambda page: page[:12],
)
def test_html_that_slows_parsers_is_read_to_its_end(page: str) -> None:
    """Less than a second each; a parser of quadratic time would take many minutes."""
    assert len(html_text(page)) <= len(page)


def test_pipes_and_devices_are_rejected_and_skipped_in_folders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.txt")
    for path in (str(tmp_path / "x.txt"), "/dev/zero", "/dev/null"):
        with pytest.raises(DataError, match="use a file, or -"):
            read_files([path])
    (tmp_path / "a.txt").write_text("text")
    assert read_files([tmp_path]).text == "text"


def test_rows_are_passages_under_their_titles(tmp_path: Path) -> None:
    file = save(tmp_path / "a.jsonl", '{"title": "T", "text": "one"}\n\n{"content": "two"}\n"three"\n')
    assert read_files([file]).text == "T\none\n\ntwo\n\nthree"


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"some text")))
    document = read_files(["-"])
    assert (document.text, document.parts[0].file) == ("some text", "standard input")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pdf", b"%PDF-1.4\nnothing", "can't be read as PDF"),
        ("a.pdf", b"", "can't be read as PDF"),
        ("a.txt", b"\0\1", "NUL bytes"),
        ("a.odt", b"PK\x03\x04\0", "pandoc --wrap=none -t plain"),
        ("a.rtf", b"{\\rtf1 Ann sells tea.}", "pandoc --wrap=none -t plain"),
        ("a.txt", b"{\\rtf1 Ann sells tea.}", "RTF, not plain text"),
        ("a.txt", b"", "has no text"),
        ("a.html", b"<script>x</script>", "has no text"),
        ("a.txt", b"ok\n\xe9", "not UTF-8 at byte 3 (line 2)"),
        ("a.txt", b"\xff\xfea\0", "UTF-16"),
        ("a.jsonl", b'{"a": 1}', "line 1: expected an object with text under text, content"),
        ("a.jsonl", b'"a"\n{', "line 2: not JSON"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
    ],
)
def test_unreadable_content_is_rejected_with_the_name(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    message = one_line_error(DataError, read_files, [save(tmp_path / name, content)])
    assert name in message
    assert reason in message


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ((), "no file; name a file"),
        (("-", "-"), "appears twice"),
        (("{}/no.txt",), "can't be read"),
        (("{}/no.pdf",), "can't be read"),
        (("{}",), "has no file of these kinds"),
        (("a\0b",), "no such file"),
    ],
)
def test_missing_files_are_rejected(tmp_path: Path, paths: tuple[str, ...], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_files([path.format(tmp_path) for path in paths])


def test_bytes_are_not_replaced_by_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"1\n2\n3\n\xff")
    with pytest.raises(DataError, match=r"not UTF-8 at byte 0 \(line 1\)"):
        text_of(Path("notes.txt"), b"\xe9")


# ---- a folder with questions on its texts --------------------------------------------------------------------


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Three texts, one in a subfolder, and a question on two of them."""
    folder = tmp_path / "book"
    (folder / "part").mkdir(parents=True)
    for name, text in {"b.txt": "Ann ran.", "a.md": "Bob sat.\n", "part/c.txt": "Cid slept."}.items():
        (folder / name).write_text(text)
    (folder / "figure.png").write_bytes(b"\x89PNG\0")
    save(folder / "questions.jsonl", {"question": "Who ran?", "answers": ["Ann"], "document": ["b.txt", "part/c.txt"]})
    return folder


def test_questions_are_about_the_texts_they_name(book: Path) -> None:
    for path in (book, book / "questions.jsonl"):
        (problem,) = read_problems(path)
        assert problem.context == "Document 1:\nb\nAnn ran.\n\nDocument 2:\nc\nCid slept."
        assert problem.metadata["evidence"] == ("b\nAnn ran.", "c\nCid slept.")


def test_every_text_is_a_passage_in_the_order_of_names(book: Path) -> None:
    (book / "part" / "again").symlink_to(book)  # links in a circle are not followed
    assert list(read_corpus(book).paragraphs) == ["a\nBob sat.\n", "b\nAnn ran.", "c\nCid slept."]
    assert [passage["id"] for passage in search_corpus.read_corpus(book)] == ["a.md", "b.txt", "part/c.txt"]


def test_the_other_texts_of_the_folder_may_be_distractors(book: Path) -> None:
    source = FileSource.open(book, split="eval", documents=3, reading=ReadOptions(corpus=book))
    (problem,) = source.problems(step=0, count=1)
    assert "Bob sat." in (problem.context or "")
    assert (problem.metadata["num_docs"], len(problem.metadata["evidence"])) == (3, 2)


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/passwd", "out.txt", "loop.txt", "x\0y"])
def test_a_name_that_leads_out_of_the_folder_is_rejected(book: Path, name: str) -> None:
    (book.parent / "secret.txt").write_text("secret")
    (book / "out.txt").symlink_to(book.parent / "secret.txt")
    (book / "loop.txt").symlink_to(book / "loop.txt")
    save(book / "questions.jsonl", {"question": "Who?", "answers": ["Ann"], "document": name})
    with pytest.raises(DataError, match=r"questions\.jsonl line 1: document .*(is outside|no such file in)"):
        list(read_problems(book))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a\0b", "not text, it has NUL bytes"),
        (b"one\ncaf\xe9", r"not UTF-8 at byte 7 \(line 2\); convert it"),
    ],
)
def test_a_binary_or_wrongly_encoded_text_is_rejected_with_its_name(book: Path, content: bytes, reason: str) -> None:
    (book / "b.txt").write_bytes(content)
    for act in (lambda: read_corpus(book), lambda: list(read_problems(book))):
        assert re.search(rf"b\.txt: {reason}", one_line_error(DataError, act))


def test_a_folder_needs_texts_and_one_file_of_questions(book: Path, tmp_path: Path) -> None:
    def rejected() -> str:
        return one_line_error(DataError, lambda: list[Any](read_problems(book)))

    save(book / "questions.csv", "question,answers,document\n")
    assert "has questions.jsonl and questions.csv; remove all but one" in rejected()
    (book / "questions.csv").unlink()
    (book / "questions.jsonl").unlink()
    assert "a folder without questions; add questions.jsonl" in rejected()
    (tmp_path / "binaries").mkdir()
    save(tmp_path / "binaries" / "a.bin", b"\0\1")
    with pytest.raises(DataError, match=r"has no text files \(\.txt, \.md\)"):
        read_corpus(tmp_path / "binaries")


def test_questions_on_one_text_share_one_copy(book: Path) -> None:
    rows = ({"question": f"Q{i}?", "answers": ["A"], "document": "b.txt"} for i in range(3))
    save(book / "questions.jsonl", *rows)
    assert len({id(record.gold[0]) for record in FileSource.open(book, split="train").records}) == 1
