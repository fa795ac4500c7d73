"""`quickstart`: train, evaluate on the sizes trained on and beyond, report.

    this process     (cold start) train ...............................   evaluate shard 1   report
    workers          train the baselines, evaluate the untrained agent ... evaluate the other shards

    DIR/seed-0/  DIR/seed-1/ ...      of several seeds: a quickstart each
    DIR/report.html  DIR/plots/       means over the seeds, with intervals
    DIR/summary.json                  the same as figures

Guaranteed: an interrupted quickstart continues with `resume` and comes to the same figures; summary.json is written
last, by rename, so a folder that has it is complete.
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

from palimpsest.app.python_calls import Table, blocking, suitable_progress
from palimpsest.app.quickstart.quickstart_jobs import BaselineTraining, Shard, Worker, WorkerJob, samples_of
from palimpsest.app.quickstart.quickstart_plan import Grid, resolve_quickstart, resolve_seeds
from palimpsest.app.quickstart.quickstart_results import Results, over_seeds, publish, results_of
from palimpsest.app.resume import QUICKSTART, ResolvedRun, Resume, resumable
from palimpsest.app.train.run_handle import Run
from palimpsest.app.train.training_run import Setup, open_setup, train_in_folder
from palimpsest.config.load import Overrides, dump_config
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.evaluation.sample_log import SUMMARY, Cell, Sample
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.progress.reporter import Progress, Stage, Tick
from palimpsest.runs.resume_rules import RunOrigin
from palimpsest.runs.run_folder import open_run
from palimpsest.runs.signals import GracefulStop

# ---- What a quickstart came to -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quickstart:
    """What a quickstart came to."""

    run: Run
    results: Results | None
    """None if it was interrupted; with `resume` it goes on. Of several seeds means over them."""
    seeds: tuple[Quickstart, ...] = ()
    """The quickstart of each seed, where several were asked for; `run` is the last one's."""

    @property
    def folder(self) -> Path:
        """Where report and figures are; of several seeds the folder of their folders."""
        return self.run.folder.parent if self.seeds else self.run.folder

    @property
    def finished(self) -> bool:
        """Whether it came to its report."""
        return self.results is not None

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of summary.json. Raises RunError if it was interrupted."""
        self._finished()
        return dict(json.loads((self.folder / SUMMARY).read_text("utf-8")))

    @property
    def report(self) -> Path:
        """The report, to be opened in a browser."""
        self._finished()
        return self.folder / "report.html"

    @property
    def table(self) -> Table:
        """Accuracy, a row an agent, a column a size; shares, not percent. Of several seeds the means."""
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
        """What a notebook shows."""
        return self.table._repr_html_() if self.finished else f"<p>{html.escape(repr(self))}</p>"

    def _finished(self) -> Results:
        if self.results is None:
            again = "the same call with resume=True" if self.seeds else f"quickstart(resume={str(self.folder)!r})"
            raise RunError(f"{self.run.folder}: interrupted; {again} continues it")
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
    """Train an agent on this machine's CPU, evaluate it beyond what it was trained on, write a report: minutes.

    `quickstart` is an ordinary call and works in a notebook; `quickstart_async` is to be awaited.

    - `method`: memagent, rememr1 or memact; without it memagent
    - `seeds`: two or more in place of `seed`, one after the other in `out`/seed-0, `out`/seed-1..., with one report of
      means and intervals over them in `out`, which is runs/quickstart-seeds without it; `resume=True` continues them
    - the others: as for `train`; `seed` is 0 and `out` runs/quickstart without them

    Raises ConfigError, DataError, ModelError or RunError, each in a line that names key, value and fix.
    """
    watching, stopped = progress or suitable_progress(quiet=quiet), stop or GracefulStop()
    if seeds is not None:
        if seed is not None or not isinstance(resume, bool):
            raise ConfigError("quickstart: seeds takes no seed, and resume=True with `out` in place of a folder")
        if not isinstance(seeds, Sequence) or isinstance(seeds, str):
            raise ConfigError(f"quickstart: seeds={seeds!r}: give two or more whole numbers, such as (0, 1, 2)")
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
    """One after the other, to the last or to an interrupt, and their report."""
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
    """The processes of a quickstart, this one included, and the turns that are played. Left, it ends the others."""

    def __init__(self, processes: int, progress: Progress) -> None:
        self.progress = progress
        self.shards: list[Shard] = []
        self.playing: list[asyncio.Task[None]] = []
        self.played = 0
        """Turns, those of earlier runs included."""
        self.tick: Tick | None = None
        """Counts turns from now on."""
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
        """Begin `work` on a job as soon as `after` is done."""

        async def later() -> None:
            if after is not None:
                await asyncio.wait([after])
                after.result()
            await work(job)

        self._begun.append(asyncio.create_task(later()))
        return self._begun[-1]

    def play(self, shard: Shard, after: asyncio.Task[None] | None = None, *, here: bool = False) -> None:
        """Play a shard as soon as `after` is done, in this process or in a worker."""
        self.shards.append(shard)
        self.played += shard.turns_played()
        self.playing.append(self.begin(self.play_here if here else self.do, shard, after))

    async def play_here(self, shard: Shard) -> None:
        """Play a shard in this process, once those before it are done."""
        async with self._here:
            await shard.play(self)

    async def do(self, job: WorkerJob) -> None:
        """Have the next free worker do a job."""
        async with self._elsewhere:
            if not self._idle:
                self._all.append(await Worker.start())
                self._idle.append(self._all[-1])
            worker = self._idle.pop()
            await worker.do(job, self)
            self._idle.append(worker)

    def part(self, count: int = 1) -> None:
        """Turns were played."""
        self.played += count
        if self.tick is not None:
            self.tick(count)

    def message(self, text: str) -> None:
        """A worker has something to say."""
        self.progress.message(text)


def _trainings(config: RunConfig, out: Path) -> dict[str, BaselineTraining]:
    """Those of the trained baselines: the agent's own but for the policy, whose options a variant changes."""
    quiet = config.logging.model_copy(update={"report_to": ("jsonl",)})
    train = config.train.model_copy(update={"variant": None})
    found = {}
    for name, policy in config.evaluation.trained_baselines.items():
        changed = {"recipe": f"{config.recipe}-{name}", "policy": policy, "logging": quiet, "train": train}
        found[name] = BaselineTraining(dump_config(config.model_copy(update=changed)), str(out / "rivals" / name))
    return found


def _admit(config: RunConfig, setup: Setup) -> None:
    """Refuse now what the evaluation would refuse after training: a policy whose budgets the model can't hold."""
    engine, grid = setup.engine, Grid(config)
    problems = grid.problems(grid.telling)
    for policy in (config.policy, *grid.others.values()):
        admit_all(build_policy(policy), problems, engine.codec, engine.sampler.max_context)


def _evaluation_before(config: RunConfig, out: Path, workers: Workers) -> Callable[[str], None]:
    """What begins the evaluation of the model that training starts from."""
    name, text, folder = f"{config.evaluation.agent}_before", dump_config(config), str(out / "evaluations" / "before")
    return lambda model: workers.play(Shard(text, model, (name,), folder))


def _shards(config: RunConfig, models: Mapping[str, str], out: Path) -> dict[str, list[Shard]]:
    """The shards of each trained model's evaluation, one a process; the baselines play on the agent's."""
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
    """Play all shards, each model's as soon as it is trained, and wait for what was begun before."""
    for name, dealt in shards.items():
        for shard in dealt:
            workers.play(shard, trained.get(name), here=shard.index == 0)
    total = sum(Grid(config).turns(shard.names, shard.index, shard.count) for shard in workers.shards)
    with workers.progress.count("evaluation", total, done=workers.played) as tick:
        workers.tick = tick
        for playing in asyncio.as_completed(workers.playing):
            await playing
        tick(total)  # the number of turns was a guess
    return samples_of(workers.shards)


_SECONDS = {
    "memagent-quickstart": (0.3, 1.0, 0.0006),
    "rememr1-quickstart": (0.4, 2.5, 0.004),
    "memact-quickstart": (0.3, 6.5, 0.03),
}
"""What a step of the cold start, a step of training and a turn of the evaluation (all processes together) take on two
cores, each roughly. An ETA is scaled by the pace of the machine it runs on."""
_UNITS = {"evaluation": "turns"}


def _plan(config: RunConfig) -> list[Stage]:
    """The stages of a quickstart, in order."""
    lesson, step, turn = _SECONDS.get(config.recipe, (0.3, 1.0, 0.0006))
    lessons = [Stage("lessons", config.cold_start.max_steps, lesson)] if config.cold_start else []
    training = Stage("training", config.train.max_steps, step)
    grid = Grid(config)
    return [*lessons, training, Stage("evaluation", grid.turns(list(grid.players)), turn)]


def _announced(config: RunConfig, plan: Sequence[Stage], out: Path) -> str:
    """What is going to be done, and how long that took on the reference machine."""
    parts = ", ".join(f"{stage.name} ({stage.parts:,} {_UNITS.get(stage.name, 'steps')})" for stage in plan)
    minutes = sum(stage.parts * stage.seconds_each for stage in plan) / 60
    time_taken = "a minute or less" if minutes < 1.5 else f"about {minutes:.0f} minutes"
    method = config.recipe.removesuffix("-quickstart")
    return f"quickstart {method}: {parts}, report, into {out}; {time_taken} on two cores"
