"""Custom data formats: inspection, assembly, limit and splits as with the shipped ones; metadata with a meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.data import DataConfig
from palimpsest.config.load import parse_config
from palimpsest.data.formats.custom_format import custom_format
from palimpsest.data.formats.format_registry import FORMATS
from palimpsest.data.formats.problem_files import ReadOptions, RowFormat, format_of, read_problems, write_problems
from palimpsest.data.sources.file_source import FileSource, build_source
from palimpsest.errors import ConfigError, DataError
from palimpsest.plugin_kinds import KINDS
from palimpsest.report.dataset_summary import inspect_source
from palimpsest.types import Problem
from support.records import one_line_error

ROOT = Path(__file__).parents[3]
CSV = "examples.own_format:CsvFormat"

MODULE = """
from palimpsest.data.record import Record
from palimpsest.types import Problem

def pairs(path, *, sep="="):
    for line in path.read_text().splitlines():
        question, _, answer = line.partition(sep)
        yield {"question": question, "answers": [answer], "context": f"It is {answer}."}

def one_problem(path): return [Problem("x", "Where?", ("Oslo",), "In Oslo.")]
def blank(path): return [Problem("x", "Where?", ("Oslo",)), Problem("y", " ", ("Oslo",))]
def stray(path): return [Record("x", "Where?", ("Oslo",), paragraphs=("a",), gold=("b",))]
def text(path): return ["Where?"]
def empty(path): return []
def breaks(path):
    yield Problem("x", "Where?", ("Oslo",))
    raise KeyError("answer")
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_formats.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def bridge(tmp_path: Path) -> Path:
    rows = [f"Who painted bridge {n}?,P{n},P{n} painted bridge {n}.,S{n} sold it. | W{n} saw it." for n in range(8)]
    path = tmp_path / "bridge.csv"
    path.write_text("question,answer,gold,others\n" + "\n".join(rows) + "\n")
    return path


def source(path: Path, split: Any = "train", **changes: Any) -> FileSource:
    config = DataConfig.model_validate({"train_files": str(path), "format": CSV, **changes})
    made = build_source(config, split=split)
    assert isinstance(made, FileSource)
    return made


def test_contexts_of_n_documents_are_assembled_around_the_gold(bridge: Path) -> None:
    problems = list(source(bridge, "eval", documents=10))
    assert [(problem.id, problem.answers) for problem in problems] == [(f"bridge-{n}", (f"P{n}",)) for n in range(8)]
    for number, problem in enumerate(problems):
        assert (problem.context or "").count("Document ") == 10
        assert f"P{number} painted bridge {number}." in (problem.context or "")


def test_splits_limit_and_inspection_are_as_for_shipped_formats(bridge: Path) -> None:
    ids = [f"bridge-{n}" for n in range(8)]
    training = source(bridge, documents=3)
    assert {p.id for step in range(4) for p in training.problems(step=step, count=2)} == set(ids)
    assert [p.id for p in source(bridge, "eval", limit=3).problems(step=0, count=9)] == ids[:3]
    result = inspect_source(bridge, ReadOptions(custom_format(CSV, {})), documents=6, limit=4)
    assert (result.format, result.rows, result.gold_in_context, result.evidence_lost) == (CSV, 4, 4, 0)


def test_a_file_that_the_format_does_not_recognise_is_read_by_its_columns(bridge: Path, tmp_path: Path) -> None:
    held_out = tmp_path / "held_out.jsonl"
    write_problems(held_out, [Problem("a", "Who?", ("Anna",), "Anna did.")])
    (problem,) = source(bridge, "eval", val_files=str(held_out))
    assert problem.id == "a"
    assert format_of(held_out, ReadOptions(custom_format(CSV, {}))).name == "palimpsest"


def test_options_reach_the_format_and_mappings_have_the_columns_of_palimpsest(tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_text("Capital of Norway?->Oslo\n")
    made = custom_format("own_formats:pairs", {"sep": "->"})
    (problem,) = read_problems(tmp_path / "facts.txt", format=made)
    assert problem == Problem("facts-0", "Capital of Norway?", ("Oslo",), "It is Oslo.")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blank", "problem 2 of own_formats:blank: question is empty"),
        ("stray", "problem 1 of own_formats:stray: gold 'b' is not among its paragraphs"),
        ("text", "expected a Record, a Problem or a mapping, got 'Where.'"),
        ("empty", "own_formats:empty found no problems"),
        ("breaks", r"own_formats:breaks \(after 1 problems\) raised KeyError: 'answer'"),
    ],
)
def test_an_invalid_problem_is_rejected_with_its_number(tmp_path: Path, name: str, message: str) -> None:
    format = custom_format(f"own_formats:{name}", {})
    (tmp_path / "file.bin").write_bytes(b"\x00")
    with pytest.raises(DataError, match=message):
        list(read_problems(tmp_path / "file.bin", format=format))
    with pytest.raises(DataError, match="no such file"):
        list(read_problems(tmp_path / "absent.bin", format=format))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{train_files: a.json, format: hotpot}", "data.format='hotpot': no such data format; did you mean hotpotqa?"),
        ("{format: hotpotqa}", "data.format=hotpotqa is of files, data.train_files=synthetic has none"),
        ("{train_files: a.json, format_options: {a: 1}}", "data.format_options need a custom format"),
    ],
)
def test_names_of_formats_are_checked_with_the_configuration(data: str, message: str) -> None:
    assert message in one_line_error(ConfigError, parse_config, f"data: {data}")


def test_shipped_formats_have_the_protocol_of_custom_ones(tmp_path: Path) -> None:
    assert [*KINDS["format"].shipped] == [*FORMATS]
    file = tmp_path / "mine.jsonl"
    write_problems(file, [Problem("a", "Who?", ("Anna",), "Anna did.")])
    recognised = [name for name, columns in FORMATS.items() if RowFormat(columns).recognises(file)]
    assert recognised == ["palimpsest"]
    assert [record.id for record in format_of(file).read(file)] == ["a"]


# ---- metadata with a meaning ---------------------------------------------------------------------------------

GOOD = {
    "evidence": ["Anna lives in Rome."],
    "objectives": [{"name": "Q1", "question": "Who?", "answers": ["Ann"]}],
    "passages": [{"title": "Rome", "text": "A city."}, {"contents": "A town.", "text": None}],
    **{"num_docs": 3, "chunks": 2, "my_own": {"evidence": 3}},
}


def test_metadata_with_a_meaning_is_kept_and_its_nulls_are_dropped(read: Any) -> None:
    row = {"question": "q", "answers": ["a"]}
    full, empty = read(row | {"metadata": GOOD}, row | {"metadata": dict.fromkeys(GOOD)})
    assert (full.metadata, empty.metadata) == (GOOD, {"my_own": None})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("evidence", "Anna lives in Rome."),
        ("evidence", [1]),
        ("objectives", 3),
        ("objectives", [{"name": "Q1", "question": "Who?", "answers": "Ann"}]),
        ("passages", ["A city."]),
        ("passages", [{"title": "Rome", "body": "A city."}]),
        ("num_docs", "many"),
        ("chunks", ["a", "b"]),
        ("chunks", True),
    ],
)
def test_metadata_of_another_shape_is_rejected_with_key_and_value(rejection: Any, key: str, value: Any) -> None:
    message = rejection({"question": "q", "answers": ["a"], "metadata": {key: value}})
    assert f"f.jsonl line 1: metadata {key} must be " in message
    assert repr(value)[:60] in message
