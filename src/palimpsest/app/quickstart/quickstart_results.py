"""Quickstart results: summaries, figures, a report, and one report of several seeds.

    DIR/seed-0/  DIR/seed-1/ ...      a quickstart each
    DIR/report.html  DIR/plots/       means over the seeds, with intervals
    DIR/summary.json                  the same as figures, written last

Guaranteed: summary.json is written last, by rename, so a folder that has it is complete; invalid requests are rejected
before the first seed is trained; a call with `resume` continues every seed and gives the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.app.composition import policy_of
from palimpsest.app.config_resolution import check_quickstart, run_config
from palimpsest.app.quickstart_methods import METHODS, Method
from palimpsest.app.resume import QUICKSTART, Resume, resumed_run
from palimpsest.app.train.training_summary import told_of_last_step
from palimpsest.config.load import Overrides, dump_config
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.evaluation.sample_log import SUMMARY, Cell, Sample, write_json
from palimpsest.evaluation.summary import T_975, EvalSummary, student, summarise
from palimpsest.memory.registry import build_policy
from palimpsest.provenance import MADE_WITH, facts
from palimpsest.report.page import view_command
from palimpsest.report.quickstart_report import Results, TableCell, write_report, write_seeds_report
from palimpsest.runs.jsonl_rows import read_rows, with_number
from palimpsest.runs.resume_rules import made_with
from palimpsest.runs.run_folder import CONFIG, METRICS, RunFolder, load_config

SHOWN_SAMPLES = 4

Summaries = dict[str, dict[int, EvalSummary]]
"""Policy name, then point of the method's axis."""


def publish(
    method: Method, config: RunConfig, folder: RunFolder, samples: Mapping[Cell, Sequence[Sample]], wall_s: float
) -> Results:
    """Write report and summaries."""
    points = method.axis.points(config)
    summaries = {
        name: {p: summarise(cell := method.cell(config, name, p), samples.get(cell, ())) for p in points}
        for name in method.names(config)
    }
    last = method.cell(config, method.agent, max(points))
    longest = sorted(samples.get(last, ()), key=lambda sample: sample.id)
    results = _results(method, config, folder, summaries, longest[:SHOWN_SAMPLES], wall_s)
    write_report(folder.path, results)
    write_json(
        folder.path / "evaluations" / SUMMARY,
        {name: {str(p): s.to_json() for p, s in row.items()} for name, row in summaries.items()},
    )
    told = summary_json(method, results) | method.figures(method.agent, summaries)
    write_json(folder.path / SUMMARY, told | {MADE_WITH: made_with(folder.path)})
    return results


def _results(
    method: Method,
    config: RunConfig,
    folder: RunFolder,
    summaries: Summaries,
    samples: Sequence[Sample],
    wall_s: float,
) -> Results:
    rows = with_number(read_rows(folder.path / METRICS), "reward/mean")
    axis = method.axis
    first, sizes, planned = min(axis.points(config)), axis.sizes(config, rows), axis.planned(config)
    return Results(
        method=method.name,
        seed=config.seed,
        trained=max(sizes, default=planned),
        planned=planned,
        wall_s=wall_s,
        cells={name: {m: TableCell.of(summary) for m, summary in row.items()} for name, row in summaries.items()},
        rewards=[float(row["reward/mean"]) for row in rows],
        metrics=rows,
        lengths=sizes,
        fidelity_before=summaries[method.before][first].measures.get("copy_fidelity"),
        fidelity_after=summaries[method.agent][first].measures.get("copy_fidelity"),
        dropped_before=summaries[method.before][first].measures.get("dropped_share"),
        dropped_after=summaries[method.agent][first].measures.get("dropped_share"),
        samples=samples,
        config=dump_config(config),
        words=method.axis.words,
        agent=method.agent,
        labels=method.labels,
        others=method.others,
        note=method.note,
        stories=told_of_last_step(folder.path, config),
        look=view_command(folder.path),
        made=facts(made_with(folder.path)),
    )


def summary_json(method: Method, results: Results) -> dict[str, Any]:
    """What summary.json holds of every method; keys of the inner maps are points of its axis."""
    return {
        "method": results.method,
        "seed": results.seed,
        method.axis.trained_key: results.trained,
        method.axis.planned_key: results.planned,
        "wall_s": round(results.wall_s, 1),
        "accuracy": {
            name: {str(m): cell.score.mean for m, cell in sorted(row.items())} for name, row in results.cells.items()
        },
    }


# ---- Which quickstart is meant -------------------------------------------------------------------------------


DEFAULT_FOLDER = "runs/quickstart"


@dataclass(frozen=True, slots=True)
class AskedQuickstart:
    """A quickstart to begin or to go on with."""

    method: str
    config: RunConfig
    folder: Path
    resume: bool


def asked_quickstart(
    method: str | None,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
) -> AskedQuickstart:
    """The quickstart that these options mean. Raises ConfigError, or RunError for a folder without a run."""
    folder = Path(out or DEFAULT_FOLDER)
    if resume is True and method is None and (folder / CONFIG).is_file():
        resume = folder
    run = resumed_run(None if method in METHODS else method, out, resume, QUICKSTART)
    if run is None:
        name = method or next(iter(METHODS))
        check_quickstart(name)
        config = quickstart_config(name, overrides, seed or 0, folder if resume else None)
        return AskedQuickstart(name, config, folder, bool(resume))
    config = run_config(load_config(run), overrides, seed=seed)
    name = config.recipe.removesuffix("-quickstart")
    check_quickstart(name)
    return AskedQuickstart(name, _checked(config, METHODS[name]), run, True)


def quickstart_config(method: str, overrides: Overrides, seed: int, resumed: Path | None = None) -> RunConfig:
    """The method's quickstart recipe. Raises ConfigError if it can't be evaluated along the method's axis."""
    config = run_config(f"{method}-quickstart", overrides, seed=seed, out=resumed, resume=resumed is not None)
    return _checked(config, METHODS[method])


def _checked(config: RunConfig, method: Method) -> RunConfig:
    axis = method.axis
    if config.data.train_files != axis.source:
        raise ConfigError(
            f"data.train_files={config.data.train_files}: quickstart {axis.growth}, so it needs {axis.source}; "
            "palimpsest train takes any file"
        )
    axis.points(config)
    _check_names(config, method)
    policy_of(config)
    for policy in other_policies(config):
        build_policy(policy)
    return config


def _check_names(config: RunConfig, method: Method) -> None:
    """Refuse names under which two policies would be played, or that are no folder of the run's."""
    taken = {method.agent: "the agent", method.before: "the agent before training"}
    for key, named in (
        ("trained_baselines", config.evaluation.trained_baselines),
        ("baselines", config.evaluation.baselines),
    ):
        for name in named:
            if name in taken:
                raise ConfigError(f"evaluation.{key}.{name}: {taken[name]} has this name in the report; give another")
            if key == "trained_baselines" and (name in _FOLDERS or name != Path(name).name):
                raise ConfigError(
                    f"evaluation.trained_baselines.{name}: can't be the name of its folder; give a plain one"
                )
            taken[name] = f"evaluation.{key}.{name}"


_FOLDERS = ("", "..", "before", "after")
"""Under evaluations/, whose these are, and above it."""


def other_policies(config: RunConfig) -> list[PolicyConfig]:
    """Who is compared with the agent: rivals and baselines."""
    return [*config.evaluation.trained_baselines.values(), *config.evaluation.baselines.values()]


# ---- A quickstart under several seeds, one after the other, and one report of all of them --------------------


SEEDS_FOLDER = "runs/quickstart-seeds"


@dataclass(frozen=True, slots=True)
class AskedSeeds:
    """A quickstart under several seeds, to begin or to go on with."""

    folder: Path
    each: tuple[AskedQuickstart, ...]


def asked_seeds(
    method: str | None, overrides: Overrides, seeds: Sequence[int], *, out: str | Path | None, resume: bool, force: bool
) -> AskedSeeds:
    """The quickstarts that these options mean. Raises ConfigError, or RunError for a folder that holds a run."""
    folder = Path(out or SEEDS_FOLDER)
    if not all(type(seed) is int and seed >= 0 for seed in seeds) or len(set(seeds)) < max(2, len(seeds)):
        raise ConfigError(f"seeds={list(seeds)}: give two or more different whole numbers, such as 0,1,2")
    if len(seeds) > len(T_975):
        raise ConfigError(f"seeds={list(seeds)}: give {len(T_975)} at most")
    if (folder / CONFIG).is_file():
        raise RunError(f"{folder} holds a run itself: give another folder for the runs of several seeds")
    each = tuple(
        asked_quickstart(method, overrides, seed=seed, out=folder / f"seed-{seed}", resume=resume) for seed in seeds
    )
    there = [asked.folder for asked in each if (asked.folder / CONFIG).is_file()]
    if there and not (resume or force):
        raise RunError(
            f"{there[0]} holds a run: the same call with --resume continues the seeds, --force moves them aside "
            "(in Python resume=True, force=True)"
        )
    return AskedSeeds(folder, each)


def publish_seeds(folder: Path, method: str, each: Sequence[Results], runs: Sequence[Path]) -> Results:
    """Write the report and summary.json of several seeds into `folder`."""
    names = [run.name for run in runs]
    merged = write_seeds_report(folder, each, names)
    axis = METHODS[method].axis
    write_json(
        folder / SUMMARY,
        {
            "method": method,
            "seeds": [one.seed for one in each],
            "runs": names,
            axis.trained_key: [one.trained for one in each],
            axis.planned_key: merged.planned,
            "wall_s": round(merged.wall_s, 1),
            "accuracy": {name: {str(p): _figures(each, name, p) for p in merged.points} for name in merged.cells},
        },
    )
    return merged


def _figures(each: Sequence[Results], name: str, point: int) -> dict[str, Any]:
    singly = [one.cells[name][point].score.mean for one in each]
    score = student(singly)
    return {"mean": score.mean, "low": score.low, "high": score.high, "seeds": singly}
