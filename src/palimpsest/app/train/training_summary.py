"""Training summary: the gain by the run's log, and the commands that come next.

    held out    the first and the last evaluation of `train.eval_steps`, if it measured
    otherwise   the mean reward of the first and of the last steps, with the spread between steps as noise: Welch's
                t interval of the difference (Welch 1947), 95%, over at least 5 steps at each end

Not covered: dependence between steps, which the interval treats as independent; a gain over the untrained agent, which
needs an evaluation of both (`quickstart` has one).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from statistics import fmean, variance
from typing import Any

from palimpsest.app.python_objects import objects_in
from palimpsest.config.engine import model_path
from palimpsest.config.load import dump_config
from palimpsest.config.schema import RunConfig
from palimpsest.evaluation.statistics import student, wilson
from palimpsest.metrics.reading_trace import GroupTexts, memories
from palimpsest.provenance import facts
from palimpsest.report.page import ToldStory, contrasting_stories, view_command
from palimpsest.report.run_reports import ToldEpisode, TrainingResults, write_training_report
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.jsonl_rows import read_rows, whole, with_number
from palimpsest.runs.resume_rules import longer, made_with, reached, resume_command
from palimpsest.runs.run_folder import METRICS
from palimpsest.text.answers import unboxed
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group, Problem, Trajectory

Row = Mapping[str, Any]
ENDS = 10  # compared steps at each end, at most
LEAST = 5  # at least


def training_results(folder: Path, config: RunConfig) -> TrainingResults:
    """Contents of the report of the run in `folder`."""
    rows = read_rows(folder / METRICS)
    rewarded = with_number(rows, "reward/mean")
    return TrainingResults(
        title=f"{config.recipe}: {len(rows)} of {config.train.max_steps} steps",
        gain=f"{gained(rows, config)} {ungraded(rows, config)}".strip(),
        facts=[
            ("seed", str(config.seed)),
            ("model", config.model.path),
            ("policy", config.policy.name),
            *facts(made_with(folder)),
        ],
        rows=rewarded,
        sizes=[whole(row, "curriculum/chunks", 1) for row in rewarded],
        episodes=_episodes(folder, config),
        next_steps=next_steps(folder, config, len(rows)),
        config=dump_config(config),
        stories=told_of_last_step(folder, config),
        look=view_command(folder),
    )


def report_training(folder: Path, config: RunConfig) -> TrainingResults:
    """Write report.html of the run in `folder`."""
    results = training_results(folder, config)
    write_training_report(folder, results)
    return results


def gained(rows: Sequence[Row], config: RunConfig) -> str:
    """One sentence on the gain.

    >>> rows = [{"step": step, "reward/mean": 0.25 + 0.125 * (step > 1)} for step in (1, 2)]
    >>> gained(rows, RunConfig())
    'Reward 0.25 in step 1, 0.38 in step 2: too few steps to tell gain from noise.'
    """
    held_out = with_number(rows, "eval/accuracy")
    if len(held_out) > 1 and not all(0 <= row["eval/accuracy"] <= 1 for row in held_out):
        pair = ", ".join(f"{row['eval/accuracy']:.2f} after step {row['step']}" for row in (held_out[0], held_out[-1]))
        return f"Held-out reward {pair}: beyond 0 to 1, so its noise is unknown."
    if len(held_out) > 1:
        first, last = (_held_out(row, config) for row in (held_out[0], held_out[-1]))
        texts = [
            f"{row['eval/accuracy']:.2f} [{low:.2f}, {high:.2f}] after step {row['step']}"
            for row, (low, high) in ((held_out[0], first), (held_out[-1], last))
        ]
        return f"Held-out accuracy {', '.join(texts)}: {_verdict(last[0] - first[1], last[1] - first[0])}."
    rewarded = with_number(rows, "reward/mean")
    if not rewarded:
        return "No step has a reward."
    rewarded, of_size = _of_last_size(rewarded)
    ends = min(ENDS, len(rewarded) // 2)
    if ends < LEAST:
        pair = ", ".join(f"{row['reward/mean']:.2f} in step {row['step']}" for row in (rewarded[0], rewarded[-1]))
        return f"Reward{of_size} {pair}: too few steps to tell gain from noise."
    return f"Reward{of_size} {_rewards(rewarded[:ends], rewarded[-ends:])}."


def ungraded(rows: Sequence[Row], config: RunConfig) -> str:
    """One sentence on episodes without a grade; empty if all have one.

    >>> ungraded([{"reward/ungraded": 3.0, "groups/played": 2.0}], RunConfig(train={"group_size": 4}))
    '3 of 8 episodes had no grade and are in no figure.'
    """
    missing = sum(whole(row, "reward/ungraded", 0) for row in rows)
    played = sum(whole(row, "groups/played", 0) for row in rows) * config.train.group_size
    return f"{missing} of {played} episodes had no grade and are in no figure." if missing else ""


def _held_out(row: Row, config: RunConfig) -> tuple[float, float]:
    """95% interval. Counts each problem once, as samples of one problem depend on each other."""
    problems = whole(row, "eval/problems", config.evaluation.problems)  # a file may have fewer
    counted = max(1, problems - whole(row, "eval/ungraded", 0) // config.eval_draws)
    return wilson(row["eval/accuracy"] * counted, counted)


def _rewards(first: Sequence[Row], last: Sequence[Row]) -> str:
    before, after = ([float(row["reward/mean"]) for row in rows] for rows in (first, last))
    where = [f"in steps {rows[0]['step']} to {rows[-1]['step']}" for rows in (first, last)]
    low, high = welch(before, after)
    return (
        f"{fmean(before):.2f} {where[0]}, {fmean(after):.2f} {where[1]}, "
        f"a difference of {fmean(after) - fmean(before):.2f} [{low:.2f}, {high:.2f}]: {_verdict(low, high)}"
    )


def welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """95% interval of mean(after) - mean(before), of LEAST to ENDS values each (Welch 1947).

    Degrees of freedom are rounded down, which widens it slightly. Without spread its width is 0: five equal values
    against five others are 1 of 126 partitions.
    """
    errors = [variance(values) / len(values) for values in (before, after)]
    difference, error = fmean(after) - fmean(before), sum(errors)
    if not error:
        return difference, difference
    shares = [share / error for share in errors]
    freedom = 1 / sum(s**2 / (len(values) - 1) for s, values in zip(shares, (before, after), strict=True))
    off = student(int(freedom + 1e-9)) * math.sqrt(error)
    return difference - off, difference + off


def _verdict(low: float, high: float) -> str:
    return "a gain beyond noise" if low > 0 else "a loss beyond noise" if high < 0 else "no change beyond noise"


def _of_last_size(rows: list[Row]) -> tuple[list[Row], str]:
    """Rows with problems as large as the last ones, and that size if a curriculum made them grow.

    Larger problems lower the reward, which says nothing about learning.
    """
    sizes = [whole(row, "curriculum/chunks", 0) for row in rows]
    if len(set(sizes)) < 2:
        return rows, ""
    same = [row for row, size in zip(rows, sizes, strict=True) if size == sizes[-1]]
    return same, f" at {sizes[-1]} chunks, after {sizes[0]},"


def next_steps(folder: Path, config: RunConfig, done: int) -> list[str]:
    """Commands that continue from here; Python calls for a run with Python objects."""
    more = longer(config, done) if reached(config, done, read_rows(folder / METRICS)) else {}
    measure = _measuring_call(folder, config) if objects_in(config) else _measuring_command(folder, config)
    return [measure, f"{resume_command(folder, **more)}     # train on"]


_SIZES = {"synthetic": ("chunks", (1, 4, 16, 64)), "synthetic_search": ("objectives", (1, 2, 4, 8))}
_BEYOND = "evaluate it, beyond its training data"


def _measuring_command(folder: Path, config: RunConfig) -> str:
    name, numbers = _SIZES.get(str(config.data.train_files), ("", ()))
    sizes = f" --{name} {','.join(map(str, numbers))}" if name else ""
    held_out = sizes or config.data.val_files is not None
    what = _BEYOND if held_out else "add --data: these are its training problems"
    run = quote(str(folder))
    return f"palimpsest eval {run}{sizes} --out {run}/eval     # {what}"


def _measuring_call(folder: Path, config: RunConfig) -> str:
    """Call of `palimpsest.evaluate` with the objects, and with problems if none are held out."""
    name, numbers = _SIZES.get(str(config.data.train_files), ("", ()))
    held_out = name or config.data.val_files is not None
    objects = [f"{argument}=..." for argument in objects_in(config) if argument in ("reward", "policy")]
    arguments = [
        repr(str(folder)),
        *([] if held_out else ["data=[...]"]),
        *objects,
        *([f"{name}={list(numbers)}"] if name else []),
        f"out={str(folder / 'eval')!r}",
    ]
    what = _BEYOND if held_out else "with problems outside its training data"
    return f"palimpsest.evaluate({', '.join(arguments)})     # {what}"


def told_of_last_step(folder: Path, config: RunConfig) -> list[ToldStory]:
    """A failure of the last recorded step, memory by memory, next to a success on the same problem if one exists."""
    groups = _last_groups(folder)
    return contrasting_stories(groups, Codec.load(model_path(config.model))) if groups else []


def _last_groups(folder: Path) -> tuple[Group, ...]:
    records = sorted((folder / "trajectories").glob("step-*.jsonl.zst"))
    return read_groups(records[-1]).groups if records else ()


def _episodes(folder: Path, config: RunConfig) -> list[ToldEpisode]:
    """The best, the median and the worst episode of the last recorded step, of different problems where possible."""
    groups = _last_groups(folder)
    if not groups:
        return []
    texts = GroupTexts(Codec.load(model_path(config.model)))
    graded = sorted(
        (played for group in groups for played in _one_per_reward(group)), key=lambda played: -(played[2].value or 0)
    )
    chosen = dict.fromkeys((0, len(graded) // 2, len(graded) - 1))
    return [_shown_episode(*graded[at], texts) for at in chosen if 0 <= at < len(graded)]


def _one_per_reward(group: Group) -> list[tuple[Problem, Trajectory, Grade]]:
    first: dict[float, tuple[Problem, Trajectory, Grade]] = {}
    for trajectory, grade in zip(group.trajectories, group.grades, strict=True):
        if grade.value is not None:
            first.setdefault(grade.value, (group.problem, trajectory, grade))
    return list(first.values())


def _shown_episode(problem: Problem, trajectory: Trajectory, grade: Grade, texts: GroupTexts) -> ToldEpisode:
    written = [text for text, _ in itertools.groupby(memory.text.strip() for memory in memories(trajectory, texts))]
    return ToldEpisode(problem.question, written, unboxed(trajectory.answer), problem.gold_text, grade.value)
