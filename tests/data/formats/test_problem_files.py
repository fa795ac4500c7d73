"""Files of problems: reading, renamed columns, writing, and rejected rows."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.data.formats.problem_files import ReadOptions, read_corpus, read_problems, write_problems
from palimpsest.errors import DataError
from palimpsest.types import Problem, Question
from support.records import save

QA: dict[str, Any] = {"question": "q", "answers": ["a"]}


def test_written_problems_are_read_back(tmp_path: Path) -> None:
    problems = [
        Problem("a", "Q?", ("A", "ä"), "C\n</memory> <|im_end|>", {"evidence": ["x"], "hops": 2}),
        Problem("b", "Search?", ("B",)),
        Problem("c", "Empty?", ("C",), ""),
    ]
    path = tmp_path / "mine.jsonl"
    assert write_problems(path, problems) == 3
    assert list(read_problems(path)) == problems
    assert list(read_problems(path, limit=2)) == problems[:2]


def test_a_writer_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    write_problems(path, [Problem("a", "Q?", ("A",))])

    def failing() -> Any:
        yield Problem("b", "Q?", ("A",))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_problems(path, failing())
    assert [problem.id for problem in read_problems(path)] == ["a"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.jsonl"]


def test_a_missing_folder_is_created_and_an_unusable_path_is_rejected_before_the_work(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "e.json"
    write_problems(path, [Problem("a", "Q?", ("A",), "C")])
    assert [problem.id for problem in read_problems(path)] == ["a"]

    def long_work() -> Any:
        raise AssertionError("started")
        yield

    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"e\.json: not writable \(.*\); use another path"):
        write_problems(tmp_path / "file" / "e.json", long_work())
    with pytest.raises(DataError, match="is a folder"):
        write_problems(tmp_path, long_work())


def test_ids_are_kept_or_numbered_and_repeated_ones_get_a_suffix(read: Any) -> None:
    rows = [QA | {"id": name} for name in ("x", 0, "x", None, "x")]
    assert [problem.id for problem in read(*rows)] == ["x", "0", "x#2", "f-3", "x#3"]
    assert [problem.id for problem in read(QA | {"_id": None, "id": 7})] == ["7"]


@pytest.mark.parametrize("names", [("a", "a", "a#2"), ("a#2", "a", "a"), ("a", "a#2", "a", "a#2")])
def test_an_id_with_a_suffix_differs_from_those_of_the_file(read: Any, names: tuple[str, ...]) -> None:
    assert len({problem.id for problem in read(*(QA | {"id": name} for name in names))}) == len(names)


def test_lone_surrogates_are_replaced_so_that_text_can_be_encoded(read: Any) -> None:
    (problem,) = read('{"question": "q\\ud800", "answers": ["a"], "context": "c\\udfff"}')
    assert problem.question.encode()
    assert problem.context.encode()


def test_metadata_is_converted_to_values_that_json_can_hold(read: Any) -> None:
    metadata = '{"size": 18446744073709551616, "note": "\\ud83d", "share": NaN, "hops": 2}'
    (problem,) = read(f'{{"question": "Who?", "answers": ["x"], "metadata": {metadata}}}\n')
    assert problem.metadata == {"size": "18446744073709551616", "note": "\ufffd" * 3, "share": "nan", "hops": 2}
    assert json.loads(json.dumps(problem.metadata, allow_nan=False).encode()) == problem.metadata


def test_bytes_and_dates_of_parquet_become_text_in_metadata(read: Any) -> None:
    row = {"context": "c", "input": "Who?", "outputs": ["x"], "raw": b"\xff", "day": datetime.date(2026, 1, 2)}
    (problem,) = read(row, name="ruler.parquet")
    assert problem.metadata == {"raw": "b'\\xff'", "day": "2026-01-02"}


def test_a_limit_reads_no_further_than_it_needs(tmp_path: Path) -> None:
    path = save(tmp_path / "cut.jsonl", f"{json.dumps(QA)}\n" * 2 + '{"cut')
    assert len(list(read_problems(path, limit=2))) == 2


def test_a_corpus_of_titles_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    passages = [{"title": "B", "text": "b."}, {"title": "A", "text": "a."}] * 2
    assert read_corpus(save(path, *passages)).paragraphs == ("A\na.", "B\nb.")
    with pytest.raises(DataError, match="no 'text'"):
        read_corpus(save(path, {"title": "B"}))


# ---- several questions ---------------------------------------------------------------------------------------

SEVERAL = {
    **{"id": "d", "context": "C"},
    "questions": [{"question": "Who?", "answers": ["A", "B"]}, {"question": "Where?", "answers": "R"}],
}


def test_rows_of_one_and_of_several_questions_are_read_and_written_alike(tmp_path: Path, read: Any) -> None:
    single = {"id": "s", "context": "C", "question": "Who?", "answers": ["A"]}
    alone = {"id": "a", "context": "C", "questions": [{"question": "Who?", "answers": ["A"]}]}
    problems = read(SEVERAL, single, alone)
    assert problems == [
        Problem.asking("d", (Question("Who?", ("A", "B")), Question("Where?", ("R",))), "C"),
        Problem("s", "Who?", ("A",), "C"),
        Problem("a", "Who?", ("A",), "C"),
    ]
    write_problems(tmp_path / "again.jsonl", problems)
    assert list(read_problems(tmp_path / "again.jsonl")) == problems


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"questions": []}, "questions must be a list of objects with question and answers, is []"),
        ({"questions": "Who?"}, "questions must be a list of objects with question and answers, is 'Who?'"),
        ({"questions": ["Who?"]}, "questions[0] must be an object with 'question', is 'Who?'"),
        ({"questions": [{"question": "Who?"}]}, "questions[0].answers is missing"),
        ({"questions": [{"question": "Who?", "answer": ["A"]}]}, "did you mean answer"),
        ({"questions": [{"question": " ", "answers": ["A"]}]}, "questions[0].question is empty"),
        ({"questions": [{"question": "Who?", "answers": [True]}]}, "questions[0].answers[0] must be a string"),
        ({"question": "Who?"}, "has both questions and question"),
        ({"answers": ["A"]}, "has both questions and answers"),
        (
            {"metadata": {"objectives": [{"name": "Q1", "question": "Who?", "answers": ["A"]}]}},
            "has both questions and metadata.objectives",
        ),
    ],
)
def test_malformed_questions_are_rejected_with_row_and_key(rejection: Any, changes: Any, reason: str) -> None:
    message = rejection(SEVERAL, SEVERAL | {"id": "e"} | changes)
    assert "f.jsonl line 2: " in message
    assert reason in message


# ---- columns of other names ----------------------------------------------------------------------------------


def test_mapped_columns_may_be_inside_objects_and_lists_and_may_be_swapped(read: Any) -> None:
    row = {"answers": "Who?", "question": ["Ann"], "docs": [{"body": "Ann ran."}], "a.b": "plain"}
    columns = {"question": "answers", "answers": "question", "context": "docs.0.body", "memory": "a.b"}
    assert read(row, columns=columns) == [Problem("f-0", "Who?", ("Ann",), "Ann ran.", memory="plain")]


@pytest.mark.parametrize(
    ("row", "columns", "reason"),
    [
        (
            {"query": "Who?", "gold": ["Ann"]},
            {"question": "qery", "answers": "gold"},
            "data.columns question=qery: the row has no qery; did you mean query",
        ),
        (QA | {"q": "x"}, {"quesion": "q"}, "quesion=q: no format reads a column quesion; did you mean question?"),
        (QA | {"q": "x"}, {"contxt": "q"}, "contxt=q: no format reads a column contxt; did you mean context?"),
        (QA | {"q": "x"}, {"zzz": "q"}, "data.columns zzz=q: no format reads a column zzz (palimpsest's name"),
        ({"prompt": "Who?", "answers": ["Ann"]}, {"prompt": "question"}, "write question=prompt"),
    ],
)
def test_a_wrong_map_of_columns_is_rejected(
    rejection: Any, row: dict[str, Any], columns: dict[str, str], reason: str
) -> None:
    message = rejection(row, columns=columns)
    assert "f.jsonl line 1: data.columns " in message
    assert reason in message


def test_a_map_may_name_one_of_several_files(tmp_path: Path) -> None:
    first = save(tmp_path / "a.jsonl", {"q": "Who?", "answers": ["Ann"]})
    second = save(tmp_path / "b.jsonl", {"text": "Where?", "answers": ["Rome"], "q": "x"})
    columns = {"question": "q", f"{second}:question": "text"}
    problems = list(read_problems([first, second], reading=ReadOptions(columns=columns)))
    assert [problem.question for problem in problems] == ["Who?", "Where?"]


def test_a_mapped_column_that_a_later_row_lacks_is_absent(read: Any) -> None:
    problems = read(QA | {"text": "Ann ran."}, QA, columns={"context": "text"})
    assert [problem.context for problem in problems] == ["Ann ran.", None]


# ---- bad rows ------------------------------------------------------------------------------------------------

MEMAGENT = {"prompt": [{"role": "user", "content": "Who?"}], "context": "c", "reward_model": {"ground_truth": ["x"]}}
MUSIQUE = {"question": "q", "answer": "a", "paragraphs": [{"title": "t", "paragraph_text": "p"}]}
ONE = {"question": "q", "answer": "a"}


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
        (QA | {"metadata": 3}, ["metadata must be an object"]),
        (ONE | {"context": []}, ["context", "nonempty list"]),
        (ONE | {"ctxs": [{"title": "", "text": " "}, ""]}, ["ctxs has no text"]),
        (ONE | {"ctxs": [{"title": "t", "txt": "s"}]}, ["ctxs[0].text", "did you mean txt?"]),
        (ONE | {"ctxs": ["s", 3]}, ["ctxs[1] must be a string", "3"]),
        (ONE | {"ctxs": {"id": ["1"], "text": []}}, ["ctxs", "equal length"]),
        (ONE | {"chat": [{"from": "a", "value": "b"}, 3]}, ["chat", "role and content"]),
        (ONE | {"context": [["t", ["s"]], ["t", [3]]]}, ["list of sentences"]),
        (ONE | {"context": [["t", ["s"]], ["t"]]}, ["pairs", "['t']"]),
        (
            ONE | {"context": [["t", ["s"]]], "supporting_facts": [["u", 0]]},
            ["supporting title 'u'", "distractor setting"],
        ),
        (
            ONE | {"context": {"title": ["t"], "sentence": [["s"]]}},
            ["context.sentences is missing", "did you mean sentence?"],
        ),
        (ONE | {"context": {"title": ["t"], "sentences": []}}, ["equal length"]),
        ({"prompt": [], "context": "c", "reward_model": {"ground_truth": ["a"]}}, ["role 'user'"]),
        ({"prompt": "q", "context": "c", "reward_model": {}}, ["reward_model.ground_truth is missing"]),
        ({"prompt": "q", "label": "a", "metadata": {"contxt": "c"}}, ["metadata.context", "did you mean contxt?"]),
        ({"input": "q", "context": [1, 2], "answers": ["a"]}, ["document indices", "hotpotqa_dev.json"]),
        (MEMAGENT | {"extra_info": "none"}, ["extra_info must be an object, is 'none'"]),
        (MUSIQUE | {"question_decomposition": 5}, ["question_decomposition must be a list of objects, is 5"]),
    ],
)
def test_a_bad_row_is_rejected(tmp_path: Path, rejection: Any, row: dict[str, Any], expected: list[str]) -> None:
    message = rejection(row)
    assert message.startswith(f"{tmp_path / 'f.jsonl'} line 1: ")
    assert [part for part in expected if part not in message] == []


def test_a_later_row_that_lacks_a_column_is_rejected_with_its_line(rejection: Any) -> None:
    message = rejection(QA, {"question": "q", "answer": "a"})
    assert "line 2: " in message
    assert "'answers' (did you mean 'answer'" in message
