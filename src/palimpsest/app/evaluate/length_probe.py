"""Why accuracy falls with length: how often a read loses, invents or takes in a fact, by what is in sight."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.app.composition import Evaluator, fitted
from palimpsest.app.config_resolution import Agent, Model, Recipe, Remote, evaluation_config
from palimpsest.app.python_calls import Table, blocking, suitable_progress
from palimpsest.config.data import LONGEST
from palimpsest.config.load import Overrides
from palimpsest.config.schema import RunConfig
from palimpsest.data.sources.problem_source import build_source
from palimpsest.engines.open import open_engine, using
from palimpsest.errors import ConfigError
from palimpsest.evaluation.runner import EvalSet
from palimpsest.evaluation.statistics import wilson
from palimpsest.evaluation.summary import Score, score
from palimpsest.memory.registry import admit_all, build_policy, policy_class
from palimpsest.metrics.hazards import Hazards, Holds, Prediction, Sight, near_miss_share, predicted
from palimpsest.metrics.reading_trace import Texts
from palimpsest.progress.reporter import Progress
from palimpsest.reward.compose import build_reward
from palimpsest.reward.grading import closing
from palimpsest.types import Grade, Problem, Trajectory

CHUNKS = 64
LENGTHS = (4, 64, 256, 1024)
PROBLEMS = 64


@dataclass(frozen=True)
class Probe:
    """What single reads did in episodes of one length, and what accuracy follows at others."""

    config: RunConfig
    chunks: int
    hazards: Hazards
    measured: Score
    """Accuracy of the episodes that were played."""
    predictions: tuple[Prediction, ...]
    """Accuracy that the rates come to, by length, with its interval."""

    @property
    def expected(self) -> tuple[tuple[int, float | None], ...]:
        """(chunks, accuracy that the rates come to); None where the counted reads don't support it."""
        return tuple((each.sections, each.accuracy) for each in self.predictions)

    @property
    def told(self) -> list[str]:
        """A line for each length that isn't predicted, with the reads that it needs."""
        return [self._unsupported(each) for each in self.predictions if each.accuracy is None]

    def _unsupported(self, prediction: Prediction) -> str:
        reads, needed = self.hazards.transitions.total(), prediction.reads_needed
        line = f"{prediction.sections:,} chunks: not predicted, {reads:,} reads give {_range(prediction)} %"
        if needed is None:
            return f"{line}; probe longer documents (--chunks), as a state that it depends on was hardly counted"
        documents = math.ceil(sum(self.hazards.answers.values()) * needed / reads)
        return f"{line}; about {needed:,} reads are needed (--limit {documents} --chunks {self.chunks})"

    @property
    def table(self) -> Table:
        """A row a state; shares of its reads, with the ends of the 95% interval of the worst of them."""
        return Table.of([_row(self.hazards, before, sight) for before in Holds for sight in Sight])

    def to_json(self) -> dict[str, Any]:
        """Counts and figures; `accuracy` of the episodes played, `expected` by chunks."""
        return {
            "model": self.config.model.path,
            "policy": self.config.policy.name,
            "chunks": self.chunks,
            "episodes": sum(self.hazards.answers.values()),
            "accuracy": self.measured.mean,
            "accuracy_low": self.measured.low,
            "accuracy_high": self.measured.high,
            "states": [dict(row) for row in self.table],
            "expected": {str(each.sections): each.accuracy for each in self.predictions},
            "expected_low": {str(each.sections): each.low for each in self.predictions},
            "expected_high": {str(each.sections): each.high for each in self.predictions},
            "reads": self.hazards.transitions.total(),
            "reads_needed": {str(each.sections): each.reads_needed for each in self.predictions if each.reads_needed},
        }

    def __repr__(self) -> str:
        rows = [
            {"chunks": each.sections, "expected accuracy": each.accuracy, "low": each.low, "high": each.high}
            for each in self.predictions
        ]
        title = f"Probe of {self.config.policy.name}, model {self.config.model.path}"
        return "\n".join([title, str(self.table), str(Table.of(rows)), *self.told])


def _range(prediction: Prediction) -> str:
    return f"{100 * prediction.low:.0f} to {100 * prediction.high:.0f}"


def _row(hazards: Hazards, before: Holds, sight: Sight) -> dict[str, Any]:
    reads = hazards.reads(before, sight)
    row: dict[str, Any] = {"memory holds": str(before), "in sight": str(sight), "reads": reads}
    if not reads:
        return row
    wrong = reads - hazards.transitions[before, sight, before.wanted(sight)]
    low, high = wilson(wrong, reads)
    return {
        **row,
        **{f"-> {after}": hazards.rate(before, sight, after) for after in Holds},
        "wrong": wrong / reads,
        "low": round(low, 5),
        "high": round(high, 5),
        "any invention": hazards.unsupported[before, sight] / reads,
    }


async def probe_async(
    model: Model = "embedded",
    *,
    chunks: int = CHUNKS,
    lengths: Sequence[int] = LENGTHS,
    limit: int = PROBLEMS,
    policy: str | None = None,
    recipe: Recipe | None = None,
    overrides: Overrides = (),
    seed: int = 0,
    base_url: str | None = None,
    api_key_env: str | None = None,
    tokenizer: str | Path | None = None,
    quiet: bool = False,
    progress: Progress | None = None,
) -> Probe:
    """Play synthetic documents of `chunks` paragraphs and count what each read did to the evidence in its memory.

    From these rates follows the accuracy at other lengths with its interval (metrics/hazards.py); one whose
    interval is wider than 50 points isn't predicted. `lengths` are in paragraphs, too. `model`, `policy`, `recipe`,
    `overrides`, `seed`, `base_url`, `api_key_env` and `tokenizer` are those of `evaluate`; `limit`: documents.

    `probe` is an ordinary call and works in a notebook; `probe_async` is to be awaited.
    Raises ConfigError, DataError or ModelError, each in a line that names key, value and fix.
    """
    for name, numbers in (("chunks", (chunks,)), ("lengths", lengths), ("limit", (limit,))):
        if not numbers or any(type(number) is not int or number < 1 for number in numbers):
            raise ConfigError(f"probe: {name}={list(numbers)}: expected whole numbers of at least 1")
        if name != "limit" and max(numbers) > LONGEST:
            raise ConfigError(f"probe: {name}={list(numbers)}: a document has {LONGEST:,} chunks at the most")
    remote = Remote.named(base_url, api_key_env, tokenizer)
    config = evaluation_config(Agent(model, policy, recipe, overrides, seed, remote), data="synthetic", limit=limit)
    if not policy_class(config.policy.name).reads_documents:
        raise _nothing_to_count(config)
    source = build_source(config.data, split="eval")
    problems = source.problems(step=0, count=limit, size=chunks)
    counted, values, played = await _play(config, problems, progress or suitable_progress(quiet=quiet))
    if not counted.transitions:
        raise _nothing_to_count(config)
    hops = config.data.synthetic.hops
    predictions = tuple(
        predicted(counted, length, near_miss_share(source.problems(step=0, count=limit, size=length)), hops)
        for length in sorted(set(lengths))
    )
    return Probe(played, chunks, counted, score(values), predictions)


probe = blocking(probe_async)


def _nothing_to_count(config: RunConfig) -> ConfigError:
    return ConfigError(
        f"policy.name={config.policy.name}: writes no memory while reading, so there is nothing to count; "
        "probe a policy that reads section by section, such as overwrite or recall"
    )


async def _play(
    config: RunConfig, problems: list[Problem], progress: Progress
) -> tuple[Hazards, list[float], RunConfig]:
    """Counts, values of the graded episodes, and the configuration with its budgets."""
    engine = await asyncio.to_thread(open_engine, config, objective=None)
    window, codec = engine.sampler.max_context, engine.codec
    chosen = fitted(config.policy, problems=problems, codec=codec, max_context=window)
    config = config.model_copy(update={"policy": chosen})
    policy = build_policy(config.policy)
    admit_all(policy, problems, codec, window)
    hazards = Hazards()

    def count(problem: Problem, trajectory: Trajectory, grade: Grade, texts: Texts) -> dict[str, float]:
        hazards.add(problem, trajectory, bool(grade.value), texts)
        return {}

    reward = build_reward(config.reward, codec)
    evaluator = Evaluator(config, engine, reward.answer, measure=count)
    with progress.count("episodes", len(problems)) as tick:
        playing = evaluator.play([EvalSet("probe", problems, policy)], on_sample=lambda _: tick())
        samples = await using(engine, closing(reward, playing))
    return hazards, [sample.value for sample in samples.values() if sample.value is not None], config
