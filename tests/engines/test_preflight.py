"""Checks of simulated GPUs before anything starts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.engines.preflight import Use
from palimpsest.engines.protocol import Objective
from palimpsest.errors import ConfigError
from palimpsest.planning.model_shape import KNOWN, ModelShape

SEVEN, FOURTEEN = KNOWN["Qwen/Qwen2.5-7B-Instruct"], KNOWN["Qwen/Qwen2.5-14B-Instruct"]
SMALL = replace(KNOWN["Qwen/Qwen2.5-3B-Instruct"], parameters=10**9)
H100 = 80 * 10**9


def warnings_of(
    *overrides: str,
    gpus: int = 8,
    shape: ModelShape = SEVEN,
    objective: Objective | None = "policy",
    memory: int = H100,
    cpu_servers: bool = False,
) -> list[str]:
    """Warnings of a recipe on `gpus` GPUs of `memory` bytes."""
    memories = {str(number): memory for number in range(gpus)}
    return Use.of(load_recipe("memagent-7b", overrides), objective, memories, cpu_servers=cpu_servers).check(shape)


EIGHT = ["engine.name=ray", "cluster.learners=6", "sampler.name=vllm", "sampler.servers=2", "sampler.devices=[6,7]"]
EIGHT += ["train.max_off_policy_steps=0"]


def test_a_model_that_one_gpu_cannot_train_is_an_error_that_names_the_keys_for_all_gpus() -> None:
    with pytest.raises(ConfigError, match=r"7\.6 billion weights.* takes 161 GB .* 76 GB; use --gpus 8 or model\.lora"):
        warnings_of()
    assert warnings_of(*EIGHT) == []


def test_a_model_that_no_layout_can_train_names_only_adapters() -> None:
    with pytest.raises(ConfigError, match=r"use model\.lora\.rank=16$"):
        warnings_of(gpus=1)
    assert warnings_of("model.lora.rank=16", gpus=1) == []
    with pytest.raises(ConfigError, match=r"takes 18 GB in the learner, its limit is 10 GB; use a smaller model"):
        warnings_of(gpus=1, objective=None, memory=10 * 10**9)


def test_a_rank_whose_activations_may_not_fit_is_a_warning_with_smaller_micro_batches() -> None:
    five = [*EIGHT[:1], "cluster.learners=5", "engine.micro_batch_tokens=24576", *EIGHT[2:]]
    memory, idle = warnings_of(*five, shape=FOURTEEN)
    assert re.search(r"learning takes 8\d GB.*engine\.micro_batch_tokens=12288", memory)
    assert warnings_of(*five, "engine.micro_batch_tokens=12288", shape=FOURTEEN) == [idle]
    joined = warnings_of(*five, "cluster.address=10.0.0.1:6379", "cluster.folder=/shared", shape=FOURTEEN)
    assert joined == [memory]  # also on machines that this one doesn't see
    assert warnings_of(*five, "cluster.cpu_offload=true", shape=FOURTEEN) == [idle]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_weights_and_state_that_exceed_a_gpu_are_an_error(ranks: int) -> None:
    """20 bytes per weight: 295 GB of 14.8 billion weights."""
    words = ["engine.name=ray", f"cluster.learners={ranks}", *EIGHT[2:]]
    with pytest.raises(ConfigError, match=r"14\.8 billion weights"):
        warnings_of(*words, shape=FOURTEEN)


def test_a_mixture_holds_all_its_experts() -> None:
    """Qwen3-30B-A3B on 6 ranks: 20 bytes of each weight are 102 GB, though a token uses a tenth of them."""
    with pytest.raises(ConfigError, match=r"30\.5 billion weights"):
        warnings_of(*EIGHT, shape=replace(SEVEN, parameters=30_532_122_624, idle=27_179_089_920))


def test_idle_gpus_are_a_warning_with_the_keys_that_use_them() -> None:
    assert warnings_of(shape=SMALL) == ["7 of 8 GPUs stay idle; to use all add --gpus 8"]
    assert warnings_of(shape=SMALL, objective="nll") == [
        "7 of 8 GPUs stay idle; to use all add engine.name=ray cluster.learners=8"
    ]
    assert warnings_of(shape=SMALL, objective=None) == []
    assert warnings_of(shape=SMALL, gpus=1) == []
    assert warnings_of("model.path=embedded", shape=SMALL) == []
    assert warnings_of("engine.name=ray", "cluster.gpus_per_learner=0", gpus=2)[0].startswith("2 of 2 GPUs stay idle")
    assert warnings_of("engine.name=ray", "cluster.learners=8") == [
        "cluster.gpus_per_sampler=0: copies of the sampler compute on CPUs; to use all add --gpus 8"
    ]


@pytest.mark.parametrize(
    ("overrides", "gpus", "reason"),
    [
        ([], 8, "a server would take GPU 0, which the learner has; add 'sampler.devices=[7]'"),
        (["sampler.servers=2"], 8, "which the learner has; add 'sampler.devices=[6,7]'"),
        (["model.device=cuda:7", "sampler.devices=[7]"], 8, "a server would take GPU 7, which the learner has"),
        (["model.device=cpu", "sampler.servers=2"], 8, "which another server has; add 'sampler.devices=[6,7]'"),
        ([], 1, "this machine has 1: add --gpus 1, or sampler.name=embedded"),
        (["engine.name=ray", "cluster.learners=8"], 8, "this machine has 8: add --gpus 8, or sampler.name=embedded"),
        (["engine.name=ray", "cluster.learners=7", "sampler.servers=2"], 8, "would take GPU 0, which the learner has"),
    ],
)
def test_a_gpu_taken_twice_is_an_error(overrides: list[str], gpus: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        warnings_of("sampler.name=vllm", "train.max_off_policy_steps=0", *overrides, gpus=gpus, shape=SMALL)


def test_one_server_shares_the_learners_gpu_if_its_share_of_the_memory_is_set() -> None:
    shared = ["sampler.name=vllm", "sampler.gpu_memory_utilization=0.4", "train.max_off_policy_steps=0"]
    assert warnings_of(*shared, gpus=1, shape=SMALL) == []
    assert "its limit is 44 GB" in warnings_of(*shared, gpus=1, shape=KNOWN["Qwen/Qwen2.5-3B-Instruct"])[0]
    with pytest.raises(ConfigError, match="which another server has; add "):
        warnings_of(*shared, "sampler.servers=2", "model.device=cpu", gpus=8)


def test_ray_gives_servers_the_gpus_that_ranks_leave() -> None:
    ranks = ["engine.name=ray", "sampler.name=vllm", "train.max_off_policy_steps=0"]
    assert warnings_of(*ranks, "cluster.learners=7") == []
    assert warnings_of(*ranks, "cluster.learners=6", "sampler.servers=2") == []
    assert warnings_of(*ranks, "cluster.learners=4", "sampler.servers=2", "sampler.tensor_parallel_size=2") == []
    assert warnings_of(*ranks, "cluster.learners=4", shape=SMALL)[0].startswith("3 of 8 GPUs stay idle")


def test_servers_that_take_turns_use_the_gpus_of_ranks_within_their_memory() -> None:
    shared = ["engine.name=ray", "sampler.name=vllm", "cluster.placement=colocated", "train.max_off_policy_steps=0"]
    assert warnings_of(*shared, "cluster.learners=8", "sampler.servers=8") == []
    assert warnings_of(*shared, "cluster.learners=4", "sampler.servers=4", shape=SMALL)[0].startswith(
        "4 of 8 GPUs stay"
    )
    two = warnings_of(*shared, "cluster.learners=2", "sampler.servers=2")
    assert re.search(r"learning takes .* its limit is 73 GB", two[0])  # 3 GB are a sleeping server's
    small = warnings_of(*shared, "cluster.learners=8", "sampler.servers=8", "sampler.gpu_memory_utilization=0.2")
    assert "sampling takes 18 GB in the server, its limit is 16 GB" in small[0]


def test_servers_on_cpus_and_servers_of_the_user_take_no_gpu() -> None:
    assert "stay idle" in warnings_of("sampler.name=vllm", "sampler.urls=[http://127.0.0.1:1]", shape=SMALL)[0]
    assert "7 of 8" in warnings_of("sampler.name=vllm", shape=SMALL, cpu_servers=True)[0]


def test_ranks_take_gpus_if_there_are_any() -> None:
    cluster = load_recipe("memagent-quickstart", ["engine.name=ray", "cluster.learners=8"]).cluster
    assert [cluster.rank_gpus(gpus, "auto") for gpus in (0, 8)] == [0, 1]
    assert cluster.rank_gpus(8, "cpu") == 0
    assert cluster.rank_gpus(0, "cuda") == 1  # and then there are too few
    assert cluster.model_copy(update={"gpus_per_learner": 0.0}).rank_gpus(8, "auto") == 0
