"""Each published layout becomes the same kind of problem. All samples are written by hand here."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.data.formats.problem_files import ReadOptions, read_corpus, read_problems, read_records, write_problems
from palimpsest.errors import DataError
from palimpsest.types import Problem, Question

PARAGRAPHS = [
    ["Oslo", ["Oslo lies on a fjord.", " It is the capital of Norway."]],
    ["Bergen", ["Bergen is rainy."]],
    ["Norway", ["Norway has a king."]],
]
TEXTS = [
    "Oslo\nOslo lies on a fjord. It is the capital of Norway.",
    "Bergen\nBergen is rainy.",
    "Norway\nNorway has a king.",
]
OFFICIAL = {
    "_id": "q1",
    "question": "Who rules the country whose capital lies on a fjord?",
    "answer": "a king",
    "type": "bridge",
    "level": "hard",
    "context": PARAGRAPHS,
    "supporting_facts": [["Norway", 0], ["Oslo", 0], ["Oslo", 1]],
}
HUB = OFFICIAL | {
    "context": {"title": [t for t, _ in PARAGRAPHS], "sentences": [s for _, s in PARAGRAPHS]},
    "supporting_facts": {"title": ["Norway", "Oslo", "Oslo"], "sent_id": [0, 0, 1]},
}
HUB = {("id" if key == "_id" else key): value for key, value in HUB.items()}
HUB_STRUCTS = HUB | {"context": [{"title": t, "sentences": s} for t, s in PARAGRAPHS]}


def save(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Written as its suffix says."""
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(rows, indent=1))
    return path


@pytest.mark.parametrize(
    ("layout", "suffix"),
    [
        (layout, suffix)
        for layout in ("official", "hub", "hub_structs")
        for suffix in (".json", ".jsonl", ".parquet")
        if (layout, suffix) != ("official", ".parquet")  # parquet has no lists of mixed types
    ],
)
def test_hotpotqa_layouts_give_one_problem(tmp_path: Path, layout: str, suffix: str) -> None:
    rows: dict[str, Any] = {"official": OFFICIAL, "hub": HUB, "hub_structs": HUB_STRUCTS}
    (problem,) = read_problems(save(tmp_path / f"a{suffix}", [rows[layout]]))
    assert problem == Problem(
        id="q1",
        question="Who rules the country whose capital lies on a fjord?",
        answers=("a king",),
        context="Document 1:\n" + TEXTS[0] + "\n\nDocument 2:\n" + TEXTS[1] + "\n\nDocument 3:\n" + TEXTS[2],
        metadata={
            "type": "bridge",
            "level": "hard",
            "supporting_titles": ("Norway", "Oslo"),
            "supporting_sentences": (
                "Norway has a king.",
                "Oslo lies on a fjord.",
                "It is the capital of Norway.",
            ),
            "num_docs": 3,
            "evidence": (TEXTS[2], TEXTS[0]),
            "evidence_positions": (3, 1),
        },
    )


def test_2wiki_rows_with_their_extra_columns_read_as_hotpotqa(tmp_path: Path) -> None:
    row = OFFICIAL | {"evidences": [["Norway", "capital", "Oslo"]], "answer_id": "Q1"}
    del row["level"]
    (problem,) = read_problems(save(tmp_path / "2wiki.json", [row]))
    assert problem.answers == ("a king",)
    assert problem.metadata["evidence"] == (TEXTS[2], TEXTS[0])


def test_a_title_that_occurs_twice_makes_both_paragraphs_gold(tmp_path: Path) -> None:
    row = OFFICIAL | {"context": [*PARAGRAPHS, ["Oslo", ["A ship."]]]}
    (record,) = read_records(save(tmp_path / "a.json", [row]))
    assert record.gold == (TEXTS[2], TEXTS[0], "Oslo\nA ship.")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_memagent_train_rows(tmp_path: Path, suffix: str) -> None:
    row = {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": "Who?"}],
        "context": "Document 1:\nX\nIt was Y.",
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": ["Y", "Mr Y"]},
        "extra_info": {"index": 4, "question": "Who?", "num_docs": 1},
    }
    (problem,) = read_problems(save(tmp_path / f"train{suffix}", [row]))
    metadata = {"num_docs": 1, "index": 4, "data_source": "hotpotqa"}
    assert problem == Problem("train-0", "Who?", ("Y", "Mr Y"), "Document 1:\nX\nIt was Y.", metadata)
    del row["extra_info"]
    (problem,) = read_problems(save(tmp_path / f"train2{suffix}", [row]))
    assert problem.question == "Who?"


def test_memagent_eval_ruler_and_vime_rows(tmp_path: Path) -> None:
    eval_row = {"context": "C", "input": "Q?", "answers": ["A", "B"], "num_docs": 50, "index": 9}
    ruler_row = {"index": 2, "input": "Q?", "context": "C", "outputs": ["7", "8"], "length": 8192}
    vime_row: dict[str, Any] = {
        "prompt": "Q?",
        "label": "A",
        "metadata": {"context": "C", "ground_truth": ["A", "B"], "num_docs": 3},
    }
    read = [
        next(read_problems(save(tmp_path / name, [row])))
        for name, row in (("eval_50.json", eval_row), ("ruler.jsonl", ruler_row), ("vime.jsonl", vime_row))
    ]
    assert read == [
        Problem("eval_50-0", "Q?", ("A", "B"), "C", {"num_docs": 50, "index": 9}),
        Problem("ruler-0", "Q?", ("7", "8"), "C", {"index": 2, "length": 8192}),
        Problem("vime-0", "Q?", ("A", "B"), "C", {"num_docs": 3}),
    ]
    del vime_row["metadata"]["ground_truth"]
    assert next(read_problems(save(tmp_path / "v.jsonl", [vime_row]))).answers == ("A",)


def test_indexed_contexts_are_looked_up_in_the_sorted_corpus_beside_them(tmp_path: Path) -> None:
    indexed = [{"context": [2, 0], "input": "Q?", "answers": ["A"], "num_docs": 2, "index": 0}]
    path = save(tmp_path / "eval_12800.json", indexed)
    with pytest.raises(DataError, match=r"document indices.*hotpotqa_dev\.json"):
        list(read_problems(path))
    corpus = save(tmp_path / "hotpotqa_dev.json", [OFFICIAL, OFFICIAL | {"_id": "q2"}])
    assert list(read_corpus(corpus).paragraphs) == sorted(TEXTS)
    (problem,) = read_problems(path)
    assert problem.context == f"Document 1:\n{TEXTS[0]}\n\nDocument 2:\n{TEXTS[1]}"  # Bergen, Norway, Oslo
    assert problem.metadata["num_docs"] == 2
    (named,) = read_records(path, ReadOptions(corpus=corpus))
    assert named.paragraphs == (TEXTS[0], TEXTS[1])
    save(path, [indexed[0] | {"context": [0, 3]}])
    with pytest.raises(DataError, match="index 3 is not in the corpus of 3 paragraphs"):
        list(read_problems(path))


def test_a_corpus_of_titles_and_texts(tmp_path: Path) -> None:
    path = save(tmp_path / "c.json", [{"title": "B", "text": "b."}, {"title": "A", "text": "a."}] * 2)
    assert read_corpus(path).paragraphs == ("A\na.", "B\nb.")
    with pytest.raises(DataError, match="no 'text'"):
        read_corpus(save(path, [{"title": "B"}]))


def test_our_own_file_gives_back_what_was_written(tmp_path: Path) -> None:
    problems = [
        Problem("a", "Q?", ("A", "ä"), "C\n</memory> <|im_end|>", {"evidence": ["x"], "hops": 2}),
        Problem("b", "Search?", ("B",)),
        Problem("c", "Empty?", ("C",), ""),
    ]
    path = tmp_path / "mine.jsonl"
    assert write_problems(path, problems) == 3
    assert list(read_problems(path)) == problems
    assert list(read_problems(path, limit=2)) == problems[:2]


def test_a_writer_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    write_problems(path, [Problem("a", "Q?", ("A",))])

    def failing() -> Any:
        yield Problem("b", "Q?", ("A",))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_problems(path, failing())
    assert [problem.id for problem in read_problems(path)] == ["a"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.jsonl"]


def test_a_folder_to_write_into_is_made_and_one_that_cannot_be_is_told_before_the_work(tmp_path: Path) -> None:
    write_problems(tmp_path / "new" / "folder" / "e.json", [Problem("a", "Q?", ("A",), "C")])
    assert [problem.id for problem in read_problems(tmp_path / "new" / "folder" / "e.json")] == ["a"]

    def long_work() -> Any:
        raise AssertionError("begun")
        yield

    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"e\.json: not writable \(.*\); use another path"):
        write_problems(tmp_path / "file" / "e.json", long_work())
    with pytest.raises(DataError, match="is a folder"):
        write_problems(tmp_path, long_work())


def test_ids_are_kept_made_and_made_unique(tmp_path: Path) -> None:
    rows = [{"question": "q", "answers": ["a"], "id": name} for name in ("x", 0, "x", None, "x")]
    ids = [problem.id for problem in read_problems(save(tmp_path / "f.jsonl", rows))]
    assert ids == ["x", "0", "x#2", "f-3", "x#3"]


@pytest.mark.parametrize("names", [("a", "a", "a#2"), ("a#2", "a", "a"), ("a", "a#2", "a", "a#2")])
def test_an_id_made_unique_is_not_one_that_the_file_has(tmp_path: Path, names: tuple[str, ...]) -> None:
    rows = [{"question": "q", "answers": ["a"], "id": name} for name in names]
    ids = [problem.id for problem in read_problems(save(tmp_path / "f.jsonl", rows))]
    assert len(set(ids)) == len(names)


def test_a_row_whose_underscored_id_is_null_keeps_its_other_one(tmp_path: Path) -> None:
    rows = [{"question": "q", "answers": ["a"], "_id": None, "id": 7}]
    (problem,) = read_problems(save(tmp_path / "f.jsonl", rows))
    assert problem.id == "7"


def test_lone_surrogates_are_replaced_so_that_text_can_be_encoded(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"question": "q\\ud800", "answers": ["a"], "context": "c\\udfff"}')
    (problem,) = read_problems(path)
    problem.question.encode()
    assert problem.context is not None
    problem.context.encode()


def test_metadata_of_any_kind_reads_as_what_json_and_a_record_can_hold(tmp_path: Path) -> None:
    file = tmp_path / "odd.jsonl"
    metadata = '{"size": 18446744073709551616, "note": "\\ud83d", "share": NaN, "hops": 2}'
    file.write_text(f'{{"question": "Who?", "answers": ["x"], "metadata": {metadata}}}\n')
    (problem,) = read_problems(file)
    assert problem.metadata == {"size": "18446744073709551616", "note": "\ufffd" * 3, "share": "nan", "hops": 2}
    assert json.loads(json.dumps(problem.metadata, allow_nan=False).encode()) == problem.metadata


def test_bytes_and_dates_of_parquet_become_text_in_metadata(tmp_path: Path) -> None:
    row = {"context": "c", "input": "Who?", "outputs": ["x"], "raw": b"\xff", "day": datetime.date(2026, 1, 2)}
    (problem,) = read_problems(save(tmp_path / "ruler.parquet", [row]))
    assert problem.metadata == {"raw": "b'\\xff'", "day": "2026-01-02"}


MEMAGENT = {"prompt": [{"role": "user", "content": "Who?"}], "context": "c", "reward_model": {"ground_truth": ["x"]}}
MUSIQUE = {"question": "q", "answer": "a", "paragraphs": [{"title": "t", "paragraph_text": "p"}]}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (MEMAGENT | {"extra_info": "none"}, "extra_info must be an object, is 'none'"),
        (MUSIQUE | {"question_decomposition": 5}, "question_decomposition must be a list of objects, is 5"),
    ],
)
def test_a_published_column_of_another_shape_is_named(tmp_path: Path, row: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError) as error:
        list(read_problems(save(tmp_path / "f.jsonl", [row])))
    assert str(error.value) == f"{tmp_path / 'f.jsonl'} line 1: {what}"


GOOD = {
    "evidence": ["Anna lives in Rome."],
    "objectives": [{"name": "Q1", "question": "Who?", "answers": ["Ann"]}],
    "passages": [{"title": "Rome", "text": "A city."}, {"contents": "A town.", "text": None}],
    "num_docs": 3,
    "chunks": 2,
    "my_own": {"evidence": 3},
}
BAD = [
    ("evidence", "Anna lives in Rome."),
    ("evidence", [1]),
    ("objectives", 3),
    ("objectives", [{"name": "Q1", "question": "Who?", "answers": "Ann"}]),
    ("passages", ["A city."]),
    ("passages", [{"title": "Rome", "body": "A city."}]),
    ("num_docs", "many"),
    ("chunks", ["a", "b"]),
    ("chunks", True),
]


def test_metadata_with_a_meaning_is_kept_and_nulls_of_it_are_left_out(tmp_path: Path) -> None:
    row = {"question": "q", "answers": ["a"]}
    rows = [row | {"metadata": GOOD}, row | {"metadata": dict.fromkeys(GOOD)}]
    full, empty = read_problems(save(tmp_path / "f.jsonl", rows))
    assert (full.metadata, empty.metadata) == (GOOD, {"my_own": None})


@pytest.mark.parametrize(("key", "value"), BAD)
def test_metadata_of_another_shape_is_refused_with_row_key_value_and_fix(tmp_path: Path, key: str, value: Any) -> None:
    row = {"question": "q", "answers": ["a"], "metadata": {key: value}}
    with pytest.raises(DataError) as error:
        list(read_problems(save(tmp_path / "f.jsonl", [row])))
    assert f"f.jsonl line 1: metadata {key} must be " in str(error.value)
    assert repr(value)[:60] in str(error.value)


def test_a_limit_reads_no_further_than_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text('{"question": "q", "answers": ["a"]}\n{"question": "q", "answers": ["a"]}\n{"cut')
    assert len(list(read_problems(path, limit=2))) == 2


SEVERAL = {
    "id": "d",
    "context": "C",
    "questions": [{"question": "Who?", "answers": ["A", "B"]}, {"question": "Where?", "answers": "R"}],
}


def test_rows_of_one_and_of_several_questions_are_read_and_written_alike(tmp_path: Path) -> None:
    single = {"id": "s", "context": "C", "question": "Who?", "answers": ["A"]}
    alone = {"id": "a", "context": "C", "questions": [{"question": "Who?", "answers": ["A"]}]}
    problems = list(read_problems(save(tmp_path / "mine.jsonl", [SEVERAL, single, alone])))
    asked = (Question("Who?", ("A", "B")), Question("Where?", ("R",)))
    assert problems == [
        Problem.asking("d", asked, "C"),
        Problem("s", "Who?", ("A",), "C"),
        Problem("a", "Who?", ("A",), "C"),
    ]
    write_problems(tmp_path / "again.jsonl", problems)
    assert list(read_problems(tmp_path / "again.jsonl")) == problems


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"questions": []}, r"questions must be a list of objects with question and answers, is \[\]"),
        ({"questions": "Who?"}, "questions must be a list of objects .* is 'Who.'"),
        ({"questions": ["Who?"]}, r"questions\[0\] must be an object with 'question', is 'Who.'"),
        ({"questions": [{"question": "Who?"}]}, r"questions\[0\]\.answers is missing"),
        ({"questions": [{"question": "Who?", "answer": ["A"]}]}, r"questions\[0\]\.answers is missing.*answer"),
        ({"questions": [{"question": " ", "answers": ["A"]}]}, r"questions\[0\]\.question is empty"),
        ({"questions": [{"question": "Who?", "answers": [True]}]}, r"questions\[0\]\.answers\[0\] must be a string"),
        ({"question": "Who?"}, "has both questions and question"),
        ({"answers": ["A"]}, "has both questions and answers"),
        (
            {"metadata": {"objectives": [{"name": "Q1", "question": "Who?", "answers": ["A"]}]}},
            "has both questions and metadata.objectives",
        ),
    ],
)
def test_questions_in_another_shape_are_refused_with_file_row_and_key(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = save(tmp_path / "mine.jsonl", [SEVERAL, SEVERAL | {"id": "e"} | changes])
    with pytest.raises(DataError, match=rf"mine\.jsonl.*2.*: {says}"):
        list(read_problems(path))
