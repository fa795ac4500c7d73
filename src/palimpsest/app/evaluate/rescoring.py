"""Rescoring of a finished evaluation under another reward, without a model: `palimpsest rescore`.

The answers in samples.jsonl are graded again. The original evaluation stays unchanged, and the new one is written to

    DIR/rescored/NAME/samples.jsonl      the same episodes with the new values and metrics
    DIR/rescored/NAME/evaluation.json    the old identity with the new reward, and the SHA-256 of the log it comes from
    DIR/rescored/NAME/summary.json       figures, as `palimpsest eval` writes them

so that `palimpsest compare DIR DIR/rescored/NAME` shows what the metric changes. Verdicts of a judge are cached in
DIR/judge.jsonl, which the evaluation uses too; none is requested twice. Reward layers (penalties on turns) are left
out, as in every evaluation.

Guaranteed: the same reward gives the same values as in the evaluation; the same call again writes the same files; a
folder that is no rescoring is never overwritten; a sample without a grade (lost episode, no gold) stays ungraded with
its reason.
Not covered: rewards that need more than the answer, which are rejected by name, such as custom ones: the log holds no
turns, memories or events.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from palimpsest import files
from palimpsest.app.python_calls import Table, blocking
from palimpsest.config.load import Overrides, parse_config, split_overrides
from palimpsest.config.reward import JUDGE_OPERATION, RewardConfig
from palimpsest.errors import ConfigError, DataError, RunError
from palimpsest.evaluation.comparison import RESCORED
from palimpsest.evaluation.sample_log import (
    IDENTITY,
    SAMPLES,
    SUMMARY,
    Sample,
    encoded,
    not_asked_told,
    read_identity,
    read_log,
    write_json,
)
from palimpsest.evaluation.summary import EvalSummary, interval_notes, summarise
from palimpsest.plugins import is_own
from palimpsest.reward.compose import shipped_answer, training_layers
from palimpsest.reward.grading import NO_GOLD, Grades, closing, graded
from palimpsest.types import Outcome, Problem, Question, Trajectory

# ---- Grading of recorded answers -----------------------------------------------------------------------------


_AT_ONCE = 256  # gradings under way; a judge bounds its own requests


UNSET_URL = "http://unset.invalid/v1"
"""Stands for the address of a judge, which is no part of an evaluation's identity."""


def with_judge_address(stored: Mapping[str, Any]) -> dict[str, Any]:
    """`stored` with an address where it has a judge."""
    judge = stored.get("judge")
    return {**stored, "judge": {"url": UNSET_URL, **judge}} if isinstance(judge, dict) else dict(stored)


def check_regradable(config: RewardConfig, samples: Sequence[Sample] = ()) -> None:
    """Refuse a reward that needs more than what `samples` hold; layers, which are training's alone, don't count.
    Raises ConfigError or DataError."""
    if is_own(config.name):
        raise ConfigError(
            f"reward.name={config.name}: a reward of your own may read the trajectory, which samples.jsonl doesn't "
            "hold; give a shipped reward, or play again with palimpsest eval"
        )
    several = next((sample for sample in samples if _objectives(sample) > 1), None)
    if config.name == "final_answer" and several is not None:
        raise DataError(
            f"reward.name=final_answer: {several.name}, {several.id} asks {_objectives(several):g} questions with "
            "golds of their own (metadata.objectives), which samples.jsonl doesn't hold; run palimpsest eval again"
        )


def _objectives(sample: Sample) -> float:
    """How many questions of a search problem one answer had to serve, as far as the log tells."""
    named = re.search(r"\b(\d+) objectives?\b", sample.name)
    return max(sample.metrics.get("objectives", 1.0), float(named[1]) if named else 1.0)


async def regraded(samples: Sequence[Sample], config: RewardConfig, folder: Path | None) -> list[Sample]:
    """`samples` with the value, the metrics and the reason that `config` gives them; verdicts are kept in `folder`."""
    check_regradable(config, samples)
    grader = shipped_answer(config, folder)
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(sample: Sample) -> Sample:
        async with places:
            return await _regraded(sample, grader)

    async def work() -> list[Sample]:
        return await asyncio.gather(*map(one, samples))

    return await closing(grader, work())


async def _regraded(sample: Sample, grader: Grades) -> Sample:
    if sample.without_gold:
        return replace(sample, value=None, metrics={}, reason=NO_GOLD)
    if not Outcome(sample.outcome).gradable:
        return replace(sample, value=None, metrics={})
    problem, trajectory = _episode(sample)
    grade = await graded(grader, problem, trajectory)
    return replace(
        sample,
        value=grade.value,
        metrics=dict(grade.breakdown),
        reason=grade.reason,
        questions=[
            {**each, "value": grade.breakdown.get(f"question_{number}")}
            for number, each in enumerate(sample.questions, 1)
        ],
    )


def _episode(sample: Sample) -> tuple[Problem, Trajectory]:
    """What graders of answers look at."""
    asked = tuple(Question(each["question"], tuple(each["answers"])) for each in sample.questions)
    problem = Problem.asking(sample.id, asked) if asked else Problem(sample.id, sample.question, sample.answers)
    answers = tuple(each["answer"] for each in sample.questions)
    outcome = Outcome(sample.outcome)
    return problem, Trajectory(sample.id, sample.name, 0, (), outcome, sample.answer, answers=answers)


def summaries_by_set(samples: Sequence[Sample], policies: Sequence[str] = ()) -> tuple[EvalSummary, ...]:
    """Figures of each set: the agents' by policy, of several in the order of `policies`, each from short to long; then
    those of each baseline."""
    sets: dict[str, list[Sample]] = {}
    for sample in samples:
        sets.setdefault(sample.name, []).append(sample)
    baselines = {name: own[0].baseline or "" for name, own in sets.items()}
    figures = [summarise(name, own, drawn=1 + max(each.draw for each in own)) for name, own in sets.items()]
    order = {name: next((at for at, own in enumerate(policies) if name.startswith(f"{own}, ")), 0) for name in sets}
    return tuple(sorted(figures, key=lambda each: (baselines[each.name], order[each.name], each.length)))


# ---- Rescoring of an evaluation's folder ---------------------------------------------------------------------


@dataclass(frozen=True)
class Rescoring:
    """An old log under a reward, beside what it was."""

    reward: RewardConfig
    samples: tuple[Sample, ...]
    before: tuple[EvalSummary, ...]
    """As the log has it, a set each."""
    summaries: tuple[EvalSummary, ...]
    """Under the reward."""
    out: Path
    notes: tuple[str, ...] = ()
    """What was left out, and what the log lacks."""

    @property
    def told(self) -> list[str]:
        """Footnotes of the table."""
        return [*self.notes, *interval_notes(self.summaries)]

    @property
    def table(self) -> Table:
        """A row a set; shares. `logged` is what the evaluation said, `accuracy` what the reward gives."""
        rows: list[dict[str, Any]] = []
        for old, new in zip(self.before, self.summaries, strict=True):
            row = {
                "": new.name,
                "problems": new.problems,
                "ungraded": new.ungraded or None,
                "logged": old.accuracy.mean,
                "accuracy": new.accuracy.mean,
                "low": new.accuracy.low,
                "high": new.accuracy.high,
            }
            rows.append({key: value for key, value in row.items() if value is not None})
        return Table.of(rows)

    def __repr__(self) -> str:
        return "\n".join([f"{self.out}", str(self.table), *self.told])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.table._repr_html_()


async def rescore_async(
    folder: str | Path,
    overrides: Overrides = (),
    *,
    name: str | None = None,
    quiet: bool = False,
) -> Rescoring:
    """Grade the episodes of an evaluation anew, under another reward, without its model.

    - `folder`: what `palimpsest eval --out` wrote
    - `overrides`: dotted keys of `reward`, as texts or as a mapping; without them the reward it had
    - `name`: of the folder under `folder`/rescored; by default after the reward
    - `quiet`: as in the other calls; nothing is shown in any case

    Raises ConfigError, DataError or RunError in a line.
    """
    folder = Path(folder)
    samples, identity, notes = _read(folder)
    config = _reward(folder, identity, overrides)
    check_regradable(config, samples)
    out = folder / RESCORED / _name(name or _default_name(config))
    _check_out(out)
    graded = await regraded(samples, config, folder)
    if layers := training_layers(config):
        notes.append(f"left out, as they count in training alone: {', '.join(layers)}")
    policies = list(identity.get("policies") or ())
    before, now = summaries_by_set(samples, policies), summaries_by_set(graded, policies)
    rescoring = Rescoring(config, tuple(graded), before, now, out, tuple(notes))
    _write(rescoring, folder, identity)
    return rescoring


rescore = blocking(rescore_async)


def _read(folder: Path) -> tuple[list[Sample], dict[str, Any], list[str]]:
    """Samples, identity, and what is to be said of them. Raises RunError."""
    if not (folder / SAMPLES).is_file():
        raise RunError(f"{folder}: holds no {SAMPLES}: give the --out of palimpsest eval")
    logged = read_log(folder)
    samples, unreadable = logged.samples, logged.unreadable
    lost = f"{folder / SAMPLES}: {unreadable} lines can't be read"
    if unreadable and not _is_whole(folder, samples):
        raise RunError(f"{lost}; run the same palimpsest eval again first")
    notes = [f"{lost}; every episode of {SUMMARY} is in others"] if unreadable else []
    if logged.not_asked:
        notes.append(f"{folder}: {not_asked_told(logged.not_asked)}")
    if not samples:
        raise RunError(f"{folder / SAMPLES}: no episode has ended yet; run the same palimpsest eval again first")
    identity = read_identity(folder)
    if not identity:
        notes.append(f"{folder / IDENTITY}: is not there, so what was played, and by which reward, isn't known")
    return samples, identity, notes


def _is_whole(folder: Path, samples: Sequence[Sample]) -> bool:
    """Whether every episode is there that the evaluation's figures are of."""
    try:
        summary = json.loads((folder / SUMMARY).read_text("utf-8"))
        rows = [*summary["evaluations"], *summary["baselines"]]
        drawn = {row["name"]: row["samples"] for row in rows}
        expected = Counter({row["name"]: row["problems"] * row["samples"] for row in rows})
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
    return expected <= Counter(sample.name for sample in samples if sample.draw < drawn.get(sample.name, 0))


def _reward(folder: Path, identity: Mapping[str, Any], overrides: Overrides) -> RewardConfig:
    """That of the evaluation with overrides; another `reward.name` begins with that one's defaults."""
    changes = {key: value for key, value, _ in split_overrides(overrides)}
    if strays := [key for key in changes if key.partition(".")[0] != "reward"]:
        raise ConfigError(f"rescore: {strays[0]} is no key of reward, and nothing is played; drop it")
    stored = dict(identity.get("reward") or {})
    if changes.get("reward.name", stored.get("name")) != stored.get("name"):
        stored = {}
    text = yaml.safe_dump({"reward": with_judge_address(stored)})
    config = parse_config(text, name=str(folder / IDENTITY), overrides=changes).reward
    if layers := [each for each in training_layers(config) if _is_changed(each.partition("=")[0], changes)]:
        raise ConfigError(f"{layers[0]}: counts in training alone, never in an evaluation's grade; drop it")
    if config.judge and config.judge.url == UNSET_URL:
        raise ConfigError(f"{folder}: its judge's address isn't kept: give --set reward.judge.url=http://HOST:PORT/v1")
    return config


def _is_changed(layer: str, changes: Mapping[str, Any]) -> bool:
    return any(key == layer or key.startswith(f"{layer}.") for key in changes)


def _default_name(config: RewardConfig) -> str:
    parts = [config.name, "strict" if config.strict else ""]
    if config.name == "final_answer":
        parts.append(config.final_answer.match)
    if config.name == "sub_em" and config.sub_em != "gold_in_answer":
        parts.append(config.sub_em)
    return "-".join(part for part in parts if part)


def _name(name: str) -> str:
    if Path(name).name != name or name.startswith("."):
        raise ConfigError(f"--name {name}: give the name of a folder, without a path")
    return name


def _check_out(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()):
        try:
            known = RESCORED in json.loads((out / IDENTITY).read_text("utf-8"))
        except (OSError, ValueError):
            known = False
        if not known:
            raise RunError(f"{out}: holds something else than a rescoring: give another --name")


def _write(rescoring: Rescoring, folder: Path, identity: Mapping[str, Any]) -> None:
    """summary.json last: a folder that has it is whole."""
    out = rescoring.out
    out.mkdir(parents=True, exist_ok=True)
    origin = {"samples_sha256": files.sha256(folder / SAMPLES)}
    told = rescoring.reward.model_dump(mode="json", exclude={"judge": set(JUDGE_OPERATION), "timeout_s": True})
    write_json(out / IDENTITY, {**identity, "reward": told, RESCORED: origin})
    files.write_file(out / SAMPLES, b"".join(map(encoded, rescoring.samples)))
    baselines = {sample.name for sample in rescoring.samples if sample.baseline is not None}
    rows = [each.to_json() for each in rescoring.summaries]
    summary = {
        "rescored_from": str(folder),
        "reward": rescoring.reward.name,
        "evaluations": [row for row in rows if row["name"] not in baselines],
        "baselines": [row for row in rows if row["name"] in baselines],
    }
    write_json(out / SUMMARY, summary)
