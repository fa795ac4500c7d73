"""What training every shared token once is worth: prefix forests beside segments trained one by one.

Every comparison alternates in this process and the best round of each side counts, so that a busy neighbour does not
decide; peak memory is read from processes of their own. The model has the size of the default one and a longer window
(random weights: speed does not depend on them), so that prompts of 1,500 tokens fit.

| key | what |
|---|---|
| gradient_max_relative_error_float64 | largest gap of a gradient to the segments' own, over its largest entry |
| memact_..., section_first_... | logical over physical tokens; seconds of the other way over ours |
| section_first_prefill_ratio | prompt tokens the sampler computes, memory first over section first |
| peak_memory_ratio | forest over padded, above the loaded model, MemAct shape |
| section_first_over_padded | seconds of padded memory first, as the originals train, over section first in a forest |
| trl_step_ratio | TRL's seconds over ours for a single-turn GRPO step; None where TRL isn't installed |
| time_per_physical_token_ratio | forest over plain causal rows of the same depth |
| depth | [levels, seconds over one level's, per physical token] |
| scaling | [segments, physical tokens, seconds] |

`section_first_learner_speedup` stays below the reuse for a reason: both sides are ours, without padding, and what the
layouts share is the section's computation, not that every memory and response looks back at it. With the default model
attention is half of the arithmetic, and counted in operations the layouts differ by 2.3 where the tokens differ by 3.1.

Of the padded way only a part of the segments is timed and its time multiplied: its rows are all equally wide.

Not covered: several threads or devices (benchmarks/forest.py has a GPU), the originals' engines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from palimpsest.bench import grpo_step
from palimpsest.bench.worker import measured, module, peak_mb, serve
from palimpsest.bench.workloads import Shapes, padded_gradient, plain_gradient
from palimpsest.config.model import model_path
from palimpsest.config.schema import LossConfig, ModelConfig, OptimConfig
from palimpsest.engines.embedded.compute import set_threads
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.protocol import UpdateStats
from palimpsest.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Sizes:
    """Everything that decides how long it takes."""

    rounds: int = 2
    micro_batch_tokens: int = 32768
    window: int = 4096
    trajectories: int = 16
    prompt: int = 1500
    segments: int = 5
    own: int = 300
    group: int = 16
    section: int = 1000
    memory: int = 200
    question: int = 50
    padded_share: int = 8
    """One padded segment of so many is timed."""
    chain: int = 6000
    """Physical tokens of a chain."""
    levels: tuple[int, ...] = (1, 2, 4, 6)
    scaling: tuple[int, ...] = (1, 4, 16, 64)
    trl_prompts: int = 4
    trl_tokens: int = 64


TINY = Sizes(
    rounds=1, micro_batch_tokens=256, window=256, trajectories=3, prompt=40, segments=2, own=12, group=3, section=40,
    memory=8, question=4, padded_share=2, chain=400, scaling=(1, 4), trl_prompts=1, trl_tokens=4,
)  # fmt: skip


def run(*, sizes: Sizes | None = None, model: str = "embedded", trl_python: str | None = None) -> dict[str, Any]:
    """The table above, in under five minutes on one thread."""
    sizes = sizes or Sizes()
    set_threads(1)
    torch.manual_seed(0)
    net = build_model(model, sizes.window)
    shapes = Shapes(net.config.vocab_size)
    figures: dict[str, Any] = {"gradient_max_relative_error_float64": gradient_error()}
    figures |= _memact(net, shapes, sizes)
    figures |= _layouts(net, shapes, sizes)
    figures["peak_memory_ratio"] = _memory_ratio(model, sizes)
    figures["trl_step_ratio"] = grpo_step.ratio(model, sizes.trl_prompts, sizes.trl_tokens, trl_python)
    figures["depth"] = _depth(net, shapes, sizes)
    figures["scaling"] = _scaling(net, shapes, sizes)
    figures["model"] = f"{model}'s size, random weights, window {sizes.window}"
    return figures


def build_model(name: str, window: int) -> Any:
    """A model of the shape of `name` with random weights and a longer window."""
    config = AutoConfig.from_pretrained(model_path(ModelConfig(path=name)), trust_remote_code=False)
    config.max_position_embeddings = window
    built = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", trust_remote_code=False)
    return built.float().eval()


def build_learner(net: Any, micro_batch_tokens: int) -> Any:
    return ForestLearner(net, optim=OptimConfig(), loss=LossConfig(), micro_batch_tokens=micro_batch_tokens)


def best_of(rounds: int, ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Least seconds of each way; they take turns."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


# ---- parts --------------------------------------------------------------------------------------------------------


def gradient_error(depths: tuple[int, ...] = (1, 2, 3, 4, 5, 6)) -> float:
    """Random forests of up to six levels in float64, against a plain forward and backward of each segment."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    net = _exact(LlamaForCausalLM(config).double().eval())
    learner = build_learner(net, 64)  # several forests to a step
    largest = 0.0
    for depth in depths:
        batch = Shapes(101, seed=depth).tree(depth)
        net.zero_grad(set_to_none=True)
        plain_gradient(net, batch)
        expected = {name: p.grad.clone() for name, p in net.named_parameters()}
        net.zero_grad(set_to_none=True)
        learner.accumulate(batch)
        for name, p in net.named_parameters():
            gap = (p.grad - expected[name]).abs().max() / expected[name].abs().max()
            largest = max(largest, float(gap))
    return largest


def _exact(net: Any) -> Any:
    """The model with norms that stay in float64: transformers' own round to float32 whatever the model's type."""
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=child.weight.dtype)
                norm.weight = child.weight
                setattr(parent, name, norm)
    return net


def _memact(net: Any, shapes: Shapes, sizes: Sizes) -> dict[str, Any]:
    """MemAct's shape: padded segments and plain rows beside the forest."""
    batch = shapes.memact(sizes.trajectories, sizes.prompt, sizes.segments, sizes.own, sizes.own // 2)
    width = sizes.prompt + sizes.own
    learner = build_learner(net, sizes.micro_batch_tokens)
    part = batch.segments[: max(1, len(batch.segments) // sizes.padded_share)]
    physical = sizes.prompt + len(batch.segments) * sizes.own
    rows = shapes.rows(max(1, physical // width), width, width * (physical - sizes.prompt) // (2 * physical))
    passes: list[UpdateStats] = []

    def ours() -> None:
        passes.append(learner.accumulate(batch))

    seconds = best_of(
        sizes.rounds,
        {
            "forest": ours,
            "padded": lambda: padded_gradient(net, part, width, sizes.micro_batch_tokens),
            "plain": lambda: plain_gradient(net, rows),
        },
    )
    net.zero_grad(set_to_none=True)
    padded = seconds["padded"] * len(batch.segments) / len(part)
    plain = seconds["plain"] / (len(rows.segments) * width)
    return {
        "memact_reuse": passes[-1].reuse,
        "memact_learner_speedup": padded / seconds["forest"],
        "time_per_physical_token_ratio": seconds["forest"] / passes[-1].physical_tokens / plain,
        "memact_forest_s": seconds["forest"],
        "memact_padded_s": padded,
    }


def _layouts(net: Any, shapes: Shapes, sizes: Sizes) -> dict[str, Any]:
    """One read turn of a MemAgent group in both layouts, in the learner and in the sampler."""
    lengths = (sizes.group, sizes.section, sizes.memory, sizes.memory, sizes.question)
    memory_first, section_first = shapes.reading(*lengths)
    learner = build_learner(net, sizes.micro_batch_tokens)
    passes: list[UpdateStats] = []

    def section() -> None:
        passes.append(learner.accumulate(section_first))

    part = memory_first.segments[: max(1, sizes.group // 4)]
    width = len(part[0].segment.token_ids)
    ways = {
        "memory": lambda: learner.accumulate(memory_first),
        "section": section,
        "padded": lambda: padded_gradient(net, part, width, sizes.micro_batch_tokens),
    }
    seconds = best_of(sizes.rounds + 1, ways)
    net.zero_grad(set_to_none=True)
    return {
        "section_first_reuse": passes[-1].reuse,
        "section_first_learner_speedup": seconds["memory"] / seconds["section"],
        "section_first_over_padded": seconds["padded"] * sizes.group / len(part) / seconds["section"],
        "section_first_prefill_ratio": _computed(net, memory_first) / _computed(net, section_first),
    }


def _computed(net: Any, batch: Any, sampled: int = 4) -> float:
    """Prompt tokens the sampler computes for the turns of a batch, of which all but the sampled tokens are prompt."""
    sampler = EmbeddedSampler(net)

    async def go() -> None:
        prompts = []
        for item in batch.segments:
            prompts.append(item.segment.token_ids[: item.segment.loss_mask.index(True)])
        await asyncio.gather(
            *(sampler.generate(p, SamplingParams(max_tokens=sampled, seed=i)) for i, p in enumerate(prompts))
        )

    asyncio.run(go())
    return sampler.stats().computed_prompt_tokens


def _depth(net: Any, shapes: Shapes, sizes: Sizes) -> list[list[float]]:
    learner = build_learner(net, sizes.micro_batch_tokens)
    batches = {level: shapes.chain(level, 24, sizes.chain, 2.9) for level in sizes.levels}
    physical: dict[int, float] = {}

    def once(level: int) -> None:
        physical[level] = learner.accumulate(batches[level]).physical_tokens

    seconds = best_of(sizes.rounds + 1, {str(level): partial(once, level) for level in sizes.levels})
    net.zero_grad(set_to_none=True)
    cost = {level: seconds[str(level)] / physical[level] for level in sizes.levels}
    return [[float(level), cost[level] / cost[sizes.levels[0]]] for level in sizes.levels]


def _scaling(net: Any, shapes: Shapes, sizes: Sizes) -> list[list[float]]:
    learner = build_learner(net, sizes.micro_batch_tokens)
    result = []
    for count in sizes.scaling:
        batch = shapes.star(count, sizes.section, sizes.memory)
        stats = learner.accumulate(batch)
        seconds = best_of(sizes.rounds, {"": partial(learner.accumulate, batch)})[""]
        result.append([count, int(stats.physical_tokens), seconds])
    net.zero_grad(set_to_none=True)
    return result


# ---- peak memory, in processes of their own -----------------------------------------------------------------------


def _memory_ratio(model: str, sizes: Sizes) -> float:
    task = {"model": model, "sizes": asdict(sizes)}
    forest, padded = (
        measured(module("forest"), {"way": way, **task}, what=f"bench forest, memory of {way},")["peak_mb"]
        for way in ("forest", "padded")
    )
    return float(forest / max(padded, 1.0))


def _prepare(task: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    return lambda: {"peak_mb": _peak(**task)}


def _peak(way: str, model: str, sizes: Mapping[str, Any]) -> float:
    """Megabytes above the loaded model after a pass over MemAct's shape."""
    of = Sizes(**sizes)
    set_threads(1)
    net = build_model(model, of.window)
    batch = Shapes(net.config.vocab_size).memact(of.trajectories, of.prompt, of.segments, of.own, of.own // 2)
    width = of.prompt + of.own
    learner = build_learner(net, of.micro_batch_tokens)
    learner.accumulate(Shapes(net.config.vocab_size).rows(1, 64, 8))  # what the first pass of all loads
    before = peak_mb()
    if way == "forest":
        learner.accumulate(batch)
    else:  # two micro-batches: the peak does not grow with more of them
        rows = 2 * max(1, of.micro_batch_tokens // width)
        padded_gradient(net, batch.segments[:rows], width, of.micro_batch_tokens)
    return peak_mb() - before


if __name__ == "__main__":
    serve(_prepare)
