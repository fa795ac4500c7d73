"""Requests resolved to configurations, and resumes by folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import palimpsest
import palimpsest as library
from palimpsest.agents.open_agent import fitted
from palimpsest.app.config_resolution import Agent, RunRequest, evaluation_config, model_folder, resolve_run, run_config
from palimpsest.app.quickstart.quickstart_plan import resolve_quickstart
from palimpsest.app.train.run_setup import policy_checked, unearned
from palimpsest.cli.options import resumed
from palimpsest.config.load import load_recipe
from palimpsest.config.reward import RewardConfig
from palimpsest.config.schema import PolicyConfig, RoleConfig, RunConfig
from palimpsest.config.section import with_keys
from palimpsest.errors import ConfigError
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.progress.reporter import Silent
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.rollout.variant import policy_of
from palimpsest.runs.resume_rules import Imitated, RunOrigin, command_of_whole, how_to_resume, origin_of, resume_command
from palimpsest.runs.run_folder import open_run
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.codec import Codec
from palimpsest.types import Problem
from support.agents import base_codec
from support.command import Run
from support.fakes import small_config
from support.groups import sample_groups
from support.small_run import small_run


def test_a_recipe_that_reads_files_in_their_order_is_evaluated_on_synthetic_documents() -> None:
    config = evaluation_config(Agent("embedded", recipe="memagent-7b"), data="synthetic")
    assert (config.data.train_files, config.data.shuffle) == ("synthetic", True)
    assert not run_config("memagent-7b").data.shuffle


def test_a_run_as_the_model_is_its_newest_checkpoint(tiny_model_folder: Path, tmp_path: Path) -> None:
    run = library.train("memagent-quickstart", small_run(tiny_model_folder, max_steps=1), out=tmp_path, quiet=True)
    assert run_config("memagent-quickstart", {"model.path": str(run.folder)}).model.path == str(run.checkpoint)


def fitted_options(policy: PolicyConfig, window: int = 8192) -> Mapping[str, Any]:
    return fitted(policy, problems=[], codec=base_codec(), max_context=window).options


def test_default_reply_budgets_of_a_recipe_are_those_of_its_training(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("policy: {name: overwrite, options: {memory_tokens: 8}}")
    for agent, budgets in ((Agent(recipe=recipe), (8, 1024)), (Agent(), (256, 256))):
        options = fitted_options(agent.config({}).policy)
        assert (options["memory_tokens"], options["answer_tokens"]) == budgets


def test_budgets_of_a_custom_policy_are_its_options() -> None:
    config = PolicyConfig(name="examples.quotes:QuotesPolicy", options={"quotes": 4})
    assert fitted_options(config, 1024).keys() <= {"quotes", "question_tokens", "chunk_size"}


@dataclass(frozen=True)
class Unsized(MemoryPolicy):
    """Sizes that a custom policy need not have."""

    chunk_size: int | None = None
    question_tokens: int | None = None
    answer_tokens: int | None = None

    async def run(self, problem: Problem, model: Model) -> Answered:
        return Answered("unknown")


def test_sizes_that_a_custom_policy_leaves_open_stay_open() -> None:
    assert fitted_options(PolicyConfig(name=f"{__name__}:Unsized"), 1024) == {}


def test_under_another_reward_what_final_answer_alone_reads_is_left_out() -> None:
    agent = Agent("embedded", recipe="memact-quickstart", overrides=["reward.name=fraction"])
    assert evaluation_config(agent, data="synthetic_search").reward == RewardConfig(name="fraction")
    remaining = Agent("embedded", recipe="memact-quickstart", overrides=["reward.name=final_answer"])
    assert evaluation_config(remaining, data="synthetic_search").reward.final_answer.match == "em"
    both = ["reward.name=fraction", "reward.final_answer.match=em", "reward.final_answer.objectives=each"]
    with pytest.raises(ConfigError, match=r"reward\.final_answer has no meaning with reward\.name=fraction"):
        evaluation_config(Agent("embedded", recipe="memact-quickstart", overrides=both), data="synthetic_search")


def test_documents_that_are_searched_are_not_dropped() -> None:
    searched = ["policy.options.tools.search.source=document"]
    agent = Agent("embedded", recipe="memact-quickstart", overrides=searched)
    assert evaluation_config(agent, data="some.jsonl").data.search is None
    assert evaluation_config(Agent("embedded", recipe="memact-quickstart"), data="some.jsonl").data.search is not None
    with pytest.raises(ConfigError, match="omit one of the two"):
        evaluation_config(agent, data="some.jsonl", objectives=[2])


def problems(path: Path) -> Path:
    """Two questions in the format of HotpotQA."""
    context = [["House", ["The house is red."]], ["Tree", ["The tree is tall."]]]
    row = {"question": "Which colour does the house have?", "answer": "red", "context": context}
    path.write_text(json.dumps([row | {"_id": f"q{n}", "supporting_facts": [["House", 0]]} for n in range(2)]))
    return path


def model_of_run(folder: Path, config: RunConfig, model: Path) -> Path:
    """Weights of a run with this configuration."""
    with open_run(folder, config, on_warning=lambda _: None):
        return Path(shutil.copytree(model, folder / "checkpoints" / "weights"))


def test_an_evaluation_of_training_problems_is_noted(tmp_path: Path, tiny_model_folder: Path) -> None:
    source = problems(tmp_path / "train.json")
    values = small_config().model_dump(mode="json")
    values |= {"policy": {"name": "overwrite"}, "data": {"train_files": str(source)}}
    agent = Agent(model_of_run(tmp_path / "run", RunConfig.model_validate(values), tiny_model_folder))
    warning = "the model trained on these problems; set --data or data.val_files for others"
    assert agent.notes(evaluation_config(agent)) == [warning]
    assert agent.notes(evaluation_config(agent, data=problems(tmp_path / "dev.json"))) == []
    assert agent.notes(evaluation_config(agent, data="synthetic")) == []


def test_options_are_set_in_the_order_of_the_overrides() -> None:
    def options(*overrides: str) -> dict[str, Any]:
        agent = Agent("embedded", recipe="memagent-quickstart", overrides=overrides)
        return evaluation_config(agent, data="synthetic").policy.options

    recipes = options()
    assert options("policy.options.chunk_size=99", "chunk_size=40") == recipes | {"chunk_size": 40}
    assert options("chunk_size=40", "policy.options.chunk_size=99") == recipes | {"chunk_size": 99}
    assert options("policy.options={chunk_size: 40}", "memory_tokens=9") == {"chunk_size": 40, "memory_tokens": 9}
    for wrong in ("7", "null"):
        with pytest.raises(ConfigError, match=rf"policy\.options={wrong}: must be a mapping"):
            options(f"policy.options={wrong}")


def test_texts_of_a_configuration_stay_the_same_through_overrides() -> None:
    for text in ("a \u2028 b", "a\x85b", "a\x7fb"):
        config = with_keys(load_recipe("memagent-quickstart"), {"policy.options.prompts": {"empty_memory": text}})
        again = run_config(config, {"train.max_steps": 3})
        assert again.policy.options["prompts"]["empty_memory"] == text


def test_another_policy_without_the_recipes_options_has_to_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="without the recipe's tools, call_style"):
        evaluation_config(Agent(recipe="memact-quickstart", policy="summary"))
    asked = evaluation_config(Agent(recipe="memact-quickstart", policy="summary", overrides={"policy.options": {}}))
    assert asked.policy.options == {}
    own = Agent(recipe="memact-quickstart", policy="summary", overrides={"policy.options": {"prompts": "short"}})
    assert evaluation_config(own).policy.options == {"prompts": "short"}
    plain = Agent(recipe="memact-quickstart", policy="summary", overrides={"prompts": "short"})
    assert evaluation_config(plain).policy.options == {"prompts": "short"}


def test_a_declared_role_is_the_models_own_unless_set_and_has_no_other_name() -> None:
    bare = {"policy": "lead", "overrides": ["prompts=short"]}
    assert evaluation_config(Agent(**bare)).roles == {"reader": RoleConfig()}
    section = Agent("embedded", policy="lead", overrides=["roles={reader: {temperature: 0}}"])
    assert evaluation_config(section).roles == {"reader": RoleConfig(temperature=0)}
    assert evaluation_config(Agent("embedded", overrides=["reward={name: boxed}"])).reward.name == "boxed"
    assert evaluation_config(Agent(recipe="lead-quickstart")).roles["reader"].model == "embedded-lead"
    other = {"recipe": "lead-quickstart", "overrides": ["prompts=short"]}
    assert evaluation_config(Agent(policy="overwrite", **other)).roles == {}
    changes = ["policy.options={}", "roles.judge.temperature=0"]
    custom = Agent(policy="examples.gated:GatedPolicy", recipe="lead-quickstart", overrides=changes)
    assert set(evaluation_config(custom).roles) == {"reader", "judge"}  # a custom policy may declare none
    for recipe, role in (("lead-quickstart", "raeder"), ("memagent-quickstart", "reader")):
        with pytest.raises(ConfigError) as error:
            evaluation_config(Agent(recipe=recipe, overrides=[f"roles.{role}.temperature=0"]))
        assert error.value.key == f"roles.{role}"


@pytest.mark.parametrize(
    ("role", "key"), [("roles={}", "roles.reader"), ("roles.raeder.temperature=0", "roles.raeder")]
)
def test_a_training_needs_the_roles_that_its_policy_declares(role: str, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        policy_checked(load_recipe("lead-quickstart", [role]))
    assert error.value.key == key


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        ("lead-quickstart", "reward.name=boxed"),
        ("memagent-quickstart", "reward.pass_bonus=0.5"),
        ("memagent-quickstart", "credit.adv_estimator=success_gated"),
    ],
)
def test_what_the_policy_cannot_earn_is_warned_of(recipe: str, setting: str) -> None:
    with pytest.warns(UserWarning, match=setting):
        policy_checked(load_recipe(recipe, [setting]))


@pytest.mark.parametrize("recipe", ["parallel-quickstart", "edit-quickstart", "lead-quickstart"])
def test_recipes_can_earn_what_they_set(recipe: str) -> None:
    config = load_recipe(recipe, [])
    assert list(unearned(config, policy_of(config))) == []


def test_another_model_than_the_recipes_is_noted(tmp_path: Path) -> None:
    agent = Agent(recipe="memagent-7b")
    (result,) = agent.notes()
    assert result.startswith("this evaluates embedded; the recipe's model is Qwen/Qwen2.5-7B-Instruct")
    assert Agent(recipe="memagent-quickstart").notes() == []


def test_a_budget_beyond_the_window_names_the_model(palimpsest: Run, tmp_path: Path) -> None:
    done = palimpsest("eval", "--recipe", "memagent-7b", "--data", str(problems(tmp_path / "dev.json")))
    assert (done.returncode, "(model embedded)" in done.stderr) == (2, True)


ON_RAY = ("engine.name=ray", "engine.max_num_seqs=7", "cluster.learners=2", "cluster.timeout_s=60")
SERVED = ("sampler.name=vllm", "sampler.servers=2", "sampler.max_model_len=2048")


@pytest.mark.parametrize("trained", [ON_RAY, SERVED, (*ON_RAY, *SERVED)])
def test_what_trained_an_agent_does_not_play_it(tmp_path: Path, tiny_model_folder: Path, trained: list[str]) -> None:
    config = load_recipe("memagent-quickstart", trained)
    weights = model_of_run(tmp_path / "run", config, tiny_model_folder)
    played = evaluation_config(Agent(weights))
    assert (played.engine.name, played.sampler.name) == ("embedded", "auto")
    assert played.cluster.changed() == played.sampler.changed() == []
    assert played.engine.model_dump(exclude={"name"}) == config.engine.model_dump(exclude={"name"})
    on_ray = evaluation_config(Agent(weights, overrides=["engine.name=ray", "cluster.samplers=3"]))
    assert (on_ray.engine.name, on_ray.cluster.samplers, on_ray.cluster.learners) == ("ray", 3, 1)


@pytest.mark.parametrize(
    ("started", "words", "result"),
    [
        (ON_RAY, ["engine.name=embedded"], ("embedded", "embedded", 1)),
        (ON_RAY, ["engine={name: embedded}"], ("embedded", "embedded", 1)),
        (SERVED, ["sampler.name=embedded"], ("embedded", "embedded", 1)),
        ((*ON_RAY, *SERVED), ["engine.name=embedded"], ("embedded", "vllm", 1)),
        ((*ON_RAY, *SERVED), ["sampler.name=embedded"], ("ray", "embedded", 2)),
        ((*ON_RAY, "cluster.samplers=2"), ["sampler.name=vllm"], ("ray", "vllm", 2)),
    ],
)
def test_another_engine_resets_its_layout(
    tmp_path: Path, started: tuple[str, ...], words: list[str], result: tuple[str, str, int]
) -> None:
    with open_run(tmp_path / "run", load_recipe("memagent-quickstart", started), on_warning=lambda _: None):
        pass
    config = resolve_run(RunRequest(None, words, resume=tmp_path / "run")).config
    assert (config.engine.name, config.sampler.name, config.cluster.learners) == result
    with open_run(tmp_path / "run", config, resume=True, on_warning=lambda _: None):
        pass  # the same experiment


class Shown(Silent):
    """Stores messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture
def settings(tiny_model_folder: Path) -> dict[str, Any]:
    return {**small_run(tiny_model_folder), "optim.learning_rate": 1e-3}


@pytest.fixture
def stopped(settings: dict[str, Any], tmp_path: Path) -> palimpsest.Run:
    """A run of two steps that has done none."""
    stop = GracefulStop()
    stop.request("test")
    return palimpsest.train("memagent-quickstart", settings, seed=7, out=tmp_path / "my run", quiet=True, stop=stop)


def test_a_resumed_run_has_the_same_bytes(stopped: palimpsest.Run, settings: dict[str, Any], tmp_path: Path) -> None:
    complete = palimpsest.train("memagent-quickstart", settings, seed=7, out=tmp_path / "whole", quiet=True)
    run = palimpsest.train(resume=stopped, quiet=True)
    assert (run.folder, run.finished, run.config) == (stopped.folder, True, stopped.config)
    for file in ("metrics.jsonl", "checkpoints/step-000002/model.safetensors"):
        assert (run.folder / file).read_bytes() == (complete.folder / file).read_bytes()


def test_the_hint_resumes_the_run(palimpsest: Run, stopped: palimpsest.Run, refused: Callable[..., str]) -> None:
    hint = f"palimpsest train --resume '{stopped.folder}'"
    assert resume_command(stopped) == hint
    assert f"{hint} continues it" in refused("train", "memagent-quickstart", "--out", str(stopped.folder))
    done = palimpsest("train", "--resume", str(stopped.folder))
    assert (done.returncode, stopped.steps) == (0, 2), done.stderr
    assert "2 of 2 steps" in done.stderr


def test_a_resume_changes_only_some_keys(stopped: palimpsest.Run) -> None:
    shown = Shown()
    run = palimpsest.train(resume=stopped.folder, overrides={"train.save_steps": 2}, progress=shown)
    assert (run.steps, run.config.train.save_steps) == (2, 2)
    assert "resumed with another train.save_steps: 1 -> 2" in shown.messages
    with pytest.raises(palimpsest.PalimpsestError, match=r"can't change train\.group_size: 2 -> 4"):
        palimpsest.train(resume=stopped.folder, overrides={"train.group_size": 4}, quiet=True)
    with pytest.raises(palimpsest.PalimpsestError, match="can't change seed: 7 -> 8"):
        palimpsest.train(resume=stopped.folder, seed=8, quiet=True)


@pytest.mark.parametrize(
    ("message", "recipe", "options"),
    [
        ("pass a recipe, or resume a run", None, {}),
        ("no such folder", None, {"resume": "nothing"}),
        ("no such folder", "nothing", {"resume": True}),
        ("the run has its recipe", "memagent-7b", {"resume": "my run"}),
        ("resumes in its own folder", None, {"resume": "my run", "out": Path("other")}),
        ("palimpsest train started", None, {"resume": "my run", "command": "sft"}),
        ("use its configuration .* --resume ", "my run", {}),
    ],
)
def test_contradictory_requests_are_refused(
    message: str, recipe: str | None, options: dict[str, Any], stopped: palimpsest.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stopped.folder.parent)
    with pytest.raises(palimpsest.PalimpsestError, match=message):
        resolve_run(RunRequest(recipe, **options))


def test_a_run_that_ends_by_an_error_says_how_it_goes_on(
    palimpsest: Run, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grading.py").write_text("def fails(problem, trajectory):\n    raise ValueError('down')\n")
    monkeypatch.chdir(tmp_path)
    recipe = {key: value for key, value in settings.items() if key != "logging.report_to"}
    texts = [f"{key}={json.dumps(value)}" for key, value in recipe.items()]
    done = palimpsest("train", "memagent-quickstart", *texts, "reward.name=grading:fails", "--out", "runs/x")
    assert done.returncode == 2
    assert "palimpsest train --resume runs/x starts over: it has no checkpoint" in done.stderr
    assert "no episode has a grade" in done.stderr


@pytest.mark.parametrize(
    "row",
    [
        {"command": "train", "detail": 5},
        {"command": ["x"]},
        {"command": "sft; rm -rf /"},
        {"kind": ["started"], "command": "sft"},
    ],
)
def test_an_unknown_command_of_a_run_counts_as_train(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps({"kind": "started", **row}) + "\n")
    assert origin_of(tmp_path) == RunOrigin()
    assert resume_command(tmp_path) == f"palimpsest train --resume {tmp_path}"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["data", "x...; rm -rf ~"], "palimpsest.train(resume={run!r}, data=...)"),
        (["x\n", "a b", 3, None], "palimpsest train --resume {run}"),
        ("data", "palimpsest train --resume {run}"),
        ({"data": 1}, "palimpsest train --resume {run}"),
    ],
)
def test_a_resume_command_contains_only_argument_names_of_a_run(arguments: Any, command: str, tmp_path: Path) -> None:
    row = {"kind": "started", "command": "train", "detail": {"given": arguments}}
    (tmp_path / "events.jsonl").write_text(json.dumps(row) + "\n")
    assert origin_of(tmp_path).detail == {"given": arguments}
    assert resume_command(tmp_path) == command.format(run=str(tmp_path))


@pytest.mark.parametrize("detail", [{"records": 5}, {"records": "a", "data": "b"}, {"per_problem": 1}, {"x": 1}])
def test_a_run_that_does_not_say_what_it_imitates_is_refused_in_words(detail: dict[str, Any]) -> None:
    with pytest.raises(palimpsest.PalimpsestError, match=r"events\.jsonl lacks the source of its episodes: set --from"):
        Imitated.from_json(detail)


def test_a_hint_says_whether_a_run_goes_on_or_begins_again(tmp_path: Path) -> None:
    open_run(tmp_path, small_config(), on_warning=print).close()
    begins = f"palimpsest train --resume {tmp_path} starts over: it has no checkpoint"
    assert how_to_resume(tmp_path) == resumed(tmp_path, force=False)() == begins
    with pytest.raises(palimpsest.PalimpsestError, match=r"has no checkpoint; .* starts over"):
        model_folder(tmp_path, print)
    for folder in ("cold-start/checkpoints", "checkpoints"):
        (tmp_path / folder / "step-000001").mkdir(parents=True)
        assert how_to_resume(tmp_path).endswith("resumes from the newest checkpoint")
        (tmp_path / folder / "step-000001").rmdir()


def test_a_quickstart_resumes_by_folder(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"model.path": str(tiny_model_folder), "train.max_steps": 3, "evaluation.sizes": [1, 2]}
    config = resolve_quickstart("memagent", changes, seed=5).config
    with open_run(tmp_path / "run", config, origin=RunOrigin("quickstart")):
        pass
    for resume, method in ((tmp_path / "run", None), (True, str(tmp_path / "run"))):
        words = resolve_quickstart(method, resume=resume)
        assert (words.config, words.folder, words.resume) == (config, tmp_path / "run", True)
    assert resolve_quickstart(None, resume=True, out=tmp_path / "run").config == config
    assert resume_command(tmp_path / "run").startswith("palimpsest quickstart --resume ")
    for inner in ("cold-start", "baseline"):
        assert command_of_whole(tmp_path / "run" / inner) == resume_command(tmp_path / "run")
    assert command_of_whole(tmp_path / "other") == resume_command(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(palimpsest.PalimpsestError, match="palimpsest quickstart --resume RUN"):
        resolve_quickstart(None, resume=True)
    with pytest.raises(palimpsest.PalimpsestError, match="palimpsest quickstart started"):
        resolve_run(RunRequest(None, resume=tmp_path / "run"))
    with pytest.raises(palimpsest.PalimpsestError, match="no such method"):
        resolve_quickstart("memagnet")


def test_sft_trains_the_cold_start_and_resumes(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    size = "cold_start={max_steps: 2, batch_size: 2}"
    command = ("sft", "memagent-quickstart", f"model.path={tiny_model_folder}", size, "--out", str(tmp_path / "run"))
    done = palimpsest(*command)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoints" / "step-000002").is_dir()
    words = resolve_run(RunRequest(None, command="sft", resume=tmp_path / "run"))
    assert words.config.cold_start is not None
    assert words.config.cold_start.max_steps == 2
    again = palimpsest("sft", "--resume", str(tmp_path / "run"))
    assert "2 of 2 steps" in again.stderr, again.stderr
    lacking = palimpsest("sft", "memagent-quickstart", "cold_start=null", "--out", str(tmp_path / "none"))
    assert "has no cold_start" in lacking.stderr


def test_supervised_training_resumes_by_folder(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    records = encode_groups([replace(g) for g in sample_groups(2)], Codec.load(str(tiny_model_folder)).digest)
    (tmp_path / "records.jsonl.zst").write_bytes(records)
    sizes = ("train.max_steps=1", "train.batch_size=4", "cold_start=null", f"model.path={tiny_model_folder}")
    out = ("--out", str(tmp_path / "run"))
    done = palimpsest("sft", "memagent-quickstart", *sizes, "--from", str(tmp_path / "records.jsonl.zst"), *out)
    assert done.returncode == 0, done.stderr
    assert origin_of(tmp_path / "run").command == "sft"
    again = palimpsest("sft", "--resume", str(tmp_path / "run"), "train.max_steps=2")
    assert (again.returncode, "2 of 2 steps" in again.stderr) == (0, True), again.stderr


def test_the_reward_of_a_lead_is_not_that_of_a_policy_with_other_answers(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    trained = model_of_run(tmp_path / "run", load_recipe("lead-quickstart"), tiny_model_folder)
    assert evaluation_config(Agent(trained)).reward.name == "final_answer"
    assert evaluation_config(Agent(trained, policy="parallel")).reward.name == "boxed"
