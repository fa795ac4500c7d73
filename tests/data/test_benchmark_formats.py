"""Published benchmarks as their authors give them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts
from palimpsest.app.datasets.question_splits import Filters, read_where
from palimpsest.config.data import DataConfig
from palimpsest.data.formats.problem_files import format_of, read_problems
from palimpsest.data.sources.file_source import build_source
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
BEAM: dict[str, Any] = {
    "conversation_id": "7",
    "chat": [
        [
            {"role": "user", "content": "I bought a car.", "time_anchor": "March-15-2024", "id": 0},
            {"role": "assistant", "content": "Which one?", "id": 1},
        ],
        [{"role": "user", "content": "A red one.", "time_anchor": "May-02-2024", "id": 2}],
    ],
    "probing_questions": {
        "abstention": [{"question": "Who sold it?", "rubric": ["there is no information on who sold it"]}],
        "summarization": [{"question": "Sum it up.", "rubric": ["says: a car", "says: red", "says: a car"]}],
    },
}  # fmt: skip
POINTS = [("there is no information on who sold it",), ("says: a car", "says: red")]


def save(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps(list(rows)))
    return path


def test_choices_of_longbench_follow_the_question_and_the_gold_is_the_letter(tmp_path: Path) -> None:
    (problem,) = read_problems(save(tmp_path / "data.json", LONGBENCH))
    assert problem.question.splitlines()[:3] == ["Which?", "(A) one", "(B) two"]
    assert (problem.id, problem.answers, problem.context) == ("66f3", ("C",), "Three.")
    assert problem.metadata["difficulty"] == "hard"
    assert problem.grading == {"choice_letters": "ABCD"}
    with pytest.raises(DataError, match="answer='three' must be one of A, B, C, D"):
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


def test_a_chat_of_beam_is_dated_batches_and_questions_whose_golds_are_points_of_a_rubric(tmp_path: Path) -> None:
    (problem,) = read_problems(save(tmp_path / "100K.json", BEAM))
    assert problem.id == "7"
    assert [(each.text, each.answers) for each in problem.questions] == [
        ("Who sold it?", POINTS[0]),
        ("Sum it up.", POINTS[1]),
    ]
    assert problem.context == (
        "Document 1:\n[March-15-2024] user: I bought a car.\n[March-15-2024] assistant: Which one?\n\n"
        "Document 2:\n[May-02-2024] user: A red one."
    )
    assert problem.metadata["categories"] == ["abstention", "summarization"]


@pytest.mark.parametrize(
    "changed",
    [
        {"probing_questions": repr(BEAM["probing_questions"])},  # the hub's table
        {"probing_questions": json.dumps(BEAM["probing_questions"])},
        {"chat": [{"batch_number": 1, "turns": [batch]} for batch in BEAM["chat"]]},  # the repository's chat.json
        {"plans": [{"chat": BEAM["chat"][:1]}, {"chat": BEAM["chat"][1:]}], "chat": [{"plan-1": None}]},  # of 10M
        {"plans": None},
    ],
)
def test_a_chat_of_beam_reads_the_same_from_the_hub_and_from_its_repository(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    (plain,) = read_problems(save(tmp_path / "a.json", BEAM))
    assert list(read_problems(save(tmp_path / "b.json", BEAM | changed))) == [plain]


def test_questions_are_asked_one_by_one_on_the_same_document(tmp_path: Path) -> None:
    path = save(tmp_path / "beam.json", BEAM)
    config = DataConfig(train_files=str(path), split_questions=True)
    first, second = build_source(config, split="eval").problems(step=0, count=9)
    assert (first.id, first.question, first.answers) == ("7-q1", "Who sold it?", POINTS[0])
    assert (second.id, second.question, second.answers) == ("7-q2", "Sum it up.", POINTS[1])
    assert first.context is second.context
    assert (second.metadata["category"], second.metadata["question_number"]) == ("summarization", 2)
    assert "evidence" not in first.metadata
    one = build_source(config.model_copy(update={"limit": 1}), split="eval").problems(step=0, count=9)
    assert [problem.id for problem in one] == ["7-q1"]


def test_rows_of_one_source_are_written_apart_with_their_questions(tmp_path: Path) -> None:
    events = MEMORY | {"metadata": {"source": "eventqa_65536"}, "context": "A novel."}
    path = save(tmp_path / "Accurate_Retrieval.json", MEMORY, events)
    done = build_contexts(
        [path], Contexts(), filters=Filters(read_where(["source=eventqa_65536"])), out=tmp_path / "new"
    )
    assert (done.problems, done.left_out) == ({"eval.jsonl": 1}, {"another source": 1})
    (problem,) = read_problems(tmp_path / "new" / "eval.jsonl")
    assert (problem.context, len(problem.questions)) == ("A novel.", 2)
    with pytest.raises(DataError, match=r"Accurate_Retrieval\.json: no question remains \(another source: 2\)"):
        build_contexts([path], Contexts(), filters=Filters(read_where(["source=eventqa_full"])), out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (MEMORY | {"answers": [["chess"]]}, "questions and answers must be nonempty lists"),
        (LOCOMO | {"qa": [LOCOMO["qa"][2]]}, "no question has an answer"),
        (LOCOMO | {"conversation": {"session_1": "hi"}}, r"conversation\.session_1 must be a list of turns"),
        (BEAM | {"chat": "hi"}, "chat must be a list of batches of messages, is 'hi'"),
        (BEAM | {"chat": [{"plan-1": []}]}, r"chat\[0\]\.turns"),
        (BEAM | {"chat": [["hi"]]}, r"chat\[0\] must be messages with role and content"),
        (BEAM | {"plans": [{}]}, r"plans\[0\]\.chat"),
        (BEAM | {"probing_questions": "import os"}, "probing_questions must be an object"),
        (BEAM | {"probing_questions": {"a": [{"question": "Why?"}]}}, r"probing_questions\.a\[0\]\.rubric"),
        (BEAM | {"probing_questions": {"a": [{"question": "Why?", "rubric": []}]}}, r"rubric is empty"),
        (BEAM | {"probing_questions": {}}, "no question has an answer"),
    ],
)
def test_what_is_no_row_of_theirs_is_refused_by_name(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(read_problems(save(tmp_path / "f.json", row)))
