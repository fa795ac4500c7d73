"""Objects that live in one process alone: those of an interactive session, of several threads, of a run on ranks."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.train.training_summary import next_steps
from palimpsest.config.load import load_recipe
from palimpsest.types import Completion, Outcome, StopReason, Turn
from support.small_run import small_run

ROOT = Path(__file__).parents[2]

NUMBERS: dict[str, float] = {}
CELLS = """\
import palimpsest
from support.small_run import small_run
changes = {{key: value for key, value in small_run({model!r}).items() if not key.startswith(("data.", "policy."))}}
rows = [{{"question": "What does Anna drink?", "answers": ["tea"], "context": "Anna drinks tea."}}]
class Short(palimpsest.MemoryPolicy):
    async def run(self, problem, model):
        await model.generate(model.codec.encode(problem.question), name="answer", max_tokens=2)
        return palimpsest.Answered("tea")

def right(problem, trajectory):
    return float(trajectory.answer in problem.answers)

def watch(step, metrics, timings):
    print("step", step, metrics["reward/mean"])

things = {{"policy": Short, "reward": right, "data": rows, "quiet": True}}
run = palimpsest.train("memagent-quickstart", changes, **things, callbacks=watch, out="run")
evaluation = run.evaluate(baselines=False, quiet=True)
print(evaluation.title.split(",")[0], evaluation.accuracy.mean)
more = palimpsest.train(resume=run, overrides={{"train.max_steps": 3}}, quiet=True)
palimpsest.train("memagent-quickstart", changes, **things, out="run")
palimpsest.train(resume="run", quiet=True)
"""


@pytest.mark.slow
def test_everything_can_be_typed_into_an_interactive_session(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Functions and classes of `__main__`, of which there is no file."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    options: Any = {"capture_output": True, "text": True, "cwd": tmp_path, "env": env, "timeout": 240}
    cells = CELLS.format(model=str(tiny_model_folder))
    done = subprocess.run([sys.executable, "-q", "-i"], input=cells, **options)
    assert done.stdout.splitlines() == ["step 1 1.0", "step 2 1.0", "Short on problems 1.0", "step 3 1.0"], done.stderr
    refused = [line for line in done.stderr.splitlines() if line.startswith("palimpsest.errors.")]
    again = "palimpsest.train(resume='run', reward=..., policy=..., data=..., callbacks=...)"
    assert "run contains a run (3 steps, newest checkpoint step-000003): " in refused[0]
    assert refused[0].endswith(f"{again} continues it, --force renames it (in Python resume=True, force=True)")
    assert refused[1].endswith(f"no file stores: pass them again, {again}")
    exported = [sys.executable, "-m", "palimpsest", "export", "run", "--out", "exported"]
    done = subprocess.run(exported, **options)
    assert done.returncode == 0, done.stderr
    assert "policy=Short)" in done.stdout
    assert "palimpsest serve" not in done.stdout


OBJECTS = {"reward.name": "object:mine", "policy.name": "object:Mine", "policy.options": {}, "logging.report_to": []}


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        (OBJECTS, {"reward", "policy", "chunks", "out"}),
        ({"data.train_files": "object:data", "data.curriculum": None}, {"data", "out"}),
        ({"data.train_files": "object:data", "data.curriculum": None, "data.val_files": "held_out.json"}, {"out"}),
        ({"logging.report_to": ["object:watch"]}, {"chunks", "out"}),
    ],
)
def test_the_next_steps_of_a_run_with_objects_are_calls(
    changes: dict[str, Any], arguments: set[str], tmp_path: Path
) -> None:
    config = load_recipe("memagent-quickstart", {**changes, "train.max_steps": 2})
    started = '{"kind": "started", "command": "train", "detail": {"given": ["reward"]}}\n'
    (tmp_path / "events.jsonl").write_text(started)
    measure, train_on = next_steps(tmp_path, config, 2)
    for line, function, named in (
        (measure, palimpsest.evaluate, arguments),
        (train_on, palimpsest.train, {"resume", "reward", "overrides"}),
    ):
        call = ast.parse(line).body[0].value  # type: ignore[attr-defined]
        assert ast.unparse(call.func) == f"palimpsest.{function.__name__}"
        assert {keyword.arg for keyword in call.keywords} == named
        inspect.signature(function).bind(*call.args, **{keyword.arg: keyword.value for keyword in call.keywords})
    assert "overrides={'train.max_steps': 4}" in train_on


def without_data(model: Path) -> dict[str, Any]:
    return {key: value for key, value in small_run(model).items() if not key.startswith("data.")}


def worth(value: float) -> Callable[[palimpsest.Problem, palimpsest.Trajectory], float]:
    """A reward that no module has; every one of them has the same name."""

    def reward(problem: palimpsest.Problem, trajectory: palimpsest.Trajectory) -> float:
        assert problem.answers == (f"gold-{value}",) or problem.answers == ("Bob",)
        return value

    return reward


def test_calls_in_several_threads_see_their_own_objects(tiny_model_folder: Path, tmp_path: Path) -> None:
    found: dict[float, Any] = {}
    together = threading.Barrier(3, timeout=120)

    def call(value: float) -> None:
        seen: list[float] = []

        def watch(step: int, metrics: Any, timings: Any) -> None:
            seen.append(metrics["reward/mean"])
            together.wait()  # each call is in the middle of its run

        rows = [{"question": f"What is {value}?", "answers": [f"gold-{value}"], "context": f"It is gold-{value}."}]
        things: Any = {"reward": worth(value), "data": rows, "callbacks": watch, "quiet": True}
        run = palimpsest.train(
            "memagent-quickstart", without_data(tiny_model_folder), **things, out=tmp_path / f"run-{value}"
        )
        (sample,) = run.evaluate(baselines=False, quiet=True)
        found[value] = (seen, sample.question, sample.value)

    values = (0.25, 0.5, 0.75)
    threads = [threading.Thread(target=call, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {value: ([value, value], f"What is {value}?", value) for value in values}


@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
@pytest.mark.slow
def test_objects_stay_in_the_calling_process_of_a_run_on_ranks(tiny_model_folder: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    class Short(palimpsest.MemoryPolicy):
        async def run(self, problem: palimpsest.Problem, model: palimpsest.Model) -> palimpsest.Answered:
            await model.generate(model.codec.encode(problem.question), name="answer", max_tokens=2)
            return palimpsest.Answered("Bob" if os.getpid() == here else "elsewhere")

    def reward(problem: palimpsest.Problem, trajectory: palimpsest.Trajectory) -> float:
        return float(trajectory.answer == "Bob" and os.getpid() == here)

    here = os.getpid()
    changes = {key: value for key, value in without_data(tiny_model_folder).items() if key != "policy.options"}
    run = palimpsest.train(
        "memagent-quickstart",
        {**changes, "engine.name": "ray", "cluster.learners": 1, "train.max_steps": 1, "credit.dynamic_sampling": None},
        policy=Short,
        reward=reward,
        data=[{"question": "Who?", "answers": ["Bob"], "context": "Bob."}],
        callbacks=lambda step, metrics, timings: seen.append(step),
        out=tmp_path / "run",
        quiet=True,
    )
    assert (run.metrics.column("reward/mean"), seen) == ([1.0], [1])


def test_an_error_of_a_reward_that_no_command_can_reach_names_its_line_and_no_command(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    def broken(problem: palimpsest.Problem, trajectory: palimpsest.Trajectory) -> float:
        return NUMBERS["missing"]

    with pytest.raises(palimpsest.PalimpsestError) as refused:
        palimpsest.train(
            "memagent-quickstart", small_run(tiny_model_folder), reward=broken, out=tmp_path / "run", quiet=True
        )
    assert "broken raised KeyError: 'missing' (" in str(refused.value)
    assert f"{Path(__file__).name}:" in str(refused.value)
    assert "palimpsest check" not in str(refused.value)
    assert str(refused.value).endswith(f"tracebacks are in {tmp_path / 'run' / 'events.jsonl'}")


def test_a_callback_that_fails_is_named_and_the_run_continues(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(step: int, metrics: Any, timings: Any) -> None:
        raise KeyError("x")

    run = palimpsest.train(
        "memagent-quickstart", small_run(tiny_model_folder), callbacks=[broken], out=tmp_path / "run"
    )
    assert run.finished
    shown = " ".join(capsys.readouterr().err.split())
    assert "callback broken failed (KeyError: 'x')" in shown
    assert "callback broken failed 2 times in this run" in shown


def test_what_a_cell_shows_of_a_long_episode_is_short() -> None:
    turn = Turn(tuple(range(1000)), Completion(tuple(range(1000)), (0.0,) * 1000, StopReason.LENGTH, 0), 0, "read")
    trajectory = palimpsest.Trajectory("p", "g", 0, (turn,) * 3000, Outcome.ANSWERED, "tea")
    problem = palimpsest.Problem("p", "Who?", ("Bob",), "a" * 10**6, {"evidence": ["b" * 10**6]}, memory="c" * 10**6)
    episode = palimpsest.Episode(problem, trajectory, (), tuple(f"memory {n} " * 500 for n in range(3000)), None)
    assert len(repr(problem)) < 200
    assert len(repr(trajectory)) < 300
    lines = repr(episode).splitlines()
    assert len(lines) == 1 + 41 + 1
    assert max(map(len, lines)) < 220
    assert lines[20].startswith(" 20 memory 19 ")
    assert lines[21:23] == ["...", lines[22]]
    assert lines[22].startswith("2981 memory 2980 ")
    assert len(episode._repr_html_()) < 12_000
