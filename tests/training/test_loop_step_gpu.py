"""Timings of a training step, of the learner and of speculative reading for a random Qwen2 of 0.5B.

Writes rl-step.json and the profiler's table rl-step.txt. On a CPU the same tests run at tiny sizes in float32.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

import palimpsest
from palimpsest.config.engine import named
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import LossConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import StepBatch, UpdateStats
from palimpsest.memory.registry import build_policy
from palimpsest.rollout.episode import play
from palimpsest.rollout.speculation import Speculation
from palimpsest.types import Problem, Trajectory
from support.forests import batch_of_rows

pytestmark = pytest.mark.gpu

DATA = {"data.curriculum": None, "data.synthetic.starts": None, "data.synthetic.facts_per_chunk": 32}
FULL: dict[str, Any] = DATA | {
    "data.synthetic.chunks": 8,
    "policy.options": {"chunk_size": 1000, "memory_tokens": 96, "answer_tokens": 32, "question_tokens": 32},
    "train": {"max_steps": 3, "batch_size": 8, "group_size": 16, "num_minibatches": 1},
    "engine.micro_batch_tokens": 16_384,
}
TINY: dict[str, Any] = DATA | {
    "data.synthetic.chunks": 2,
    "policy.options": {"chunk_size": 256, "memory_tokens": 4, "answer_tokens": 4, "question_tokens": 32},
    "train": {"max_steps": 3, "batch_size": 2, "group_size": 4, "num_minibatches": 1},
    "engine.micro_batch_tokens": 2048,
}


def parity(problem: Problem, trajectory: Trajectory) -> float:
    """Parity of the last token of the answer: a random model never answers correctly."""
    return float(trajectory.turns[-1].completion.token_ids[-1] % 2)


def build_model(large: bool) -> Any:
    config = Qwen2Config(
        vocab_size=151_936 if large else 4096,
        hidden_size=896 if large else 64,
        intermediate_size=4864 if large else 64,
        num_hidden_layers=24 if large else 2,
        num_attention_heads=14 if large else 4,  # heads of 16 at least, which FlexAttention takes on a GPU
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(config)  # its own types leave out `to(dtype)`
    return model.to(torch.bfloat16 if large else torch.float32)


def test_a_training_step_of_half_a_billion_weights_is_profiled(
    device: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cuda = device == "cuda"
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    profiler = profile(activities=[activity], experimental_config=every_thread)
    figures: dict[str, Any] = {}

    def after_step(step: int, metrics: dict[str, float], timings: dict[str, float]) -> None:
        if step == 2:
            figures.update(timings=dict(timings), metrics=dict(metrics))
            profiler.start()
        elif step == 3:
            profiler.stop()

    model = build_model(cuda)
    settings = {"model.device": device, "model.dtype": str(model.dtype).removeprefix("torch.")}
    palimpsest.train(
        "memagent-quickstart",
        {**(FULL if cuda else TINY), **settings, "logging.report_to": ["jsonl"]},
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(named("embedded")),
        reward=parity,
        callbacks=after_step,
        out=tmp_path / "run",
        quiet=True,
    )
    figures["peak_mb"] = torch.cuda.max_memory_allocated() / 2**20 if cuda else None
    out = Path(os.environ.get("PALIMPSEST_GPU_OUT", tmp_path))
    (out / "rl-step.json").write_text(json.dumps(figures, indent=1) + "\n")
    order = "self_device_time_total" if cuda else "self_cpu_time_total"
    (out / "rl-step.txt").write_text(profiler.key_averages().table(sort_by=order, row_limit=30) + "\n")
    assert figures["metrics"]["optim/grad_norm"] > 0
    assert figures["metrics"]["policy/physical_tokens"] < figures["metrics"]["policy/logical_tokens"]
    record_property("peak_mb", figures["peak_mb"])
    for name, value in figures["timings"].items():
        record_property(name, value)


def test_the_learner_reaches_a_share_of_the_matrix_rate_and_a_forest_saves_time(
    device: str, record_property: Callable[[str, object], None]
) -> None:
    """A group of 16 segments over one prefix, and 16 segments of the same lengths that share nothing."""
    cuda = device == "cuda"
    prefix, branch, size = (4000, 256, 4096) if cuda else (256, 16, 256)
    model = build_model(cuda).to(device)
    learner = ForestLearner(model, optim=OptimConfig(), loss=LossConfig(), micro_batch_tokens=16_384)
    draw = random.Random(0)
    root = token_ids(draw, prefix)
    forest = batch_of_rows([root + token_ids(draw, branch) for _ in range(16)], draw, share=0.05)
    dense = batch_of_rows([token_ids(draw, prefix + branch) for _ in range(16)], draw, share=0.05)
    (passed, shared), (_, alone) = timed(learner, forest, device), timed(learner, dense, device)
    factor = torch.randn(size, size, device=device, dtype=model.dtype)
    product = least_seconds(lambda: factor @ factor, device)
    weights = sum(p.numel() for p in model.get_decoder().layers.parameters())
    rate = 6 * weights * passed.physical_tokens / shared  # 2 forward, 4 backward
    record_property("teraflops of products", 2 * size**3 / product / 1e12)
    record_property("learner's share of it, without attention and head", rate * product / (2 * size**3))
    record_property("trained tokens over computed ones", passed.reuse)
    record_property("seconds without shared prefixes over seconds of the forest", alone / shared)
    assert passed.reuse > 5


def token_ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(4096) for _ in range(count)]


def timed(learner: ForestLearner, batch: StepBatch, device: str) -> tuple[UpdateStats, float]:
    passes = list[UpdateStats]()
    seconds = least_seconds(lambda: passes.append(learner.accumulate(batch)), device)
    return passes[-1], seconds


def least_seconds(work: Callable[[], object], device: str) -> float:
    """The faster of two rounds, after one that compiles."""
    least = float("inf")
    for number in range(3):
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if number:
            least = min(least, time.perf_counter() - started)
    return least


def test_a_long_document_is_read_in_few_steps(
    device: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """No sentence of a random model is in its prompt, so the rule keeps every memory, and every guess counts."""
    cuda, model = device == "cuda", build_model(device == "cuda")
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(named("embedded")).save_pretrained(tmp_path / "model")
    budgets = {"chunk_size": 1000 if cuda else 64, "memory_tokens": 24, "answer_tokens": 24, "question_tokens": 32}
    changed = [f"policy.options.{name}={tokens}" for name, tokens in budgets.items()]
    dtype = str(model.dtype).removeprefix("torch.")
    where = [f"model.path={tmp_path / 'model'}", f"model.device={device}", f"model.dtype={dtype}"]
    config = load_recipe("memagent-quickstart", [*where, *changed, "data.synthetic.facts_per_chunk=32"])
    chunks = 64 if cuda else 8
    problem = SyntheticSource(config.data.synthetic, 0, "eval").problems(step=0, count=1, size=chunks)[0]
    engine = open_engine(config, objective=None)

    async def read(speculation: Speculation | None) -> Trajectory:
        return await play(
            problem,
            policy=build_policy(config.policy),
            sampler=engine.sampler,
            codec=engine.codec,
            sampling=config.eval_sampling,
            key=(0, "gpu"),
            group_id=problem.id,
            rollout=0,
            speculation=speculation,
        )

    async def both() -> None:
        await read(None)  # warm-up
        for name in ("one by one", "speculatively"):
            speculation = Speculation("auto", engine.limits.concurrency) if name == "speculatively" else None
            started = time.perf_counter()
            trajectory = await read(speculation)
            record_property(f"sections, {name}", len(trajectory.turns) - 1)
            record_property(f"seconds, {name}", time.perf_counter() - started)
            if speculation is not None:
                record_property("sections per step", speculation.read / speculation.steps)
                assert speculation.steps < speculation.read
        await engine.close()

    asyncio.run(both())
