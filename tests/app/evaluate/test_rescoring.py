"""New metrics over an old log: what is there stays, what would need more than the answer is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.errors import ConfigError, DataError, PalimpsestError, RunError
from palimpsest.evaluation.sample_log import IDENTITY, SAMPLES, read_samples
from palimpsest.reward.answer_match import measure
from support.command import Run
from support.evaluations import sample, write_evaluation
from support.judge_server import judge_server


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


def values(folder: Path) -> dict[str, float | None]:
    return {each.id: each.value for each in read_samples(folder / SAMPLES)[0]}


def test_an_old_log_gets_new_values_and_stays_as_it_is(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "e")
    before = contents(folder)
    done = palimpsest.rescore(folder, ["reward.name=f1"])
    assert contents(folder) == before
    assert done.out == folder / "rescored" / "f1"
    f1 = measure("So \\boxed{Rome, Italy}", ["Rome"])["f1"]
    assert values(done.out) == {"p0": f1, "p1": 0.0, "p2": 1.0, "p3": None, "p4": None}
    assert 0 < f1 < 1
    (summary,) = done.summaries
    assert (summary.problems, summary.graded, summary.ungraded) == (5, 3, 2)
    again = contents(done.out)
    palimpsest.rescore(folder, ["reward.name=f1"])
    assert contents(done.out) == again


def test_the_same_reward_gives_the_same_grades_as_the_evaluation_gave(tiny_model_folder: Path, tmp_path: Path) -> None:
    budgets = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}
    palimpsest.evaluate(tiny_model_folder, chunks=1, limit=4, overrides=budgets, out=tmp_path / "e", quiet=True)
    done = palimpsest.rescore(tmp_path / "e")
    assert read_samples(done.out / SAMPLES) == read_samples(tmp_path / "e" / SAMPLES)
    assert done.before == done.summaries


def test_rows_stand_by_policy_and_then_from_short_to_long_as_those_of_the_evaluation_do(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    done = palimpsest.evaluate(
        tiny_model_folder,
        policy="sliding_window,full_context",
        chunks=[2, 1],
        limit=1,
        baselines=False,
        out=tmp_path / "e",
        quiet=True,
    )
    again = palimpsest.rescore(tmp_path / "e")
    assert [each.name for each in again.summaries] == [row.summary.name for row in done.rows]


def test_a_log_without_its_identity_is_graded_and_told(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "e")
    (folder / IDENTITY).unlink()
    done = palimpsest.rescore(folder, ["reward.name=sub_em"])
    assert any("evaluation.json: is not there, so what was played" in line for line in done.told)


def test_a_rescoring_is_an_evaluation_that_compare_takes(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "e")
    done = palimpsest.rescore(folder, ["reward.name=sub_em"])
    comparison = palimpsest.compare(folder, done.out)
    (pairing,) = comparison.pairings.values()
    assert [flip.id for flip in pairing.flips] == ["p0"]
    assert comparison.differs["reward.name"] == ("boxed", "sub_em")
    assert not [key for key in comparison.differs if not key.startswith("reward.")]
    assert json.loads((done.out / IDENTITY).read_text("utf-8"))["rescored"]["samples_sha256"]


def test_several_questions_on_one_reading_are_graded_one_by_one(tmp_path: Path) -> None:
    asked = [
        {"question": "Who?", "answers": ["Anna"], "answer": "\\boxed{Anna Berg}", "value": 0.0},
        {"question": "Where?", "answers": ["Rome"], "answer": "\\boxed{Rome}", "value": 1.0},
    ]
    row = sample("p0", 0.5, question="1. Who?\n2. Where?", answers=("Anna", "Rome"), questions=asked)
    done = palimpsest.rescore(write_evaluation(tmp_path / "e", [row]), ["reward.name=sub_em"])
    (graded,) = done.samples
    assert (graded.value, [each["value"] for each in graded.questions]) == (1.0, [1.0, 1.0])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward.name=my_module:my_reward"], "may read the trajectory"),
        (["reward.state.update=2"], "reward.state: counts in training alone"),
        (["reward.unsupported_penalty=0.5"], "reward.unsupported_penalty"),
        (["policy.name=prune"], "policy.name is no key of reward"),
        (["reward.name=f2"], "f2"),
    ],
)
def test_what_needs_more_than_the_answer_is_refused_by_name(overrides: list[str], message: str, tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "e")
    with pytest.raises(PalimpsestError, match=message):
        palimpsest.rescore(folder, overrides)
    assert not (folder / "rescored").exists()


def test_layers_of_training_are_left_out_of_a_rescoring_as_of_the_evaluation(
    tiny_model_folder: Path, tmp_path: Path, palimpsest: Run
) -> None:
    budgets = ["chunk_size=64", "memory_tokens=8", "question_tokens=64", "answer_tokens=8"]
    layered = ["reward.unsupported_penalty=2", *budgets]
    asked = [each for setting in layered for each in ("--set", setting)]
    played = palimpsest(
        *("eval", "--model", str(tiny_model_folder), "--chunks", "1", "--limit", "4", "--out", str(tmp_path / "e")),
        *asked,
    )
    assert played.returncode == 0, played.stderr
    done = palimpsest("rescore", str(tmp_path / "e"))
    assert done.returncode == 0, done.stderr
    assert "left out, as they count in training alone: reward.unsupported_penalty=2" in done.stdout
    assert read_samples(tmp_path / "e" / "rescored" / "boxed" / SAMPLES) == read_samples(tmp_path / "e" / SAMPLES)


def test_a_damaged_line_is_no_dead_end_where_its_episode_was_played_again(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "e")
    log = folder / SAMPLES
    lines = log.read_bytes().splitlines(keepends=True)
    rows = [{"name": "2 chunks", "problems": 5, "samples": 1}]
    (folder / "summary.json").write_text(json.dumps({"evaluations": rows, "baselines": []}), "utf-8")
    log.write_bytes(b"".join([lines[0], b"x" + lines[1], *lines[2:]]))
    with pytest.raises(RunError, match="1 lines can't be read; run the same palimpsest eval again first"):
        palimpsest.rescore(folder)
    log.write_bytes(log.read_bytes() + lines[1])  # as palimpsest eval plays it again
    done = palimpsest.rescore(folder)
    assert len(done.samples) == 5
    assert any("1 lines can't be read; every episode of summary.json is in others" in line for line in done.told)


def test_golds_of_several_objectives_are_not_in_the_log_and_that_is_said(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "e", [sample("p0", 1.0, name="4 objectives")])
    with pytest.raises(DataError, match="asks 4 questions with golds of their own"):
        palimpsest.rescore(folder, ["reward.name=final_answer"])


def test_a_folder_without_a_log_and_a_name_that_is_taken_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no samples\.jsonl"):
        palimpsest.rescore(tmp_path)
    folder = evaluation(tmp_path / "e")
    (folder / "rescored" / "mine").mkdir(parents=True)
    (folder / "rescored" / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(RunError, match="holds something else"):
        palimpsest.rescore(folder, name="mine")
    with pytest.raises(ConfigError, match="without a path"):
        palimpsest.rescore(folder, name="../mine")


def test_a_judge_is_asked_once_and_a_dead_one_leaves_answers_ungraded(tmp_path: Path) -> None:
    rows = [sample(f"p{n}", 1.0, answer=f"FINAL_ANSWER: {text}") for n, text in enumerate(("in Rome", "Oslo"))]
    folder = write_evaluation(tmp_path / "e", rows)
    judged = ["reward.name=final_answer", "reward.final_answer.match=judge", "reward.judge.model=m"]
    with judge_server() as server:
        for _ in range(2):
            done = palimpsest.rescore(folder, [*judged, f"reward.judge.url={server.url}"])
        assert len(server.requests) == 2
    assert values(done.out) == {"p0": 1.0, "p1": 0.0}
    assert done.out.name == "final_answer-judge"
    gone = [
        *judged,
        "reward.judge.url=http://127.0.0.1:9/v1",
        "reward.judge.attempts=1",
        "reward.judge.answer_chars=16",
    ]
    assert set(values(palimpsest.rescore(folder, gone, name="gone").out).values()) == {1.0, 0.0}  # from the cache
    (folder / "judge.jsonl").unlink()
    failed = palimpsest.rescore(folder, gone, name="gone")
    assert set(values(failed.out).values()) == {None}
    assert "judge: " in (failed.samples[0].reason or "")


def test_the_judge_of_an_evaluation_needs_its_address_again(tmp_path: Path) -> None:
    judged = {"name": "final_answer", "final_answer": {"match": "judge"}, "judge": {"model": "m"}}
    folder = evaluation(tmp_path / "e", reward=judged)
    with pytest.raises(ConfigError, match=r"give --set reward\.judge\.url=http"):
        palimpsest.rescore(folder)
    assert palimpsest.rescore(folder, ["reward.name=em"]).reward.judge is None


def test_sets_are_told_from_short_to_long_and_baselines_after_the_agent(tmp_path: Path) -> None:
    """Whatever the order in which their episodes ended."""
    rows = []
    for size in (400, 50, 6400, 100):
        rows.append(sample("p", 1.0, size=size, name=f"eval_{size}, closed book", baseline="closed book"))
        rows.append(sample("p", 1.0, size=size, name=f"eval_{size}"))
    done = palimpsest.rescore(
        write_evaluation(tmp_path / "e", rows, {"reward": {"name": "boxed"}}), ["reward.name=boxed"]
    )
    names = [f"eval_{size}" for size in (50, 100, 400, 6400)]
    assert [each.name for each in done.summaries] == names + [f"{name}, closed book" for name in names]
    assert [row[""] for row in done.table] == [each.name for each in done.summaries]
