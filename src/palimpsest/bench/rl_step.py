"""One whole step of reinforcement learning, stage by stage: seconds, peak memory, and the kernels that take the time.

The agent is MemAgent's with sections of 1,000 tokens, the model a Qwen2 of 0.5B with random weights and its real
vocabulary, in bfloat16. The reward is the parity of the answer's last token, for a random model never answers right.

| stage | |
|---|---|
| rollout | all episodes of the step, played and graded |
| credit | advantages and weights of every token |
| learn | gradient, clipping, optimiser |
| publish | the new weights become the sampler's |

The step is done three times: the first compiles, the second is timed, the third runs under torch.profiler, which slows
it down and says which kernels ran. `busy` is the kernels' time over the third's seconds: below 1 the device waits.

On a CPU the same code runs at tiny sizes in float32, to show that it is complete; operators stand for kernels.

Not covered: trained weights, which end a memory before its budget; loading and checkpoints; several devices.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

from palimpsest.bench.forest import build_learner
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.credit.assign import assign
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.engines.embedded.compute import ComputeThread
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.protocol import UpdateStats
from palimpsest.memory.registry import build_policy
from palimpsest.rollout.group import Player
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Problem, Trajectory

STAGES = ("rollout", "credit", "learn", "publish")
TOP = 30  # kernels of a stage that are listed


@dataclass(frozen=True, slots=True)
class StepSizes:
    problems: int = 8
    group: int = 16
    paragraphs: int = 8
    """Of a document, about 230 tokens each."""
    chunk: int = 1000
    memory: int = 96
    answer: int = 32
    micro_batch_tokens: int = 16_384
    layers: int = 24
    width: int = 896
    inner: int = 4864
    heads: int = 14
    groups: int = 2
    vocab: int = 151_936


TINY_STEP = StepSizes(
    problems=2, group=2, paragraphs=2, chunk=256, memory=4, answer=4, micro_batch_tokens=2048, layers=2, width=64,
    inner=64, heads=4, vocab=4096,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """How one stage of one step went."""

    seconds: float
    peak_mb: float | None
    """Of the device's memory; None on a CPU."""
    kernels: tuple[tuple[str, int, float], ...] = ()
    """Name, calls and milliseconds, the longest first; none where it ran without the profiler."""


class Parity:
    """Grades so that a group differs."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        return Grade(float(trajectory.turns[-1].completion.token_ids[-1] % 2))


def run(out: Path, *, device: str = "cuda", sizes: StepSizes | None = None) -> dict[str, Any]:
    """The figures; they are written to OUT/rl-step.json, and as tables to OUT/rl-step.txt."""
    sizes = sizes or (StepSizes() if device == "cuda" else TINY_STEP)
    torch.manual_seed(0)
    step = _Step(sizes, device)
    figures = asyncio.run(step.measured())
    out.mkdir(parents=True, exist_ok=True)
    (out / "rl-step.json").write_text(json.dumps(figures, indent=1) + "\n")
    (out / "rl-step.txt").write_text(_tables(figures))
    return figures


class _Step:
    def __init__(self, sizes: StepSizes, device: str) -> None:
        self._sizes, self._device, self._config = sizes, device, _config(sizes)
        self._model = _model(sizes, device)
        self._thread = ComputeThread()
        self._sampler = EmbeddedSampler(self._model, thread=self._thread)
        self._learner = build_learner(self._model, sizes.micro_batch_tokens)
        self._source = SyntheticSource(self._config.data.synthetic, seed=0)
        self._player = Player(
            policy=build_policy(self._config.policy),
            sampler=self._sampler,
            codec=Codec.load(self._config.model),
            sampling=self._config.sampling,
            grader=Parity(),
            group_size=sizes.group,
        )

    async def measured(self) -> dict[str, Any]:
        try:
            await self._round(0)
            before = self._sampler.stats().generated_tokens
            timed, update = await self._round(1)
            sampled = self._sampler.stats().generated_tokens - before
            profiled, _ = await self._round(2, profiled=True)
        finally:
            await self._sampler.close()
        return {
            "device": torch.cuda.get_device_name() if self._device == "cuda" else "cpu",
            "dtype": str(self._model.dtype),
            "parameters": sum(p.numel() for p in self._model.parameters()),
            "seconds": sum(stage.seconds for stage in timed.values()),
            "peak_mb": max((stage.peak_mb for stage in timed.values() if stage.peak_mb is not None), default=None),
            "sampled_tokens": sampled,
            "trained_tokens": update.tokens,
            "logical_tokens": update.logical_tokens,
            "physical_tokens": update.physical_tokens,
            "sampled_tokens_per_s": sampled / timed["rollout"].seconds,
            "learnt_tokens_per_s": update.logical_tokens / timed["learn"].seconds,
            "logprob_gap_mean": update.token_sums["logprob_gap"] / update.tokens,
            "logprob_gap_max": update.maxima["logprob_gap"],
            "grad_norm": update.grad_norm,
            "stages": {name: _figures(timed[name], profiled[name]) for name in STAGES},
        }

    async def _round(self, number: int, *, profiled: bool = False) -> tuple[dict[str, Stage], UpdateStats]:
        """One step, with weights and problems of its own."""
        stages: dict[str, Stage] = {}
        problems = self._source.problems(step=number, count=self._sizes.problems)
        async with self._stage("rollout", stages, profiled):
            groups = await self._player.batch(problems, key=(0, number))
        async with self._stage("credit", stages, profiled):
            steps = assign(groups, self._config.credit, 1)
        async with self._stage("learn", stages, profiled):
            (update,) = await self._thread.run(self._learner.update, steps)
        async with self._stage("publish", stages, profiled):
            await self._sampler.publish(self._learner.version)
        return stages, update

    @asynccontextmanager
    async def _stage(self, name: str, into: dict[str, Stage], profiled: bool) -> AsyncIterator[None]:
        """What is done within it, as a `Stage`."""
        cuda = self._device == "cuda"
        profiler = profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) if profiled else None
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        if profiler is not None:
            await self._switch(profiler.start)
        started = time.perf_counter()
        yield
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        if profiler is not None:
            await self._switch(profiler.stop)
        peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else None
        into[name] = Stage(seconds, peak, _kernels(profiler, cuda) if profiler is not None else ())

    async def _switch(self, profiler: Callable[[], None]) -> None:
        """Start or stop a profiler: of a CPU it sees the operators of its own thread alone, of a GPU all kernels."""
        if self._device == "cuda":
            profiler()
        else:
            await self._thread.run(profiler)


def _config(sizes: StepSizes) -> RunConfig:
    budgets = {"chunk_size": sizes.chunk, "memory_tokens": sizes.memory, "answer_tokens": sizes.answer}
    synthetic = {"chunks": sizes.paragraphs, "facts_per_chunk": 32}
    return load_recipe(
        "memagent-quickstart",
        {"policy": {"options": budgets}, "data": {"synthetic": synthetic, "curriculum": None}},
    )


def _model(sizes: StepSizes, device: str) -> Any:
    config = Qwen2Config(
        vocab_size=sizes.vocab,
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.groups,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    model: Any = Qwen2ForCausalLM(config)  # its own types leave out `to(device, dtype)`
    return model.to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()


def _kernels(profiler: Any, cuda: bool) -> tuple[tuple[str, int, float], ...]:
    """Every kernel, or a CPU's operators, by the time spent in itself."""
    kind, spent = ("CUDA", "self_device_time_total") if cuda else ("CPU", "self_cpu_time_total")
    rows = [
        (event.key, event.count, getattr(event, spent) / 1e3)
        for event in profiler.key_averages()
        if event.device_type.name == kind
    ]
    return tuple(sorted(rows, key=lambda row: -row[2]))


def _figures(timed: Stage, profiled: Stage) -> dict[str, Any]:
    spent = sum(ms for _, _, ms in profiled.kernels)
    return {
        "seconds": timed.seconds,
        "peak_mb": timed.peak_mb,
        "kernel_ms": spent,
        "busy": spent / 1e3 / profiled.seconds,
        "kernels": [{"name": name, "calls": calls, "ms": ms} for name, calls, ms in profiled.kernels[:TOP]],
    }


def _tables(figures: Mapping[str, Any]) -> str:
    """The figures for people: one line each, then the kernels of each stage."""
    lines = [f"{key:24}{value}" for key, value in figures.items() if key != "stages"]
    for name, stage in figures["stages"].items():
        peak = "" if stage["peak_mb"] is None else f", peak {stage['peak_mb']:,.0f} MB"
        lines += ["", f"{name}: {stage['seconds']:.3f} s, kernels busy {stage['busy']:.0%}{peak}"]
        lines += [f"  {row['ms']:10.2f} ms {row['calls']:8d} x  {row['name'][:100]}" for row in stage["kernels"]]
    return "\n".join(lines) + "\n"
