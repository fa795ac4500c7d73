"""`palimpsest eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force


def evaluate(
    policy: Annotated[
        str,
        typer.Option(help="A shipped policy (overwrite, recall, prune, full_context...), or my_module:MyPolicy."),
    ] = "overwrite",
    model: Annotated[
        str, typer.Option(help="`embedded`, a Hugging Face folder, a run folder's checkpoint, or a hub id.")
    ] = "embedded",
    data: Annotated[
        str, typer.Option(help="A data file (HotpotQA, MemAgent, RULER, MemAct...), synthetic, synthetic_search.")
    ] = "synthetic",
    documents: Annotated[
        int | None,
        typer.Option(min=1, help="Documents per context, gold ones among distractors; default: as they are."),
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
    out: Annotated[Path | None, typer.Option(help="Folder for samples.jsonl and summary.json.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Recipe that gives budgets, reward and sampling; default: what fits the model."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A policy option (chunk_size=2048) or a dotted recipe key."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws and of the assembly of contexts.")] = 0,
    force: Force = False,
) -> None:
    """Play every problem once with a memory policy, grade the answers, print a table.

    With --out, one line a problem goes to samples.jsonl as it finishes, and the figures to summary.json; run again,
    it plays only what has no grade yet.

    \b
    Examples:
      palimpsest eval --data hotpot_dev.json --documents 20 --out evals/hotpot-20
      palimpsest eval --model runs/first/checkpoints/step-000100 --data synthetic --chunks 4,64,256
      palimpsest eval --policy prune --model runs/first --data synthetic_search --objectives 1,2,4,8
      palimpsest eval --model Qwen/Qwen3-4B --data eval_200.json --limit 32 --set chunk_size=2048
      palimpsest eval --policy my_module:MyPolicy --data dev.jsonl --set notebook_lines=8
      palimpsest eval --policy full_context --data hotpot_dev.json --set reward.name=f1
    """
    from palimpsest.jobs.requests import EvalRequest

    request = EvalRequest(
        policy=policy,
        model=model,
        data=data,
        documents=documents,
        chunks=chunks,
        objectives=objectives,
        corpus=corpus,
        limit=limit,
        out=out,
        recipe=recipe,
        settings=tuple(settings or ()),
        seed=seed,
        force=force,
    )
    config = request.config()
    from palimpsest.jobs.evaluation import run_evaluation  # after the configuration is known to be right

    run_evaluation(request, config)
