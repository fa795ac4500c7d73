"""The same turns on every engine: ours, transformers' `generate`, its continuous batching, and vLLM's CPU build.

A plan is a list of episodes, an episode a list of (prompt ids, completion length). Every engine gets the same prompts
and samples exactly that many tokens for each, so the work is equal; only the order in which a turn becomes
possible (after the one before it in its episode) is given. Each is called in the way that suits it best, in a process
of its own: what one leaves in the C library's heap is no other's gain or loss.

Covered: one warm-up of a few turns before the clock starts; log-probabilities of the sampled tokens are asked for
where an engine can give them. The caches of prefixes are empty at the start of every round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from palimpsest.bench.process import Worker, module, serve
from palimpsest.config.models import model_path
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.model import load_model
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.embedded.thread import set_threads
from palimpsest.types import SamplingParams

Plan = Sequence[Sequence[tuple[Sequence[int], int]]]
VLLM = "vllm"


def contestant(name: str, config: Any, plan: Plan, vllm_python: str | None = None) -> Worker:
    """A process whose rounds play the plan on engine `name`, one of WAYS or VLLM, and tell the seconds."""
    if name == VLLM:
        command = [str(vllm_python), str(Path(__file__).with_name("vllm_worker.py"))]
        task = {"model": model_path(config.model), "plan": plan}
        return Worker(command, task, what=f"vLLM under {vllm_python}", timeout_s=240.0)
    task = {"way": name, "config": config.model_dump(mode="json"), "plan": plan}
    return Worker(module("replay"), task, what=f"bench rollout, {name},")


def _prepare(task: Mapping[str, Any]) -> Callable[[], dict[str, float]]:
    """The model loaded, and a few turns played."""
    config = RunConfig.model_validate(task["config"])
    set_threads(1)
    model, way, plan = load_model(config.model).requires_grad_(False), WAYS[task["way"]], task["plan"]
    if way is not ours:
        model.set_attn_implementation("sdpa")  # transformers' own
    way(model, config, [episode[:2] for episode in plan[:4]])
    return lambda: {"seconds": way(model, config, plan)}


def ours(model: Any, config: Any, plan: Plan) -> float:
    """Seconds of the embedded sampler."""
    engine = config.engine
    sampler = EmbeddedSampler(
        model,
        batch_slots=engine.batch_slots,
        prefill_tokens=engine.prefill_tokens,
        cache_tokens=engine.cache_tokens,
    )

    async def episode(index: int, turns: Sequence[tuple[Sequence[int], int]]) -> None:
        for turn, (prompt, length) in enumerate(turns):
            await sampler.generate(prompt, SamplingParams(max_tokens=length, seed=index * 1000 + turn))

    async def replay() -> None:
        await asyncio.gather(*(episode(i, turns) for i, turns in enumerate(plan)))

    started = time.perf_counter()
    asyncio.run(replay())
    return time.perf_counter() - started


def transformers_generate(model: Any, config: Any, plan: Plan) -> float:
    """Seconds of `generate`, turn by turn: all episodes that still have a turn t form one left-padded batch."""

    def turn(batch: list[tuple[Sequence[int], int]]) -> None:
        width = max(len(p) for p, _ in batch)
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p, _ in batch])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in batch])
        longest = max(n for _, n in batch)
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=longest,
            min_new_tokens=longest,
            pad_token_id=0,
            eos_token_id=None,
        )

    with torch.inference_mode():
        started = time.perf_counter()
        for index in range(max(map(len, plan))):
            turn([episode[index] for episode in plan if len(episode) > index])
        return time.perf_counter() - started


def transformers_continuous(model: Any, config: Any, plan: Plan) -> float:
    """Seconds of continuous batching: the next turn of an episode is added as soon as the one before is done."""
    longest = max(len(p) + n for episode in plan for p, n in episode)
    batching = ContinuousBatchingConfig(
        page_size=32,
        num_blocks=2 * len(plan) * (longest // 32 + 1),
        max_batch_tokens=4096,
        return_logprobs=True,
        seed=0,
    )
    generation = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, max_new_tokens=64)
    before = model.config._attn_implementation
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching
    ) as manager:
        _drive_continuous(manager, [episode[:1] for episode in plan[:4]])
        started = time.perf_counter()
        _drive_continuous(manager, plan)
        seconds = time.perf_counter() - started
    model.set_attn_implementation(before)
    return seconds


def _drive_continuous(manager: Any, plan: Plan) -> None:
    position: dict[str, tuple[int, int]] = {}

    def add(episode: int, turn: int) -> None:
        prompt, length = plan[episode][turn]
        key = manager.add_request(input_ids=list(prompt), max_new_tokens=length)
        position[key] = (episode, turn)

    for episode in range(len(plan)):
        add(episode, 0)
    while position:
        result = manager.get_result(timeout=60)
        if result is None:
            raise RuntimeError("continuous batching stopped answering")
        if result.is_finished():
            episode, turn = position.pop(result.request_id)
            if turn + 1 < len(plan[episode]):
                add(episode, turn + 1)


WAYS: dict[str, Callable[[Any, Any, Plan], float]] = {
    "ours": ours,
    "transformers": transformers_generate,
    "transformers_cb": transformers_continuous,
}

if __name__ == "__main__":
    serve(_prepare)
