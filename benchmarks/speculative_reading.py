"""Sections per step, discarded share and seconds of speculative reading against sequential reading.

    python benchmarks/speculative_reading.py runs/quickstart
    python benchmarks/speculative_reading.py runs/quickstart --chunks 512 engine.name=ray sampler.name=vllm \
        sampler.python=/opt/vllm/bin/python

One document is read with each setting of `engine.speculative_reads`, then a full batch of documents with `off` and
`auto`. Settings alternate over the rounds; the median counts. One engine serves all of them. Every trajectory is
compared with the sequential one: turns, prompts, sampled tokens, answer.

Not covered: start-up of the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.app.config_resolution import Agent
from palimpsest.config.schema import RunConfig
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.memory.registry import build_policy
from palimpsest.rollout.episode import play
from palimpsest.rollout.speculation import Speculation
from palimpsest.types import Problem, Trajectory

SETTINGS: Sequence[int | str] = ("off", 16, 64, 128, "auto")


@dataclass(frozen=True)
class Reads:
    """A value of `engine.speculative_reads`."""

    speculative_reads: Any


async def read(
    config: RunConfig, engine: Engine, problems: Sequence[Problem], setting: int | str
) -> tuple[dict[str, float], list[Trajectory]]:
    """Figures and trajectories of the problems, all read concurrently."""
    speculation = Speculation.of(Reads(setting), engine.limits.concurrency)
    policy, started, cpu = build_policy(config.policy), time.perf_counter(), time.process_time()
    episodes = await asyncio.gather(
        *(
            play(
                problem,
                policy=policy,
                sampler=engine.sampler,
                codec=engine.codec,
                sampling=config.eval_sampling,
                key=(config.seed, "benchmark"),
                group_id=problem.id,
                rollout=0,
                speculation=speculation,
            )
            for problem in problems
        )
    )
    seconds = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    turns = sum(len(episode.turns) - 1 for episode in episodes)
    steps = speculation.steps if speculation else turns
    total = speculation.tokens + speculation.discarded if speculation else 1
    discarded = speculation.discarded / max(1, total) if speculation else 0.0
    return {**seconds, "sections": turns, "steps": steps, "discarded_share": discarded}, list(episodes)


def tokens(episode: Trajectory) -> Any:
    """Everything of a trajectory but its log-probabilities."""
    return (
        episode.outcome,
        episode.answer,
        episode.events,
        [replace(turn, completion=replace(turn.completion, logprobs=())) for turn in episode.turns],
    )


async def compare(
    config: RunConfig, engine: Engine, problems: Sequence[Problem], settings: Sequence[int | str], rounds: int
) -> list[dict[str, Any]]:
    """A row per setting: medians over the rounds."""
    found: dict[int | str, list[dict[str, float]]] = {setting: [] for setting in settings}
    same = dict.fromkeys(settings, True)
    reference: list[Any] | None = None
    await read(config, engine, problems[:1], "off")  # warm-up
    for _ in range(rounds):
        for setting in settings:
            figures, episodes = await read(config, engine, problems, setting)
            found[setting].append(figures)
            compared = [tokens(episode) for episode in episodes]
            reference = reference or compared
            same[setting] &= compared == reference
    rows = []
    for setting, rounds_of in found.items():
        row = {name: statistics.median(each[name] for each in rounds_of) for name in rounds_of[0]}
        rows.append(
            {"reads": setting, **row, "sections_per_step": row["sections"] / row["steps"], "same": same[setting]}
        )
    return rows


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    config = Agent(options.model, overrides=options.overrides).config({"train_files": "synthetic", "curriculum": None})
    source = SyntheticSource(config.data.synthetic, 1, "eval")
    one = source.problems(step=0, count=1, size=options.chunks)
    batch = source.problems(step=1, count=options.batch, size=options.batch_chunks)
    engine = await asyncio.to_thread(open_engine, config, objective=None)
    try:
        return {
            "one_document": await compare(config, engine, one, SETTINGS, options.rounds),
            "full_batch": await compare(config, engine, batch, ("off", "auto"), options.rounds),
        }
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run or a model")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE")
    parser.add_argument("--chunks", type=int, default=4096, help="sections of the one document")
    parser.add_argument("--batch", type=int, default=64, help="documents of the full batch")
    parser.add_argument("--batch-chunks", type=int, default=64, help="sections of each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args()
    found = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, rows in found.items():
        print(f"\n{name}\n reads  seconds    CPU s   steps  sections/step  discarded same")
        for row in rows:
            print(
                f"{row['reads']!s:>6} {row['seconds']:8.2f} {row['cpu_seconds']:8.2f} {row['steps']:7.0f} "
                f"{row['sections_per_step']:14.1f} {100 * row['discarded_share']:9.1f}% "
                f"{'yes' if row['same'] else 'NO'}"
            )


if __name__ == "__main__":
    main()
