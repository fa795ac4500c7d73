"""Other systems' layouts: what is written reads back, and holds the published columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from palimpsest.app.datasets.data_files import convert
from palimpsest.data.assemble import Corpus
from palimpsest.data.formats.problem_files import format_of, read_corpus, read_problems, write_problems
from palimpsest.data.formats.writers import LAYOUTS
from palimpsest.data.sources.file_source import FileSource
from palimpsest.errors import ConfigError, DataError, RunError
from palimpsest.types import Problem, Question

READ_AS = {
    "palimpsest": "palimpsest",
    "memagent-parquet": "memagent",
    "memagent-eval": "memagent_eval",
    "vime": "vime",
    "memact": "memact",
}


def told(path: Path) -> list[tuple[str, tuple[str, ...], str | None]]:
    return [(problem.question, problem.answers, problem.context) for problem in read_problems(path)]


def some(path: Path, count: int = 130) -> Path:
    """More than one batch of parquet, with hostile characters."""
    write_problems(
        path,
        [
            Problem(
                f"p{i}",
                f'Who is "{i}"?\n\u2028',
                (f"{{a}} {i}", "é\t"),
                f"Document 1:\nT{i}\nText \\ {i}.\n\nDocument 2:\nU\n",
                {"num_docs": 2},
            )
            for i in range(count)
        ],
    )
    return path


@pytest.mark.parametrize("to", [layout for layout in LAYOUTS if layout != "memact"])
def test_what_is_written_in_any_layout_reads_back_the_same(tmp_path: Path, to: str) -> None:
    source = some(tmp_path / "mine.jsonl")
    out = tmp_path / "other"
    assert convert(source, to, out=out).problems == 130
    assert format_of(out).name == READ_AS[to]
    assert told(out) == told(source)
    assert [problem.metadata["num_docs"] for problem in read_problems(out)] == [2] * 130
    back = tmp_path / "back.jsonl"
    convert(out, "palimpsest", out=back)
    assert told(back) == told(source)


@pytest.mark.parametrize("to", [layout for layout in LAYOUTS if layout != "memact"])
def test_the_published_questions_go_through_every_layout_unchanged(real_data: Path, tmp_path: Path, to: str) -> None:
    source = tmp_path / "hotpot.jsonl"
    write_problems(source, FileSource.open(real_data / "hotpotqa_train_100.json", split="eval", documents=20))
    convert(source, to, out=tmp_path / "out")
    assert told(tmp_path / "out") == told(source)


@pytest.mark.parametrize("name", ["wiki_train_multi_object_2_3.parquet", "wiki_val_512.parquet"])
def test_the_published_searches_go_through_our_layout_and_back(real_data: Path, tmp_path: Path, name: str) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.parquet"
    convert(real_data / name, "palimpsest", out=ours)
    assert convert(ours, "memact", out=theirs).dropped == {}
    first, second = (list(read_problems(path)) for path in (real_data / name, theirs))
    assert [(p.question, p.answers, p.metadata) for p in first] == [(p.question, p.answers, p.metadata) for p in second]
    published, written = (pq.read_table(path) for path in (real_data / name, theirs))
    assert set(written.schema.names) == set(published.schema.names)
    for column in written.schema.names:
        fields = [
            {f.name: f.type for f in t.schema.field(column).type} if column == "extra_info" else None
            for t in (published, written)
        ]
        assert fields[0] == fields[1]
    truths = [
        [row["ground_truth"] for row in table.column("reward_model").to_pylist()] for table in (published, written)
    ]
    assert [json.loads(text) if text[:1] == "{" else text for text in truths[0]] == [
        json.loads(text) if text[:1] == "{" else text for text in truths[1]
    ]


def test_training_rows_have_memagents_columns(tmp_path: Path) -> None:
    convert(some(tmp_path / "mine.jsonl", 3), "memagent-parquet", out=tmp_path / "out.parquet")
    (row, *_) = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert row == {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": 'Who is "0"?\n\u2028'}],
        "ability": "memory",
        "context": "Document 1:\nT0\nText \\ 0.\n\nDocument 2:\nU\n",
        "reward_model": {"style": "rule", "ground_truth": ["{a} 0", "é\t"]},
        "extra_info": {"index": 0, "question": 'Who is "0"?\n\u2028', "num_docs": 2},
    }


def hotpot(path: Path) -> Path:
    rows = [
        {
            "_id": f"q{i}",
            "question": f"Who is {i}?",
            "answer": "Ann",
            "supporting_facts": [[f"T{i} 0", 0]],
            "context": [[f"T{i} {j}", [f"Text {j} of {i}."]] for j in range(10)],
        }
        for i in range(5)
    ]
    path.write_text(json.dumps(rows))
    return path


def test_contexts_of_numbers_are_written_and_read_as_memagents(tmp_path: Path) -> None:
    corpus = hotpot(tmp_path / "hotpotqa_dev.json")
    text = tmp_path / "text.jsonl"
    write_problems(text, FileSource.open(corpus, split="eval", documents=30))
    convert(text, "memagent-eval", out=tmp_path / "eval_30.json", indices_into=corpus)
    rows = json.loads((tmp_path / "eval_30.json").read_text())
    ranked = sorted(f"T{i} {j}\nText {j} of {i}." for i in range(5) for j in range(10))
    for row, (_, _, context) in zip(rows, told(text), strict=True):
        assert "\n\n".join(f"Document {n}:\n{ranked[at]}" for n, at in enumerate(row["context"], 1)) == context
    assert told(tmp_path / "eval_30.json") == told(text)
    convert(tmp_path / "eval_30.json", "vime", out=tmp_path / "vime.jsonl")
    assert told(tmp_path / "vime.jsonl") == told(text)
    other = tmp_path / "other.jsonl"
    other.write_text('{"title": "a", "text": "b"}')
    with pytest.raises(DataError, match="is not a document of the corpus"):
        convert(text, "memagent-eval", out=tmp_path / "x.json", indices_into=other)
    assert not (tmp_path / "x.json").exists()
    assert read_corpus(corpus) == Corpus(tuple(ranked))


def test_what_a_published_row_says_of_its_evidence_comes_back(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    write_problems(text, FileSource.open(hotpot(tmp_path / "hotpot.json"), split="eval", documents=30))
    convert(text, "memagent-eval", out=tmp_path / "eval_30.json")
    convert(tmp_path / "eval_30.json", "palimpsest", out=tmp_path / "ours.jsonl")
    convert(tmp_path / "ours.jsonl", "memagent-eval", out=tmp_path / "again.json")
    rows = json.loads((tmp_path / "eval_30.json").read_text())
    assert json.loads((tmp_path / "again.json").read_text()) == rows
    assert all(row["evidence_idx"] for row in rows)


def test_what_a_layout_has_no_place_for_is_refused_or_counted(tmp_path: Path, palimpsest: Any) -> None:
    several = tmp_path / "several.jsonl"
    asked = [Question("Who?", ("A",)), Question("Where?", ("B",))]
    write_problems(several, [Problem.asking("p", asked, "Text.")])
    for to in LAYOUTS:
        if to != "palimpsest":
            with pytest.raises(DataError, match="problem p: asks"):
                convert(several, to, out=tmp_path / "x")
    memory = tmp_path / "memory.jsonl"
    write_problems(memory, [Problem("m", "Who?", ("A",), "Text.", memory="It was A.")])
    for to in ("vime", "memagent-parquet", "memagent-eval"):
        with pytest.raises(DataError, match="problem m: brings a memory"):
            convert(memory, to, out=tmp_path / "x")
    searched = tmp_path / "searched.jsonl"
    write_problems(searched, [Problem("s", "Who?", ("A",))])
    with pytest.raises(DataError, match="problem s: has no context"):
        convert(searched, "vime", out=tmp_path / "x")
    assert not (tmp_path / "x").exists()
    source = some(tmp_path / "mine.jsonl", 2)
    done = palimpsest("data", "convert", str(source), "--to", "memact", "--out", str(tmp_path / "memact.parquet"))
    assert done.returncode == 0
    assert "memact has no place for the context: dropped of 2 problems" in done.stderr
    assert "memact has no place for golds but the first of a question: dropped of 2 problems" in done.stderr


def test_a_file_that_is_there_is_refused_or_moved_aside(tmp_path: Path) -> None:
    source = some(tmp_path / "mine.jsonl", 2)
    convert(source, "vime", out=tmp_path / "out.jsonl")
    with pytest.raises(RunError, match="is there: give another --out, or --force"):
        convert(source, "vime", out=tmp_path / "out.jsonl")
    convert(source, "memagent-eval", out=tmp_path / "out.jsonl", force=True)
    assert format_of(tmp_path / "out.jsonl.old-1").name == "vime"
    with pytest.raises(ConfigError, match="is the file that is read"):
        convert(source, "vime", out=source, force=True)
    with pytest.raises(ConfigError, match="did you mean memagent-eval"):
        convert(source, "memagent-evl", out=tmp_path / "x")
    with pytest.raises(ConfigError, match="only memagent-eval holds numbers"):
        convert(source, "vime", out=tmp_path / "x", indices_into=source)
