"""A whole single-turn GRPO step, generation included, beside TRL's GRPOTrainer.

Both get the same model, the same prompts and groups of 8, sample exactly as many tokens for each, and update once.
TRL runs in the interpreter that `PALIMPSEST_TRL_PYTHON` names, or in this one where it is installed.

Not covered: start-up and each side's first steps; TRL's vLLM mode, which needs a GPU; its `generate` is the fastest
of its ways on a CPU.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRL_PYTHON = "PALIMPSEST_TRL_PYTHON"  # interpreter of an environment that holds trl
GROUP = 8
STEPS = 5
TEXT = "The color of Anna is blue. The pet of Boris is a cat. The city of Clara is Rome. Question {}: where is Clara?"


def ratio(model: str, prompts: int, tokens: int, python: str | None = None) -> float | None:
    """TRL's seconds over ours, best step of each; ours is measured before and after. None where TRL is missing."""
    python = python or os.environ.get(TRL_PYTHON) or (sys.executable if importlib.util.find_spec("trl") else None)
    if not python:
        return None
    texts = [TEXT.format(i) * 2 for i in range(prompts)]
    before = ours(model, texts, tokens)
    theirs = trl(python, model, texts, tokens)
    return theirs / min(before, ours(model, texts, tokens))


def ours(model: str, texts: list[str], tokens: int) -> float:
    """Seconds of our best step."""
    from palimpsest.config.schema import LossConfig, ModelConfig, OptimConfig
    from palimpsest.engines.embedded.learner import EmbeddedLearner
    from palimpsest.engines.embedded.model import load_model, model_path
    from palimpsest.engines.embedded.sampler import EmbeddedSampler
    from palimpsest.text.codec import Codec

    net = load_model(ModelConfig(path=model))
    codec = Codec.load(model_path(ModelConfig(path=model)))
    sampler = EmbeddedSampler(net)
    learner = EmbeddedLearner(
        net,
        optim=OptimConfig(learning_rate=1e-6),
        loss=LossConfig(),
        micro_batch_tokens=2048,
        on_publish=sampler.publish,
    )
    prompts = [codec.encode(text) for text in texts for _ in range(GROUP)]
    best = float("inf")
    for step in range(STEPS):
        started = time.perf_counter()
        learner.forward_backward(asyncio.run(_rollouts(sampler, prompts, tokens, step)))
        learner.step()
        learner.publish()
        best = min(best, time.perf_counter() - started)
    return best


async def _rollouts(sampler: Any, prompts: list[list[int]], tokens: int, step: int) -> Any:
    """Sampled completions as a batch; the reward is the parity of the last token, and never the same for a group."""
    from palimpsest.engines.protocol import StepBatch, TrainSegment
    from palimpsest.types import SamplingParams, Segment

    wanted = [
        sampler.generate(prompt, SamplingParams(max_tokens=tokens, seed=step * 10_000 + i))
        for i, prompt in enumerate(prompts)
    ]
    items = []
    for index, (prompt, done) in enumerate(zip(prompts, await asyncio.gather(*wanted), strict=True)):
        context, size = len(prompt), len(prompt) + len(done.token_ids)
        mask = (False,) * context + (True,) * len(done.token_ids)
        ids, logprobs = (*prompt, *done.token_ids), (0.0,) * context + done.logprobs
        segment = Segment(ids, mask, logprobs, tuple(0 if m else -1 for m in mask))
        advantage = 1.0 if index % 2 else -1.0
        items.append(TrainSegment(segment, (advantage,) * size, (1.0 / (len(prompts) * tokens),) * size))
    return StepBatch(tuple(items))


def trl(python: str, model: str, texts: list[str], tokens: int, timeout_s: float = 150.0) -> float:
    """Seconds of TRL's best step."""
    from palimpsest.config.schema import ModelConfig
    from palimpsest.engines.embedded.model import model_path

    with tempfile.TemporaryDirectory() as folder:
        task = {"model": model_path(ModelConfig(path=model)), "texts": texts, "tokens": tokens, "group": GROUP}
        path = Path(folder) / "task.json"
        path.write_text(json.dumps({**task, "steps": STEPS, "folder": folder}))
        command = [python, str(Path(__file__).with_name("trl_worker.py")), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if done.returncode or not lines:
        raise RuntimeError(f"TRL failed under {python}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return float(json.loads(lines[-1])["seconds"])
