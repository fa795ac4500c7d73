"""The published files themselves, where they are at hand: $PALIMPSEST_DATA, or ../shared/data beside the checkout."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.question_splits import read_questions
from palimpsest.data.formats.problem_files import read_problems, read_records
from palimpsest.data.sources.file_source import FileSource
from palimpsest.report.dataset_summary import inspect_source
from palimpsest.reward.answer_match import measure
from palimpsest.types import Problem


def gold_paragraphs(row: dict[str, Any]) -> set[str]:
    """By the published description alone: `title`, newline, joined sentences of every supporting title."""
    if isinstance(row["context"], dict):
        paragraphs = list(zip(row["context"]["title"], row["context"]["sentences"], strict=True))
        titles = set(row["supporting_facts"]["title"])
    else:
        paragraphs = [(title, sentences) for title, sentences in row["context"]]
        titles = {title for title, _ in row["supporting_facts"]}
    return {title + "\n" + "".join(sentences) for title, sentences in paragraphs if title in titles}


@pytest.mark.parametrize(("name", "rows"), [("hotpotqa_train_100.json", 100), ("hotpotqa_dev_50.json", 50)])
@pytest.mark.parametrize("documents", [None, 10, 50, 200])
def test_every_context_holds_every_gold_paragraph(real_data: Path, name: str, rows: int, documents: int | None) -> None:
    raw = json.loads((real_data / name).read_text(encoding="utf-8"))
    source = FileSource.open(real_data / name, split="eval", documents=documents)
    problems = source.problems(step=0, count=rows)
    assert len(problems) == len(raw) == rows
    for problem, row in zip(problems, raw, strict=True):
        context = problem.context or ""
        gold = gold_paragraphs(row)
        assert gold
        assert set(problem.metadata["evidence"]) == gold
        assert all(paragraph in context for paragraph in gold)
        assert problem.answers == (row["answer"],)
        headings = [int(n) for n in re.findall(r"(?:\A|\n\n)Document (\d+):\n", context)]
        own = len(row["context"]["title"] if isinstance(row["context"], dict) else row["context"])
        assert headings == list(range(1, (documents or own) + 1))


def test_hub_and_official_layouts_of_the_same_rows_agree(real_data: Path, tmp_path: Path) -> None:
    official = json.loads((real_data / "hotpotqa_train_100.json").read_text(encoding="utf-8"))
    hub = [
        row
        | {
            "context": {"title": [t for t, _ in row["context"]], "sentences": [s for _, s in row["context"]]},
            "supporting_facts": {
                "title": [t for t, _ in row["supporting_facts"]],
                "sent_id": [i for _, i in row["supporting_facts"]],
            },
        }
        for row in official
    ]
    path = tmp_path / "hub.json"
    path.write_text(json.dumps(hub))
    sources = [
        FileSource.open(file, split="train", documents=100) for file in (real_data / "hotpotqa_train_100.json", path)
    ]
    assert sources[0].problems(step=1, count=20) == sources[1].problems(step=1, count=20)
    assert list(read_records(path)) == list(read_records(real_data / "hotpotqa_train_100.json"))


def test_the_gold_answer_scores_one_in_every_metric(real_data: Path) -> None:
    problems = [
        problem
        for name in ("hotpotqa_train_100.json", "hotpotqa_dev_50.json", "2wiki_questions_1000.json")
        for problem in read_problems(real_data / name)
    ]
    assert len(problems) == 1150
    for problem in problems:
        for gold in problem.answers[:5]:
            measured = measure(f"It is \\boxed{{{gold}}}.", problem.answers)
            short = "\\" not in gold and "{" not in gold and len(gold) < 250
            for name in ("boxed", "em", "f1", "sub_em", "sub_em_reverse", "sub_em_either", "answered"):
                assert measured[name] == 1.0, (problem.id, gold, name)
            assert measured["boxed_strict"] == 1.0 or not short, (problem.id, gold)


def test_answers_of_other_questions_are_not_accepted_but_where_they_are_the_same(real_data: Path) -> None:
    problems = list(read_problems(real_data / "hotpotqa_train_100.json"))
    accepted = [
        (a.answers[0], b.answers[0])
        for a in problems
        for b in problems
        if a is not b and measure(f"\\boxed{{{a.answers[0]}}}", b.answers)["boxed"] == 1.0
    ]
    assert all(a == b for a, b in accepted)


LAYOUTS: dict[str, Callable[[Problem], dict[str, Any]]] = {
    "qa": lambda p: {"answer": p.answers[0], "context": p.context},
    "squad": lambda p: {"answers": {"text": [p.answers[0]], "answer_start": [0]}, "context": p.context},
    "flashrag": lambda p: {"golden_answers": [p.answers[0]], "metadata": {"type": "bridge"}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_questions_in_other_layouts_are_the_same_problems(
    layout: str, real_data: Path, tmp_path: Path
) -> None:
    problems = list(read_problems(real_data / "hotpotqa_dev_50.json"))
    rows = [{"id": p.id, "question": p.question, **LAYOUTS[layout](p)} for p in problems]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for read, problem in zip(read_problems(path), problems, strict=True):
        assert (read.id, read.question, read.answers) == (problem.id, problem.question, problem.answers)
        assert read.context == (None if layout == "flashrag" else problem.context)


@pytest.mark.parametrize("key", ["sentences", "content"])  # HotpotQA's, 2WikiMultiHopQA's
def test_flashrag_rows_with_paragraphs_are_the_original_problems(real_data: Path, tmp_path: Path, key: str) -> None:
    original = real_data / "hotpotqa_dev_50.json"
    path = tmp_path / "dev.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(json.loads(original.read_text("utf-8"))):
            context = {"title": row["context"]["title"], key: row["context"]["sentences"]}
            metadata = {"type": row["type"], "context": context, "supporting_facts": row["supporting_facts"]}
            flashrag = {"id": f"dev_{number}", "question": row["question"], "golden_answers": [row["answer"]]}
            file.write(json.dumps({**flashrag, "metadata": metadata}) + "\n")
    for read, problem in zip(read_problems(path), read_problems(original), strict=True):
        assert (read.question, read.answers, read.context) == (problem.question, problem.answers, problem.context)
        assert read.metadata["evidence"] == problem.metadata["evidence"]
    assert len(read_questions([path]).records) == 50


def test_the_published_questions_as_a_table_are_the_same_problems(real_data: Path, tmp_path: Path) -> None:
    problems = list(read_problems(real_data / "hotpotqa_dev_50.json"))
    with (tmp_path / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "question", "answer", "context"])
        table.writerows([p.id, p.question, p.answers[0], p.context] for p in problems)
    read = [(p.id, p.question, p.answers, p.context) for p in read_problems(tmp_path / "rows.csv")]
    assert read == [(p.id, p.question, p.answers, p.context) for p in problems]


def test_inspection_of_the_published_file(real_data: Path) -> None:
    found = inspect_source(real_data / "hotpotqa_dev_50.json", documents=100)
    assert (found.format, found.rows, found.evidence_lost) == ("hotpotqa", 50, 0)
    assert sum(found.evidence) == 100  # two supporting paragraphs each
