"""Any policies on any problems with any model: every problem played, graded, summarised, with baselines beside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.app.composition import Evaluator, evaluation_identity, measure_memory
from palimpsest.app.config_resolution import Recipe, Remote
from palimpsest.app.evaluate.baselines import Baselines, Planned, Sets, plan_baselines
from palimpsest.app.evaluate.evaluation_data import Data, check_folder, given, move_aside, read_problems
from palimpsest.app.evaluate.evaluation_plan import Agents, Sweep, changes, choose, with_budgets
from palimpsest.app.evaluate.evaluation_result import Evaluation, EvaluationRow, report_evaluation
from palimpsest.app.python_calls import blocking, suitable_progress
from palimpsest.app.python_objects import Objects, as_folder
from palimpsest.config.data import listed
from palimpsest.config.load import Overrides
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.sources.file_source import outlines
from palimpsest.data.sources.problem_source import left_out
from palimpsest.engines.open import open_engine, using
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError
from palimpsest.evaluation.runner import EvalSet, Samples, summaries_of
from palimpsest.evaluation.sample_log import (
    SAMPLES,
    SUMMARY,
    Sample,
    SampleKey,
    not_asked_told,
    read_samples,
    write_json,
)
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.plugins import held_by
from palimpsest.progress.reporter import Progress, Tick
from palimpsest.reward.compose import build_reward, check_reward
from palimpsest.reward.grading import closing

OWN_PROBLEMS = "problems"
"""What stands for the data where problems themselves were given."""


async def evaluate_async(
    model: Any = "embedded",
    data: Data | None = None,
    *,
    policy: Any = None,
    reward: Any = None,
    preset: str | None = None,
    recipe: Recipe | None = None,
    overrides: Overrides = (),
    documents: int | Sequence[int] | None = None,
    chunks: int | Sequence[int] | None = None,
    objectives: int | Sequence[int] | None = None,
    corpus: str | Path | None = None,
    limit: int | None = None,
    samples: int = 1,
    baselines: bool = True,
    seed: int = 0,
    base_url: str | None = None,
    api_key_env: str | None = None,
    tokenizer: Any = None,
    out: str | Path | None = None,
    force: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Play every problem with a memory policy, grade the answers, summarise; the baselines beside it.

    `evaluate` is an ordinary call and works in a notebook; `evaluate_async` is to be awaited.

    - `model`: `embedded`, a Hugging Face folder, a run or its folder (its newest checkpoint), a hub id, or a model
      loaded by transformers, with `tokenizer`
    - `data`: a data file, a folder that `palimpsest data` wrote, a list of these, `synthetic`, `synthetic_search`; a
      list of `Problem`s or of dicts, a `datasets.Dataset`; the recipe's without it
    - `policy`: a shipped one, `my_module:MyPolicy`, a class, or several; or an object; the recipe's without it,
      `overwrite` without a recipe
    - `reward`: a function `(problem, trajectory)` or an object with `grade`; the recipe's without it
    - `preset`: a published protocol by name, on the folder of its files, `data` (docs/presets.md)
    - `recipe`: gives policy, budgets, reward, sampling and data; without one the configuration of the run that the
      model comes from, and of a model that comes from none, budgets that fit it
    - `overrides`: options of the policy (`chunk_size=48`) and dotted keys, as texts or as a mapping
    - `documents`: documents per context of a file; `chunks`: paragraphs per synthetic document; `objectives`: questions
      per search problem; each one number or several; `corpus`: a file of further distractors; `limit`: problems
    - `samples`: episodes of each problem; `baselines`: whether the question alone, the whole document and retrieval
      are played with the agent, once each
    - `base_url`: an OpenAI-compatible endpoint, where `model` is the model's name; `api_key_env`: the environment
      variable with its key; `tokenizer`: a folder or hub id, where the name is none (docs/endpoints.md), or the loaded
      model's
    - `out`: folder for samples.jsonl, summary.json and report.html; the same call again plays only what has no grade
      yet, `force` moves what is there aside

    Raises ConfigError, DataError, ModelError or RunError, each in a line that names key, value and fix.
    """
    things, folder = Objects("palimpsest.evaluate", held_by(model)), None if out is None else Path(out)
    with things.known(), as_folder(model, tokenizer, folder, things.called) as (model, tokenizer):
        policy, overrides = things.agent(policy, overrides, reward, logged=out is not None)
        source, own = given(data)
        chosen = None if preset is None else choose(preset, None if source is None else listed(source))
        remote = Remote.named(base_url, api_key_env, tokenizer)
        agents = Agents.of(model, policy, recipe, overrides, seed, chosen, remote)
        if own is not None and any(each is not None for each in (documents, chunks, objectives, corpus, limit)):
            raise ConfigError("evaluate: a list of problems takes no documents, chunks, objectives, corpus or limit")
        sweep = agents.sweep(
            data=source if own is None else OWN_PROBLEMS,
            documents=_numbers("documents", documents),
            asked={"objectives": _numbers("objectives", objectives), "corpus": corpus, "limit": limit},
            chunks=_numbers("chunks", chunks),
            problems=own,
            samples=samples,
            baselines=baselines,
        )
        shown = progress or suitable_progress(quiet=quiet)
        for line in agents.told(sweep.config):
            shown.message(line)
        return await evaluate_sweep_async(sweep, out=folder, force=force, progress=shown)


evaluate = blocking(evaluate_async)


def _numbers(name: str, given: int | Sequence[int] | None) -> Sequence[int] | None:
    """Sizes, one or several; None: not given. Raises ConfigError."""
    sizes = (given,) if isinstance(given, int) else given
    whole = isinstance(sizes, Sequence) and not isinstance(sizes, str) and all(type(size) is int for size in sizes)
    if sizes is not None and not (whole and sizes):
        raise ConfigError(f"{name}={given!r}: expected a whole number or a list of them, such as [4, 64]")
    return sizes


async def evaluate_sweep_async(
    sweep: Sweep,
    *,
    out: Path | None = None,
    force: bool = False,
    progress: Progress,
) -> Evaluation:
    """`evaluate` of what is asked for, resolved."""
    _check(sweep, out, force)
    named, skipped = _problems(sweep)
    engine = await asyncio.to_thread(open_engine, sweep.config, objective=None)
    sweep = with_budgets(sweep, [each for own in named.values() for each in outlines(own)], engine)
    changed = _changed(sweep, named)
    planned = _planned(sweep, named, engine)
    _announce(progress, engine, sweep.policies, skipped, changed)
    log = _logged(None if force else out)
    baselines = _baselines(sweep, named, engine, progress, log)
    move_aside(out if force else None, progress.message)
    sets = [each.episodes for each in (*planned, *baselines.planned)]
    with _counting(sets, log, progress) as counted:
        samples = await _play(sweep, sets, engine, out, counted, progress)
    played = _samples(planned, samples)
    evaluation = Evaluation(
        config=sweep.config,
        rows=_rows(planned, samples, baselines),
        samples=played,
        out=out,
        endpoint=engine.limits.endpoint,
        rows_left_out=len(skipped),
        baseline_rows=_rows(baselines.planned, samples, baselines),
        baseline_samples=_samples(baselines.planned, samples),
        documents=sweep.documents,
        seconds=counted.seconds,
        played=counted.played,
        preset=None if sweep.chosen is None else sweep.chosen.to_json(changed),
    )
    _finish(evaluation, engine, progress)
    return evaluation


evaluate_sweep = blocking(evaluate_sweep_async)


def _check(sweep: Sweep, out: Path | None, force: bool) -> None:
    """Refuse what can be refused before a model is loaded."""
    for policy in sweep.policies:
        build_policy(policy)
    check_reward(sweep.config.reward)
    check_folder(out, model=sweep.config.model.path, force=force)


def _problems(sweep: Sweep) -> tuple[Sets, list[str]]:
    """What is played, and what is said of each row that is left out."""
    skipped = list[str]()
    if sweep.problems is not None:
        return {OWN_PROBLEMS: list(sweep.problems)}, skipped
    return read_problems(sweep.config, sweep.chunks, skipped, sweep.documents), skipped


def _planned(sweep: Sweep, named: Sets, engine: Engine) -> list[Planned]:
    """Every policy on every set, once each problem was admitted by it."""
    planned = []
    for config in sweep.policies:
        policy = build_policy(config)
        admit_all(
            policy,
            chain.from_iterable(named.values()),
            engine.codec,
            engine.sampler.max_context,
            _window_of(sweep.config, engine),
        )
        for name, problems in named.items():
            title = name if len(sweep.policies) == 1 else f"{config.name}, {name}"
            planned.append(
                Planned(EvalSet(title, problems, policy, samples=sweep.samples), config.name, name, len(problems))
            )
    return planned


def _baselines(sweep: Sweep, named: Sets, engine: Engine, progress: Progress, log: Samples) -> Baselines:
    if not sweep.baselines:
        return Baselines()
    return plan_baselines(named, sweep.config, sweep.policies, engine, progress.message, _finished(log))


async def _play(
    sweep: Sweep,
    sets: Sequence[EvalSet],
    engine: Engine,
    out: Path | None,
    counted: Counted,
    progress: Progress,
) -> Samples:
    """Every episode, in one pool."""
    reward = build_reward(sweep.config.reward, engine.codec, out)
    evaluator = Evaluator(sweep.config, engine, reward.answer, measure=measure_memory)
    playing = evaluator.play(
        sets,
        out=out,
        identity=_identity(sweep, engine),
        on_sample=counted,
        on_warning=progress.message,
    )
    return await using(engine, closing(reward, playing))


def _identity(sweep: Sweep, engine: Engine) -> dict[str, Any]:
    """Of several numbers of documents none is in it, nor a preset's files: a log may gain further ones, whose names say
    them."""
    config, kept = sweep.config, dict[str, Any]()
    if sweep.documents:
        kept["documents"] = None
    if sweep.chosen is not None:  # a folder may gain files
        kept |= {"source": f"preset {sweep.chosen.name} of {sweep.chosen.folder}", "corpus": None}
    if kept:
        config = config.model_copy(update={"data": config.data.model_copy(update=kept)})
    policies = {policy.name: policy for policy in sweep.policies}
    return evaluation_identity(config, policies, sweep.problems, engine.limits.endpoint)


def _rows(planned: Sequence[Planned], samples: Samples, baselines: Baselines) -> tuple[EvaluationRow, ...]:
    """The figures of each set: policies in their order, each from short to long."""
    rows = []
    summaries = summaries_of([each.episodes for each in planned], samples)
    for each, summary in zip(planned, summaries, strict=True):
        fits = baselines.fits.get(each.data)
        rows.append(EvaluationRow(summary, each.policy, each.data, each.episodes.baseline, each.problems, fits))
    order = {policy: index for index, policy in enumerate(dict.fromkeys(each.policy for each in planned))}
    return tuple(sorted(rows, key=lambda row: (order[row.policy], row.summary.length)))


def _samples(planned: Sequence[Planned], samples: Samples) -> tuple[Sample, ...]:
    return tuple(samples[key] for each in planned for key in each.episodes.keys)


def _finish(evaluation: Evaluation, engine: Engine, progress: Progress) -> None:
    """Say what was cut, and write report.html and summary.json."""
    if cut := sum(summary.documents_cut for summary in evaluation.summaries):
        names = ", ".join(evaluation.policies)
        total = sum(summary.problems for summary in evaluation.summaries)
        progress.message(f"{cut} of {total} documents are longer than {names} reads: cut")
    if evaluation.out is not None:
        report_evaluation(evaluation, engine.codec)
        write_json(evaluation.out / SUMMARY, evaluation.to_json())


def _short(value: object) -> str:
    """An option's value on a line: of the texts of a prompt file their number."""
    return f"({len(value)} texts)" if isinstance(value, dict) and "system" in value else str(value)


def _window_of(config: RunConfig, engine: Engine) -> str:
    """Whose window it is, and what is to be known of it."""
    return "; ".join(part for part in (f"model {config.model.path}", engine.limits.note) if part)


def _announce(
    progress: Progress,
    engine: Engine,
    policies: Sequence[PolicyConfig],
    skipped: Sequence[str],
    changed: Sequence[str],
) -> None:
    if skipped:
        progress.message(left_out(skipped))
    if note := engine.limits.note:
        progress.message(note)
    for policy in policies:
        progress.message(_played(policy))
    if changed:
        progress.message(f"not as the preset says: {'; '.join(changed)}")


def _played(policy: PolicyConfig) -> str:
    """Who plays, with which options."""
    return f"{policy.name}: " + ", ".join(f"{name}={_short(value)}" for name, value in policy.options.items())


def _changed(sweep: Sweep, named: Sets) -> list[str]:
    """What is played otherwise than the preset says."""
    if sweep.chosen is None:
        return []
    samples, limit = (sweep.samples if sweep.samples > 1 else None), sweep.config.data.limit
    told = changes(sweep.chosen.preset, sweep.policies, sweep.config, samples=samples, limit=limit)
    published = sweep.chosen.preset.problems
    others = {name: len(own) for name, own in named.items() if published and len(own) != published}
    return told + [f"{name}: {count} problems in place of {published}" for name, count in others.items()]


# ---- How far an evaluation is --------------------------------------------------------------------------------


class Counted:
    """Counts the episodes as they end, with the agent's score so far."""

    def __init__(self, tick: Tick, before: Sequence[Sample]) -> None:
        self.played, self.seconds = 0, 0.0
        self._tick = tick
        self._values = [sample.value for sample in before if sample.baseline is None and sample.value is not None]

    def __call__(self, sample: Sample) -> None:
        self.played += 1
        if sample.baseline is None and sample.value is not None:
            self._values.append(sample.value)
        self._tick(note=f"score {100 * fmean(self._values):.1f}" if self._values else None)


def _logged(out: Path | None) -> Samples:
    """Every episode in the log at `out`."""
    found = read_samples(out / SAMPLES)[0] if out is not None and (out / SAMPLES).exists() else []
    return {sample.key: sample for sample in found}


def _finished(log: Samples) -> frozenset[SampleKey]:
    """Episodes that need not be played again."""
    return frozenset(key for key, sample in log.items() if sample.is_final)


@contextmanager
def _counting(sets: Sequence[EvalSet], log: Samples, progress: Progress) -> Iterator[Counted]:
    """What was played before counts as done; `log`: everything that was."""
    drawn = {(each.name, problem.id): each.samples for each in sets for problem in outlines(each.problems)}
    asked = [sample for sample in log.values() if sample.draw < drawn.get((sample.name, sample.id), 0)]
    before = [sample for sample in asked if sample.is_final]
    if before:
        progress.message(f"{len(before):,} of {sum(drawn.values()):,} episodes are there already")
    if further := len(log) - len(asked):
        progress.message(not_asked_told(further))
    began = time.monotonic()
    with progress.count("episodes", sum(drawn.values()), done=len(before)) as tick:
        counted = Counted(tick, before)
        yield counted
        counted.seconds = time.monotonic() - began
