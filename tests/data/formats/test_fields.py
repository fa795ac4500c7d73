"""Columns of any name: the same question, answers and document from every naming, container and numpy value."""

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palimpsest.app.evaluate.evaluation_data import as_problems
from palimpsest.app.python_objects import CallObjects, problems_of
from palimpsest.config.data import DataConfig
from palimpsest.data.formats.problem_files import ReadOptions, is_question_file, read_problems
from palimpsest.data.sources.file_source import FileSource, build_source
from palimpsest.errors import DataError
from palimpsest.report.dataset_summary import inspect_source
from support.records import save

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
QUERY = {"role": "user", "content": "Who?"}
QA = {"question": "Who?", "answer": "Ann"}
SHAPES: list[tuple[dict[str, Any], str | None]] = [
    ({"question": "Who?", "answers": ["Ann"], "ctxs": PASSAGES}, TITLED),
    (QA | {"ctxs": PASSAGES}, TITLED),
    ({"question": "Who?", "target": "Ann", "ctxs": renamed("title", "contents")}, TITLED),
    ({"Question": "Who?", "Answer": "Ann", "Paragraphs": renamed("title", "paragraph_text")}, TITLED),
    (QA | {"paragraphs": PASSAGES}, TITLED),
    ({"question": "Who?", "golden_answers": ["Ann"], "passages": PASSAGES}, TITLED),
    ({"question": "Who?", "answers": ["Ann"], "positive_ctxs": PASSAGES}, TITLED),
    ({"query": "Who?", "gold_answer": "Ann", "passage": "Ann ran."}, "Ann ran."),
    ({"query": "Who?", "answers": ["Ann"], "context": {"title": ["A", "B"], "text": ["Ann ran.", "Bob sat."]}}, TITLED),
    ({"query": "Who?", "answers": ["Ann"], "passages": {"passage_text": ["Ann ran.", "Bob sat."]}}, TEXTS),
    (QA | {"context": ["Ann ran.", "Bob sat."]}, TEXTS),
    ({"question": "Who?", "answers": ["Ann"], "contexts": ["Ann ran.", "Bob sat."]}, TEXTS),
    (QA | {"pages": [{"page": 1, "text": "Ann ran."}, {"text": "Bob sat."}]}, TEXTS),
    ({"question": "Who?", "answers": ["Ann"], "docs": [["A", ["Ann ran."]], ["B", ["Bob sat."]]]}, TITLED),
    ({"question": "Who?", "answers": ["Ann"], "docs": [["A", "Ann ran."], ["B", "Bob sat."]]}, TITLED),
    (QA | {"messages": CHATTING}, CHAT),
    (QA | {"conversation": turns("from", "value")}, CHAT),
    (QA | {"dialogue": turns("speaker", "text")}, CHAT),
    (QA | {"chat": [CHATTING]}, CHAT),
    ({"prompt": [QUERY], "response": "Ann", "text": "Ann ran."}, "Ann ran."),
    ({"instruction": "Who?", "input": "Ann ran.", "output": "Ann"}, "Ann ran."),
    ({"instruction": "Who?", "input": "Ann ran.", "output": "Ann", "text": "Who?\nAnn ran.\nAnn"}, "Ann ran."),
    ({"input": "Who?", "context": "Ann ran.", "output": "Ann"}, "Ann ran."),
    ({"question": "Who?", "answers": ["Ann"], "document": "Ann ran to Rome."}, "Ann ran to Rome."),
    ({"question": "Who?", "answer": {"value": "Ann", "aliases": ["Ann"]}, "context": "Ann ran."}, "Ann ran."),
    ({"question": "Who?", "answer": {"value": "Ann", "aliases": "Ann"}, "context": "Ann ran."}, "Ann ran."),
    (QA | {"text": "Who? Ann ran."}, "Who? Ann ran."),
    ({"question": {"text": "Who?"}, "answers": [{"text": "Ann"}], "context": "Ann ran."}, "Ann ran."),
    ({"query": {"text": "Who?", "tokens": ["Who", "?"]}, "answer": {"text": "Ann"}, "context": "Ann ran."}, "Ann ran."),
    (QA | {"messages": [*CHATTING, QUERY]}, f"{CHAT}\nuser: Who?"),
    (QA | {"context": None, "passages": PASSAGES}, TITLED),
    ({"problem": "Who?", "solution": "Ann"}, None),
    ({"problem": "Who?", "solution": "It is Ann.", "answer": "Ann"}, None),
    ({"problem": "Who?", "solution": "Ann", "messages": [QUERY, *CHATTING]}, None),
]
CONTAINERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "wrapped": lambda row: json.dumps({"version": "1", "data": [row]}),
    "split": lambda row: json.dumps({"train": [row]}),
    "listed": lambda row: json.dumps({"rows": [row]}),
    "pretty": lambda row: json.dumps({"data": [row]}, indent=2),
    "object": lambda row: json.dumps(row, indent=2),
    "csv": lambda row: {"q0": "x", **row},
    "tsv": lambda row: {"q0": "x", **row},
}
PACKED = ("json.gz", "jsonl.zst", "parquet.gz", "parquet.zst", "csv.gz", "csv.zst", "object.gz", "wrapped.zst")


@pytest.mark.parametrize("kind", [*CONTAINERS, "json", "jsonl", "parquet", *PACKED])
def test_a_row_is_the_same_problem_in_every_shape_and_container(read: Any, kind: str) -> None:
    for row, context in SHAPES:
        mixed = any(isinstance(value, list) and isinstance(value[0], list) for value in row.values())
        if mixed and kind.startswith("parquet"):
            continue  # parquet has no lists of mixed types
        contain = CONTAINERS.get(kind.split(".")[0])
        (problem,) = read(contain(row) if contain else row, name=f"f.{kind}")
        result = (problem.id, problem.question, problem.answers, problem.context)
        assert result == ("f-0", "Who?", ("Ann",), context), row


@pytest.mark.parametrize(("row", "context"), SHAPES)
def test_inspection_names_the_column_of_each_role(tmp_path: Path, row: dict[str, Any], context: str | None) -> None:
    path = save(tmp_path / "f.jsonl", row)
    result = inspect_source(path)
    assert result.sample.context == context
    assert result.taken["question"] in row
    assert result.taken["answers"] in row
    column, _, content = result.taken["document"].partition(": ")
    assert (column in row, bool(content)) == ((True, True) if context else (False, False))
    mapped = {role: result.taken[role] for role in ("question", "answers")}
    (again,) = read_problems(path, reading=ReadOptions(columns=mapped))
    assert (again.question, again.answers, again.context) == ("Who?", ("Ann",), context)


def test_inspection_shows_mapped_names_passages_and_columns_that_are_not_read(tmp_path: Path) -> None:
    row = {"q": "Who?", "reply": "Ann", "hits": PASSAGES, "embedding": [0.1], "level": "easy"}
    columns = {"answers": "reply", "context": "hits"}
    result = inspect_source(save(tmp_path / "f.jsonl", row), ReadOptions(columns=columns))
    assert result.taken == {
        "question": "q",
        "answers": "reply",
        "document": "hits: 2 passages",
        "not read": "embedding",
    }
    assert result.sample.metadata["level"] == "easy"
    assert inspect_source(save(tmp_path / "g.jsonl", QA | {"text": " "})).empty == ("g-0",)


def test_passages_take_distractors_and_marked_or_named_evidence(tmp_path: Path, read: Any) -> None:
    named: dict[str, Any] = QA | {"passages": PASSAGES, "metadata": {"evidence": ["Ann ran"]}}
    marked = QA | {"passages": [PASSAGES[0] | {"is_supporting": True}, PASSAGES[1]]}
    path = save(tmp_path / "f.jsonl", marked, named, QA | {"passages": [{"text": "Cid slept."}, *PASSAGES]})
    source = FileSource.open(path, split="eval", documents=3)
    assert [record.gold for record in source.records] == [("A\nAnn ran.",), ("A\nAnn ran.",), ()]
    assert all((problem.context or "").count("Document ") == 3 for problem in source)
    (problem,) = read(named | {"metadata": {"evidence": ["Ann ran. Bob sat."]}})  # across two passages
    assert (problem.context, problem.metadata["evidence"]) == (TITLED, ["Ann ran. Bob sat."])


@pytest.mark.parametrize(
    ("row", "role", "columns"),
    [
        (QA | {"answer": "Bob", "gold": "Ann", "text": "Ann ran."}, "answers", "answer gold"),
        ({"question": "Who?", "label": "Bob", "target": "Ann", "text": "Ann ran."}, "answers", "label target"),
        ({"query": "Who?", "problem": "Why?", "answers": "Ann", "text": "Ann ran."}, "question", "query problem"),
        (QA | {"text": "Ann ran.", "ctxs": PASSAGES}, "context", "text ctxs"),
    ],
)
def test_ambiguous_columns_need_a_map(read: Any, rejection: Any, row: dict[str, Any], role: str, columns: str) -> None:
    message = rejection(row)
    for column in columns.split():
        assert f"data.columns={role}={column}" in message
        (problem,) = read(row, columns={role: column})
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
def test_all_roles_without_a_column_are_in_one_map(rejection: Any, row: dict[str, Any], fix: str) -> None:
    assert re.findall(r"data\.columns='?([^';]*)", rejection(row)) == [fix]


def test_an_object_without_text_is_named_with_its_keys(rejection: Any) -> None:
    message = rejection({"question": {"words": "Who?"}, "answers": ["Ann"]})
    assert re.search(r"question\.text is missing.*there: words", message)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHATTING},
        {"conversations": turns("from", "value")},
        {"prompt": "Hi.", "prompt_id": "1", "messages": [{"role": "user", "content": "Hi."}, *CHATTING]},
        {"prompt": "Hi.", "messages": CHATTING},
        {"index": 1, "input": "Document 1: ... Who?", "outputs": ["Ann"]},
        {"question": "Who?", "reply": "Ann"},
        {"title": "A", "text": "Ann ran."},
    ],
)
def test_other_rows_are_no_question_file(tmp_path: Path, rejection: Any, row: dict[str, Any]) -> None:
    assert "f.jsonl line 1: no column is known as" in rejection(row)
    assert not is_question_file(tmp_path / "f.jsonl")


VALUES: tuple[Any, ...] = (
    *(None, 3, 1.5, float("nan"), True, "text", "", [], [3], [None], ["text"], [[]], [["a"], 3], [[[]]], [{}], {}),
    *({"text": 3}, {"text": []}, {"title": [], "text": [1]}, {"title": 3, "text": "x"}, [{"role": 3, "content": [3]}]),
    *([{"role": "user"}], [[{"role": "user"}], 3], [{"turns": 3}], [{"turns": [3], "date": ""}], {"value": {}}),
)


@pytest.mark.parametrize("column", ["query", "gold", "ctxs", "sessions", "questions", "metadata", "memory", "evidence"])
def test_values_of_a_column_raise_only_data_errors(read: Any, column: str) -> None:
    for value in VALUES:
        with contextlib.suppress(DataError):
            row = {"query": "Who?", "gold": "Ann", "ctxs": ["Ann ran."], column: value}
            assert all(problem.by_question[0].question for problem in read(row))


# ---- golds ---------------------------------------------------------------------------------------------------


def test_a_cell_mapped_to_answers_may_contain_a_list(read: Any) -> None:
    rows = [{"q": "Where?", "gold": '["Rome", "Roma"]'}, {"q": "How many?", "gold": "[5]"}, {"q": "When?", "gold": ""}]
    columns = {"question": "q", "answers": "gold"}
    from_table = read(*rows, name="t.csv", columns=columns)
    assert [problem.answers for problem in from_table] == [("Rome", "Roma"), ("[5]",), ()]
    assert read(*rows, columns=columns)[0].answers == ('["Rome", "Roma"]',)  # text in JSON lines is not parsed


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
)
def test_golds_of_a_table_may_be_a_list_in_python_syntax(read: Any, cell: str, answers: tuple[str, ...]) -> None:
    assert read({"question": "Who?", "answer": cell, "text": cell}, name="t.csv")[0].answers == answers
    assert read({"question": "Who?", "answer": cell})[0].answers == (cell,)


@pytest.mark.parametrize("gold", [None, float("nan"), [None], [float("nan"), None], [], ""])
def test_a_missing_gold_of_parquet_is_none(read: Any, gold: Any) -> None:
    assert read({"question": "Who?", "answer": gold}, name="t.parquet")[0].answers == ()


@pytest.mark.parametrize("gold", [True, False, [True]])
def test_a_boolean_gold_is_rejected_with_the_fix(rejection: Any, gold: Any) -> None:
    message = rejection({"question": "Is it?", "answer": gold})
    assert re.search(r"answer(\[0\])? must be a string, is (True|False): .*'yes'", message)


@pytest.mark.parametrize("digits", [308, 309, 310, 4300, 4301])
@pytest.mark.parametrize("wrapped", [lambda gold: gold, lambda gold: [-gold], lambda gold: {"text": [gold]}])
def test_an_integer_gold_has_at_most_4300_digits(read: Any, digits: int, wrapped: Callable[[int], Any]) -> None:
    row = {"question": "How many?", "answers": wrapped(10 ** (digits - 1)), "context": "Ann ran."}
    if digits > 4300:
        with pytest.raises(DataError, match="4300 digits"):
            as_problems(problems_of([row], "data"))
        return
    for (problem,) in (as_problems(problems_of([row], "data")), read(row)):
        assert problem.answers[0].lstrip("-") == "1" + "0" * (digits - 1)


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
        "prompt": [QUERY], "context": "Ann ran.",
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
def test_rows_of_numpy_equal_those_of_a_file(read: Any, row: dict[str, Any]) -> None:
    (expected,) = read(row)
    objects = CallObjects("palimpsest.train")
    objects.take_data([arrays(row)])
    with objects.in_scope():
        source = build_source(DataConfig(train_files=objects.changes["data.train_files"]), split="eval")
        (training,) = source.problems(step=0, count=1)
    (evaluated,) = as_problems(problems_of([arrays(row)], "data"))
    for problem in (training, evaluated):
        assert replace(problem, id=expected.id) == expected


def test_a_missing_value_of_pandas_is_absent() -> None:
    rows = [{"question": "Who?", "answers": np.nan, "context": np.array(["Ann ran."])}]
    (problem,) = as_problems(problems_of(rows, "data"))
    assert (problem.answers, problem.context) == ((), "Document 1:\nAnn ran.")
