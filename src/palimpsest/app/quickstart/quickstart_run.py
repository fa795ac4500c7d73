"""`quickstart`: train, evaluate at the training length and beyond, report.

    this process     (cold start) train ...............................   evaluate shard 1   report
    workers          train the baselines, evaluate the untrained agent ... evaluate the other shards

    DIR/seed-0/  DIR/seed-1/ ...      several seeds: one quickstart each
    DIR/report.html  DIR/plots/       means over the seeds, with intervals
    DIR/summary.json                  the same figures as JSON

Guaranteed: an interrupted quickstart continues with `resume` and gives the same figures; summary.json is written last,
by rename, so a folder with it is complete.
Not covered: `wall_s` is the time of the last invocation.
"""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.app.config_resolution import QUICKSTART, ResolvedRun, Resume, resumable
from palimpsest.app.python_calls import blocking, suitable_progress
from palimpsest.app.quickstart.quickstart_jobs import BaselineTraining, Shard, Worker, WorkerJob, samples_of
from palimpsest.app.quickstart.quickstart_plan import Grid, resolve_quickstart, resolve_seeds
from palimpsest.app.quickstart.quickstart_results import Results, over_seeds, publish, results_of
from palimpsest.app.train.run_handle import Run
from palimpsest.app.train.run_setup import Setup, open_setup
from palimpsest.app.train.training_run import train_in_folder
from palimpsest.config.load import Overrides, dump_config
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.evaluation.sample_log import SUMMARY, Cell, Sample
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.progress.reporter import Progress, Stage, Tick
from palimpsest.runs.resume_rules import RunOrigin
from palimpsest.runs.run_folder import open_run
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.display_text import Table

# ---- Result of a quickstart ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quickstart:
    """Result of a quickstart."""

    run: Run
    results: Results | None
    """None if interrupted (`resume` continues it); for several seeds, means over them."""
    seeds: tuple[Quickstart, ...] = ()
    """The quickstart of each seed, if there are several; `run` is the last one's."""

    @property
    def folder(self) -> Path:
        """Folder of report and figures; for several seeds, the parent of their folders."""
        return self.run.folder.parent if self.seeds else self.run.folder

    @property
    def finished(self) -> bool:
        """Whether it has a report."""
        return self.results is not None

    @property
    def summary(self) -> dict[str, Any]:
        """Contents of summary.json. Raises RunError for an interrupted quickstart."""
        self._finished()
        return dict(json.loads((self.folder / SUMMARY).read_text("utf-8")))

    @property
    def report(self) -> Path:
        """HTML report."""
        self._finished()
        return self.folder / "report.html"

    @property
    def table(self) -> Table:
        """Accuracy as fractions, one row per player, one column per size; for several seeds, the means."""
        results = self._finished()
        return Table.of(
            [
                {"accuracy": results.label(name)}
                | {results.heading(point): row[point].accuracy.mean for point in results.points}
                for name, row in results.cells.items()
            ]
        )

    def __repr__(self) -> str:
        seeds = f", {len(self.seeds)} seeds" if self.seeds else ""
        head = f"quickstart {Grid(self.run.config).method} in {self.folder}{seeds}"
        return f"{head}\n{self.table}" if self.finished else f"{head}: interrupted after {self.run.steps} steps"

    def _repr_html_(self) -> str:
        return self.table._repr_html_() if self.finished else f"<p>{html.escape(repr(self))}</p>"

    def _finished(self) -> Results:
        if self.results is None:
            again = "the same call with resume=True" if self.seeds else f"quickstart(resume={str(self.folder)!r})"
            raise RunError(f"{self.run.folder}: interrupted; resume it with {again}")
        return self.results


async def quickstart_async(
    method: str | None = None,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
    force: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
    stop: GracefulStop | None = None,
) -> Quickstart:
    """Train an agent on this machine's CPU, evaluate it beyond its training length and write a report, within minutes.

    `quickstart` is an ordinary call and works in a notebook; `quickstart_async` is a coroutine.

    - `method`: memagent (the default), rememr1 or memact
    - `seeds`: two or more instead of `seed`, run one after the other in `out`/seed-0, `out`/seed-1..., with one report
      of means and intervals over them in `out`, by default runs/quickstart-seeds; `resume=True` resumes them
    - the others: as for `train`; the defaults are `seed` 0 and `out` runs/quickstart

    Raises ConfigError, DataError, ModelError or RunError with a message that names key, value and fix.
    """
    watching, stopped = progress or suitable_progress(quiet=quiet), stop or GracefulStop()
    if seeds is not None:
        if seed is not None or not isinstance(resume, bool):
            raise ConfigError("quickstart: seeds takes no seed, and resume=True with `out` instead of a folder")
        if not isinstance(seeds, Sequence) or isinstance(seeds, str):
            raise ConfigError(f"quickstart: seeds={seeds!r}: pass two or more whole numbers, such as (0, 1, 2)")
        several = resolve_seeds(method, overrides, seeds, out=out, resume=resume, force=force)
        return await _of_seeds(several, force=force, progress=watching, stop=stopped)
    run = resolve_quickstart(method, overrides, seed=seed, out=out, resume=resume)
    return await _of_one(run, force=force, progress=watching, stop=stopped)


async def _of_one(run: ResolvedRun, *, force: bool, progress: Progress, stop: GracefulStop) -> Quickstart:
    config, out, started = run.config, run.folder, time.monotonic()
    setup = await asyncio.to_thread(open_setup, config, out)
    _admit(config, setup)
    plan, origin = _plan(config), RunOrigin(QUICKSTART)
    with (
        open_run(out, config, resume=run.resume, force=force, on_warning=progress.message, origin=origin) as folder,
        resumable(out, progress),
        progress.stages(plan) as staged,
    ):
        progress.message(_announced(config, plan, out))
        async with Workers(config.evaluation.processes, staged) as workers:
            trainings = _trainings(config, out)
            trained = {name: workers.begin(workers.do, job) for name, job in trainings.items()}
            before = _evaluation_before(config, out, workers)
            finished = await train_in_folder(folder, config, setup, progress=staged, stop=stop, on_start=before)
            if finished.interrupted:
                return Quickstart(Run(out), None)
            models = {config.evaluation.agent: str(finished.checkpoint)}
            models |= {name: job.model for name, job in trainings.items()}
            samples = await _evaluate(config, _shards(config, models, out), trained, workers)
        results = results_of(config, out, samples, time.monotonic() - started)
        publish(out, results)
    return Quickstart(Run(out), results)


async def _of_seeds(
    several: Sequence[ResolvedRun], *, force: bool, progress: Progress, stop: GracefulStop
) -> Quickstart:
    """Run the seeds one after the other, to the last or to an interrupt, and write their report."""
    done, results = list[Quickstart](), list[Results]()
    for number, run in enumerate(several, 1):
        progress.message(f"seed {run.config.seed}, {number} of {len(several)}")
        done.append(await _of_one(run, force=force, progress=progress, stop=stop))
        if (own := done[-1].results) is None:
            return replace(done[-1], seeds=tuple(done))
        results.append(own)
    merged = over_seeds(results)
    publish(several[0].folder.parent, merged)
    return replace(done[-1], results=merged, seeds=tuple(done))


quickstart = blocking(quickstart_async)


# ---- Training and evaluation ---------------------------------------------------------------------------------


class Workers:
    """Processes of a quickstart, this one included, and its evaluated turns. Leaving the context ends the others."""

    def __init__(self, processes: int, progress: Progress) -> None:
        self.progress = progress
        self.shards: list[Shard] = []
        self.playing: list[asyncio.Task[None]] = []
        self.played = 0
        """Turns, including earlier runs."""
        self.tick: Tick | None = None
        """Counts further turns."""
        self._here, self._elsewhere = asyncio.Lock(), asyncio.Semaphore(max(1, processes - 1))
        self._begun: list[asyncio.Task[None]] = []
        self._idle: list[Worker] = []
        self._all: list[Worker] = []

    async def __aenter__(self) -> Workers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._begun:
            task.cancel()
        await asyncio.gather(*self._begun, *(worker.end() for worker in self._all), return_exceptions=True)

    def begin(
        self, work: Callable[[Any], Awaitable[None]], job: WorkerJob, after: asyncio.Task[None] | None = None
    ) -> asyncio.Task[None]:
        """Start `work` on a job when `after` is done."""

        async def later() -> None:
            if after is not None:
                await asyncio.wait([after])
                after.result()
            await work(job)

        self._begun.append(asyncio.create_task(later()))
        return self._begun[-1]

    def play(self, shard: Shard, after: asyncio.Task[None] | None = None, *, here: bool = False) -> None:
        """Run a shard when `after` is done, in this process or in a worker."""
        self.shards.append(shard)
        self.played += shard.turns_played()
        self.playing.append(self.begin(self.play_here if here else self.do, shard, after))

    async def play_here(self, shard: Shard) -> None:
        """Run a shard in this process, after earlier ones."""
        async with self._here:
            await shard.play(self)

    async def do(self, job: WorkerJob) -> None:
        """Run a job in the next free worker."""
        async with self._elsewhere:
            if not self._idle:
                self._all.append(await Worker.start())
                self._idle.append(self._all[-1])
            worker = self._idle.pop()
            await worker.do(job, self)
            self._idle.append(worker)

    def part(self, count: int = 1) -> None:
        """Count finished turns."""
        self.played += count
        if self.tick is not None:
            self.tick(count)

    def message(self, text: str) -> None:
        """Show a worker's message."""
        self.progress.message(text)


def _trainings(config: RunConfig, out: Path) -> dict[str, BaselineTraining]:
    """Trainings of the baselines: the agent's with another policy, without `train.variant`, which changes
    its options."""
    quiet = config.logging.model_copy(update={"report_to": ("jsonl",)})
    train = config.train.model_copy(update={"variant": None})
    found = {}
    for name, policy in config.evaluation.trained_baselines.items():
        changed = {"recipe": f"{config.recipe}-{name}", "policy": policy, "logging": quiet, "train": train}
        found[name] = BaselineTraining(dump_config(config.model_copy(update=changed)), str(out / "rivals" / name))
    return found


def _admit(config: RunConfig, setup: Setup) -> None:
    """Check before training that the model fits the budgets of all evaluated policies."""
    engine, grid = setup.engine, Grid(config)
    problems = grid.problems(grid.telling)
    for policy in (config.policy, *grid.others.values()):
        admit_all(build_policy(policy), problems, engine.codec, engine.sampler.max_context)


def _evaluation_before(config: RunConfig, out: Path, workers: Workers) -> Callable[[str], None]:
    """Callback that starts the evaluation of RL's starting model."""
    name, text, folder = f"{config.evaluation.agent}_before", dump_config(config), str(out / "evaluations" / "before")
    return lambda model: workers.play(Shard(text, model, (name,), folder))


def _shards(config: RunConfig, models: Mapping[str, str], out: Path) -> dict[str, list[Shard]]:
    """Shards of each trained model's evaluation, one per process; the baselines run on the agent's."""
    text, count, agent = dump_config(config), config.evaluation.processes, config.evaluation.agent
    dealt = {}
    for name, model in models.items():
        names = (agent, *config.evaluation.baselines) if name == agent else (name,)
        folder = str(out / "evaluations" / ("after" if name == agent else name))
        dealt[name] = [Shard(text, model, names, folder, index, count) for index in range(count)]
    return dealt


async def _evaluate(
    config: RunConfig,
    shards: Mapping[str, Sequence[Shard]],
    trained: Mapping[str, asyncio.Task[None]],
    workers: Workers,
) -> dict[Cell, list[Sample]]:
    """Run all shards, each model's when it is trained, and wait for earlier ones."""
    for name, dealt in shards.items():
        for shard in dealt:
            workers.play(shard, trained.get(name), here=shard.index == 0)
    total = sum(Grid(config).turns(shard.names, shard.index, shard.count) for shard in workers.shards)
    with workers.progress.count("evaluation", total, done=workers.played) as tick:
        workers.tick = tick
        for playing in asyncio.as_completed(workers.playing):
            await playing
        tick(total)  # the number of turns is an estimate
    return samples_of(workers.shards)


_SECONDS = {
    "memagent-quickstart": (0.3, 0.8, 0.0006),
    "rememr1-quickstart": (0.3, 2.6, 0.0008),
    "memact-quickstart": (0.3, 7.4, 0.004),
    "memagent-smollm2": (20.0, 50.0, 0.15),
}
"""Rough times on two cores of a cold-start step, a training step and an evaluation turn (all processes together). An
ETA scales them by the pace of the machine."""


def _plan(config: RunConfig) -> list[Stage]:
    lesson, step, turn = _SECONDS.get(config.recipe, (0.3, 1.0, 0.0006))
    lessons = [Stage("cold start", config.cold_start.max_steps, lesson, "steps")] if config.cold_start else []
    training = Stage("training", config.train.max_steps, step, "steps")
    grid = Grid(config)
    return [*lessons, training, Stage("evaluation", grid.turns(list(grid.players)), turn, "turns")]


def _announced(config: RunConfig, plan: Sequence[Stage], out: Path) -> str:
    """The planned stages, and their time on the reference machine."""
    parts = ", ".join(f"{stage.name} ({stage.parts:,} {stage.unit})" for stage in plan)
    minutes = sum(stage.parts * stage.seconds_each for stage in plan) / 60
    time_taken = "a minute or less" if minutes < 1.5 else f"about {minutes:.0f} minutes"
    method = config.recipe.removesuffix("-quickstart")
    return f"quickstart {method}: {parts}, report, into {out}; {time_taken} on two cores"
