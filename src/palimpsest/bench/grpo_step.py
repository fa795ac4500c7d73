"""A whole single-turn GRPO step, generation included, beside TRL's GRPOTrainer.

Both get the same model, the same prompts and groups of 8, sample exactly as many tokens for each, and update once.
Each runs in a process of its own, TRL in the interpreter that `PALIMPSEST_TRL_PYTHON` names, or in this one where it is
installed.

Not covered: start-up and each side's first steps; TRL's vLLM mode, which needs a GPU; its `generate` is the fastest
of its ways on a CPU.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from palimpsest.bench.worker import Worker, module, serve
from palimpsest.bench.workloads import segment
from palimpsest.config.model import model_path
from palimpsest.config.schema import LossConfig, ModelConfig, OptimConfig
from palimpsest.engines.embedded.compute import set_threads
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import load_model
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.protocol import StepBatch
from palimpsest.text.codec import Codec
from palimpsest.types import SamplingParams

TRL_PYTHON = "PALIMPSEST_TRL_PYTHON"  # interpreter of an environment that holds trl
GROUP = 8
STEPS = 5
TEXT = "The color of Anna is blue. The pet of Boris is a cat. The city of Clara is Rome. Question {}: where is Clara?"


def ratio(model: str, prompts: int, tokens: int, python: str | None = None) -> float | None:
    """TRL's seconds over ours, best step of each; ours is measured before and after. None where TRL is missing."""
    python = python or os.environ.get(TRL_PYTHON) or (sys.executable if importlib.util.find_spec("trl") else None)
    if not python:
        return None

    task = {"texts": [TEXT.format(i) * 2 for i in range(prompts)], "tokens": tokens, "group": GROUP, "steps": STEPS}
    with Worker(module("grpo_step"), {"model": model, **task}, what="bench forest, our step,") as ours:
        seconds: list[float] = [ours.round()["seconds"]]
        theirs = trl(python, {"model": model_path(ModelConfig(path=model)), **task})
        seconds.append(ours.round()["seconds"])
    return theirs / min(seconds)


def trl(python: str, task: Mapping[str, Any], timeout_s: float = 150.0) -> float:
    """Seconds of TRL's best step."""
    command = [python, str(Path(__file__).with_name("trl_worker.py"))]
    with (
        tempfile.TemporaryDirectory() as folder,
        Worker(command, {**task, "folder": folder}, what=f"TRL under {python}", timeout_s=timeout_s) as worker,
    ):
        return float(worker.round()["seconds"])


def _prepare(task: Mapping[str, Any]) -> Callable[[], dict[str, float]]:
    """Rounds of our steps, the model loaded."""
    config = ModelConfig(path=task["model"])
    set_threads(1)
    net = load_model(config)
    codec = Codec.load(config)
    sampler = EmbeddedSampler(net)
    learner = ForestLearner(
        net,
        optim=OptimConfig(learning_rate=1e-6),
        loss=LossConfig(),
        micro_batch_tokens=2048,
    )
    prompts = [codec.encode(text) for text in task["texts"] for _ in range(GROUP)]

    def step(number: int) -> float:
        started = time.perf_counter()
        learner.update([asyncio.run(_rollouts(sampler, prompts, task["tokens"], number))])
        asyncio.run(sampler.publish(learner.version))
        return time.perf_counter() - started

    return lambda: {"seconds": min(step(number) for number in range(STEPS))}


async def _rollouts(sampler: Any, prompts: list[list[int]], tokens: int, step: int) -> Any:
    """Sampled completions as a batch; the reward is the parity of the last token, and never the same for a group."""
    wanted = [
        sampler.generate(prompt, SamplingParams(max_tokens=tokens, seed=step * 10_000 + i))
        for i, prompt in enumerate(prompts)
    ]
    weight = 1.0 / (len(prompts) * tokens)
    items = []
    for index, (prompt, done) in enumerate(zip(prompts, await asyncio.gather(*wanted), strict=True)):
        pieces = [(prompt, False), (list(done.token_ids), True)]
        items.append(segment(pieces, 1.0 if index % 2 else -1.0, weight, done.logprobs))
    return StepBatch(tuple(items))


if __name__ == "__main__":
    serve(_prepare)
