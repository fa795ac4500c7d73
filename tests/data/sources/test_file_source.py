"""Problems of files as a pure function of (seed, step, round), with a document or as search problems."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.config_resolution import Agent, evaluation_config
from palimpsest.app.evaluate.evaluation_data import read_problems as evaluated_problems
from palimpsest.config.data import DataConfig, SearchDataConfig
from palimpsest.config.load import parse_config
from palimpsest.data.formats.problem_files import ReadOptions, write_problems
from palimpsest.data.record import objective_count
from palimpsest.data.sources.file_source import FileSource, SearchFileSource, SourceProblems, build_source
from palimpsest.errors import ConfigError, DataError
from palimpsest.types import Problem
from support.records import one_line_error, save


def problems_file(path: Path, count: int, letter: str = "p") -> Path:
    """`count` problems with the ids p0, p1, ..."""
    write_problems(path, [Problem(f"p{i}", f"{letter}{i}?", ("A",), f"{letter}{i}") for i in range(count)])
    return path


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    return problems_file(tmp_path / "ten.jsonl", 10)


def paragraphs_file(path: Path, questions: int = 5) -> Path:
    rows = [
        {
            **{"_id": f"h{i}", "question": "Who?", "answer": "A", "supporting_facts": [[f"T{i}-1", 0]]},
            "context": [[f"T{i}-{j}", [f"text {j}"]] for j in range(4)],
        }
        for i in range(questions)
    ]
    return save(path, *rows)


def ids(source: Any, step: int, count: int, round: int = 0) -> list[str]:
    return [problem.id for problem in source.problems(step=step, count=count, round=round)]


def test_an_epoch_shows_every_problem_once_and_the_next_in_another_order(ten: Path) -> None:
    source = FileSource.open(ten, split="train")
    epochs = [[name for step in range(5 * epoch, 5 * epoch + 5) for name in ids(source, step, 2)] for epoch in range(3)]
    assert [sorted(names) for names in epochs] == [[f"p{i}" for i in range(10)]] * 3
    assert len({tuple(names) for names in epochs}) == 3


def test_a_file_may_be_read_in_its_order(ten: Path) -> None:
    source = replace(FileSource.open(ten, split="train"), shuffle=False)
    assert [ids(source, step, 3) for step in range(4)] == [
        *(["p0", "p1", "p2"], ["p3", "p4", "p5"], ["p6", "p7", "p8"], ["p0", "p1", "p2"])
    ]
    assert ids(source, 0, 3, round=1) != ids(source, 1, 3, round=1)  # replacements of dropped groups are random
    assert build_source(DataConfig(train_files=str(ten), shuffle=False), split="train") == source
    with pytest.raises(ValueError, match=r"data\.shuffle=false reads the rows of a file"):
        DataConfig(train_files="synthetic", shuffle=False)


def test_steps_are_the_same_in_any_order_and_in_another_object(ten: Path) -> None:
    forward = [ids(FileSource.open(ten, split="train"), step, 3) for step in range(20)]
    source = FileSource.open(ten, split="train")
    assert [ids(source, step, 3) for step in reversed(range(20))] == forward[::-1]
    assert [ids(FileSource.open(ten, split="train", seed=1), step, 3) for step in range(20)] != forward


def test_problems_of_a_step_are_distinct_and_every_problem_appears(ten: Path) -> None:
    source = FileSource.open(ten, split="train")
    steps = [ids(source, step, 4) for step in range(50)]
    assert all(len(set(names)) == 4 for names in steps)
    assert len({name for names in steps for name in names}) == 10


def test_refill_rounds_of_a_step_bring_different_problems_and_are_reproducible(ten: Path) -> None:
    source = FileSource.open(ten, split="train")
    rounds = [ids(source, 3, 2, round) for round in range(4)]
    assert rounds == [ids(source, 3, 2, round) for round in range(4)]
    refills = [name for names in rounds[1:] for name in names]
    assert len(set(refills)) == len(refills) == 6
    assert ids(source, 3, 1, 1) == rounds[1][:1]


def test_evaluation_reads_from_the_front_at_every_step(ten: Path) -> None:
    source = FileSource.open(ten, split="eval")
    assert ids(source, 0, 3) == ids(source, 7, 3) == ["p0", "p1", "p2"]
    assert len(ids(source, 0, 99)) == 10


def test_a_step_larger_than_the_file_is_rejected(ten: Path) -> None:
    reason = "has 10 problems, a step needs 11: set train.batch_size=10 and train.num_minibatches=10"
    with pytest.raises(DataError, match=reason):
        FileSource.open(ten, split="train").problems(step=0, count=11)


def test_limit_keeps_the_first_problems_but_all_distractors(tmp_path: Path) -> None:
    path = paragraphs_file(tmp_path / "h.json")
    source = FileSource.open(path, split="train", documents=20, limit=2)
    assert sorted(ids(source, 0, 2)) == ["h0", "h1"]
    assert all(problem.metadata["num_docs"] == 20 for problem in source.problems(step=0, count=2))


def test_a_corpus_adds_distractors_at_any_limit(tmp_path: Path) -> None:
    corpus = save(tmp_path / "c.jsonl", *({"title": f"E{i}", "text": "e"} for i in range(6)))
    path = paragraphs_file(tmp_path / "h.json", questions=1)
    (problem,) = FileSource.open(path, split="eval", documents=10, reading=ReadOptions(corpus=corpus))
    assert sum(f"E{i}\ne" in (problem.context or "") for i in range(6)) == 6
    files = {"train_files": str(paragraphs_file(tmp_path / "few.json", questions=3)), "corpus": str(corpus)}
    config = DataConfig(**files, documents=18)
    full = build_source(config, split="eval").problems(step=0, count=3)
    assert all("E" in (problem.context or "") for problem in full)
    limited = build_source(config.model_copy(update={"limit": 1}), split="eval").problems(step=0, count=3)
    assert limited == full[:1]
    with pytest.raises(DataError, match=r"lower data\.documents"):
        build_source(config.model_copy(update={"corpus": None}), split="eval")


def test_more_documents_than_available_are_rejected_at_load(tmp_path: Path, ten: Path) -> None:
    path = paragraphs_file(tmp_path / "h.json")
    FileSource.open(path, split="train", documents=20)
    with pytest.raises(DataError, match=r"data.documents=21 needs 17 distractors, but the corpus has only 16"):
        FileSource.open(path, split="train", documents=21)
    with pytest.raises(DataError, match="its file has fixed contexts"):
        FileSource.open(ten, split="train", documents=21)


def test_several_numbers_of_documents_share_the_paragraphs_of_a_file(tmp_path: Path) -> None:
    path = paragraphs_file(tmp_path / "h.json", questions=9)
    config = parse_config(json.dumps({"data": {"train_files": str(path), "documents": 4}}))
    few, many = evaluated_problems(config, documents=(4, 12)).values()
    assert isinstance(few, SourceProblems)
    assert isinstance(many, SourceProblems)
    assert few.source.records is many.source.records
    assert list(many) == FileSource.open(path, split="eval", documents=12).problems(step=0, count=99)
    with pytest.raises(DataError, match=r"documents=99"):
        evaluated_problems(config, documents=(4, 99))


def test_build_source_reads_the_files_of_each_split(tmp_path: Path, ten: Path) -> None:
    held_out = tmp_path / "held_out.jsonl"
    write_problems(held_out, [Problem("e0", "Q?", ("A",), "C")])
    config = DataConfig(train_files=str(ten), val_files=str(held_out))
    assert len(ids(build_source(config, split="train"), 0, 4)) == 4
    assert ids(build_source(config, split="eval"), 0, 4) == ["e0"]
    assert ids(build_source(DataConfig(train_files=str(ten)), split="eval"), 0, 2) == ["p0", "p1"]
    assert len(build_source(DataConfig(), split="train").problems(step=0, count=2, size=3)) == 2
    with pytest.raises(DataError, match="no such file"):
        build_source(DataConfig(train_files=str(tmp_path / "absent.json")), split="train")


# ---- several files -------------------------------------------------------------------------------------------


def test_several_files_are_one_source_read_in_order_by_evaluation(tmp_path: Path) -> None:
    """Seven problems and five, with the same ids."""
    paths = tuple(str(problems_file(tmp_path / f"{name}.jsonl", size, name)) for name, size in (("a", 7), ("b", 5)))
    source = build_source(DataConfig(train_files=paths), split="train")
    assert isinstance(source, FileSource)
    epoch = [problem.question for step in range(4) for problem in source.problems(step=step, count=3)]
    assert sorted(epoch) == sorted([f"a{i}?" for i in range(7)] + [f"b{i}?" for i in range(5)])
    names = [problem.id for problem in source]
    assert len(set(names)) == 12
    assert names[6:9] == ["p6", "p0#2", "p1#2"]
    limited = build_source(DataConfig(train_files=paths, limit=2), split="eval").problems(step=0, count=99)
    assert [problem.question for problem in limited] == ["a0?", "a1?", "b0?", "b1?"]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (("a", "synthetic"), "a list may contain only files"),
        (("a", "a"), "name a file, or a list of different files"),
        ((), "name a file, or a list of different files"),
    ],
)
def test_invalid_lists_of_files_are_rejected(files: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        DataConfig.model_validate({"train_files": files})
    assert DataConfig.model_validate({"train_files": ["synthetic"]}) == DataConfig()


# ---- search problems of several questions --------------------------------------------------------------------


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    write_problems(path, [Problem(f"q{n}", f"question {n}?", (f"gold {n}", f"other {n}")) for n in range(10)])
    return path


def opened(path: Path, *objectives: int, split: Any = "train", seed: int = 0) -> SearchFileSource:
    return SearchFileSource.open(path, split=split, objectives=objectives, seed=seed)


def queried(problems: list[Problem]) -> list[str]:
    """Ids of all questions, in order."""
    return [part for problem in problems for part in problem.id.split("+")]


@pytest.mark.parametrize("objectives", [(1,), (2,), (5,), (1, 2), (1, 2, 4)])
def test_an_epoch_asks_every_question_once(questions: Path, objectives: tuple[int, ...]) -> None:
    source = opened(questions, *objectives)
    count = len(source._deal(None))
    epochs = [source.problems(step=step, count=count) for step in range(4)]
    for problems in epochs:
        assert len(set(queried(problems))) == len(queried(problems)) >= 10 - max(objectives) + 1
        assert set(map(objective_count, problems)) <= set(objectives)
    assert len({tuple(queried(problems)) for problems in epochs}) == 4
    assert opened(questions, *objectives).problems(step=3, count=count) == epochs[3]
    assert opened(questions, *objectives, seed=1).problems(step=3, count=2) != epochs[3][:2]


def test_combined_questions_keep_their_golds(questions: Path) -> None:
    for problem in opened(questions, 4).problems(step=0, count=2):
        numbers = [int(part[1:]) for part in problem.id.split("+")]
        assert json.loads(problem.answers[0]) == {f"Q{i}": f"gold {n}" for i, n in enumerate(numbers, 1)}
        golds = [one["answers"] for one in problem.metadata["objectives"]]
        assert golds == [[f"gold {n}", f"other {n}"] for n in numbers]
        assert problem.question == "\n".join(f"Q{i}: question {n}?" for i, n in enumerate(numbers, 1))


def test_evaluation_gets_single_questions_in_file_order_and_one_deal_of_several(questions: Path) -> None:
    single, several = opened(questions, 1, split="eval"), opened(questions, 2, split="eval")
    assert queried(single.problems(step=0, count=4)) == ["q0", "q1", "q2", "q3"]
    assert several.problems(step=0, count=99) == several.problems(step=7, count=99)
    assert sorted(queried(several.problems(step=0, count=99))) == sorted(f"q{n}" for n in range(10))
    assert several.problems(step=0, count=2) == several.problems(step=0, count=99)[:2]
    assert set(map(objective_count, single.problems(step=0, count=99, size=5))) == {5}


def test_more_questions_than_the_file_has_are_rejected(questions: Path) -> None:
    with pytest.raises(DataError, match=r"a problem needs 11: lower data\.search\.objectives"):
        opened(questions, 11)
    with pytest.raises(DataError, match="has 5 problems, a step needs 6"):
        opened(questions, 2).problems(step=0, count=6)


def test_contexts_are_dropped_and_refills_bring_other_questions(tmp_path: Path) -> None:
    rows = [Problem(f"q{n}", "Who?", ("x",), "a long document", {"level": "hard"}) for n in range(40)]
    write_problems(tmp_path / "rows.jsonl", rows)
    config = DataConfig(train_files=str(tmp_path / "rows.jsonl"), search=SearchDataConfig(objectives=1))
    source = build_source(config, split="train")
    first, refill = source.problems(step=0, count=4), source.problems(step=0, count=4, round=1)
    assert all(problem.context is None for problem in first)
    assert first[0].metadata == {"level": "hard"}
    assert queried(refill) != queried(first)


def test_rows_of_several_questions_are_not_combined_again(tmp_path: Path) -> None:
    truth = {"ground_truth": '{"Q1": "a", "Q2": "b"}'}
    extra = truth | {"question": "Q1: Who?\nQ2: Where?"}
    row = {"data_source": "memagent", "agent_name": "mem_agent", "prompt": [], "ability": ""}
    path = save(tmp_path / "rows.jsonl", row | {"reward_model": truth, "extra_info": extra})
    with pytest.raises(DataError, match=r"unset data\.search"):
        opened(path, 2)
    assert len(build_source(DataConfig(train_files=str(path)), split="eval").problems(step=0, count=9)) == 1


@pytest.mark.parametrize(("name", "rows"), [("2wiki_questions_1000.json", 1000), ("hotpotqa_train_100.json", 100)])
def test_published_questions_are_combined_into_objectives(real_data: Path, name: str, rows: int) -> None:
    def listed(answers: Any) -> list[str]:
        return [answers] if isinstance(answers, str) else list(answers or ())

    config = DataConfig(train_files=str(real_data / name), search=SearchDataConfig(objectives=(4,)))
    problems = build_source(config, split="train").problems(step=0, count=rows // 4)
    published = json.loads((real_data / name).read_text("utf-8"))
    golds = {row["question"]: {row.get("answer"), *listed(row.get("answers"))} for row in published}
    objectives = [one for problem in problems for one in problem.metadata["objectives"]]
    assert len(objectives) == rows
    assert all(set(one["answers"]) <= golds[one["question"].strip("\n")] for one in objectives)
    assert all(problem.context is None for problem in problems)


def evaluated(chunks: tuple[int, ...] | None = None, **options: Any) -> list[tuple[Any, Any]]:
    return list(evaluated_problems(evaluation_config(Agent(policy="overwrite"), **options), chunks).items())


def test_evaluation_plays_one_set_per_number_of_objectives(questions: Path) -> None:
    for part, problems in evaluated(data="synthetic_search", objectives=(4, 1), limit=5):
        assert len(problems) == 5
        assert {objective_count(p) for p in problems} == {part.size}
    sets = [(part.size, part.unit, len(related)) for part, related in evaluated(data=str(questions), objectives=(2, 5))]
    assert sets == [(2, "objectives", 5), (5, "objectives", 2)]
    assert [part.size for part, _ in evaluated(data="synthetic_search")] == [1, 2, 4]
    assert [(part.set, part.size) for part, _ in evaluated(data=str(questions))] == [("questions", None)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"data": "synthetic_search", "objectives": ("x",)}, "data.search.objectives"),
        ({"data": "synthetic", "objectives": (2,)}, "data.train_files=synthetic_search"),
        ({"data": "synthetic_search", "chunks": (4,)}, "takes objectives"),
        ({"data": "ten.jsonl", "objectives": (2,), "documents": 20}, "unset them"),
    ],
)
def test_sizes_of_another_kind_of_problem_are_rejected(options: dict[str, Any], reason: str) -> None:
    assert reason in one_line_error(ConfigError, evaluated, **options)
