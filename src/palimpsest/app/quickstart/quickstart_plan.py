"""Evaluation plan of a quickstart, from its configuration; the quickstart that the options of a call mean.

The data determines the axis: documents of `synthetic` and contexts of files get longer, problems of `synthetic_search`
have more questions, games need more moves. A point of the axis is a whole number, which names it in summary.json: a
multiple of the planned training length, or a number of questions or moves. Games of 16 moves are in the file that is
named as `data.val_files`, with 16 before its suffix.

Guaranteed: invalid requests fail before any training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from palimpsest.app.config_resolution import (
    QUICKSTART,
    ResolvedRun,
    Resume,
    RunRequest,
    check_quickstart,
    resolve_run,
    resumed_run,
)
from palimpsest.config.data import GENERATED, LONGEST, SearchDataConfig
from palimpsest.config.load import Overrides, quickstarts
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.sources.file_source import FileSource, build_source
from palimpsest.errors import ConfigError
from palimpsest.evaluation.runner import Entry
from palimpsest.evaluation.sample_log import Cell
from palimpsest.memory.registry import build_policy, evaluated
from palimpsest.report.axis_labels import MOVES, PARAGRAPHS, QUESTIONS, AxisWords, axis_of
from palimpsest.rollout.variant import policy_of
from palimpsest.runs.run_folder import CONFIG
from palimpsest.text.display_text import counted
from palimpsest.types import Problem

METHOD = "memagent"
FOLDER = "runs/quickstart"
_MOVES = re.compile(r"\d+(?=(\.[A-Za-z]\w*)+$)")
"""The number at the end of a file's name."""
_FOLDERS = ("", "..", "before", "after")
"""Reserved or invalid names of folders under evaluations/."""


# ---- Players, points and problems ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Evaluation of a quickstart's configuration: each player at each point."""

    config: RunConfig

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.config.recipe.removesuffix("-quickstart")

    @property
    def agent(self) -> str:
        """Name of the trained agent; `{agent}_before` is the agent before RL."""
        return self.config.evaluation.agent

    @cached_property
    def axis(self) -> AxisWords:
        """Axis of the evaluation."""
        return axis_of(self.config)

    @cached_property
    def others(self) -> dict[str, PolicyConfig]:
        """Policies to compare with the agent."""
        return {**self.config.evaluation.trained_baselines, **self.config.evaluation.baselines}

    @cached_property
    def players(self) -> dict[str, PolicyConfig]:
        """All players, in the order of tables: the agent, the agent before RL, the others."""
        each = {self.agent: self.config.policy, f"{self.agent}_before": self.config.policy, **self.others}
        return {name: evaluated(policy) for name, policy in each.items()}

    @cached_property
    def planned(self) -> int:
        """The largest planned training size."""
        if self.axis is QUESTIONS:
            return max(self._search.objectives)
        if self.axis is MOVES:
            problems = FileSource.open(str(self.config.data.train_files), split="eval")
            return max((int(one.metadata.get("difficulty", 1)) for one in problems), default=1)
        data = self.config.data
        if self.axis is PARAGRAPHS:
            assert data.documents is not None
            return data.documents
        return data.curriculum.chunks[-1] if data.curriculum else data.synthetic.chunks

    @cached_property
    def points(self) -> tuple[int, ...]:
        """Points of the axis, in any order. Raises ConfigError for invalid ones."""
        asked = self.config.evaluation.sizes
        if self.axis is QUESTIONS:
            asked, most = asked or (2, 4, 6, 8), self._search.people
            fix = f"use numbers of questions from 1 to data.search.people={most}"
        elif self.axis is MOVES:
            asked, most = asked or (4, 8, 16, 32), LONGEST
            fix = f"use numbers of moves from 1 to {most:,}"
        else:
            asked, most = asked or (1, 16, 64, 256), LONGEST // self.planned
            fix = (
                f"use numbers from 1 to {most:,}, e.g. [1, 16]; a document has at most {LONGEST:,} chunks, and "
                f"training reaches {counted(self.planned, 'chunk')}"
            )
        if min(asked) < 1 or max(asked) > most:
            raise ConfigError(f"evaluation.sizes={list(asked)}: {fix}")
        if len(set(asked)) < len(asked):  # its problems would share a name
            raise ConfigError(f"evaluation.sizes={list(asked)}: use each number once")
        return asked

    @property
    def telling(self) -> int:
        """Point whose problems show whether a policy's budgets suffice: a longer document takes more turns, not larger
        ones, but the first prompt contains all questions."""
        return (min if self.axis.reads else max)(self.points)

    def size(self, point: int) -> int:
        """Size of a point's problems."""
        return self.axis.size(point, self.planned)

    def count(self, point: int) -> int:
        """Number of the agent's problems at a point."""
        asked, budget = self.config.evaluation.problems, self.config.evaluation.chunk_budget
        return asked if budget is None or not self.axis.reads else max(1, min(asked, budget // self.size(point)))

    def count_of(self, player: str, point: int) -> int:
        """Number of a player's problems at a point."""
        fewer = None if point == min(self.points) else self.config.evaluation.baseline_problems
        count = self.count(point)
        return count if fewer is None or player == self.agent or not self._readings[player] else min(count, fewer)

    @cached_property
    def _readings(self) -> dict[str, int]:
        """How often each player reads a section; 0 if the number of its turns does not grow with the size."""
        return {
            name: build_policy(policy).readings if not self.axis.reads or "chunk_size" in policy.options else 0
            for name, policy in self.players.items()
        }

    def problems(self, point: int) -> list[Problem]:
        """The held-out problems of a point."""
        data = self.config.data
        if self.axis is PARAGRAPHS:
            data = data.model_copy(update={"documents": self.size(point)})
        if self.axis is MOVES:
            path = Path(str(data.val_files))
            path = path.with_name(_MOVES.sub(str(point), path.name))
            if not path.is_file():
                fix = f"name other sizes, or rename {path.parent}, and the quickstart makes its games"
                raise ConfigError(f"evaluation.sizes={list(self.points)}: {path} is missing; {fix}")
            data = data.model_copy(update={"val_files": str(path)})
        source = build_source(data, self.config.seed, split="eval")
        return source.problems(step=0, count=self.count(point), size=self.size(point))

    def cell(self, player: str, point: int) -> Cell:
        """Cell of a player at a point."""
        data, unit = self.config.data, self.axis.key
        source = Path(str(data.val_files)).stem if self.axis is PARAGRAPHS else str(data.train_files)
        source = str(self.config.environment.name) if self.config.environment else source
        return Cell(source, self.size(point), unit, player, baseline=player != self.agent)

    def entries(self, names: Sequence[str], index: int = 0, shards: int = 1) -> list[Entry]:
        """Entries of these players in shard `index` of `shards`: every `shards`-th problem of each point."""
        found, policies = list[Entry](), {name: build_policy(self.players[name]) for name in names}
        for point in self.points:
            problems = self.problems(point)
            for name, policy in policies.items():
                own = problems[: self.count_of(name, point)][index::shards]
                found.append(Entry(self.cell(name, point), policy, own))
        return found

    def turns(self, names: Sequence[str], index: int = 0, shards: int = 1) -> int:
        """Estimated turns of these entries: one per chunk or search, and the answer."""
        return sum(
            len(range(index, self.count_of(name, point), shards)) * (self.size(point) * self._readings[name] + 1)
            for point in self.points
            for name in names
        )

    @property
    def _search(self) -> SearchDataConfig:
        return self.config.data.search or SearchDataConfig()


# ---- Quickstart of a request ---------------------------------------------------------------------------------


def resolve_quickstart(
    method: str | None,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
) -> ResolvedRun:
    """The quickstart that these options mean. Raises ConfigError, or RunError for a folder without a run."""
    folder = Path(out or FOLDER)
    if resume is True and method is None:
        if out is None and not (folder / CONFIG).is_file():
            raise ConfigError(f"--resume: {folder} has no run; name one: palimpsest quickstart --resume RUN")
        resume = folder if (folder / CONFIG).is_file() else True
    named = None if method in quickstarts() else method
    run = resumed_run(RunRequest(named, overrides, seed, out, resume, QUICKSTART))
    if run is not None:
        request = RunRequest(None, overrides, seed, None, run, QUICKSTART)
    else:
        check_quickstart(method or METHOD)
        request = RunRequest(quickstarts()[method or METHOD], overrides, seed, folder, resume, QUICKSTART)
    resolved = resolve_run(request)
    _check(resolved.config)
    return resolved


def _check(config: RunConfig) -> None:
    data = config.data
    if config.environment is not None:
        if data.train_files in GENERATED or not _MOVES.search(Path(str(data.val_files or "")).name):
            raise ConfigError(
                f"data.train_files={data.train_files}, data.val_files={data.val_files}: the quickstart of an "
                "environment needs files of tasks, and in the name of val_files the number of moves, such as "
                "games/test-4.jsonl"
            )
    elif data.train_files not in GENERATED and not (data.documents and data.val_files):
        raise ConfigError(
            f"data.train_files={data.train_files}: quickstart evaluates beyond the training length, so files "
            "need data.documents, the paragraphs of a training context, and data.val_files with held-out questions; "
            "palimpsest train takes any file"
        )
    grid = Grid(config)
    assert grid.points
    _check_names(config)
    policy_of(config)
    for policy in grid.others.values():
        build_policy(policy)


def _check_names(config: RunConfig) -> None:
    """Raise ConfigError for a name of two players, or one that can't be a folder of the run."""
    agent = config.evaluation.agent
    taken = {agent: "the agent", f"{agent}_before": "the agent before training"}
    for key in ("trained_baselines", "baselines"):
        for name in getattr(config.evaluation, key):
            if name in taken:
                raise ConfigError(f"evaluation.{key}.{name}: {taken[name]} has this name in the report; use another")
            if key == "trained_baselines" and (name in _FOLDERS or name != Path(name).name):
                raise ConfigError(f"evaluation.{key}.{name}: can't be the name of its folder; use a plain one")
            taken[name] = f"evaluation.{key}.{name}"
    labels = [config.evaluation.labels.get(name, name) for name in taken]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(f"evaluation.labels: {twice} is the label of two players; use distinct labels")
