"""`palimpsest data build`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from palimpsest.cli.options import Force, Out, numbers, shares, tell_made


def build(
    source: Annotated[list[Path], typer.Option(help="HotpotQA, 2WikiMultiHopQA or MuSiQue file; may be repeated.")],
    documents: Annotated[str, typer.Option(help="Documents per context, e.g. 50,200: a file for each number.")],
    out: Out,
    corpus: Annotated[list[Path] | None, typer.Option(help="File whose paragraphs join the distractors.")] = None,
    exclude: Annotated[list[Path] | None, typer.Option(help="No question of this file is used: a test set.")] = None,
    split: Annotated[str, typer.Option(help="Names with a number, a share or rest.")] = "eval=rest",
    disjoint_gold: Annotated[
        bool, typer.Option("--disjoint-gold", help="Splits share no gold document, besides sharing no question.")
    ] = False,
    disjoint_documents: Annotated[
        bool, typer.Option("--disjoint-documents", help="Nor is one a distractor in another split.")
    ] = False,
    where: Annotated[list[str] | None, typer.Option(help="Only questions of metadata KEY=VALUE[,VALUE].")] = None,
    without_yes_no: Annotated[
        bool, typer.Option("--without-yes-no", help="No question that yes or no answers.")
    ] = False,
    order: Annotated[str, typer.Option(help="Of the gold documents: any, forward, reverse.")] = "any",
    min_distance: Annotated[float, typer.Option(min=0, help="Between gold documents; below 1 a share of all.")] = 0,
    positions: Annotated[str | None, typer.Option(help="Of the gold documents, 0 to 1, e.g. 0.1,0.9.")] = None,
    layout: Annotated[str, typer.Option(help="text, indices (into documents.jsonl), or auto: the smaller.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of splits, distractors and places.")] = 0,
    force: Force = False,
) -> None:
    """Build long contexts out of question files: every gold document among distractors, in splits, with a manifest.

    \b
    Examples:
      palimpsest data build --source hotpot_dev.json --documents 50,200 --seed 1 --out sets/hotpot
      palimpsest data build --source 2wiki_dev.json --source hotpot_train.json --documents 400 \\
        --split train=rest,dev=64,test=128 --disjoint-gold --min-distance 0.5 --out sets/far
    """
    from palimpsest.jobs.building import build_contexts, read_contexts
    from palimpsest.progress.terminal import Terminal

    given: dict[str, Any] = {"documents": numbers("--documents", "numbers of documents", documents), "seed": seed}
    given |= {"disjoint_gold": disjoint_gold, "disjoint_documents": disjoint_documents}
    given |= {"order": order, "min_distance": min_distance, "layout": layout}
    given["positions"] = shares("--positions", positions)
    contexts, filters = read_contexts(given, split=split, where=where or (), without_yes_no=without_yes_no)
    built = build_contexts(
        source,
        contexts,
        out=out,
        corpora=corpus or (),
        exclude=exclude or (),
        filters=filters,
        force=force,
        progress=Terminal(),
    )
    tell_made(built, (f"left out, {reason}: {count:,}" for reason, count in built.left_out.items()))
