"""Published benchmarks as their authors give them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.data.problems import format_of, read_problems
from palimpsest.errors import DataError

LONGBENCH: dict[str, Any] = {
    "_id": "66f3", "domain": "Code", "sub_domain": "x", "difficulty": "hard", "length": "short", "question": "Which?",
    "choice_A": "one", "choice_B": "two", "choice_C": "three", "choice_D": "four", "answer": "C", "context": "Three.",
}  # fmt: skip
LOCOMO: dict[str, Any] = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Ann", "speaker_b": "Bob",
        "session_10_date_time": "9 May", "session_10": [{"speaker": "Bob", "dia_id": "D10:1", "text": "Later."}],
        "session_2_date_time": "8 May",
        "session_2": [{"speaker": "Ann", "dia_id": "D2:1", "text": "Look.", "blip_caption": "a red car"}],
    },
    "qa": [
        {"question": "What colour?", "answer": "red", "evidence": ["D2:1"], "category": 4},
        {"question": "Which year?", "answer": 2022, "evidence": [], "category": 2},
        {"question": "What of Rome?", "adversarial_answer": "no", "evidence": ["D2:1"], "category": 5},
    ],
}  # fmt: skip
MEMORY: dict[str, Any] = {
    "context": "0. Ann plays chess.", "questions": ["What does Ann play?", "Who plays?"],
    "answers": [["chess", "Chess"], ["Ann"]], "metadata": {"source": "factconsolidation_sh_6k", "keypoints": []},
}  # fmt: skip


def save(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps(list(rows)))
    return path


def test_choices_of_longbench_follow_the_question_and_the_gold_is_the_letter(tmp_path: Path) -> None:
    (problem,) = read_problems(save(tmp_path / "data.json", LONGBENCH))
    assert problem.question.splitlines()[:3] == ["Which?", "(A) one", "(B) two"]
    assert (problem.id, problem.answers, problem.context) == ("66f3", ("C",), "Three.")
    assert problem.metadata["difficulty"] == "hard"
    with pytest.raises(DataError, match="answer must be one of A, B, C, D, is 'three'"):
        list(read_problems(save(tmp_path / "data.json", LONGBENCH | {"answer": "three"})))


def test_locomo_is_read_in_the_order_of_its_sessions_without_questions_that_have_no_answer(tmp_path: Path) -> None:
    (problem,) = read_problems(save(tmp_path / "locomo10.json", LOCOMO))
    assert problem.id == "conv-1"
    assert [(each.text, each.answers) for each in problem.questions] == [
        ("What colour?", ("red",)),
        ("Which year?", ("2022",)),
    ]
    assert problem.context is not None
    first, second = problem.context.index("[8 May] Ann: Look. [picture: a red car]"), problem.context.index("[9 May]")
    assert first < second
    assert problem.metadata["evidence_positions"] == [1]
    assert (problem.metadata["left_out"], problem.metadata["categories"]) == (1, [4, 2])


def test_memoryagentbench_asks_all_questions_on_one_reading(tmp_path: Path) -> None:
    path = save(tmp_path / "m.json", MEMORY)
    assert format_of(path).name == "memoryagentbench"
    (problem,) = read_problems(path)
    assert [each.answers for each in problem.questions] == [("chess", "Chess"), ("Ann",)]
    assert problem.metadata["source"] == "factconsolidation_sh_6k"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (MEMORY | {"answers": [["chess"]]}, "questions and answers must be lists of one length"),
        (LOCOMO | {"qa": [LOCOMO["qa"][2]]}, "no question that has an answer"),
        (LOCOMO | {"conversation": {"session_1": "hi"}}, r"conversation\.session_1 must be a list of turns"),
    ],
)
def test_what_is_no_row_of_theirs_is_refused_by_name(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(read_problems(save(tmp_path / "f.json", row)))
