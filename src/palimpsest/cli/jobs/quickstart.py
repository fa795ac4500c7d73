"""`palimpsest quickstart`: train, evaluate far beyond the training length, report.

    main process     train ........................ evaluate share 1   report
    helper           evaluate the untrained model   evaluate share 2

Guaranteed: an interrupted quickstart goes on with --resume and comes to the same figures; summary.json is written
last, by rename, so a folder that has it is complete.
Not covered: `wall_s` is the time of the last invocation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from palimpsest.cli.jobs.evaluation import interval, percent
from palimpsest.cli.jobs.parts import policy_of
from palimpsest.cli.jobs.shares import Helper, Share, play_share, samples_of, set_name, training_chunks
from palimpsest.cli.jobs.show import note, progress, stdout, table
from palimpsest.cli.jobs.training import Prepared, prepare, train_in
from palimpsest.config.load import dump_config, load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.data.source import build_source
from palimpsest.errors import ConfigError
from palimpsest.evaluate.report import LABELS, Cell, Results, write_report
from palimpsest.evaluate.samples import Sample, write_json
from palimpsest.evaluate.summary import EvalSummary, summarise
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.train.run_folder import METRICS, RunFolder, open_run, read_rows

SUMMARY = "summary.json"
SHOWN_SAMPLES = 4

Summaries = dict[str, dict[int, EvalSummary]]
"""Policy name, then multiple of the training length."""


def run_quickstart(
    method: str, *, overrides: Sequence[str], seed: int, out: Path, resume: bool = False, force: bool = False
) -> None:
    """Do all of it in `out`."""
    started = time.monotonic()
    config = quickstart_config(method, overrides, seed)
    prepared = prepare(config)
    _admit(config, prepared)
    with ExitStack() as stack:
        folder = stack.enter_context(open_run(out, config, resume=resume, force=force, on_warning=note))
        helpers = [Helper() for _ in range(max(1, config.evaluation.processes - 1))]
        for helper in helpers:
            stack.callback(helper.stop)
        before = [_share(config, config.model.path, ("agent_before",), out / "evaluations" / "before", 0, 1)]
        helpers[0].hand(before[0])
        finished = train_in(folder, config, prepared)
        if finished.interrupted:
            note(f"stopped after step {finished.step}; palimpsest quickstart {method} --out {out} --resume goes on")
            return
        after = _evaluate_after(config, str(finished.checkpoint), out, helpers, before)
    _publish(method, config, folder, samples_of([*before, *after]), time.monotonic() - started)


def quickstart_config(method: str, overrides: Sequence[str], seed: int) -> RunConfig:
    """The method's quickstart recipe. Raises ConfigError if it can't be evaluated at multiples of its length."""
    config = load_recipe(f"{method}-quickstart", [*overrides, f"seed={seed}", f"data.seed={seed}"])
    if config.data.source != "synthetic":
        raise ConfigError(
            f"data.source={config.data.source}: quickstart grows its documents, so it needs synthetic; "
            "palimpsest train takes any file"
        )
    policy_of(config)
    for policy in config.evaluation.baselines.values():
        build_policy(policy)
    return config


def _admit(config: RunConfig, prepared: Prepared) -> None:
    """Refuse now what the evaluation would refuse after training: a baseline whose budgets the model can't hold."""
    engine = prepared.parts.engine
    problems = build_source(config.data, split="eval").problems(
        step=0, count=config.evaluation.problems, chunks=training_chunks(config)
    )
    for policy in (config.policy, *config.evaluation.baselines.values()):
        admit_all(build_policy(policy), problems, engine.codec, engine.sampler.max_context)


def _share(config: RunConfig, model: str, policies: tuple[str, ...], folder: Path, index: int, count: int) -> Share:
    return Share(dump_config(config), model, policies, folder, index, count)


def _evaluate_after(
    config: RunConfig, model: str, out: Path, helpers: Sequence[Helper], before: Sequence[Share]
) -> list[Share]:
    """Evaluate the trained weights in all processes, and wait for what is left of the evaluation before."""
    count = config.evaluation.processes
    policies = ("agent", *config.evaluation.baselines)
    shares = [_share(config, model, policies, out / "evaluations" / "after", i, count) for i in range(count)]
    for helper, share in zip(helpers, shares[1:], strict=False):
        helper.hand(share)
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

        play_share(shares[0], on_episode)
        for helper in helpers:
            helper.wait(show)
    return shares


def _publish(
    method: str, config: RunConfig, folder: RunFolder, samples: Mapping[str, Sequence[Sample]], wall_s: float
) -> None:
    names = ("agent", "agent_before", *config.evaluation.baselines)
    multiples = config.evaluation.multiples
    summaries = {
        name: {m: summarise(set_name(name, m), samples.get(set_name(name, m), ())) for m in multiples} for name in names
    }
    longest = sorted(samples.get(set_name("agent", max(multiples)), ()), key=lambda sample: sample.id)
    results = _results(method, config, folder, summaries, longest[:SHOWN_SAMPLES], wall_s)
    write_report(folder.path, results)
    write_json(
        folder.path / "evaluations" / SUMMARY,
        {name: {str(m): s.to_json() for m, s in row.items()} for name, row in summaries.items()},
    )
    write_json(folder.path / SUMMARY, summary_json(results))
    _print(results, folder.path)


def _results(
    method: str,
    config: RunConfig,
    folder: RunFolder,
    summaries: Summaries,
    samples: Sequence[Sample],
    wall_s: float,
) -> Results:
    rows = [row for row in read_rows(folder.path / METRICS) if "reward/mean" in row]
    first = min(config.evaluation.multiples)
    return Results(
        method=method,
        seed=config.seed,
        training_chunks=training_chunks(config),
        wall_s=wall_s,
        cells={
            name: {m: Cell(s.accuracy, s.tokens_per_document, s.problems, s.ungraded) for m, s in row.items()}
            for name, row in summaries.items()
        },
        rewards=[float(row["reward/mean"]) for row in rows],
        lengths=[int(row.get("curriculum/chunks", config.data.synthetic.chunks)) for row in rows],
        fidelity_before=summaries["agent_before"][first].measures.get("copy_fidelity"),
        fidelity_after=summaries["agent"][first].measures.get("copy_fidelity"),
        samples=samples,
        config=dump_config(config),
    )


def summary_json(results: Results) -> dict[str, Any]:
    """The figures in the fixed form of summary.json; keys of the inner maps are multiples of the training length."""
    return {
        "method": results.method,
        "seed": results.seed,
        "training_chunks": results.training_chunks,
        "wall_s": round(results.wall_s, 1),
        "accuracy": {
            name: {str(m): cell.score.mean for m, cell in sorted(row.items())} for name, row in results.cells.items()
        },
        "copy_fidelity": {"before": results.fidelity_before, "after": results.fidelity_after},
        "tokens_per_document": {str(m): cell.tokens_per_document for m, cell in sorted(results.cells["agent"].items())},
    }


def _print(results: Results, path: Path) -> None:
    multiples = sorted(results.cells["agent"])
    chunks = results.training_chunks
    columns = ["accuracy in %, 95% interval", *(f"{m * chunks:,} chunks ({m}x)" for m in multiples)]
    rows = [
        [
            LABELS.get(name, name),
            *(f"{percent(row[m].score.mean)}  {interval(row[m].score)}" for m in multiples),
        ]
        for name, row in results.cells.items()
    ]
    tokens = [
        "tokens per document, agent",
        *(f"{results.cells['agent'][m].tokens_per_document:,.0f}" for m in multiples),
    ]
    stdout().print(table("", columns, [*rows, tokens]))
    fidelity = [percent(value) for value in (results.fidelity_before, results.fidelity_after)]
    note(f"copy fidelity {fidelity[0]}% before, {fidelity[1]}% after; {results.wall_s / 60:.1f} minutes")
    note(f"{path / 'report.html'}, {path / SUMMARY}")
