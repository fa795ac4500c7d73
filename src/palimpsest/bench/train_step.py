"""One optimiser step of the embedded learner beside the way the originals train: every segment a row of its own, padded
to the longest prompt plus the longest completion allowed, logits for every position.

Both do the same work on the same segments: gradients of the same loss. Each runs in a process of its own, so that
its peak memory is its own. Not covered: the originals' engines themselves (they need GPUs).
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from typing import Any

WAYS = ("ours", "padded")


def run(*, model: str = "embedded", segments: int = 256, repeats: int = 3) -> dict[str, Any]:
    """Trained tokens per second and peak resident memory of both ways, in MB over the loaded model."""
    results = {way: _in_own_process(way, model, segments, repeats) for way in WAYS}
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


def _in_own_process(way: str, model: str, segments: int, repeats: int) -> dict[str, Any]:
    task = json.dumps({"way": way, "model": model, "segments": segments, "repeats": repeats})
    command = [sys.executable, "-m", "palimpsest.bench.train_step", task]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"bench train-step ({way}): {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(way: str, model: str, segments: int, repeats: int) -> dict[str, Any]:
    from palimpsest.config.load import load_recipe
    from palimpsest.engines.embedded.build import build_engine

    config = load_recipe("memagent-quickstart", [f"model.path={model}"])
    engine = build_engine(config)
    batch = _batch(engine.codec.vocab_size, segments, config.policy.options)
    width = max(len(item.segment.token_ids) for item in batch.segments) + 24  # room that a budget leaves unused

    def once() -> float:
        if way == "ours":
            assert engine.learner is not None
            return float(engine.learner.forward_backward(batch)["loss_sum"])
        return _padded(engine.model, batch, width, config)

    before, best, loss = _peak_mb(), float("inf"), 0.0
    for _ in range(repeats):
        engine.model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        loss = once()
        best = min(best, time.perf_counter() - started)
    trained = sum(sum(item.segment.loss_mask) for item in batch.segments)
    return {"seconds": best, "peak_mb": _peak_mb() - before, "loss": loss, "tokens": trained}


def _batch(vocab: int, segments: int, options: dict[str, Any]) -> Any:
    """Segments like the quickstart's: prompts of 70 to 130 tokens, completions of 4 up to the memory's budget."""
    from palimpsest.engines.protocol import StepBatch, TrainSegment
    from palimpsest.types import Segment

    draw = random.Random(0)
    items = []
    for _ in range(segments):
        prompt, length = draw.randint(70, 130), draw.randint(4, int(options.get("memory_tokens", 32)))
        ids = tuple(draw.randrange(vocab) for _ in range(prompt + length))
        mask = (False,) * prompt + (True,) * length
        turns = (-1,) * prompt + (0,) * length
        logprobs = tuple(-7.0 if m else 0.0 for m in mask)
        advantage = draw.choice((-1.0, 1.0))
        segment = Segment(ids, mask, logprobs, turns)
        items.append(TrainSegment(segment, (advantage,) * len(ids), (1.0 / segments,) * len(ids)))
    return StepBatch(tuple(items))


def _padded(model: Any, batch: Any, width: int, config: Any) -> float:
    """The same gradient from rows of equal width and full logits, in micro-batches of as many tokens."""
    import torch

    from palimpsest.train.loss import policy_loss

    rows = max(1, config.engine.micro_batch_tokens // width)
    total = 0.0
    for begin in range(0, len(batch.segments), rows):
        part = batch.segments[begin : begin + rows]

        def column(values: Any, fill: float, dtype: Any, part: Any = part) -> torch.Tensor:
            return torch.tensor([[*v, *[fill] * (width - len(v))] for v in map(values, part)], dtype=dtype)

        ids = column(lambda item: item.segment.token_ids, 0, torch.long)
        mask = column(lambda item: item.segment.loss_mask, False, torch.bool)[:, 1:]
        attention = column(lambda item: [1] * len(item.segment.token_ids), 0, torch.long)
        logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
        every = logits.float().log_softmax(-1)
        entropy = -(every.detach().exp() * every.detach()).sum(-1)
        logprobs = every.gather(-1, ids[:, 1:, None])[..., 0]
        sampler = column(lambda item: item.segment.logprobs, 0.0, torch.float32)[:, 1:][mask]
        loss, _ = policy_loss(
            logprobs=logprobs[mask],
            old_logprobs=sampler,
            sampler_logprobs=sampler,
            advantages=column(lambda item: item.advantages, 0.0, torch.float32)[:, 1:][mask],
            weights=column(lambda item: item.weights, 0.0, torch.float32)[:, 1:][mask],
            ref_logprobs=None,
            entropy=entropy[mask],
            config=config.loss,
        )
        loss.backward()
        total += float(loss.detach())
    return total


def _peak_mb() -> float:
    """Highest resident memory of this process so far (Linux counts kilobytes, macOS bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


if __name__ == "__main__":
    print(json.dumps(_measure(**json.loads(sys.argv[1]))))
