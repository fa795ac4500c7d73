"""The published files, where available: $PALIMPSEST_DATA, or ../shared/data next to the checkout."""

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from palimpsest.app.datasets.question_splits import read_questions
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.data.record import objective_count
from palimpsest.data.sources.file_source import FileSource
from palimpsest.report.dataset_summary import inspect_source, render
from palimpsest.reward.answer_match import measure
from support.records import save


def rows_of(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


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
@pytest.mark.parametrize("documents", [None, 10, 200])
def test_contexts_contain_all_gold_paragraphs(real_data: Path, name: str, rows: int, documents: int | None) -> None:
    raw = rows_of(real_data / name)
    problems = FileSource.open(real_data / name, split="eval", documents=documents).problems(step=0, count=rows)
    assert len(problems) == len(raw) == rows
    for problem, row in zip(problems, raw, strict=True):
        context = problem.context or ""
        gold = gold_paragraphs(row)
        assert gold
        assert set(problem.metadata["evidence"]) == gold
        assert all(paragraph in context for paragraph in gold)
        assert problem.answers == (row["answer"],)
        headings = [int(n) for n in re.findall(r"(?:\A|\n\n)Document (\d+):\n", context)]
        related = len(row["context"]["title"] if isinstance(row["context"], dict) else row["context"])
        assert headings == list(range(1, (documents or related) + 1))


def test_the_gold_answer_scores_one_in_every_metric(real_data: Path) -> None:
    names = ("hotpotqa_train_100.json", "hotpotqa_dev_50.json", "2wiki_questions_1000.json")
    problems = [problem for name in names for problem in read_problems(real_data / name)]
    assert len(problems) == 1150
    for problem in problems:
        for gold in problem.answers[:5]:
            measured = measure(f"It is \\boxed{{{gold}}}.", problem.answers)
            short = "\\" not in gold and "{" not in gold and len(gold) < 250
            for name in ("boxed", "em", "f1", "sub_em", "sub_em_reverse", "sub_em_either", "answered"):
                assert measured[name] == 1.0, (problem.id, gold, name)
            assert measured["boxed_strict"] == 1.0 or not short, (problem.id, gold)


def test_answers_of_other_questions_are_accepted_only_where_equal(real_data: Path) -> None:
    golds = [problem.answers for problem in read_problems(real_data / "hotpotqa_train_100.json")]
    accepted = [(a[0], b[0]) for a in golds for b in golds if measure(f"\\boxed{{{a[0]}}}", b)["boxed"] == 1.0]
    assert len(accepted) >= len(golds)
    assert all(a == b for a, b in accepted)


@pytest.mark.parametrize("key", ["sentences", "content"])  # HotpotQA's, 2WikiMultiHopQA's
def test_flashrag_rows_with_paragraphs_are_the_original_problems(real_data: Path, tmp_path: Path, key: str) -> None:
    original = real_data / "hotpotqa_dev_50.json"
    flashrag = []
    for row in rows_of(original):
        context = {"title": row["context"]["title"], key: row["context"]["sentences"]}
        metadata = {"type": row["type"], "context": context, "supporting_facts": row["supporting_facts"]}
        flashrag.append({"question": row["question"], "golden_answers": [row["answer"]], "metadata": metadata})
    path = save(tmp_path / "dev.jsonl", *flashrag)
    for read, problem in zip(read_problems(path), read_problems(original), strict=True):
        assert (read.question, read.answers, read.context) == (problem.question, problem.answers, problem.context)
        assert read.metadata["evidence"] == problem.metadata["evidence"]
    assert len(read_questions([path]).records) == 50


def test_inspection_of_the_published_file(real_data: Path) -> None:
    result = inspect_source(real_data / "hotpotqa_dev_50.json", documents=100)
    assert (result.format, result.rows, result.evidence_lost) == ("hotpotqa", 50, 0)
    assert sum(result.evidence) == 100  # two supporting paragraphs each


def test_every_training_row_of_memact_is_read_and_agrees_with_its_columns(real_data: Path) -> None:
    path = real_data / "wiki_train_multi_object_2_3.parquet"
    problems = list(read_problems(path))
    assert Counter(map(objective_count, problems)) == {2: 1025, 3: 1023}
    assert sum("invalid" in problem.metadata for problem in problems) == 45
    for row, problem in zip(pq.read_table(path).to_pylist(), problems, strict=True):
        assert json.loads(problem.answers[0]) == json.loads(row["reward_model"]["ground_truth"])
        blocks = row["extra_info"]["question"].split("\n\n")  # one block per question between two sentences
        assert problem.question.split("\n") == [block.strip() for block in blocks[1:-3]]


def test_inspection_counts_objectives_and_invalid_golds_of_memact(real_data: Path) -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(render(inspect_source(real_data / "wiki_train_multi_object_2_3.parquet")))
    text = console.export_text()
    assert "(memact)" in text
    assert "2: 1,025, 3: 1,023" in text
    assert re.search(r"invalid-question golds +45\b", text)
    assert inspect_source(real_data / "wiki_val_512.parquet").invalid == 14
