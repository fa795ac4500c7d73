"""Sources: problems as a pure function of (seed, step, round)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest.config.data import DataConfig
from palimpsest.data.formats.problem_files import ReadOptions, write_problems
from palimpsest.data.sources.file_source import FileSource, build_source
from palimpsest.errors import DataError
from palimpsest.types import Problem


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    path = tmp_path / "ten.jsonl"
    write_problems(path, [Problem(f"p{i}", f"Question {i}?", ("A",), f"C{i}") for i in range(10)])
    return path


def paragraphs_file(path: Path, questions: int = 5) -> Path:
    rows = [
        {
            "_id": f"h{i}",
            "question": "Who?",
            "answer": "A",
            "context": [[f"T{i}-{j}", [f"text {j}"]] for j in range(4)],
            "supporting_facts": [[f"T{i}-1", 0]],
        }
        for i in range(questions)
    ]
    path.write_text(json.dumps(rows))
    return path


def ids(source: FileSource, step: int, count: int, round: int = 0) -> list[str]:
    return [problem.id for problem in source.problems(step=step, count=count, round=round)]


def test_an_epoch_shows_every_problem_once_and_the_next_in_another_order(ten: Path) -> None:
    source = FileSource.open(ten, split="train")
    epochs = [[name for step in range(5 * epoch, 5 * epoch + 5) for name in ids(source, step, 2)] for epoch in range(3)]
    for names in epochs:
        assert sorted(names) == [f"p{i}" for i in range(10)]
    assert len({tuple(names) for names in epochs}) == 3


def test_a_file_may_be_read_as_it_stands(ten: Path) -> None:
    source = replace(FileSource.open(ten, split="train"), shuffle=False)
    assert [ids(source, step, 3) for step in range(4)] == [
        ["p0", "p1", "p2"],
        ["p3", "p4", "p5"],
        ["p6", "p7", "p8"],
        ["p0", "p1", "p2"],
    ]
    assert ids(source, 0, 3, round=1) != ids(source, 1, 3, round=1)  # others in place of dropped groups are drawn
    assert build_source(DataConfig(train_files=str(ten), shuffle=False), split="train") == source
    with pytest.raises(ValueError, match=r"data\.shuffle=false reads the rows of a file"):
        DataConfig(train_files="synthetic", shuffle=False)


def test_steps_are_the_same_in_any_order_and_in_another_process_object(ten: Path) -> None:
    forward = [ids(FileSource.open(ten, split="train"), step, 3) for step in range(20)]
    source = FileSource.open(ten, split="train")
    assert [ids(source, step, 3) for step in reversed(range(20))] == forward[::-1]
    assert [ids(FileSource.open(ten, split="train", seed=1), step, 3) for step in range(20)] != forward


def test_no_step_holds_a_problem_twice_and_every_problem_turns_up(ten: Path) -> None:
    source = FileSource.open(ten, split="train")
    steps = [ids(source, step, 4) for step in range(50)]
    assert all(len(set(names)) == 4 for names in steps)
    assert len({name for names in steps for name in names}) == 10


def test_refill_rounds_of_a_step_bring_different_problems_and_repeat_themselves(ten: Path) -> None:
    source = FileSource.open(ten, split="train")
    rounds = [ids(source, 3, 2, round) for round in range(4)]
    assert rounds == [ids(source, 3, 2, round) for round in range(4)]
    refills = [name for names in rounds[1:] for name in names]
    assert len(set(refills)) == len(refills) == 6
    assert ids(source, 3, 1, 1) == rounds[1][:1]


def test_evaluation_reads_from_the_front_whatever_the_step(ten: Path) -> None:
    source = FileSource.open(ten, split="eval")
    assert ids(source, 0, 3) == ids(source, 7, 3) == ["p0", "p1", "p2"]
    assert len(ids(source, 0, 99)) == 10


def test_a_step_larger_than_the_file_is_refused(ten: Path) -> None:
    with pytest.raises(
        DataError, match=r"has 10 problems, a step needs 11: set train.batch_size=10 and train.num_minibatches=10"
    ):
        FileSource.open(ten, split="train").problems(step=0, count=11)


def test_limit_keeps_the_first_problems_but_all_distractors(tmp_path: Path) -> None:
    path = paragraphs_file(tmp_path / "h.json")
    source = FileSource.open(path, split="train", documents=20, limit=2)
    assert sorted(ids(source, 0, 2)) == ["h0", "h1"]
    assert all(problem.metadata["num_docs"] == 20 for problem in source.problems(step=0, count=2))


def test_a_corpus_of_its_own_widens_the_choice(tmp_path: Path) -> None:
    path = paragraphs_file(tmp_path / "h.json", questions=1)
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"title": f"E{i}", "text": "e"}) + "\n" for i in range(6)))
    (problem,) = FileSource.open(path, split="eval", documents=10, reading=ReadOptions(corpus=corpus)).problems(
        step=0, count=1
    )
    assert sum(f"E{i}\ne" in (problem.context or "") for i in range(6)) == 6


def test_documents_that_cannot_be_had_are_refused_at_load(tmp_path: Path, ten: Path) -> None:
    path = paragraphs_file(tmp_path / "h.json")
    FileSource.open(path, split="train", documents=20)
    with pytest.raises(DataError, match=r"data.documents=21 needs 17 distractors, but the corpus has only 16"):
        FileSource.open(path, split="train", documents=21)
    with pytest.raises(DataError, match="its file has fixed contexts"):
        FileSource.open(ten, split="train", documents=21)


def test_build_source_reads_what_the_recipe_names(tmp_path: Path, ten: Path) -> None:
    held_out = tmp_path / "held_out.jsonl"
    write_problems(held_out, [Problem("e0", "Q?", ("A",), "C")])
    config = DataConfig(train_files=str(ten), val_files=str(held_out))
    assert len(build_source(config, split="train").problems(step=0, count=4)) == 4
    assert [p.id for p in build_source(config, split="eval").problems(step=0, count=4)] == ["e0"]
    same = build_source(DataConfig(train_files=str(ten)), split="eval").problems(step=0, count=2)
    assert [p.id for p in same] == ["p0", "p1"]
    synthetic = build_source(DataConfig(), split="train").problems(step=0, count=2, size=3)
    assert len(synthetic) == 2
    with pytest.raises(DataError, match="no such file"):
        build_source(DataConfig(train_files=str(tmp_path / "absent.json")), split="train")


def test_a_corpus_adds_distractors_whatever_the_limit(tmp_path: Path) -> None:
    source = paragraphs_file(tmp_path / "few.json", questions=3)
    rows = [{"title": f"Extra {i}", "text": "more"} for i in range(40)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(train_files=str(source), documents=30, corpus=str(tmp_path / "corpus.jsonl"))
    whole = build_source(config, split="eval").problems(step=0, count=3)
    assert all("Extra " in (problem.context or "") for problem in whole)
    first = build_source(config.model_copy(update={"limit": 1}), split="eval").problems(step=0, count=3)
    assert first == whole[:1]
    with pytest.raises(DataError, match=r"lower data\.documents"):
        build_source(config.model_copy(update={"corpus": None}), split="eval")
