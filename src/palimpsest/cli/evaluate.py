"""`palimpsest eval`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from palimpsest.cli.options import (
    RERUN,
    ApiKeyEnv,
    BaseUrl,
    Columns,
    Force,
    Tokenizer,
    Words,
    going_on,
    interval,
    models_and_overrides,
    named_columns,
    numbers,
    percent,
    stdout,
    table,
)
from palimpsest.errors import ConfigError
from palimpsest.progress.displays import Terminal
from palimpsest.text.display_text import printable

if TYPE_CHECKING:
    from palimpsest.app.evaluate.evaluation_plan import EvalPlan
    from palimpsest.app.evaluate.evaluation_result import Evaluation
    from palimpsest.evaluation.summary import EvalSummary


def evaluate(
    words: Words = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="A shipped policy, or my_module:MyPolicy; several as overwrite,recall; default: the recipe's or the "
            "run's, else overwrite."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A data file (HotpotQA, MemAgent, RULER, MemAct...), a folder that palimpsest data wrote, synthetic, "
            "synthetic_search; may be repeated; of an evaluation recipe the folder of its files; default: the recipe's "
            "or the run's, else synthetic."
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            help="Documents per context, gold ones among distractors; several as 50,100; default: as they are."
        ),
    ] = None,
    chunks: Annotated[
        str | None, typer.Option(help="Paragraphs per synthetic document; several lengths as 4,64,256.")
    ] = None,
    objectives: Annotated[
        str | None, typer.Option(help="Questions per search problem, of synthetic_search or a file; several as 1,2,4.")
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="File whose paragraphs serve as distractors, or that document indices refer to."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each problem, for pass@k.")] = 1,
    baselines: Annotated[
        bool,
        typer.Option(help="Play the question alone, the whole document and retrieval too, once each."),
    ] = True,
    columns: Columns = None,
    out: Annotated[Path | None, typer.Option(help="Folder for samples, summary, report.html and episodes.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe that gives policy, budgets, reward and sampling, or a published protocol, eval/NAME; default: "
            "the run's, else what fits the model."
        ),
    ] = None,
    regrade: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Grade the recorded answers of an evaluation under another reward, without a model; default --out: "
            "DIR/regraded/REWARD.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws and of the assembly of contexts.")] = 0,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    tokenizer: Tokenizer = None,
    force: Force = False,
) -> None:
    """Play every problem with a memory policy, grade the answers, print a table; with baselines.

    MODEL is `embedded`, the default, a Hugging Face folder, a run, which brings its configuration, a hub id, or a name
    at --base-url. Several models are evaluated each in a folder of its own in --out, with compare.html next to them.
    KEY=VALUE is an option of the policy (chunk_size=2048) or a dotted key of the recipe.

    Several policies, files and numbers of documents are played in every combination, one row each. With --out, one line
    per episode goes to samples.jsonl as it finishes, and the figures to summary.json and report.html; the same command
    again plays only what has no grade yet. Episodes that went wrong are kept token for token in episodes.jsonl.zst
    (evaluation.record=none|wrong|all).

    \b
    Examples:
      palimpsest eval runs/first --data synthetic --chunks 4,64,256
      palimpsest eval runs/a runs/b --data dev.jsonl reward.name=fraction --out evals/both
      palimpsest eval --data hotpot_dev.json --documents 50,100,200 --out evals/hotpot
      palimpsest eval Qwen/Qwen3-4B --recipe eval/ruler-hqa --data data --out evals/ruler-hqa
      palimpsest eval --policy overwrite,recall --data sets/hotpot --data dev.jsonl --out evals/both
      palimpsest eval runs/first --policy prune --data synthetic_search --objectives 1,2,4,8
      palimpsest eval Qwen/Qwen3-4B --data eval_200.json --limit 32 chunk_size=2048
      palimpsest eval --data dev.jsonl --samples 4 eval_sampling.temperature=0.7
      palimpsest eval --policy my_module:MyPolicy --data dev.jsonl notebook_lines=8
      palimpsest eval Qwen/Qwen3-4B --base-url http://127.0.0.1:8000/v1 --data eval_200.json --out evals/qwen
      palimpsest eval gpt-4.1-mini --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY --limit 8
      palimpsest eval --regrade evals/hotpot reward.name=f1
    """
    from palimpsest.app.config_resolution import Remote
    from palimpsest.app.evaluate.comparison_report import check_alike, report, requests_of
    from palimpsest.app.evaluate.evaluation_plan import EvalRequest, policy_names

    models, overrides = models_and_overrides(words)
    if regrade is not None:
        played = {
            "data": data,
            "policy": policy,
            "recipe": recipe,
            "base_url": base_url,
            "corpus": corpus,
            "limit": limit,
        }
        played |= {"documents": documents, "chunks": chunks, "objectives": objectives}
        _regrade(regrade, models, overrides, out, played)
        return
    first, *rest = models or ["embedded"]
    request = EvalRequest(
        model=first,
        policies=policy_names(policy),
        recipe=recipe,
        overrides=overrides,
        seed=seed,
        remote=Remote.named(base_url, api_key_env, tokenizer),
        data=None if not data else data[0] if len(data) == 1 else tuple(data),
        documents=None if documents is None else numbers("--documents", "numbers", documents),
        chunks=None if chunks is None else numbers("--chunks", "lengths", chunks),
        objectives=None if objectives is None else numbers("--objectives", "numbers", objectives),
        corpus=corpus,
        limit=limit,
        columns=None if columns is None else named_columns(columns),
        samples=samples,
        baselines=baselines,
    )
    requests = requests_of(models, request, out) if rest else {out: request}
    plans = {folder: entry.plan() for folder, entry in requests.items()}
    check_alike(list(plans.values()))
    for folder, plan in plans.items():
        _play(plan, folder, force=force)
    if rest and out is not None:
        Terminal().message(str(report([folder for folder in plans if folder is not None], out)[0]))


def _play(plan: EvalPlan, out: Path | None, *, force: bool) -> None:
    from palimpsest.app.evaluate.evaluation_run import evaluate_plan

    with going_on(
        lambda: "nothing is kept without --out" if out is None else RERUN + (", without --force" if force else "")
    ):
        evaluation = evaluate_plan(plan, out=out, force=force, progress=Terminal())
    show_evaluation(evaluation)


def _regrade(
    folder: Path, models: list[str], overrides: list[str], out: Path | None, played: Mapping[str, Any]
) -> None:
    """`played`: options of playing, which `evaluate` rejects."""
    from palimpsest.app.evaluate.evaluation_run import evaluate as evaluate_folder

    if len(models) > 1:
        raise ConfigError(f"--regrade {folder}: has one model, not {', '.join(models)}; leave them out")
    model = models[0] if models else None
    kwargs: dict[str, Any] = {name: value for name, value in played.items() if value is not None}
    show_evaluation(evaluate_folder(model, regrade=folder, overrides=overrides, out=out, progress=Terminal(), **kwargs))


# ---- An evaluation as a table, and what is to be known of its figures ----------------------------------------


Column = Callable[["EvalSummary"], str | None]


def _share(name: str) -> Column:
    return lambda row: _percent(row.measures.get(name))


def _percent(value: float | None) -> str | None:
    return None if value is None else percent(value)


def _metric(name: str) -> Column:
    return lambda row: _percent(row.metrics.get(name))


def _invented(row: EvalSummary) -> str | None:
    copied = row.measures.get("copy_fidelity")
    return None if copied is None else percent(1.0 - copied)


def _name(name: str, row: EvalSummary) -> str:
    if not row.cell.baseline:
        return name
    fewer = f" ({row.problems} of {row.part_problems} fit)" if row.part_problems else ""
    return f"baseline: {name}{fewer}"


def _tokens_per_correct(row: EvalSummary) -> str | None:
    return None if row.tokens_per_correct is None else f"{row.tokens_per_correct:,.0f}"


FIGURES: dict[str, Column] = {
    "problems": lambda row: str(row.problems),
    "cut": lambda row: str(row.documents_cut),
    "accuracy": lambda row: percent(row.accuracy.mean),
    "95%": lambda row: interval(row.accuracy),
    "em": _metric("em"),
    "f1": _metric("f1"),
    "sub-em": _metric("sub_em"),
    "evidence kept": _share("evidence_retention"),
    "turns": lambda row: f"{row.turns_per_document:.1f}",
    "tokens/document": lambda row: f"{row.tokens_per_document:,.0f}",
    "tokens/correct": _tokens_per_correct,
}
OPTIONAL_FIGURES: dict[str, Column] = {
    "pass@k": lambda row: _percent(row.pass_at.get(str(row.samples))),
    "disagree": lambda row: _percent(row.disagreement),
}
"""Columns that stand in the table if a row has them."""
MEMORY: dict[str, Column] = {
    "evidence kept": _share("evidence_retention"),
    "invented": _invented,
    "kept out": _share("dropped_share"),
    "overwritten": _share("overwrite_rate"),
    "recall hits": _share("recall_hit_rate"),
}
"""A table of their own."""
_REMEMBERING = ("overwrite_rate", "recall_hit_rate")
"""Measures of policies that have a memory."""


def show_evaluation(evaluation: Evaluation) -> None:
    """Print it. Raises Exit where nothing could be graded."""
    from palimpsest.evaluation.episode_files import EPISODES
    from palimpsest.evaluation.sample_log import SAMPLES, SUMMARY
    from palimpsest.report.page import REPORT

    console, rows = stdout(160), evaluation.rows
    extra = {name: column for name, column in OPTIONAL_FIGURES.items() if any(map(column, rows.values()))}
    console.print(_table(evaluation.title, {**FIGURES, **extra}, rows))
    remembering = {
        name: row
        for name, row in rows.items()
        if not row.cell.baseline and any(row.measures.get(rate) is not None for rate in _REMEMBERING)
    }
    if remembering:
        measured = {name: column for name, column in MEMORY.items() if any(map(column, remembering.values()))}
        console.print(_table("what the memory held", measured, remembering))
    if evaluation.out is not None:
        written = [evaluation.out / name for name in (SAMPLES, SUMMARY, EPISODES, REPORT)]
        Terminal().message(", ".join(str(path) for path in written if path.exists()))
    for line in evaluation.notes:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    _print_ungraded(evaluation)


def _table(title: str, columns: dict[str, Column], rows: dict[str, EvalSummary]) -> Table:
    cells = [[_name(name, row), *(column(row) or "–" for column in columns.values())] for name, row in rows.items()]
    return table(title, ["", *columns], cells)


def _print_ungraded(evaluation: Evaluation) -> None:
    console = stdout()
    without_gold = sum(sample.without_gold for sample in evaluation.samples)
    if without_gold:
        console.print(f"{without_gold} questions have no gold in the data: played, not graded, not in the accuracy")
    lost = sum(not sample.is_final for sample in evaluation.samples)
    if lost and evaluation.ungraded == len(evaluation):
        typer.echo(f"error: nothing could be graded, most often because: {evaluation.commonest_reason}", err=True)
        raise typer.Exit(1)
    lost += sum(not sample.is_final for sample in evaluation.baseline_samples)
    if lost:
        console.print(
            f"{lost} episodes have no grade and are not in the accuracy, most often because: "
            f"{evaluation.commonest_reason}; run again to play them again"
        )
