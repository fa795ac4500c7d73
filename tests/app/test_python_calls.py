"""`palimpsest.train`, `evaluate`, `play`: results, errors, running loops and threads, interrupts."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.config_resolution import Agent, evaluation_config
from palimpsest.app.python_calls import blocking, finish, rare_collections
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.display_text import Table
from support.small_run import small_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> palimpsest.Run:
    """Two steps on a tiny model."""
    out = tmp_path_factory.mktemp("runs") / "first"
    return palimpsest.train("memagent-quickstart", small_run(tiny_model_folder), out=out, quiet=True)


def test_importing_the_package_imports_nothing_and_every_name_is_there_when_it_is_used() -> None:
    code = (
        "import sys, palimpsest\n"
        "print(*sys.modules)\n"
        "assert dir(palimpsest) == sorted(palimpsest.__all__)\n"
        "for name in palimpsest.__all__: getattr(palimpsest, name)\n"
        "try: palimpsest.nothing\n"
        "except AttributeError as error: assert 'nothing' in str(error)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not {"torch", "transformers", "numpy", "pydantic", "yaml", "rich", "asyncio", "dataclasses"} & loaded
    assert {name for name in loaded if name.startswith("palimpsest")} == {"palimpsest", "palimpsest._version"}


def test_what_type_checkers_see_is_what_is_exported() -> None:
    text = (ROOT / "src" / "palimpsest" / "__init__.py").read_text("utf-8")
    shown = set(re.findall(r"^    from \S+ import (\w+) as \1$", text, re.MULTILINE))
    assert shown == set(palimpsest.__all__) - {"__version__"}


def test_a_run_tells_its_steps_metrics_and_checkpoint(run: palimpsest.Run) -> None:
    assert (run.steps, run.finished) == (2, True)
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert run.metrics.column("reward/mean") == [row["reward/mean"] for row in rows]
    assert run.checkpoint == run.folder / "checkpoints" / "step-000002"
    assert "2 of 2 steps, finished, reward" in repr(run)
    assert repr(palimpsest.Run(run.folder)) == repr(run)
    with pytest.raises(palimpsest.PalimpsestError, match=r"no run, config\.yaml is missing"):
        palimpsest.Run(run.folder / "checkpoints")
    with pytest.raises(palimpsest.PalimpsestError, match="no such folder"):
        palimpsest.Run(run.folder / "nothing")


def test_an_evaluation_has_a_table_and_samples(run: palimpsest.Run, tmp_path: Path) -> None:
    evaluation = run.evaluate(chunks=[2, 1], limit=2, out=tmp_path, baselines=False, quiet=True)
    assert evaluation.table.column("") == ["1 chunk", "2 chunks"]
    assert (len(evaluation), evaluation["2 chunks"].problems) == (4, 2)
    logged = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in logged) == sorted(sample.id for sample in evaluation)
    mean = sum(row["value"] for row in logged) / 4
    assert evaluation.accuracy.mean == pytest.approx(mean)
    assert repr(evaluation).startswith("Evaluation of overwrite on synthetic, model ")
    assert "<table>" in evaluation._repr_html_()
    again = palimpsest.evaluate(
        run.folder, recipe=run.config, chunks=1, limit=2, out=tmp_path, baselines=False, quiet=True
    )
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 4  # no episode is played again
    assert [sample.answer for sample in again] == [s.answer for s in evaluation if s.size == 1]


def test_a_run_is_evaluated_with_its_configuration(
    tiny_model_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    changes = small_run(tiny_model_folder, max_steps=1)
    options = {**changes.pop("policy.options"), "reply_tokens": 16, "prompts": "short"}
    changes["policy"] = {"name": "recall", "options": options}
    run = palimpsest.train("memagent-quickstart", changes, out=tmp_path / "run", quiet=True)
    for model in (run, run.folder, run.model):
        policy = evaluation_config(Agent(model)).policy
        assert (policy.name, policy.options["reply_tokens"]) == ("recall", 16)
    assert "recall" in palimpsest.play(model=run, chunks=1).turns[0].prompt
    words = ("eval", str(run.folder), "--chunks", "1", "--limit", "1", "--policy", "overwrite", "prompts=short")
    assert f"{run.folder} trained with recall, not overwrite" in request.getfixturevalue("palimpsest")(*words).stderr


def test_problem_objects_are_evaluated(run: palimpsest.Run, tmp_path: Path) -> None:
    problems = [palimpsest.Problem(name, "Who?", ("Bob",), "Bob likes tea.") for name in ("a", "b")]
    for _ in range(2):
        evaluation = palimpsest.evaluate(run, problems, out=tmp_path, baselines=False, quiet=True)
        assert [sample.id for sample in evaluation] == ["a", "b"]
        assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 2
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ([palimpsest.Problem("a", "Where?", ("x",), "y")], {"out": tmp_path}, "contains another evaluation"),
        ([1], {}, r"palimpsest\.evaluate\(data=\.\.\.\) item 0 is of type int"),
        (problems + problems, {}, "two problems have the id 'a'"),
        (problems, {"limit": 1}, "takes no documents"),
    ]
    for data, options, message in wrong:
        with pytest.raises(palimpsest.PalimpsestError, match=message):
            palimpsest.evaluate(run, data, quiet=True, **options)


def test_an_episode_can_be_read_memory_by_memory(run: palimpsest.Run, tiny_codec: Any) -> None:
    episode = run.play(chunks=2)
    reads = [turn for turn in episode.trajectory.turns if turn.name == "read"]
    assert episode.memories == tuple(tiny_codec.decode(turn.completion.token_ids, control=False) for turn in reads)
    assert episode.grade is not None
    assert episode.outcome == episode.trajectory.outcome
    assert len(episode.table) == len(episode.turns) == len(reads) + 1
    assert repr(episode).count("\n") == len(reads) + 1
    assert "<li value=" in episode._repr_html_()
    assert run.play(chunks=2).answer == episode.answer  # drawn again, the same


def test_an_unknown_argument_names_call_and_nearest() -> None:
    calls: list[Any] = [palimpsest.train, palimpsest.play, palimpsest.quickstart]
    for call, wrong, near in zip(calls, ("rewards", "quite", "seedz"), ("reward", "quiet", "seed"), strict=True):
        result = rf"palimpsest\.{call.__name__}\(\): got an unexpected keyword argument '{wrong}'; did you mean {near}"
        with pytest.raises(TypeError, match=result):
            call(**{wrong: True})


@pytest.mark.parametrize(
    ("wrong", "key"), [("max_steps", "train.max_steps"), ("steps", "train.max_steps"), ("lr", "optim.learning_rate")]
)
def test_a_key_of_the_configuration_is_no_argument(wrong: str, key: str) -> None:
    call: Any = palimpsest.train
    with pytest.raises(TypeError, match=rf"'{wrong}'; did you mean {re.escape(key)}.* overrides="):
        call("memagent-quickstart", **{wrong: 3})
    without_keys: Any = palimpsest.compare
    with pytest.raises(TypeError) as caught:
        without_keys(**{wrong: 3})
    assert "overrides" not in str(caught.value)


def test_every_call_can_be_quiet(capsys: pytest.CaptureFixture[str], run: palimpsest.Run, tmp_path: Path) -> None:
    for name in ("train", "evaluate", "play", "ask", "quickstart", "compare"):
        assert "quiet" in inspect.signature(getattr(palimpsest, name)).parameters, name
    (tmp_path / "story.txt").write_text("Anna lives in Rome.")
    reply = run.ask(tmp_path / "story.txt", "Where does Anna live?", quiet=True)
    run.play("Where does Anna live?", "Anna lives in Rome.", quiet=True)
    assert capsys.readouterr() == ("", "")
    assert len(repr(reply)) < 1000
    assert "token_ids" not in repr(reply.trajectory)


def test_the_metrics_of_a_run_show_their_main_columns_and_draw_themselves(run: palimpsest.Run) -> None:
    metrics = run.metrics
    assert len(metrics.columns) > 30
    assert repr(metrics).splitlines()[0].split()[:2] == ["step", "reward/mean"]
    assert max(map(len, repr(metrics).splitlines())) < 200
    assert "<p>" in metrics._repr_html_()
    (axes,) = metrics.plot().axes
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[row["step"], row["reward/mean"]] for row in metrics]  # type: ignore[union-attr]
    assert [panel.get_ylabel() for panel in metrics.plot("reward/std", "episode/turns").axes] == [
        "reward/std",
        "episode/turns",
    ]
    with pytest.raises(palimpsest.PalimpsestError, match="no such column; did you mean reward/mean"):
        metrics.plot("reward/meen")


def test_a_table_becomes_a_data_frame_with_pandas(run: palimpsest.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(palimpsest.PalimpsestError, match="pip install pandas"):
        run.metrics.to_pandas()
    pandas = types.ModuleType("pandas")
    pandas.DataFrame = lambda rows, columns: (rows, columns)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    rows, columns = run.metrics.to_pandas()
    assert columns == list(run.metrics.columns)
    assert [row["reward/mean"] for row in rows] == run.metrics.column("reward/mean")


def test_a_problem_has_an_id_from_its_content() -> None:
    first = palimpsest.Problem(question="Who?", answers="Bob", context="Bob drinks tea.")
    assert first.answers == ("Bob",)
    assert first == palimpsest.Problem(question="Who?", answers=["Bob"], context="Bob drinks tea.")
    rest = [palimpsest.Problem(question="Who?", answers=("Bob",), context=item) for item in (None, "Bob")]
    assert len({first.id, *(other.id for other in rest)}) == 3
    assert len(repr(palimpsest.Problem(question="Who?", context="x" * 10_000))) < 200
    with pytest.raises(palimpsest.PalimpsestError, match=r"item 0: Problem\.question='': must be a question"):
        palimpsest.evaluate(data=[palimpsest.Problem(answers=("Bob",))])


def test_a_run_goes_where_its_folder_goes(run: palimpsest.Run) -> None:
    sizes: Any = {"chunks": 1, "limit": 1, "quiet": True}
    (by_run,), (by_folder,) = palimpsest.evaluate(run, **sizes), palimpsest.evaluate(run.folder, **sizes)
    assert (by_run.id, by_run.answer) == (by_folder.id, by_folder.answer)
    reply = ("Where does Anna live?", "Anna lives in Rome.")
    assert palimpsest.play(*reply, model=run).trajectory == palimpsest.play(*reply, model=run.folder).trajectory
    with pytest.raises(palimpsest.PalimpsestError, match="a run folder; use its configuration"):
        palimpsest.train(str(run.folder))


def test_a_size_that_was_not_evaluated_is_named_with_those_there_are(run: palimpsest.Run) -> None:
    evaluation = run.evaluate(chunks=[2, 1], limit=1, quiet=True)
    with pytest.raises(KeyError, match="no 3 chunks; choose from 1 chunk, 2 chunks, closed book, 1 chunk, "):
        evaluation["3 chunks"]


def test_a_refusal_stands_alone_without_an_error_behind_it() -> None:
    with pytest.raises(palimpsest.PalimpsestError) as caught:
        palimpsest.train("memagent-7")
    assert caught.value.__context__ is None


def test_a_question_with_answers_is_played_and_graded(run: palimpsest.Run) -> None:
    episode = run.play("Where does Anna live?", "Anna lives in Rome.", answers="Rome")
    assert episode.problem.answers == ("Rome",)
    assert episode.grade is not None
    assert "Where does Anna live?" in episode.turns[0].prompt
    problem = palimpsest.Problem("mine", "Who?", (), "Bob likes tea.")
    ungraded = palimpsest.play(problem, model=run.model, overrides={"answer_tokens": 4})
    assert (ungraded.grade, ungraded.problem) == (None, problem)


@dataclass
class Echo(palimpsest.MemoryPolicy):
    """Answers with the document's first tokens."""

    async def run(self, problem: palimpsest.Problem, model: palimpsest.Model) -> palimpsest.Answered:
        await model.generate(model.codec.encode(problem.question), name="answer", max_tokens=2)
        return palimpsest.Answered((problem.context or "")[:4])


def test_concurrent_calls_load_complete_models(run: palimpsest.Run) -> None:
    async def together() -> list[palimpsest.Episode]:
        return await asyncio.gather(*(palimpsest.play_async(model=run, chunks=1) for _ in range(4)))

    first, *rest = asyncio.run(together())
    assert [other.answer for other in rest] == [first.answer] * 3


class Plain:
    """A policy without the base class."""

    run = Echo.run


@pytest.mark.parametrize("kind", [Echo, Plain])
def test_play_takes_a_policy_object(kind: Any, run: palimpsest.Run) -> None:
    policy = kind()
    assert run.play("Where?", "Rome, said Anna.", policy=policy).answer == "Rome"
    assert type(policy) is kind


def test_a_table_is_escaped_and_has_a_line_per_row() -> None:
    table = Table.of([{"answer": "<b>\x1b[31m\n"}] * 60)
    assert len(repr(table).splitlines()) == 42
    assert "\x1b" not in repr(table)
    assert "<b>" not in table._repr_html_()
    assert len(table[:3]) == 3
    with pytest.raises(KeyError, match="no column nothing; choose from answer"):
        table.column("nothing")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: palimpsest.train("memagent-7"), "did you mean memagent-7b?"),
        (lambda: palimpsest.train("memagent-7b", {"train": {"stps": 3}}), "train.stps; did you mean train.max_steps?"),
        (lambda: palimpsest.train("memagent-7b", {"train.max_steps": "many"}), "train.max_steps='many'"),
        (lambda: palimpsest.train("memagent-7b", "train.max_steps=3"), "give a mapping or a list of texts"),
        (lambda: palimpsest.evaluate(overrides={"chunksize": 3}), "policy.options.chunksize"),
        (lambda: palimpsest.evaluate(chunks=0), "chunks=[0]"),
        (lambda: palimpsest.evaluate(data="dev.json", chunks=4), "chunks=4"),
        (lambda: palimpsest.evaluate(data="nowhere.json"), "nowhere.json"),
        (lambda: palimpsest.play(context="alone"), "pass the question first"),
        (lambda: palimpsest.play("Who?", "He.", chunks=3), "chunks=3"),
        (lambda: palimpsest.play("Who?", "He.", model="/no/such/folder"), "/no/such/folder"),
        (lambda: palimpsest.quickstart("memagnet"), "did you mean memagent?"),
        (lambda: palimpsest.train({"train": {"max_steps": 3}}), "expected a name or a YAML file, got dict"),
        (lambda: palimpsest.train("memagent-7b", [("train.max_steps", 3)]), "expected a text such as"),  # type: ignore[list-item]
        (lambda: palimpsest.train("memagent-quickstart", 5), "overrides 5: give a mapping or a list"),
        (lambda: palimpsest.ask("embedded", [{}], "Who?"), "palimpsest.ask(files=...): {} is of type dict: pass files"),  # type: ignore[list-item]
        (lambda: palimpsest.train("memagent-7b", {"train.max_steps": True}), "train.max_steps=True: must be a number"),
        (
            lambda: palimpsest.train("memagent-7b", {"logging.report_to": "jsonl"}),
            "must be a list, each text, e.g. [js",
        ),
        (lambda: palimpsest.train("memagent-7b", {"reward.layers": ["x"]}), "no such layer; give my_module:my_layer"),
        (lambda: palimpsest.evaluate(3), "palimpsest.evaluate(model=...) is of type int: pass a transformers model"),
        (lambda: palimpsest.play("Who?", "He.", model=None), "palimpsest.play(model=...) is missing: pass a transf"),
        (lambda: palimpsest.evaluate(policy=3), "palimpsest.evaluate(policy=...) is of type int: pass a class"),
        (lambda: palimpsest.evaluate(chunks="4,8"), "chunks='4,8': expected a whole number or a list"),
        (lambda: palimpsest.evaluate(chunks=4.0), "chunks=4.0: expected a whole number or a list"),
        (lambda: palimpsest.evaluate(chunks=[]), "chunks=[]: expected"),
        (lambda: palimpsest.evaluate(documents=4), "data.train_files=synthetic has none"),
        (lambda: palimpsest.play(" ", "He."), "the question is blank"),
        (lambda: palimpsest.play("Who?", ["x"]), "palimpsest.play(context=...) is of type list: pass one"),
        (lambda: palimpsest.play("Who?", "x", answers=3), "palimpsest.play(answers=...) is of type int: pass a text"),
        (lambda: palimpsest.play(3), "palimpsest.play(problem=...) is of type int: pass a question"),
        (
            lambda: palimpsest.play(palimpsest.Problem("a", "Who?", (), ["x"])),
            "palimpsest.play(problem=...): Problem.context is of type list",
        ),
        (lambda: palimpsest.evaluate(api_key_env="X"), "--api-key-env X: needs an endpoint; set --base-url"),
        (lambda: palimpsest.train(), "train: pass a recipe"),
        (lambda: palimpsest.ask("embedded", "no.txt", "Who?", api_key_env="X"), "--api-key-env X"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(
    call: Callable[[], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(palimpsest.PalimpsestError, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_loops_and_threads_train_the_same_bytes(run: palimpsest.Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    settings = small_run(tiny_model_folder)

    def train(name: str) -> palimpsest.Run:
        return palimpsest.train("memagent-quickstart", settings, out=tmp_path / name, quiet=True)

    async def inside() -> palimpsest.Run:
        return train("inside")

    async def awaited() -> palimpsest.Run:
        return await palimpsest.train_async("memagent-quickstart", settings, out=tmp_path / "awaited", quiet=True)

    asyncio.run(inside())
    asyncio.run(awaited())
    thread = threading.Thread(target=train, args=("threaded",))
    thread.start()
    thread.join()
    for name in ("inside", "awaited", "threaded"):
        for file in ("metrics.jsonl", "checkpoints/step-000002/model.safetensors"):
            assert (tmp_path / name / file).read_bytes() == (run.folder / file).read_bytes()


def test_quiet_shows_no_steps(tmp_path: Path, tiny_model_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = small_run(tiny_model_folder) | {"logging.report_to": ["console", "jsonl"]}
    palimpsest.train("memagent-quickstart", settings, out=tmp_path / "quiet", quiet=True)
    out, err = capfd.readouterr()
    assert (out, "steps 1/2" in err) == ("", False)
    palimpsest.train("memagent-quickstart", settings, out=tmp_path / "told")
    assert "steps 2/2  elapsed" in capfd.readouterr().err


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("where", ["plain", "running loop"])
def test_an_interrupted_run_resumes(where: str, run: palimpsest.Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    arguments: Any = ("memagent-quickstart", small_run(tiny_model_folder))

    def begin() -> palimpsest.Run:
        return palimpsest.train(*arguments, out=tmp_path / "run", quiet=True, callbacks=lambda *_: interrupt())

    async def inside() -> palimpsest.Run:
        return begin()

    stopped = begin() if where == "plain" else asyncio.run(inside())
    assert (stopped.steps, stopped.finished) == (1, False)
    assert "1 of 2 steps, unfinished" in repr(stopped)
    resumed = palimpsest.train(*arguments, out=tmp_path / "run", resume=True, quiet=True)
    assert resumed.finished
    for file in ("metrics.jsonl", "checkpoints/step-000002/model.safetensors"):
        assert (resumed.folder / file).read_bytes() == (run.folder / file).read_bytes()


def test_an_early_stop_is_printed(tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop = GracefulStop()
    settings = small_run(tiny_model_folder, max_steps=50)
    run = palimpsest.train(
        "memagent-quickstart", settings, out=tmp_path, stop=stop, quiet=True, callbacks=lambda *_: stop.request("x")
    )
    assert (run.steps, run.finished) == (1, False)
    assert str(tmp_path) in capsys.readouterr().err
    with pytest.raises(palimpsest.PalimpsestError, match="interrupted after 1 of 50 steps"):
        run.evaluate(chunks=[1], limit=1, quiet=True)
    assert len(run.evaluate(partial=True, chunks=[1], limit=1, baselines=False, quiet=True)) == 1


def test_an_interrupt_of_other_work_in_a_running_loop_cancels_it_and_is_raised() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            threading.Timer(0.2, interrupt).start()
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def inside() -> None:
        finish(endless)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(inside())
    assert ended == ["cancelled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_blocking_call_is_like_its_coroutine() -> None:
    @blocking
    async def halved_async(number: int) -> int:
        """Half of it."""
        await asyncio.sleep(0)
        if number % 2:
            raise ValueError(number)
        return number // 2

    async def inside(number: int) -> int:
        return halved_async(number)

    assert (halved_async.__name__, halved_async.__doc__) == ("halved", "Half of it.")
    assert halved_async(4) == asyncio.run(inside(4)) == 2
    works: list[Callable[[], Any]] = [lambda: halved_async(3), lambda: asyncio.run(inside(3))]
    for work in works:
        with pytest.raises(ValueError, match="3"):
            work()


def test_overlapping_calls_restore_the_threshold_of_garbage_collection() -> None:
    """Calls in two threads: the first one to begin ends first."""
    before, first, second = gc.get_threshold(), rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 100_000
    second.__exit__(None, None, None)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
