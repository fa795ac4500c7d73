"""Rows of JSON, tables, parquet and the hub; each bad file gets one line with its name, position, value and fix."""

import difflib
import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from palimpsest.data.files import rows as rows_module
from palimpsest.data.files import text_files
from palimpsest.data.files.rows import read_rows
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.errors import DataError
from palimpsest.types import Problem
from support.records import one_line_error, save, table

OBJECTS: list[dict[str, Any]] = [
    {"id": str(i), "text": 'naïve \u2028 [{"\\\\' * i, "deep": [[{}], None, 1.5e3, True]} for i in range(7)
]


def values(path: Path) -> list[Any]:
    return [row.values for row in read_rows(path)]


def rejected(path: Path, *rows: Any) -> str:
    message = one_line_error(DataError, values, save(path, *rows) if rows else path)
    assert str(path) in message
    return message


@pytest.mark.parametrize("read", [1, 3, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_array_reads_the_same_at_any_buffer_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int, indent: int | None, ascii_only: bool
) -> None:
    monkeypatch.setattr(rows_module, "_READ", read)
    text = json.dumps(OBJECTS, indent=indent, ensure_ascii=ascii_only)
    assert values(save(tmp_path / "array.json", text)) == OBJECTS


def test_lines_arrays_and_parquet_hold_the_same_rows(tmp_path: Path) -> None:
    flat = [{"id": row["id"], "text": row["text"]} for row in OBJECTS]
    files = [
        save(tmp_path / "a.json", json.dumps(flat).encode("utf-8-sig")),  # with a byte-order mark
        save(tmp_path / "b.jsonl", "\n\n".join(json.dumps(row, ensure_ascii=False) for row in flat)),
        save(tmp_path / "c.parquet", *flat),
    ]
    assert [values(path) for path in files] == [flat] * 3


def test_a_cut_array_is_rejected_with_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_READ", 16)
    full = json.dumps(OBJECTS[:3], ensure_ascii=False).encode()
    for size in range(1, len(full)):
        try:
            full[:size].decode()
        except UnicodeDecodeError:
            continue  # a cut inside a character is an encoding error
        message = rejected(tmp_path / "cut.json", full[:size])
        assert f"byte {size} " in message
        assert "cut short" in message


def test_a_cut_array_yields_its_complete_rows_and_counts_them(tmp_path: Path) -> None:
    path = save(tmp_path / "cut.json", '[{"a": 1},\n{"a": 2},\n{"a": "thr')
    rows = read_rows(path)
    assert [next(rows).values, next(rows).values] == [{"a": 1}, {"a": 2}]
    assert "byte 31 (line 3), after 2 whole rows: the file is cut short" in rejected(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('[{"a": 1} {"a": 2}]', ["byte 10", "expected , or ]"]),
        ('[{"a": 1,}]', ["byte 9", "JSON error"]),
        ('[\n{"a": 1},\n{"a" 2},\n' + '{"a": 3},' * 9 + '{"a": 4}]', ["line 3", "':'"]),
        ('[{"ä": 1} x', ["byte 11"]),  # ä is two bytes
        ('[{"a": 1}] []', ["text after the closing bracket"]),
        ("[1, 2]", ["row 1", "expected an object", "int"]),
        ("[]", ["has no rows"]),
        ("", ["empty"]),
        ("  \n", ["empty"]),
        ("id,question\n1,2", ["neither JSON", "id,question"]),
        ('{"a": 1}\n{"a": ', ["line 2", "byte 15", "cut short"]),
        ('{"a": 1}\n{"a": }\n{"a": 2}\n', ["line 2", "byte 15"]),
        ('{\n "data": []\n}', ["has no rows"]),
        ('{\n "a": 1,\n "b" 2\n}', ["line 3", "':'"]),
        ('{\n "a": [1,\n', ["line 3", "cut short"]),
        ('{"data": [1]}', ["data[0]", "expected an object"]),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00", ["git lfs pull"]),
        ("[" * 100_000, ["can't be read"]),
        ('[{"a": ' + "9" * 5000 + "}]", ["row 1", "can't be read"]),
        (b'[{"a": "caf\xe9"}]', ["not UTF-8 at byte 11 (line 1); convert it, e.g. from WINDOWS-1252: iconv"]),
        (b'{"a": "caf\xe9"}\n', ["not UTF-8 at byte 10"]),
    ],
)
def test_malformed_text_is_rejected_with_its_position(
    tmp_path: Path, content: str | bytes, expected: list[str]
) -> None:
    message = rejected(tmp_path / "bad.json", content)
    assert "sys." not in message  # no advice to programmers
    assert [part for part in expected if part not in message] == []


def test_missing_files_empty_folders_and_pipes_are_rejected(tmp_path: Path) -> None:
    assert "no such file" in rejected(tmp_path / "absent.json")
    assert "has no text files" in rejected(tmp_path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "a pipe or a device" in rejected(tmp_path / "pipe.jsonl")


def test_messages_and_hints_are_bounded_for_many_columns(rejection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[int]()
    close = difflib.get_close_matches

    def counted(name: str, names: list[str], **options: Any) -> list[str]:
        compared.append(len(names))
        return close(name, names, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    wide = {f"column {number}": "x" for number in range(20_000)}
    for columns in ({}, {"question": "q"}):
        message = rejection(wide, name="wide.csv", columns=columns)
        assert "column 39 and 19,960 more" in message
        assert len(message) < 1500
    assert 0 < max(compared) <= 1000


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_any_bytes_raise_only_data_errors(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    for prefix in (b"", b"[", b'[{"a":', b'{"question":"q","answers":["a"]}\n{', b"PAR1"):
        save(path, prefix + data)
        message = ""
        try:
            list(read_problems(path))
        except DataError as error:
            message = str(error)
        assert "\n" not in message


# ---- tables --------------------------------------------------------------------------------------------------

ODD = [
    ("plain", "cell"),
    ("with, comma", 'a "quoted" word'),
    ("two\nlines", "carriage\r\nreturn"),
    ("=HYPERLINK(1)", "@SUM(A1)"),
    ("007", "1e5"),
    ("NA", "None"),
    ("naïve 東京", "\u2028"),
    ("semi;colon", "tab\tin it"),
    (" space ", "'"),
]


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".csv", ";"), (".csv", "\t"), (".tsv", "\t")])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_rows_of_a_table_equal_those_of_arrow(tmp_path: Path, suffix: str, separator: str, mark: bytes) -> None:
    path = save(tmp_path / f"t{suffix}", mark + table([("first", "second"), *ODD], separator))
    types = {"first": "string", "second": "string"}
    by_arrow = arrow_csv.read_csv(
        path,
        parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=False),
    )
    assert values(path) == by_arrow.to_pylist() == [{"first": first, "second": second} for first, second in ODD]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"question,question\na,b\n", "line 1: two columns have the name 'question'; rename one"),
        (b"question,answers\na,b,c\n", "line 2: 3 cells, the header has 2"),
        (b'question,answers\n"a\nb",c\nd\n', "line 4: 1 cells, the header has 2"),
        (b'question,answers\na,"b\nc,d\n', "line 2: invalid CSV"),
        (b"question,answers\na,b\0\n", "line 2: answers has a NUL byte"),
        (b"question,answers\n\xe9,b\n", "not UTF-8 at byte 17 (line 2); convert it, e.g. from WINDOWS-1252: iconv"),
        ("q,a\na,b\n".encode("utf-16"), "UTF-16, not UTF-8; convert it, e.g. from UTF-16: iconv -f UTF-16"),
        (b"question,answers\n", "has no rows"),
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"PK\x03\x04\0\0", "a zip archive: unpack it first"),
    ],
)
def test_a_bad_table_is_rejected_with_its_line(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in rejected(tmp_path / "bad.csv", content)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json"])
def test_a_document_of_ten_megabytes_in_one_field_is_read(read: Any, suffix: str) -> None:
    row = {"question": "Who?", "answers": "Ann", "context": "Ann ran. " * 1_200_000}
    (problem,) = read(row, name=f"long{suffix}")
    assert problem.context == row["context"]


# ---- parquet -------------------------------------------------------------------------------------------------


def test_a_parquet_file_cut_short_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    full = save(path, *({"a": "x" * 100 + str(i)} for i in range(500))).read_bytes()
    for size in (4, 50, len(full) // 2, len(full) - 1):
        assert "fetch it again" in rejected(path, full[:size])


@pytest.mark.parametrize(("unpacked", "rows"), [(256, 8), (32, 4), (9, 1)])
def test_few_parquet_rows_share_a_long_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unpacked: int, rows: int
) -> None:
    """A file of 2 kB had 64 rows of one text of 60 MB."""
    path, length = tmp_path / "a.parquet", 8 << 20
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), ["x" * length])
    pq.write_table(pa.table({"n": range(64), "text": column}), path, compression="zstd")
    monkeypatch.setattr(text_files, "UNPACKED", unpacked << 20)
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        assert [row.values["n"] for row in read_rows(path) if len(row.values["text"]) == length] == [*range(64)]
    finally:
        pa.set_memory_pool(before)
    assert length < pool.max_memory() < (2 * rows + 4) * length


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_a_parquet_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    path = tmp_path / "a.parquet"
    content = pa.table({"question": [str(n) + "x" * 10_000 for n in range(300)]})
    pq.write_table(content, path, compression=compression, use_dictionary=False)
    assert len(values(path)) == 300
    monkeypatch.setattr(text_files, "UNPACKED", 1 << 20)
    assert "smaller row groups" in rejected(path)
    pq.write_table(content, path, compression=compression, use_dictionary=False, row_group_size=50)
    assert len(values(path)) == 300


def test_a_row_group_of_parquet_is_read_in_batches(tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": random.Random(i).randbytes(10_000).hex()} for i in range(600)]
    path = tmp_path / "large.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, compression="none", use_dictionary=False, write_batch_size=16)
    assert (path.stat().st_size > 12e6, pq.ParquetFile(path).num_row_groups) == (True, 1)
    before, most = pa.total_allocated_bytes(), 0
    for row, expected in zip(read_rows(path), rows, strict=True):
        assert row.values == expected
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 6e6


# ---- compressed files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_file_cut_or_damaged_anywhere_is_rejected(tmp_path: Path, ending: str) -> None:
    rows = [{"n": number, "x": random.Random(number).random()} for number in range(99)]
    full = save(tmp_path / f"a.jsonl{ending}", *rows).read_bytes()
    path = tmp_path / f"b.jsonl{ending}"
    for size in range(5, len(full), 97):
        if size != full.rfind(full[:4]):  # the end of the first member
            path.write_bytes(full[:size])
            assert "fetch it again" in rejected(path)
    path.write_bytes(full + b"\0rest")
    assert "fetch it again" in rejected(path)


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.jsonl", b'{"q": "'), ("a.json", b'[{"q": "'), ("a.csv", b"q\n"), ("a.parquet", b"PAR1")],
)
@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_bomb_is_rejected_before_it_is_read(
    tmp_path: Path, name: str, start: bytes, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "UNPACKED", 1 << 20)
    path = save(tmp_path / f"{name}{ending}", start + b"x" * (1 << 24))
    assert path.stat().st_size < (1 << 24) / 100
    message = rejected(path)
    assert "unpacks to more than 1,048,576 bytes" in message
    assert "gunzip" in message or "unzstd" in message


# ---- the hub -------------------------------------------------------------------------------------------------

HUB = [{"question": f"Q{i}?", "answers": ["A"], "context": f"C{i}"} for i in range(3)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of a fake package `datasets` with the splits train and test."""
    recorded: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str | None, streaming: bool) -> Any:
        recorded.append((name, config, split, streaming))
        if name == "owner/absent":
            raise ConnectionError("no such\ndata set")
        return {"train": iter(HUB), "test": iter(HUB)} if split is None else iter(HUB)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return recorded


def test_a_split_of_the_hub_is_streamed_and_read_by_its_columns(calls: list[tuple[Any, ...]]) -> None:
    problems = list(read_problems("hub:owner/name:small@test", limit=2))
    assert problems == [Problem(f"name:small@test-{i}", f"Q{i}?", ("A",), f"C{i}") for i in range(2)]
    assert set(calls) == {("owner/name", "small", "test", True)}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("hub:owner/name", "choose a split: hub:owner/name@train, hub:owner/name@test"),
        ("hub:owner/absent@test", "(ConnectionError: no such data set)"),
    ],
)
def test_hub_errors_are_one_line(calls: list[tuple[Any, ...]], name: str, part: str) -> None:
    message = one_line_error(DataError, lambda: list(read_problems(name)))
    assert name in message
    assert part in message


def test_without_the_package_datasets_the_error_has_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"isn't installed: pip install .*\[datasets\]"):
        list(read_problems("hub:owner/name@test"))


def test_the_package_datasets_reads_a_folder_as_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the package datasets isn't installed")
    save(tmp_path / "test.jsonl", *HUB)
    for name in (f"hub:{tmp_path}@test", f"hub:{tmp_path}"):
        assert [problem.question for problem in read_problems(name)] == [row["question"] for row in HUB]
