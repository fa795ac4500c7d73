"""Evaluation run: any policies on any problems with any model, graded and summarised, with baselines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.agents.open_agent import options_line
from palimpsest.app.config_resolution import EMBEDDED, Recipe
from palimpsest.app.evaluate.baselines import CellProblems, with_baselines
from palimpsest.app.evaluate.evaluation_data import Data, check_folder, move_aside, part, read_problems, split_data
from palimpsest.app.evaluate.evaluation_plan import EvalPlan, EvalRequest
from palimpsest.app.evaluate.evaluation_result import Evaluation, report_evaluation
from palimpsest.app.evaluate.evaluator import Evaluator, measures_of
from palimpsest.app.evaluate.regrading import regrade as regrade_folder
from palimpsest.app.python_calls import blocking, suitable_progress
from palimpsest.app.python_objects import CallObjects, as_folder
from palimpsest.config.load import Overrides
from palimpsest.config.schema import PolicyConfig
from palimpsest.data.sources.file_source import left_out, outlines
from palimpsest.data.synthetic.world import unknown_to_bundled
from palimpsest.engines.open import open_engine, using, with_sampler
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluation.runner import Entry, Samples, summaries_of
from palimpsest.evaluation.sample_log import (
    SAMPLES,
    SUMMARY,
    Sample,
    read_samples,
    refuse_another,
    write_json,
)
from palimpsest.evaluation.summary import by_player
from palimpsest.memory.parts.tool_agent import ToolAgentPolicy
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.notes import Note
from palimpsest.progress.reporter import Progress, Tick
from palimpsest.provenance import evaluation_identity
from palimpsest.reward.grading import build_reward, check_reward, closing
from palimpsest.text.tool_calls import shape

PROBLEM_LIST = "problems"
"""Name of the data if the caller passes problems."""


async def evaluate_async(
    model: Any = None,
    data: Data | None = None,
    *,
    policy: Any = None,
    reward: Any = None,
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
    regrade: str | Path | None = None,
    out: str | Path | None = None,
    force: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Run a memory policy and its baselines on every problem, grade the answers, summarise.

    `evaluate` is an ordinary call and works in a notebook; `evaluate_async` is a coroutine.

    - `model`: `embedded` (the default), a Hugging Face folder, a run or its folder (its newest checkpoint), a hub id,
      or a model loaded by transformers, with `tokenizer`
    - `data`: a data file, a folder that `palimpsest data` wrote, a list of these, `synthetic`, `synthetic_search`; a
      list of `Problem`s or of dicts, a `datasets.Dataset`; the default is the recipe's
    - `policy`: a shipped policy, `my_module:MyPolicy`, a class, an object, or several; the default is the recipe's, or
      `overwrite` without a recipe
    - `reward`: a function `(problem, trajectory)` or an object with `grade`; the default is the recipe's
    - `recipe`: sets policy, budgets, reward, sampling and data. The default is the configuration of the model's run; a
      model without a run gets budgets that fit it. A published protocol, `eval/NAME`, takes the folder of its files as
      `data` (docs/how-to/benchmarks.md)
    - `overrides`: options of the policy (`chunk_size=48`) and dotted keys, as texts or as a mapping
    - `documents`: documents per context of a file; `chunks`: paragraphs per synthetic document; `objectives`: questions
      per search problem; each one number or several; `corpus`: a file of further distractors; `limit`: problems
    - `samples`: episodes per problem; `baselines`: whether to run the question only, the whole document and retrieval
      too, once each
    - `base_url`: an OpenAI-compatible endpoint, which serves `model`; `api_key_env`: the environment variable with its
      key; `tokenizer`: a folder or hub id if the model's name is neither, or the loaded model's
    - `regrade`: an evaluation folder; its recorded answers are graded again, without a model, under the reward of
      `overrides`, into `out`, by default `regrade`/regraded/REWARD
    - `out`: folder for samples.jsonl, summary.json and report.html; the same call again runs only episodes without a
      grade, `force` renames the old folder and starts over

    Raises ConfigError, DataError, ModelError or RunError with a message that names key, value and fix.
    """
    shown = progress or suitable_progress(quiet=quiet)
    objects, folder = CallObjects("palimpsest.evaluate", model), None if out is None else Path(out)
    if regrade is not None:
        sizes = {"documents": documents, "chunks": chunks, "objectives": objectives, "corpus": corpus, "limit": limit}
        options = {"data": data, "policy": policy, "reward": reward, "recipe": recipe, "base_url": base_url, **sizes}
        options |= {"api_key_env": api_key_env, "tokenizer": tokenizer}
        changed = {"samples": samples != 1, "seed": seed != 0, "baselines": not baselines, "force": force}
        changed |= {name: value is not None for name, value in options.items()}
        if extra := [name for name, is_set in changed.items() if is_set]:
            raise ConfigError(f"{extra[0]}: --regrade runs no episodes; drop it and set reward.name")
        return await regrade_folder(Path(regrade), overrides, model=model, out=folder, progress=shown)
    with (
        objects.in_scope(),
        as_folder(EMBEDDED if model is None else model, tokenizer, folder, objects.called) as (model, tokenizer),
    ):
        policy, overrides = objects.agent(policy, overrides, reward, logged=out is not None)
        source, problems = split_data(data)
        if problems is not None and any(value is not None for value in (documents, chunks, objectives, corpus, limit)):
            raise ConfigError("evaluate: a list of problems takes no documents, chunks, objectives, corpus or limit")
        request = EvalRequest(
            model=model,
            policy=policy,
            recipe=recipe,
            overrides=overrides,
            seed=seed,
            base_url=base_url,
            api_key_env=api_key_env,
            tokenizer=tokenizer,
            data=source if problems is None else PROBLEM_LIST,
            problems=problems,
            documents=documents,
            chunks=chunks,
            objectives=objectives,
            corpus=corpus,
            limit=limit,
            samples=samples,
            baselines=baselines,
        )
        return await evaluate_plan_async(request.plan(), out=folder, force=force, progress=shown)


evaluate = blocking(evaluate_async)


async def evaluate_plan_async(
    plan: EvalPlan, *, out: Path | None = None, force: bool = False, progress: Progress
) -> Evaluation:
    """`evaluate` of a plan."""
    for line in plan.notes:
        progress.message(line)
    _check(plan, out, force)
    cells, skipped = _problems(plan)
    plan, engine = await asyncio.to_thread(_opened, plan, out)
    plan = plan.fitted([outline for problems in cells.values() for outline in outlines(problems)], engine)
    entries, blank = _entries(plan, cells, engine)
    _announce(progress, engine, plan.policies, skipped)
    log = {} if out is None or force else _logged(out, _identity(plan, engine))
    if plan.baselines:
        done = frozenset(key for key, sample in log.items() if sample.is_final)
        entries = with_baselines(entries, cells, plan.config, plan.policies, engine, progress.message, done)
    move_aside(out if force else None, progress.message)
    with _counting(entries, log, progress) as counted:
        samples = await _play(plan, entries, engine, out, counted, progress)
    agents, baselines = ([entry for entry in entries if entry.cell.baseline is baseline] for baseline in (False, True))
    evaluation = Evaluation(
        config=plan.config,
        summaries=by_player(summaries_of(agents, samples)),
        samples=tuple(samples[key] for entry in agents for key in entry.keys),
        out=out,
        endpoint=engine.limits.endpoint,
        rows_left_out=len(skipped),
        baselines=by_player(summaries_of(baselines, samples)),
        baseline_samples=tuple(samples[key] for entry in baselines for key in entry.keys),
        documents=plan.documents,
        seconds=counted.seconds,
        played=counted.played,
        folder=plan.folder,
        blank=blank,
    )
    _finish(evaluation, cells, engine, progress)
    return evaluation


evaluate_plan = blocking(evaluate_plan_async)


def _opened(plan: EvalPlan, out: Path | None) -> tuple[EvalPlan, Engine]:
    plan = replace(plan, config=with_sampler(plan.config, None))
    return plan, open_engine(plan.config, objective=None, folder=out)


def _check(plan: EvalPlan, out: Path | None, force: bool) -> None:
    for policy in plan.policies:
        build_policy(policy)
    check_reward(plan.config.reward)
    check_folder(out, model=plan.config.model.path, force=force)


def _problems(plan: EvalPlan) -> tuple[CellProblems, list[str]]:
    skipped = list[str]()
    if plan.problems is not None:
        return {part(PROBLEM_LIST): list(plan.problems)}, skipped
    return read_problems(plan.config, plan.chunks, skipped, plan.documents), skipped


def _entries(plan: EvalPlan, cells: CellProblems, engine: Engine) -> tuple[list[Entry], dict[str, str]]:
    """Every policy on every part whose problems it admits; and why it has no other, by the names of their cells.

    Raises ConfigError or DataError if no policy admits any part.
    """
    entries, blank, errors = list[Entry](), dict[str, str](), list[Exception]()
    window = "; ".join(part for part in (f"model {plan.config.model.path}", engine.limits.note) if part)
    environment = plan.config.environment
    for config in plan.policies:
        policy = build_policy(config)
        _check_calls(policy, engine)
        for part_cell, problems in cells.items():
            cell = replace(part_cell, player=config.name)
            try:
                admit_all(policy, problems, engine.codec, engine.sampler.max_context, window, environment)
            except (ConfigError, DataError) as error:
                blank[cell.title] = str(error)
                errors.append(error)
            else:
                entries.append(Entry(cell, policy, problems, plan.samples))
    if not entries and errors:
        raise errors[0]
    return entries, blank


def _check_calls(policy: MemoryPolicy, engine: Engine) -> None:
    """Raise ConfigError for a policy whose calls an endpoint's text prompts can't contain."""
    check = getattr(engine.sampler, "check_text", None)
    if check is None or not isinstance(policy, ToolAgentPolicy):
        return
    try:
        check(shape(policy.style(engine.codec)))
    except DataError:
        fix = "set engine.mode=chat, or tokens if it takes ids"
        raise ConfigError(f"engine.mode=completions: text can't hold the control tokens of calls: {fix}") from None


async def _play(
    plan: EvalPlan,
    entries: Sequence[Entry],
    engine: Engine,
    out: Path | None,
    counted: Counted,
    progress: Progress,
) -> Samples:
    reward = build_reward(plan.config.reward, engine.codec, out)
    evaluator = Evaluator(plan.config, engine, reward.answer, measure=measures_of(plan.config))
    playing = evaluator.play(
        entries,
        out=out,
        identity=_identity(plan, engine),
        on_sample=counted,
        on_warning=progress.message,
    )
    samples = await using(engine, closing(reward, playing))
    if evaluator.speculation and (line := evaluator.speculation.summary()):
        progress.message(line)
    return samples


def _identity(plan: EvalPlan, engine: Engine) -> dict[str, Any]:
    """Identity of the log. It omits several numbers of documents and the files of an evaluation recipe: the log may
    gain further ones, which its cells name."""
    config, changes = plan.config, dict[str, Any]()
    if plan.documents:
        changes["documents"] = None
    if plan.folder is not None:
        changes |= {"train_files": f"{config.recipe} in {plan.folder}", "corpus": None}
    if changes:
        config = config.model_copy(update={"data": config.data.model_copy(update=changes)})
    policies = {policy.name: policy for policy in plan.policies}
    return evaluation_identity(config, policies, plan.problems, engine.limits.endpoint)


def _finish(evaluation: Evaluation, cells: CellProblems, engine: Engine, progress: Progress) -> None:
    """Report cut documents, calls in another format and texts that the bundled model can't know; write report.html and
    summary.json."""
    if cut := sum(summary.documents_cut for summary in evaluation.summaries):
        names = ", ".join(evaluation.policies)
        total = sum(summary.problems for summary in evaluation.summaries)
        progress.message(Note("documents_cut_by", count=cut, total=total, policies=names))
    if rate := max((one.measures.get("tool_errors_unreadable", 0.0) for one in evaluation.summaries), default=0.0):
        progress.message(Note("calls_unread", rate=rate))
    texts = (p.context for problems in cells.values() for p in islice(problems, 8) if p.context)
    all_wrong = not any(row.accuracy.mean for row in evaluation.summaries)
    if all_wrong and engine.limits.endpoint is None and unknown_to_bundled(engine.codec.vocab_size, texts):
        progress.message(Note("unknown_to_bundled"))
    if evaluation.out is not None:
        report_evaluation(evaluation, engine.codec)
        write_json(evaluation.out / SUMMARY, evaluation.to_json())


def _announce(progress: Progress, engine: Engine, policies: Sequence[PolicyConfig], skipped: Sequence[str]) -> None:
    if skipped:
        progress.message(left_out(skipped))
    if note := engine.limits.note:
        progress.message(note)
    for policy in policies:
        progress.message(options_line(policy.name, policy.options))


# ---- Progress ------------------------------------------------------------------------------------------------


class Counted:
    """Counts finished episodes, with the agent's score so far."""

    def __init__(self, tick: Tick, before: Sequence[Sample]) -> None:
        self.played, self.seconds = 0, 0.0
        self._tick = tick
        self._values = [sample.value for sample in before if not sample.baseline and sample.value is not None]

    def __call__(self, sample: Sample) -> None:
        self.played += 1
        if not sample.baseline and sample.value is not None:
            self._values.append(sample.value)
        self._tick(note=f"score {100 * fmean(self._values):.1f}" if self._values else None)


def _logged(out: Path, identity: Mapping[str, Any]) -> Samples:
    """Raises RunError for another evaluation."""
    refuse_another(out, identity)
    samples = read_samples(out / SAMPLES)[0] if (out / SAMPLES).exists() else []
    return {sample.key: sample for sample in samples}


@contextmanager
def _counting(entries: Sequence[Entry], log: Samples, progress: Progress) -> Iterator[Counted]:
    """Count the final episodes in `log`, the whole log of earlier calls, as done."""
    drawn = {(entry.cell, problem.id): entry.samples for entry in entries for problem in outlines(entry.problems)}
    requested = [sample for sample in log.values() if sample.draw < drawn.get((sample.cell, sample.id), 0)]
    before = [sample for sample in requested if sample.is_final]
    if before:
        progress.message(Note("episodes_played_before", count=len(before), total=sum(drawn.values())))
    if further := len(log) - len(requested):
        progress.message(Note("episodes_not_requested", count=further))
    began = time.monotonic()
    with progress.count("episodes", sum(drawn.values()), done=len(before)) as tick:
        counted = Counted(tick, before)
        yield counted
        counted.seconds = time.monotonic() - began
