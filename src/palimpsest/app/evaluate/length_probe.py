"""`palimpsest probe`: how often a read loses, hallucinates or stores a fact, and the predicted accuracy by length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from palimpsest.agents.open_agent import fitted
from palimpsest.app.config_resolution import Agent, evaluation_config
from palimpsest.app.evaluate.evaluator import Evaluator
from palimpsest.app.python_calls import finish
from palimpsest.config.data import LONGEST
from palimpsest.config.schema import RunConfig
from palimpsest.data.sources.file_source import build_source
from palimpsest.engines.open import open_engine, using
from palimpsest.errors import ConfigError
from palimpsest.evaluation.runner import Entry
from palimpsest.evaluation.sample_log import Cell
from palimpsest.evaluation.statistics import wilson
from palimpsest.evaluation.summary import score
from palimpsest.memory.registry import admit_all, build_policy, policy_class
from palimpsest.metrics.hazards import HOLDS, SIGHTS, WANTED, Hazards, near_miss_share
from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.progress.reporter import Progress
from palimpsest.reward.grading import build_reward, closing
from palimpsest.types import Grade, Problem, Trajectory


def probe(agent: Agent, *, chunks: int, lengths: Sequence[int], limit: int, progress: Progress) -> dict[str, Any]:
    """Run `limit` synthetic documents of `chunks` paragraphs and count the effect of each read on the evidence.

    `states` has fractions of the reads that began in each state, and the 95% interval of the `wrong` reads; `expected`
    has the predicted accuracy at other `lengths` (metrics/hazards.py). Raises ConfigError, DataError, ModelError.
    """
    if (longest := max(chunks, *lengths)) > LONGEST:
        raise ConfigError(f"--chunks, --predict: {longest:,} is too long; the limit is {LONGEST:,} paragraphs")
    config, hazards = evaluation_config(agent, data="synthetic", limit=limit), Hazards()
    source = build_source(config.data, config.seed, split="eval")
    problems = source.problems(step=0, count=limit, size=chunks)
    reads_on = policy_class(config.policy.name).reads_documents
    measured = finish(lambda: _play(config, problems, hazards, progress)) if reads_on else {}
    if not (reads := int(hazards.reads.sum())):
        raise ConfigError(
            f"policy.name={config.policy.name}: writes no memory while reading; "
            "probe a policy that reads section by section, such as overwrite or recall"
        )
    pieces = max(len(problem.metadata["evidence"]) for problem in problems)
    documents, expected = int(hazards.answers.sum()), list[dict[str, Any]]()
    for size in sorted(set(lengths)):
        share = near_miss_share(source.problems(step=0, count=limit, size=size))
        row = hazards.predicted(size, share, pieces)
        needed = row["reads needed"] and math.ceil(documents * row["reads needed"] / reads)
        expected.append({"chunks": size, **row, "--limit": needed})
    return {
        "model": config.model.path,
        "policy": config.policy.name,
        "states": [_state(hazards, before, sight) for before in range(3) for sight in range(3)],
        "expected": expected,
        "measured": [{"chunks": chunks, "episodes": documents, "reads": reads, **measured}],
    }


def _state(hazards: Hazards, before: int, sight: int) -> dict[str, Any]:
    after = hazards.reads[sight, before]
    reads, right = int(after.sum()), after[WANTED[sight, before]]
    low, high = wilson(reads - right, reads) if reads else (None, None)
    counts = {**{f"-> {HOLDS[to]}": after[to] for to in range(3)}, "wrong": reads - right}
    counts["any hallucination"] = hazards.unsupported[sight, before]
    shares = {name: float(count / reads) if reads else None for name, count in counts.items()}
    return {
        "memory holds": HOLDS[before],
        "section": SIGHTS[sight],
        "reads": reads,
        **shares,
        "low": low,
        "high": high,
    }


async def _play(config: RunConfig, problems: list[Problem], hazards: Hazards, progress: Progress) -> dict[str, Any]:
    """Count into `hazards`; returns the accuracy of the episodes."""
    engine = open_engine(config, objective=None)
    window, codec = engine.sampler.max_context, engine.codec
    chosen = fitted(config.policy, problems=problems, codec=codec, max_context=window)
    config = config.model_copy(update={"policy": chosen})
    policy = build_policy(chosen)
    admit_all(policy, problems, codec, window)

    def count(problem: Problem, trajectory: Trajectory, grade: Grade, texts: GroupTexts) -> dict[str, float]:
        hazards.add(problem, trajectory, bool(grade.value), texts)
        return {}

    reward = build_reward(config.reward, codec)
    evaluator = Evaluator(config, engine, reward.answer, measure=count)
    cell = Cell("synthetic", None, None, config.policy.name)
    with progress.count("episodes", len(problems)) as tick:
        playing = evaluator.play([Entry(cell, policy, problems)], on_sample=lambda _: tick())
        samples = await using(engine, closing(reward, playing))
    return asdict(score([sample.value for sample in samples.values() if sample.value is not None]))
