"""One training step of a Qwen2 of 0.5B with random weights: seconds of each stage, and the kernels that take the time.

Three steps of MemAgent: the first compiles, the second is timed, the third runs under torch.profiler, which slows it
down. rl-step.json has the second's timings, rl-step.txt the profiler's table; how fast it was is not judged. On a CPU
the same runs at tiny sizes in float32, and operators replace kernels.
"""

from __future__ import annotations

import json
import os
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
from palimpsest.types import Problem, Trajectory

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
    """Of the answer's last token: a random model never answers right."""
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


def test_a_whole_step_of_half_a_billion_weights_is_profiled(
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
