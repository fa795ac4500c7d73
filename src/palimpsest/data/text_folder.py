"""Folders of plain text: passages of a corpus, or documents that questions are about.

    book/                    as data.corpus, or the corpus of a search index: every text file is a passage
      frankenstein.txt
      rome.md
      questions.jsonl        as data.source: {"question": ..., "answers": [...], "document": "frankenstein.txt"}

Guaranteed: files in the order of their names, whatever the file system says; links to folders are not followed, and a
name in `document` that leads out of the folder is refused; a file that isn't UTF-8 text is named.
Not covered: other kinds of files (PDF, HTML), which are not read; a text larger than memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from palimpsest.data.encoding import not_utf8
from palimpsest.errors import DataError, nearest

TEXTS = (".txt", ".md")
QUESTIONS = tuple(f"questions{ending}" for ending in (".jsonl", ".json", ".csv", ".tsv", ".parquet"))


def questions_file(folder: Path) -> Path:
    """The file in `folder` that holds the questions. Raises DataError if there is none, or more than one."""
    found = [folder / name for name in QUESTIONS if (folder / name).is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{folder}: holds {' and '.join(path.name for path in found)}; leave one of them")
    raise DataError(
        f"{folder}: a folder without questions; put questions.jsonl into it (question, answers and document, the name "
        "of a text file there), name a data file in it, or name the folder as data.corpus"
    )


def text_rows(folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """(id, title and text of a file, its name) of every text file of a folder and the folders in it."""
    names = [
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, files in os.walk(folder)
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
