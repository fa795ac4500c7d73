"""A small run to be killed: python kill_child.py fakes|engine[/POLICY][+AHEAD] FOLDER [MODEL].

Prints "training" before the first step. Resumes a run in the folder.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from palimpsest.config.schema import RunConfig
from palimpsest.runs.loggers import JsonlLogger, Logger, LoggerSet
from palimpsest.runs.run_folder import open_run
from palimpsest.tools.environment import Environment, Step
from palimpsest.types import Grade, Problem, Trajectory
from support.fakes import HashLearner, SeedSampler, make_trainer

STEPS = 10


class ParityGrader:
    """A reward that varies although a random model never answers correctly."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        if not trajectory.outcome.gradable:
            return Grade(None, "lost")
        return Grade(float(sum(trajectory.turns[-1].completion.token_ids) % 2))


class SlowSampler(SeedSampler):
    """Slow enough for a kill anywhere in a step."""

    async def generate(self, prompt_ids: Any, params: Any, **options: Any) -> Any:
        time.sleep(0.001)
        return await super().generate(prompt_ids, params, **options)


class SlowLearner(HashLearner):
    """Slow enough for a kill in a save."""

    async def save(self, folder: Path) -> dict[str, str]:
        time.sleep(0.01)
        written = await super().save(folder)
        time.sleep(0.01)
        return written


class Slow(Environment):
    """Takes longer or shorter in each process."""

    def reset(self, problem: Problem) -> str:
        return "Start."

    def step(self, action: str) -> Step:
        time.sleep(0.002 * (hash(action) % 4))
        return Step(f"{len(action)} letters.", len(action) % 2, len(action) % 5 == 0)


def config(model: str, ahead: int = 0, policy: str = "overwrite", steps: int = STEPS) -> RunConfig:
    sizes = {"chunk_size": 48, "question_tokens": 64, "memory_tokens": 12, "answer_tokens": 6, "prompts": "short"}
    train = {"max_steps": steps, "batch_size": 2, "group_size": 4, "num_minibatches": 2, "save_steps": 3}
    sections = {
        "model": {"path": model},
        "policy": {"name": policy, "options": sizes},
        "data": {"synthetic": {"facts_per_chunk": 1}, "curriculum": {"chunks": [1, 2], "advance_at": 0.3}},
        "credit": {"dynamic_sampling": {"max_refills": 1}},
        "optim": {"learning_rate": 1e-3, "warmup_steps": 3},
        "train": {**train, "max_off_policy_steps": ahead},
        "logging": {"report_to": ["jsonl"]},
    }
    if policy == "edit":
        sizes = {"context_tokens": 200, "turn_tokens": 6, "max_turns": 4, "prompts": "play_short", "tools": {}}
        sections["policy"] = {"name": policy, "options": {**sizes, "verbs": ["compact"]}}
        sections["environment"] = {"name": f"{__file__}:Slow"}
    return RunConfig.model_validate(sections)


def with_engine(run: RunConfig) -> dict[str, Any]:
    from palimpsest.agents.roles import open_roles
    from palimpsest.data.sources.file_source import build_source
    from palimpsest.engines.open import open_engine
    from palimpsest.memory.registry import build_policy
    from palimpsest.reward.turn_rewards import EnvironmentGrader

    engine = open_engine(run, objective="policy")
    environment = open_roles(run, engine.codec, engine.sampler).environment
    opened = {"codec": engine.codec, "sampler": engine.sampler, "learner": engine.learner}
    source = build_source(run.data, run.seed, split="train")
    grader = EnvironmentGrader() if environment else ParityGrader()
    return {
        **opened,
        "policy": build_policy(run.policy),
        "source": source,
        "grader": grader,
        "environment": environment,
    }


def with_fakes(_run: RunConfig) -> dict[str, Any]:
    learner = SlowLearner()
    return {"learner": learner, "sampler": SlowSampler(learner=learner), "grader": ParityGrader()}


def run(kind: str, path: Path, model: str, *watchers: Logger, steps: int = STEPS) -> None:
    name, _, ahead = kind.partition("+")
    engine, _, policy = name.partition("/")
    settings = config(model, int(ahead or 0), policy or "overwrite", steps)
    components = with_engine(settings) if engine == "engine" else with_fakes(settings)
    with open_run(path, settings, resume=True) as folder:
        trainer = make_trainer(folder, loggers=LoggerSet([JsonlLogger(folder), *watchers]), **components)
        print("training", flush=True)
        asyncio.run(trainer.run())


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "embedded")
