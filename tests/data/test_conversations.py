"""Dated sessions: every piece of a conversation says when it was."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.data.formats.problem_files import ReadOptions, read_problems
from palimpsest.data.formats.question_formats import LINE, pieces
from palimpsest.errors import DataError
from palimpsest.report.dataset_summary import inspect_source

DATES = ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 09:00"]
ROW: dict[str, Any] = {
    "question_id": "e47becba",
    "question_type": "single-session-user",
    "question": "What did I buy?",
    "answer": 3,
    "question_date": "2023/05/30 (Tue) 23:40",
    "haystack_dates": DATES,
    "haystack_session_ids": ["s1", "s2"],
    "haystack_sessions": [
        [{"role": "user", "content": "I bought a car."}, {"role": "assistant", "content": "Which one?"}],
        [{"role": "user", "content": "It rains."}],
    ],
    "answer_session_ids": ["s1"],
}
FIRST = f"[{DATES[0]}] user: I bought a car.\n[{DATES[0]}] assistant: Which one?"


def save(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps(list(rows)))
    return path


def test_a_row_of_longmemeval_by_hand(tmp_path: Path) -> None:
    (problem,) = read_problems(save(tmp_path / "l.json", ROW))
    assert problem.id == "e47becba"
    assert problem.question == "[2023/05/30 (Tue) 23:40] What did I buy?"
    assert problem.answers == ("3",)
    assert problem.context == f"Document 1:\n{FIRST}\n\nDocument 2:\n[{DATES[1]}] user: It rains."
    assert problem.metadata == {
        "question_type": "single-session-user",
        "question_date": "2023/05/30 (Tue) 23:40",
        "sessions": [{"id": "s1", "date": DATES[0]}, {"id": "s2", "date": DATES[1]}],
        "num_docs": 2,
        "evidence": [FIRST],
        "evidence_positions": [1],
    }


@pytest.mark.parametrize(("name", "grading"), [("e47becba_abs", {"abstention": True}), ("abs_e47becba", {})])
def test_a_row_of_longmemeval_without_an_answer_declares_an_abstention(
    name: str, grading: dict[str, bool], tmp_path: Path
) -> None:
    (problem,) = read_problems(save(tmp_path / "l.json", ROW | {"question_id": name}))
    assert problem.grading == grading


def test_sessions_of_our_own_layout_serve_several_questions_on_one_reading(tmp_path: Path) -> None:
    sessions = [{"date": date, "turns": turns} for date, turns in zip(DATES, ROW["haystack_sessions"], strict=True)]
    asked = [{"question": "What?", "answers": ["a car"]}, {"question": "When?", "answers": ["20 May"]}]
    path = save(tmp_path / "p.json", {"questions": asked, "sessions": sessions, "metadata": {"evidence_sessions": [1]}})
    (problem,) = read_problems(path)
    assert [one.text for one in problem.questions] == ["What?", "When?"]
    assert problem.metadata["evidence"] == [FIRST]
    assert problem.context == next(iter(read_problems(save(tmp_path / "l.json", ROW)))).context


@given(st.lists(st.text(alphabet="ab \n", max_size=4 * LINE), min_size=1, max_size=4))
def test_no_long_stretch_of_a_session_lacks_its_date(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "dated.json"
    turns = [{"role": "user", "content": text} for text in texts]
    (problem,) = read_problems(save(path, ROW | {"haystack_sessions": [turns, []]}))
    context = (problem.context or "").removeprefix("Document 1:\n").partition("\n\nDocument 2:")[0]
    beginning = f"[{DATES[0]}] user: "
    reach = LINE + 2 * len(beginning)
    for start in range(0, max(1, len(context) - reach), 97):
        assert beginning in context[start : start + reach]


@given(st.text(alphabet="ab \n", max_size=300), st.integers(2, 50))
def test_pieces_hold_the_words_in_their_order(text: str, size: int) -> None:
    cut = list(pieces(text, size))
    assert all(len(piece) <= size for piece in cut)
    assert "".join("".join(cut).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"haystack_dates": DATES[:1]}, ".* must be lists of equal length"),
        ({"haystack_sessions": "x"}, "haystack_sessions.* must be lists of equal length"),
        ({"haystack_sessions": [["x"], []]}, r"haystack_sessions\[0\]\[0\] must be an object with role and content"),
        (
            {"haystack_sessions": [[{"content": "x"}], []]},
            r"haystack_sessions\[0\]\[0\] must be an object with role and content",
        ),
        ({"haystack_sessions": ["x", []]}, r"haystack_sessions\[0\] must be a list of turns"),
        ({"answer_session_ids": ["s9"]}, "answer_session_ids: no session has the id 's9'; .*on_missing_gold=skip"),
    ],
)
def test_sessions_of_another_shape_are_named_with_their_place(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(DataError, match=rf"l\.json row 1: {says}"):
        list(read_problems(save(tmp_path / "l.json", ROW | changes)))


def test_contexts_of_sessions_are_finished_ones(tmp_path: Path) -> None:
    path = save(tmp_path / "l.json", ROW, ROW | {"answer_session_ids": ["s9"]})
    inspection = inspect_source(path, ReadOptions(skip_missing_gold=True))
    assert inspection.sessions is not None
    assert (inspection.sessions.most, inspection.evidence_lost, len(inspection.skipped)) == (2, 0, 1)
    with pytest.raises(DataError, match=r"data\.documents=5, but its file has fixed contexts"):
        inspect_source(path, ReadOptions(skip_missing_gold=True), documents=5)
