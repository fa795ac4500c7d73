"""`palimpsest eval`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from palimpsest.cli.options import (
    INPUT,
    OUTPUT,
    RERUN,
    ApiKeyEnv,
    BaseUrl,
    Columns,
    Force,
    Json,
    Tokenizer,
    Words,
    models_and_overrides,
    named_columns,
    numbers,
    on_gpus,
    percent,
    resuming,
    stdout,
    table,
)
from palimpsest.errors import ConfigError
from palimpsest.progress.displays import Terminal
from palimpsest.text.display_text import cost_text, counted, counted_outcomes, printable

if TYPE_CHECKING:
    from palimpsest.app.evaluate.evaluation_plan import EvalPlan
    from palimpsest.app.evaluate.evaluation_result import Evaluation


def evaluate(
    words: Words = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A shipped policy or my_module:MyPolicy; several as overwrite,recall; default: the recipe's or the "
            "run's, otherwise overwrite."
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe with policy, budgets, reward and sampling, or a published protocol, eval/NAME. Default: the "
            "run's, otherwise budgets that fit the model."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per problem, for pass@k.")] = 1,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of this machine to use, each with a copy of the model; default: 1.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option(help="Also evaluate closed book, whole document and retrieval, one episode per problem.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of random draws and of assembled contexts.")] = 0,
    data: Annotated[
        list[str] | None,
        INPUT(
            help="A data file (HotpotQA, MemAgent, RULER, MemAct...), a folder written by palimpsest data, synthetic, "
            "or synthetic_search; repeatable; for a published protocol the folder of its files; default: the "
            "recipe's or the run's, otherwise synthetic."
        ),
    ] = None,
    documents: Annotated[
        list[str] | None,
        INPUT(
            help="Documents per context, gold ones among distractors; several as 50,100; default: unchanged contexts."
        ),
    ] = None,
    chunks: Annotated[list[str] | None, INPUT(help="Paragraphs per synthetic document; several as 4,64,256.")] = None,
    objectives: Annotated[
        list[str] | None, INPUT(help="Questions per search problem, of synthetic_search or a file; several as 1,2,4.")
    ] = None,
    corpus: Annotated[Path | None, INPUT(help="File with paragraphs for distractors, or for document indices.")] = None,
    limit: Annotated[int | None, INPUT(min=1, help="The first N problems.")] = None,
    columns: Columns = None,
    out: Annotated[Path | None, OUTPUT(help="Folder for samples, summary, report.html and episodes.")] = None,
    regrade: Annotated[
        Path | None,
        OUTPUT(
            metavar="DIR",
            help="Grade an evaluation's saved answers again, without the model; default --out: DIR/regraded/REWARD.",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Run a memory policy and its baselines on every problem, grade the answers, print a table.

    MODEL is `embedded` (the default), a Hugging Face folder or hub id, a run (with its configuration), or the name of a
    model at --base-url. Each of several models gets its own folder in --out, next to compare.html.

    Several policies, files and sizes are evaluated in every combination, one row each. With --out, samples.jsonl gets
    one line per finished episode; summary.json and report.html follow at the end. The same command again runs only
    episodes without a grade. Failed episodes are saved token for token in episodes.jsonl.zst
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
      palimpsest eval Qwen/Qwen3-4B --data eval_200.json --gpus 8 --out evals/qwen
      palimpsest eval --data dev.jsonl --samples 4 eval_sampling.temperature=0.7 --json
      palimpsest eval --policy my_module:MyPolicy --data dev.jsonl notebook_lines=8
      palimpsest eval Qwen/Qwen3-4B --base-url http://127.0.0.1:8000/v1 --data eval_200.json --out evals/qwen
      palimpsest eval gpt-4.1-mini --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY --limit 8
      palimpsest eval --regrade evals/hotpot reward.name=f1
    """
    from palimpsest.app.evaluate.comparison_report import check_alike, report, requests_of
    from palimpsest.app.evaluate.evaluation_plan import EvalRequest

    models, overrides = models_and_overrides(words)
    if gpus is not None:
        if elsewhere := regrade or base_url:
            raise ConfigError(f"--gpus {gpus}: {elsewhere} needs no GPU of this machine; omit it")
        overrides = [*on_gpus(gpus, None, overrides), *overrides]
    sizes = {"documents": ("numbers", documents), "chunks": ("lengths", chunks), "objectives": ("numbers", objectives)}
    given: dict[str, Any] = {"policy": policy, "recipe": recipe, "corpus": corpus, "limit": limit, "base_url": base_url}
    given["data"] = None if not data else data[0] if len(data) == 1 else tuple(data)
    given |= {name: numbers(f"--{name}", what, texts) for name, (what, texts) in sizes.items() if texts is not None}
    given |= {"api_key_env": api_key_env, "tokenizer": tokenizer, "samples": samples, "baselines": baselines}
    if regrade is not None:
        if columns is not None:
            raise ConfigError("--map: --regrade reads no data; omit it")
        given |= {"seed": seed, "force": force}
        raise typer.Exit(not _show([_regrade(regrade, models, overrides, out, given)], json=json))
    first, *rest = models or ["embedded"]
    given["columns"] = None if columns is None else named_columns(columns)
    request = EvalRequest(model=first, overrides=overrides, seed=seed, **given)
    requests = requests_of(models, request, out) if rest else {out: request}
    plans = {folder: entry.plan() for folder, entry in requests.items()}
    if rest:
        check_alike(list(plans.values()))
    graded = _show((_play(plan, folder, force=force) for folder, plan in plans.items()), json=json)
    if rest and out is not None:
        Terminal().message(str(report([folder for folder in plans if folder is not None], out)[0]))
    raise typer.Exit(not graded)


def _show(evaluations: Iterable[Evaluation], *, json: bool) -> bool:
    """Print tables, or one JSON object per evaluation. False if one lost all its episodes."""
    lost = 0
    for evaluation in evaluations:
        print(dumps(evaluation.to_json()), flush=True) if json else show_evaluation(evaluation)
        if evaluation.all_lost:
            typer.echo(f"error: nothing could be graded; {_most_frequent(evaluation)}", err=True)
            lost += 1
    return not lost


def _most_frequent(evaluation: Evaluation) -> str:
    return f"the most frequent reason: {printable(evaluation.commonest_reason or '')}"


def _play(plan: EvalPlan, out: Path | None, *, force: bool) -> Evaluation:
    from palimpsest.app.evaluate.evaluation_run import evaluate_plan

    again = "nothing is saved without --out" if out is None else RERUN + (", without --force" if force else "")
    with resuming(lambda: again):
        return evaluate_plan(plan, out=out, force=force, progress=Terminal())


def _regrade(
    folder: Path, models: list[str], overrides: list[str], out: Path | None, played: Mapping[str, Any]
) -> Evaluation:
    """`played`: options that a regrade rejects."""
    from palimpsest.app.evaluate.evaluation_run import evaluate as evaluate_folder

    if len(models) > 1:
        raise ConfigError(f"--regrade {folder}: has one model, not {', '.join(models)}; omit them")
    model = models[0] if models else None
    return evaluate_folder(model, regrade=folder, overrides=overrides, out=out, progress=Terminal(), **played)


# ---- An evaluation as a table -------------------------------------------------------------------------------


FIGURES = {
    "problems": "problems",
    "cut": "documents cut",
    "accuracy": "accuracy",
    "95%": "low",
    "em": "em",
    "f1": "f1",
    "sub-em": "sub_em",
    "evidence kept": "evidence kept",
    "turns": "turns",
    "tokens/document": "tokens",
    "tokens/correct": "tokens/correct",
}
"""Columns of the printed table, and those of `Evaluation.table` that they show."""
ANSWERED = ("em", "f1", "sub_em", "evidence kept")
"""Columns about answers, which an environment has none of."""
MEMORY = ("evidence kept", "hallucinated", "dropped", "overwritten", "recall hits")
"""Columns of the table about the memory, if any row has them."""


def show_evaluation(evaluation: Evaluation) -> None:
    """Print it."""
    from palimpsest.app.evaluate.evaluation_result import ACTED
    from palimpsest.evaluation.episode_files import EPISODES
    from palimpsest.evaluation.sample_log import SAMPLES, SUMMARY
    from palimpsest.evaluation.summary import cost_columns
    from palimpsest.report.page import REPORT

    console, made = stdout(160), evaluation.table
    extra = {"pass@k" if "@" in name else name: name for name in made.columns if "@" in name or name == "disagree"}
    figures = dict(FIGURES)
    if evaluation.config.environment is not None:
        figures = {name: key for name, key in figures.items() if key not in ANSWERED} | {name: name for name in ACTED}
    console.print(_table(evaluation.title, {**figures, **extra}, evaluation, made))
    remembering = [row for row in made if "overwritten" in row or "recall hits" in row]  # only policies with a memory
    remembering = [row for row in remembering if not evaluation[row[""]].cell.baseline]
    if remembering:
        shown = {name: name for name in MEMORY if any(name in row for row in remembering)}
        console.print(_table("memory", shown, evaluation, remembering))
    if len(columns := cost_columns((*evaluation.summaries, *evaluation.baselines))) > 1:
        console.print(_table("costs", {name: name for name in columns}, evaluation, made))
    if evaluation.out is not None:
        written = [evaluation.out / name for name in (SAMPLES, SUMMARY, EPISODES, REPORT)]
        Terminal().message(", ".join(str(path) for path in written if path.exists()))
    for line in evaluation.notes:
        typer.echo(printable(line))
    _print_ungraded(evaluation)


def _table(title: str, columns: Mapping[str, str], evaluation: Evaluation, rows: Iterable[Mapping[str, Any]]) -> Table:
    cells = [[_name(row[""], evaluation), *(_cell(row, name) for name in columns.values())] for row in rows]
    return table(title, ["", *columns], cells)


def _name(name: str, evaluation: Evaluation) -> str:
    row = evaluation[name]
    if not row.cell.baseline:
        return name
    fewer = f" ({row.problems} of {row.part_problems} fit)" if row.part_problems else ""
    return f"baseline: {name}{fewer}"


def _cell(row: Mapping[str, Any], name: str) -> str:
    """A value of `Evaluation.table`; fractions in percent.

    >>> row = {"accuracy": 0.5, "low": 0.25, "high": 0.75, "turns": 2.0, "tokens": 1024}
    >>> [_cell(row, name) for name in ("accuracy", "low", "turns", "tokens", "documents cut", "f1")]
    ['50.0', '25–75', '2.0', '1,024', '0', '–']
    """
    value = row.get(name)
    if name in ("problems", "documents cut"):
        return str(value or 0)
    if value is None:
        return "–"
    if name == "low":
        return f"{100 * value:.0f}–{100 * row['high']:.0f}"
    if name.startswith("tokens") or name.endswith((" tokens", "computed", "billed", "GFLOPs")):
        return cost_text(value)
    return f"{value:.1f}" if name in ("turns", "steps", "invalid") else percent(value)


def _print_ungraded(evaluation: Evaluation) -> None:
    without_gold = sum(sample.without_gold for sample in evaluation.samples)
    if without_gold:
        typer.echo(f"{counted(without_gold, 'question')} without a gold answer: ungraded, not in the accuracy")
    unanswered = Counter(one.outcome for one in evaluation.samples if one.is_final and one.outcome != "answered")
    if unanswered:
        of = f"{unanswered.total():,} of {counted(len(evaluation), 'episode')}"
        typer.echo(f"{of} did not reach a complete answer: {counted_outcomes(unanswered)}")
    replied = [one for one in evaluation.samples if one.answer]
    unmarked = [sample.metrics for sample in replied if sample.metrics.get("answered") == 0.0]
    if holding := [one["string_match_part"] for one in unmarked if "string_match_part" in one]:
        typer.echo(
            f"{len(holding):,} of {len(replied):,} replies have no marked answer, such as \\boxed{{}}; "
            f"{sum(holding) / len(holding):.0%} of these contain a gold (reward.name=string_match_part counts them)"
        )
    if named := sum(one.get("keys_missing", 0.0) > 0 for one in unmarked):
        wider = "; reward.final_answer.where=found also takes \\boxed{} and answer phrases"
        wider = "" if evaluation.config.reward.final_answer.where == "found" else wider
        typer.echo(f"{named:,} of {len(replied):,} replies have no answer after FINAL_ANSWER:{wider}")
    lost = sum(not sample.is_final for sample in (*evaluation.samples, *evaluation.baseline_samples))
    if lost and not evaluation.all_lost:
        typer.echo(
            f"{counted(lost, 'episode')} ungraded and not in the accuracy; {_most_frequent(evaluation)}; run the same "
            "command to repeat them"
            + ("" if evaluation.out is None else f", or grade saved answers again: eval --regrade {evaluation.out}")
        )
