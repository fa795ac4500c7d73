"""Seconds and computed tokens per document of several reading agents, and their ratios to those of the first agent.

    python benchmarks/reading_methods.py runs/memagent runs/parallel runs/lead --chunks 64 1024
    python benchmarks/reading_methods.py runs/memagent runs/lead data.synthetic.task=two_hops

Agents take turns to read some documents one at a time; then each reads others all at once. Documents ask for one fact
among four near misses, unless overrides say otherwise, and come from the evaluation's draws. `computed`: tokens with an
unlimited prefix cache that starts empty with each document (rollout/token_costs.py). Answers are graded as in the run's
training, without its layers. One process, and as many threads as OMP_NUM_THREADS.

Not covered: start-up of the engines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.agents.roles import OpenRoles, open_roles
from palimpsest.app.config_resolution import Agent
from palimpsest.config.schema import RunConfig
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.memory.registry import build_policy
from palimpsest.reward.grading import graded, shipped_answer
from palimpsest.rollout.episode import play
from palimpsest.rollout.token_costs import token_costs
from palimpsest.types import Problem, Trajectory

ONE_FACT = {"data.synthetic.task": "needle", "data.synthetic.distractor_facts": 4}


@dataclass(frozen=True)
class Reader:
    """An agent, opened."""

    name: str
    config: RunConfig
    engine: Engine
    roles: OpenRoles

    async def read(self, problems: Sequence[Problem]) -> tuple[float, list[Trajectory]]:
        """Seconds and trajectories of the problems, read concurrently."""
        policy, started = build_policy(self.config.policy), time.perf_counter()
        episodes = await asyncio.gather(
            *(
                play(
                    problem,
                    policy=policy,
                    sampler=self.engine.sampler,
                    codec=self.engine.codec,
                    sampling=self.config.eval_sampling,
                    key=(self.config.seed, "benchmark"),
                    group_id=problem.id,
                    rollout=0,
                    roles=self.roles.samplers,
                )
                for problem in problems
            )
        )
        return time.perf_counter() - started, list(episodes)

    async def right(self, problems: Sequence[Problem], episodes: Sequence[Trajectory]) -> list[float]:
        """The grades, 0 without one."""
        grader = shipped_answer(self.config.reward)
        grades = [await graded(grader, *pair) for pair in zip(problems, episodes, strict=True)]
        return [grade.value or 0.0 for grade in grades]


def opened(run: str, overrides: Sequence[str]) -> Reader:
    agent = Agent(run, overrides=[*(f"{key}={value}" for key, value in ONE_FACT.items()), *overrides])
    config = agent.config({"train_files": "synthetic", "curriculum": None})
    engine = open_engine(config, objective=None)
    return Reader(Path(run).name, config, engine, open_roles(config, engine.codec, engine.sampler))


async def compared(readers: Sequence[Reader], chunks: int, documents: int) -> list[dict[str, Any]]:
    """A row per agent on documents of `chunks` paragraphs."""
    source = SyntheticSource(readers[0].config.data.synthetic, 1, "eval")
    alone = source.problems(step=0, count=max(3, documents // 8), size=chunks)
    batch = source.problems(step=1, count=documents, size=chunks)
    seconds: dict[str, list[float]] = {reader.name: [] for reader in readers}
    for problem in alone:
        for reader in readers:
            seconds[reader.name].append((await reader.read([problem]))[0])
    rows = list[dict[str, Any]]()
    for reader in readers:
        whole, episodes = await reader.read(batch)
        costs = [token_costs(episode)["computed_tokens"] for episode in episodes]
        row: dict[str, Any] = {
            "agent": reader.name,
            "chunks": chunks,
            "accuracy": statistics.fmean(await reader.right(batch, episodes)),
            "seconds_alone": statistics.median(seconds[reader.name]),
            "seconds_in_batch": whole / len(batch),
            "computed_tokens": statistics.fmean(costs),
        }
        first = rows[0] if rows else row
        ratios = {f"{name}_ratio": row[name] / first[name] for name in list(row)[3:]}
        rows.append(row | ratios)
    return rows


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    readers = [await asyncio.to_thread(opened, run, options.overrides) for run in options.runs]
    try:
        for reader in readers:
            warm = SyntheticSource(reader.config.data.synthetic, 2, "eval")
            await reader.read(warm.problems(step=0, count=2, size=4))
        return [row for chunks in options.chunks for row in await compared(readers, chunks, options.documents)]
    finally:
        for reader in readers:
            await reader.roles.close()
            await reader.engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="+", metavar="RUN|KEY=VALUE", help="runs, the first is the peer; overrides")
    parser.add_argument("--chunks", type=int, nargs="+", default=[64, 256], help="paragraphs per document")
    parser.add_argument("--documents", type=int, default=32, help="documents of the batch; an eighth is read alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args()
    options.runs = [argument for argument in options.arguments if "=" not in argument]
    options.overrides = [argument for argument in options.arguments if "=" in argument]
    rows = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'agent':16} chunks accuracy  s alone (ratio)  s in batch (ratio)  computed (ratio)")
    for row in rows:
        print(
            f"{row['agent']:16} {row['chunks']:6} {100 * row['accuracy']:8.1f} "
            f"{row['seconds_alone']:8.2f} ({row['seconds_alone_ratio']:4.2f}) "
            f"{row['seconds_in_batch']:10.3f} ({row['seconds_in_batch_ratio']:4.2f}) "
            f"{row['computed_tokens']:12,.0f} ({row['computed_tokens_ratio']:4.2f})"
        )


if __name__ == "__main__":
    main()
