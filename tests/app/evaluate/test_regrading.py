"""New grades of an old log: rewards that need more than the answer are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.errors import ConfigError, DataError, PalimpsestError, RunError
from palimpsest.evaluation.sample_log import IDENTITY, SAMPLES, Sample, SampleKey, read_samples, write_request
from palimpsest.files import sha256
from palimpsest.notes import Note
from palimpsest.reward.answer_match import measure
from support.evaluations import CHUNKS, sample, write_evaluation
from support.judge_server import judge_server

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}


def regraded(folder: Path, *overrides: str, out: Path | None = None) -> palimpsest.Evaluation:
    return palimpsest.evaluate(regrade=folder, overrides=overrides, out=out, quiet=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def evaluation(path: Path, **identity: Any) -> Path:
    rows = [
        sample("p0", 0.0, answer="So \\boxed{Rome, Italy}"),
        sample("p1", 0.0),
        sample("p2", 1.0),
        sample("p3", None),
        sample("p4", None, answers=(), outcome="answered", reason="the data has no gold answer for it"),
    ]
    return write_evaluation(path, rows, identity)


def by_key(folder: Path) -> dict[SampleKey, Sample]:
    return {item.key: item for item in read_samples(folder / SAMPLES)[0]}


def values(folder: Path) -> dict[str, float | None]:
    return {item.id: item.value for item in read_samples(folder / SAMPLES)[0]}


@pytest.mark.parametrize("identity", [True, False])
def test_an_old_log_gets_new_values_and_is_unchanged(identity: bool, tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "e")
    if not identity:
        (folder / IDENTITY).unlink()
    before = contents(folder)
    done, out = regraded(folder, "reward.name=f1"), folder / "regraded" / "f1"
    assert contents(folder) == before
    assert (done.out, done.regraded, done.config.reward.name) == (out, folder, "f1")
    f1 = measure("So \\boxed{Rome, Italy}", ["Rome"])["f1"]
    assert values(out) == {"p0": f1, "p1": 0.0, "p2": 1.0, "p3": None, "p4": None}
    assert 0 < f1 < 1
    (summary,) = done.summaries
    assert (summary.problems, summary.graded, summary.ungraded) == (5, 3, 2)
    assert [(item.id, item.value) for item in done] == list(values(out).items())
    before = contents(out)
    regraded(folder, "reward.name=f1")
    assert contents(out) == before


def test_the_same_reward_gives_the_same_grades_as_the_evaluation_gave(tiny_model_folder: Path, tmp_path: Path) -> None:
    played = palimpsest.evaluate(
        tiny_model_folder, chunks=1, limit=4, overrides=BUDGETS, out=tmp_path / "e", quiet=True
    )
    done = regraded(tmp_path / "e")
    assert (len(done.samples), len(done.baseline_samples)) == (len(played.samples), len(played.baseline_samples))
    assert by_key(tmp_path / "e" / "regraded" / "boxed") == by_key(tmp_path / "e")
    assert {name: item.accuracy for name, item in done.rows.items()} == {
        name: item.accuracy for name, item in played.rows.items()
    }


def test_rows_have_the_order_of_the_evaluations(tiny_model_folder: Path, tmp_path: Path) -> None:
    options: Any = {"policy": "sliding_window,full_context", "chunks": [2, 1], "limit": 1, "baselines": False}
    played = palimpsest.evaluate(tiny_model_folder, out=tmp_path / "e", quiet=True, **options)
    done = regraded(tmp_path / "e")
    assert [item.cell for item in done.summaries] == [item.cell for item in played.summaries]
    rows = [(item.cell.player, item.cell.size) for item in done.summaries]
    assert rows == [(player, size) for player in ("sliding_window", "full_context") for size in (1, 2)]
    assert (list(done.rows), done.policies) == (list(played.rows), played.policies)


def test_a_regrading_is_an_evaluation_that_compare_takes(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "e")
    regraded(folder, "reward.name=sub_em")
    comparison = palimpsest.compare(folder, out := folder / "regraded" / "sub_em")
    (pairing,) = comparison.pairings.values()
    assert [flip.id for flip in pairing.flips] == ["p0"]
    assert comparison.differs["reward.name"] == ("boxed", "sub_em")
    assert not [key for key in comparison.differs if not key.startswith("reward.")]
    origin = json.loads((out / IDENTITY).read_text("utf-8"))["regraded"]
    assert origin == {"folder": str(folder), "samples_sha256": sha256(folder / SAMPLES)}
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert (summary["regraded_from"], summary["reward"], summary["model"]) == (str(folder), "sub_em", "somewhere")


def test_several_questions_on_one_reading_are_graded_one_by_one(tmp_path: Path) -> None:
    questions = [
        {"question": "Who?", "answers": ["Anna"], "answer": "\\boxed{Anna Berg}", "value": 0.0},
        {"question": "Where?", "answers": ["Rome"], "answer": "\\boxed{Rome}", "value": 1.0},
    ]
    row = sample("p0", 0.5, question="1. Who?\n2. Where?", answers=("Anna", "Rome"), questions=questions)
    done = regraded(write_evaluation(tmp_path / "e", [row]), "reward.name=sub_em")
    (graded,) = done.samples
    assert (graded.value, [item["value"] for item in graded.questions]) == (1.0, [1.0, 1.0])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.name=my_module:my_reward", "may read the trajectory"),
        ("reward.state.update=2", r"reward\.state\.update: applies only in training"),
        ("reward.unsupported_penalty=0.5", "reward.unsupported_penalty"),
        ("policy.name=prune", "policy.name is not a key of reward"),
        ("reward.name=f2", "f2"),
    ],
)
def test_what_needs_more_than_the_answer_is_refused_by_name(override: str, message: str, tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "e")
    with pytest.raises(PalimpsestError, match=message):
        regraded(folder, override)
    assert not (folder / "regraded").exists()


def test_rewards_of_an_environment_are_not_graded_again(tmp_path: Path) -> None:
    identity = {"environment": {"name": "worlds:World"}, "reward": {"name": "environment"}}
    with pytest.raises(ConfigError, match="events of the trajectory"):
        regraded(evaluation(tmp_path / "e", **identity))


@pytest.mark.parametrize(
    "option",
    [{"data": "x"}, {"policy": "overwrite"}, {"reward": sum}, {"recipe": "memagent"}, {"chunks": 4}, {"limit": 1}],
)
def test_options_of_playing_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))}: --regrade runs no episodes"):
        palimpsest.evaluate(regrade=evaluation(tmp_path / "e"), quiet=True, **option)


def test_training_layers_are_omitted(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layered = {**BUDGETS, "reward.unsupported_penalty": 2}
    palimpsest.evaluate(tiny_model_folder, chunks=1, limit=4, overrides=layered, out=tmp_path / "e", quiet=True)
    palimpsest.evaluate(regrade=tmp_path / "e")
    assert "only in training: reward.unsupported_penalty=2" in capsys.readouterr().err
    assert by_key(tmp_path / "e" / "regraded" / "boxed") == by_key(tmp_path / "e")


def test_a_damaged_line_is_replaced_by_its_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = evaluation(tmp_path / "e")
    log = folder / SAMPLES
    lines = log.read_bytes().splitlines(keepends=True)
    write_request(folder, [(CHUNKS, 1, [f"p{n}" for n in range(5)])])
    log.write_bytes(b"".join([lines[0], b"x" + lines[1], *lines[2:]]))
    with pytest.raises(RunError, match="1 unreadable lines; run the same palimpsest eval again first"):
        regraded(folder)
    log.write_bytes(log.read_bytes() + lines[1])  # as palimpsest eval plays it again
    capsys.readouterr()
    done = palimpsest.evaluate(regrade=folder)
    assert len(done.samples) == 5
    assert Note("lines_unreadable", folder=str(folder), count=1) in capsys.readouterr().err


def test_an_unfinished_evaluation_is_graded_with_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = evaluation(tmp_path / "e")
    write_request(folder, [(CHUNKS, 1, [f"p{n}" for n in range(7)])])
    assert len(palimpsest.evaluate(regrade=folder).samples) == 5
    assert Note("episodes_missing", folder=str(folder), count=2) in capsys.readouterr().err


@pytest.mark.parametrize(
    "fields",
    [
        {"set": "synthetic_search", "size": 4, "unit": "objectives"},
        {"set": "questions", "size": None, "unit": None, "metrics": {"em": 1.0, "objectives": 4.0}},
    ],
)
def test_problems_of_several_objectives_are_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "e", [sample("p0", 1.0, **fields)])
    with pytest.raises(DataError, match="has several questions with separate golds"):
        regraded(folder, "reward.name=final_answer")


def test_a_folder_without_a_log_and_one_that_holds_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"samples\.jsonl is missing"):
        regraded(tmp_path)
    folder = evaluation(tmp_path / "e")
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("keep")
    for out in (folder / "mine", folder):
        before = contents(out)
        with pytest.raises(RunError, match="not a regrading"):
            regraded(folder, out=out)
        assert contents(out) == before


def test_a_judge_is_called_once_and_a_dead_one_grades_nothing(tmp_path: Path) -> None:
    rows = [sample(f"p{n}", 1.0, answer=f"FINAL_ANSWER: {text}") for n, text in enumerate(("in Rome", "Oslo"))]
    folder = write_evaluation(tmp_path / "e", rows)
    judged = ["reward.name=final_answer", "reward.final_answer.match=judge", "reward.judge.model=m"]
    with judge_server() as server:
        for _ in range(2):
            done = regraded(folder, *judged, f"reward.judge.url={server.url}")
        assert len(server.requests) == 2
    assert {item.id: item.value for item in done} == {"p0": 1.0, "p1": 0.0}
    assert done.out == folder / "regraded" / "final_answer-judge"
    gone = [*judged, "reward.judge.url=http://127.0.0.1:9/v1"]
    regraded(folder, *gone, out=tmp_path / "gone")
    assert values(tmp_path / "gone") == {"p0": 1.0, "p1": 0.0}  # from the cache
    (folder / "judge.jsonl").unlink()
    failed = regraded(folder, *gone, out=tmp_path / "gone")
    assert set(values(tmp_path / "gone").values()) == {None}
    assert "judge: " in (failed.samples[0].reason or "")


def test_the_judge_of_an_evaluation_needs_its_address_again(tmp_path: Path) -> None:
    judged = {"name": "final_answer", "final_answer": {"match": "judge"}, "judge": {"model": "m"}}
    folder = evaluation(tmp_path / "e", reward=judged)
    with pytest.raises(ConfigError, match=r"doesn't store its judge's address: set .*reward\.judge\.url=http"):
        regraded(folder)
    assert regraded(folder, "reward.name=em").config.reward.judge is None


def test_sets_are_sorted_by_length_before_baselines(tmp_path: Path) -> None:
    """The order in which episodes ended has no effect."""
    rows = []
    for length in (400, 50, 6400, 100):
        part: dict[str, Any] = {"set": f"eval_{length}", "size": None, "unit": None, "length": length}
        rows.append(sample("p", 1.0, **part, player="closed book", baseline=True))
        rows.append(sample("p", 1.0, **part))
    done = regraded(write_evaluation(tmp_path / "e", rows), "reward.name=boxed")
    sets = [f"eval_{length}" for length in (50, 100, 400, 6400)]
    assert [item.cell.set for item in done.summaries] == [item.cell.set for item in done.baselines] == sets
    assert {item.cell.player for item in done.summaries} == {"agent"}
    assert {item.cell.player for item in done.baselines} == {"closed book"}
    assert [row[""] for row in done.table] == sets + [f"closed book, {name}" for name in sets]
