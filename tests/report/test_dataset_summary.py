"""The summary of a file: counted by hand, printed without steering the terminal."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from palimpsest.errors import DataError
from palimpsest.report.dataset_summary import Quantiles, inspect_source, render, summarise
from palimpsest.types import Problem


def printed(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=160, force_terminal=False).print(renderable)
    return out.getvalue()


PROBLEMS = [
    Problem("a", "Who?", ("Ann",), "x" * 50 + "Ann" + "x" * 47, {"evidence": ["Ann"], "num_docs": 3}),
    Problem("b", "Where is it?", ("Oslo", "oslo"), "Bob", {"evidence": ["Ann"], "num_docs": 5}),
    Problem("c", "When?", ("1986",)),
]


def test_the_summary_by_hand() -> None:
    found = summarise(PROBLEMS)
    assert (found.rows, found.without_context, found.gold_in_context, found.evidence_lost) == (3, 1, 1, 1)
    assert found.golds == {1: 2, 2: 1}
    assert found.evidence == (0, 0, 0, 0, 0, 1, 0, 0, 0, 0)
    assert found.question_chars == Quantiles(4, 5, 12, 12)
    assert found.context_chars == Quantiles(3, 3, 100, 100)
    assert found.documents == Quantiles(3, 3, 5, 5)


@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 100])
def test_quantiles_are_nearest_rank(size: int) -> None:
    values = list(range(size, 0, -1))
    found = Quantiles.of(values)
    assert (found.least, found.most) == (1, size)
    assert sum(v <= found.p90 for v in values) >= 0.9 * size > sum(v < found.p90 for v in values)
    assert sum(v <= found.median for v in values) >= 0.5 * size > sum(v < found.median for v in values)


def test_a_file_is_summarised_as_training_would_read_it(tmp_path: Path) -> None:
    rows = [
        {
            "_id": f"h{i}",
            "question": "Who?",
            "answer": "text",
            "context": [[f"T{i}-{j}", [f"text {j}"]] for j in range(4)],
            "supporting_facts": [[f"T{i}-1", 0], [f"T{i}-2", 0]],
        }
        for i in range(30)
    ]
    path = tmp_path / "h.json"
    path.write_text(json.dumps(rows))
    found = inspect_source(path, documents=50, limit=20)
    assert (found.format, found.rows, found.evidence_lost, sum(found.evidence)) == ("hotpotqa", 20, 0, 40)
    assert found.documents == Quantiles(50, 50, 50, 50)
    text = printed(render(found))
    for part in ("hotpotqa", "question, characters", "start of the evidence", "first problem (h0)", "Document 1:"):
        assert part in text
    assert inspect_source(path).documents == Quantiles(4, 4, 4, 4)
    with pytest.raises(DataError, match="no such file"):
        inspect_source(tmp_path / "absent")


def test_generated_problems_are_summarised_as_an_evaluation_draws_them() -> None:
    assert (inspect_source("synthetic", limit=3).rows, inspect_source("synthetic", limit=3).gold_in_context) == (3, 3)


def test_text_of_the_file_can_neither_steer_the_terminal_nor_mark_up_the_output() -> None:
    wicked = Problem("id\x1b[2J", "[red]Who?[/red]\x07\u202e", ("a\x9b",), "ctx\x1b]0;title\x07 [/nope]")
    text = printed(render(summarise([wicked], path="[bold]file\x1b", format="palimpsest")))
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
    assert "[red]Who?[/red]" in text
