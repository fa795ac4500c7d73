"""Rows of data files: JSON, JSON lines, CSV, TSV, parquet, SQuAD's own file, Hugging Face data sets; also as .gz, .zst.

JSON is a list of objects, objects one after another, or an object with the list under `data`, `train`, `rows`...
The suffix identifies CSV and TSV, the content other files. Rows also come from folders of plain text (text_files.py),
from Python objects (plugins.py), and from the Hugging Face hub or folders of its layout, with the package `datasets`
(`hub:owner/name:configuration@split`). Hub rows are streamed. `datasets` rejects data sets that are scripts, so a data
set's code never runs.

The separator of CSV is a tab in `.tsv`, otherwise the commonest of comma, semicolon and tab in the header.

Guaranteed: memory contains one row and its read buffer (parquet: one batch; compressed parquet, and rows under `data`:
all of it); every row has a location for error messages; a file that is truncated, malformed or not UTF-8 raises
DataError with byte and line; a CSV row of another width than the header, a repeated column name, a NUL byte and an open
quote raise it with their line.
Not covered: archives and Git LFS pointers (recognised and rejected); duplicate keys in an object (the last
wins); CSV without a header, or with comments; parquet rows larger than memory; older revisions of a hub data set;
images and audio.
"""

from __future__ import annotations

import csv
import importlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader, BytesIO, TextIOWrapper
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO, Literal, NoReturn, TextIO

from palimpsest.config.data import how_to_get
from palimpsest.config.install_hints import install_line
from palimpsest.data.files import text_files
from palimpsest.data.files.text_files import WIDE, convert, not_text, not_utf8, opened, text_rows, unpacked_name
from palimpsest.errors import DataError, first_line
from palimpsest.files import NoRegularFile
from palimpsest.plugin_kinds import OBJECT
from palimpsest.plugins import object_named

# ---- Data sets of the Hugging Face hub, and folders of the same layout ---------------------------------------


PREFIX = "hub:"


def parsed(name: str) -> tuple[str, str | None, str | None]:
    """(data set, configuration, split) of a source.

    >>> parsed("hub:hotpotqa/hotpot_qa:distractor@train")
    ('hotpotqa/hotpot_qa', 'distractor', 'train')
    >>> parsed("hub:owner/name")
    ('owner/name', None, None)
    """
    rest, _, split = name.removeprefix(PREFIX).partition("@")
    dataset, _, configuration = rest.partition(":")
    return dataset, configuration or None, split or None


def hub_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """(values by column, location) of every row."""
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError:
        raise DataError(
            f"{path}: the hub needs the package datasets, which isn't installed: {install_line('datasets')}, or "
            "download a file of the data set and name it"
        ) from None
    name, configuration, split = parsed(str(path))
    try:
        loaded = datasets.load_dataset(name, configuration, split=split, streaming=True)
        if split is None:
            if len(loaded) != 1:
                raise DataError(f"{path}: choose a split: {', '.join(f'{path}@{choice}' for choice in loaded)}")
            (loaded,) = loaded.values()
        for number, values in enumerate(loaded, 1):
            yield dict(values), f"row {number}"
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001  datasets reads the network and any file
        line = " ".join(str(error).split())
        raise DataError(f"{path}: datasets can't read it ({type(error).__name__}: {line:.300})") from None


# ---- Rows of tables ------------------------------------------------------------------------------------------


_FIELD = 1 << 30  # characters of a cell
_BUFFER = 1 << 20  # bytes of a column read at a time; the default, a row group, may be the whole file
_BATCH = 8  # rows of a parquet batch; 64 take as long


def table(path: Path) -> Iterator[tuple[Any, str]]:
    """(values by column, location) of every row of a CSV or TSV file."""
    csv.field_size_limit(_FIELD)  # process-wide: the default of 128 kB is less than a document
    with _text(path) as file:
        reader = csv.reader(file, delimiter=_separator(path), strict=True)
        first_line, header = 1, list[str]()
        try:
            for cells in reader:
                location, first_line = f"line {first_line}", reader.line_num + 1
                if not cells:
                    continue  # a blank line
                if not header:
                    header = _header(path, cells)
                    continue
                yield _values(path, header, cells, location), location
        except csv.Error as error:
            raise DataError(
                f"{path} line {first_line}: invalid CSV ({error}); put a cell with a quote, separator or newline into "
                'quotes, and double a quote in it: "say ""hi"""'
            ) from None


def _separator(path: Path) -> str:
    if unpacked_name(path).suffix.lower() == ".tsv":
        return "\t"
    with _text(path) as file:
        header = file.readline(1 << 20)
    return max(",;\t", key=header.count)


def _header(path: Path, cells: list[str]) -> list[str]:
    names = [name.strip() or f"column_{number}" for number, name in enumerate(cells, 1)]
    if any("\0" in name for name in names):
        raise DataError(f"{path} line 1: has a NUL byte; it is binary or UTF-16, convert it to UTF-8")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path} line 1: two columns have the name {twice[0]!r}; rename one of them")
    return names


def _values(path: Path, header: list[str], cells: list[str], location: str) -> dict[str, Any]:
    if len(cells) != len(header):
        raise DataError(
            f"{path} {location}: {len(cells)} cells, the header has {len(header)}; put a cell with the separator into "
            "quotes, or add the missing cells"
        )
    values: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        if "\0" in cell:
            raise DataError(f"{path} {location}: {name} has a NUL byte; remove it")
        values[name] = _nested(cell) if cell else None
    return values


def _nested(cell: str) -> Any:
    """The JSON list or object in a cell; otherwise the cell.

    >>> _nested('["a", "b"]'), _nested("[5]"), _nested("[1, 2)")
    (['a', 'b'], '[5]', '[1, 2)')
    """
    if not cell.lstrip().startswith(("[", "{")):
        return cell
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    is_nested = isinstance(value, dict) or any(isinstance(item, str | dict | list) for item in value)
    return value if is_nested else cell


def parquet(path: Path) -> Iterator[tuple[Any, str]]:
    """(values by column, location) of every row of a parquet file."""
    import pyarrow.parquet as pq  # 0.2 s, and most runs read no parquet
    from pyarrow import ArrowException

    row = 0
    try:
        with opened(path) as file, pq.ParquetFile(_seekable(file), buffer_size=_BUFFER, pre_buffer=False) as table:
            sizes = [table.metadata.row_group(index).total_byte_size for index in range(table.num_row_groups)]
            text_files.check_unpacked(path, max(sizes, default=0), "write it with smaller row groups")
            most = text_files.UNPACKED // max([1, *sizes])  # rows that may all repeat the longest text
            for batch in table.iter_batches(batch_size=min(max(1, most), _BATCH)):
                for values in batch.to_pylist():
                    row += 1
                    yield values, f"row {row}"
    except (ArrowException, OSError) as error:
        raise DataError(
            f"{path}: damaged or cut short after {row} rows, fetch it again (parquet: {first_line(error)})"
        ) from None


def _seekable(file: BufferedReader) -> BinaryIO:
    return file if file.seekable() else BytesIO(file.read())


def _text(path: Path) -> TextIOWrapper:
    return TextIOWrapper(opened(path), "utf-8-sig", newline="")


# ---- Rows of a data file, one at a time ----------------------------------------------------------------------


_READ = 1 << 20  # characters
_AS_TEXT = ("context", "supporting_facts", "evidences")
_REFUSED = {
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"version https://git-lfs": "a Git LFS pointer, not the data: fetch it with `git lfs pull`",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One object of a file."""

    values: dict[str, Any]
    where: str
    """File and row, for error messages."""
    index: int = 0
    """0-based."""
    path: Path = Path()


Kind = Literal["array", "lines", "parquet", "table", "folder", "hub", "given"]


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of `path` in order. Raises DataError at an invalid row, not earlier."""
    kind = sniff(path)
    rows = table(path) if kind == "table" else _READERS[kind](path)
    index = -1
    try:
        for index, (values, location) in enumerate(rows):
            if not isinstance(values, dict):
                raise DataError(f"{path} {location}: expected an object, found {type(values).__name__}: {values!r:.40}")
            if isinstance(values.get("supporting_facts"), str):  # the hub's 2WikiMultiHopQA: lists as JSON texts
                values = {
                    name: _nested(v) if name in _AS_TEXT and isinstance(v, str) else v for name, v in values.items()
                }
            absent = {name: None for name, value in values.items() if isinstance(value, float) and math.isnan(value)}
            yield Row({**values, **absent}, f"{path} {location}", index, path)
    except UnicodeDecodeError:
        not_utf8(path)
    except (RecursionError, ValueError) as error:  # nested a thousand deep; a number of thousands of digits
        reason = str(error).partition(";")[0]  # without Python's advice to programmers
        raise DataError(f"{path} row {index + 2}: JSON that can't be read ({reason}); write it as text") from None
    if index < 0:
        raise DataError(f"{path}: has no rows")


def sniff(path: Path) -> Kind:
    """The kind of file at `path`, from its first bytes."""
    if str(path).startswith(OBJECT):
        return "given"
    if str(path).startswith(PREFIX):
        return "hub"
    try:
        if path.is_dir():
            return "folder"
        with opened(path) as file:
            head = file.read(4096)
    except NoRegularFile:
        raise DataError(f"{path}: a pipe or a device can't be read twice; write it to a file") from None
    except FileNotFoundError:
        command, place = how_to_get(path), f"use a path relative to {Path.cwd()} or an absolute one"
        raise DataError(f"{path}: no such file; {f'get it with: {command}' if command else place}") from None
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None
    if head.startswith(b"PAR1"):
        return "parquet"
    for magic, what in _REFUSED.items():
        if head.startswith(magic):
            raise not_text(path, what)
    for mark, encoding in WIDE.items():
        if head.startswith(mark):
            raise convert(path, f"{encoding}, not UTF-8", encoding)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise DataError(f"{path}: the file is empty")
    if unpacked_name(path).suffix.lower() in (".csv", ".tsv"):
        return "table"
    if text[:1] in (b"[", b"{"):
        return "array" if text[:1] == b"[" else "lines"
    raise DataError(
        f"{path}: neither JSON, JSON lines nor parquet; it begins with {text[:20]!r}; name a table .csv or .tsv; for a "
        f"text, palimpsest ask MODEL {quote(str(path))} QUESTION, or its folder with questions.jsonl as the data"
    )


def _array(path: Path) -> Iterator[tuple[Any, str]]:
    with _text(path) as file:
        reader = _JsonReader(file, path)
        reader.expect("[")
        if reader.peek() == "]":
            return
        while True:
            yield reader.value(), f"row {reader.rows}"
            if reader.expect(",]") == "]":
                break
        if reader.peek():
            reader.fail("text after the closing bracket")


class _JsonReader:
    """Incremental decoder of JSON values in an array or one after another; its buffer grows to the size of one."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self.file, self.path = file, path
        self.text, self.at = "", 0
        self.passed = 0  # characters before `text`
        self.line = 1
        self.rows = 0
        self.ended = False

    def peek(self) -> str:
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.line += self.text[self.at] == "\n"
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            self._more()

    def expect(self, characters: str) -> str:
        character = self.peek()
        if not character:
            self.cut_short()
        if character not in characters:
            self.fail(f"expected {' or '.join(characters)}, found {character!r}")
        self.at += 1
        return character

    def value(self) -> Any:
        if not self.peek():
            self.cut_short()
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string")
                if not self.ended and (cut or error.pos >= len(error.doc) - 8):  # or a literal or an escape cut in two
                    self._more()
                    continue
                if self.ended and (cut or not set("]}") & set(error.doc[error.pos :])):
                    self.at = len(self.text)
                    self.cut_short()
                self.at = error.pos
                self.fail(error.msg)
            self.rows += 1
            self.line, self.at = self.line + self.text.count("\n", self.at, end), end
            return value

    def _more(self) -> None:
        rest = self.text[self.at :]
        chunk = self.file.read(max(_READ, len(rest)))  # doubling: a row of any size is parsed O(log size) times
        self.passed += self.at
        self.text, self.at = rest + chunk, 0
        self.ended = not chunk

    def cut_short(self) -> NoReturn:
        self.fail("the file is cut short; fetch it again")

    def fail(self, what: str) -> NoReturn:
        with _text(self.path) as file:
            head = file.read(self.passed + self.at)
        with opened(self.path) as raw:
            mark = 3 if raw.read(3) == b"\xef\xbb\xbf" else 0
        line, byte = head.count("\n") + 1, len(head.encode("utf-8")) + mark
        raise DataError(f"{self.path}: JSON error at byte {byte} (line {line}), after {self.rows} whole rows: {what}")


_DECODER = json.JSONDecoder()


def _lines(path: Path) -> Iterator[tuple[Any, str]]:
    with _text(path) as file:
        reader = _JsonReader(file, path)
        while reader.peek():
            location = f"line {reader.line}"
            yield from _rows_of(reader.value(), location)


def _rows_of(values: Any, location: str) -> Iterator[tuple[Any, str]]:
    """The row in a JSON value, or those that it lists under `data` or the only key of `_LISTS`."""
    keys = [*(values.keys() - _ENVELOPE)] if isinstance(values, dict) else []
    key, listed = (keys[0], values[keys[0]]) if len(keys) == 1 and keys[0] in _LISTS else ("", None)
    if not isinstance(listed, list):
        yield values, location
        return
    for a, item in enumerate(listed):
        articles = item.get("paragraphs") if isinstance(item, dict) else None
        if not isinstance(articles, list) or not all(
            isinstance(each, dict) and isinstance(each.get("qas"), list) for each in articles
        ):
            yield item, f"{key}[{a}]"
            continue
        for p, article in enumerate(articles):  # SQuAD's own file
            shared = {"title": item.get("title"), "context": article.get("context")}
            for q, question in enumerate(article["qas"]):
                row = {**question, **shared} if isinstance(question, dict) else question
                yield row, f"{key}[{a}].paragraphs[{p}].qas[{q}]"


def _object_rows(path: Path) -> Iterator[tuple[Any, str]]:
    for index, values in enumerate(object_named(str(path), "data.train_files")):
        yield plain_values(values), f"item {index}"


def plain_values(value: Any) -> Any:
    """`value` of Python, numpy or pandas as in rows of files: lists for tuples and arrays, None for NaN."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        str(value)  # raises ValueError for thousands of digits
    if isinstance(value, Mapping):
        return {key: plain_values(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return list(map(plain_values, value))
    if hasattr(value, "tolist"):
        inner = value.tolist()
        return inner if type(inner) is type(value) else plain_values(inner)
    return None if isinstance(value, float) and math.isnan(value) else value


# Keys under which an object may list its rows, and its other keys
_LISTS = {"data", "rows", "examples", "instances", "items", "records", "train", "validation", "valid", "dev", "test"}
_ENVELOPE = {"version", "name", "title", "description", "license", "split", "source"}
_READERS = {
    "array": _array,
    "lines": _lines,
    "parquet": parquet,
    "folder": text_rows,
    "hub": hub_rows,
    "given": _object_rows,
}
