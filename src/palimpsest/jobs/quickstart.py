"""`palimpsest quickstart`: train, evaluate on the sizes trained on and beyond, report.

    main process     (cold start) train ............ evaluate share 1   report
    helper           train the rivals, evaluate the untrained agent ...   evaluate share 2

Which agents there are, and what grows along the axis, is the method's affair (jobs/methods.py) and its recipe's.

Guaranteed: an interrupted quickstart goes on with --resume and comes to the same figures; summary.json is written
last, by rename, so a folder that has it is complete.
Not covered: `wall_s` is the time of the last invocation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.load import dump_config, load_recipe, parse_config
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.evaluate.samples import Sample, write_json
from palimpsest.evaluate.summary import EvalSummary, summarise
from palimpsest.jobs.evaluation import interval, percent
from palimpsest.jobs.methods import METHODS, Method
from palimpsest.jobs.parts import policy_of
from palimpsest.jobs.shares import Helper, Share, play_share, samples_of, set_name
from palimpsest.jobs.show import note, progress, stdout, table
from palimpsest.jobs.training import Prepared, prepare, train_run
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.report.report import Cell, Results, write_report
from palimpsest.runs.run_folder import METRICS, RunFolder, open_run, read_rows

SUMMARY = "summary.json"
SHOWN_SAMPLES = 4

Summaries = dict[str, dict[int, EvalSummary]]
"""Policy name, then point of the method's axis."""


@dataclass(frozen=True, slots=True)
class RivalTraining:
    """A rival's training, as a task for a helper process."""

    config: str
    """The rival's own run configuration as YAML."""
    folder: Path

    def run(self, on_episode: Callable[[], None]) -> None:
        """Train to the end, going on from what is there."""
        config = parse_config(self.config)
        with open_run(self.folder, config, resume=True, on_warning=note) as folder:
            finished = train_run(folder, config, prepare(config))
        if finished.interrupted:
            raise RunError(f"{self.folder}: interrupted after step {finished.step}; run again with --resume")

    @property
    def model(self) -> str:
        """Folder of the trained weights, once it has run."""
        return str(self.folder / "checkpoints" / f"step-{parse_config(self.config).train.steps:06d}")


def run_quickstart(
    name: str, *, overrides: Sequence[str], seed: int, out: Path, resume: bool = False, force: bool = False
) -> None:
    """Do all of it in `out`."""
    started = time.monotonic()
    method = METHODS[name]
    config = quickstart_config(name, overrides, seed)
    prepared = prepare(config)
    _admit(method, config, prepared)
    with ExitStack() as stack:
        folder = stack.enter_context(open_run(out, config, resume=resume, force=force, on_warning=note))
        helpers = [Helper() for _ in range(max(1, config.evaluation.processes - 1))]
        for helper in helpers:
            stack.callback(helper.stop)
        rivals = _rivals(config, out)
        trained = {rival: helpers[0].hand(task) for rival, task in rivals.items()}
        before: list[Share] = []

        def begin(model: str) -> None:
            text = dump_config(config)
            before.append(Share(text, model, (method.before,), out / "evaluations" / "before", 0, 1, name))
            helpers[0].hand(before[0])

        finished = train_run(folder, config, prepared, begin)
        if finished.interrupted:
            note(f"stopped after step {finished.step}; palimpsest quickstart {name} --out {out} --resume goes on")
            return
        models = {rival: task.model for rival, task in rivals.items()}
        weights = _weights(method, config, str(finished.checkpoint), models, trained, out)
        after = _evaluate_after(config, weights, helpers, before)
    _publish(method, config, folder, samples_of([*before, *after]), time.monotonic() - started)


def _rivals(config: RunConfig, out: Path) -> dict[str, RivalTraining]:
    """The trainings of the recipe's rivals: the agent's own but for the policy, whose options a variant changes."""
    quiet = config.logging.model_copy(update={"sinks": ("jsonl",)})
    train = config.train.model_copy(update={"variant": None})
    found = {}
    for name, policy in config.evaluation.rivals.items():
        changed = {"recipe": f"{config.recipe}-{name}", "policy": policy, "logging": quiet, "train": train}
        own = config.model_copy(update=changed)
        found[name] = RivalTraining(dump_config(own), out / "rivals" / name)
    return found


def quickstart_config(method: str, overrides: Sequence[str], seed: int) -> RunConfig:
    """The method's quickstart recipe. Raises ConfigError if it can't be evaluated along the method's axis."""
    axis = METHODS[method].axis
    config = load_recipe(f"{method}-quickstart", [*overrides, f"seed={seed}", f"data.seed={seed}"])
    if config.data.source != axis.source:
        raise ConfigError(
            f"data.source={config.data.source}: quickstart {axis.growth}, so it needs {axis.source}; "
            "palimpsest train takes any file"
        )
    axis.points(config)
    policy_of(config)
    for policy in _others(config):
        build_policy(policy)
    return config


def _others(config: RunConfig) -> list[PolicyConfig]:
    return [*config.evaluation.rivals.values(), *config.evaluation.baselines.values()]


def _admit(method: Method, config: RunConfig, prepared: Prepared) -> None:
    """Refuse now what the evaluation would refuse after training: a policy whose budgets the model can't hold."""
    engine = prepared.parts.engine
    problems = method.axis.problems(config, method.axis.telling(config))
    for policy in (config.policy, *_others(config)):
        admit_all(build_policy(policy), problems, engine.codec, engine.sampler.max_context)


@dataclass(frozen=True, slots=True)
class Weights:
    """A trained model and who is evaluated on it."""

    model: str
    policies: tuple[str, ...]
    tasks: int
    """Tasks of the first helper after which the model is there."""
    shares: tuple[Share, ...]
    """One a process, the main process's first."""


def _weights(
    method: Method, config: RunConfig, model: str, rivals: Mapping[str, str], trained: Mapping[str, int], out: Path
) -> list[Weights]:
    """The agent's weights and each rival's; `trained` are the first helper's counts of tasks."""
    text, count = dump_config(config), config.evaluation.processes

    def weights(folder: str, path: str, policies: tuple[str, ...], tasks: int) -> Weights:
        place = out / "evaluations" / folder
        shares = tuple(Share(text, path, policies, place, i, count, method.name) for i in range(count))
        return Weights(path, policies, tasks, shares)

    own = weights("after", model, (method.agent, *config.evaluation.baselines), 0)
    return [own, *(weights(name, path, (name,), trained[name]) for name, path in rivals.items())]


def _evaluate_after(
    config: RunConfig, weights: Sequence[Weights], helpers: Sequence[Helper], before: Sequence[Share]
) -> list[Share]:
    """Evaluate all trained weights in all processes, and wait for what is left of the work before."""
    shares = [share for one in weights for share in one.shares]
    total = sum(share.episodes(config) for share in (*before, *shares))
    mine = shown = 0
    with progress("evaluation", total) as tick:

        def show() -> None:
            nonlocal shown
            seen = mine + sum(helper.played for helper in helpers)
            tick(seen - shown)
            shown = seen

        def on_episode() -> None:
            nonlocal mine
            mine += 1
            show()

        for one in weights:
            for helper, share in zip(helpers, one.shares[1:], strict=False):
                if helper is not helpers[0]:  # the first trains the rivals and comes to this after them
                    helpers[0].wait(show, one.tasks)
                helper.hand(share)
        for one in weights:
            helpers[0].wait(show, one.tasks)
            play_share(one.shares[0], on_episode)
        for helper in helpers:
            helper.wait(show)
    return shares


def _publish(
    method: Method, config: RunConfig, folder: RunFolder, samples: Mapping[str, Sequence[Sample]], wall_s: float
) -> None:
    points = method.axis.points(config)
    summaries = {
        name: {p: summarise(set_name(name, p), samples.get(set_name(name, p), ())) for p in points}
        for name in method.names(config)
    }
    longest = sorted(samples.get(set_name(method.agent, max(points)), ()), key=lambda sample: sample.id)
    results = _results(method, config, folder, summaries, longest[:SHOWN_SAMPLES], wall_s)
    write_report(folder.path, results)
    write_json(
        folder.path / "evaluations" / SUMMARY,
        {name: {str(p): s.to_json() for p, s in row.items()} for name, row in summaries.items()},
    )
    write_json(folder.path / SUMMARY, summary_json(method, results) | method.figures(method.agent, summaries))
    _print(method, config, results, folder.path)


def _results(
    method: Method,
    config: RunConfig,
    folder: RunFolder,
    summaries: Summaries,
    samples: Sequence[Sample],
    wall_s: float,
) -> Results:
    rows = [row for row in read_rows(folder.path / METRICS) if "reward/mean" in row]
    first = min(method.axis.points(config))
    return Results(
        method=method.name,
        seed=config.seed,
        trained=method.axis.trained(config),
        wall_s=wall_s,
        cells={
            name: {m: Cell(s.accuracy, s.tokens_per_document, s.problems, s.ungraded) for m, s in row.items()}
            for name, row in summaries.items()
        },
        rewards=[float(row["reward/mean"]) for row in rows],
        metrics=rows,
        lengths=method.axis.sizes(config, rows),
        fidelity_before=summaries[method.before][first].measures.get("copy_fidelity"),
        fidelity_after=summaries[method.agent][first].measures.get("copy_fidelity"),
        samples=samples,
        config=dump_config(config),
        words=method.axis.words,
        agent=method.agent,
        labels=method.labels,
        others=method.others,
        note=method.note,
    )


def summary_json(method: Method, results: Results) -> dict[str, Any]:
    """What summary.json holds of every method; keys of the inner maps are points of its axis."""
    return {
        "method": results.method,
        "seed": results.seed,
        method.axis.trained_key: results.trained,
        "wall_s": round(results.wall_s, 1),
        "accuracy": {
            name: {str(m): cell.score.mean for m, cell in sorted(row.items())} for name, row in results.cells.items()
        },
    }


def _print(method: Method, config: RunConfig, results: Results, path: Path) -> None:
    points = sorted(method.axis.points(config))
    columns = ["accuracy in %, 95% interval", *(method.axis.heading(config, p) for p in points)]
    rows = [
        [results.label(name), *(f"{percent(row[p].score.mean)}  {interval(row[p].score)}" for p in points)]
        for name, row in results.cells.items()
    ]
    tokens = [
        [f"{results.words.cost.replace(' processed', '')}, {label}", *(f"{row[p].tokens:,.0f}" for p in points)]
        for label, row in _costs(results)
    ]
    stdout().print(table("", columns, [*rows, *tokens]))
    time_taken = f"{results.wall_s / 60:.1f} minutes"
    if results.words.reads:
        fidelity = [percent(value) for value in (results.fidelity_before, results.fidelity_after)]
        time_taken = f"copy fidelity {fidelity[0]}% before, {fidelity[1]}% after; {time_taken}"
    note(time_taken)
    note(f"{path / 'report.html'}, {path / SUMMARY}")


def _costs(results: Results) -> list[tuple[str, Mapping[int, Cell]]]:
    """Whose tokens the table shows: the agent's, or everybody's where they don't follow from the size."""
    if results.words.reads:
        return [("agent", results.cells[results.agent])]
    return [(results.label(name), row) for name, row in results.cells.items()]
