"""Text files: a user's files as one document, folders of plain text, errors for other encodings.

docs/how-to/ask.md lists the kinds of files; .gz and .zst are each of these, compressed. `TextDocument.locate` maps a
piece to its file and position in characters, without a byte-order mark. A folder may also be a corpus, or contain
documents with questions about them (docs/reference/data-formats.md).

Guaranteed: the same files give the same document; an unreadable file is an error with its name, never skipped;
`TextDocument.skipped` names a folder's files with other endings; nothing
follows an address or a link to a folder, or runs a file's code; a name in `document` outside the folder is an error; a
PDF needs bounded time and memory (data/files/pdf_pages.py), other files time linear in their length; a compressed file
(of a parquet file: a row group) that unpacks to more than `UNPACKED` bytes and 100 times its size, or is cut short or
damaged, is an error.
Not covered: a text larger than memory; pictures and scanned pages; PDF and HTML as passages of a corpus.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import unescape
from importlib.util import find_spec
from io import BufferedReader, RawIOBase
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import zstandard

from palimpsest.config.install_hints import install_line
from palimpsest.data.files.pdf_pages import pages
from palimpsest.errors import DataError, nearest, shown_names
from palimpsest.files import NoRegularFile, open_regular

# ---- Compressed files ----------------------------------------------------------------------------------------


UNPACKED = 1 << 28  # bytes
_RATIO = 100
_STEP = 1 << 12  # compressed bytes at a time; the most compressible ones unpack to 128 MiB
_PACKED: dict[bytes, tuple[str, Callable[[], Any]]] = {
    b"\x1f\x8b": ("gunzip -k", lambda: zlib.decompressobj(zlib.MAX_WBITS | 16)),
    b"\x28\xb5\x2f\xfd": ("unzstd", lambda: zstandard.ZstdDecompressor().decompressobj()),
}
"""(command, decompressor) by first bytes."""


def opened(path: Path) -> BufferedReader:
    """Open a regular file; gzip and zstd are decompressed. Raises OSError; reading raises DataError."""
    file = open_regular(path)
    head = file.peek(4)
    packed = next((packed for magic, packed in _PACKED.items() if head.startswith(magic)), None)
    return BufferedReader(_Pieces(_unpacked(path, file, *packed)), _READ) if packed else file


def unpacked_name(path: Path) -> Path:
    """`path` without the ending of a compressed file.

    >>> unpacked_name(Path("data/faq.csv.gz")).as_posix()
    'data/faq.csv'
    """
    return path.with_suffix("") if path.suffix.lower() in (".gz", ".zst") else path


def _unpacked(path: Path, file: BufferedReader, command: str, make: Callable[[], Any]) -> Iterator[bytes]:
    with file:
        decoder, unpacked = make(), 0
        while data := file.read(_STEP):
            while data:
                decoder = make() if decoder.eof else decoder
                try:
                    piece = decoder.decompress(data)
                except (zlib.error, zstandard.ZstdError) as error:
                    raise DataError(f"{path}: damaged, fetch it again ({error})") from None
                data, unpacked = decoder.unused_data, unpacked + len(piece)
                check_unpacked(path, unpacked, f"unpack it ({command} {quote(str(path))}) and name the result")
                yield piece
        if not decoder.eof:
            raise DataError(f"{path}: cut short, fetch it again")


def check_unpacked(path: Path, size: int, fix: str) -> None:
    """Raise DataError if `size` bytes are too many for a compressed file."""
    if size > UNPACKED and size > _RATIO * path.stat().st_size:
        most = f"more than {UNPACKED:,} bytes and {_RATIO} times its size"
        raise DataError(f"{path}: unpacks to {most}; if you trust it, {fix}")


class _Pieces(RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.piece = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.piece:
            if (piece := next(self.pieces, None)) is None:
                return 0
            self.piece = memoryview(piece)
        count = min(len(buffer), len(self.piece))
        buffer[:count], self.piece = self.piece[:count], self.piece[count:]
        return count


# ---- Errors for files that are not UTF-8 ---------------------------------------------------------------------


_READ = 1 << 20  # bytes
_RTF = b"{\\rtf"
WIDE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte-order marks of unsupported encodings."""


def not_utf8(path: Path) -> NoReturn:
    """Raise DataError with the first line and byte that is not UTF-8, and a command to convert the file."""
    line, start, decoder = 1, 0, codecs.getincrementaldecoder("utf-8")()
    with opened(path) as file:
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
    """An error with `what` is wrong with a file, and the command that converts it from `encoding`."""
    return DataError(f"{path}: {what}; convert it, e.g. from {encoding}: iconv -f {encoding} -t UTF-8 {path} > new")


def not_text(path: Path, otherwise: str) -> DataError:
    """An error for a binary file, with the command that converts it, or `otherwise`."""
    if path.suffix.lower() not in (".docx", ".epub", ".odt", ".rtf"):
        return DataError(f"{path}: {otherwise}")
    names = quote(str(path)), quote(str(path.with_suffix(".txt")))
    return DataError(f"{path}: not text; convert it: pandoc --wrap=none -t plain {names[0]} -o {names[1]}")


# ---- A user's files as one document --------------------------------------------------------------------------


STDIN = "-"
_PLAIN = (".txt", ".md", ".markdown", ".rst")
_TEXT_KEYS = ("text", "content", "body", "passage")
_BETWEEN = "\n\n"  # two files


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """One file's text in a document."""

    file: str
    """Name as given; for a folder, with the name inside it."""
    start: int
    """[start, end) of its text in the document, in characters."""
    end: int


@dataclass(frozen=True, slots=True)
class TextDocument:
    """One text, and the file of each part."""

    text: str
    parts: tuple[DocumentPart, ...]
    skipped: tuple[str, ...] = ()
    """Files of folders with other endings, which are not in the text."""

    def locate(self, start: int, end: int) -> tuple[str, int, int] | None:
        """(file, start, end) of a piece of the document, in characters of that file; None if no single file has it.

        >>> document = TextDocument("a\\nOne.\\n\\nb\\nTwo.", (DocumentPart("a", 2, 6), DocumentPart("b", 10, 14)))
        >>> document.locate(10, 13), document.locate(4, 12)
        (('b', 0, 3), None)
        """
        part = self.parts[bisect_right([part.start for part in self.parts], start) - 1]
        inside = part.start <= start <= end <= part.end
        return (part.file, start - part.start, end - part.start) if inside else None


def read_files(paths: Sequence[str | os.PathLike[str]]) -> TextDocument:
    """The document of files, folders and `-`, in this order. Raises DataError."""
    named = [os.fspath(path) for path in paths]
    if not named:
        raise DataError("no file; name a file, a folder, or - for standard input")
    if named.count(STDIN) > 1:
        raise DataError("standard input (-) appears twice; name it once")
    skipped = list[str]()
    document = document_of([(name, text) for path in named for name, text in _texts(path, skipped)])
    return replace(document, skipped=tuple(sorted(skipped)))


def document_of(texts: Sequence[tuple[str, str]]) -> TextDocument:
    """The document of one or several (name, text). Raises DataError for an empty text.

    >>> document_of([("a", "One."), ("b", "Two.")]).text
    'a\\nOne.\\n\\nb\\nTwo.'
    """
    for name, text in texts:
        if not text.strip():
            scanned = "; a scan needs text recognition (e.g. ocrmypdf) first" if name.endswith(".pdf") else ""
            raise DataError(f"{name}: has no text{scanned}")
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


def _texts(path: str, skipped: list[str]) -> Iterator[tuple[str, str]]:
    """(name, text) of a file, or of each file in a folder. Appends to `skipped`."""
    if path == STDIN:
        yield "standard input", _decoded(Path("standard input"), sys.stdin.buffer.read())
    elif os.path.isdir(path):
        yield from _folder(path, skipped)
    elif path.startswith(("http://", "https://")):
        raise DataError(f"{path}: an address; palimpsest reads files: download it and name the file")
    else:
        yield path, _text(Path(path), text_of)


def _folder(path: str, skipped: list[str]) -> Iterator[tuple[str, str]]:
    suffixes, names = (*_READERS, *_PLAIN), list[str]()
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]  # the walk skips hidden ones
        for name in (os.path.join(folder, name) for name in files if not name.startswith(".")):
            taken = unpacked_name(Path(name.lower())).suffix in suffixes and os.path.isfile(name)
            (names if taken else skipped).append(name)
    if not names:
        others = f", not {shown_names(skipped, 3)}" if skipped else ""
        raise DataError(f"{path}: has no file of these kinds: {', '.join(suffixes)}{others}; name the files instead")
    for name in sorted(names):
        yield name, _text(Path(name), text_of)


def _bytes(path: Path) -> bytes:
    """Bytes of a file, or of a shell's pipe (/dev/fd/63). Other pipes may have no writer, devices no end. Raises
    OSError, ValueError."""
    shells = str(path).startswith(("/dev/", "/proc/")) and path.is_fifo()
    if shells:
        return path.read_bytes()
    with opened(path) as file:
        return file.read()


def _text(path: Path, read: Callable[[Path, bytes], str]) -> str:
    try:
        return read(unpacked_name(path), _bytes(path))
    except NoRegularFile:
        raise DataError(f"{path}: a pipe or a device; use a file, or - and < for standard input") from None
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None
    except ValueError:  # a NUL byte in its name
        raise DataError(f"{str(path)!r}: no such file") from None


def text_of(path: Path, data: bytes) -> str:
    """The text of a file with content `data`; the suffix selects the reader. Raises DataError."""
    return _READERS.get(path.suffix.lower(), _decoded)(path, data)


def _decoded(path: Path, data: bytes) -> str:
    if encoding := WIDE.get(data[:2]):
        raise convert(path, f"{encoding}, not UTF-8", encoding)
    if data.startswith(_RTF):
        raise not_text(path, "RTF, not plain text; convert it to text first")
    if b"\0" in data:
        raise not_text(path, "not text, it has NUL bytes; convert it to text first")
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
"""Elements with raw content, and the pattern of their end."""
_TAG = re.compile(r"</?([a-zA-Z][^\s/>]{0,31})")
_IN_TAG = re.compile(r"""["'>]""")


def html_text(page: str) -> str:
    """The visible text of a page, one line per block, in time linear in its length.

    Python's own parser needs quadratic time on crafted pages (CVE-2025-6069).

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
    """End of the tag at `start`: after its first `>` outside quotes, or after a comment's `-->`."""
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
    """Position after the start tag of `name`. Skips raw elements; pushes other invisible ones to `unseen`."""
    if name in _RAW:
        end = _RAW[name].search(page, position)
        return len(page) if end is None else end.start()
    if name in _UNSEEN and page[position - 2 : position] != "/>":
        unseen.append(name)
    return position


# --- JSON lines, PDF --------------------------------------------------------------------------------------------------


_EXCLUDE = "rename it to .txt to read it as text, or to .{} (hidden) to leave it out of its folder"


def _rows(path: Path, data: bytes) -> str:
    passages = list[str]()
    for number, line in enumerate(_decoded(path, data).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"{path}, line {number}: not JSON; {_EXCLUDE.format(path.name)}") from None
        text = next((row[key] for key in _TEXT_KEYS if key in row), None) if isinstance(row, dict) else row
        if not isinstance(text, str):
            keys = ", ".join(_TEXT_KEYS)
            raise DataError(
                f"{path}, line {number}: expected an object with text under {keys}; {_EXCLUDE.format(path.name)}"
            )
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
    """The file of questions in `folder`. Raises DataError if there is none, or more than one."""
    matches = [folder / name for name in QUESTIONS if (folder / name).is_file()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise DataError(f"{folder}: has {' and '.join(path.name for path in matches)}; remove all but one")
    raise DataError(
        f"{folder}: a folder without questions; add questions.jsonl (question, answers and document, the name of a "
        "text file there), name a data file in it, or set data.corpus to the folder"
    )


def text_rows(folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """({id, title, text}, location) of every text file in a folder and its subfolders."""
    names = [
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, files in os.walk(folder)
        for name in files
        if name.endswith(TEXTS)
    ]
    if not names:
        raise DataError(f"{folder}: has no text files ({', '.join(TEXTS)})")
    for name in sorted(names):
        path = folder / name
        yield {"id": Path(name).as_posix(), "title": path.stem, "text": _text(path, _decoded)}, f"file {name}"


def paragraph_of(folder: Path, name: str, where: str) -> str:
    """Title and text of a text file in `folder`; `where` is the row that names it. Raises DataError."""
    folder = folder.resolve()
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder)
    except (OSError, RuntimeError, ValueError):  # a loop of links; a NUL byte
        inside = False
    if not inside:
        raise DataError(f"{where}: document {name!r:.60} is outside {folder}; name a file in it")
    if not path.is_file():
        hint = nearest(name, (file.name for file in folder.iterdir()))
        raise DataError(
            f"{where}: document {name!r:.60}: no such file in {folder}{hint}; for a column with the text itself use "
            "data.columns=context=document"
        )
    stat = path.stat()
    return _paragraph(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _paragraph(path: Path, size: int, changed_ns: int) -> str:
    """Cached, so that many questions on one text share it."""
    return f"{path.stem}\n{_text(path, _decoded)}"
