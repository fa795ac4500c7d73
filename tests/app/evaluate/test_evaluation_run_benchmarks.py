"""Protocols of benchmarks, played to the end against scripted endpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import palimpsest as library
from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts
from palimpsest.app.datasets.question_splits import Filters, read_where
from palimpsest.reward.model_judge import system_prompt
from support.endpoint_server import Server, endpoint_server
from support.judge_server import case_of, judge_server, verdict

BUDGETS = {"chunk_size": 1024, "memory_tokens": 256, "answer_tokens": 256}
"""They fit the endpoint's window of 4,096 tokens."""
CHAT = [
    [
        {"role": "user", "content": "I bought a car.", "time_anchor": "March-15-2024"},
        {"role": "assistant", "content": "Which one?"},
    ],
    [{"role": "user", "content": "A red one.", "time_anchor": "May-02-2024"}],
]
PROBING = {
    "information_extraction": [{"question": "What did I buy?", "rubric": ["says: car", "says: red"]}],
    "summarization": [{"question": "Sum it up.", "rubric": ["says: red", "says: blue", "says: reddish"]}],
}


def evaluated(data: Path, recipe: str, server: Server, tokenizer: Path, **overrides: Any) -> library.Evaluation:
    options: Any = {"base_url": server.url, "tokenizer": tokenizer, "baselines": False, "quiet": True}
    return library.evaluate("served", data, recipe=recipe, overrides=BUDGETS | overrides, **options)


def by_point(request: dict[str, Any], _: int = 0) -> str:
    """Correct where the answer has the point's last word, partial where it begins with a word of the answer."""
    case = case_of(request)
    wanted = case["references"][0].split()[-1]
    if wanted in case["answer"]:
        return verdict(request, "correct")
    return verdict(request, "partial" if any(map(wanted.startswith, case["answer"].split())) else "incorrect")


def test_beam_is_the_mean_over_rubric_points(tiny_model_folder: Path, tmp_path: Path) -> None:
    row = {"conversation_id": "1", "chat": CHAT, "probing_questions": repr(PROBING)}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "100K.jsonl").write_text(json.dumps(row))
    model = Server(takes="chat", speak=lambda body: "FINAL_ANSWER: a red car")
    with endpoint_server(model) as server, judge_server(by_point) as judge:
        judged: Any = {"reward.judge.url": judge.url, "reward.judge.model": "m"}
        evaluation = evaluated(tmp_path / "data", "eval/beam", server, tiny_model_folder, **judged)
    (sample,) = evaluation
    assert [item["value"] for item in sample.questions] == [1.0, pytest.approx(0.5)]  # (1 + 0 + 0.5) / 3 of the second
    assert sample.value == pytest.approx(0.75)
    assert [len(case_of(item)["references"]) for item in judge.requests] == [1] * 5
    assert {item["messages"][0]["content"] for item in judge.requests} == {system_prompt("rubric")}


def test_eventqa_reads_the_text_for_every_question(tiny_model_folder: Path, tmp_path: Path) -> None:
    events = ["Ann leaves.", "Bob sings."]
    row = {
        "context": "Ann was there. Ann leaves.",
        "questions": [f"Which event is next?\n1. {events[0]}\n2. {events[1]}\n({number})" for number in (1, 2)],
        "answers": [[events[0]], [events[1]]],
        "metadata": {"source": "eventqa_65536", "previous_events": ["Ann was there."]},
    }
    other = row | {"metadata": {"source": "ruler_qa1_197K"}}
    (tmp_path / "Accurate_Retrieval.json").write_text(json.dumps([other, row]))
    filters = Filters(read_where(["source=eventqa_65536"]))
    build_contexts([tmp_path / "Accurate_Retrieval.json"], Contexts(), filters=filters, out=tmp_path / "data")
    (tmp_path / "data" / "eval.jsonl").rename(tmp_path / "data" / "eventqa_65536.jsonl")
    with endpoint_server(Server(takes="chat", speak=lambda body: "Then ann LEAVES. That is it.")) as server:
        evaluation = evaluated(tmp_path / "data", "eval/eventqa", server, tiny_model_folder)
    assert [sample.value for sample in evaluation] == [1.0, 0.0]
    assert [sample.answers for sample in evaluation] == [(events[0],), (events[1],)]
    (summary,) = evaluation.summaries
    assert (summary.cell.set, summary.problems, summary.clusters) == ("eventqa_65536", 2, 1)
    read = [body for body in server.asked if "Ann was there" in json.dumps(body)]
    assert len(read) == 2, "each question reads the text anew"


def test_babilong_is_read_as_its_authors_publish_it(tiny_model_folder: Path, tmp_path: Path) -> None:
    row = {"input": "Mary went to the garden.", "question": "Where is Mary? ", "target": "garden"}
    (tmp_path / "qa1_4k.json").write_text(json.dumps([row]))
    (tmp_path / "qa1_1M.json").write_text(json.dumps([row | {"target": "kitchen"}]))
    with endpoint_server(Server(takes="chat", speak=lambda body: r"\boxed{In the garden.}")) as server:
        evaluation = evaluated(tmp_path, "eval/babilong", server, tiny_model_folder)
    assert {sample.set: (sample.answers, sample.value) for sample in evaluation} == {
        "qa1_4k": (("garden",), 1.0),
        "qa1_1M": (("kitchen",), 0.0),
    }
