"""`palimpsest data`: inspects data files, and makes and downloads data sets."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from palimpsest.cli.options import Columns, Force, Out, named_columns, numbers, print_made, shares

app = typer.Typer(help="Look into data files, make data sets.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Look into data files, make data sets."""


# ---- palimpsest data inspect ---------------------------------------------------------------------------------


class MissingGoldChoice(StrEnum):
    refuse = "refuse"
    skip = "skip"


@app.command("inspect")
def inspect(
    file: Annotated[str, typer.Argument(help="A data file of any format that training and evaluation read.")],
    documents: Annotated[int | None, typer.Option(min=1, help="Assemble contexts of so many documents first.")] = None,
    corpus: Annotated[str | None, typer.Option(help="File whose paragraphs join the distractors.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    format: Annotated[str | None, typer.Option(help="By name, or my_module:MyFormat; default: by columns.")] = None,
    columns: Columns = None,
    on_missing_gold: Annotated[
        MissingGoldChoice, typer.Option(help="What becomes of a row whose gold paragraph isn't among its own.")
    ] = MissingGoldChoice.refuse,
) -> None:
    """Show format, lengths, golds, evidence positions and one worked sample of a data file.

    \b
    Examples:
      palimpsest data inspect hotpot_dev.json
      palimpsest data inspect hotpot_dev.json --documents 50 --limit 20
      palimpsest data inspect faq.csv --map question=q,answers=gold
      palimpsest data inspect faq.xml --format my_module:MyFormat
    """
    from palimpsest.cli.options import stdout
    from palimpsest.data.formats.problem_files import ReadOptions
    from palimpsest.data.sources.file_source import named_format
    from palimpsest.report.dataset_summary import inspect_source, render

    named = named_columns(columns, file)
    reading = ReadOptions(named_format(format), corpus, named, on_missing_gold is MissingGoldChoice.skip)
    stdout().print(render(inspect_source(file, reading, documents=documents, limit=limit)))


# ---- palimpsest data build -----------------------------------------------------------------------------------


@app.command("build")
def build(
    source: Annotated[
        list[Path],
        typer.Option(help="HotpotQA, 2WikiMultiHopQA or MuSiQue file, or any without --documents; may be repeated."),
    ],
    out: Out,
    documents: Annotated[
        str | None, typer.Option(help="Per context, e.g. 50,200: a file for each; without it, as the files have them.")
    ] = None,
    corpus: Annotated[list[Path] | None, typer.Option(help="File whose paragraphs join the distractors.")] = None,
    exclude: Annotated[list[Path] | None, typer.Option(help="No question of this file is used: a test set.")] = None,
    drop_answered: Annotated[
        list[Path] | None,
        typer.Option(help="Evaluation: no question that it answered right without a document; may be repeated."),
    ] = None,
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
    seed: Annotated[int, typer.Option(help="Of splits, distractors and places.")] = 0,
    force: Force = False,
) -> None:
    """Deal questions of files into splits, with long contexts: every gold document among distractors; with a manifest.

    \b
    Examples:
      palimpsest data build --source hotpot_dev.json --documents 50,200 --seed 1 --out sets/hotpot
      palimpsest data build --source 2wiki_dev.json --source hotpot_train.json --documents 400 \\
        --split train=rest,dev=64,test=128 --disjoint-gold --min-distance 0.5 --out sets/far
      palimpsest data build --source Accurate_Retrieval.parquet --where source=eventqa_65536 --out sets/eventqa
    """
    from palimpsest.app.datasets.dataset_builder import build_contexts, read_contexts
    from palimpsest.progress.displays import Terminal

    sizes = numbers("--documents", "numbers of documents", documents) if documents else ()
    fields: dict[str, Any] = {"documents": sizes, "seed": seed}
    fields |= {"disjoint_gold": disjoint_gold, "disjoint_documents": disjoint_documents}
    fields |= {"order": order, "min_distance": min_distance}
    fields["positions"] = shares("--positions", positions)
    contexts, filters = read_contexts(fields, split=split, where=where or (), without_yes_no=without_yes_no)
    built = build_contexts(
        source,
        contexts,
        out=out,
        corpora=corpus or (),
        exclude=exclude or (),
        answered=drop_answered or (),
        filters=filters,
        force=force,
        progress=Terminal(),
    )
    print_made(built, (f"left out, {reason}: {count:,}" for reason, count in built.left_out.items()))


# ---- palimpsest data download --------------------------------------------------------------------------------


@app.command("download")
def download(
    name: Annotated[str, typer.Argument(help="memagent-train, hotpotqa-dev...; or OWNER/NAME/FILE of the hub.")],
    out: Annotated[Path, typer.Option(help="Folder to write the file to.")] = Path("data"),
    force: Force = False,
) -> None:
    """Fetch a published data set's file; its SHA-256 is printed.

    \b
    Examples:
      palimpsest data download hotpotqa-dev --out data
      palimpsest data download BytedTsinghua-SIA/hotpotqa/eval_6400.json --out data
    """
    from palimpsest import files
    from palimpsest.app.datasets.published_files import download as fetch
    from palimpsest.app.datasets.published_files import find
    from palimpsest.progress.displays import Terminal

    published = find(name)
    path = fetch(published, out, force=force, progress=Terminal())
    typer.echo(f"{path}: {path.stat().st_size:,} bytes; licence: {published.licence}")
    typer.echo(f"SHA-256 {files.sha256(path)}")


# ---- palimpsest data objectives ------------------------------------------------------------------------------


@app.command("objectives")
def objectives(
    source: Annotated[list[Path], typer.Option(help="Question file of any known format; may be repeated.")],
    out: Out,
    objectives: Annotated[str, typer.Option(help="Questions a problem asks: a file for each number.")] = "2,4,6,8",
    documents: Annotated[
        int | None, typer.Option(min=1, help="On one context of so many; without it, by search.")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="Problems of each size; all there are without it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of who is asked with whom, distractors and places.")] = 0,
    force: Force = False,
) -> None:
    """Combine the questions of files into problems of several, to be searched for or asked of one long document.

    \b
    Examples:
      palimpsest data objectives --source hotpot_dev.json --objectives 2,4,6,8 --n 200 --out sets/several
      palimpsest data objectives --source hotpot_dev.json --objectives 3 --documents 100 --out sets/three
    """
    from palimpsest.app.datasets.dataset_builder import make_objectives
    from palimpsest.progress.displays import Terminal

    sizes = numbers("--objectives", "numbers of questions", objectives)
    made = make_objectives(
        source, sizes, out=out, documents=documents, count=n, seed=seed, force=force, progress=Terminal()
    )
    print_made(made)


# ---- palimpsest data ruler -----------------------------------------------------------------------------------


@app.command("ruler")
def ruler(
    tokenizer: Annotated[str, typer.Option(help="Folder or hub id of the model whose tokens are counted.")],
    lengths: Annotated[str, typer.Option(help="In tokens, the answer's room included, e.g. 4096,8192.")],
    out: Out,
    tasks: Annotated[
        str, typer.Option(help="Of RULER's thirteen, e.g. vt,cwe; all: those whose files are given.")
    ] = "all",
    n: Annotated[int, typer.Option("--n", min=1, help="Problems of each task and length.")] = 100,
    haystack: Annotated[Path | None, typer.Option(help="Text file in which needles of five tasks are hidden.")] = None,
    squad: Annotated[Path | None, typer.Option(help="SQuAD's file, for qa_1.")] = None,
    hotpot: Annotated[Path | None, typer.Option(help="HotpotQA's file, for qa_2.")] = None,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    force: Force = False,
) -> None:
    """Generate RULER's tasks at any length of any tokenizer.

    \b
    Examples:
      palimpsest data ruler --tokenizer Qwen/Qwen3-4B --lengths 4096,131072 --out sets/ruler
      palimpsest data ruler --tasks niah_multiquery,qa_2 --tokenizer models/mine --lengths 8192 --n 16 \\
        --haystack essays.txt --hotpot hotpot_dev.json --out sets/ruler-8k
    """
    from palimpsest.app.datasets.ruler_sets import TaskTexts, make_ruler
    from palimpsest.progress.displays import Terminal

    made = make_ruler(
        tasks.split(","),
        numbers("--lengths", "numbers of tokens", lengths),
        tokenizer=tokenizer,
        count=n,
        out=out,
        seed=seed,
        texts=TaskTexts(haystack, squad, hotpot),
        force=force,
        progress=Terminal(),
    )
    print_made(made, (_lacks(*entry) for entry in made.left_out.items()))


def _lacks(task: str, option: str) -> str:
    return f"left out: {task}, which is made of a file of yours ({option} FILE)"
