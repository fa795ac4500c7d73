"""One optimiser step of the embedded learner beside the way the originals train: every segment a row of its own, padded
to the longest prompt plus the longest completion allowed, logits for every position.

Both do the same work on the same segments: gradients of the same loss. Each runs in a process of its own, so that
its peak memory is its own. Not covered: the originals' engines themselves (they need GPUs).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from palimpsest.bench.worker import measured, module, peak_mb, serve
from palimpsest.bench.workloads import Shapes, padded_gradient
from palimpsest.config.engine import EmbeddedEngineConfig
from palimpsest.config.load import load_recipe
from palimpsest.engines.embedded.compute import ComputeThread
from palimpsest.engines.embedded.engine import EmbeddedEngine
from palimpsest.engines.protocol import StepBatch

WAYS = ("ours", "padded")


def run(*, model: str = "embedded", segments: int = 256, repeats: int = 3) -> dict[str, Any]:
    """Trained tokens per second and peak resident memory of both ways, in MB over the loaded model."""
    task = {"model": model, "segments": segments, "repeats": repeats}
    results = {
        way: measured(module("train_step"), {"way": way, **task}, what=f"bench train-step, {way},") for way in WAYS
    }
    tokens = results["ours"]["tokens"]
    figures: dict[str, Any] = {"segments": segments, "trained_tokens": tokens}
    for way, result in results.items():
        figures[f"{way}_s"] = result["seconds"]
        figures[f"{way}_tokens_per_s"] = tokens / result["seconds"]
        figures[f"{way}_peak_mb"] = result["peak_mb"]
    figures["ratio_speed"] = results["padded"]["seconds"] / results["ours"]["seconds"]
    figures["ratio_memory"] = results["padded"]["peak_mb"] / max(results["ours"]["peak_mb"], 1.0)
    figures["loss_gap"] = abs(results["ours"]["loss"] - results["padded"]["loss"])
    return figures


def _prepare(task: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    return lambda: _measure(**task)


def _measure(way: str, model: str, segments: int, repeats: int) -> dict[str, Any]:
    config = load_recipe("memagent-quickstart", [f"model.path={model}"])
    settings = config.engine
    assert isinstance(settings, EmbeddedEngineConfig)
    engine = EmbeddedEngine(config, objective="policy")
    thread = ComputeThread(settings.threads)
    batch = _batch(engine.codec.vocab_size, segments, config.policy.options)
    width = max(len(item.segment.token_ids) for item in batch.segments) + 24  # room that a budget leaves unused

    def once() -> float:
        if way == "ours":
            return asyncio.run(thread.run(engine.trainer.accumulate, batch)).loss  # as in training
        return padded_gradient(engine.model, batch.segments, width, settings.micro_batch_tokens, config.loss)

    before, best, loss = peak_mb(), float("inf"), 0.0
    for _ in range(repeats):
        engine.model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        loss = once()
        best = min(best, time.perf_counter() - started)
    trained = sum(sum(item.segment.loss_mask) for item in batch.segments)
    return {"seconds": best, "peak_mb": peak_mb() - before, "loss": loss, "tokens": trained}


def _batch(vocab: int, segments: int, options: Mapping[str, Any]) -> StepBatch:
    """Segments like the quickstart's: prompts of 70 to 130 tokens, completions of 4 up to the memory's budget."""
    return Shapes(vocab).turns(segments, prompt=(70, 130), sampled=(4, int(options.get("memory_tokens", 32))))


if __name__ == "__main__":
    serve(_prepare)
