"""The real vLLM on the GPU that it finds or on its CPU build: log-probabilities compared with transformers'."""

from __future__ import annotations

import asyncio
import copy
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from palimpsest.config.engine import AdapterConfig, ModelConfig, SamplerConfig, named
from palimpsest.engines.embedded.model_loading import adapted, load_model
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.embedded.weight_transfer import write_untied
from palimpsest.engines.protocol import Limits
from palimpsest.engines.vllm.engine import VllmSampler
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.types import Completion, SamplingParams
from support.architectures import SMALL, built
from support.cluster import AUTHENTICATED, ClusterRun, machines
from support.command import Run
from support.models import build_llama
from support.vllm_server import NEEDS_VLLM, PYTHON, serving

pytestmark = [*NEEDS_VLLM, pytest.mark.asyncio(loop_scope="module")]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra lora")
GAP = 1e-4  # nats; float32 on both sides
STALE = 0.05  # far less than what stale weights are off
VOCAB, WINDOW = 384, 512
LONG = tuple(range(10, 310))  # several blocks of a prefix cache
HYBRID: dict[str, Any] = {
    **{"vocab_size": VOCAB, "max_position_embeddings": WINDOW, "tie_word_embeddings": True},
    **{"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32},
    **{"mamba_d_state": 16, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_ssm": 128, "mamba_expand": 2},
    # without experts: vLLM's CPU build keeps their old weights
    **{"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 48},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sampler(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmSampler]:
    """Two servers, whose log-probabilities are at the sampling temperature."""
    settings = SamplerConfig(name="vllm", servers=2, gpu_memory_utilization=0.4)
    logs = tmp_path_factory.mktemp("servers")
    opened = VllmSampler(settings, Limits(VOCAB, WINDOW), mode="processed_logprobs", dtype="float32", logs=logs)
    yield opened
    await opened.close()


def tied_model(seed: int) -> Any:
    """A head size of 32 is the least that vLLM computes on a CPU."""
    return build_llama(VOCAB, seed=seed, hidden_size=64, num_attention_heads=2, num_key_value_heads=2)


@torch.no_grad()
def gap(model: Any, prompt: Sequence[int], completion: Completion, temperature: float) -> float:
    """Largest distance, in nats, to the log-probabilities by transformers."""
    ids = torch.tensor([[*prompt, *completion.token_ids]])
    nats = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1] / temperature, -1)
    expected = nats.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
    return float((expected - torch.tensor(completion.logprobs)).abs().max())


async def test_after_new_weights_of_a_tied_model_every_server_agrees_with_the_learner_also_on_cached_prompts(
    sampler: VllmSampler, tmp_path: Path
) -> None:
    before, after = tied_model(0), tied_model(1)
    stale_head = tied_model(1)
    stale_head.lm_head.weight = torch.nn.Parameter(before.lm_head.weight.detach().clone())
    for version, model in enumerate((before, after)):
        write_untied(model, tmp_path / f"v{version}")
        await sampler.load_weights(tmp_path / f"v{version}", version)
        for temperature in (1.0, 0.7):
            params = SamplingParams(max_tokens=16, temperature=temperature, stop_ids=(), seed=7)
            for group in ("a", "b", "a", "b"):  # one for each server, twice, so that the second is cached
                completion = await sampler.generate(LONG, params, session=f"{group}/0")
                assert completion.policy_version == version
                assert gap(model, LONG, completion, temperature) < GAP
    assert gap(before, LONG, completion, temperature) > STALE  # stale weights would be detected
    assert gap(stale_head, LONG, completion, temperature) > STALE
    assert sampler.stats().computed_prompt_tokens < sampler.stats().prompt_tokens


@pytest.mark.parametrize("name", ["FalconH1", "GraniteMoeHybrid", "Gemma3"])
async def test_after_new_weights_of_a_hybrid_or_a_model_with_vision_a_server_agrees_with_the_learner(
    name: str, tmp_path: Path
) -> None:
    vision = name == "Gemma3"
    if vision and subprocess.run([str(PYTHON), "-c", "import torchvision"], capture_output=True).returncode:
        pytest.skip("vLLM's Python has no torchvision for its torch")
    model = built(name, **({"text_config": {**SMALL, **HYBRID}} if vision else HYBRID)).float()
    settings, limits = SamplerConfig(name="vllm", gpu_memory_utilization=0.4), Limits(VOCAB, WINDOW)
    served = VllmSampler(settings, limits, mode="processed_logprobs", dtype="float32", logs=tmp_path / "servers")
    before, stale = None, 0.0
    try:
        for version in range(2):
            write_untied(model, tmp_path / f"v{version}")
            await served.load_weights(tmp_path / f"v{version}", version)
            for seed, temperature in enumerate((1.0, 0.7)):
                params = SamplingParams(max_tokens=16, temperature=temperature, stop_ids=(), seed=seed)
                calls = [served.generate(prompt, params) for prompt in (LONG, LONG[:7], LONG)]
                for prompt, completion in zip((LONG, LONG[:7], LONG), await asyncio.gather(*calls), strict=True):
                    assert completion.policy_version == version
                    assert gap(model, prompt, completion, temperature) < GAP
                    stale = max(stale, gap(before or model, prompt, completion, temperature))
            assert before is None or stale > STALE
            before, generator = copy.deepcopy(model), torch.Generator().manual_seed(version)
            for weight in model.parameters():
                weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    finally:
        await served.close()
    assert len(list((tmp_path / "servers").iterdir())) == 1


async def test_a_group_split_over_two_servers_has_one_policy(sampler: VllmSampler, tmp_path: Path) -> None:
    model = tied_model(2)
    write_untied(model, tmp_path / "weights")
    await sampler.load_weights(tmp_path / "weights", 2)
    params = [SamplingParams(max_tokens=24, temperature=0.7, seed=2**62 + n) for n in range(8)]
    calls = [sampler.generate(LONG, item, session=f"g/{n}") for n, item in enumerate(params)]
    completions = await asyncio.gather(*calls)
    assert max(gap(model, LONG, item, 0.7) for item in completions) < GAP
    again = [await sampler.generate(LONG, item, session="g/0") for item in params]
    assert [item.token_ids for item in again] == [item.token_ids for item in completions]
    assert len({item.token_ids for item in completions}) == 8


@needs_peft
async def test_servers_sample_with_merged_adapters(sampler: VllmSampler, tmp_path: Path) -> None:
    plain, model = tied_model(4), adapted(tied_model(4), AdapterConfig(rank=4, alpha=8), "base")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_B." in name:
                weight.normal_(0, 0.05, generator=torch.Generator().manual_seed(0))
    write_untied(model, tmp_path / "weights")
    await sampler.load_weights(tmp_path / "weights", 4)
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "weights")
    for temperature in (1.0, 0.7):
        params = SamplingParams(max_tokens=16, temperature=temperature, stop_ids=(), seed=7)
        completion = await sampler.generate(LONG, params)
        assert gap(merged, LONG, completion, temperature) < GAP
        assert gap(model, LONG, completion, temperature) < GAP  # as the learner computes it, without merging
        assert gap(plain, LONG, completion, temperature) > STALE


@needs_ray
async def test_an_export_of_a_run_on_ranks_samples_what_its_checkpoint_samples(tmp_path: Path, palimpsest: Run) -> None:
    run, exported = ClusterRun(tmp_path / "run"), tmp_path / "exported"
    run.finish()
    done = palimpsest("export", str(run.out), "--untied", "--out", str(exported))
    assert done.returncode == 0, done.stderr
    (checkpoint,) = [path for path in (run.out / "checkpoints").iterdir() if path.name == "step-000002"]
    started = load_model(ModelConfig())
    opened: Any = AutoModelForCausalLM.from_pretrained(exported)
    assert AutoTokenizer.from_pretrained(exported).get_vocab() == AutoTokenizer.from_pretrained(checkpoint).get_vocab()
    assert not torch.equal(opened.lm_head.weight, started.lm_head.weight)
    prompt, params = tuple(range(10, 110)), SamplingParams(max_tokens=32, temperature=0.0, stop_ids=())
    embedded = EmbeddedSampler(load_model(ModelConfig(path=str(checkpoint))))
    limits = Limits(opened.config.vocab_size, WINDOW)
    settings = SamplerConfig(name="vllm")
    served = VllmSampler(settings, limits, mode="raw_logprobs", dtype="float32", logs=tmp_path / "servers")
    try:
        wanted = await embedded.generate(prompt, params)
        await served.load_weights(exported, 2)
        completion = await served.generate(prompt, params)
    finally:
        await served.close()
        await embedded.close()
    ids = opened.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False, eos_token_id=None)
    assert completion.token_ids == wanted.token_ids == tuple(ids[0, len(prompt) :].tolist())
    assert gap(opened, prompt, completion, 1.0) < GAP


async def test_a_stop_token_is_sampled_and_ends_the_completion(sampler: VllmSampler, tmp_path: Path) -> None:
    model = tied_model(3)
    write_untied(model, tmp_path / "weights")
    await sampler.load_weights(tmp_path / "weights", 3)
    params = SamplingParams(max_tokens=100, stop_ids=tuple(range(0, VOCAB, 2)), seed=1)
    completion = await sampler.generate((5, 6, 7), params)
    assert completion.stop_reason.value == "stop"
    assert [id_ % 2 for id_ in completion.token_ids] == [1] * (len(completion.token_ids) - 1) + [0]
    scored = await sampler.score((5, 6, 7), completion.token_ids)
    assert scored == pytest.approx(completion.logprobs, abs=GAP)


def train(recipe: str, out: Path, steps: int, *more: str, save_steps: int = 100) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "palimpsest", "train", recipe, "--out", str(out), *more]
    settings = [f"train.max_steps={steps}", f"train.save_steps={save_steps}", "sampler.name=vllm"]
    settings += ["sampler.max_model_len=2048"]
    return subprocess.Popen([*command, *settings], stderr=subprocess.PIPE, text=True)


def gaps_of(out: Path) -> list[float]:
    """Largest gap between learner and servers of item step that has one, in nats."""
    return [row["sampler/logprob_gap_max"] for row in metrics_of(out) if "sampler/logprob_gap_max" in row]


def metrics_of(out: Path) -> list[dict[str, Any]]:
    return read_rows(out / "metrics.jsonl") if (out / "metrics.jsonl").is_file() else []


def processes_of(out: Path) -> list[str]:
    """Processes whose command names the run."""
    lines = [" ".join(item.info["cmdline"] or []) for item in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(out) in line]


def abandoned() -> set[str]:
    """Shared memory that no process holds; what other runs hold at the same time is theirs."""
    names = {path.name for path in Path("/dev/shm").glob("psm_*")}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it ended
            names -= set(re.findall(r"/dev/shm/(psm_\w+)", maps.read_text()))
    return names


RANKS = ("engine.name=ray", "cluster.learners=2")


@pytest.mark.parametrize(
    ("recipe", "learners"),
    [
        ("memagent-quickstart", ()),
        ("parallel-quickstart", ()),
        pytest.param("memagent-quickstart", RANKS, marks=needs_ray),
        pytest.param(
            "memagent-quickstart", (*RANKS, "cluster.placement=colocated", "sampler.servers=2"), marks=needs_ray
        ),
        pytest.param("memagent-quickstart", ("model.lora.rank=8", "optim.learning_rate=1e-3"), marks=needs_peft),
    ],
)
async def test_a_run_to_its_end_agrees_with_its_servers_and_leaves_nothing(
    tmp_path: Path, recipe: str, learners: tuple[str, ...]
) -> None:
    before, out = abandoned(), tmp_path / "run"
    process = train(recipe, out, 3, *learners)
    _, output = process.communicate()
    assert process.returncode == 0, output
    assert 0 <= max(gaps_of(out)) < GAP
    assert all(row["publish/seconds"] > 0 for row in read_rows(out / "timings.jsonl"))
    assert not processes_of(out)
    assert abandoned() <= before
    servers = 1 + ("sampler.servers=2" in learners)
    assert {path.name for path in (out / "servers").iterdir()} == {f"vllm-{number}.log" for number in range(servers)}


async def test_a_lead_trains_on_one_server_with_its_readers_on_another(tmp_path: Path) -> None:
    out, reader = tmp_path / "run", named("embedded-lead")
    with serving(Path(reader), 1024, tmp_path / "readers.log") as url:
        process = train("lead-quickstart", out, 3, f"roles.reader.url={url}", f"roles.reader.model={reader}")
        _, output = process.communicate()
    assert process.returncode == 0, output
    assert 0 <= max(gaps_of(out)) < GAP
    assert min(row["memory/evidence_retention"] for row in metrics_of(out)) > 0.2, "the readers' replies"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_run_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    before, out = abandoned(), tmp_path / "run"
    process = train("memact-quickstart", out, 50)  # at temperature 0.7
    while not metrics_of(out):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.5)
    assert max(gaps_of(out)) < GAP
    process.send_signal(number)
    process.communicate()
    for _ in range(600):
        if not processes_of(out) and abandoned() <= before:
            break
        time.sleep(0.1)
    assert not processes_of(out)
    assert abandoned() <= before
    assert [path.name for path in (out / "servers").iterdir()] == ["vllm-0.log"]


# ---- Servers and ranks on the machines of a cluster --------------------------------------------------------------


def actors(tag: str, name: str) -> list[psutil.Process]:
    """Processes of the actors of a class on the test's raylets."""
    processes = []
    for raylet in (item for item in psutil.process_iter(["name"]) if item.info["name"] == "raylet"):
        with suppress(psutil.Error):
            if raylet.environ().get("PALIMPSEST_TEST_OF") == tag:
                processes += [
                    item for item in raylet.children() if (item.cmdline() or [""])[0].startswith(f"ray::{name}")
                ]
    return processes


@needs_ray
async def test_a_run_on_two_machines_continues_without_a_server_and_after_a_lost_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**AUTHENTICATED, "PALIMPSEST_TEST_OF": str(tmp_path), "VLLM_CPU_KVCACHE_SPACE": "1"}.items():
        monkeypatch.setenv(name, value)
    out, steps = tmp_path / "run", 20

    def wait_for(row: int) -> None:
        while len(metrics_of(out)) < row:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.2)

    with machines([3, 3]) as address:  # for two ranks and four servers
        layout = [f"cluster.address={address}", "cluster.learners=2", "cluster.max_restarts=1", "sampler.servers=4"]
        size = ["train.batch_size=2", "train.group_size=4", "train.num_minibatches=1"]
        process = train("memagent-quickstart", out, steps, "engine.name=ray", *layout, *size, save_steps=2)
        wait_for(5)
        hosts = actors(str(tmp_path), "ServerHost")
        assert len(hosts) == 4
        assert len({host.ppid() for host in hosts}) == 2  # raylets
        (server,) = [item for item in hosts[0].children() if "process_guard" not in " ".join(item.cmdline())]
        server.kill()
        wait_for(10)
        actors(str(tmp_path), "Rank")[1].kill()
        _, output = process.communicate()
        assert process.returncode == 0, output
    assert len(metrics_of(out)) == steps
    assert "sampler/logprob_gap_max" in metrics_of(out)[0]
    assert max(gaps_of(out)) < GAP
    events = (out / "events.jsonl").read_text()
    assert "vLLM server" in events
    assert "lost" in events
