"""`sampler`: combinations that cannot work are rejected in a line with key, value and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from palimpsest.config.engine import SamplerConfig, SamplingConfig, logprobs_mode
from palimpsest.config.load import dump_config, load_recipe, parse_config
from palimpsest.config.schema import RunConfig
from palimpsest.engines.vllm.server_process import ServerProcess
from palimpsest.errors import ConfigError
from palimpsest.runs.resume_rules import changes

VLLM = "sampler.name=vllm"
RECOMPUTE = "loss={old_logprobs: recompute, importance_sampling_cap: 2}"
TURNS = [VLLM, "engine.name=ray", "cluster.placement=colocated"]


def rejected(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe("memagent-quickstart", overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["sampler.servers=2"], "set sampler.name=vllm"),
        ([VLLM, "sampler.urls=[http://127.0.0.1:1]", "sampler.servers=2"], "sampler.servers is for servers that"),
        ([VLLM, "sampler.urls=[http://127.0.0.1:1]", "sampler.args=[--seed=1]"], "sampler.args is for servers"),
        ([VLLM, "sampler.urls=[http://127.0.0.1:1, http://127.0.0.1:1]"], "names a server twice"),
        ([VLLM, "sampler.urls=[http://10.0.0.5:8000]"], "must not be on a network"),
        ([VLLM, "sampler.urls=[http://gpu.example:8000]"], "must not be on a network"),
        ([VLLM, "sampler.urls=[http://me:pw@127.0.0.1:8000]"], "contains a user or a password"),
        ([VLLM, "sampler.urls=[https://127.0.0.1:8000]"], "use only the address"),
        ([VLLM, "sampler.urls=[http://127.0.0.1:99999]"], "no port 99999"),
        ([VLLM, "sampler.urls=['http://127.0.0.1:8000#v1']"], "use only the address"),
        ([VLLM, "sampler.urls=['http://[::1%lo]:8000']"], "use only the address"),
        ([VLLM, "sampler.urls=[http://localhost:8000, http://127.0.0.1:8000]"], "names a server twice"),
        ([VLLM, "sampler.urls=['http://[::1]', 'http://[0:0:0::1]:80']"], "names a server twice"),
        ([VLLM, "sampler.devices=[-1]"], "sampler.devices=[-1]: GPU numbers"),
        ([VLLM, "sampler.tensor_parallel_size=1000"], "sampler.tensor_parallel_size=1000: must be a whole number"),
        ([VLLM, "sampler.timeout_s=1e-9"], "sampler.timeout_s=1e-09: must be a number, at least 0.05"),
        ([VLLM, 'sampler.python="a\\0b"'], "sampler.python: 'a\\x00b' contains a NUL character"),
        ([VLLM, "sampler.devices=[1]", "sampler.servers=2"], "sampler.devices=[1] names 1"),
        ([VLLM, "sampler.devices=[1, 1]", "sampler.tensor_parallel_size=2"], "tensor_parallel_size=2 needs exactly 2"),
        ([VLLM, "engine.name=a:B"], "samples for engine.name=embedded and ray, not for a:B"),
        ([VLLM, "engine.name=ray", "cluster.samplers=2"], "cluster.samplers=2"),
        ([VLLM, "engine.name=ray", "cluster.gpus_per_sampler=1"], "set sampler.servers instead"),
        (["sampler.name=embedded", "cluster.placement=colocated"], "cluster.placement=colocated needs engine.name=ray"),
        ([VLLM, TURNS[2], "cluster.cpu_offload=true"], "cluster.cpu_offload=True needs engine.name=ray"),
        ([*TURNS, "train.max_off_policy_steps=1"], "set train.max_off_policy_steps=0, or cluster.placement=separate"),
        ([*TURNS, "sampler.urls=[http://127.0.0.1:1]"], "sampler.urls=['http://127.0.0.1:1'] with cluster.placement"),
        ([*TURNS, "sampler.devices=[0]"], "sampler.devices=[0] with cluster.placement=colocated: servers use the GPUs"),
        ([*TURNS, "cluster.gpus_per_learner=0.5"], "cluster.gpus_per_learner=0.5 with cluster.placement=colocated"),
        ([*TURNS, "cluster.learners=4"], "sampler.servers=1 with cluster.placement=colocated: needs one per 1 of 4"),
        ([*TURNS, "cluster.learners=8", "sampler={servers: 8, tensor_parallel_size: 2}"], "set sampler.servers=4"),
        ([*TURNS, "cluster.learners=3", "sampler.tensor_parallel_size=2"], "sampler.tensor_parallel_size=2 with clus"),
        (
            [*TURNS, "cluster={learners: 6, tensor_parallel_size: 3}", "sampler.tensor_parallel_size=2"],
            "doesn't fit 6 ranks in groups of cluster.tensor_parallel_size=3; set it to 1",
        ),
        ([VLLM, "roles={critic: {model: org/other}}"], "roles.critic.model: vLLM loads only"),
        ([VLLM, "sampling.temperature=0.7", "sampling.top_p=0.95"], "set loss.old_logprobs=recompute"),
        ([VLLM, "sampling={temperature: 0.7, top_p: 0.95}", RECOMPUTE], "loss.importance_sampling_cap=null"),
    ],
)
def test_combinations_that_cannot_work_are_rejected(overrides: list[str], reason: str) -> None:
    assert reason in rejected(*overrides)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ("--api_key=x", "--api_key=x sets --api-key, which the run sets"),
        ("--tensor-par=2", "sets --tensor-parallel-size"),  # argparse takes the beginning of a name
        ("--device-memory=0.5", "sets --device-memory-utilization"),
        ("--no-enable-scale-out", "sets --enable-scale-out"),
        ("--config=other.yaml", "reads options from a file"),
        ("--quantization=fp8", "--quantization is not allowed (servers would"),
        ("--quantization-config.x=1", "--quantization-config is not allowed"),
        ("--data-parallel-size=2", "--data-parallel-size is not allowed (a server is one process"),
        ("--headless", "--headless is not allowed"),
        ("--max-logprobs=0", "--max-logprobs is not allowed (palimpsest reads the mode"),
        ("--tokenizer=other", "--tokenizer is not allowed (servers receive token ids"),
        ("--kv-offloading-size=8", "keys and values outside the server"),
        ("--ssl-keyfile=a", "--ssl-keyfile is not allowed (the run reaches servers by HTTP"),
        ("--help", "--help is not allowed (the server would print"),
        ("-tp=2", "'-tp=2' must be a long option"),
        ("other-model", "'other-model' must be a long option"),
        ("'--seed 1'", "'--seed 1' must be a long option"),
        ("''", "'' must be a long option"),
        ("[--seed=1]", "must be a long option"),
    ],
)
def test_options_that_the_run_decides_are_rejected_under_every_spelling(args: str, reason: str) -> None:
    message = rejected(VLLM, f"sampler.args=[{args}]")
    assert "sampler.args: " in message
    assert reason in message


def test_options_of_every_server_command_are_rejected_in_args(tmp_path: Path) -> None:
    settings = SamplerConfig(name="vllm")
    process = ServerProcess(settings, 0, mode="raw_logprobs", dtype="float32", window=64, folder=tmp_path)
    options = [word for word in process._command(tmp_path, tmp_path / "http") if word.startswith("--")]
    assert len(options) > 10
    for option in options:
        with pytest.raises(ValidationError, match="which the run sets"):
            SamplerConfig(name="vllm", args=(option,))


def test_an_address_with_a_password_is_rejected_and_not_shown() -> None:
    with pytest.raises(ValidationError) as caught:
        SamplerConfig(name="vllm", urls=("http://me:s3cret@127.0.0.1:8000",))
    (error,) = caught.value.errors(include_input=False, include_context=False)
    assert "s3cret" not in error["msg"]


@pytest.mark.parametrize(
    "overrides",
    [
        [VLLM],
        [VLLM, "sampler.args=[--enforce-eager, --no-enable-prefix-caching, '--hf-overrides.rope.factor=2', --seed=-1]"],
        [VLLM, "sampler.urls=[http://127.0.0.1:8000, 'http://[::1]:8001', http://localhost:8002]"],
        [VLLM, "sampler.devices=[2, 3]", "sampler.tensor_parallel_size=2"],
        [VLLM, "sampling.top_p=0.999"],
        [VLLM, "engine.name=ray", "cluster.learners=2", "cluster.samplers=1"],
        [VLLM, "engine.name=ray", "cluster.address=10.0.0.1:6379", "sampler.servers=200"],
        [*TURNS, "cluster.learners=8", "sampler.servers=4", "sampler.tensor_parallel_size=2"],
        [VLLM, "model.lora={rank: 4}"],
        [VLLM, "sampling={temperature: 0.7, top_p: 0.95}", "loss.old_logprobs=recompute"],
    ],
)
def test_valid_combinations_survive_a_round_trip(overrides: list[str]) -> None:
    config = load_recipe("memagent-quickstart", overrides)
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize(("temperature", "mode"), [(1.0, "raw"), (0.0, "raw"), (0.7, "processed")])
def test_the_mode_of_log_probabilities_follows_from_the_temperature(temperature: float, mode: str) -> None:
    assert logprobs_mode(SamplingConfig(temperature=temperature)) == f"{mode}_logprobs"


def test_a_resumed_run_may_change_the_sampler() -> None:
    changed = changes(RunConfig(), load_recipe("memagent-quickstart", [VLLM]))
    assert {change.verdict for change in changed if change.key.startswith("sampler.")} == {"warned"}
