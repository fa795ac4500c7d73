"""Published benchmarks in the layouts of their authors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts
from palimpsest.app.datasets.question_splits import Filters, read_where
from palimpsest.config.data import DataConfig
from palimpsest.data.formats.problem_files import ReadOptions, format_of, read_corpus, read_problems, read_records
from palimpsest.data.sources.file_source import build_source
from palimpsest.errors import DataError
from palimpsest.types import Problem
from support.records import save

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
        [{"role": "user", "content": "I bought a car.", "time_anchor": "March-15-2024", "id": 0},
         {"role": "assistant", "content": "Which one?", "id": 1}],
        [{"role": "user", "content": "A red one.", "time_anchor": "May-02-2024", "id": 2}],
    ],
    "probing_questions": {
        "abstention": [{"question": "Who sold it?", "rubric": ["there is no information on who sold it"]}],
        "summarization": [{"question": "Sum it up.", "rubric": ["says: a car", "says: red", "says: a car"]}],
    },
}  # fmt: skip
POINTS = [("there is no information on who sold it",), ("says: a car", "says: red")]


def test_choices_of_longbench_follow_the_question_and_the_gold_is_the_letter(read: Any, rejection: Any) -> None:
    (problem,) = read(LONGBENCH)
    assert problem.question.splitlines()[:3] == ["Which?", "(A) one", "(B) two"]
    assert (problem.id, problem.answers, problem.context) == ("66f3", ("C",), "Three.")
    assert problem.metadata["difficulty"] == "hard"
    assert problem.grading == {"choice_letters": "ABCD"}
    assert "answer='three' must be one of A, B, C, D" in rejection(LONGBENCH | {"answer": "three"})


def test_locomo_is_read_in_the_order_of_its_sessions_without_unanswerable_questions(read: Any) -> None:
    (problem,) = read(LOCOMO)
    assert problem.id == "conv-1"
    queried = [(item.text, item.answers) for item in problem.questions]
    assert queried == [("What colour?", ("red",)), ("Which year?", ("2022",))]
    context = problem.context or ""
    assert context.index("[8 May] Ann: Look. [picture: a red car]") < context.index("[9 May]")
    assert problem.metadata["evidence_positions"] == [1]
    assert (problem.metadata["left_out"], problem.metadata["categories"]) == (1, [4, 2])


def test_memoryagentbench_asks_all_questions_on_one_reading(tmp_path: Path, read: Any) -> None:
    (problem,) = read(MEMORY)
    assert format_of(tmp_path / "f.jsonl").name == "memoryagentbench"
    assert [item.answers for item in problem.questions] == [("chess", "Chess"), ("Ann",)]
    assert problem.metadata["source"] == "factconsolidation_sh_6k"


def test_a_chat_of_beam_is_dated_batches_and_questions_with_points_of_a_rubric(read: Any) -> None:
    (problem,) = read(BEAM)
    assert problem.id == "7"
    queried = [(item.text, item.answers) for item in problem.questions]
    assert queried == [("Who sold it?", POINTS[0]), ("Sum it up.", POINTS[1])]
    assert problem.context == (
        "Document 1:\n[March-15-2024] user: I bought a car.\n[March-15-2024] assistant: Which one?\n\n"
        "Document 2:\n[May-02-2024] user: A red one."
    )
    assert problem.metadata["categories"] == ["abstention", "summarization"]


@pytest.mark.parametrize(
    "changes",
    [
        {"probing_questions": repr(BEAM["probing_questions"])},  # the hub's table
        {"probing_questions": json.dumps(BEAM["probing_questions"])},
        {"chat": [{"batch_number": 1, "turns": [batch]} for batch in BEAM["chat"]]},  # the repository's chat.json
        {"plans": [{"chat": BEAM["chat"][:1]}, {"chat": BEAM["chat"][1:]}], "chat": [{"plan-1": None}]},  # of 10M
        {"plans": None},
    ],
)
def test_a_chat_of_beam_reads_the_same_from_the_hub_and_from_its_repository(read: Any, changes: dict[str, Any]) -> None:
    assert read(BEAM | changes) == read(BEAM)


def test_questions_may_be_split_into_problems_on_one_document(tmp_path: Path) -> None:
    config = DataConfig(train_files=str(save(tmp_path / "beam.json", BEAM)), split_questions=True)
    first, second = build_source(config, split="eval").problems(step=0, count=9)
    assert (first.id, first.question, first.answers) == ("7-q1", "Who sold it?", POINTS[0])
    assert (second.id, second.question, second.answers) == ("7-q2", "Sum it up.", POINTS[1])
    assert first.context is second.context
    assert (second.metadata["category"], second.metadata["question_number"]) == ("summarization", 2)
    assert "evidence" not in first.metadata
    one = build_source(config.model_copy(update={"limit": 1}), split="eval").problems(step=0, count=9)
    assert [problem.id for problem in one] == ["7-q1"]


def test_rows_of_one_source_are_extracted_with_their_questions(tmp_path: Path) -> None:
    events = MEMORY | {"metadata": {"source": "eventqa_65536"}, "context": "A novel."}
    path = save(tmp_path / "Accurate_Retrieval.json", MEMORY, events)

    def build(source: str, folder: str) -> Any:
        filters = Filters(read_where([f"source={source}"]))
        return build_contexts([path], Contexts(), filters=filters, out=tmp_path / folder)

    done = build("eventqa_65536", "new")
    assert (done.problems, done.left_out) == ({"eval.jsonl": 1}, {"another source": 1})
    (problem,) = read_problems(tmp_path / "new" / "eval.jsonl")
    assert (problem.context, len(problem.questions)) == ("A novel.", 2)
    with pytest.raises(DataError, match=r"Accurate_Retrieval\.json: no question remains \(another source: 2\)"):
        build("eventqa_full", "no")
    assert not (tmp_path / "no").exists()


# ---- MemAgent, RULER, vime -----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_memagent_train_rows(read: Any, suffix: str) -> None:
    row = {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": "Who?"}],
        "context": "Document 1:\nX\nIt was Y.",
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": ["Y", "Mr Y"]},
        "extra_info": {"index": 4, "question": "Who?", "num_docs": 1},
    }
    metadata = {"num_docs": 1, "index": 4, "data_source": "hotpotqa"}
    expected = Problem("train-0", "Who?", ("Y", "Mr Y"), "Document 1:\nX\nIt was Y.", metadata)
    assert read(row, name=f"train{suffix}") == [expected]
    del row["extra_info"]
    assert read(row, name=f"train{suffix}")[0].question == "Who?"


VIME: dict[str, Any] = {
    "prompt": "Q?",
    "label": "A",
    "metadata": {"context": "C", "ground_truth": ["A", "B"], "num_docs": 3},
}


@pytest.mark.parametrize(
    ("row", "answers", "metadata"),
    [
        ({"context": "C", "input": "Q?", "answers": ["A", "B"], "num_docs": 50}, "AB", {"num_docs": 50}),
        ({"index": 2, "input": "Q?", "context": "C", "outputs": ["7", "8"]}, "78", {"index": 2}),
        (VIME, "AB", {"num_docs": 3}),
        (VIME | {"metadata": {"context": "C", "num_docs": 3}}, "A", {"num_docs": 3}),
    ],
    ids=["memagent-eval", "ruler", "vime", "vime-label"],
)
def test_rows_with_a_finished_context(read: Any, row: dict[str, Any], answers: str, metadata: dict[str, int]) -> None:
    assert read(row) == [Problem("f-0", "Q?", tuple(answers), "C", metadata)]


def test_indexed_contexts_are_looked_up_in_the_sorted_corpus_of_their_folder(tmp_path: Path) -> None:
    texts = ["Bergen\nBergen is rainy.", "Norway\nNorway has a king.", "Oslo\nOslo lies on a fjord."]
    context = [[title, [text]] for title, text in (item.split("\n") for item in reversed(texts))]
    question = {"_id": "q1", "question": "Who?", "answer": "a king", "context": context, "supporting_facts": []}
    indexed = {"context": [2, 0], "input": "Q?", "answers": ["A"], "num_docs": 2, "index": 0}
    path = save(tmp_path / "eval_12800.json", indexed)
    with pytest.raises(DataError, match=r"document indices.*hotpotqa_dev\.json"):
        list(read_problems(path))
    corpus = save(tmp_path / "hotpotqa_dev.json", question, question | {"_id": "q2"})
    assert list(read_corpus(corpus).paragraphs) == texts
    (problem,) = read_problems(path)
    assert problem.context == f"Document 1:\n{texts[2]}\n\nDocument 2:\n{texts[0]}"
    assert problem.metadata["num_docs"] == 2
    (named,) = read_records(path, ReadOptions(corpus=corpus))
    assert named.paragraphs == (texts[2], texts[0])
    save(path, indexed | {"context": [0, 3]})
    with pytest.raises(DataError, match="index 3 is not in the corpus of 3 paragraphs"):
        list(read_problems(path))


# ---- MemAct --------------------------------------------------------------------------------------------------

THREE = (
    "\nYou need to answer the following 3 questions:\n\nQ1: Who is older?\n\nQ2: Where is Q1: the club?\n\n"
    "Q3: In what year?\n\nYou should answer the questions in the following format:\n\n"
    'FINAL_ANSWER: \n{\n  "Q1": "...",\n  "Q2": "..."\n}\n\n'
)


def memact(question: str, truth: str) -> dict[str, Any]:
    """A published row; the prompt has other questions, which must be ignored."""
    return {
        "data_source": "memagent",
        "prompt": [{"role": "system", "content": "Q1: wrong"}, {"role": "user", "content": "Q1: wrong\nQ2: wrong"}],
        "ability": "",
        "agent_name": "mem_agent",
        "reward_model": {"ground_truth": truth},
        "extra_info": {"question": question, "ground_truth": truth, "need_tools_kwargs": True},
    }


def test_a_memact_row_of_several_questions_becomes_objectives(read: Any) -> None:
    truth = '{"Q1": "Hal \\"Bulldog\\" Greer", "Q2": "the question is invalid.", "Q3": "1996"}'
    (problem,) = read(memact(THREE, truth))
    assert problem.context is None
    assert problem.question == "Q1: Who is older?\nQ2: Where is Q1: the club?\nQ3: In what year?"
    assert [json.loads(text) for text in problem.answers] == [json.loads(truth)]
    second = {"name": "Q2", "question": "Where is Q1: the club?", "answers": ["the question is invalid."]}
    assert problem.metadata["objectives"][1] == second
    assert problem.metadata["invalid"] == ("Q2",)


@pytest.mark.parametrize("truth", ["1996", "Tripoli", "[1, 2]", '"quoted"', "{not JSON"])
def test_a_memact_row_of_one_question_keeps_its_gold_unchanged(read: Any, truth: str) -> None:
    (problem,) = read(memact("Which city?", truth))
    assert (problem.question, problem.answers, dict(problem.metadata)) == ("Which city?", (truth,), {})


@pytest.mark.parametrize(
    ("question", "truth", "reason"),
    [
        (THREE, '{"Q1": "a", "Q2": "b"}', "extra_info.question must have one line for each of ground_truth's Q1, Q2"),
        ("Q1: a?\nQ2:\n", '{"Q1": "a", "Q2": "b"}', "extra_info.question must have one line"),
        (THREE, '{"Q1": "a", "Q3": "b", "Q2": "c"}', "in order"),
        (THREE, '{"Q1": "a", "Q2": " ", "Q3": "c"}', "ground_truth.Q2 is empty"),
        (THREE, '{"Q1": "a", "Q2": ["b"], "Q3": "c"}', "ground_truth.Q2 must be a string"),
        ("", "a", "extra_info.question is empty"),
    ],
)
def test_inconsistent_memact_rows_are_rejected(rejection: Any, question: str, truth: str, reason: str) -> None:
    message = rejection(memact("fine?", "a"), memact(question, truth))
    assert "line 2" in message
    assert reason in message


@pytest.mark.parametrize(
    ("row", "reason"),
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
def test_a_malformed_row_is_rejected_with_the_key(rejection: Any, row: dict[str, Any], reason: str) -> None:
    assert re.search(reason, rejection(row))


def test_a_blank_answer_of_locomo_is_no_gold(read: Any) -> None:
    blank = [entry | ({"answer": " "} if at == 0 else {}) for at, entry in enumerate(LOCOMO["qa"])]
    (problem,) = read(LOCOMO | {"qa": blank})
    assert [item.answers for item in problem.questions] == [(), ("2022",)]
