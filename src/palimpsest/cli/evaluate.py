"""`palimpsest eval`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palimpsest.cli.options import (
    RERUN,
    ApiKeyEnv,
    BaseUrl,
    Columns,
    Force,
    Tokenizer,
    Words,
    going_on,
    models_and_overrides,
    named_columns,
    numbers,
)
from palimpsest.errors import ConfigError
from palimpsest.progress.displays import Terminal

if TYPE_CHECKING:
    from palimpsest.app.evaluate.evaluation_plan import EvalPlan


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
    from palimpsest.cli.evaluation_output import show_evaluation

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
    from palimpsest.cli.evaluation_output import show_evaluation

    if len(models) > 1:
        raise ConfigError(f"--regrade {folder}: has one model, not {', '.join(models)}; leave them out")
    model = models[0] if models else None
    kwargs: dict[str, Any] = {name: value for name, value in played.items() if value is not None}
    show_evaluation(evaluate_folder(model, regrade=folder, overrides=overrides, out=out, progress=Terminal(), **kwargs))
