"""Files of a user's own as one document."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from palimpsest.data.files.text_files import html_text, read_files, text_of
from palimpsest.errors import DataError


def test_one_file_is_its_own_text_and_several_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffÄ one.\n".encode())
    (tmp_path / "b.py").write_text("two = 2")
    assert read_files([tmp_path / "a.txt"]).text == "Ä one.\n"
    document = read_files([tmp_path / "b.py", tmp_path / "a.txt"])
    assert document.text == f"{tmp_path}/b.py\ntwo = 2\n\n{tmp_path}/a.txt\nÄ one.\n"
    for part, text in zip(document.parts, ["two = 2", "Ä one.\n"], strict=True):
        assert document.text[part.start : part.end] == text
        assert document.locate(part.start, part.end) == (part.file, 0, len(text))
        assert document.locate(part.start - 2, part.start) is None, "the line of its name is in no file"


def test_a_folder_is_read_by_name_and_its_hidden_files_are_not(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "sub/c.html", ".hidden/d.txt", ".e.txt", "picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"<p>{name}</p>" if name.endswith("html") else name)
    document = read_files([tmp_path])
    assert [Path(part.file).name for part in document.parts] == ["a.txt", "b.md", "c.html"]
    assert document.skipped == (str(tmp_path / "picture.png"),)


def test_html_is_what_a_reader_sees() -> None:
    page = (
        "<!doctype html><html><head><title>T</title><style>p{}</style></head><body><h1>Head</h1><p>One <b>two</b>&nbsp;"
        "&lt;3<br>line</p><script>if (a</b) x('<p>no</p>')</script><table><tr><td>a<td>b</table>"
        "<svg><text>no</text></svg><!-- no -->end"
    )
    assert html_text(page) == "T\nHead\nOne two <3\nline\na\nb\nend"


@pytest.mark.parametrize(
    "page",
    [
        "<svg>" * 300_000 + "</b>" * 300_000,
        "<svg>" * 200_000 + "<math></math>" * 100_000,
        "<a" * 1_000_000,
        "<!--" * 500_000,
        "</" * 1_000_000,
        "<" * 2_000_000,
        "<script>" * 300_000,
        "<a x='" * 300_000,
        """<a b="'><a b='">""" * 200_000,
        "&" * 2_000_000,
        "<p>x" * 500_000,
    ],
    ids=lambda page: page[:12],
)
def test_html_made_to_be_slow_is_read_to_its_end(page: str) -> None:
    """In about a second each; by Python's own parser, whose time grows with the square, it would be an hour."""
    assert len(html_text(page)) <= len(page)


def test_text_beside_marks_is_kept() -> None:
    assert html_text("a < b <b>and</b> 3<4 <3 <a title='x>y' href=\"<p>\">link</a> <?php no ?> <!doctype html>end") == (
        "a < b and 3<4 <3 link end"
    )
    assert html_text("<p>one<noscript>no<p>no</noscript>two<svg/>three<STYLE>p{}</sTyle>four<script>no") == (
        "one\ntwo\nthree\nfour"
    )


def test_a_pipe_and_a_device_are_refused_and_a_folder_passes_them_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.txt")
    for path in (str(tmp_path / "x.txt"), "/dev/zero", "/dev/null"):
        with pytest.raises(DataError, match="use a file, or -"):
            read_files([path])
    (tmp_path / "a.txt").write_text("text")
    assert read_files([tmp_path]).text == "text"


def test_rows_are_passages_under_their_titles(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"title": "T", "text": "one"}\n\n{"content": "two"}\n"three"\n')
    assert read_files([file]).text == "T\none\n\ntwo\n\nthree"


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"some text")))
    document = read_files(["-"])
    assert (document.text, document.parts[0].file) == ("some text", "standard input")


def pdf(path: Path, text: str) -> Path:
    """A page that says `text`, written by hand: no library is asked to read what it wrote itself."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    data, offsets = b"%PDF-1.4\n", list[int]()
    for number, each in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj" % number + each + b"endobj\n"
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start = len(data)
    data += b"xref\n0 6\n0000000000 65535 f \n" + table
    path.write_bytes(data + b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % start)
    return path


def test_a_pdf_is_the_text_of_its_pages(tmp_path: Path) -> None:
    assert read_files([pdf(tmp_path / "a.pdf", "Anna lives in Rome.")]).text.strip() == "Anna lives in Rome."


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pdf", b"%PDF-1.4\nnothing", "can't be read as PDF"),
        ("a.pdf", b"", "can't be read as PDF"),
        ("a.txt", b"\0\1", "NUL bytes"),
        ("a.odt", b"PK\x03\x04\0", "pandoc --wrap=none -t plain"),
        ("a.rtf", b"{\\rtf1 Ann sells tea.}", "pandoc --wrap=none -t plain"),
        ("a.txt", b"", "has no text"),
        ("a.html", b"<script>x</script>", "has no text"),
        ("a.txt", b"ok\n\xe9", "not UTF-8 at byte 3 (line 2)"),
        ("a.txt", b"\xff\xfea\0", "UTF-16"),
        ("a.jsonl", b'{"a": 1}', "line 1: expected an object with text under text, content"),
        ("a.jsonl", b'"a"\n{', "line 2: not JSON"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name) as caught:
        read_files([tmp_path / name])
    assert said in str(caught.value)


def test_bytes_of_a_name_that_a_file_here_has_are_not_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of the server names its file; what stands under that name here is nobody's affair."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"1\n2\n3\n\xff")
    with pytest.raises(DataError, match=r"not UTF-8 at byte 0 \(line 1\)"):
        text_of(Path("notes.txt"), b"\xe9")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for paths, said in {
        (): "no file; name a file",
        ("-", "-"): "appears twice",
        (f"{tmp_path}/no.txt",): "can't be read",
        (f"{tmp_path}/no.pdf",): "can't be read",
        (f"{tmp_path}/empty",): "has no file of these kinds",
        ("a\0b",): "no such file",
    }.items():
        with pytest.raises(DataError, match=said):
            read_files(paths)
