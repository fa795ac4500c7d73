"""The same turns on every engine: ours, transformers, vLLM, on one MemAgent-shaped batch.

64 episodes in groups of 16 read documents of 1 to 16 chunks; their turns stop early, at lengths of their own. The
episodes are played once to get prompts and completion lengths; every engine then replays exactly these (this file).
Each engine has a process of its own; their rounds alternate and the median of each counts.

Not covered: start-up and warm-up of any engine.

The same turns on every engine: ours, transformers' `generate`, its continuous batching, and vLLM's CPU build.

A plan is a list of episodes, an episode a list of (prompt ids, completion length). Every engine gets the same prompts
and samples exactly that many tokens for each, so the work is equal; only the order in which a turn becomes
possible (after the one before it in its episode) is given. Each is called in the way that suits it best, in a process
of its own: what one leaves in the C library's heap is no other's gain or loss.

Covered: one warm-up of a few turns before the clock starts; log-probabilities of the sampled tokens are asked for
where an engine can give them. The caches of prefixes are empty at the start of every round.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from palimpsest.bench.worker import Worker, module, serve
from palimpsest.config.load import load_recipe
from palimpsest.config.model import model_path
from palimpsest.config.sampler import PYTHON
from palimpsest.config.schema import RunConfig
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.engines.embedded.compute import set_threads
from palimpsest.engines.embedded.model_loading import load_model
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.memory.registry import build_policy
from palimpsest.rollout.episode import play
from palimpsest.types import Problem, SamplingParams

# ---- The same turns on every engine --------------------------------------------------------------------------


Plan = Sequence[Sequence[tuple[Sequence[int], int]]]
VLLM = "vllm"


def contestant(name: str, config: Any, plan: Plan, vllm_python: str | None = None) -> Worker:
    """A process whose rounds play the plan on engine `name`, one of WAYS or VLLM, and tell the seconds."""
    if name == VLLM:
        command = [str(vllm_python), str(Path(__file__).with_name("vllm_worker.py"))]
        task = {"model": model_path(config.model), "plan": plan}
        return Worker(command, task, what=f"vLLM under {vllm_python}", timeout_s=240.0)
    task = {"way": name, "config": config.model_dump(mode="json"), "plan": plan}
    return Worker(module("rollout"), task, what=f"bench rollout, {name},")


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


# ---- Rollouts of the embedded sampler beside transformers and vLLM, on one MemAgent-shaped batch -------------


def run(
    *,
    model: str = "embedded",
    layout: str = "memory_first",
    chunks: Sequence[int] = (1, 6, 11, 16),
    group_size: int = 16,
    rounds: int = 3,
    vllm_python: str | None = None,
) -> dict[str, Any]:
    """Tokens and episodes per second of each engine; None for vLLM where no interpreter is named.

    `ratio_transformers` is ours over the better of the two transformers paths.
    """
    config = load_recipe("memagent-quickstart", [f"model.path={model}", f"policy.options.layout={layout}"])
    engine = open_engine(config, objective=None)
    plan = asyncio.run(_record(engine, config, chunks, group_size))
    python = vllm_python or os.environ.get(PYTHON)
    names = [*WAYS, *([VLLM] if python else [])]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(contestant(name, config, plan, python)) for name in names}
        for _ in range(rounds):
            for name, worker in workers.items():
                seconds[name].append(worker.round()["seconds"])
    return _summary(plan, {name: statistics.median(each) for name, each in seconds.items()}) | {"layout": layout}


async def _record(engine: Engine, config: Any, chunks: Sequence[int], group_size: int) -> Plan:
    """Play the batch with the recipe's policy; turns that stop early stay as short as they were."""
    policy = build_policy(config.policy)
    source = SyntheticSource(config.data.synthetic, config.seed, "train")

    async def episode(problem: Problem, group: int, rollout: int) -> list[tuple[list[int], int]]:
        trajectory = await play(
            problem,
            policy=policy,
            sampler=engine.sampler,
            codec=engine.codec,
            sampling=config.sampling,
            key=(config.seed, "bench"),
            group_id=str(group),
            rollout=rollout,
        )
        return [(list(turn.prompt_ids), len(turn.completion.token_ids)) for turn in trajectory.turns]

    problems = [source.problems(step=i, count=1, size=count)[0] for i, count in enumerate(chunks)]
    return await asyncio.gather(*(episode(p, g, r) for g, p in enumerate(problems) for r in range(group_size)))


def _summary(plan: Plan, seconds: dict[str, float]) -> dict[str, Any]:
    tokens = sum(length for turns in plan for _, length in turns)
    result: dict[str, Any] = {
        "episodes": len(plan),
        "turns": sum(map(len, plan)),
        "sampled_tokens": tokens,
        "prompt_tokens": sum(len(prompt) for turns in plan for prompt, _ in turns),
    }
    for name in ("ours", "transformers", "transformers_cb", "vllm"):
        spent = seconds.get(name)
        result[f"{name}_tokens_per_s"] = None if spent is None else tokens / spent
        result[f"{name}_episodes_per_s"] = None if spent is None else len(plan) / spent
    better = min(seconds["transformers"], seconds["transformers_cb"])
    result["ratio_transformers"] = better / seconds["ours"]
    result["ratio_vllm"] = seconds["vllm"] / seconds["ours"] if "vllm" in seconds else None
    return result


if __name__ == "__main__":
    serve(_prepare)
