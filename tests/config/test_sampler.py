"""The section `sampler`: every combination that can't work is refused in a line that names key, value and fix."""

from __future__ import annotations

import pytest

from palimpsest.config.load import dump_config, load_recipe, parse_config
from palimpsest.config.sampler import logprobs_mode
from palimpsest.config.schema import RunConfig, SamplingConfig
from palimpsest.errors import ConfigError
from palimpsest.runs.resume_rules import changes

VLLM = "sampler.name=vllm"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["sampler.servers=2"], "set sampler.name=vllm"),
        ([VLLM, "sampler.publish=nccl"], "sampler.publish=nccl is not there yet"),
        ([VLLM, "sampler.publish=ipc"], "sampler.publish=ipc is not there yet"),
        ([VLLM, "sampler.urls=[http://127.0.0.1:1]", "sampler.servers=2"], "sampler.servers is for servers that"),
        ([VLLM, "sampler.urls=[http://127.0.0.1:1]", "sampler.args=[--seed, '1']"], "sampler.args is for servers"),
        ([VLLM, "sampler.urls=[http://127.0.0.1:1, http://127.0.0.1:1]"], "names a server twice"),
        ([VLLM, "sampler.urls=[http://10.0.0.5:8000]"], "must not be on a network"),
        ([VLLM, "sampler.urls=[http://gpu.example:8000]"], "must not be on a network"),
        ([VLLM, "sampler.urls=[http://0.0.0.0:8000]"], "must not be on a network"),
        ([VLLM, "sampler.urls=[http://me:pw@127.0.0.1:8000]"], "holds a user or a password"),
        ([VLLM, "sampler.urls=[https://127.0.0.1:8000]"], "give the address alone"),
        ([VLLM, "sampler.urls=[http://127.0.0.1:99999]"], "no address of a server"),
        ([VLLM, "sampler.devices=[1]", "sampler.servers=2"], "2 servers of 1 need 2 different GPUs"),
        ([VLLM, "sampler.devices=[1, 1]", "sampler.tensor_parallel=2"], "1 servers of 2 need 2 different GPUs"),
        ([VLLM, "sampler.args=[--api_key=x]"], "sampler.args: --api_key=x follows from"),
        ([VLLM, "sampler.args=[--host, 0.0.0.0]"], "sampler.args: --host follows from"),
        ([VLLM, "engine.name=a:B"], "samples for engine.name=embedded and ray, not for a:B"),
        ([VLLM, "engine.name=ray", "cluster.samplers=2"], "cluster.samplers=2 is of copies of the embedded sampler"),
        ([VLLM, "engine.name=ray", "cluster.gpus_per_sampler=1"], "set sampler.servers instead"),
        (
            [VLLM, "roles={critic: {model: org/other}}"],
            "roles.critic.model: servers of vLLM hold the run's model alone",
        ),
        ([VLLM, "sampling.temperature=0.7", "sampling.top_p=0.95"], "set loss.old_logprobs=recompute"),
        (
            [VLLM, "sampling={temperature: 0.7, top_p: 0.95}", "loss={old_logprobs: recompute, tis_cap: 2}"],
            "loss.tis_cap=null",
        ),
    ],
)
def test_what_can_not_work_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("memagent-quickstart", overrides)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [VLLM],
        [VLLM, "sampler.urls=[http://127.0.0.1:8000, 'http://[::1]:8001', http://localhost:8002]"],
        [VLLM, "sampler.devices=[2, 3]", "sampler.tensor_parallel=2"],
        [VLLM, "sampling.top_p=0.999"],
        [VLLM, "engine.name=ray", "cluster.learners=2", "cluster.samplers=1"],
        [VLLM, "model.lora={rank: 4}"],
        [VLLM, "sampling={temperature: 0.7, top_p: 0.95}", "loss.old_logprobs=recompute"],
    ],
)
def test_what_works_is_taken_and_written(overrides: list[str]) -> None:
    config = load_recipe("memagent-quickstart", overrides)
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize(("temperature", "mode"), [(1.0, "raw"), (0.0, "raw"), (0.7, "processed")])
def test_the_mode_of_log_probabilities_follows_from_the_temperature(temperature: float, mode: str) -> None:
    assert logprobs_mode(SamplingConfig(temperature=temperature)) == f"{mode}_logprobs"


def test_a_resumed_run_may_change_who_samples() -> None:
    changed = changes(RunConfig(), load_recipe("memagent-quickstart", [VLLM]))
    assert {change.verdict for change in changed if change.key.startswith("sampler.")} == {"warned"}
