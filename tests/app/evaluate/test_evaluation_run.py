"""Evaluations: hostile names, windows, cut documents, several questions."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.config_resolution import Agent
from palimpsest.app.evaluate.evaluation_run import evaluate
from palimpsest.cli.evaluate import show_evaluation
from palimpsest.cli.main import app
from palimpsest.cli.options import stdout, table
from palimpsest.config.load import load_recipe, recipe_names
from palimpsest.errors import RunError
from palimpsest.evaluation.sample_log import IDENTITY, read_samples
from palimpsest.memory.registry import evaluated
from palimpsest.progress.displays import Terminal
from palimpsest.progress.reporter import Silent
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.signals import GracefulStop
from palimpsest.types import Problem, Question
from support.command import Run
from support.evaluations import sample, write_evaluation
from support.small_run import small_run

HOSTILE = "a\x1b[31m\x01[red]$x_$ $b"
WORDS = ["chunk_size=64", "memory_tokens=8", "question_tokens=64", "answer_tokens=8"]


def test_tokens_are_shown_by_role_if_a_role_takes_turns(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"chunk_size": 36, "question_tokens": 32, "memory_tokens": 16, "answer_tokens": 8, "prompts": "short"}
    roles: dict[str, Any] = {"roles.reader.temperature": 0.0, "roles.reader.max_tokens": 2}
    shared: dict[str, Any] = {"chunks": 2, "limit": 2, "baselines": False, "quiet": True}
    named = palimpsest.evaluate(
        "embedded",
        "synthetic",
        policy="examples.frozen_reader:FrozenReaderPolicy",
        overrides=roles | {f"policy.options.{name}": value for name, value in options.items()},
        **shared,
    )
    (row,) = named.table
    read = sum(sample.measures["role_tokens/reader"] for sample in named.samples) / 2
    assert (row["reader tokens"], row["turns"]) == (round(read), 3.0)
    assert row["agent tokens"] + row["reader tokens"] == pytest.approx(row["tokens"], abs=1)
    assert row["agent computed"] + row["reader computed"] == pytest.approx(row["computed"], abs=1)
    show_evaluation(named)
    assert "costs" in capsys.readouterr().out
    (plain,) = palimpsest.evaluate("embedded", "synthetic", **shared).table
    assert not [name for name in plain if name.endswith(" tokens")]


def test_foreign_names_steer_no_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path, palimpsest: Run) -> None:
    stdout().print(table(HOSTILE, [HOSTILE, HOSTILE], [[HOSTILE, HOSTILE]]))
    Terminal(live=False).message(f"{HOSTILE}\nsecond line")
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert shown.out.count("\\x1b[31m\\x01[red]") == 5  # no markup either
    assert len(shown.err.splitlines()) == 2
    rows = [sample(name, value, set=HOSTILE, player=HOSTILE) for name, value in (("p0", 1.0), ("p1", 0.0))]
    sides = [write_evaluation(tmp_path / side, rows) for side in ("one", f"two{HOSTILE}")]
    done = palimpsest("compare", *map(str, sides), "--changed", "2", "--out", str(tmp_path / "figures"))
    assert done.returncode == 0, done.stderr
    assert not {"\x1b", "\x01"} & set(done.stdout)
    for figure in ("accuracy.svg", "accuracy-cost.svg"):
        ElementTree.parse(tmp_path / "figures" / figure)
    show_evaluation(evaluate(regrade=sides[1], quiet=True))
    shown = capsys.readouterr()
    assert HOSTILE[-3:] in shown.out
    assert not {"\x1b", "\x01"} & set(shown.out + shown.err)


def test_an_identity_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    folders = [write_evaluation(tmp_path / side, [sample("p0", 1.0)]) for side in ("one", "two")]
    (folders[0] / IDENTITY).write_text("{torn")
    for call in (lambda: palimpsest.compare(*folders), lambda: evaluate(regrade=folders[0], quiet=True)):
        with pytest.raises(RunError, match=r"one/evaluation\.json is not valid JSON"):
            call()


def test_a_resume_counts_existing_episodes(tiny_model_folder: Path, tmp_path: Path, palimpsest: Run) -> None:
    command = ["eval", str(tiny_model_folder), "--chunks", "1", "--out", str(tmp_path / "e"), *WORDS, "--limit", "2"]
    first, again = palimpsest(*command).stderr, palimpsest(*command).stderr
    assert ("exist already" in first, "tokens of documents to read" in first) == (False, True)
    assert "8 of 8 episodes exist already" in again
    assert not [text for text in ("tokens of documents to read", "ETA ?") if text in again]
    other = palimpsest(*command, "--seed", "1")
    assert (other.returncode, "another evaluation" in other.stderr, "exist already" in other.stderr) == (2, True, False)


NOTE = "the window is 480 tokens of 512, because longrope rotates all positions differently once one is beyond 480"


class Shown(Silent):
    """Stores messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture
def stretched(tiny_model_folder: Path, tmp_path: Path) -> Path:
    """The tiny model with longrope."""
    folder = tmp_path / "stretched"
    folder.mkdir()
    for file in tiny_model_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = rope | {"original_max_position_embeddings": 480}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_evaluation_tells_of_a_window_less_than_the_models(stretched: Path, tiny_model_folder: Path) -> None:
    problem = palimpsest.Problem("a", "Where?", ("Rome",), "Ann lives in Rome.")
    for folder, result in ((stretched, True), (tiny_model_folder, False)):
        shown = Shown()
        palimpsest.evaluate(str(folder), [problem], policy="full_context", progress=shown)
        assert (NOTE in shown.messages) == result


def test_a_training_tells_of_a_window_less_than_the_models(stretched: Path, tmp_path: Path) -> None:
    shown, stop = Shown(), GracefulStop()
    stop.request("test")
    settings = small_run(stretched)
    palimpsest.train("memagent-quickstart", settings, out=tmp_path / "run", progress=shown, stop=stop)
    assert NOTE in shown.messages
    with pytest.raises(palimpsest.PalimpsestError, match=rf"the model's context is 480 \({NOTE}\)"):
        palimpsest.train("memagent-quickstart", {**settings, "policy.options.chunk_size": 128}, out=tmp_path / "other")


PUBLISHED = [name for name in recipe_names() if "max_chunks" in load_recipe(name, read_files=False).policy.options]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> palimpsest.Run:
    """One step on documents of which training reads one chunk of several; its evaluation reads them all."""
    settings = small_run(tiny_model_folder, max_steps=1, eval_steps=1) | {"evaluation.problems": 2}
    settings["policy.options"] = {**settings["policy.options"], "chunk_size": 16, "max_chunks": 1}
    return palimpsest.train("memagent-quickstart", settings, out=tmp_path_factory.mktemp("run") / "run", quiet=True)


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_published_recipe_cuts_what_it_evaluates(name: str) -> None:
    config = load_recipe(name, read_files=False)
    assert "max_chunks" not in evaluated(config.policy).options
    assert Agent(recipe=name).config({}).policy.options.get("max_chunks") is None


@pytest.mark.parametrize("result", [{"max_chunks": 3}, {"policy.options.max_chunks": 3}])
def test_an_explicit_limit_applies_to_evaluations(result: dict[str, Any]) -> None:
    assert Agent(recipe="memagent-7b", overrides=result).config({}).policy.options["max_chunks"] == 3


def test_training_counts_what_it_cuts_and_its_evaluation_reads_to_the_end(run: palimpsest.Run) -> None:
    (row,) = read_rows(run.folder / "metrics.jsonl")
    episodes = int(2 * row["groups/played"])
    assert (row["episode/documents_cut"], row["episode/turns"], row["eval/documents_cut"]) == (episodes, 2, 0)
    warnings = [event["message"] for event in read_rows(run.folder / "events.jsonl") if event["kind"] == "warning"]
    assert sum(f"step 1: {episodes} episodes omitted a part of their document" in text for text in warnings) == 1


def test_an_evaluation_counts_cut_documents(run: palimpsest.Run, tmp_path: Path) -> None:
    sizes: Any = {"chunks": 2, "limit": 2, "quiet": True}
    complete = palimpsest.evaluate(run, **sizes)
    assert complete.summaries[0].documents_cut == 0
    cut = palimpsest.evaluate(run, overrides={"max_chunks": 1}, out=tmp_path, baselines=False, **sizes)
    assert (cut.summaries[0].documents_cut, cut.table.column("documents cut")) == (2, [2])
    assert json.loads((tmp_path / "summary.json").read_text())["evaluations"][0]["documents_cut"] == 2
    assert complete.summaries[0].turns_per_document > cut.summaries[0].turns_per_document


def test_an_episode_says_how_much_of_its_document_was_read(run: palimpsest.Run) -> None:
    assert "of the document read" not in repr(run.play(chunks=2))
    assert "16 of " in repr(run.play(chunks=2, overrides={"max_chunks": 1})).partition("\n")[0]


SMALL = (
    "train={max_steps: 2, batch_size: 2, group_size: 3, save_steps: 1, eval_steps: null, num_minibatches: 1}",
    "policy.options={prompts: short, question_tokens: 100, chunk_size: 64, memory_tokens: 16, answer_tokens: 8}",
    "credit.dynamic_sampling=null", "data.curriculum=null", "cold_start=null", "logging.report_to=[jsonl]",
)  # fmt: skip

BUDGETS = {"prompts": "short", "question_tokens": 64, "chunk_size": 64, "memory_tokens": 8, "answer_tokens": 8}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three documents with two questions, one with one."""
    facts = [{"question": "What does Ann drink?", "answers": ["tea"]}]
    facts += [{"question": "Where does Ann live?", "answers": ["Rome"]}]
    context = "Ann drinks tea. Ann lives in Rome."
    rows = [{"id": f"d{n}", "context": context, "questions": facts[: 1 if n == 3 else 2]} for n in range(4)]
    path = tmp_path / "several.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_agent_trains_on_a_file_of_several_questions(data: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    words = [f"model.path={tiny_model_folder}", f"data.train_files={data}", *SMALL, "--out", str(tmp_path / "run")]
    app(["train", "memagent-quickstart", *words], standalone_mode=False)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    files = [tmp_path / "run" / "trajectories" / f"step-{step:06d}.jsonl.zst" for step in (1, 2)]
    played = [group for file in files for group in read_groups(file).groups]
    assert sorted(group.problem.id for group in played) == ["d0", "d1", "d2", "d3"]  # each once an epoch
    for group in played:
        count = len(group.problem.by_question)
        for trajectory, grade in zip(group.trajectories, group.grades, strict=True):
            assert sum(turn.name == "answer" for turn in trajectory.turns) == count
            assert len(trajectory.answers) == (count if count > 1 else 0)
            values = [grade.breakdown[f"question_{n}"] for n in range(1, count + 1)] if count > 1 else [grade.value]
            assert grade.value is not None
            assert grade.breakdown["boxed"] == pytest.approx(sum(v or 0 for v in values) / count)


def test_samples_contain_every_question_and_value(data: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    words = [str(tiny_model_folder), "--data", str(data), "--out", str(tmp_path / "out")]
    app(["eval", "--policy", "overwrite", *words, "answer_tokens=8"], standalone_mode=False)
    samples, unreadable = read_samples(tmp_path / "out" / "samples.jsonl")
    assert unreadable == 0
    by_id = {sample.id: sample for sample in samples}
    assert by_id["d3"].questions == []
    assert [item["answers"] for item in by_id["d0"].questions] == [["tea"], ["Rome"]]
    assert by_id["d0"].value == sum(item["value"] for item in by_id["d0"].questions) / 2
    assert all(isinstance(item["answer"], str) for item in by_id["d0"].questions)


def test_a_policy_of_one_question_is_refused(data: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(palimpsest.PalimpsestError, match="retrieval answers one question and problem d0 has 2"):
        palimpsest.evaluate(str(tiny_model_folder), data, policy="retrieval", overrides=BUDGETS, quiet=True)


def test_a_policy_that_does_not_admit_a_set_leaves_its_row_blank_with_the_reason(
    data: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    single = data.with_name("single_64.jsonl")
    single.write_text(data.read_text().splitlines()[3].replace('"d3"', '"s"') + "\n")
    other = data.with_name("single_8.jsonl")
    other.write_text(single.read_text())
    named = palimpsest.evaluate(
        str(tiny_model_folder), [single, data, other], policy="overwrite,retrieval", overrides=BUDGETS, quiet=True,
        baselines=False, out=tmp_path / "out",
    )  # fmt: skip
    sets = ["single_8", "single_64", "several"]
    assert [(row.cell.player, row.cell.set) for row in named.summaries] == [
        *(("overwrite", name) for name in sets), *(("retrieval", name) for name in sets[:2]),
    ]  # fmt: skip
    (name,) = named.blank
    assert "retrieval" in name
    assert "answers one question and problem d0 has 2" in named.blank[name]
    notes = json.loads((tmp_path / "out" / "summary.json").read_text())["notes"]
    assert {"name": name, "reason": named.blank[name]} in [
        note.get("values") for note in notes if note["code"] == "left_blank"
    ]


def test_an_episode_shows_every_answer(tiny_model_folder: Path) -> None:
    questions = [Question("What does Ann drink?", ("tea",)), Question("Where does Ann live?", ("Rome",))]
    problem = Problem.asking("p", questions, "Ann drinks tea. Ann lives in Rome.")
    options = {"answer_tokens": 8, "memory_tokens": 16, "prompts": "short"}
    episode = palimpsest.play(problem, model=tiny_model_folder, policy="overwrite", overrides=options)
    assert len(episode.answers) == 2
    assert episode.answers == episode.trajectory.answers
    assert repr(episode).count("\n  > ") == 2
    assert episode.grade is not None
    assert {"question_1", "question_2"} <= set(episode.grade.breakdown)
