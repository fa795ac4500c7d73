"""Rollouts of the embedded sampler beside transformers and vLLM, on one MemAgent-shaped batch.

64 episodes in groups of 16 read documents of 1 to 16 chunks; their turns stop early, at lengths of their own. The
episodes are played once to get prompts and completion lengths; every engine then replays exactly these (`replay.py`).
Each engine has a process of its own; their rounds alternate and the median of each counts.

Not covered: start-up and warm-up of any engine.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from palimpsest.bench.replay import VLLM, WAYS, Plan, contestant
from palimpsest.config.load import load_recipe
from palimpsest.config.sampler import PYTHON
from palimpsest.data.synthetic import SyntheticSource
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.memory.registry import build_policy
from palimpsest.rollout.episode import play
from palimpsest.types import Problem


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
