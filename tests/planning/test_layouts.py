"""Layouts for numbers of GPUs, without GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.config_resolution import RunRequest, run_config
from palimpsest.app.train.training_plan import TrainingPlan, hardware_for, plan_training, planned
from palimpsest.config.load import recipe_names
from palimpsest.engines.preflight import Use
from palimpsest.errors import ConfigError
from palimpsest.planning.cost import SERVER_GB, Processes
from palimpsest.planning.hardware import DEVICES, Hardware, cpu
from palimpsest.planning.layouts import REASONS
from palimpsest.planning.model_shape import shape_of

PUBLISHED = [name for name in recipe_names() if not name.endswith(("quickstart", "cold-start", "smollm2", "0.6b"))]
FULL = [name for name in PUBLISHED if not name.endswith("lora")]


def plan(recipe: str, *words: str, gpus: int = 8, nodes: int = 1, gpu: str = "h100") -> TrainingPlan:
    return plan_training(recipe, words, Hardware(DEVICES[gpu], gpus, nodes), choose=True)


def test_these_are_all_published_recipes() -> None:
    assert (len(PUBLISHED), len(FULL)) == (13, 12)


@pytest.mark.parametrize("nodes", [1, 2, 8])
@pytest.mark.parametrize("recipe", PUBLISHED)
def test_every_published_recipe_fits_8_16_and_64_gpus_and_all_of_them_work(recipe: str, nodes: int) -> None:
    made = plan(recipe, nodes=nodes)
    assert made.fits
    config, sampler = made.config, made.config.sampler
    assert Processes.of(config, "policy", made.hardware).devices == 8 * nodes
    assert not sampler.devices  # Ray assigns them
    assert (config.engine.name, sampler.name, config.cluster.gpus_per_learner) == ("ray", "vllm", 1)
    assert config.policy == run_config(recipe).policy  # the recipe fixes it
    assert set(made.keys) <= set(REASONS)
    if nodes == 1:
        gpus = {str(number): 80 * 10**9 for number in range(8)}
        assert Use.of(config, "policy", gpus).check(shape_of(config.model.path)) == []


THREE_B = ["rememr1-3b", "rememr1-code"]


@pytest.mark.parametrize("recipe", [name for name in FULL if name not in THREE_B])
def test_a_recipe_that_trains_all_weights_names_adapters_and_does_not_become_one(recipe: str) -> None:
    made = plan(recipe, gpus=1)
    assert not made.fits
    assert made.config.model.lora is None
    assert made.nearest[0] == "model.lora.rank=16"
    assert plan(recipe, "model.lora.rank=16", gpus=1).fits


def test_the_recipe_with_adapters_fits_one_gpu() -> None:
    made = plan("memagent-4b-lora", gpus=1)
    assert made.fits
    assert not {"model.lora.rank", "policy.options.layout"} & set(made.keys)


TURNS = ["engine.name=ray", "cluster.learners=1", "cluster.placement=colocated", "sampler.servers=1"]


@pytest.mark.parametrize("own", [[], TURNS[1:3], TURNS], ids=["none", "two", "all"])
@pytest.mark.parametrize("recipe", THREE_B)
def test_one_gpu_trains_all_weights_of_3b_in_turns_with_a_server(recipe: str, own: list[str]) -> None:
    """The weights and state of one rank, 20 bytes per weight, leave a sleeping server 3 GB, and a waking one 22."""
    made = plan(recipe, *own, gpus=1)
    cluster, sampler = made.config.cluster, made.config.sampler
    assert (made.fits, cluster.placement, cluster.learners, sampler.servers) == (True, "colocated", 1, 1)
    assert made.config.model.lora is None
    learner, server = made.estimate.memory_gb["learner"], made.estimate.memory_gb["server"]
    assert max(learner.values()) == learner["limit"] == pytest.approx(73)
    assert server["sampling"] < server["limit"] < 23


def test_4b_in_turns_needs_a_gpu_of_141_gb() -> None:
    assert plan("memagent-vime-qwen3-4b", gpus=1, gpu="h200").fits
    assert not plan("memagent-vime-qwen3-4b", gpus=1).fits


def test_a_card_of_24_gb_trains_all_weights_of_0_6b_in_a_night() -> None:
    made = plan("memagent-0.6b", gpus=1, gpu="4090")
    assert (made.fits, made.config.cluster.placement, made.config.model.lora) == (True, "colocated", None)
    assert made.estimate.step_s * made.config.train.max_steps < 12 * 3600
    assert made.config.policy.options["layout"] == "section_first"
    window, shape = made.config.sampler.max_model_len, shape_of("Qwen/Qwen3-0.6B")
    assert window is not None
    free = made.estimate.memory_gb["server"]["limit"] - 2 * shape.parameters / 1e9 - SERVER_GB
    assert window * shape.kv_bytes / 1e9 < free  # vLLM needs room for one whole window
    for gpus, nodes in ((8, 1), (8, 2)):
        assert plan("memagent-0.6b", gpus=gpus, nodes=nodes).fits


def test_one_gpu_trains_all_weights_of_a_small_model() -> None:
    made = plan("memagent-smollm2", gpus=1)
    assert made.fits
    assert made.config.model.lora is None
    assert made.config.policy.options["layout"] == "section_first"


def test_keys_of_the_user_win_and_the_plan_is_made_around_them() -> None:
    made = plan("memagent-7b", "cluster.learners=4", "train.max_off_policy_steps=0")
    assert (made.config.cluster.learners, made.config.train.max_off_policy_steps) == (4, 0)
    assert made.config.sampler.servers * made.config.sampler.tensor_parallel_size == 4
    assert "cluster.learners" not in made.keys
    placed = plan("memagent-7b", "sampler.devices=[5,6,7]")
    assert placed.config.cluster.learners == 5
    assert plan("memagent-7b", "sampler.devices=[6,7]", nodes=2).config.cluster.learners == 14
    assert plan("memagent-7b", "sampler.devices=[]").config.cluster.learners == 8
    dotted = plan("memagent-7b", "cluster={learners: 7}")
    assert (dotted.config.cluster.learners, dotted.config.sampler.servers) == (7, 1)


def test_keys_that_leave_gpus_without_work_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"8 GPUs with cluster\.learners=2 sampler\.servers=1"):
        plan("memagent-7b", "cluster.learners=2", "sampler.servers=1", "sampler.tensor_parallel_size=1")
    with pytest.raises(ConfigError, match=r"sampler\.name=embedded"):
        plan("memagent-7b", "sampler.name=embedded")


def test_a_loss_that_cannot_weigh_older_samples_runs_in_turn() -> None:
    made = plan("memact-7b")  # temperature 0.7 with top-p
    assert not made.estimate.overlaps
    assert made.config.train.max_off_policy_steps == 0
    apart = "cluster.placement=separate"
    ahead = plan("memact-7b", "sampling.top_p=1", apart)
    assert (ahead.estimate.overlaps, ahead.config.loss.importance_sampling_cap) == (True, 2)
    assert "loss.importance_sampling_cap" not in plan("memagent-7b", "loss.old_logprobs=sampler", apart).keys


def test_servers_take_turns_with_all_ranks_or_lie_on_any_machine_whichever_is_faster() -> None:
    made = plan("memagent-7b")
    assert (made.config.cluster.placement, made.config.train.max_off_policy_steps) == ("colocated", 0)
    assert made.config.cluster.learners == made.config.sampler.servers == 8
    apart = plan("memagent-7b", "cluster.placement=separate")
    assert made.estimate.step_s < apart.estimate.step_s
    assert apart.estimate.overlaps
    wide = plan("memagent-7b", "cluster.placement=separate", nodes=8).config
    assert wide.sampler.servers * wide.sampler.tensor_parallel_size > 8  # more than one machine has
    own = plan("memagent-7b", "cluster.placement=colocated", "sampler.tensor_parallel_size=2", "cluster.learners=8")
    assert own.config.sampler.servers == 4


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
@pytest.mark.parametrize("recipe", ["memagent-7b", "memact-7b"])
def test_ranks_and_servers_on_several_machines_have_whole_ones(recipe: str, nodes: int) -> None:
    apart = plan(recipe, "cluster.placement=separate", nodes=nodes).config
    assert apart.cluster.learners % 8 == apart.sampler.servers * apart.sampler.tensor_parallel_size % 8 == 0
    own = plan(recipe, "cluster.placement=separate", "cluster.learners=13", nodes=nodes).config
    assert own.sampler.servers * own.sampler.tensor_parallel_size == 8 * nodes - 13  # the user's word


def test_a_mixture_of_experts_is_planned_with_all_its_weights(tmp_path: Path) -> None:
    """Qwen3-30B-A3B: 20 bytes of 30.5 billion weights exceed eight GPUs of 80 GB; a token uses 3.4 billion."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4}
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "head_dim": 128}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen3_moe", "vocab_size": 151_936, "tie_word_embeddings": False, **sizes, **experts})
    )
    eight = plan("memagent-7b", f"model.path={tmp_path}")
    assert not eight.fits
    assert eight.estimate.memory_gb["learner"]["learning"] > 20 * 30.5 / 8
    sixteen, dense = plan("memagent-7b", f"model.path={tmp_path}", nodes=2), plan("memagent-7b", nodes=2)
    assert sixteen.fits
    assert sixteen.estimate.seconds["learning"] < dense.estimate.seconds["learning"]


def test_activations_that_do_not_fit_get_smaller_micro_batches() -> None:
    made = plan("memact-14b", "cluster.learners=5")
    assert made.fits
    assert made.config.engine.micro_batch_tokens < 24_576  # type: ignore[union-attr]
    kept = plan("memact-14b", "cluster.learners=5", "engine.micro_batch_tokens=24576")
    assert not kept.fits
    stored = plan("memact-7b", "model.gradient_checkpointing=false", "cluster.learners=5")
    assert not stored.fits  # the user's word


def test_every_second_layer_is_recomputed_where_the_others_fit() -> None:
    """7B at 16,384 tokens in bfloat16: a layer keeps 16,384 x 2 x (4 x 3,584 + 3 x 18,944 + 3 x 3,584 + 2 x 512)
    bytes, 2.7 GB, instead of 0.12; 14 of 28 do."""
    base = plan("memagent-7b", "loss.kl_loss_coef=0", "policy.options.layout=section_first", "cluster.learners=8")
    saving = [change["seconds_per_step"] for change in base.advice if change["value"] == "every_second"]
    assert len(saving) == 1
    key = "model.gradient_checkpointing=every_second"
    words = ["loss.kl_loss_coef=0", "policy.options.layout=section_first", "cluster.learners=8", key]
    made = plan("memagent-7b", *words)
    assert made.fits
    assert made.estimate.step_s == pytest.approx(saving[0], rel=0.01)
    grown = made.estimate.memory_gb["learner"]["learning"] - base.estimate.memory_gb["learner"]["learning"]
    assert grown == pytest.approx(14 * (2.7 - 0.12), rel=0.02)
    small = plan("memagent-7b", gpu="a100-40")
    assert "every_second" not in [change["value"] for change in small.advice]


def test_a_plan_that_does_not_fit_names_what_does() -> None:
    made = plan("memagent-14b", gpus=2)
    assert not made.fits
    assert made.nearest == ["model.lora.rank=16", "cluster.cpu_offload=true", "--gpus 8 --nodes 1"]
    four = plan("memagent-14b", gpus=4)
    assert four.nearest == ["model.lora.rank=16", "cluster.cpu_offload=true", "--gpus 8 --nodes 1"]
    assert plan("memagent-14b", "model.lora.rank=16", gpus=2).fits
    assert plan("memagent-14b", gpus=8).fits
    assert not four.fits
    assert plan("memagent-14b", "cluster.cpu_offload=true", "engine.name=ray", gpus=4).fits


def test_a_configuration_as_it_is_needs_its_own_gpus() -> None:
    alone = plan_training("memagent-7b", [], None, choose=False)
    assert (alone.fits, alone.hardware.total, alone.keys) == (False, 1, {})
    assert alone.nearest == ["model.lora.rank=16", "cluster.cpu_offload=true", "--gpus 4 --nodes 1"]
    words = plan("memagent-7b").words
    again = plan_training("memagent-7b", words, None, choose=False)
    assert (again.fits, again.hardware.total) == (True, 8)
    assert again.estimate.step_s == plan("memagent-7b").estimate.step_s


def test_gpus_with_more_memory_or_bandwidth_are_faster() -> None:
    steps = [plan("memagent-14b", gpu=gpu).estimate.step_s for gpu in ("a100-80", "h100", "h200")]
    assert steps == sorted(steps, reverse=True)
    assert not plan("memagent-14b", gpu="a100-40").fits


def test_json_has_the_keys_of_the_contract() -> None:
    shown: dict[str, Any] = plan("memagent-7b").to_json(2.0, "")
    contract = {"fits", "seconds_per_step", "memory_gb", "dominated_by", "days", "overrides"}
    assert contract <= set(shown)
    assert shown["days"] == pytest.approx(shown["seconds_per_step"] * 400 / 86400)
    assert shown["cost"] == pytest.approx(2 * shown["gpu_hours"])
    assert shown["gpu_hours"] == pytest.approx(8 * 24 * shown["days"])
    assert [set(each) for each in shown["overrides"]] == [{"key", "value", "reason"}] * len(shown["overrides"])
    assert all(each["reason"] for each in shown["overrides"])
    assert set(shown["seconds"]) == {"sampling", "logprobs", "learning", "publication"}
    advised = {each["key"]: each["seconds_per_step"] for each in shown["advice"]}
    assert advised["policy.options.layout"] < 0.7 * shown["seconds_per_step"]


# ---- train --gpus ------------------------------------------------------------------------------------------------


def test_train_takes_the_gpus_of_this_machine_and_fewer_are_an_error() -> None:
    here = Hardware(DEVICES["a100-80"], 4)
    assert hardware_for(4, 2, here, dry_run=False) == Hardware(DEVICES["a100-80"], 4, 2)
    with pytest.raises(ConfigError, match=r"--gpus 8: this machine has 4"):
        hardware_for(8, 1, here, dry_run=False)
    with pytest.raises(ConfigError, match=r"--gpus 1: this machine has 0"):
        hardware_for(1, 1, cpu(2), dry_run=False)
    assert hardware_for(8, 1, cpu(2), dry_run=True) == Hardware(DEVICES["h100"], 8)


def test_train_adds_the_plans_keys_to_the_users() -> None:
    request = RunRequest("memagent-7b", ["train.max_steps=3"])
    changed, made = planned(request, Hardware(DEVICES["h100"], 8), dry_run=False)
    assert next(iter(changed.overrides or ())) == "train.max_steps=3"
    assert run_config("memagent-7b", changed.overrides) == made.config


def test_train_rejects_what_does_not_fit_and_machines_without_an_address() -> None:
    with pytest.raises(ConfigError, match=r"use model\.lora\.rank=16 or"):
        planned(RunRequest("memagent-14b"), Hardware(DEVICES["h100"], 2), dry_run=False)
    two = Hardware(DEVICES["h100"], 8, 2)
    with pytest.raises(ConfigError, match=r"cluster\.address"):
        planned(RunRequest("memagent-7b"), two, dry_run=False)
    assert planned(RunRequest("memagent-7b"), two, dry_run=True)[1].missing == ["cluster.address"]
    joined = ["cluster.address=10.0.0.1:6379"]
    assert planned(RunRequest("memagent-7b", joined), two, dry_run=False)[1].missing == []
