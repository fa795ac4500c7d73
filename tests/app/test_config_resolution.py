"""What is asked for, resolved to a configuration, and what an evaluation says of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import palimpsest as library
from palimpsest.agents.open_agent import fitted
from palimpsest.app.config_resolution import Agent, RunRequest, evaluation_config, resolve_run, run_config
from palimpsest.config.load import load_recipe
from palimpsest.config.reward import RewardConfig
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.errors import ConfigError
from palimpsest.runs.run_folder import open_run
from support.agents import base_codec
from support.command import Run
from support.fakes import small_config
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


def test_under_another_reward_what_final_answer_alone_reads_is_left_out() -> None:
    agent = Agent("embedded", recipe="memact-quickstart", overrides=["reward.name=fraction"])
    assert evaluation_config(agent, data="synthetic_search").reward == RewardConfig(name="fraction")
    kept = Agent("embedded", recipe="memact-quickstart", overrides=["reward.name=final_answer"])
    assert evaluation_config(kept, data="synthetic_search").reward.final_answer.match == "em"
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


def test_problems_that_were_trained_on_are_told(tmp_path: Path, tiny_model_folder: Path) -> None:
    source = problems(tmp_path / "train.json")
    values = small_config().model_dump(mode="json")
    values |= {"policy": {"name": "overwrite"}, "data": {"train_files": str(source)}}
    agent = Agent(model_of_run(tmp_path / "run", RunConfig.model_validate(values), tiny_model_folder))
    warning = "the model trained on these problems; set --data or data.val_files for others"
    assert agent.notes(evaluation_config(agent)) == [warning]
    assert agent.notes(evaluation_config(agent, data=problems(tmp_path / "dev.json"))) == []
    assert agent.notes(evaluation_config(agent, data="synthetic")) == []


def test_another_model_than_the_recipes_is_told(tmp_path: Path) -> None:
    agent = Agent(recipe="memagent-7b")
    (told,) = agent.notes()
    assert told.startswith("this evaluates embedded; the recipe's model is Qwen/Qwen2.5-7B-Instruct")
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
    ("begun", "asked", "told"),
    [
        (ON_RAY, ["engine.name=embedded"], ("embedded", "embedded", 1)),
        (ON_RAY, ["engine={name: embedded}"], ("embedded", "embedded", 1)),
        (SERVED, ["sampler.name=embedded"], ("embedded", "embedded", 1)),
        ((*ON_RAY, *SERVED), ["engine.name=embedded"], ("embedded", "vllm", 1)),
        ((*ON_RAY, *SERVED), ["sampler.name=embedded"], ("ray", "embedded", 2)),
        ((*ON_RAY, "cluster.samplers=2"), ["sampler.name=vllm"], ("ray", "vllm", 2)),
    ],
)
def test_a_run_goes_on_elsewhere_by_the_name_alone(
    tmp_path: Path, begun: tuple[str, ...], asked: list[str], told: tuple[str, str, int]
) -> None:
    with open_run(tmp_path / "run", load_recipe("memagent-quickstart", begun), on_warning=lambda _: None):
        pass
    config = resolve_run(RunRequest(None, asked, resume=tmp_path / "run")).config
    assert (config.engine.name, config.sampler.name, config.cluster.learners) == told
    with open_run(tmp_path / "run", config, resume=True, on_warning=lambda _: None):
        pass  # not refused as another experiment
