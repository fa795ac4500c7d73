"""Evidence in an order and a distance asked for: synthetic, assembled, written and read again."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.config.load import parse_config
from palimpsest.data.assemble import Placing, assemble
from palimpsest.data.formats.problem_files import read_problems, read_records
from palimpsest.data.sources.file_source import FileSource
from palimpsest.data.synthetic.documents import make_problem
from palimpsest.data.synthetic.world import ATTRIBUTES
from palimpsest.errors import ConfigError, DataError
from support.records import CORPUS, record


@given(st.integers(0, 50), st.integers(2, 40), st.integers(0, 20), st.sampled_from(["forward", "reverse"]))
def test_synthetic_evidence_stands_in_order_and_at_its_distance(
    index: int, chunks: int, distance: int, order: Any
) -> None:
    problem = make_problem(
        0, "train", index, chunks=chunks, facts_per_chunk=2, hops=2, order=order, min_distance=distance
    )
    lines = (problem.context or "").split("\n")
    assert len(lines) == chunks
    places = [next(i for i, line in enumerate(lines) if text in line) for text in problem.metadata["evidence"]]
    assert places == problem.metadata["evidence_chunks"]
    step = places[1] - places[0] if order == "forward" else places[0] - places[1]
    assert step >= min(distance, chunks - 1)
    if distance == 0:
        text = problem.context or ""
        first, second = (text.find(piece) for piece in problem.metadata["evidence"])
        assert (first < second) == (order == "forward")


def test_places_are_uniform_over_those_that_order_and_distance_admit() -> None:
    counts = Counter(
        tuple(
            make_problem(0, "t", i, chunks=4, facts_per_chunk=2, hops=2, order="reverse", min_distance=2).metadata[
                "evidence_chunks"
            ]
        )
        for i in range(1200)
    )
    assert set(counts) == {(2, 0), (3, 0), (3, 1)}
    assert all(abs(count - 400) < 80 for count in counts.values())


def test_rivals_say_what_the_last_hop_asks_for_of_other_people() -> None:
    problem = make_problem(
        0, "t", 3, chunks=20, facts_per_chunk=2, hops=2, distractor_facts=0, rivals=1.0, order="reverse", min_distance=1
    )
    bridge, last = problem.metadata["evidence"]
    (relation,) = [r for r in ATTRIBUTES if any(f" {s.split()[1]} " in last for s in r.statements)]
    sentences = re.findall(r"[A-Z]\w+ \w+ \w+\.", problem.context or "")
    others = [sentence for sentence in sentences if sentence not in (bridge, last)]
    assert len(others) == 38
    verbs = {statement.split()[1] for statement in relation.statements}
    assert {sentence.split()[1] for sentence in others} <= verbs
    assert last.split()[0] not in {sentence.split()[0] for sentence in others}


def test_documents_without_an_order_are_the_bytes_they_were() -> None:
    plain = make_problem(0, "train", 5, chunks=6, hops=2)
    assert make_problem(0, "train", 5, chunks=6, hops=2, order="any", min_distance=0, rivals=0.0) == plain


@given(st.integers(20, 60), st.integers(1, 15), st.sampled_from(["forward", "reverse", "any"]), st.integers(0, 5))
def test_assembled_gold_stands_in_order_and_at_its_distance(
    documents: int, distance: int, order: Any, seed: int
) -> None:
    problem = assemble(record(), corpus=CORPUS, documents=documents, seed=seed, placing=Placing(order, distance))
    plain = assemble(record(), corpus=CORPUS, documents=documents, seed=seed)
    first, second = problem.metadata["evidence_positions"]
    assert abs(first - second) >= distance
    assert order == "any" or (first < second) == (order == "forward")
    parts = re.split(r"(?:^|\n\n)Document \d+:\n", problem.context or "")[1:]
    assert [parts[first - 1], parts[second - 1]] == list(record().gold)
    assert sorted(parts) == sorted(re.split(r"(?:^|\n\n)Document \d+:\n", plain.context or "")[1:])


def test_gold_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        DataError, match=r"2 gold paragraphs 30 documents apart need 31 documents, but data.documents=20"
    ):
        assemble(record(), corpus=CORPUS, documents=20, placing=Placing("reverse", 30))
    with pytest.raises(DataError, match="marks no gold paragraphs"):
        assemble(record(gold=()), corpus=CORPUS, documents=20, placing=Placing("reverse"))


def test_a_placing_without_a_meaning_is_refused() -> None:
    for text in ("data: {order: reverse}", "data: {train_files: a.json, min_distance: 3}"):
        with pytest.raises(ConfigError, match=r"data.order and data.min_distance place the gold paragraphs"):
            parse_config(text)


def hotpot(name: str) -> dict[str, Any]:
    return {
        "_id": name,
        "question": f"Who is {name}?",
        "answer": "Ann",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [[f"{name} 3", 0], [f"{name} 1", 0]],
        "context": [[f"{name} {i}", [f"Text {i} of {name}."]] for i in range(10)],
    }


def musique(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "question": f"Who is {name}?",
        "answer": "Ann",
        "answer_aliases": ["Anna"],
        "answerable": True,
        "paragraphs": [
            {"idx": i, "title": f"{name} {i}", "paragraph_text": f"Text {i}.", "is_supporting": i in (1, 3)}
            for i in range(10)
        ],
        "question_decomposition": [
            {"id": 1, "question": "a", "answer": "b", "paragraph_support_idx": 3},
            {"id": 2, "question": "c", "answer": "d", "paragraph_support_idx": 1},
        ],
    }


def file_of(folder: Path, row: Callable[[str], dict[str, Any]]) -> Path:
    path = folder / "questions.json"
    path.write_text(json.dumps([row(f"q{i}") for i in range(6)]))
    return path


@pytest.mark.parametrize("row", [hotpot, musique])
def test_hops_are_in_reasoning_order_in_every_format(tmp_path: Path, row: Any) -> None:
    first = next(read_records(file_of(tmp_path, row)))
    assert [text.split("\n")[0] for text in first.gold] == ["q0 3", "q0 1"]
    source = FileSource.open(tmp_path / "questions.json", split="eval", documents=40, placing=Placing("reverse", 15))
    for problem in source:
        late, early = problem.metadata["evidence_positions"]
        assert late - early >= 15


def test_musique_answers_hold_the_aliases_and_unanswerable_rows_are_refused(tmp_path: Path) -> None:
    (problem, *_) = read_problems(file_of(tmp_path, musique))
    assert problem.answers == ("Ann", "Anna")
    assert problem.metadata["hops"] == 2
    path = tmp_path / "full.json"
    path.write_text(json.dumps([{**musique("a"), "answerable": False}]))
    with pytest.raises(DataError, match="answerable is false"):
        list(read_problems(path))
