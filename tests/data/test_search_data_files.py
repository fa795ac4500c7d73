"""Search problems from published files: MemAct's RL parquet, questions dealt into several objectives."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.data import DataConfig, SearchDataConfig
from palimpsest.data.formats.problem_files import read_problems, write_problems
from palimpsest.data.record import objective_count
from palimpsest.data.sources.file_source import SearchFileSource, build_source
from palimpsest.errors import ConfigError, DataError
from palimpsest.report.dataset_summary import inspect_source, render
from palimpsest.types import Problem

THREE = (
    "\nYou need to answer the following 3 questions:\n\nQ1: Who is older?\n\nQ2: Where is Q1: the club?\n\n"
    "Q3: In what year?\n\nYou should answer the questions in the following format:\n\n"
    'FINAL_ANSWER: \n{\n  "Q1": "...",\n  "Q2": "..."\n}\n\n'
)


def memact_row(question: str, truth: str) -> dict[str, Any]:
    """As published; the prompt's text is another one, as it must not be looked at."""
    return {
        "data_source": "memagent",
        "prompt": [{"role": "system", "content": "Q1: wrong"}, {"role": "user", "content": "Q1: wrong\nQ2: wrong"}],
        "ability": "",
        "agent_name": "mem_agent",
        "reward_model": {"ground_truth": truth},
        "extra_info": {"question": question, "ground_truth": truth, "need_tools_kwargs": True},
    }


def save(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_a_published_row_of_several_questions_becomes_objectives_without_the_words_around_them(tmp_path: Path) -> None:
    truth = '{"Q1": "Hal \\"Bulldog\\" Greer", "Q2": "the question is invalid.", "Q3": "1996"}'
    (problem,) = read_problems(save(tmp_path / "rows.jsonl", memact_row(THREE, truth)))
    assert problem.context is None
    assert problem.question == "Q1: Who is older?\nQ2: Where is Q1: the club?\nQ3: In what year?"
    assert [json.loads(text) for text in problem.answers] == [json.loads(truth)]
    assert problem.metadata["objectives"][1] == {
        "name": "Q2",
        "question": "Where is Q1: the club?",
        "answers": ["the question is invalid."],
    }
    assert problem.metadata["invalid"] == ("Q2",)


@pytest.mark.parametrize("truth", ["1996", "Tripoli", "[1, 2]", '"quoted"', "{not JSON"])
def test_a_published_row_of_one_question_keeps_its_gold_to_the_letter(tmp_path: Path, truth: str) -> None:
    (problem,) = read_problems(save(tmp_path / "rows.jsonl", memact_row("Which city?", truth)))
    assert (problem.question, problem.answers, dict(problem.metadata)) == ("Which city?", (truth,), {})


@pytest.mark.parametrize(
    ("question", "truth", "said"),
    [
        (THREE, '{"Q1": "a", "Q2": "b"}', "extra_info.question must have one line for each of ground_truth's Q1, Q2"),
        ("Q1: a?\nQ2:\n", '{"Q1": "a", "Q2": "b"}', "extra_info.question must have one line"),
        (THREE, '{"Q1": "a", "Q3": "b", "Q2": "c"}', "in order"),
        (THREE, '{"Q1": "a", "Q2": " ", "Q3": "c"}', "ground_truth.Q2 is empty"),
        (THREE, '{"Q1": "a", "Q2": ["b"], "Q3": "c"}', "ground_truth.Q2 must be a string"),
        ("", "a", "extra_info.question is empty"),
    ],
)
def test_a_row_whose_questions_and_golds_disagree_is_refused_with_its_place(
    tmp_path: Path, question: Any, truth: Any, said: str
) -> None:
    path = save(tmp_path / "rows.jsonl", memact_row("fine?", "a"), memact_row(question, truth))
    with pytest.raises(DataError, match=re.escape(said)) as caught:
        list(read_problems(path))
    assert "line 2" in str(caught.value)


# ---- questions dealt into problems --------------------------------------------------------------------------


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    problems = [Problem(f"q{n}", f"question {n}?", (f"gold {n}", f"other {n}")) for n in range(10)]
    path = tmp_path / "ten.jsonl"
    write_problems(path, problems)
    return path


def opened(path: Path, *objectives: int, split: str = "train", seed: int = 0) -> SearchFileSource:
    return SearchFileSource.open(path, split=split, objectives=objectives, seed=seed)


def asked(problems: list[Problem]) -> list[str]:
    """Ids of all questions, in order."""
    return [part for problem in problems for part in problem.id.split("+")]


@pytest.mark.parametrize("objectives", [(1,), (2,), (5,), (1, 2), (1, 2, 4)])
def test_an_epoch_asks_every_question_once_in_another_order_each_time(ten: Path, objectives: tuple[int, ...]) -> None:
    source = opened(ten, *objectives)
    count = len(source._deal(None))
    epochs = [source.problems(step=step, count=count) for step in range(4)]
    for problems in epochs:
        assert len(set(asked(problems))) == len(asked(problems)) >= 10 - max(objectives) + 1
        assert set(map(objective_count, problems)) <= set(objectives)
    assert len({tuple(asked(problems)) for problems in epochs}) == 4
    assert opened(ten, *objectives).problems(step=3, count=count) == epochs[3]
    assert opened(ten, *objectives, seed=1).problems(step=3, count=2) != epochs[3][:2]


def test_combined_questions_keep_their_golds(ten: Path) -> None:
    for problem in opened(ten, 4).problems(step=0, count=2):
        numbers = [int(part[1:]) for part in problem.id.split("+")]
        assert json.loads(problem.answers[0]) == {f"Q{i}": f"gold {n}" for i, n in enumerate(numbers, 1)}
        assert [one["answers"] for one in problem.metadata["objectives"]] == [
            [f"gold {n}", f"other {n}"] for n in numbers
        ]
        assert problem.question == "\n".join(f"Q{i}: question {n}?" for i, n in enumerate(numbers, 1))


def test_evaluation_gets_single_questions_in_file_order_and_one_deal_of_several(ten: Path) -> None:
    single, several = opened(ten, 1, split="eval"), opened(ten, 2, split="eval")
    assert asked(single.problems(step=0, count=4)) == ["q0", "q1", "q2", "q3"]
    assert several.problems(step=0, count=99) == several.problems(step=7, count=99)
    assert sorted(asked(several.problems(step=0, count=99))) == sorted(f"q{n}" for n in range(10))
    assert several.problems(step=0, count=2) == several.problems(step=0, count=99)[:2]
    assert set(map(objective_count, single.problems(step=0, count=99, size=5))) == {5}


def test_more_than_the_file_holds_is_refused(ten: Path) -> None:
    with pytest.raises(DataError, match=r"a problem needs 11: lower data\.search\.objectives"):
        opened(ten, 11)
    with pytest.raises(DataError, match="has 5 problems, a step needs 6"):
        opened(ten, 2).problems(step=0, count=6)


def test_contexts_are_dropped_and_refills_bring_others(tmp_path: Path) -> None:
    rows = [Problem(f"q{n}", "Who?", ("x",), "a long document", {"level": "hard"}) for n in range(40)]
    write_problems(tmp_path / "rows.jsonl", rows)
    config = DataConfig(train_files=str(tmp_path / "rows.jsonl"), search=SearchDataConfig(objectives=1))
    source = build_source(config, split="train")
    first, refill = source.problems(step=0, count=4), source.problems(step=0, count=4, round=1)
    assert all(problem.context is None for problem in first)
    assert first[0].metadata == {"level": "hard"}
    assert asked(refill) != asked(first)


def test_rows_of_several_questions_are_not_dealt_out_again(tmp_path: Path) -> None:
    path = save(tmp_path / "rows.jsonl", memact_row(THREE, '{"Q1": "a", "Q2": "b", "Q3": "c"}'))
    with pytest.raises(DataError, match=r"unset data\.search"):
        opened(path, 2)
    assert len(build_source(DataConfig(train_files=str(path)), split="eval").problems(step=0, count=9)) == 1


# ---- the published files ------------------------------------------------------------------------------------


def test_every_published_training_row_is_read_and_agrees_with_its_columns(real_data: Path) -> None:
    import pyarrow.parquet as pq

    path = real_data / "wiki_train_multi_object_2_3.parquet"
    rows = pq.read_table(path).to_pylist()
    problems = list(read_problems(path))
    assert Counter(map(objective_count, problems)) == {2: 1025, 3: 1023}
    assert sum("invalid" in problem.metadata for problem in problems) == 45
    for row, problem in zip(rows, problems, strict=True):
        assert json.loads(problem.answers[0]) == json.loads(row["reward_model"]["ground_truth"])
        blocks = row["extra_info"]["question"].split("\n\n")  # by eye: one block a question between two sentences
        assert problem.question.split("\n") == [block.strip() for block in blocks[1:-3]]


def test_inspection_says_objectives_and_invalid_golds_of_the_published_files(real_data: Path) -> None:
    from rich.console import Console

    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(render(inspect_source(real_data / "wiki_train_multi_object_2_3.parquet")))
    said = console.export_text()
    assert "(memact)" in said
    assert "2: 1,025, 3: 1,023" in said
    assert re.search(r"invalid-question golds +45\b", said)
    assert inspect_source(real_data / "wiki_val_512.parquet").invalid == 14


@pytest.mark.parametrize(("name", "rows"), [("2wiki_questions_1000.json", 1000), ("hotpotqa_train_100.json", 100)])
def test_published_questions_are_dealt_into_objectives(real_data: Path, name: str, rows: int) -> None:
    config = DataConfig(train_files=str(real_data / name), search=SearchDataConfig(objectives=(4,)))
    problems = build_source(config, split="train").problems(step=0, count=rows // 4)
    golds = {
        row["question"]: {row.get("answer")} | set(_listed(row.get("answers")))
        for row in json.loads((real_data / name).read_text("utf-8"))
    }
    told = [one for problem in problems for one in problem.metadata["objectives"]]
    assert len(told) == rows
    assert all(set(one["answers"]) <= golds[one["question"].strip("\n")] for one in told)
    assert all(problem.context is None for problem in problems)


def _listed(answers: Any) -> list[str]:
    return [answers] if isinstance(answers, str) else list(answers or ())


# ---- on the command line ------------------------------------------------------------------------------------


def evaluated(**options: Any) -> list[tuple[Any, Any]]:
    from palimpsest.app.config_resolution import Agent, evaluation_config
    from palimpsest.app.evaluate.evaluation_data import read_problems as to_play

    chunks = options.pop("chunks", None)
    return list(to_play(evaluation_config(Agent(policy="overwrite"), **options), chunks).items())


def test_evaluation_plays_one_set_a_number_of_objectives(ten: Path) -> None:
    for part, problems in evaluated(data="synthetic_search", objectives=(4, 1), limit=5):
        assert len(problems) == 5
        assert {objective_count(p) for p in problems} == {part.size}
    sets = evaluated(data=str(ten), objectives=(2, 5))
    assert [(part.size, part.unit, len(own)) for part, own in sets] == [(2, "objectives", 5), (5, "objectives", 2)]
    assert [part.size for part, _ in evaluated(data="synthetic_search")] == [1, 2, 4]
    assert [(part.set, part.size) for part, _ in evaluated(data=str(ten))] == [("ten", None)]  # as the file has them


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data": "synthetic_search", "objectives": ("x",)}, "data.search.objectives"),
        ({"data": "synthetic", "objectives": (2,)}, "data.train_files=synthetic_search"),
        ({"data": "synthetic_search", "chunks": (4,)}, "takes objectives"),
        ({"data": "ten.jsonl", "objectives": (2,), "documents": 20}, "unset them"),
    ],
)
def test_sizes_of_another_kind_of_problem_are_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        evaluated(**options)
    assert "\n" not in str(caught.value)
