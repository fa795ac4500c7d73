"""Rows of any question, answers and document: the same problem from every naming, container and numpy value."""

import contextlib
import gzip
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from palimpsest.app.evaluate.evaluation_data import as_problems
from palimpsest.app.python_objects import CallObjects, problems_of
from palimpsest.config.data import DataConfig
from palimpsest.data.files import text_files
from palimpsest.data.files.rows import read_rows
from palimpsest.data.files.text_files import read_files
from palimpsest.data.formats.problem_files import ReadOptions, is_question_file, read_problems
from palimpsest.data.sources.file_source import FileSource, build_source
from palimpsest.errors import DataError
from palimpsest.report.dataset_summary import inspect_source

TURNS = [("user", "Ann ran."), ("assistant", "Bob sat.")]
CHAT = "Document 1:\nuser: Ann ran.\nassistant: Bob sat."
TEXTS = "Document 1:\nAnn ran.\n\nDocument 2:\nBob sat."
TITLED = "Document 1:\nA\nAnn ran.\n\nDocument 2:\nB\nBob sat."
PASSAGES = [{"title": "A", "text": "Ann ran."}, {"title": "B", "text": "Bob sat."}]


def renamed(title: str, text: str) -> list[dict[str, str]]:
    return [{"id": "7", title: passage["title"], text: passage["text"]} for passage in PASSAGES]


def turns(role: str, content: str) -> list[dict[str, str]]:
    return [{role: speaker, content: text} for speaker, text in TURNS]


CHATTING = turns("role", "content")
ASKED = {"role": "user", "content": "Who?"}
SHAPES: list[tuple[dict[str, Any], str | None]] = [
    ({"question": "Who?", "answers": ["Ann"], "ctxs": PASSAGES}, TITLED),
    ({"question": "Who?", "answer": "Ann", "ctxs": PASSAGES}, TITLED),
    ({"question": "Who?", "target": "Ann", "ctxs": renamed("title", "contents")}, TITLED),
    ({"Question": "Who?", "Answer": "Ann", "Paragraphs": renamed("title", "paragraph_text")}, TITLED),
    ({"question": "Who?", "answer": "Ann", "paragraphs": PASSAGES}, TITLED),
    ({"question": "Who?", "golden_answers": ["Ann"], "passages": PASSAGES}, TITLED),
    ({"question": "Who?", "answers": ["Ann"], "positive_ctxs": PASSAGES}, TITLED),
    ({"query": "Who?", "gold_answer": "Ann", "passage": "Ann ran."}, "Ann ran."),
    ({"query": "Who?", "answers": ["Ann"], "context": {"title": ["A", "B"], "text": ["Ann ran.", "Bob sat."]}}, TITLED),
    ({"query": "Who?", "answers": ["Ann"], "passages": {"passage_text": ["Ann ran.", "Bob sat."]}}, TEXTS),
    ({"question": "Who?", "answer": "Ann", "context": ["Ann ran.", "Bob sat."]}, TEXTS),
    ({"question": "Who?", "answers": ["Ann"], "contexts": ["Ann ran.", "Bob sat."]}, TEXTS),
    ({"question": "Who?", "answer": "Ann", "pages": [{"page": 1, "text": "Ann ran."}, {"text": "Bob sat."}]}, TEXTS),
    ({"question": "Who?", "answers": ["Ann"], "docs": [["A", ["Ann ran."]], ["B", ["Bob sat."]]]}, TITLED),
    ({"question": "Who?", "answers": ["Ann"], "docs": [["A", "Ann ran."], ["B", "Bob sat."]]}, TITLED),
    ({"question": "Who?", "answer": "Ann", "messages": turns("role", "content")}, CHAT),
    ({"question": "Who?", "answer": "Ann", "conversation": turns("from", "value")}, CHAT),
    ({"question": "Who?", "answer": "Ann", "dialogue": turns("speaker", "text")}, CHAT),
    ({"question": "Who?", "answer": "Ann", "chat": [turns("role", "content")]}, CHAT),
    ({"prompt": [{"role": "user", "content": "Who?"}], "response": "Ann", "text": "Ann ran."}, "Ann ran."),
    ({"instruction": "Who?", "input": "Ann ran.", "output": "Ann"}, "Ann ran."),
    ({"instruction": "Who?", "input": "Ann ran.", "output": "Ann", "text": "Who?\nAnn ran.\nAnn"}, "Ann ran."),
    ({"input": "Who?", "context": "Ann ran.", "output": "Ann"}, "Ann ran."),
    ({"question": "Who?", "answers": ["Ann"], "document": "Ann ran to Rome."}, "Ann ran to Rome."),
    ({"question": "Who?", "answer": {"value": "Ann", "aliases": ["Ann"]}, "context": "Ann ran."}, "Ann ran."),
    ({"question": "Who?", "answer": "Ann", "text": "Who? Ann ran."}, "Who? Ann ran."),
    ({"question": {"text": "Who?"}, "answers": [{"text": "Ann"}], "context": "Ann ran."}, "Ann ran."),
    ({"query": {"text": "Who?", "tokens": ["Who", "?"]}, "answer": {"text": "Ann"}, "context": "Ann ran."}, "Ann ran."),
    ({"question": "Who?", "answer": "Ann", "messages": [*CHATTING, ASKED]}, f"{CHAT}\nuser: Who?"),
    ({"question": "Who?", "answer": "Ann", "context": None, "passages": PASSAGES}, TITLED),
    ({"problem": "Who?", "solution": "Ann"}, None),
    ({"problem": "Who?", "solution": "It is Ann.", "answer": "Ann"}, None),
    ({"problem": "Who?", "solution": "Ann", "messages": [ASKED, *CHATTING]}, None),
]  # fmt: skip


def packed(path: Path, data: bytes) -> Path:
    """`data` as the endings say; zstd in two frames, gzip in two members."""
    half = len(data) // 2
    pack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstandard.compress}
    if path.suffix in pack:
        data = pack[path.suffix](data[:half]) + pack[path.suffix](data[half:])
    path.write_bytes(data)
    return path


def written(path: Path, row: dict[str, Any]) -> Path:
    kind = path.name.split(".")[1]
    if kind == "parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist([row]), sink)
        return packed(path, sink.getvalue().to_pybytes())
    if kind in ("csv", "tsv"):
        cells = [value if isinstance(value, str) else json.dumps(value) if value else "" for value in row.values()]
        lines = [["q0", *row], ["x", *cells]]
        mark = "," if kind == "csv" else "\t"
        quoted = (mark.join('"' + cell.replace('"', '""') + '"' for cell in line) for line in lines)
        return packed(path, "\n".join(quoted).encode())
    text = {
        "json": json.dumps([row]),
        "jsonl": json.dumps(row) + "\n",
        "wrapped": json.dumps({"version": "1", "data": [row]}),
        "split": json.dumps({"train": [row]}),
        "listed": json.dumps({"rows": [row]}),
        "pretty": json.dumps({"data": [row]}, indent=2),
        "object": json.dumps(row, indent=2),
    }[kind]
    return packed(path, text.encode())


KINDS = ("json", "jsonl", "wrapped", "split", "listed", "pretty", "object", "parquet", "csv", "tsv")


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_problem_in_every_shape_and_container(tmp_path: Path, kind: str, ending: str) -> None:
    for row, context in SHAPES:
        mixed = any(isinstance(value, list) and isinstance(value[0], list) for value in row.values())
        if mixed and kind == "parquet":
            continue  # parquet has no lists of mixed types
        (problem,) = read_problems(written(tmp_path / f"f.{kind}{ending}", row))
        assert (problem.id, problem.question, problem.answers, problem.context) == ("f-0", "Who?", ("Ann",), context), (
            row
        )


@pytest.mark.parametrize(("row", "context"), SHAPES)
def test_inspection_names_the_column_of_each_role(tmp_path: Path, row: dict[str, Any], context: str | None) -> None:
    path = written(tmp_path / "f.jsonl", row)
    found = inspect_source(path)
    assert found.sample.context == context
    assert found.taken["question"] in row
    assert found.taken["answers"] in row
    column, _, content = found.taken["document"].partition(": ")
    assert (column in row, bool(content)) == ((True, True) if context else (False, False))
    (again,) = read_problems(
        path, reading=ReadOptions(columns={"question": found.taken["question"], "answers": found.taken["answers"]})
    )
    assert (again.question, again.answers, again.context) == ("Who?", ("Ann",), context)


def test_inspection_shows_mapped_names_passages_and_columns_that_are_not_read(tmp_path: Path) -> None:
    row = {"q": "Who?", "reply": "Ann", "hits": PASSAGES, "embedding": [0.1], "level": "easy"}
    columns = {"answers": "reply", "context": "hits"}
    found = inspect_source(written(tmp_path / "f.jsonl", row), ReadOptions(columns=columns))
    assert found.taken == {"question": "q", "answers": "reply", "document": "hits: 2 passages", "not read": "embedding"}
    assert found.sample.metadata["level"] == "easy"
    blank = inspect_source(written(tmp_path / "g.jsonl", {"question": "Who?", "answer": "Ann", "text": " "}))
    assert blank.empty == ("g-0",)


def test_passages_take_distractors_and_marked_or_named_evidence(tmp_path: Path) -> None:
    marked = [PASSAGES[0] | {"is_supporting": True}, PASSAGES[1]]
    rows: list[dict[str, Any]] = [
        {"question": "Who?", "answers": ["Ann"], "passages": marked},
        {"question": "Who?", "answers": ["Ann"], "passages": PASSAGES, "metadata": {"evidence": ["Ann ran"]}},
        {"question": "Who?", "answers": ["Ann"], "passages": [{"text": "Cid slept."}, *PASSAGES]},
    ]
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = FileSource.open(path, split="eval", documents=3)
    assert [record.gold for record in source.records] == [("A\nAnn ran.",), ("A\nAnn ran.",), ()]
    assert all((problem.context or "").count("Document ") == 3 for problem in source)
    across = {**rows[1], "metadata": {"evidence": ["Ann ran. Bob sat."]}}
    (problem,) = read_problems(written(tmp_path / "g.jsonl", across))
    assert (problem.context, problem.metadata["evidence"]) == (TITLED, ["Ann ran. Bob sat."])


@pytest.mark.parametrize(
    ("row", "role", "columns"),
    [
        ({"question": "Who?", "answer": "Bob", "gold": "Ann", "text": "Ann ran."}, "answers", "answer gold"),
        ({"question": "Who?", "label": "Bob", "target": "Ann", "text": "Ann ran."}, "answers", "label target"),
        ({"query": "Who?", "problem": "Why?", "answers": "Ann", "text": "Ann ran."}, "question", "query problem"),
        ({"question": "Who?", "answer": "Ann", "text": "Ann ran.", "ctxs": PASSAGES}, "context", "text ctxs"),
    ],
)  # fmt: skip
def test_two_columns_that_suit_equally_are_named_with_the_map_of_each(
    tmp_path: Path, row: dict[str, Any], role: str, columns: str
) -> None:
    path = written(tmp_path / "f.jsonl", row)
    with pytest.raises(DataError) as caught:
        list(read_problems(path))
    for column in columns.split():
        assert f"data.columns={role}={column}" in str(caught.value)
        (problem,) = read_problems(path, reading=ReadOptions(columns={role: column}))
        value = {"question": problem.question, "answers": problem.answers[0], "context": problem.context}[role]
        assert value == (row[column] if isinstance(row[column], str) else TITLED)


@pytest.mark.parametrize(
    ("row", "fix"),
    [
        ({"frage": "Who?", "antwort": "Ann", "text": "Ann ran."}, "question=COLUMN,answers=COLUMN"),
        ({"frage": "Who?", "antwort": "Ann"}, "question=COLUMN,answers=COLUMN"),
        ({"frage": "Who?", "text": "Ann ran."}, "question=COLUMN"),
        ({"question": "Who?", "antwort": "Ann"}, "answers=COLUMN"),
    ],
)
def test_all_roles_without_a_column_are_in_one_map(tmp_path: Path, row: dict[str, Any], fix: str) -> None:
    with pytest.raises(DataError) as caught:
        list(read_problems(written(tmp_path / "f.jsonl", row)))
    assert re.findall(r"data\.columns='?([^';]*)", str(caught.value)) == [fix]


def test_an_object_without_text_is_named_with_its_keys(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"question\.text is missing.*there: words"):
        list(read_problems(written(tmp_path / "f.jsonl", {"question": {"words": "Who?"}, "answers": ["Ann"]})))


@pytest.mark.parametrize(
    "row",
    [
        {"messages": turns("role", "content")},
        {"conversations": turns("from", "value")},
        {"prompt": "Hi.", "prompt_id": "1", "messages": [{"role": "user", "content": "Hi."}, *CHATTING]},
        {"prompt": "Hi.", "messages": turns("role", "content")},
        {"index": 1, "input": "Document 1: ... Who?", "outputs": ["Ann"]},
        {"question": "Who?", "reply": "Ann"},
        {"title": "A", "text": "Ann ran."},
    ],
)  # fmt: skip
def test_a_row_without_a_question_or_answers_is_no_question_file(tmp_path: Path, row: dict[str, Any]) -> None:
    path = written(tmp_path / "f.jsonl", row)
    assert not is_question_file(path)
    with pytest.raises(DataError, match=r"f\.jsonl line 1: no column is known as"):
        list(read_problems(path))


VALUES: tuple[Any, ...] = (
    *(None, 3, 1.5, float("nan"), True, "text", "", [], [3], [None], ["text"], [[]], [["a"], 3], [[[]]], [{}], {}),
    *({"text": 3}, {"text": []}, {"title": [], "text": [1]}, {"title": 3, "text": "x"}, [{"role": 3, "content": [3]}]),
    *([{"role": "user"}], [[{"role": "user"}], 3], [{"turns": 3}], [{"turns": [3], "date": ""}], {"value": {}}),
)


@pytest.mark.parametrize("column", ["query", "gold", "ctxs", "sessions", "questions", "metadata", "memory", "evidence"])
def test_no_value_of_a_column_raises_anything_but_a_data_error(tmp_path: Path, column: str) -> None:
    path = tmp_path / "f.jsonl"
    for value in VALUES:
        path.write_text(json.dumps({"query": "Who?", "gold": "Ann", "ctxs": ["Ann ran."], column: value}))
        with contextlib.suppress(DataError):
            assert all(problem.by_question[0].question for problem in read_problems(path))


# ---- compressed files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_file_cut_or_damaged_anywhere_is_named(tmp_path: Path, ending: str) -> None:
    rows = b"".join(
        json.dumps({"n": number, "x": random.Random(number).random()}).encode() + b"\n" for number in range(99)
    )
    whole = packed(tmp_path / f"a.jsonl{ending}", rows).read_bytes()
    path = tmp_path / f"b.jsonl{ending}"
    for size in range(5, len(whole), 97):
        if size == whole.rfind(whole[:4]):
            continue  # the end of the first member
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"b\.jsonl.*fetch it again"):
            list(read_rows(path))
    path.write_bytes(whole + b"\0rest")
    with pytest.raises(DataError, match="fetch it again"):
        list(read_rows(path))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_file_that_unpacks_to_far_more_than_its_size_is_rejected_before_it_is_read(
    tmp_path: Path, name: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "UNPACKED", 1 << 20)
    start = {"a.jsonl": b'{"q": "', "a.json": b'[{"q": "', "a.csv": b"q\n", "a.parquet": b"PAR1"}[name]
    path = packed(tmp_path / f"{name}{ending}", start + b"x" * (1 << 25))
    assert path.stat().st_size < (1 << 25) / 100
    with pytest.raises(DataError, match=r"unpacks to more than 1,048,576 bytes .*(gunzip|unzstd)"):
        list(read_rows(path))


def test_compressed_texts_are_read_as_documents(tmp_path: Path) -> None:
    packed(tmp_path / "a.jsonl.gz", b'{"title": "T", "text": "one"}\n')
    packed(tmp_path / "b.txt.zst", b"two")
    assert [Path(part.file).name for part in read_files([tmp_path]).parts] == ["a.jsonl.gz", "b.txt.zst"]
    assert read_files([tmp_path / "a.jsonl.gz"]).text == "T\none"


@pytest.mark.parametrize("name", ["a b.docx", "a.epub"])
def test_a_document_of_another_program_is_rejected_with_the_command_that_converts_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04\0\0")
    for read in (read_files, lambda paths: list(read_rows(paths[0]))):
        with pytest.raises(DataError, match=r"pandoc .*\.txt'?$"):
            read([tmp_path / name])


def test_a_foreign_file_in_a_folder_is_named_and_a_hidden_name_excludes_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    foreign = tmp_path / "log.jsonl"
    foreign.write_text('{"level": "info"}\n')
    with pytest.raises(DataError, match=r"log\.jsonl, line 1: .* \.log\.jsonl"):
        read_files([tmp_path])
    foreign.rename(tmp_path / ".log.jsonl")
    assert read_files([tmp_path]).text == "text"


# ---- numpy and pandas ----------------------------------------------------------------------------------------


def arrays(value: Any) -> Any:
    """`value` as pandas reads it from parquet: arrays for lists, numpy scalars for numbers."""
    if isinstance(value, dict):
        return {key: arrays(inner) for key, inner in value.items()}
    if isinstance(value, list):
        made = np.empty(len(value), dtype=object)
        made[:] = [arrays(inner) for inner in value]
        return made
    return np.int64(value) if type(value) is int else np.nan if value is None else value


PUBLISHED: list[dict[str, Any]] = [
    {"id": "a", "question": "Who?", "answers": {"text": ["Ann"], "answer_start": [0]}, "context": "Ann ran."},
    {"question": "Who?", "golden_answers": ["Ann", "Anna"], "metadata": {"hops": 2, "kinds": ["x"]}},
    {
        "prompt": [{"role": "user", "content": "Who?"}], "context": "Ann ran.",
        "reward_model": {"ground_truth": ["Ann"]}, "extra_info": {"index": 4, "num_docs": 1},
    },
    {
        "id": "h", "question": "Who?", "answer": "Ann", "level": None,
        "context": {"title": ["A", "B"], "sentences": [["Ann ran.", " She sat."], ["Bob."]]},
        "supporting_facts": {"title": ["A"], "sent_id": [0]},
    },
    {"question": "Who?", "answers": [3, 2.5], "context": ["Ann ran."], "metadata": None},
    {"context": "Ann ran.", "questions": ["Who?", "What?"], "answers": [["Ann"], ["ran", "walked"]]},
    {"question": "Who?", "answer": 7, "haystack_sessions": [[{"role": "user", "content": "Seven."}]]},
]  # fmt: skip


@pytest.mark.parametrize("row", [*PUBLISHED, *(shape for shape, _ in SHAPES)])
def test_rows_of_numpy_are_those_of_a_file(tmp_path: Path, row: dict[str, Any]) -> None:
    (expected,) = read_problems(written(tmp_path / "f.jsonl", row), reading=ReadOptions())
    given = CallObjects("palimpsest.train")
    given.take_data([arrays(row)])
    with given.in_scope():
        (training,) = build_source(DataConfig(train_files=given.changes["data.train_files"]), split="eval").problems(
            step=0, count=1
        )
    (evaluated,) = as_problems(problems_of([arrays(row)], "data"))
    for problem in (training, evaluated):
        assert replace(problem, id=expected.id) == expected


def test_a_missing_value_of_pandas_is_an_absent_one() -> None:
    rows = [{"question": "Who?", "answers": np.nan, "context": np.array(["Ann ran."])}]
    (problem,) = as_problems(problems_of(rows, "data"))
    assert (problem.answers, problem.context) == ((), "Document 1:\nAnn ran.")


@pytest.mark.parametrize("digits", [308, 309, 310, 4300, 4301])
@pytest.mark.parametrize("wrapped", [lambda gold: gold, lambda gold: [-gold], lambda gold: {"text": [gold]}])
def test_a_long_integer_is_a_gold_text_up_to_the_limit_of_python(
    tmp_path: Path, digits: int, wrapped: Callable[[int], Any]
) -> None:
    gold = 10 ** (digits - 1)
    row = {"question": "How many?", "answers": wrapped(gold), "context": "Ann ran."}
    if digits > 4300:
        with pytest.raises(DataError, match="4300 digits"):
            as_problems(problems_of([row], "data"))
        return
    for (problem,) in (as_problems(problems_of([row], "data")), read_problems(written(tmp_path / "f.jsonl", row))):
        assert problem.answers[0].lstrip("-") == "1" + "0" * (digits - 1)
