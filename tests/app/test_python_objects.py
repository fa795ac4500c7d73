"""Objects that Python calls take: rewards, problems, policies, callbacks, loaded models."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import palimpsest
from palimpsest.app.train.training_summary import next_steps
from palimpsest.config.load import load_recipe
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.types import Completion, Outcome, StopReason, Turn
from support.small_run import small_run

ROWS = [
    {"question": f"What does {name} drink?", "answers": [drink], "context": f"{name} drinks {drink}.\nBob likes rain."}
    for name, drink in (("Anna", "tea"), ("Omar", "milk"))
]


def small(model: Path, **changes: Any) -> dict[str, Any]:
    """Overrides of a tiny model without keys of synthetic documents."""
    return {key: value for key, value in small_run(model, **changes).items() if not key.startswith("data.")}


def local_reward() -> Any:
    """A function that no module has."""

    def by_number(problem: palimpsest.Problem, trajectory: palimpsest.Trajectory) -> float:
        return 0.25 + trajectory.rollout % 2

    return by_number


def one(problem: palimpsest.Problem, trajectory: palimpsest.Trajectory) -> float:
    return 1.0


def test_a_reward_of_a_module_is_stored_by_name(tiny_model_folder: Path, tmp_path: Path) -> None:
    changes = small_run(tiny_model_folder, max_steps=1)
    run = palimpsest.train("memagent-quickstart", changes, reward=one, out=tmp_path / "run", quiet=True)
    assert run.config.reward.name == f"{__name__}:one"


def test_a_reward_and_problems_can_be_objects(tiny_model_folder: Path, tmp_path: Path) -> None:
    observed: list[int] = []

    def watch(step: int, metrics: Any, timings: Any) -> None:
        observed.append(step)

    things: Any = {"reward": local_reward(), "data": ROWS, "callbacks": watch, "out": tmp_path / "run", "quiet": True}
    run = palimpsest.train("memagent-quickstart", small(tiny_model_folder), **things)
    assert run.metrics.column("reward/mean") == [0.75, 0.75]
    assert observed == [1, 2]
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert (config["reward"]["name"], config["data"]["train_files"]) == ("object:by_number", "object:data")
    assert config["logging"]["report_to"] == ["jsonl", "object:watch"]
    assert config["data"]["curriculum"] is None
    evaluation = run.evaluate(baselines=False, quiet=True)
    assert [(sample.id, sample.value) for sample in evaluation] == [("data-0", 0.25), ("data-1", 0.25)]


@pytest.mark.parametrize(("overrides", "penalty"), [({}, 0), ({"reward.unsupported_penalty": 2.0}, 2)])
def test_a_reward_object_replaces_the_recipes_penalty(
    overrides: dict[str, Any], penalty: float, tiny_model_folder: Path, tmp_path: Path
) -> None:
    changes = small_run(tiny_model_folder, max_steps=1) | overrides
    run = palimpsest.train("memagent-quickstart", changes, reward=local_reward(), out=tmp_path / "a", quiet=True)
    assert run.config.reward.unsupported_penalty == penalty


def test_a_resumed_run_needs_its_objects(tiny_model_folder: Path, tmp_path: Path) -> None:
    things = {"reward": local_reward(), "data": ROWS}
    straight = palimpsest.train(
        "memagent-quickstart", small(tiny_model_folder, max_steps=3), **things, out=tmp_path / "one", quiet=True
    )
    short = small(tiny_model_folder, max_steps=3)
    run = palimpsest.train("memagent-quickstart", short, **things, out=tmp_path / "two", quiet=True, stop=at_once())
    assert run.steps < 3
    folder = run.folder
    with pytest.raises(palimpsest.PalimpsestError, match=r"two', reward=\.\.\., data=\.\.\.\)"):
        palimpsest.train(resume=folder, quiet=True)
    other = [*ROWS[:1], {**ROWS[1], "answers": ["wine"]}]
    with pytest.raises(palimpsest.PalimpsestError, match="golds changed"):
        palimpsest.train(resume=folder, reward=things["reward"], data=other, quiet=True)
    for resume, again in ((folder, things), (run, {})):  # a Run has them
        run = palimpsest.train(resume=resume, **again, quiet=True)
    assert (run.folder / "metrics.jsonl").read_bytes() == (straight.folder / "metrics.jsonl").read_bytes()
    assert "palimpsest.train(resume=" in (run.folder / "report.html").read_text()


def at_once() -> Any:
    from palimpsest.runs.signals import GracefulStop

    stop = GracefulStop()
    stop.request("enough")
    return stop


class Sized:
    """The part of the interface of `datasets.Dataset` that a list has too."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, list(rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


@pytest.mark.parametrize(
    "data",
    [
        [palimpsest.Problem("data-0", ROWS[0]["question"], ("tea",), ROWS[0]["context"])],
        Sized(ROWS[:1]),
        [{**ROWS[0], "answers": ("tea",)}],
        [{"question": ROWS[0]["question"], "answer": "tea", "context": ROWS[0]["context"]}],
    ],
    ids=["problems", "data set", "tuples", "other columns"],
)
def test_problems_come_as_dicts_problems_or_a_data_set(data: Any, tiny_model_folder: Path, tmp_path: Path) -> None:
    run = palimpsest.train(
        "memagent-quickstart", small(tiny_model_folder, max_steps=1), data=data, out=tmp_path / "run", quiet=True
    )
    (sample,) = run.evaluate(baselines=False, quiet=True)
    assert (sample.id, sample.question) == ("data-0", "What does Anna drink?")


def test_a_short_list_is_one_step(tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = small(tiny_model_folder, max_steps=1)
    del changes["train"]["batch_size"], changes["train"]["num_minibatches"]
    run = palimpsest.train("memagent-quickstart", changes, data=ROWS, out=tmp_path / "run")
    assert (run.config.train.batch_size, run.config.train.num_minibatches) == (2, 2)
    message = "palimpsest.train(data=...) has 2: train.batch_size is 2, not 8"
    assert message in " ".join(capsys.readouterr().err.split())
    fewer: Any = {"resume": run.folder, "data": ROWS[:1]}
    with pytest.raises(palimpsest.PalimpsestError, match=r"train\(data=\.\.\.\) has 1 problem, a step of .* takes 2"):
        palimpsest.train(**fewer, quiet=True)
    overrides = {**changes, "train.batch_size": 3, "train.num_minibatches": 1}
    with pytest.raises(palimpsest.PalimpsestError, match="object:data has 2 problems, a step needs 3"):
        palimpsest.train("memagent-quickstart", overrides, data=ROWS, out=tmp_path / "b", quiet=True)


@dataclass
class Parrot(palimpsest.MemoryPolicy):
    """Answers with the document's first characters."""

    characters: int = 4

    async def run(self, problem: palimpsest.Problem, model: palimpsest.Model) -> palimpsest.Answered:
        await model.generate(model.codec.encode(problem.question), name="answer", max_tokens=2)
        return palimpsest.Answered((problem.context or "")[: self.characters])


class Held(palimpsest.MemoryPolicy):
    """A policy whose options no configuration can store."""

    def __init__(self, inner: Parrot) -> None:
        self.inner = inner

    async def run(self, problem: palimpsest.Problem, model: palimpsest.Model) -> palimpsest.Answered:
        return await self.inner.run(problem, model)


def test_a_policy_is_a_class_or_an_object(tiny_model_folder: Path, tmp_path: Path) -> None:
    changes: Any = small(tiny_model_folder, max_steps=1)
    sizes = changes.pop("policy.options")
    name = f"{Parrot.__module__}:Parrot"
    policies: list[tuple[Any, str, dict[str, Any]]] = [
        (Parrot, name, {}),
        (Parrot(2), name, {"characters": 2}),
        (Held(Parrot(3)), "object:Held", {}),
        (OverwritePolicy(**sizes), "overwrite", sizes),
    ]
    for number, (policy, name, options) in enumerate(policies):
        out = tmp_path / str(number)
        run = palimpsest.train("memagent-quickstart", changes, policy=policy, data=ROWS, out=out, quiet=True)
        assert (run.config.policy.name, run.config.policy.options.items() >= options.items()) == (name, True)
        if name != "overwrite":
            assert run.play("Where?", "Rome, said Anna.").answer == "Rome, said Anna."[: [4, 2, 3][number]]


@pytest.mark.parametrize(
    ("things", "words"),
    [
        ({"data": "no-such-file.jsonl"}, "no-such-file.jsonl: no such file"),
        ({"data": []}, r"palimpsest\.train\(data=\.\.\.\) is empty"),
        ({"data": {"train": ROWS}}, r"train\(data=\.\.\.\) is of type dict: .* data\['train'\]"),
        ({"data": [1]}, r"train\(data=\.\.\.\) item 0 is of type int: pass a dict"),
        ({"data": [ROWS[0], {**ROWS[1], "question": " "}]}, "object:data item 1: question is empty"),
        ({"data": [{**ROWS[0], "answers": []}]}, r"problem data-0: has no gold answer"),
        ({"data": ROWS[0]}, r"train\(data=\.\.\.\) is one problem: pass a list"),
        ({"data": 3}, r"train\(data=\.\.\.\) is of type int"),
        ({"reward": lambda completions: 1.0}, r"^palimpsest\.train\(reward=<lambda>\): takes \(completions\)"),
        ({"reward": 3}, r"train\(reward=\.\.\.\) is of type int: pass a function"),
        ({"policy": 3}, r"train\(policy=\.\.\.\) is of type int: pass a class"),
        ({"callbacks": [3]}, r"train\(callbacks=\.\.\.\) is of type int: pass functions"),
        (
            {"model": object(), "tokenizer": object()},
            r"train\(model=\.\.\.\) is of type object: pass a transformers model",
        ),
    ],
)
def test_a_wrong_object_is_refused(things: dict[str, Any], words: str, tiny_model_folder: Path, tmp_path: Path) -> None:
    changes = {key: value for key, value in small(tiny_model_folder).items() if key != "model.path"}
    with pytest.raises(palimpsest.PalimpsestError, match=words):
        palimpsest.train("memagent-quickstart", changes, **things, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_an_argument_and_its_override_are_refused(tiny_model_folder: Path, tmp_path: Path) -> None:
    both = {**small_run(tiny_model_folder), "reward.name": "em"}
    with pytest.raises(palimpsest.PalimpsestError, match=r"train\(reward=\.\.\.\) and the override reward\.name"):
        palimpsest.train("memagent-quickstart", both, reward=local_reward(), out=tmp_path / "run", quiet=True)


def test_a_loaded_model_is_trained_as_a_copy_next_to_the_run(tiny_model_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_model_folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    changes = {key: value for key, value in small_run(tiny_model_folder).items() if key != "model.path"}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    things: Any = {"model": model, "tokenizer": tokenizer}
    run = palimpsest.train("memagent-quickstart", changes, **things, out=tmp_path / "run", quiet=True)
    assert all(bool((value == before[name]).all()) for name, value in model.state_dict().items())
    (copy,) = tmp_path.glob("run-model-*")
    assert run.config.model.path == str(copy)
    named = small_run(tiny_model_folder) | {"model.path": str(tiny_model_folder)}
    other = palimpsest.train("memagent-quickstart", named, out=tmp_path / "other", quiet=True)
    assert other.metrics.column("reward/mean") == run.metrics.column("reward/mean")
    more = palimpsest.train(resume=run, overrides={"train.max_steps": 3}, **things, quiet=True)
    assert (more.steps, [*tmp_path.glob("run-model-*")]) == (3, [copy])
    with pytest.raises(palimpsest.PalimpsestError, match=r"train\(tokenizer=\.\.\.\) is missing"):
        palimpsest.train("memagent-quickstart", changes, model=model, out=tmp_path / "c", quiet=True)
    exchanged: Any = {"model": tokenizer, "tokenizer": model}
    with pytest.raises(palimpsest.PalimpsestError, match=r"train\(model=\.\.\.\) is of type .*Tokenizer"):
        palimpsest.train("memagent-quickstart", changes, **exchanged, out=tmp_path / "d", quiet=True)


def test_evaluate_and_play_take_objects_too(tiny_model_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    calls: Any = {"model": str(tiny_model_folder), "baselines": False, "quiet": True}
    things: Any = {"data": ROWS, "reward": local_reward()}
    by_object = palimpsest.evaluate(policy=Parrot(2), **things, **calls)
    assert [(sample.answer, sample.value) for sample in by_object] == [("An", 0.25), ("Om", 0.25)]
    by_class = palimpsest.evaluate(policy=Parrot, overrides={"characters": 3}, **things, **calls)
    assert [sample.answer for sample in by_class] == ["Ann", "Oma"]
    held: Any = Held(Parrot(4))
    assert [sample.answer for sample in palimpsest.evaluate(policy=held, **things, **calls)] == ["Anna", "Omar"]
    with pytest.raises(palimpsest.PalimpsestError, match=r"the options of a Held object are unknown"):
        palimpsest.evaluate(policy=held, **things, **calls, out=tmp_path / "eval")
    model = AutoModelForCausalLM.from_pretrained(tiny_model_folder)
    loaded: Any = {"model": model, "tokenizer": AutoTokenizer.from_pretrained(tiny_model_folder)}
    episode = palimpsest.play(ROWS[0], **loaded, reward=things["reward"])
    named = palimpsest.play(ROWS[0], model=tiny_model_folder)
    assert episode.trajectory.turns == named.trajectory.turns
    assert episode.grade is not None
    assert episode.grade.value == 0.25


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
def test_next_steps_with_objects_are_calls(changes: dict[str, Any], arguments: set[str], tmp_path: Path) -> None:
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


def worth(value: float) -> Callable[[palimpsest.Problem, palimpsest.Trajectory], float]:
    """A reward that no module has; every one of them has the same name."""

    def reward(problem: palimpsest.Problem, trajectory: palimpsest.Trajectory) -> float:
        assert problem.answers == (f"gold-{value}",) or problem.answers == ("Bob",)
        return value

    return reward


def test_calls_in_threads_use_separate_objects(tiny_model_folder: Path, tmp_path: Path) -> None:
    matches: dict[float, Any] = {}
    together = threading.Barrier(3, timeout=120)

    def call(value: float) -> None:
        observed: list[float] = []

        def watch(step: int, metrics: Any, timings: Any) -> None:
            observed.append(metrics["reward/mean"])
            together.wait()  # each call is in the middle of its run

        rows = [{"question": f"What is {value}?", "answers": [f"gold-{value}"], "context": f"It is gold-{value}."}]
        things: Any = {"reward": worth(value), "data": rows, "callbacks": watch, "quiet": True}
        run = palimpsest.train("memagent-quickstart", small(tiny_model_folder), **things, out=tmp_path / f"run-{value}")
        (sample,) = run.evaluate(baselines=False, quiet=True)
        matches[value] = (observed, sample.question, sample.value)

    values = (0.25, 0.5, 0.75)
    threads = [threading.Thread(target=call, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert matches == {value: ([value, value], f"What is {value}?", value) for value in values}


@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
@pytest.mark.slow
def test_objects_stay_in_the_calling_process_of_a_run_on_ranks(tiny_model_folder: Path, tmp_path: Path) -> None:
    observed: list[int] = []

    class Short(palimpsest.MemoryPolicy):
        async def run(self, problem: palimpsest.Problem, model: palimpsest.Model) -> palimpsest.Answered:
            await model.generate(model.codec.encode(problem.question), name="answer", max_tokens=2)
            return palimpsest.Answered("Bob" if os.getpid() == here else "elsewhere")

    def reward(problem: palimpsest.Problem, trajectory: palimpsest.Trajectory) -> float:
        return float(trajectory.answer == "Bob" and os.getpid() == here)

    here = os.getpid()
    changes = {key: value for key, value in small(tiny_model_folder).items() if key != "policy.options"}
    run = palimpsest.train(
        "memagent-quickstart",
        {**changes, "engine.name": "ray", "cluster.learners": 1, "train.max_steps": 1, "credit.dynamic_sampling": None},
        policy=Short,
        reward=reward,
        data=[{"question": "Who?", "answers": ["Bob"], "context": "Bob."}],
        callbacks=lambda step, metrics, timings: observed.append(step),
        out=tmp_path / "run",
        quiet=True,
    )
    assert (run.metrics.column("reward/mean"), observed) == ([1.0], [1])


def test_an_error_of_a_local_reward_names_its_line(tiny_model_folder: Path, tmp_path: Path) -> None:
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


def test_a_failed_callback_is_named(
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
