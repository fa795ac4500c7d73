"""What bad files get: one line that names the file, the place, the value and the fix."""

import difflib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.data.files import rows as rows_module
from palimpsest.data.files import text_files
from palimpsest.data.files.rows import read_rows
from palimpsest.data.formats.problem_files import ReadOptions, read_problems
from palimpsest.errors import DataError

OBJECTS: list[dict[str, Any]] = [
    {"id": str(i), "text": 'naïve \u2028 [{"\\\\' * i, "deep": [[{}], None, 1.5e3, True]} for i in range(7)
]


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_pipe_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "a pipe or a device" in refusal(tmp_path / "pipe.jsonl")


def test_of_very_many_columns_a_message_names_the_first_and_no_hint_looks_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = list[int]()
    close = difflib.get_close_matches

    def counted(name: str, known: list[str], **options: Any) -> list[str]:
        looked_at.append(len(known))
        return close(name, known, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    wide = tmp_path / "wide.csv"
    names = [f"column {number}" for number in range(20_000)]
    wide.write_text("\n".join(",".join(row) for row in (names, ["x"] * len(names))))
    for columns in ({}, {"question": "q"}):
        with pytest.raises(DataError) as caught:
            list(read_problems(wide, reading=ReadOptions(columns=columns)))
        assert "column 39 and 19,960 more" in str(caught.value)
        assert len(str(caught.value)) < 1500
    assert looked_at
    assert max(looked_at) <= 1000


@pytest.mark.parametrize("read", [1, 3, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_array_reads_the_same_at_any_buffer_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int, indent: int | None, ascii_only: bool
) -> None:
    monkeypatch.setattr(rows_module, "_READ", read)
    path = tmp_path / "array.json"
    path.write_text(json.dumps(OBJECTS, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    assert [row.values for row in read_rows(path)] == OBJECTS


def test_lines_and_arrays_and_parquet_hold_the_same_rows(tmp_path: Path) -> None:
    flat = [{"id": row["id"], "text": row["text"]} for row in OBJECTS]
    array, lines, parquet = (tmp_path / name for name in ("a.json", "b.jsonl", "c.parquet"))
    array.write_text(json.dumps(flat), encoding="utf-8-sig")  # with a byte-order mark
    lines.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in flat), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(flat), parquet)
    assert [[row.values for row in read_rows(path)] for path in (array, lines, parquet)] == [flat] * 3


def test_a_json_array_cut_anywhere_is_refused_with_the_byte_of_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "_READ", 16)
    whole = json.dumps(OBJECTS[:3], ensure_ascii=False).encode()
    path = tmp_path / "cut.json"
    for size in range(1, len(whole)):
        try:
            whole[:size].decode()
        except UnicodeDecodeError:
            continue  # its own test below
        path.write_bytes(whole[:size])
        message = refusal(path)
        assert f"byte {size} " in message
        assert "cut short" in message


def test_a_cut_array_gives_its_whole_rows_first_and_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('[{"a": 1},\n{"a": 2},\n{"a": "thr')
    seen: list[Any] = []
    with pytest.raises(DataError, match=r"byte 31 \(line 3\), after 2 whole rows: the file is cut short"):
        seen.extend(row.values for row in read_rows(path))
    it = read_rows(path)
    assert [next(it).values, next(it).values] == [{"a": 1}, {"a": 2}]


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
    ],
)
def test_malformed_text_is_named_with_its_place(tmp_path: Path, content: str, expected: list[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content.encode())
    message = refusal(path)
    assert "sys." not in message  # no advice to programmers
    for part in expected:
        assert part in message


def test_missing_folder_and_wrongly_encoded_files(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.json")
    assert "has no text files" in refusal(tmp_path)
    latin = tmp_path / "b.json"
    latin.write_bytes(b'[{"a": "caf\xe9"}]')
    assert "not UTF-8 at byte 11 (line 1); convert it, e.g. from WINDOWS-1252: iconv" in refusal(latin)
    latin.write_bytes(b'{"a": "caf\xe9"}\n')
    assert "not UTF-8 at byte 10" in refusal(latin)


def test_a_parquet_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"a": "x" * 100 + str(i)} for i in range(500)]), path)
    whole = path.read_bytes()
    for size in (4, 50, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "fetch it again" in refusal(path)


@pytest.mark.parametrize(("unpacked", "rows"), [(256, 8), (32, 4), (9, 1)])
def test_the_rows_of_a_parquet_batch_that_share_a_long_text_are_few(
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


@pytest.mark.parametrize(("compression", "repeats"), [("zstd", 300), ("gzip", 300)])
def test_a_parquet_file_that_unpacks_too_far_is_an_error_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, repeats: int
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"question": [str(n) + "x" * 10_000 for n in range(repeats)]})
    pq.write_table(table, path, compression=compression, use_dictionary=False)
    assert len(list(read_rows(path))) == repeats
    monkeypatch.setattr(text_files, "UNPACKED", 1 << 20)
    assert "smaller row groups" in refusal(path)
    pq.write_table(table, path, compression=compression, use_dictionary=False, row_group_size=50)
    assert len(list(read_rows(path))) == repeats


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"questoin": "q", "answer": "a", "context": []}, ["'question'", "question=questoin"]),
        ({"prompt": "q", "context": "c", "reward": {}}, ["'answers'", "answers=COLUMN"]),
        ({"input": "q", "outputs": ["a"]}, ["'context'", "context=COLUMN"]),
        ({"foo": 1}, ["'question'", "the row has foo"]),
        ({"question": " ", "answers": ["a"]}, ["question is empty"]),
        ({"question": "q", "answers": ["a", ""]}, ["answers[1] is empty"]),
        ({"question": "q", "answers": [True]}, ["answers[0] must be a string", "True"]),
        ({"question": "q", "answers": float("inf")}, ["answers must be a string", "inf"]),
        ({"question": "q", "answers": [["a"]]}, ["answers[0] must be a string", "['a']"]),
        ({"question": 5, "answers": ["a"]}, ["question must be a string"]),
        ({"question": "q", "answers": ["a"], "metadata": 3}, ["metadata must be an object"]),
        ({"question": "q", "answer": "a", "context": []}, ["context", "nonempty list"]),
        ({"question": "q", "answer": "a", "ctxs": [{"title": "", "text": " "}, ""]}, ["ctxs has no text"]),
        ({"question": "q", "answer": "a", "ctxs": [{"title": "t", "txt": "s"}]}, ["ctxs[0].text", "did you mean txt?"]),
        ({"question": "q", "answer": "a", "ctxs": ["s", 3]}, ["ctxs[1] must be a string", "3"]),
        ({"question": "q", "answer": "a", "ctxs": {"id": ["1"], "text": []}}, ["ctxs", "equal length"]),
        ({"question": "q", "answer": "a", "chat": [{"from": "a", "value": "b"}, 3]}, ["chat", "role and content"]),
        ({"question": "q", "answer": "a", "context": [["t", ["s"]], ["t", [3]]]}, ["list of sentences"]),
        ({"question": "q", "answer": "a", "context": [["t", ["s"]], ["t"]]}, ["pairs", "['t']"]),
        (
            {"question": "q", "answer": "a", "context": [["t", ["s"]]], "supporting_facts": [["u", 0]]},
            ["supporting title 'u'", "distractor setting"],
        ),
        (
            {"question": "q", "answer": "a", "context": {"title": ["t"], "sentence": [["s"]]}},
            ["context.sentences is missing", "did you mean sentence?"],
        ),
        ({"question": "q", "answer": "a", "context": {"title": ["t"], "sentences": []}}, ["equal length"]),
        ({"prompt": [], "context": "c", "reward_model": {"ground_truth": ["a"]}}, ["role 'user'"]),
        ({"prompt": "q", "context": "c", "reward_model": {}}, ["reward_model.ground_truth is missing"]),
        ({"prompt": "q", "label": "a", "metadata": {"contxt": "c"}}, ["metadata.context", "did you mean contxt?"]),
        ({"input": "q", "context": [1, 2], "answers": ["a"]}, ["document indices", "hotpotqa_dev.json"]),
    ],
)
def test_a_bad_row_is_named_with_key_value_and_fix(tmp_path: Path, row: dict[str, Any], expected: list[str]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError) as caught:
        list(read_problems(path))
    message = str(caught.value)
    assert message.startswith(f"{path} line 1: ")
    assert "\n" not in message
    for part in expected:
        assert part in message


def test_a_later_row_that_lacks_a_column_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "q", "answers": ["a"]}\n{"question": "q", "answer": "a"}\n')
    with pytest.raises(DataError, match=r"line 2: .*'answers' \(did you mean 'answer'"):
        list(read_problems(path))


def test_an_unknown_format_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "q", "answers": ["a"]}\n')
    with pytest.raises(DataError, match=r"'hotpot_qa'; did you mean hotpotqa\?"):
        list(read_problems(path, format="hotpot_qa"))
    with pytest.raises(DataError, match=r"format 'ruler', which needs column 'input', 'context', 'outputs'"):
        list(read_problems(path, format="ruler"))


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_data_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    for prefix in (b"", b"[", b'[{"a":', b'{"question":"q","answers":["a"]}\n{', b"PAR1"):
        path.write_bytes(prefix + data)
        message = ""
        try:
            list(read_problems(path))
        except DataError as error:
            message = str(error)
        assert "\n" not in message
