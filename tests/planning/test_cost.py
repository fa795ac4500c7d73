"""Seconds and memory by hand, and against published runs."""

from __future__ import annotations

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.planning.cost import (
    ASLEEP_GB,
    RESTING_GB,
    Processes,
    bytes_per_weight,
    estimate,
    excess,
    memory_of,
    operations,
    server_share,
)
from palimpsest.planning.hardware import DEVICES, Device, Hardware
from palimpsest.planning.model_shape import KNOWN, ModelShape, shape_from
from palimpsest.planning.workload import Workload, problem_sizes, workload

SEVEN = KNOWN["Qwen/Qwen2.5-7B-Instruct"]
RANKS = ["engine.name=ray", "cluster.gpus_per_learner=1", "sampler.name=vllm"]


def on_ranks(recipe: str, ranks: int, *words: str, servers: int = 2) -> RunConfig:
    devices = f"sampler.devices={list(range(servers))}"
    return load_recipe(recipe, [*RANKS, f"cluster.learners={ranks}", f"sampler.servers={servers}", devices, *words])


def test_a_ranks_memory_by_hand() -> None:
    """7.6 billion weights on 8 ranks: 19 GB of state with a reference, 2.2 + 0.5 + 0.9 gathered, 6.0 of activations."""
    memory = memory_of(on_ranks("memagent-7b", 8), SEVEN, Hardware(DEVICES["h100"], 10), "policy")
    state = 20 * 7.6156 / 8 + 2.5
    gathered = 2 * (2 * 152_064 * 3584 + SEVEN.layer) / 1e9 + 4 * SEVEN.layer / 1e9
    activations = 2 * 16_384 * (28 * 3584 + 4 * 3584 + 3 * 18_944 + 3 * 3584 + 2 * 512) / 1e9
    assert memory["learner"]["learning"] == pytest.approx(state + gathered + activations, rel=1e-3)
    assert memory["learner"]["sampling"] == pytest.approx(state, rel=1e-3)
    assert memory["learner"]["publication"] == pytest.approx(state + 4 * 152_064 * 3584 / 1e9, rel=1e-3)
    assert memory["server"]["sampling"] == pytest.approx(2 * 7.6156 + 3, rel=1e-3)
    assert (memory["learner"]["limit"], memory["server"]["limit"]) == (0.95 * 80, 0.85 * 80)
    wide = on_ranks("memagent-7b", 8, "model.dtype=float32")
    doubled = memory_of(wide, SEVEN, Hardware(DEVICES["h100"], 10), "policy")
    assert doubled["learner"]["learning"] == pytest.approx(state + gathered + 2 * activations, rel=1e-3)
    assert doubled["server"]["sampling"] == pytest.approx(4 * 7.6156 + 3, rel=1e-3)


def test_one_process_holds_the_state_and_the_samplers_cache() -> None:
    config = load_recipe("memagent-vime-qwen3-4b", ["model.lora.rank=16"])
    load, shape = workload(config, problem_sizes(config)), KNOWN["Qwen/Qwen3-4B"]
    memory = memory_of(config, shape, Hardware(DEVICES["h100"], 1), "policy", load)["learner"]
    assert memory["sampling"] - memory["publication"] == pytest.approx(20)  # a quarter of the GPU
    assert memory["publication"] == pytest.approx(2 * 4.022 + 2.5, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "objective", "bytes_of_one"),
    [
        (["model.dtype=float32", "loss.kl_loss_coef=0"], "policy", 16),
        (["model.dtype=float32"], "policy", 20),
        (["loss.kl_loss_coef=0"], "policy", 18),
        ([], "policy", 20),
        (["model.lora.rank=8"], "policy", 2),
        ([], None, 2),
        (["engine.name=ray", "cluster.learners=4"], "policy", 5),
        (["engine.name=ray", "cluster.learners=4"], "nll", 4),
        (["engine.name=ray", "cluster.learners=4", "cluster.cpu_offload=true"], "policy", 0),
    ],
)
def test_bytes_of_a_weight_are_those_that_were_measured(words: list[str], objective, bytes_of_one: float) -> None:  # type: ignore[no-untyped-def]
    assert bytes_per_weight(load_recipe("memagent-7b", words), objective) == bytes_of_one


def test_seconds_by_hand() -> None:
    """1 million weights in layers, 10 in the embeddings; one device of 10^12 operations and 10^10 bytes per second, on
    which the learner reaches 0.38 and the sampler half. A trained token attends to half of a row of 100,000 tokens, a
    prompt's to half of 100,000, a sampled one to all: products of 4 * 10 widths with each."""
    shape = ModelShape(1, 10, 10, 10, kv_heads=1, head=10, tied=True, layer=10**6, parameters=1_000_010)
    device = Device("gpu", 80, tflops=1.0, bandwidth_tb=0.01)
    load = Workload(
        episodes=4, prompt=3e6, computed_prompt=1e6, sampled=400, rows=4, logical=4e5, distinct=1.9e6, trained=400,
        context=1e5,
    )  # fmt: skip
    words = ["train.num_minibatches=2", "model.gradient_checkpointing=true", "loss.kl_loss_coef=0.1"]
    config = load_recipe("memagent-7b", [*words, "train.batch_size=2"])
    cost = estimate(config, shape, load, Hardware(device, 1))
    unit = 1.9e6 * (2e6 + 40 * 5e4) / 0.38e12  # 20 s
    assert cost.seconds["logprobs"] == pytest.approx(2 * unit, rel=1e-3)  # the old policy's and the reference's
    assert cost.seconds["learning"] == pytest.approx(4 * unit + 2 * 0.01, rel=1e-3)
    read = 2_000_020 + 4 * (1 + 2) * 1.2e5 * 40  # weights; keys and values of 4 sequences, repeated for one head
    decode = 100 * (read / 5e9 + 0.03)  # 4 sequences at once, 100 steps
    assert cost.seconds["sampling"] == pytest.approx(1e6 * (2e6 + 40 * 5e4) / 0.5e12 + decode, rel=1e-3)
    assert (cost.seconds["publication"], cost.overlaps, cost.dominated_by) == (0, False, "learning")
    assert cost.step_s == pytest.approx(sum(cost.seconds.values()))
    rarer = load_recipe("memagent-7b", [*words, "train.batch_size=2", "model.gradient_checkpointing=every_second"])
    half = estimate(rarer, shape, load, Hardware(device, 1))
    assert half.seconds["learning"] == pytest.approx(3.5 * unit + 2 * 0.01, rel=1e-3)
    adapters = load_recipe("memagent-7b", [*words, "model.lora.rank=4", "train.batch_size=2"])
    adapted = estimate(adapters, shape, load, Hardware(device, 1))
    assert adapted.seconds["learning"] == pytest.approx(3 * unit + 0.02, rel=1e-3)


@pytest.mark.parametrize("tokens", [64, 2048, 15_360])
def test_operations_are_those_that_torch_counts(tokens: int) -> None:
    """A Qwen2 decoder on the meta device. torch counts causal attention as the full square: every token attends to all.
    The plan's norms and biases are not among torch's products."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        num_hidden_layers=3, hidden_size=256, num_attention_heads=8, num_key_value_heads=2, intermediate_size=512,
        vocab_size=1000,
    )  # fmt: skip
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        ids, mask = torch.zeros((1, tokens), dtype=torch.long), torch.zeros((1, 1, tokens, tokens))
        Qwen2ForCausalLM(config)(input_ids=ids, attention_mask=mask, use_cache=False)
    shape = shape_from(config.to_dict(), "tiny")
    counted = counter.get_total_flops() / tokens - 2 * shape.head
    assert operations(shape, attended=tokens) == pytest.approx(counted, rel=3e-3)


def test_only_the_attention_layers_of_a_hybrid_attend_and_keep_keys_and_values() -> None:
    """An LFM 2 decoder on the meta device: the operations that grow with the length are those of attention."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Lfm2Config, Lfm2ForCausalLM

    config = Lfm2Config(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=8, num_key_value_heads=2, intermediate_size=512,
        vocab_size=1000, layer_types=["conv", "full_attention", "conv", "conv"],
    )  # fmt: skip
    counted = []
    for tokens in (512, 2048):
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            ids, mask = torch.zeros((1, tokens), dtype=torch.long), torch.zeros((1, 1, tokens, tokens))
            Lfm2ForCausalLM(config)(input_ids=ids, attention_mask=mask, use_cache=False)
        counted.append(counter.get_total_flops() / tokens)
    shape = shape_from(config.to_dict(), "tiny")
    assert operations(shape, 2048) - operations(shape, 512) == pytest.approx(counted[1] - counted[0], rel=1e-3)
    assert shape.kv_bytes == 2 * 2 * 1 * 2 * 32  # keys and values in 2 bytes: one layer, two heads of 32


def test_a_mixture_computes_with_the_experts_of_a_token() -> None:
    shape = ModelShape(1, 10, 10, 10, 1, head=10, tied=True, layer=10**6, parameters=1_000_010, idle=900_000)
    assert operations(shape, attended=0) == 2 * 100_000


def test_the_embedded_sampler_decodes_as_many_rows_as_its_pool_holds() -> None:
    """Qwen3-4B at 5,100 tokens on an H100: 11 sequences in half of a quarter of its memory, not the 128 of the key."""
    config = load_recipe("memagent-4b-lora")
    load, shape = workload(config, problem_sizes(config)), KNOWN["Qwen/Qwen3-4B"]
    gpu = Hardware(DEVICES["h100"], 1)
    sequence = 1.2 * load.context * shape.kv_bytes
    rows = 10e9 // sequence
    assert rows == 11
    step = 0.03 + (2 * shape.parameters + rows * sequence * (1 + 2 * 4)) / 1.675e12  # each key for 4 heads
    seconds = estimate(config, shape, load, gpu).seconds["sampling"]
    assert seconds == pytest.approx(load.sampled / rows * step, rel=0.05)  # prompts are the rest
    more = load_recipe("memagent-4b-lora", ["engine.kv_cache_gb=40"])
    assert estimate(more, shape, load, gpu).seconds["sampling"] < 0.9 * seconds


def test_weights_reach_servers_of_more_machines_later() -> None:
    """15.2 GB: written and read once; on several machines also through Ray, and over the network once per wave of 1, 2,
    4 and so on."""
    config = in_turns(8)
    load = workload(config, problem_sizes(config))
    one, eight, many = (
        estimate(config, SEVEN, load, Hardware(DEVICES["h100"], 8, machines)).seconds["publication"]
        for machines in (1, 8, 64)
    )
    size = 2 * SEVEN.parameters
    assert one == pytest.approx(size / 1.5e9 + 4)
    assert eight - one == pytest.approx(size / 0.7e9 + 3 * size / 12.5e9)
    assert many - eight == pytest.approx(3 * size / 12.5e9)
    placed = on_ranks("memagent-7b", 6)  # sampler.devices: all servers on this machine
    assert estimate(placed, SEVEN, load, Hardware(DEVICES["h100"], 8, 8)).seconds["publication"] < one


def test_a_batch_ahead_hides_the_shorter_phase() -> None:
    ahead = ["train.max_off_policy_steps=1", "loss.importance_sampling_cap=2"]
    config = on_ranks("memagent-7b", 6, *ahead)
    load, hardware = workload(config, problem_sizes(config)), Hardware(DEVICES["h100"], 8)
    together, in_turn = (
        estimate(each, SEVEN, load, hardware) for each in (config, on_ranks("memagent-7b", 6))
    )  # fmt: skip
    learner = together.seconds["logprobs"] + together.seconds["learning"]
    assert together.step_s == max(together.seconds["sampling"], learner) + together.seconds["publication"]
    assert in_turn.step_s == pytest.approx(in_turn.seconds["sampling"] + learner + in_turn.seconds["publication"])
    assert together.dominated_by == ("learning" if learner > together.seconds["sampling"] else "sampling")


@pytest.mark.parametrize(
    ("recipe", "gpus", "steps", "hours"),
    [("memagent-7b", 32, 400, 84), ("rememr1-7b", 32, 250, 80), ("rememr1-3b", 16, 250, 100)],
)
def test_published_runs_are_predicted_within_a_factor_of_two(recipe: str, gpus: int, steps: int, hours: float) -> None:
    """Their GPUs learn and sample in turn: as many ranks as servers here. Authors: 3 to 4 days; 80 and 100 hours."""
    config = on_ranks(recipe, gpus, servers=gpus)
    load = workload(config, problem_sizes(config))
    cost = estimate(config, KNOWN[config.model.path], load, Hardware(DEVICES["h800"], 8, gpus // 8))
    assert 0.5 < cost.step_s * steps / 3600 / hours < 2


def test_two_ranks_need_more_than_one_gpu_of_80_gb_for_7b() -> None:
    hardware = Hardware(DEVICES["h100"], 8)
    assert excess(memory_of(on_ranks("memagent-7b", 2), SEVEN, hardware, "policy")) > 0
    assert excess(memory_of(on_ranks("memagent-7b", 3), SEVEN, hardware, "policy")) == 0


# ---- Servers and ranks in turns on the same GPUs ---------------------------------------------------------------


def in_turns(ranks: int, *words: str, width: int = 1) -> RunConfig:
    keys = ["engine.name=ray", "sampler.name=vllm", "cluster.placement=colocated", "train.max_off_policy_steps=0"]
    sizes = [f"cluster.learners={ranks}", f"sampler.servers={ranks // width}", f"sampler.tensor_parallel_size={width}"]
    return load_recipe("memagent-7b", [*keys, *sizes, *words])


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (in_turns(8), 16 * 7.6 / 8),  # weights, two moments and the reference, four bytes each
        (in_turns(8, "loss.kl_loss_coef=0"), 12 * 7.6 / 8),
        (in_turns(4), 16 * 7.6 / 4),
        (in_turns(8, "model.lora.rank=8"), 4 * 7.6 / 8),
        (in_turns(8, "cluster.cpu_offload=true"), 0.0),
    ],
)
def test_a_server_has_what_a_resting_rank_leaves_of_a_gpu(config: RunConfig, kept: float) -> None:
    left = 80 - kept - RESTING_GB - ASLEEP_GB
    assert 0 <= left / 80 - server_share(config, 7_600_000_000, 80) < 0.01


def test_a_share_that_the_user_sets_is_taken() -> None:
    assert server_share(in_turns(8, "sampler.gpu_memory_utilization=0.5"), 7_600_000_000, 80) == 0.5


def test_servers_in_turns_use_the_gpus_of_ranks_and_each_fits_while_the_other_waits() -> None:
    eight = Hardware(DEVICES["h100"], 8)
    config = in_turns(8)
    load = workload(config, problem_sizes(config))
    cost = estimate(config, SEVEN, load, eight)
    assert not cost.overlaps
    assert Processes.of(config, "policy", eight).devices == 8
    assert cost.memory_gb["learner"]["limit"] == 0.95 * 80 - ASLEEP_GB
    assert cost.memory_gb["server"]["limit"] == pytest.approx(0.7 * 80, abs=1)
    assert excess(cost.memory_gb) <= 0
    assert excess(memory_of(in_turns(2), SEVEN, eight, "policy")) > 0  # 61 GB of a resting rank, then 8, and 18
    assert excess(memory_of(in_turns(8, "sampler.gpu_memory_utilization=0.2"), SEVEN, eight, "policy")) > 0
