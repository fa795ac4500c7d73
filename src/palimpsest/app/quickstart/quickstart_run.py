"""`quickstart`: train, evaluate on the sizes trained on and beyond, report.

    this process     (cold start) train ............ evaluate shard 1   report
    workers          train the rivals, evaluate the untrained agent ...   evaluate the other shards

Which agents there are, and what grows along the axis, is the method's affair (app/quickstart_methods.py) and its
recipe's.

Guaranteed: an interrupted quickstart goes on with `resume` and comes to the same figures; summary.json is written
last, by rename, so a folder that has it is complete.
Not covered: `wall_s` is the time of the last invocation.
"""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.app.python_calls import Table, blocking, suitable_progress
from palimpsest.app.quickstart.evaluation_shards import Shard, play_shard, samples_of
from palimpsest.app.quickstart.quickstart_results import (
    AskedQuickstart,
    AskedSeeds,
    asked_quickstart,
    asked_seeds,
    other_policies,
    publish,
    publish_seeds,
)
from palimpsest.app.quickstart.worker_pool import Task, TaskReport, WorkerPool
from palimpsest.app.quickstart_methods import METHODS, Method
from palimpsest.app.resume import QUICKSTART, Resume, resumable
from palimpsest.app.train.run_handle import Run
from palimpsest.app.train.training_run import Prepared, Training, prepare
from palimpsest.config.load import Overrides, dump_config, parse_config
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.evaluation.sample_log import SUMMARY
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.progress.reporter import Progress, Stage, Tick
from palimpsest.report.quickstart_report import Results
from palimpsest.runs.checkpoint import CHECKPOINTS, step_name
from palimpsest.runs.resume_rules import RunOrigin
from palimpsest.runs.run_folder import open_run
from palimpsest.runs.signals import GracefulStop

# ---- The worker processes of a quickstart, and what they tell of their progress ------------------------------


class Workers:
    """The worker processes of a quickstart, and the shards that are played."""

    def __init__(self, pool: WorkerPool, progress: Progress) -> None:
        self.shards: list[Shard] = []
        self.playing: list[Future[None]] = []
        self.progress = progress
        self.played = 0
        """Turns, here and in the workers."""
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._tick: Tick | None = None

    def begin(self, task: Task) -> Future[None]:
        """Train a rival in the next free process."""
        return self._pool.submit(task, self)

    def play(self, shard: Shard) -> Future[None]:
        """Play a shard in the next free process."""
        self.shards.append(shard)
        self.playing.append(self._pool.submit(shard, self))
        return self.playing[-1]

    async def play_here(self, shard: Shard) -> None:
        """Play a shard in this process."""
        self.shards.append(shard)
        await play_shard(shard, self)

    def part(self, count: int = 1) -> None:
        """Turns were played, here or in a worker."""
        self._loop.call_soon_threadsafe(self._count, count)

    def message(self, text: str) -> None:
        """A worker has something to say."""
        self._loop.call_soon_threadsafe(self.progress.message, text)

    def show(self, tick: Tick) -> None:
        """Count turns on `tick` from now on."""
        self._tick = tick

    def _count(self, count: int) -> None:
        self.played += count
        if self._tick is not None:
            self._tick(count)


# ---- quickstart ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quickstart:
    """What a quickstart came to."""

    method: Method
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
        results, axis, config = self._finished(), self.method.axis, self.run.config
        headings = {point: axis.heading(config, point, results.trained) for point in results.points}
        return Table.of(
            [
                {"accuracy": results.label(name)} | {headings[p]: cell.score.mean for p, cell in sorted(row.items())}
                for name, row in results.cells.items()
            ]
        )

    def __repr__(self) -> str:
        seeds = f", {len(self.seeds)} seeds" if self.seeds else ""
        head = f"quickstart {self.method.name} in {self.folder}{seeds}"
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
        several = asked_seeds(method, overrides, seeds, out=out, resume=resume, force=force)
        return await _of_seeds(several, force=force, progress=watching, stop=stopped)
    asked = asked_quickstart(method, overrides, seed=seed, out=out, resume=resume)
    return await _of_one(asked, force=force, progress=watching, stop=stopped)


async def _of_one(asked: AskedQuickstart, *, force: bool, progress: Progress, stop: GracefulStop) -> Quickstart:
    method, resume = METHODS[asked.method], asked.resume
    return await run_quickstart(
        method, asked.config, asked.folder, resume=resume, force=force, progress=progress, stop=stop
    )


async def _of_seeds(several: AskedSeeds, *, force: bool, progress: Progress, stop: GracefulStop) -> Quickstart:
    """One after the other, to the last or to an interrupt, and their report."""
    done, results = list[Quickstart](), list[Results]()
    for number, asked in enumerate(several.each, 1):
        progress.message(f"seed {asked.config.seed}, {number} of {len(several.each)}")
        done.append(await _of_one(asked, force=force, progress=progress, stop=stop))
        if (own := done[-1].results) is None:
            return replace(done[-1], seeds=tuple(done))
        results.append(own)
    merged = publish_seeds(several.folder, several.each[0].method, results, [each.run.folder for each in done])
    return replace(done[-1], results=merged, seeds=tuple(done))


quickstart = blocking(quickstart_async)


@dataclass(frozen=True, slots=True)
class RivalTraining:
    """A rival's training, as a task for a worker process."""

    config: str
    """The rival's own run configuration as YAML."""
    folder: str

    def run(self, report: TaskReport) -> None:
        """Train to the end, going on from what is there."""
        config = parse_config(self.config)
        with open_run(self.folder, config, resume=True, on_warning=report.message) as folder:
            finished = asyncio.run(Training(folder).run(config, prepare(config, folder.path)))
        if finished.interrupted:
            raise RunError(
                f"{self.folder}: interrupted after step {finished.step}; resume the quickstart it belongs to"
            )

    @property
    def model(self) -> str:
        """Folder of the trained weights, once it has run."""
        return str(Path(self.folder) / CHECKPOINTS / step_name(parse_config(self.config).train.max_steps))


async def run_quickstart(
    method: Method,
    config: RunConfig,
    out: Path,
    *,
    resume: bool,
    force: bool,
    progress: Progress,
    stop: GracefulStop,
) -> Quickstart:
    """`quickstart` of a configuration."""
    started = time.monotonic()
    plan = _plan(method, config)
    prepared = await asyncio.to_thread(prepare, config, out)
    _admit(method, config, prepared)
    with (
        open_run(
            out, config, resume=resume, force=force, on_warning=progress.message, origin=RunOrigin(QUICKSTART)
        ) as folder,
        resumable(out, progress),
        WorkerPool(max(1, config.evaluation.processes - 1)) as pool,
        progress.stages(plan) as staged,
    ):
        progress.message(_announced(method, plan, out))
        workers = Workers(pool, staged)
        rivals = _rivals(config, out)
        trained = {name: workers.begin(task) for name, task in rivals.items()}

        begin = _evaluation_before(method, config, out, workers)
        finished = await Training(folder, staged, stop).run(config, prepared, begin)
        if finished.interrupted:
            return Quickstart(method, Run(out), None)
        models = {name: task.model for name, task in rivals.items()}
        shards = _shards(method, config, str(finished.checkpoint), models, out)
        await _evaluate(config, shards, trained, workers)
        results = publish(method, config, folder, samples_of(workers.shards), time.monotonic() - started)
    return Quickstart(method, Run(out), results)


def _evaluation_before(method: Method, config: RunConfig, out: Path, workers: Workers) -> Callable[[str], None]:
    """What begins the evaluation of the model that training starts from, in a worker."""

    def begin(model: str) -> None:
        place = str(out / "evaluations" / "before")
        shard = Shard(method.name, dump_config(config), model, (method.before,), place, 0, 1)
        workers.played += shard.turns_played()
        workers.play(shard)

    return begin


def _rivals(config: RunConfig, out: Path) -> dict[str, RivalTraining]:
    """The trainings of the recipe's rivals: the agent's own but for the policy, whose options a variant changes."""
    quiet = config.logging.model_copy(update={"report_to": ("jsonl",)})
    train = config.train.model_copy(update={"variant": None})
    rivals = {}
    for name, policy in config.evaluation.trained_baselines.items():
        changed = {"recipe": f"{config.recipe}-{name}", "policy": policy, "logging": quiet, "train": train}
        own = config.model_copy(update=changed)
        rivals[name] = RivalTraining(dump_config(own), str(out / "rivals" / name))
    return rivals


def _admit(method: Method, config: RunConfig, prepared: Prepared) -> None:
    """Refuse now what the evaluation would refuse after training: a policy whose budgets the model can't hold."""
    engine = prepared.parts.engine
    problems = method.axis.problems(config, method.axis.telling(config))
    for policy in (config.policy, *other_policies(config)):
        admit_all(build_policy(policy), problems, engine.codec, engine.sampler.max_context)


def _shards(
    method: Method, config: RunConfig, model: str, rivals: Mapping[str, str], out: Path
) -> dict[str, list[Shard]]:
    """The shards of each trained model's evaluation, one a process: the agent's own, then the rivals' by name."""
    text, count = dump_config(config), config.evaluation.processes

    def dealt(folder: str, path: str, policies: tuple[str, ...]) -> list[Shard]:
        place = str(out / "evaluations" / folder)
        return [Shard(method.name, text, path, policies, place, index, count) for index in range(count)]

    own = dealt("after", model, (method.agent, *config.evaluation.baselines))
    return {method.agent: own, **{name: dealt(name, path, (name,)) for name, path in rivals.items()}}


async def _evaluate(
    config: RunConfig,
    shards: Mapping[str, Sequence[Shard]],
    trained: Mapping[str, Future[None]],
    workers: Workers,
) -> None:
    """Evaluate all trained models in all processes, each as soon as it is trained, and wait for what was begun
    before."""
    begun = list(workers.playing)
    everything = [*workers.shards, *(shard for dealt in shards.values() for shard in dealt)]

    async def is_trained(name: str) -> None:
        if name in trained:
            await asyncio.wrap_future(trained[name])

    async def elsewhere(name: str) -> None:
        await is_trained(name)
        for playing in [workers.play(shard) for shard in shards[name][1:]]:
            await asyncio.wrap_future(playing)

    async def here() -> None:
        for name, dealt in shards.items():
            await is_trained(name)
            await workers.play_here(dealt[0])

    total = sum(shard.turns(config) for shard in everything)
    played = workers.played + sum(shard.turns_played() for dealt in shards.values() for shard in dealt)
    with workers.progress.count("evaluation", total, done=played) as tick:
        workers.show(tick)
        try:
            async with asyncio.TaskGroup() as group:
                for name in shards:
                    group.create_task(elsewhere(name))
                group.create_task(here())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the others were cancelled because of it
        for playing in begun:
            await asyncio.wrap_future(playing)
        tick(total)  # the number of turns was a guess


def _announced(method: Method, plan: Sequence[Stage], out: Path) -> str:
    """What is going to be done, and how long that took on the reference machine."""
    parts = ", ".join(f"{stage.name} ({stage.parts:,} {_UNITS.get(stage.name, 'steps')})" for stage in plan)
    minutes = sum(stage.parts * stage.seconds_each for stage in plan) / 60
    time_taken = "a minute or less" if minutes < 1.5 else f"about {minutes:.0f} minutes"
    return f"quickstart {method.name}: {parts}, report, into {out}; {time_taken} on two cores"


_UNITS = {"evaluation": "turns"}


def _plan(method: Method, config: RunConfig) -> list[Stage]:
    """The stages of a quickstart, in order."""
    lessons = [Stage("lessons", config.cold_start.max_steps, method.pace.lesson)] if config.cold_start else []
    agents = (method.agent, *config.evaluation.baselines, *config.evaluation.trained_baselines, method.before)
    turns = Shard(method.name, "", "", agents, "", 0, 1).turns(config)
    training = Stage("training", config.train.max_steps, method.pace.step)
    return [*lessons, training, Stage("evaluation", turns, method.pace.turn)]
