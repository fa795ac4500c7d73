"""Regrading: the recorded answers of an evaluation under another reward, without a model (`eval --regrade DIR`).

It grades the answers in samples.jsonl again and writes a new evaluation, by default to

    DIR/regraded/NAME      samples.jsonl, evaluation.json and summary.json, as `palimpsest eval` writes them

`palimpsest compare DIR DIR/regraded/NAME` shows what the reward changes. DIR/judge.jsonl caches the verdicts of a
judge, also for the evaluation. Like every evaluation, it omits reward layers (penalties on turns).

Guaranteed: the same reward gives the same values as in the evaluation; the same call again writes the same files; other
folders than a regrading are never overwritten; a sample without a grade (lost episode, no gold) stays ungraded with its
reason.
Not covered: rewards that need more than the answer, such as custom ones, which are rejected by name: the log contains
no turns, memories or events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.app.config_resolution import Model, model_folder
from palimpsest.app.evaluate.evaluation_result import Evaluation
from palimpsest.config.load import Overrides, parse_config, split_overrides
from palimpsest.config.reward import JUDGE_OPERATION, REWARDS, RewardConfig
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, DataError, RunError
from palimpsest.evaluation.comparison import REGRADED
from palimpsest.evaluation.sample_log import (
    IDENTITY,
    SAMPLES,
    SUMMARY,
    Sample,
    encoded,
    read_identity,
    read_log,
    read_object,
    write_json,
)
from palimpsest.evaluation.summary import EvalSummary, by_player, summarise
from palimpsest.notes import Note
from palimpsest.progress.reporter import Progress
from palimpsest.reward.grading import NO_GOLD, Grades, closing, graded, shipped_answer, training_layers
from palimpsest.types import Outcome, Problem, Question, Trajectory

_AT_ONCE = 256  # concurrent gradings; a judge bounds its own requests
UNSET_URL = "http://unset.invalid/v1"
"""Placeholder for a judge's address, which an evaluation's identity omits."""


async def regrade(
    folder: Path, overrides: Overrides, *, model: Model | None = None, out: Path | None, progress: Progress
) -> Evaluation:
    """Grade the evaluation in `folder` under another reward.

    `overrides`: dotted keys of `reward`; `model`: the expected model. Raises ConfigError, DataError or RunError.
    """
    if not (folder / SAMPLES).is_file():
        raise RunError(f"{folder}: {SAMPLES} is missing: pass the --out of palimpsest eval")
    logged, identity = read_log(folder), read_identity(folder)
    if not logged.samples or (logged.unreadable and logged.missing):
        lost = f"{logged.unreadable} unreadable lines" if logged.unreadable else "no episode has ended yet"
        raise RunError(f"{folder / SAMPLES}: {lost}; run the same palimpsest eval again first")
    config = _config(folder, identity, overrides)
    if model is not None and model_folder(model, progress.message) != config.model.path:
        raise ConfigError(f"--regrade {folder}: its model is {config.model.path}, not {model}; omit the model")
    for line in logged.notes(folder):
        progress.message(line)
    _check(config.reward, logged.samples)
    if layers := training_layers(config.reward):
        progress.message(Note("layers_left_out", layers=", ".join(layers)))
    name = config.reward.name
    match = f"-{config.reward.final_answer.match}" if name == "final_answer" else ""
    out = out or folder / REGRADED / f"{name}{match}"
    if out.is_dir() and any(out.iterdir()) and REGRADED not in (read_object(out / IDENTITY) or {}):
        raise RunError(f"{out}: not a regrading: use another --out")
    samples = await _regraded(logged.samples, config.reward, folder)
    evaluation = Evaluation(
        config=config,
        summaries=_summaries([sample for sample in samples if not sample.baseline], list(identity.get("policies", ()))),
        samples=tuple(sample for sample in samples if not sample.baseline),
        out=out,
        baselines=_summaries([sample for sample in samples if sample.baseline]),
        baseline_samples=tuple(sample for sample in samples if sample.baseline),
        regraded=folder,
    )
    _write(evaluation, identity, [*evaluation.samples, *evaluation.baseline_samples])
    return evaluation


def _config(folder: Path, identity: Mapping[str, Any], overrides: Overrides) -> RunConfig:
    """The evaluation's configuration with overrides of its reward; another `reward.name` starts from its defaults."""
    changes = {key: value for key, value, _ in split_overrides(overrides)}
    if strays := [key for key in changes if key.partition(".")[0] != "reward"]:
        raise ConfigError(f"--regrade: {strays[0]} is not a key of reward; drop it")
    reward = dict(identity.get("reward", {}))
    if changes.get("reward.name", reward.get("name")) != reward.get("name"):
        reward = {}
    sections = {
        "policy": next(iter(identity.get("policies", {}).values()), {}),
        "model": {"path": (read_object(folder / SUMMARY) or {}).get("model", "embedded")},
    }
    config = identified(sections, {**identity, "reward": reward}, folder, changes)
    layers = [layer.partition("=")[0] for layer in training_layers(config.reward)]
    if named := [key for key in changes if any(key == layer or key.startswith(f"{layer}.") for layer in layers)]:
        raise ConfigError(f"{named[0]}: applies only in training, never in an evaluation's grade; drop it")
    if config.reward.judge and config.reward.judge.url == UNSET_URL:
        raise ConfigError(f"{folder}: doesn't store its judge's address: set reward.judge.url=http://HOST:PORT/v1")
    return config


def identified(
    sections: Mapping[str, Any], identity: Mapping[str, Any], folder: Path, overrides: Overrides = ()
) -> RunConfig:
    """`sections` with those that the identity of the evaluation in `folder` has; a judge gets a placeholder address."""
    reward = dict(identity.get("reward", {}))
    if isinstance(judge := reward.get("judge"), dict):
        reward["judge"] = {"url": UNSET_URL, **judge}
    stored = {"data": identity.get("data", {}), "reward": reward, "eval_sampling": identity.get("sampling", {})}
    stored |= {"environment": identity["environment"]} if "environment" in identity else {}
    values = {**sections, **stored, "seed": identity.get("seed", 0)}
    return parse_config(json.dumps(values), name=str(folder / IDENTITY), overrides=overrides, read_files=False)


def _check(config: RewardConfig, samples: Sequence[Sample]) -> None:
    """Reject a reward that needs more than `samples` contain."""
    if config.name not in REWARDS or config.name == "environment":
        why = "a custom reward may read" if config.name not in REWARDS else "an environment's rewards are events of"
        raise ConfigError(
            f"reward.name={config.name}: {why} the trajectory, which {SAMPLES} doesn't contain; use another reward, "
            "or evaluate again without --regrade"
        )
    several = next((sample for sample in samples if _asks_several(sample)), None)
    if config.name == "final_answer" and several is not None:
        raise DataError(
            f"reward.name=final_answer: {several.set}, {several.id} has several questions with separate golds "
            f"(metadata.objectives), which {SAMPLES} doesn't contain; evaluate again without --regrade"
        )


def _asks_several(sample: Sample) -> bool:
    """True if one answer serves several questions of a search problem, by the log."""
    return (sample.unit == "objectives" and sample.size != 1) or sample.metrics.get("objectives", 1) > 1


async def _regraded(samples: Sequence[Sample], config: RewardConfig, folder: Path) -> list[Sample]:
    """`samples` with value, metrics and reason by `config`; `folder` caches verdicts."""
    grader, places = shipped_answer(config, folder), asyncio.Semaphore(_AT_ONCE)

    async def one(sample: Sample) -> Sample:
        async with places:
            return await _regraded_one(sample, grader)

    async def work() -> list[Sample]:
        return await asyncio.gather(*map(one, samples))

    return await closing(grader, work())


async def _regraded_one(sample: Sample, grader: Grades) -> Sample:
    if sample.without_gold:
        return replace(sample, value=None, metrics={}, reason=NO_GOLD)
    if not Outcome(sample.outcome).gradable:
        return replace(sample, value=None, metrics={})
    grade = await graded(grader, *_episode(sample))
    questions = [
        {**item, "value": grade.breakdown.get(f"question_{number}")} for number, item in enumerate(sample.questions, 1)
    ]
    return replace(sample, value=grade.value, metrics=dict(grade.breakdown), reason=grade.reason, questions=questions)


def _episode(sample: Sample) -> tuple[Problem, Trajectory]:
    """The parts of an episode that graders of answers read."""
    questions = tuple(Question(question["question"], tuple(question["answers"])) for question in sample.questions)
    asked = questions or (Question(sample.question, sample.answers),)
    problem = Problem.asking(sample.id, asked, metadata=sample.grading)
    answers = tuple(question["answer"] for question in sample.questions)
    outcome = Outcome(sample.outcome)
    return problem, Trajectory(sample.id, sample.group_id, 0, (), outcome, sample.answer, answers=answers)


def _summaries(samples: Sequence[Sample], players: Sequence[str] = ()) -> tuple[EvalSummary, ...]:
    """Figures of each cell: `players` in order, each from short to long."""
    cells = {cell: [s for s in samples if s.cell == cell] for cell in dict.fromkeys(s.cell for s in samples)}
    summaries = [summarise(cell, group, drawn=1 + max(s.draw for s in group)) for cell, group in cells.items()]
    return by_player(summaries, players)


def _write(evaluation: Evaluation, identity: Mapping[str, Any], samples: Sequence[Sample]) -> None:
    """Write the evaluation's files, summary.json last: a folder with it is complete."""
    out, folder = evaluation.out, evaluation.regraded
    assert out is not None
    assert folder is not None
    out.mkdir(parents=True, exist_ok=True)
    reward = evaluation.config.reward.model_dump(
        mode="json", exclude={"judge": set(JUDGE_OPERATION), "timeout_s": True}
    )
    origin = {"folder": str(folder), "samples_sha256": files.sha256(folder / SAMPLES)}
    write_json(out / IDENTITY, {**identity, "reward": reward, REGRADED: origin})
    files.write_file(out / SAMPLES, b"".join(map(encoded, samples)))
    write_json(out / SUMMARY, evaluation.to_json())
