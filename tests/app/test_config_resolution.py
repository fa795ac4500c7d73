"""What is asked for, resolved to a configuration, and what an evaluation says of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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


def test_a_recipe_that_reads_files_in_their_order_is_evaluated_on_synthetic_documents() -> None:
    config = evaluation_config(Agent("embedded", recipe="memagent-7b"), data="synthetic")
    assert (config.data.train_files, config.data.shuffle) == ("synthetic", True)
    assert not run_config("memagent-7b").data.shuffle


def test_a_training_goes_out_from_the_newest_checkpoint_of_a_run_it_names(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    small = {"train.batch_size": 1, "train.group_size": 2, "train.num_minibatches": 1, "train.max_steps": 1}
    budgets = {f"policy.options.{name}": 8 for name in ("memory_tokens", "answer_tokens")}
    changes = {"model.path": str(tiny_model_folder), "policy.options.question_tokens": 64, **small, **budgets}
    run = library.train("memagent-quickstart", changes, out=tmp_path / "first", quiet=True)
    assert run_config("memagent-quickstart", {"model.path": str(run.folder)}).model.path == str(run.checkpoint)


def test_default_reply_budgets_of_a_recipe_stay_those_of_its_training(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("policy: {name: overwrite, options: {memory_tokens: 8}}")
    config = Agent(recipe=recipe).config({})
    chosen = fitted(config.policy, problems=[], codec=base_codec(), max_context=8192)
    assert (chosen.options["memory_tokens"], chosen.options["answer_tokens"]) == (8, 1024)
    unsaid = fitted(Agent().config({}).policy, problems=[], codec=base_codec(), max_context=8192)
    assert (unsaid.options["memory_tokens"], unsaid.options["answer_tokens"]) == (256, 256)


def test_budgets_of_a_custom_policy_are_its_own() -> None:
    config = PolicyConfig(name="examples.quotes:QuotesPolicy", options={"quotes": 4})
    assert fitted(config, problems=[], codec=base_codec(), max_context=1024).options.keys() <= {
        "quotes",
        "question_tokens",
        "chunk_size",
    }


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
    rows = [
        {
            "_id": f"q{number}",
            "question": "Which colour does the house have?",
            "answer": "red",
            "supporting_facts": [["House", 0]],
            "context": [["House", ["The house is red."]], ["Tree", ["The tree is tall."]]],
        }
        for number in range(2)
    ]
    path.write_text(json.dumps(rows))
    return path


def test_problems_that_were_trained_on_are_told(tmp_path: Path, tiny_model_folder: Path) -> None:
    source = problems(tmp_path / "train.json")
    values = small_config().model_dump(mode="json") | {
        "policy": {"name": "overwrite"},
        "data": {"train_files": str(source)},
    }
    with open_run(tmp_path / "run", RunConfig.model_validate(values), on_warning=lambda _: None):
        weights = tmp_path / "run" / "checkpoints" / "weights"
        shutil.copytree(tiny_model_folder, weights)
    agent = Agent(weights)
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
    with open_run(tmp_path / "run", config, on_warning=lambda _: None):
        weights = tmp_path / "run" / "checkpoints" / "weights"
        shutil.copytree(tiny_model_folder, weights)
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
        ((*ON_RAY, *SERVED), ["engine.name=embedded", "sampler.name=embedded"], ("embedded", "embedded", 1)),
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
