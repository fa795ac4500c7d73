"""CSV and TSV: the rows that another reader finds in the same file, and what is refused, with its line."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv

from palimpsest.data.files.rows import read_rows
from palimpsest.data.formats.problem_files import ReadOptions, read_problems
from palimpsest.errors import DataError
from palimpsest.types import Problem

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


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".csv", ";"), (".csv", "\t"), (".tsv", "\t")])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_rows_are_those_that_another_reader_finds(tmp_path: Path, suffix: str, separator: str, mark: bytes) -> None:
    path = tmp_path / f"t{suffix}"
    rows = [("first", "second"), *ODD]
    path.write_bytes(mark + "\n".join(separator.join(map(quoted, row)) for row in rows).encode())
    found = [row.values for row in read_rows(path)]
    options = {
        "parse_options": arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        "convert_options": arrow_csv.ConvertOptions(
            column_types={"first": "string", "second": "string"}, strings_can_be_null=False
        ),
    }
    assert found == arrow_csv.read_csv(path, **options).to_pylist()
    assert found == [{"first": first, "second": second} for first, second in ODD]


def test_a_table_of_questions_is_read_as_what_its_columns_say(tmp_path: Path) -> None:
    path = tmp_path / "faq.csv"
    path.write_text(
        "question,answers,context\n"
        "Who?,Ann,Ann ran.\n"
        'Where?,"[""Rome"", ""Roma""]","In Rome.\n\nIt was hot."\n'
        "How many?,[5],=1+4\n"
        "When?,,\n"
    )
    assert list(read_problems(path)) == [
        Problem("faq-0", "Who?", ("Ann",), "Ann ran."),
        Problem("faq-1", "Where?", ("Rome", "Roma"), "In Rome.\n\nIt was hot."),
        Problem("faq-2", "How many?", ("[5]",), "=1+4"),
        Problem("faq-3", "When?", ()),
    ]


def test_a_cell_that_a_map_makes_golds_may_hold_a_list_as_one_of_that_name_does(tmp_path: Path) -> None:
    rows = [("q", "gold"), ("Where?", '["Rome", "Roma"]'), ("How many?", "[5]"), ("When?", "")]
    table, lines = tmp_path / "t.csv", tmp_path / "t.jsonl"
    table.write_text("\n".join(",".join(map(quoted, row)) for row in rows))
    lines.write_text("\n".join(json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[1:]))
    reading = ReadOptions(columns={"question": "q", "answers": "gold"})
    assert [problem.answers for problem in read_problems(table, reading=reading)] == [("Rome", "Roma"), ("[5]",), ()]
    first = next(iter(read_problems(lines, reading=reading)))
    assert first.answers == ('["Rome", "Roma"]',)  # a text of JSON lines is what it says


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("['tea', 'chai']", ("tea", "chai")),
        ("""['tea', "Ann's"]""", ("tea", "Ann's")),
        ("['tea' 'chai']", ("['tea' 'chai']",)),
        ("[5]", ("[5]",)),
        ("[]", ()),
        ("[" * 5000, ("[" * 5000,)),
        ("[__import__('os')]", ("[__import__('os')]",)),
    ],
)  # fmt: skip
def test_golds_of_a_table_may_be_a_list_as_python_writes_it(
    tmp_path: Path, cell: str, answers: tuple[str, ...]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "\n".join(",".join(map(quoted, row)) for row in [("question", "answer", "text"), ("Who?", cell, cell)])
    )
    (problem,) = read_problems(path)
    assert problem.answers == answers
    lines = tmp_path / "t.jsonl"
    lines.write_text(json.dumps({"question": "Who?", "answer": cell}))
    assert next(iter(read_problems(lines))).answers == (cell,)


@pytest.mark.parametrize("gold", [None, float("nan"), [None], [float("nan"), None], [], ""])
def test_a_missing_gold_of_parquet_is_none(tmp_path: Path, gold: Any) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist([{"question": "Who?", "answer": gold}]), path)
    (problem,) = read_problems(path)
    assert problem.answers == ()


@pytest.mark.parametrize("gold", [True, False, [True]])
def test_a_gold_that_is_true_or_false_is_named_with_the_fix(tmp_path: Path, gold: Any) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"question": "Is it?", "answer": gold}))
    with pytest.raises(DataError, match=r"answer(\[0\])? must be a string, is (True|False): .*'yes'"):
        list(read_problems(path))


def test_the_published_table_of_frames(tmp_path: Path) -> None:
    """Its layout: an unnamed first column, the links as the text of a list, empty cells for links there are none of."""
    path = tmp_path / "test.tsv"
    path.write_text(
        "\tPrompt\tAnswer\twikipedia_link_1\twikipedia_link_2\treasoning_types\twiki_links\n"
        "0\tWho ran?\tAnn\thttps://x/Ann\t\tTabular reasoning\t['https://x/Ann']\n"
    )
    (problem,) = read_problems(path)
    metadata = {"wiki_links": ["https://x/Ann"], "reasoning_types": "Tabular reasoning"}
    assert problem == Problem("test-0", "Who ran?", ("Ann",), None, metadata)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"question,question\na,b\n", "line 1: two columns have the name 'question'; rename one"),
        (b"question,answers\na,b,c\n", "line 2: 3 cells, the header has 2"),
        (b'question,answers\n"a\nb",c\nd\n', "line 4: 1 cells, the header has 2"),
        (b'question,answers\na,"b\nc,d\n', "line 2: invalid CSV"),
        (b"question,answers\na,b\0\n", "line 2: answers has a NUL byte"),
        (b"question,answers\n\xe9,b\n", "not UTF-8 at byte 17 (line 2); convert it, e.g. from WINDOWS-1252: iconv"),
        (
            "question,answers\na,b\n".encode("utf-16"),
            "UTF-16, not UTF-8; convert it, e.g. from UTF-16: iconv -f UTF-16",
        ),
        (b"question,answers\n", "has no rows"),
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"PK\x03\x04\0\0", "a zip archive: unpack it first"),
    ],
)
def test_a_bad_table_is_named_with_its_line(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_problems(path))
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json"])
def test_a_document_of_ten_megabytes_in_one_field_is_read_whole(tmp_path: Path, suffix: str) -> None:
    row = {"question": "Who?", "answers": "Ann", "context": "Ann ran. " * 1_200_000}
    path = tmp_path / f"long{suffix}"
    table = "question,answers,context\n" + ",".join(row.values()) + "\n"
    path.write_text({".csv": table, ".jsonl": json.dumps(row), ".json": json.dumps([row])}[suffix])
    (problem,) = read_problems(path)
    assert problem.context == row["context"]


def test_a_row_group_of_parquet_is_not_held_whole(tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": random.Random(i).randbytes(10_000).hex()} for i in range(600)]
    path = tmp_path / "large.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, compression="none", use_dictionary=False, write_batch_size=16)
    assert (path.stat().st_size > 12e6, pq.ParquetFile(path).num_row_groups) == (True, 1)
    before, most = pa.total_allocated_bytes(), 0
    for row, expected in zip(read_rows(path), rows, strict=True):
        assert row.values == expected
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 6e6


def test_control_tokens_in_a_table_are_plain_text_to_a_model(tmp_path: Path, tiny_codec: Any) -> None:
    path = tmp_path / "t.csv"
    path.write_text('question,answers,context\nWho?,Ann,"<|im_end|></memory><|endoftext|>"\n')
    (problem,) = read_problems(path)
    ids = tiny_codec.encode(problem.context)
    assert tiny_codec.decode(ids) == "<|im_end|></memory><|endoftext|>"
    assert not set(ids) & set(tiny_codec.control_ids)
