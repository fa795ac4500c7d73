"""Layouts of questions with a text, with documents, or with nothing to read: what becomes of a row, by hand."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.data.files.rows import Row
from palimpsest.data.formats.format_registry import FORMATS, recognise
from palimpsest.data.formats.problem_files import ReadOptions, read_problems, read_records
from palimpsest.errors import DataError
from palimpsest.types import Problem


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


QA = {"id": "a", "question": "Who?", "answer": "Ann", "context": "Ann ran.", "metadata": {"page": 3}}
SQUAD = {
    "id": "s",
    "title": "Runs",
    "context": "Ann ran.",
    "question": "Who?",
    "answers": {"text": ["Ann", "Ann ran", "Ann"], "answer_start": [0, 0, 0]},
}
SQUAD_FILE = {
    "version": "v2.0",
    "data": [
        {
            "title": "Runs",
            "paragraphs": [
                {
                    "context": "Ann ran.",
                    "qas": [
                        {
                            "id": "s",
                            "question": "Who?",
                            "is_impossible": False,
                            "answers": [{"text": t, "answer_start": 0} for t in ("Ann", "Ann ran", "Ann")],
                        },
                        {"id": "n", "question": "Where?", "is_impossible": True, "answers": []},
                    ],
                }
            ],
        }
    ],
}
SQUAD_LISTED = SQUAD | {"answers": [{"text": text, "answer_start": 0} for text in ("Ann", "Ann ran", "Ann")]}
FLASHRAG = {"id": "test_0", "question": "Who?", "golden_answers": ["Ann", "Anna"], "metadata": {"hops": 2, "type": "x"}}
LINKS = ["https://en.wikipedia.org/wiki/Ann", "https://en.wikipedia.org/wiki/Schindler's_List"]
FRAMES = {"Prompt": "Who?", "Answer": "Ann", "reasoning_types": "Multiple constraints", "wiki_links": str(LINKS)}
BAMBOOGLE = {"Question": "Who?", "Answer": "Ann"}
BROWSED = {
    "query_id": "769",
    "query": "Who ran?",
    "answer": "Ann",
    "gold_docs": [{"docid": "2", "text": "Ann ran."}],
    "evidence_docs": [{"docid": "1", "text": "Somebody ran."}, {"docid": "2", "text": "Ann ran."}],
    "negative_docs": [{"docid": "3", "text": "Bob sat."}],
}
DOCUMENTS = "Document 1:\nSomebody ran.\n\nDocument 2:\nAnn ran.\n\nDocument 3:\nBob sat."
EVIDENCE = {"num_docs": 3, "evidence": ("Somebody ran.", "Ann ran."), "evidence_positions": (1, 2)}
QUESTION = {"id": "q", "question": "Who?"}


@pytest.mark.parametrize(
    ("format", "row", "problem"),
    [
        ("qa", QA, Problem("a", "Who?", ("Ann",), "Ann ran.", {"page": 3})),
        ("squad", SQUAD, Problem("s", "Who?", ("Ann", "Ann ran"), "Ann ran.", {"title": "Runs"})),
        ("squad", SQUAD_LISTED, Problem("s", "Who?", ("Ann", "Ann ran"), "Ann ran.", {"title": "Runs"})),
        ("flashrag", FLASHRAG, Problem("test_0", "Who?", ("Ann", "Anna"), None, {"hops": 2, "type": "x"})),
        (
            "frames",
            FRAMES,
            Problem("f-0", "Who?", ("Ann",), None, {"wiki_links": LINKS, "reasoning_types": "Multiple constraints"}),
        ),
        ("bamboogle", BAMBOOGLE, Problem("f-0", "Who?", ("Ann",))),
        ("browsecomp_plus", BROWSED, Problem("769", "Who ran?", ("Ann",), DOCUMENTS, EVIDENCE)),
        ("question", QUESTION, Problem("q", "Who?", ())),
    ],
)
def test_a_row_becomes_the_problem_it_asks(tmp_path: Path, format: str, row: dict[str, Any], problem: Problem) -> None:
    path = lines(tmp_path / "f.jsonl", row)
    assert recognise(Row(row, "f")).name == format
    assert list(read_problems(path)) == [problem]


def test_squads_own_file_of_articles_is_read_as_its_rows_are(tmp_path: Path) -> None:
    path = tmp_path / "dev-v2.0.json"
    path.write_text(json.dumps(SQUAD_FILE))
    answered, unanswerable = read_problems(path)
    metadata = {"title": "Runs", "is_impossible": False}
    assert answered == Problem("s", "Who?", ("Ann", "Ann ran"), "Ann ran.", metadata)
    assert (unanswerable.id, unanswerable.answers, unanswerable.context) == ("n", (), "Ann ran.")
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "Ann ran.", "qas": [3]}]}]}))
    with pytest.raises(DataError, match=r"data\[0\]\.paragraphs\[0\]\.qas\[0\]: expected an object"):
        list(read_problems(path))


def test_the_same_columns_are_told_apart_by_what_stands_in_them() -> None:
    paragraphs = {"question": "Who?", "answer": "Ann", "context": [["A", ["Ann ran."]]]}
    assert recognise(Row(paragraphs, "f")).name == "hotpotqa"
    assert recognise(Row(paragraphs | {"context": "Ann ran."}, "f")).name == "qa"
    plain = {"question": "Who?", "answers": ["Ann"], "context": "Ann ran."}
    assert recognise(Row(plain, "f")).name == "palimpsest"


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_whatever_stands_in_the_columns_of_a_format_raises_nothing_but_a_data_error(
    format: str, tmp_path: Path
) -> None:
    columns = FORMATS[format].needs
    path = tmp_path / "f.jsonl"
    values: tuple[Any, ...] = (
        None,
        3,
        "text",
        "",
        [],
        [3],
        ["text"],
        [[]],
        {},
        {"text": 3},
        {"title": [], "sentences": []},
        True,
    )
    for value in values:
        lines(path, dict.fromkeys(columns, value))
        with contextlib.suppress(DataError):
            assert all(problem.question for problem in read_problems(path, format=format))


def test_an_encrypted_copy_is_named_with_its_row_and_the_way_out(tmp_path: Path) -> None:
    path = lines(tmp_path / "b.jsonl", BROWSED | {"query": "kJ2v9gQ3uM0Zt1yxqA=="})
    with pytest.raises(DataError, match=r"b\.jsonl line 1: query=.* is encrypted; decrypt the file with the script"):
        list(read_problems(path))


GOLDLESS = [
    QA | {"answer": None},
    QA | {"answer": ""},
    SQUAD | {"answers": {"text": [], "answer_start": []}},
    FLASHRAG | {"golden_answers": []},
    {"question": "Who?", "answers": None},
    {"question": "Who?", "answers": []},
    QUESTION | {"context": "Ann ran."},
]


@pytest.mark.parametrize("row", GOLDLESS)
def test_a_question_without_a_gold_is_a_problem_without_one(tmp_path: Path, row: dict[str, Any]) -> None:
    (problem,) = read_problems(lines(tmp_path / "f.jsonl", row))
    assert (problem.question, problem.answers) == ("Who?", ())


# ---- columns of other names ----------------------------------------------------------------------------------


def test_columns_may_lie_in_objects_and_lists_and_may_change_places(tmp_path: Path) -> None:
    row = {"answers": "Who?", "question": ["Ann"], "docs": [{"body": "Ann ran."}], "a.b": "plain"}
    columns = {"question": "answers", "answers": "question", "context": "docs.0.body", "memory": "a.b"}
    (problem,) = read_problems(lines(tmp_path / "f.jsonl", row), reading=ReadOptions(columns=columns))
    assert problem == Problem("f-0", "Who?", ("Ann",), "Ann ran.", memory="plain")


def test_a_mapped_column_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = lines(tmp_path / "f.jsonl", {"query": "Who?", "gold": ["Ann"]})
    with pytest.raises(
        DataError, match=r"line 1: data\.columns question=qery: the row has no qery; did you mean query"
    ):
        list(read_problems(path, reading=ReadOptions(columns={"question": "qery", "answers": "gold"})))


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ("quesion", "quesion; did you mean question?"),
        ("contxt", "contxt; did you mean context?"),
        ("zzz", "zzz (palimpsest's name"),
    ],
)
def test_a_name_of_ours_that_no_format_reads_is_named_with_the_nearest(tmp_path: Path, ours: str, words: str) -> None:
    """One that nothing needs, too: a question whose context went lost would be asked without it."""
    path = lines(tmp_path / "f.jsonl", {"question": "Who?", "answers": ["Ann"], "q": "Ann ran."})
    with pytest.raises(DataError) as caught:
        list(read_problems(path, reading=ReadOptions(columns={ours: "q"})))
    assert f"f.jsonl line 1: data.columns {ours}=q: no format reads a column {words}" in str(caught.value)


def test_columns_mapped_the_wrong_way_round_are_named_the_right_way_round(tmp_path: Path) -> None:
    path = lines(tmp_path / "f.jsonl", {"prompt": "Who?", "answers": ["Ann"]})
    with pytest.raises(DataError, match=r"data\.columns prompt=question: .*: write question=prompt"):
        list(read_problems(path, reading=ReadOptions(columns={"prompt": "question"})))


def test_a_column_of_one_of_several_files_is_told_by_the_files_name(tmp_path: Path) -> None:
    first = lines(tmp_path / "a.jsonl", {"q": "Who?", "answers": ["Ann"]})
    second = lines(tmp_path / "b.jsonl", {"text": "Where?", "answers": ["Rome"], "q": "x"})
    columns = {"question": "q", f"{second}:question": "text"}
    problems = list(read_problems([first, second], reading=ReadOptions(columns=columns)))
    assert [problem.question for problem in problems] == ["Who?", "Where?"]


def test_a_mapped_column_that_a_later_row_lacks_is_an_absent_one(tmp_path: Path) -> None:
    rows = [{"question": "Who?", "answers": ["Ann"], "text": "Ann ran."}, {"question": "Who?", "answers": ["Ann"]}]
    problems = read_problems(lines(tmp_path / "f.jsonl", *rows), reading=ReadOptions(columns={"context": "text"}))
    assert [problem.context for problem in problems] == ["Ann ran.", None]


# ---- gold that isn't there ---------------------------------------------------------------------------------------

HOTPOT = {"question": "Who?", "answer": "Ann", "context": [["A", ["Ann ran."]]], "supporting_facts": [["A", 0]]}
STRAY = HOTPOT | {"supporting_facts": [["B", 0]]}
HOPS = {
    "question": "Who?",
    "answer": "Ann",
    "paragraphs": [{"title": "A", "paragraph_text": "Ann ran.", "is_supporting": True}],
    "question_decomposition": [{"paragraph_support_idx": 0}],
}
STRAY_HOP = HOPS | {"question_decomposition": [{"paragraph_support_idx": 7}]}


@pytest.mark.parametrize(("good", "stray"), [(HOTPOT, STRAY), (HOPS, STRAY_HOP)])
def test_a_row_whose_gold_is_not_there_is_refused_or_left_out_and_told(
    tmp_path: Path, good: dict[str, Any], stray: dict[str, Any]
) -> None:
    path = lines(tmp_path / "f.jsonl", stray, good, stray)
    with pytest.raises(DataError, match=r"line 1: .*data\.on_missing_gold=skip"):
        list(read_records(path))
    skipped: list[str] = []
    (record,) = read_records(path, ReadOptions(skip_missing_gold=True), skipped=skipped)
    assert (record.id, record.answers) == ("f-1", ("Ann",))
    assert [said.split(":")[0] for said in skipped] == [f"{path} line 1", f"{path} line 3"]


def test_a_file_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "f.jsonl", STRAY, STRAY)
    with pytest.raises(DataError, match=r"data\.on_missing_gold=skip skips every row, the first because: .*'B'"):
        list(read_records(path, ReadOptions(skip_missing_gold=True)))
