"""What is said of this machine's GPUs before anything starts. The GPUs are pretended."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest.app.config_resolution import Agent
from palimpsest.config.load import load_recipe
from palimpsest.engines.embedded import compute, engine
from palimpsest.engines.embedded.model_loading import with_dtype
from palimpsest.engines.open import check_engine, open_engine
from palimpsest.engines.preflight import Use
from palimpsest.engines.protocol import Objective
from palimpsest.engines.vllm import server_process
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
    """Warnings of a recipe on so many GPUs of 80 GB."""
    config, there = load_recipe("memagent-7b", overrides), {str(number): memory for number in range(gpus)}
    return Use.of(config, objective, there, cpu_servers=cpu_servers).check(shape)


EIGHT = [
    "engine.name=ray",
    "cluster.learners=6",
    "sampler.name=vllm",
    "sampler.servers=2",
    "sampler.devices=[6,7]",
    "train.max_off_policy_steps=0",
]


def test_a_model_that_one_gpu_cannot_train_is_an_error_with_a_way_to_use_all_of_them() -> None:
    with pytest.raises(ConfigError, match=r"7\.6 billion weights.* takes 161 GB .* 76 GB; use --gpus 8 or model\.lora"):
        warnings_of()
    assert warnings_of(*EIGHT) == []


def test_a_model_that_no_layout_holds_names_adapters_alone() -> None:
    with pytest.raises(ConfigError, match=r"use model\.lora\.rank=16$"):
        warnings_of(gpus=1)
    assert warnings_of("model.lora.rank=16", gpus=1) == []
    with pytest.raises(ConfigError, match=r"takes 18 GB in the learner, its limit is 10 GB; use a smaller model"):
        warnings_of(gpus=1, objective=None, memory=10 * 10**9)


def test_a_rank_whose_activations_may_not_fit_is_a_warning_with_smaller_micro_batches() -> None:
    """Nobody measured the activations' formula, so the run may start."""
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
    held = ["engine.name=ray", f"cluster.learners={ranks}", *EIGHT[2:]]
    with pytest.raises(ConfigError, match=r"14\.8 billion weights"):
        warnings_of(*held, shape=FOURTEEN)


def test_a_mixture_holds_all_its_experts() -> None:
    """Qwen3-30B-A3B on 6 ranks: 20 bytes of each weight are 102 GB, though a token uses a tenth of them."""
    with pytest.raises(ConfigError, match=r"30\.5 billion weights"):
        warnings_of(*EIGHT, shape=replace(SEVEN, parameters=30_532_122_624, idle=27_179_089_920))


def test_gpus_that_stay_idle_are_a_warning_with_what_uses_them() -> None:
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
        (
            ["engine.name=ray", "cluster.learners=8"],
            8,
            "this machine has 8: add --gpus 8, or sampler.name=embedded",
        ),
        (
            ["engine.name=ray", "cluster.learners=7", "sampler.servers=2"],
            8,
            "a server would take GPU 0, which the lear",
        ),
    ],
)
def test_a_gpu_that_two_would_take_is_an_error(overrides: list[str], gpus: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        warnings_of("sampler.name=vllm", "train.max_off_policy_steps=0", *overrides, gpus=gpus, shape=SMALL)


def test_one_server_shares_the_learners_gpu_where_its_part_of_the_memory_is_given() -> None:
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


def test_servers_that_compute_on_a_cpu_or_are_the_users_take_no_gpu() -> None:
    assert "stay idle" in warnings_of("sampler.name=vllm", "sampler.urls=[http://127.0.0.1:1]", shape=SMALL)[0]
    assert "7 of 8" in warnings_of("sampler.name=vllm", shape=SMALL, cpu_servers=True)[0]


def test_ranks_take_gpus_where_there_are_some() -> None:
    cluster = load_recipe("memagent-quickstart", ["engine.name=ray", "cluster.learners=8"]).cluster
    assert [cluster.rank_gpus(gpus, "auto") for gpus in (0, 8)] == [0, 1]
    assert cluster.rank_gpus(8, "cpu") == 0
    assert cluster.rank_gpus(0, "cuda") == 1  # and then there are too few
    assert cluster.model_copy(update={"gpus_per_learner": 0.0}).rank_gpus(8, "auto") == 0


def test_a_run_begun_when_ranks_had_no_gpus_by_default_is_read_as_it_was() -> None:
    config = load_recipe("memagent-quickstart", ["cluster.gpus_per_learner=0", "cluster.gpus_per_sampler=0"])
    assert config.cluster.gpus_per_learner == 0


@pytest.mark.parametrize(
    ("stored", "gpus", "override", "dtype"),
    [
        ("bfloat16", 1, [], "bfloat16"),
        ("bfloat16", 0, [], "float32"),
        ("float16", 1, [], "float32"),
        ("float32", 1, [], "float32"),
        ("bfloat16", 1, ["model.dtype=float32"], "float32"),
        ("bfloat16", 1, ["model.device=cpu"], "float32"),
        ("bfloat16", 0, ["model.dtype=bfloat16"], "bfloat16"),
    ],
)
@pytest.mark.parametrize("fast_cpu", [False, True])
def test_a_model_that_is_only_sampled_from_is_held_as_its_files_are_on_fast_devices(
    stored: str,
    gpus: int,
    override: list[str],
    dtype: str,
    fast_cpu: bool,
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(tiny_model_folder, tmp_path / "model")
    (folder / "manifest.json").unlink(missing_ok=True)
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"dtype": stored}))
    monkeypatch.setattr(compute, "memories", lambda: dict.fromkeys(map(str, range(gpus)), H100))
    monkeypatch.setattr(compute, "multiplies_bfloat16", lambda: fast_cpu)
    config = Agent(model=folder, overrides=override).config({})
    unsaid = not any("dtype" in one for one in override)
    wanted = "bfloat16" if fast_cpu and unsaid and stored == "bfloat16" else dtype
    assert with_dtype(config, None).model.dtype == wanted


def test_training_names_its_dtype() -> None:
    with pytest.raises(ConfigError, match=r"model\.dtype=auto .*set float32 or bfloat16"):
        open_engine(load_recipe("memagent-quickstart", ["model.dtype=auto"]), objective="policy")


def test_what_gpus_forbid_is_an_error_before_a_model_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "memories", lambda: {"0": 1000})
    monkeypatch.setattr("palimpsest.engines.embedded.engine.trainable", lambda _: pytest.fail("opened"))
    with pytest.raises(ConfigError, match="its limit is 0 GB"):
        open_engine(load_recipe("memagent-quickstart", []), objective="policy")


@pytest.mark.parametrize("gpus", [0, 8])
def test_without_gpus_a_dry_run_says_what_it_did_not_check(
    gpus: int, monkeypatch: pytest.MonkeyPatch, tiny_model_folder: Path
) -> None:
    def no_vllm(_: object) -> None:
        raise ConfigError("sampler.name=vllm: no vLLM here")

    monkeypatch.setattr(compute, "memories", lambda: {str(number): H100 for number in range(gpus)})
    monkeypatch.setattr(server_process, "check_python", no_vllm)
    config = load_recipe("memagent-7b", [f"model.path={tiny_model_folder}", "sampler.name=vllm"])
    if gpus:
        with pytest.raises(ConfigError, match="no vLLM here"):
            check_engine(config)
        return
    window, unchecked = check_engine(config)
    assert window == 512
    assert "layout was not checked" in unchecked
    assert "no vLLM here" in unchecked


def test_missing_packages_are_an_error_before_the_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_torch_of", lambda: (_ for _ in ()).throw(ConfigError("no vLLM here")))
    monkeypatch.setattr(engine, "EmbeddedEngine", None)
    with pytest.raises(ConfigError, match="no vLLM here"):
        open_engine(load_recipe("memagent-quickstart", ["sampler.name=vllm"]), objective="policy")
