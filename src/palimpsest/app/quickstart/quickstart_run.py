"""`quickstart`: train, evaluate at the training length and beyond, report.

    this process        (cold start) train ...............................   evaluate shard 1           report
    other processes     train the baselines, evaluate the untrained agent ... evaluate the other shards

A shard of an evaluation is every n-th problem of some players. Shards, and so the batched sequences, depend only on the
configuration, never on the speed of a process: the same configuration gives the same answers.

Guaranteed: an interrupted quickstart continues with `resume` and gives the same figures; summary.json is written last,
by rename, so a folder with it is complete; an interrupted shard resumes from its log, with more or fewer problems if
the configuration changed; a log of other weights, policies, data or sampling is renamed and the shard starts over; the
first error of a process ends the others; a process ends with its parent, even within its work; only the parent gets an
interrupt of the terminal.
Not covered: `wall_s` is the time of the last invocation; a resumed shard has other batches, so near ties of greedy
decoding may differ as far as the sampler's results depend on the batch.
"""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.agents.roles import open_roles
from palimpsest.app.config_resolution import QUICKSTART, Resume, model_folder, on_embedded, resumable
from palimpsest.app.datasets.textworld_games import make_missing_games
from palimpsest.app.evaluate.evaluator import Evaluator, measures_of
from palimpsest.app.python_calls import blocking, finish, suitable_progress
from palimpsest.app.quickstart.quickstart_plan import Grid, resolve_quickstart
from palimpsest.app.quickstart.quickstart_results import Results, publish, results_of
from palimpsest.app.train.run_handle import Run
from palimpsest.app.train.run_setup import Setup, open_setup
from palimpsest.app.train.training_run import train_in_folder
from palimpsest.app.worker_processes import Say, run_process, serve_parent
from palimpsest.config.engine import SamplerConfig
from palimpsest.config.load import Overrides, dump_config, parse_config
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import with_keys
from palimpsest.engines.open import open_engine, using
from palimpsest.engines.protocol import Sampler
from palimpsest.errors import RunError
from palimpsest.evaluation.runner import Entry
from palimpsest.evaluation.sample_log import SAMPLES, SUMMARY, Cell, Sample, read_samples, set_aside_other
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.progress.reporter import Progress, Stage, Tick
from palimpsest.provenance import evaluation_identity
from palimpsest.reward.grading import build_reward, closing
from palimpsest.rollout.speculation import Speculation
from palimpsest.runs.resume_rules import RunOrigin
from palimpsest.runs.run_folder import RunFolder, load_config, open_run
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.display_text import Table

# ---- Result of a quickstart ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quickstart:
    """Result of a quickstart."""

    run: Run
    results: Results | None
    """None if interrupted (`resume` continues it)."""

    @property
    def folder(self) -> Path:
        """Folder of run, report and figures."""
        return self.run.folder

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
        """Accuracy as fractions, one row per player, one column per size."""
        results = self._finished()
        return Table.of(
            [
                {"accuracy": results.label(name)}
                | {results.heading(point): row[point].accuracy.mean for point in results.points}
                for name, row in results.cells.items()
            ]
        )

    def __repr__(self) -> str:
        head = f"quickstart {Grid(self.run.config).method} in {self.folder}"
        return f"{head}\n{self.table}" if self.finished else f"{head}: interrupted after {self.run.steps} steps"

    def _repr_html_(self) -> str:
        return self.table._repr_html_() if self.finished else f"<p>{html.escape(repr(self))}</p>"

    def _finished(self) -> Results:
        if self.results is None:
            raise RunError(f"{self.folder}: interrupted; resume it with quickstart(resume={str(self.folder)!r})")
        return self.results


async def quickstart_async(
    method: str | None = None,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
    force: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
    stop: GracefulStop | None = None,
) -> Quickstart:
    """Train an agent on this machine's CPU, evaluate it beyond its training length and write a report, within minutes.

    `quickstart` is an ordinary call and works in a notebook; `quickstart_async` is a coroutine.

    - `method`: memagent (the default), rememr1, memact, parallel, lead, edit or textworld
    - the others: as for `train`; the defaults are `seed` 0 and `out` runs/quickstart

    Raises ConfigError, DataError, ModelError or RunError with a message that names key, value and fix.
    """
    shown, started = progress or suitable_progress(quiet=quiet), time.monotonic()
    run = resolve_quickstart(method, overrides, seed=seed, out=out, resume=resume)
    config, out = run.config, run.folder
    await make_missing_games(config, shown)
    setup = await asyncio.to_thread(open_setup, config, out)
    _admit(config, setup)
    plan, origin = _plan(config), RunOrigin(QUICKSTART)
    with (
        open_run(out, config, resume=run.resume, force=force, on_warning=shown.message, origin=origin) as folder,
        resumable(out, shown),
        shown.stages(plan) as staged,
    ):
        shown.message(_announced(config, plan, out))
        samples = await _train_and_evaluate(folder, config, setup, staged, stop or GracefulStop())
        if samples is None:
            return Quickstart(Run(out), None)
        results = results_of(config, out, samples, time.monotonic() - started)
        publish(out, results)
    return Quickstart(Run(out), results)


quickstart = blocking(quickstart_async)


# ---- Training and evaluation ---------------------------------------------------------------------------------


async def _train_and_evaluate(
    folder: RunFolder, config: RunConfig, setup: Setup, progress: Progress, stop: GracefulStop
) -> dict[Cell, list[Sample]] | None:
    """Train here and the baselines in other processes, and evaluate all; None if interrupted."""
    out, agent = folder.path, config.evaluation.agent
    try:
        async with asyncio.TaskGroup() as group:
            work = QuickstartProcesses(config.evaluation.processes, progress, group)
            async with work.room:  # this process is one of them
                rivals = {name: work.begin("train", out, name) for name in config.evaluation.trained_baselines}
                finished = await train_in_folder(
                    folder,
                    config,
                    setup,
                    progress=progress,
                    stop=stop,
                    on_start=lambda model: work.play(Shard(config, out, f"{agent}_before", model)),
                )
            if stop.requested:  # perhaps in the last step
                work.cancel()
                return None
            models = {agent: str(finished.checkpoint)} | {name: str(_rival(out, name)) for name in rivals}
            for name, model in models.items():
                for index in range(config.evaluation.processes):
                    work.play(Shard(config, out, name, model, index, config.evaluation.processes), rivals.get(name))
            await _evaluated(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the others were cancelled because of it
    return samples_of(work.shards)


async def _evaluated(work: QuickstartProcesses) -> None:
    """Show the evaluated turns until all shards end."""
    total = sum(shard.turns for shard in work.shards)
    with work.progress.count("evaluation", total, done=work.played) as tick:
        work.tick = tick
        await asyncio.wait(work.tasks)  # the task group raises errors; `gather` would cancel what the group cancels too
        tick(total)  # the number of turns is an estimate


class QuickstartProcesses:
    """Processes of a quickstart, at most `processes` at a time, and its evaluated turns."""

    def __init__(self, processes: int, progress: Progress, group: asyncio.TaskGroup, code: str = "") -> None:
        self.room, self.progress = asyncio.Semaphore(processes), progress
        self.shards, self.tasks = list[Shard](), list[asyncio.Task[None]]()
        self.played = 0
        """Turns, including earlier runs."""
        self.tick: Tick | None = None
        """Counts further turns."""
        self._group, self._code, self._here = group, code or _MAIN, asyncio.Lock()

    def play(self, shard: Shard, after: asyncio.Task[None] | None = None) -> None:
        """Run a shard when `after` is done, the first of several in this process."""
        self.shards.append(shard)
        self.played += sum(sample.turns for sample in shard.samples())
        words = ("evaluate", shard.out, shard.name, shard.model, shard.index, shard.count)
        self.begin(*words, after=after, here=shard if shard.count > 1 and shard.index == 0 else None)

    def begin(
        self, *words: object, after: asyncio.Task[None] | None = None, here: Shard | None = None
    ) -> asyncio.Task[None]:
        """Start `main` on `words`, or run the shard `here`, in the next free process when `after` is done."""

        async def later() -> None:
            if after is not None:
                await after
            async with self._here if here else nullcontext(), self.room:
                if here:
                    await here.play(self._receive)
                else:
                    await run_process(list(map(str, words)), self._receive, self._code)

        self.tasks.append(self._group.create_task(later()))
        return self.tasks[-1]

    def cancel(self) -> None:
        """End all processes."""
        for task in self.tasks:
            task.cancel()

    def _receive(self, said: int | str) -> None:
        if isinstance(said, str):
            self.progress.message(said)
            return
        self.played += said
        if self.tick is not None:
            self.tick(said)


# ---- Work of a process ---------------------------------------------------------------------------------------


_MAIN = "from palimpsest.app.quickstart.quickstart_run import main; main()"


def main() -> None:
    """Train a baseline or run a shard, as the command line says."""
    serve_parent(_work)


def _work(say: Say, command: str, out: str, name: str, *shard: str) -> None:
    config = load_config(out)
    if command == "train":
        train_baseline(config, Path(out), name, say)
    else:
        model, index, count = shard
        finish(lambda: Shard(config, Path(out), name, model, int(index), int(count)).play(say))


_REPORT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `index` of `count` of the evaluation of one model of a quickstart."""

    config: RunConfig
    out: Path
    """Folder of the quickstart."""
    name: str
    """Player that the model belongs to; the baselines without training use the agent's."""
    model: str
    index: int = 0
    count: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the players."""
        evaluation = self.config.evaluation
        return (self.name, *evaluation.baselines) if self.name == evaluation.agent else (self.name,)

    @property
    def path(self) -> Path:
        """Folder of its log."""
        agent = self.config.evaluation.agent
        folder = {agent: "after", f"{agent}_before": "before"}.get(self.name, self.name)
        return self.out / "evaluations" / folder / f"shard-{self.index + 1}-of-{self.count}"

    @property
    def turns(self) -> int:
        """Estimated turns."""
        return Grid(self.config).turns(self.names, self.index, self.count)

    def entries(self) -> list[Entry]:
        """Its players and problems."""
        return Grid(self.config).entries(self.names, self.index, self.count)

    def samples(self) -> list[Sample]:
        """Samples in its log."""
        log = self.path / SAMPLES
        return read_samples(log)[0] if log.is_file() else []

    async def play(self, say: Say) -> None:
        """Run the episodes missing from its log."""
        config = on_embedded(self.config)  # regardless of the training engine
        config = with_keys(
            config, {"model.path": model_folder(self.model, say), "sampler": SamplerConfig(name="embedded")}
        )
        engine = await asyncio.to_thread(open_engine, config, objective=None)
        grid, own, most = Grid(config), self.entries(), engine.sampler.max_context
        for each in own:
            admit_all(each.policy, each.problems, engine.codec, most, environment=config.environment)
        reward = build_reward(config.reward, engine.codec, self.path.parent)
        roles = await asyncio.to_thread(open_roles, config, engine.codec, engine.sampler)
        measure = measures_of(config)
        evaluator = Evaluator(config, engine, reward.answer, key="quickstart", measure=measure, roles=roles)
        policies = {name: grid.players[name] for name in self.names}
        identity = {**evaluation_identity(config, policies), "trained": grid.planned}  # points are multiples of it
        if aside := set_aside_other(self.path, identity):
            say(f"weights or settings changed: evaluating again, old episodes are in {aside}")
        playing = evaluator.play(own, out=self.path, identity=identity, on_warning=say)
        samplers = [engine.sampler, *(each.sampler for each in roles.engines)]
        reporting = asyncio.create_task(_report_turns(samplers, evaluator.speculation, say))
        try:
            await using(engine, using(roles, closing(reward, playing)))
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])


async def _report_turns(samplers: Sequence[Sampler], speculation: Speculation | None, say: Say) -> None:
    """Report started turns until cancelled: long episodes run concurrently and end at the same time."""
    reported, playing = 0, True
    while playing:
        try:
            await asyncio.sleep(_REPORT_EVERY_S)
        except asyncio.CancelledError:
            playing = False
        started = sum(one.stats().requests for one in samplers) - (speculation.wasted if speculation else 0)
        if started > reported:
            say(started - reported)
            reported = started


def samples_of(shards: Iterable[Shard]) -> dict[Cell, list[Sample]]:
    """Samples of finished shards by cell, for the problems of the current configuration."""
    found: dict[Cell, list[Sample]] = {}
    for shard in shards:
        asked = {(each.cell, problem.id) for each in shard.entries() for problem in each.problems}
        for sample in shard.samples():
            if (sample.cell, sample.id) in asked:
                found.setdefault(sample.cell, []).append(sample)
    return found


def baseline_config(config: RunConfig, name: str) -> RunConfig:
    """Training of a baseline: the agent's with another policy, without `train.variant`, which changes its options."""
    changes = {
        "recipe": f"{config.recipe}-{name}",
        "policy": config.evaluation.trained_baselines[name],
        "logging": config.logging.model_copy(update={"report_to": ("jsonl",)}),
        "train": config.train.model_copy(update={"variant": None}),
    }
    return parse_config(dump_config(config.model_copy(update=changes)))


def _rival(out: Path, name: str) -> Path:
    """Folder of a baseline's training."""
    return out / "rivals" / name


def train_baseline(config: RunConfig, out: Path, name: str, say: Say) -> None:
    """Train a baseline to the end, resuming its run."""
    own, path = baseline_config(config, name), _rival(out, name)
    with open_run(path, own, resume=True, on_warning=say) as folder:
        finished = finish(lambda: train_in_folder(folder, own, open_setup(own, folder.path)))
    if finished.interrupted:
        raise RunError(f"{path}: interrupted after step {finished.step}; resume its quickstart")


# ---- Plan ----------------------------------------------------------------------------------------------------


def _admit(config: RunConfig, setup: Setup) -> None:
    """Check before training that the model fits the budgets of all evaluated policies."""
    engine, grid = setup.engine, Grid(config)
    problems, most = grid.problems(grid.telling), engine.sampler.max_context
    for policy in (config.policy, *grid.others.values()):
        admit_all(build_policy(policy), problems, engine.codec, most, environment=config.environment)


_SECONDS = {
    "memagent-quickstart": (0.3, 0.8, 0.0006),
    "rememr1-quickstart": (0.3, 2.6, 0.0008),
    "memact-quickstart": (0.3, 7.4, 0.004),
    "parallel-quickstart": (0.3, 2.1, 0.001),
    "lead-quickstart": (0.3, 2.3, 0.0008),
    "edit-quickstart": (0.3, 17.5, 0.01),
    "textworld-quickstart": (1.25, 9.0, 0.0042),
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
