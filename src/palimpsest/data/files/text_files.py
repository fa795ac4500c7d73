"""Text files: a user's files as one document, folders of plain text, errors for other encodings.

    .html .htm .xhtml       the text a reader sees, a line a block
    .jsonl                  a row a passage: its `text` (`content`, `body`, `passage`), under its `title` if it has one
    .pdf                    the text of its pages (needs the extra `pdf`)
    anything else           as it is, if it is UTF-8 text: .txt, .md, source code
    a folder                its files of these endings and .txt, .md, by name, those of folders in it too
    -                       standard input, as plain text

Each of several files begins with a line of its name, and `TextDocument.locate` maps a piece to its file and position.
Positions count characters of the file (without a byte-order mark); of HTML, JSON lines and PDF those of the extracted
text. A folder may also be a corpus, or hold documents with questions about them:

    book/                    as data.corpus, or the corpus of a search index: every text file is a passage
      frankenstein.txt
      rome.md
      questions.jsonl        as data.train_files: {"question": ..., "answers": [...], "document": "frankenstein.txt"}

Guaranteed: the same files give the same document, files of a folder in the order of their names; an unreadable file is
named in the error, never left out silently; no address is followed, no code of a file is run, no link to a folder is
followed; a name in `document` that leads out of the folder is rejected; a PDF takes bounded time and memory
(data/files/pdf_pages.py), other files time that grows with their length alone.
Not covered: a text larger than memory; pictures and scanned pages; PDF and HTML as passages of a corpus.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from palimpsest.config.install_hints import install_line
from palimpsest.data.files.pdf_pages import pages
from palimpsest.errors import DataError, nearest
from palimpsest.files import NoRegularFile, read_regular

# ---- Errors for files that are not UTF-8 ---------------------------------------------------------------------


_READ = 1 << 20  # bytes
WIDE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte-order marks of encodings that aren't read."""


def not_utf8(path: Path) -> NoReturn:
    """Raise DataError with the line and byte where the file stops being UTF-8, and what converts it."""
    line, start, decoder = 1, 0, codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        while True:
            data = file.read(_READ)
            waiting = len(decoder.getstate()[0])  # bytes of a character cut in two
            try:
                line += decoder.decode(data, final=not data).count("\n")
            except UnicodeDecodeError as error:
                at = start - waiting + error.start
                line += error.object[: error.start].count(b"\n")
                raise convert(path, f"not UTF-8 at byte {at} (line {line})", "WINDOWS-1252") from None
            if not data:
                raise convert(path, "not UTF-8", "WINDOWS-1252")
            start += len(data)


def convert(path: Path, what: str, encoding: str) -> DataError:
    """`what` is wrong with a file, and the command that mends it if it is in `encoding`."""
    return DataError(f"{path}: {what}; convert it, e.g. from {encoding}: iconv -f {encoding} -t UTF-8 {path} > new")


# ---- A user's files as one document --------------------------------------------------------------------------


STDIN = "-"
_PLAIN = (".txt", ".md", ".markdown", ".rst")
_TEXT_KEYS = ("text", "content", "body", "passage")
_BETWEEN = "\n\n"  # two files


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """One file's text in a document."""

    file: str
    """As it was named; of a folder, with the name in it."""
    start: int
    """Of its text in the document, in characters."""
    end: int


@dataclass(frozen=True, slots=True)
class TextDocument:
    """One text, and which file each part of it is from."""

    text: str
    parts: tuple[DocumentPart, ...]

    def locate(self, start: int, end: int) -> tuple[str, int, int] | None:
        """(file, [start, end) in the text of that file) of a piece of the document; None where no one file has it.

        >>> document = TextDocument("a\\nOne.\\n\\nb\\nTwo.", (DocumentPart("a", 2, 6), DocumentPart("b", 10, 14)))
        >>> document.locate(10, 13), document.locate(4, 12)
        (('b', 0, 3), None)
        """
        part = self.parts[bisect_right([part.start for part in self.parts], start) - 1]
        inside = part.start <= start <= end <= part.end
        return (part.file, start - part.start, end - part.start) if inside else None


def read_files(paths: Sequence[str | os.PathLike[str]]) -> TextDocument:
    """The document of files, folders and `-`, in the order given. Raises DataError."""
    named = [os.fspath(path) for path in paths]
    if not named:
        raise DataError("no file was given; name one, a folder, or - for standard input")
    if named.count(STDIN) > 1:
        raise DataError("standard input (-) was named twice; it can be read once")
    return document_of([(name, text) for path in named for name, text in _texts(path)])


def document_of(texts: Sequence[tuple[str, str]]) -> TextDocument:
    """The document of (name, text) of one file or several. Raises DataError for one without text.

    >>> document_of([("a", "One."), ("b", "Two.")]).text
    'a\\nOne.\\n\\nb\\nTwo.'
    """
    for name, text in texts:
        if not text.strip():
            raise DataError(f"{name}: holds no text{_SCANNED if name.endswith('.pdf') else ''}")
    return _joined(texts)


_SCANNED = "; a scan has to be read by a text recogniser (ocrmypdf, say) first"


def _joined(texts: Sequence[tuple[str, str]]) -> TextDocument:
    if len(texts) == 1:
        name, text = texts[0]
        return TextDocument(text, (DocumentPart(name, 0, len(text)),))
    pieces, document_parts, length = list[str](), list[DocumentPart](), 0
    for name, text in texts:
        head = f"{_BETWEEN if pieces else ''}{name}\n"
        pieces += head, text
        length += len(head)
        document_parts.append(DocumentPart(name, length, length + len(text)))
        length += len(text)
    return TextDocument("".join(pieces), tuple(document_parts))


def _texts(path: str) -> Iterator[tuple[str, str]]:
    """(name, text) of a file, or of each in a folder."""
    if path == STDIN:
        yield "standard input", _decoded(Path("standard input"), sys.stdin.buffer.read())
    elif os.path.isdir(path):
        yield from _folder(path)
    else:
        yield path, _text(Path(path))


def _folder(path: str) -> Iterator[tuple[str, str]]:
    suffixes, names = (*_READERS, *_PLAIN), list[str]()
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]  # the walk doesn't enter the others
        shown = (os.path.join(folder, name) for name in files if not name.startswith("."))
        names += [name for name in shown if name.lower().endswith(suffixes) and os.path.isfile(name)]
    if not names:
        raise DataError(f"{path}: holds no file of these kinds: {', '.join(suffixes)}; name the files themselves")
    for name in sorted(names):
        yield name, _text(Path(name))


def _bytes(path: Path) -> bytes:
    """Of a file, and of a shell's own pipe (/dev/fd/63); another pipe may have nobody who ever writes to it, a device
    no end. Raises OSError, ValueError."""
    shells = str(path).startswith(("/dev/", "/proc/")) and path.is_fifo()
    return path.read_bytes() if shells else read_regular(path)


def _text(path: Path) -> str:
    try:
        return text_of(path, _bytes(path))
    except NoRegularFile:
        raise DataError(f"{path}: a pipe or a device; give a file, or - and < for standard input") from None
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None
    except ValueError:  # a NUL byte in its name
        raise DataError(f"{str(path)!r}: no such file") from None


def text_of(path: Path, data: bytes) -> str:
    """The text of a file that holds `data`, read as the ending of its name says. Raises DataError."""
    return _READERS.get(path.suffix.lower(), _decoded)(path, data)


def _decoded(path: Path, data: bytes) -> str:
    if encoding := WIDE.get(data[:2]):
        raise convert(path, f"{encoding}, not UTF-8", encoding)
    if b"\0" in data:
        raise DataError(f"{path}: not text, it holds NUL bytes; convert it to text first")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise convert(path, f"not UTF-8 at byte {error.start} (line {line})", "WINDOWS-1252") from None


# --- HTML -------------------------------------------------------------------------------------------------------------


_UNSEEN = frozenset({"noscript", "template", "svg", "math", "iframe", "object"})
_INLINE = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "dfn", "em", "font", "i", "kbd", "label", "mark", "q", "s"}
    | {"samp", "small", "span", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr"}
)


_RAW = {tag: re.compile(f"</{tag}", re.IGNORECASE) for tag in ("script", "style")}
"""Elements whose content is no markup, and what ends them."""
_TAG = re.compile(r"</?([a-zA-Z][^\s/>]{0,31})")
_IN_TAG = re.compile(r"""["'>]""")


def html_text(page: str) -> str:
    """What a reader of a page sees, a line a block; in time that grows with its length alone, whatever it holds.

    Python's own parser takes time that grows with its square for a page made to that end (CVE-2025-6069).

    >>> html_text("<title>T</title><script>x()</script><p>One <b>two</b>&amp;</p><ul><li>three")
    'T\\nOne two&\\nthree'
    """
    pieces, unseen, position = list[str](), list[str](), 0
    while (start := page.find("<", position)) >= 0:
        if not unseen:
            pieces.append(unescape(page[position:start]))
        tag = _TAG.match(page, start)
        if tag is None and page[start + 1 : start + 2] not in ("!", "?", "/"):
            pieces.append("" if unseen else "<")
            position = start + 1
            continue
        position = _end_of_tag(page, start)
        if tag is None:
            continue
        name = tag[1].lower()
        if page[start + 1] != "/":
            position = _content(page, start, position, name, unseen)
        elif name in unseen[-1:]:
            unseen.pop()
        if name not in _INLINE:
            pieces.append("\n")
    if not unseen:
        pieces.append(unescape(page[position:]))
    lines = (" ".join(line.split()) for line in "".join(pieces).split("\n"))
    return "\n".join(line for line in lines if line)


def _end_of_tag(page: str, start: int) -> int:
    """Where what begins with `<` at `start` is over: after its `>`, those in quotes aside; a comment's after `-->`."""
    if page.startswith("<!--", start):
        end = page.find("-->", start + 4)
        return len(page) if end < 0 else end + 3
    position = start + 1
    while match := _IN_TAG.search(page, position):
        position = match.end()
        if match[0] == ">":
            return position
        closing = page.find(match[0], position)
        position = len(page) if closing < 0 else closing + 1
    return len(page)


def _content(page: str, start: int, position: int, name: str, unseen: list[str]) -> int:
    """Where to read on after the start tag of `name`: what no reader sees is opened, or passed over."""
    if name in _RAW:
        end = _RAW[name].search(page, position)
        return len(page) if end is None else end.start()
    if name in _UNSEEN and page[position - 2 : position] != "/>":
        unseen.append(name)
    return position


# --- JSON lines, PDF --------------------------------------------------------------------------------------------------


def _rows(path: Path, data: bytes) -> str:
    passages = list[str]()
    for number, line in enumerate(_decoded(path, data).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"{path}, line {number}: not JSON; call it .txt to have it read as text") from None
        text = next((row[key] for key in _TEXT_KEYS if key in row), None) if isinstance(row, dict) else row
        if not isinstance(text, str):
            raise DataError(f"{path}, line {number}: expected an object with one of {', '.join(_TEXT_KEYS)}, a text")
        title = row.get("title") if isinstance(row, dict) else None
        passages.append(f"{title}\n{text}" if isinstance(title, str) and title else text)
    return "\n\n".join(passages)


def _pages(path: Path, data: bytes) -> str:
    if find_spec("pypdf") is None:
        raise DataError(f"{path}: PDF needs pypdf: {install_line('pdf')}")
    return pages(str(path), data)


def _page(path: Path, data: bytes) -> str:
    return html_text(_decoded(path, data))


_READERS: dict[str, Callable[[Path, bytes], str]] = {
    ".html": _page,
    ".htm": _page,
    ".xhtml": _page,
    ".jsonl": _rows,
    ".pdf": _pages,
}


# ---- Folders of plain text -----------------------------------------------------------------------------------


TEXTS = (".txt", ".md")
QUESTIONS = tuple(f"questions{ending}" for ending in (".jsonl", ".json", ".csv", ".tsv", ".parquet"))


def questions_file(folder: Path) -> Path:
    """The file in `folder` that holds the questions. Raises DataError if there is none, or more than one."""
    matches = [folder / name for name in QUESTIONS if (folder / name).is_file()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise DataError(f"{folder}: holds {' and '.join(path.name for path in matches)}; leave one of them")
    raise DataError(
        f"{folder}: a folder without questions; put questions.jsonl into it (question, answers and document, the name "
        "of a text file there), name a data file in it, or name the folder as data.corpus"
    )


def text_rows(folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """(id, title and text of a file, its name) of every text file of a folder and the folders in it."""
    names = [
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, files in os.walk(folder)
        for name in files
        if name.endswith(TEXTS)
    ]
    if not names:
        raise DataError(f"{folder}: holds no text files ({', '.join(TEXTS)})")
    for name in sorted(names):
        path = folder / name
        yield {"id": Path(name).as_posix(), "title": path.stem, "text": _body(path)}, f"file {name}"


def paragraph_of(folder: Path, name: str, where: str) -> str:
    """Title and text of a text file in `folder`; `where` is the place that names it. Raises DataError."""
    folder = folder.resolve()
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder)
    except (OSError, RuntimeError, ValueError):  # a loop of links; a NUL byte
        inside = False
    if not inside:
        raise DataError(f"{where}: document {name!r:.60} leads out of {folder}; name a file in it")
    if not path.is_file():
        hint = nearest(name, (file.name for file in folder.iterdir()))
        raise DataError(
            f"{where}: document {name!r:.60}: no such file in {folder}{hint}; a column that holds the "
            "text itself is named with --map context=document"
        )
    stat = path.stat()
    return _paragraph(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _paragraph(path: Path, size: int, changed_ns: int) -> str:
    """Kept, so that many questions on one text hold it once."""
    return f"{path.stem}\n{_body(path)}"


def _body(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None
    if b"\0" in data:
        raise DataError(f"{path}: not text, it holds NUL bytes; take it out of the folder, or convert it to UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        not_utf8(path)
