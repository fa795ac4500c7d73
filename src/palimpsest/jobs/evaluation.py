"""Any policy on any problems with any model: every problem played once, graded, summarised."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.config.data import listed
from palimpsest.config.load import Overrides
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.source import left_out
from palimpsest.engines.open import open_engine, using
from palimpsest.engines.protocol import Endpoint, Engine
from palimpsest.errors import ConfigError
from palimpsest.evaluation.errata import Errata
from palimpsest.evaluation.run import EvalSet, summaries_of
from palimpsest.evaluation.samples import Sample, write_json
from palimpsest.evaluation.summary import EvalSummary, Score, accuracy_of
from palimpsest.jobs.beside import Beside, beside, errata_for
from palimpsest.jobs.blocking import blocking
from palimpsest.jobs.budgets import fitted
from palimpsest.jobs.composing import Evaluator, evaluation_identity, measure_memory
from palimpsest.jobs.editions import editions_of
from palimpsest.jobs.evaluation_data import Data, given, read_problems
from palimpsest.jobs.evaluation_folder import SUMMARY, check_folder, move_aside
from palimpsest.jobs.settings import Agent, Model, Recipe, Remote, evaluation_config
from palimpsest.jobs.table import Table
from palimpsest.jobs.usage import metered
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.progress.choose import suitable_progress
from palimpsest.progress.progress import Progress
from palimpsest.reward.compose import build_reward, check_reward
from palimpsest.reward.grading import closing
from palimpsest.types import Problem

OWN_PROBLEMS = "problems"
"""What stands for the data where problems themselves were given."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation measured. Samples hold question, answers, the answer given, the last memory, the grade."""

    config: RunConfig
    """With the budgets that were chosen for the model's window."""
    summaries: tuple[EvalSummary, ...]
    """One a document length or number of questions, cheapest first."""
    samples: tuple[Sample, ...]
    out: Path | None = None
    """Where samples.jsonl and summary.json are."""
    endpoint: Endpoint | None = None
    """Where the model was asked, and how far that is exact; None: it was opened here."""
    rows_left_out: int = 0
    """Rows of the data whose gold paragraph isn't there (`data.on_missing_gold=skip`)."""
    beside: Beside = field(default_factory=Beside)
    """How far its judge can be believed, and what errata of the data change."""

    @cached_property
    def table(self) -> Table:
        """A row a summary; shares, not percent. `low` and `high` are the ends of the 95% interval."""
        return Table.of([_row(summary) for summary in self.summaries])

    @property
    def accuracy(self) -> Score:
        """Over everything graded, with its 95% interval."""
        return accuracy_of(self.samples)

    @property
    def ungraded(self) -> int:
        """Episodes without a grade, which are not in the accuracy."""
        return sum(summary.ungraded for summary in self.summaries)

    @property
    def commonest_reason(self) -> str | None:
        """Why most of the episodes without a grade have none."""
        reasons: Counter[str] = Counter()
        for summary in self.summaries:
            reasons.update(summary.ungraded_reasons)
        return reasons.most_common(1)[0][0] if reasons else None

    def __getitem__(self, name: str) -> EvalSummary:
        """The figures of one size, by the name they have in the table. Raises KeyError for an unknown one."""
        summaries = {summary.name: summary for summary in self.summaries}
        if name not in summaries:
            raise KeyError(f"no {name}; there are {', '.join(summaries)}")
        return summaries[name]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        ungraded = f", {self.ungraded} ungraded" if self.ungraded else ""
        return f"Evaluation of {self.title}, {len(self)} episodes{ungraded}\n{self.table}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.table._repr_html_()

    @property
    def title(self) -> str:
        """Who was evaluated on what."""
        data = self.config.data.eval_source or self.config.data.source
        return f"{self.config.policy.name} on {', '.join(listed(data))}, model {self.config.model.path}"


def _row(summary: EvalSummary) -> dict[str, Any]:
    score = summary.accuracy
    figures = {
        "": summary.name,
        "problems": summary.problems,
        "ungraded": summary.ungraded or None,
        "documents cut": summary.documents_cut or None,
        "accuracy": score.mean,
        "low": score.low,
        "high": score.high,
        **{name: summary.metrics.get(name) for name in ("em", "f1", "sub_em")},
        "evidence kept": summary.measures.get("evidence_retention"),
        "turns": summary.turns_per_document,
        "tokens": round(summary.tokens_per_document),
    }
    return {name: value for name, value in figures.items() if value is not None}


async def evaluate_async(
    model: Model = "embedded",
    data: Data | None = None,
    *,
    policy: str | None = None,
    recipe: Recipe | None = None,
    overrides: Overrides = (),
    documents: int | None = None,
    chunks: int | Sequence[int] | None = None,
    objectives: int | Sequence[int] | None = None,
    corpus: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    base_url: str | None = None,
    api_key_env: str | None = None,
    tokenizer: str | Path | None = None,
    out: str | Path | None = None,
    force: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Play every problem once with a memory policy, grade the answers, summarise.

    `evaluate` is an ordinary call and works in a notebook; `evaluate_async` is to be awaited.

    - `model`: `embedded`, a Hugging Face folder, a run or its folder (its newest checkpoint) or a hub id
    - `data`: a data file or a list of them, `synthetic`, `synthetic_search`, or a list of `Problem`; the recipe's
      without it
    - `policy`: a shipped one or `my_module:MyPolicy` (`__main__:MyPolicy` in a notebook); the recipe's without it,
      `overwrite` without a recipe
    - `recipe`: gives policy, budgets, reward, sampling and data; without one the configuration of the run that the
      model comes from, and of a model that comes from none, budgets that fit it
    - `overrides`: options of the policy (`chunk_size=48`) and dotted keys, as texts or as a mapping
    - `documents`: documents per context of a file; `chunks`: paragraphs per synthetic document, one number or several;
      `objectives`: questions per search problem; `corpus`: a file of further distractors; `limit`: problems
    - `base_url`: an OpenAI-compatible endpoint, where `model` is the model's name; `api_key_env`: the environment
      variable with its key; `tokenizer`: a folder or hub id, where the name is none (docs/endpoints.md)
    - `out`: folder for samples.jsonl and summary.json; the same call again plays only what has no grade yet, `force`
      moves what is there aside

    Raises ConfigError, DataError, ModelError or RunError, each in a line that names key, value and fix.
    """
    agent = Agent(model, policy, recipe, overrides, seed, Remote.named(base_url, api_key_env, tokenizer))
    source, own = given(data)
    if own is not None and any(each is not None for each in (documents, chunks, objectives, corpus, limit)):
        raise ConfigError("evaluate: a list of problems takes no documents, chunks, objectives, corpus or limit")
    config = evaluation_config(
        agent,
        data=source if own is None else OWN_PROBLEMS,
        documents=documents,
        objectives=_numbers("objectives", objectives),
        corpus=corpus,
        limit=limit,
    )
    shown = progress or suitable_progress(quiet=quiet)
    for line in agent.told(config):
        shown.message(line)
    return await evaluate_config_async(
        config,
        chunks=_numbers("chunks", chunks),
        problems=own,
        out=None if out is None else Path(out),
        force=force,
        progress=shown,
    )


evaluate = blocking(evaluate_async)


def _numbers(name: str, given: int | Sequence[int] | None) -> Sequence[int] | None:
    """Sizes, one or several; None: not given. Raises ConfigError."""
    sizes = (given,) if isinstance(given, int) else given
    whole = isinstance(sizes, Sequence) and not isinstance(sizes, str) and all(type(size) is int for size in sizes)
    if sizes is not None and not (whole and sizes):
        raise ConfigError(f"{name}={given!r}: expected a whole number or a list of them, such as [4, 64]")
    return sizes


async def evaluate_config_async(
    config: RunConfig,
    *,
    chunks: Sequence[int] | None,
    out: Path | None,
    force: bool,
    progress: Progress,
    problems: Sequence[Problem] | None = None,
) -> Evaluation:
    """`evaluate` of a configuration, on its data or on `problems`."""
    errata = _checked(config, out, force)
    skipped = list[str]()
    named = read_problems(config, chunks, skipped) if problems is None else {OWN_PROBLEMS: list(problems)}
    engine = await asyncio.to_thread(open_engine, config, objective=None)
    everything = [problem for own in named.values() for problem in own]
    config = _with_budgets(config, everything, engine)
    policy = build_policy(config.policy)
    admit_all(policy, everything, engine.codec, engine.sampler.max_context, _window_of(config, engine))
    _announce(progress, engine, config.policy, skipped)
    move_aside(out if force else None, progress.message)
    sets = [EvalSet(name, problems, policy) for name, problems in named.items()]
    reward = build_reward(config.reward, engine.codec, out)
    evaluator = Evaluator(config, engine, reward.answer, measure=measure_memory(engine.codec))
    with progress.count("episodes", len(everything)) as tick:
        playing = evaluator.play(
            sets,
            out=out,
            identity=evaluation_identity(config, {config.policy.name: config.policy}, problems, engine.limits.endpoint),
            on_sample=lambda _: tick(),
            on_warning=progress.message,
        )
        samples = await metered(engine, using(engine, closing(reward, playing)), out, progress)
    summaries = sorted(summaries_of(sets, samples), key=lambda summary: summary.tokens_per_document)
    played = tuple(samples[each.name, p.id] for each in sets for p in each.problems)
    around = await beside(played, config.reward, out, problems=_by_name(sets), errata=errata)
    evaluation = Evaluation(
        config, tuple(summaries), played, out, engine.limits.endpoint, rows_left_out=len(skipped), beside=around
    )
    _finish(evaluation, progress)
    return evaluation


def _checked(config: RunConfig, out: Path | None, force: bool) -> Errata | None:
    """What stands beside the figures; refuses what can be refused before a model is loaded."""
    build_policy(config.policy)
    check_reward(config.reward)
    check_folder(out, model=config.model.path, force=force)
    return errata_for(config)


def _by_name(sets: Sequence[EvalSet]) -> dict[tuple[str, str], Problem]:
    return {(each.name, problem.id): problem for each in sets for problem in each.problems}


def _finish(evaluation: Evaluation, progress: Progress) -> None:
    """Say what was cut, and write summary.json."""
    if cut := sum(summary.documents_cut for summary in evaluation.summaries):
        name = evaluation.config.policy.name
        progress.message(f"{cut} of {len(evaluation)} documents are longer than {name} reads: cut")
    if evaluation.out is not None:
        write_json(evaluation.out / SUMMARY, _summary_json(evaluation))


def _short(value: object) -> str:
    """An option's value on a line: of the texts of a prompt file their number."""
    return f"({len(value)} texts)" if isinstance(value, dict) and "system" in value else str(value)


evaluate_config = blocking(evaluate_config_async)


def _window_of(config: RunConfig, engine: Engine) -> str:
    """Whose window it is, and what is to be known of it."""
    return "; ".join(part for part in (f"model {config.model.path}", engine.limits.note) if part)


def _announce(progress: Progress, engine: Engine, policy: PolicyConfig, skipped: Sequence[str]) -> None:
    if skipped:
        progress.message(left_out(skipped))
    if note := engine.limits.note:
        progress.message(note)
    progress.message(_played(policy))


def _played(policy: PolicyConfig) -> str:
    """Who plays, with which options."""
    return f"{policy.name}: " + ", ".join(f"{name}={_short(value)}" for name, value in policy.options.items())


def _with_budgets(config: RunConfig, problems: Sequence[Problem], engine: Engine) -> RunConfig:
    """`config` with the policy's open budgets chosen for the model's window."""
    window = engine.sampler.max_context
    chosen = fitted(config.policy, problems=problems, codec=engine.codec, max_context=window)
    return config.model_copy(update={"policy": chosen})


def _summary_json(evaluation: Evaluation) -> Mapping[str, Any]:
    config = evaluation.config
    return {
        "policy": config.policy.model_dump(mode="json"),
        "model": config.model.path,
        **({} if evaluation.endpoint is None else {"model_endpoint": asdict(evaluation.endpoint)}),
        "data": config.data.eval_source or config.data.source,
        "editions": editions_of(config.data),
        "rows_left_out": evaluation.rows_left_out,
        "documents": config.data.documents,
        "reward": config.reward.name,
        "seed": config.seed,
        "evaluations": [summary.to_json() for summary in evaluation.summaries],
        **evaluation.beside.to_json(),
    }
