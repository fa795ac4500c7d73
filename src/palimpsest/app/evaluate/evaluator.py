"""Evaluator: runs entries with an engine, a reward of the answer, sampling and roles.

`evaluate`, the held-out problems of a training, and a quickstart's shards use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from palimpsest.agents.roles import OpenRoles, open_roles
from palimpsest.config.schema import RunConfig
from palimpsest.engines.open import start_servers, using
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ModelError
from palimpsest.evaluation.episode_files import EpisodeFile
from palimpsest.evaluation.runner import Arena, Entry, Measure, Samples, play_entries
from palimpsest.evaluation.sample_log import Sample
from palimpsest.metrics.memory_metrics import evidence_position, memory_metrics
from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.planning.model_shape import ModelShape, shape_of
from palimpsest.reward.grading import Grades
from palimpsest.rollout.speculation import Speculation
from palimpsest.rollout.token_costs import token_costs
from palimpsest.training.step_metrics import tool_measures
from palimpsest.types import Grade, Group, Problem, Trajectory


@dataclass(frozen=True)
class Evaluator:
    """Runs entries under one configuration."""

    config: RunConfig
    engine: Engine
    grader: Grades
    """Grades only the answer, without training's reward layers."""
    key: str = "eval"
    """Key of the random draws, next to the seed."""
    measure: Measure | None = None
    roles: OpenRoles | None = None
    """Samplers of turns with a role; None: opened and closed by `play`."""
    training: bool = False
    """Reads ahead only if the configuration says so."""

    @cached_property
    def speculation(self) -> Speculation | None:
        """Counts of the sections read ahead; None: off."""
        return Speculation.of(self.config.engine, self.engine.limits.concurrency, training=self.training)

    async def play(
        self,
        entries: Sequence[Entry],
        *,
        out: Path | None = None,
        identity: Mapping[str, Any] | None = None,
        on_sample: Callable[[Sample], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> Samples:
        """Run every problem and return the samples, logged in `out`; finished ones come from that log."""
        await start_servers(self.engine)
        episodes, opened, roles = self._episodes(out, on_warning), None, self.roles
        if roles is None:
            roles = opened = await asyncio.to_thread(open_roles, self.config, self.engine.codec, self.engine.sampler)
        arena = Arena(
            sampler=self.engine.sampler,
            codec=self.engine.codec,
            grader=self.grader,
            sampling=self.config.eval_sampling,
            key=(self.config.seed, self.key),
            measure=self.measure,
            roles=roles.samplers,
            episodes=episodes,
            speculation=self.speculation,
            environment=roles.environment,
        )
        playing = play_entries(
            entries,
            arena,
            out=out,
            concurrency=self.engine.limits.concurrency,
            identity=identity,
            on_sample=on_sample,
            on_warning=on_warning,
        )
        return await (playing if opened is None else using(opened, playing))

    def _episodes(self, out: Path | None, warn: Callable[[str], None] | None) -> EpisodeFile | None:
        selection = self.config.evaluation.record
        if out is None or selection == "none":
            return None
        return EpisodeFile(out, selection, warn, self.engine.codec.digest)


def measures_of(config: RunConfig) -> Measure:
    """`measure_memory` with the configured roles, and the FLOPs of the configured model, if its shape is known."""
    return partial(measure_memory, model=config.model.path, roles=tuple(config.roles))


@lru_cache(maxsize=16)
def _shape(model: str) -> ModelShape | None:
    with suppress(ModelError):
        return shape_of(model)
    return None


def measure_memory(
    problem: Problem,
    trajectory: Trajectory,
    grade: Grade,
    texts: GroupTexts,
    *,
    model: str | None = None,
    roles: Sequence[str] = (),
) -> dict[str, float]:
    """Measures of an episode apart from its grade: copy fidelity, memory length, prunes, evidence position, costs..."""
    tools = tool_measures(trajectory)
    measured = memory_metrics(Group(problem, (trajectory,), (grade,)), texts) | tools | token_costs(trajectory, roles)
    if tools and model is not None and (shape := _shape(model)) is not None:
        measured["reuse_flops"] = shape.flops(tools["reuse_tokens"], tools["reuse_pairs"])
    return {name: value for name, value in measured.items() if value is not None} | evidence_position(problem)
