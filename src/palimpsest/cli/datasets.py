"""`palimpsest data`."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palimpsest import files
from palimpsest.cli.options import App, Columns, Force, Json, Out, named_columns, numbers, print_made, shares, stdout
from palimpsest.errors import ConfigError
from palimpsest.progress.displays import Terminal

if TYPE_CHECKING:
    from palimpsest.app.datasets.published_files import Wanted

app = App(help="Inspect data files; build, generate and download data sets.")


@app.callback()
def group() -> None:
    """Inspect data files; build, generate and download data sets."""


# ---- palimpsest data inspect ---------------------------------------------------------------------------------


class MissingGoldChoice(StrEnum):
    refuse = "refuse"
    skip = "skip"


@app.command("inspect")
def inspect(
    file: Annotated[str, typer.Argument(help="A data file in any known format.")],
    documents: Annotated[int | None, typer.Option(min=1, help="Assemble contexts of N documents first.")] = None,
    corpus: Annotated[str | None, typer.Option(help="File with further paragraphs for distractors.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first N problems.")] = None,
    format: Annotated[
        str | None, typer.Option(help="Name of the format, or my_module:MyFormat; default: by columns.")
    ] = None,
    columns: Columns = None,
    on_missing_gold: Annotated[
        MissingGoldChoice, typer.Option(help="Handling of rows whose gold paragraph is missing.")
    ] = MissingGoldChoice.refuse,
    json: Json = False,
) -> None:
    """Show a data file's format, lengths, gold answers, evidence positions and one problem.

    \b
    Examples:
      palimpsest data inspect hotpot_dev.json
      palimpsest data inspect hotpot_dev.json --documents 50 --limit 20
      palimpsest data inspect faq.csv --map question=q,answers=gold
      palimpsest data inspect faq.xml --format my_module:MyFormat
    """
    from palimpsest.data.formats.problem_files import ReadOptions
    from palimpsest.data.sources.file_source import named_format
    from palimpsest.report.dataset_summary import inspect_source, render

    named = named_columns(columns, [file])
    reading = ReadOptions(named_format(format), corpus, named, on_missing_gold is MissingGoldChoice.skip)
    inspection = inspect_source(file, reading, documents=documents, limit=limit)
    if json:
        print(dumps(asdict(inspection), default=str))
        return
    stdout().print(render(inspection))


# ---- palimpsest data build -----------------------------------------------------------------------------------


@app.command("build")
def build(
    source: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="HotpotQA, 2WikiMultiHopQA or MuSiQue; any format without --documents."),
    ],
    out: Out,
    documents: Annotated[
        list[str] | None,
        typer.Option(help="Documents per context, e.g. 50,200: one file each; default: unchanged contexts."),
    ] = None,
    columns: Columns = None,
    corpus: Annotated[list[Path] | None, typer.Option(help="File with further distractors; repeatable.")] = None,
    exclude: Annotated[list[Path] | None, typer.Option(help="Omit questions of this file (a test set).")] = None,
    drop_answered: Annotated[
        list[Path] | None,
        typer.Option(help="Omit questions that this evaluation answered right without a document; repeatable."),
    ] = None,
    split: Annotated[str, typer.Option(help="Splits: NAME=N, a share, or rest.")] = "eval=rest",
    disjoint_gold: Annotated[bool, typer.Option("--disjoint-gold", help="Splits share no gold document.")] = False,
    disjoint_documents: Annotated[
        bool, typer.Option("--disjoint-documents", help="No gold document is a distractor in another split.")
    ] = False,
    where: Annotated[list[str] | None, typer.Option(help="Only questions with metadata KEY=VALUE[,VALUE].")] = None,
    without_yes_no: Annotated[
        bool, typer.Option("--without-yes-no", help="Omit questions with the answer yes or no.")
    ] = False,
    order: Annotated[str, typer.Option(help="Order of gold documents: any, forward, reverse.")] = "any",
    min_distance: Annotated[
        float, typer.Option(min=0, help="Least distance of gold documents; below 1 a share of the context.")
    ] = 0,
    positions: Annotated[
        str | None, typer.Option(help="Positions of the gold documents, 0 to 1, e.g. 0.1,0.9.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of splits, distractors and positions.")] = 0,
    force: Force = False,
) -> None:
    """Build splits with long contexts from question files: gold documents among distractors, and a manifest.

    \b
    Examples:
      palimpsest data build hotpot_dev.json --documents 50,200 --seed 1 --out sets/hotpot
      palimpsest data build 2wiki_dev.json hotpot_train.json --documents 400 \\
        --split train=rest,dev=64,test=128 --disjoint-gold --min-distance 0.5 --out sets/far
      palimpsest data build Accurate_Retrieval.parquet --where source=eventqa_65536 --out sets/eventqa
    """
    from palimpsest.app.datasets.dataset_builder import build_contexts, read_contexts

    sizes = numbers("--documents", "numbers of documents", documents) if documents else ()
    fields: dict[str, Any] = {"documents": sizes, "seed": seed}
    fields |= {"disjoint_gold": disjoint_gold, "disjoint_documents": disjoint_documents}
    fields |= {"order": order, "min_distance": min_distance}
    fields["positions"] = shares("--positions", positions)
    chosen = {"without_yes_no": without_yes_no, "columns": named_columns(columns, [*source, *(exclude or ())])}
    contexts, filters = read_contexts(fields, split=split, where=where or (), chosen=chosen)
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
    print_made(built, (f"omitted, {reason}: {count:,}" for reason, count in built.left_out.items()))


# ---- palimpsest data download --------------------------------------------------------------------------------


@app.command("download")
def download(
    name: Annotated[
        str | None, typer.Argument(help="memagent-train, hotpotqa-dev...; or OWNER/NAME/FILE on the hub.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--for", metavar="RECIPE", help="Download all missing files of a recipe.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; default: data, or the folders in the recipe.")
    ] = None,
    force: Force = False,
) -> None:
    """Download a published file, or all files of a recipe, and print their SHA-256.

    The environment variable HF_ENDPOINT names a mirror of the Hugging Face hub. Existing files stay, so the same
    command resumes. For an unpublished file it prints the command that makes it, and exits with 1.

    \b
    Examples:
      palimpsest data download hotpotqa-dev --out data
      palimpsest data download BytedTsinghua-SIA/hotpotqa/eval_6400.json --out data
      palimpsest data download --for memagent-7b
      HF_ENDPOINT=https://hf-mirror.com palimpsest data download --for eval/ruler-hqa --out data
    """
    from palimpsest.app.datasets.published_files import Wanted, find

    if name is not None and recipe is None:
        published = find(name)
        _fetch(Wanted((out or Path("data")) / published.file, published, ""), force=force)
    elif recipe is not None and name is None:
        _fetch_all(recipe, out, force=force)
    else:
        raise ConfigError("data download: name one file, or --for RECIPE")


def _fetch_all(recipe: str, out: Path | None, *, force: bool) -> None:
    """Download the files of a recipe. Raises typer.Exit if one is not published."""
    from palimpsest.app.datasets.published_files import files_for

    missing = []
    for wanted in files_for(recipe, out):
        if wanted.path.exists() and not force:
            typer.echo(f"{wanted.path}: exists")
        elif wanted.published is None:
            missing.append(f"{wanted.path}: not published; {wanted.make}")
        else:
            _fetch(wanted, force=force)
    if missing:
        typer.echo("\n".join(missing), err=True)
        raise typer.Exit(1)


def _fetch(wanted: Wanted, *, force: bool) -> None:
    from palimpsest.app.datasets.published_files import download as fetch

    assert wanted.published
    path = fetch(wanted.published, wanted.path.parent, name=wanted.path.name, force=force, progress=Terminal())
    typer.echo(f"{path}: {path.stat().st_size:,} bytes; licence: {wanted.published.licence}")
    typer.echo(f"SHA-256 {files.sha256(path)}")


# ---- palimpsest data combine ---------------------------------------------------------------------------------


@app.command("combine")
def combine(
    source: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Question files in any known format.")],
    out: Out,
    objectives: Annotated[str, typer.Option(help="Questions per problem: one file each.")] = "2,4,6,8",
    documents: Annotated[
        int | None, typer.Option(min=1, help="Documents of the shared context; default: none, by search.")
    ] = None,
    problems: Annotated[int | None, typer.Option(min=1, help="Problems per size; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of combinations, distractors and positions.")] = 0,
    force: Force = False,
) -> None:
    """Combine questions into problems of several, for search or for one long document.

    \b
    Examples:
      palimpsest data combine hotpot_dev.json --objectives 2,4,6,8 --problems 200 --out sets/several
      palimpsest data combine hotpot_dev.json --objectives 3 --documents 100 --out sets/three
    """
    from palimpsest.app.datasets.dataset_builder import make_objectives

    sizes = numbers("--objectives", "numbers of questions", objectives)
    made = make_objectives(
        source, sizes, out=out, documents=documents, count=problems, seed=seed, force=force, progress=Terminal()
    )
    print_made(made)


# ---- palimpsest data wiki ------------------------------------------------------------------------------------


@app.command("wiki")
def wiki(
    source: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="HotpotQA, 2WikiMultiHopQA or MuSiQue files, or rows {title, text}."),
    ],
    out: Out,
    task: Annotated[str, typer.Option(help="Families of questions: needle, or several, e.g. list,count.")] = "needle",
    held_out: Annotated[int, typer.Option(min=1, help="Titles whose questions are for evaluation.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the split, the distractors and the order.")] = 0,
    force: Force = False,
) -> None:
    """Make questions on real paragraphs, such as "Who directed X?", each with the sentence that answers it.

    Writes train.jsonl and dev.jsonl in HotpotQA's layout. Their evidence differs. Families: see data.synthetic.task.

    \b
    Examples:
      palimpsest data download hotpotqa-dev --out data
      palimpsest data wiki data/hotpot_dev_distractor_v1.json --out data/wiki
      palimpsest data wiki data/hotpot_dev_distractor_v1.json --task needle,list,count,updates --out data/families
      palimpsest train memagent-smollm2 model.path=HuggingFaceTB/SmolLM2-135M-Instruct
    """
    from palimpsest.app.datasets.wiki_questions import make_wiki_questions, read_tasks

    made = make_wiki_questions(
        source, out=out, tasks=read_tasks(task), held_out=held_out, seed=seed, force=force, progress=Terminal()
    )
    print_made(made)


# ---- palimpsest data textworld -------------------------------------------------------------------------------


@app.command("textworld")
def textworld(
    out: Out,
    family: Annotated[str, typer.Option(help="notes, coins, treasure or cooking.")] = "notes",
    games: Annotated[int, typer.Option(min=1, help="Games for training.")] = 20,
    held_out: Annotated[int, typer.Option(min=1, help="Games for evaluation, of each difficulty.")] = 8,
    difficulty: Annotated[
        str | None,
        typer.Option(help="Moves to the goal, level of the treasure, or ingredients; default: 4,8, of cooking 1,2."),
    ] = None,
    test_difficulty: Annotated[str | None, typer.Option(help="Difficulty for evaluation, if different.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the games.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Processes that make games.")] = 2,
    force: Force = False,
) -> None:
    """Make TextWorld games, as problems of environment.name=textworld.

    Writes train.jsonl, test-4.jsonl and so on, and the games they name. A game takes some seconds.

    \b
    Examples:
      palimpsest data textworld --out games
      palimpsest data textworld --games 200 --difficulty 4,8 --test-difficulty 4,8,16,32 --out games
      palimpsest data textworld --family cooking --games 40 --difficulty 1,2 --out cooking
      palimpsest eval models/mine --policy edit --data games/test-4.jsonl environment.name=textworld \\
        environment.options.games=games reward.name=environment policy.options.prompts=play policy.options.tools={}
    """
    from palimpsest.app.datasets.textworld_games import GameSet, make_games

    levels = tuple(numbers("--difficulty", "numbers", difficulty)) if difficulty else ()
    tests = tuple(numbers("--test-difficulty", "numbers", test_difficulty)) if test_difficulty else ()
    wanted = GameSet(family, games, held_out, levels, tests, seed)
    print_made(make_games(wanted, out=out, processes=processes, force=force, progress=Terminal()))


# ---- palimpsest data ruler -----------------------------------------------------------------------------------


@app.command("ruler")
def ruler(
    tokenizer: Annotated[str, typer.Option(help="Tokenizer that counts tokens: a folder or hub id.")],
    lengths: Annotated[str, typer.Option(help="Lengths in tokens, including the answer, e.g. 4096,8192.")],
    out: Out,
    tasks: Annotated[str, typer.Option(help="RULER tasks, e.g. vt,cwe; all: those whose files are given.")] = "all",
    problems: Annotated[int, typer.Option(min=1, help="Problems per task and length.")] = 100,
    haystack: Annotated[Path | None, typer.Option(help="Text for the haystacks of five tasks.")] = None,
    squad: Annotated[Path | None, typer.Option(help="SQuAD file, for qa_1.")] = None,
    hotpot: Annotated[Path | None, typer.Option(help="HotpotQA file, for qa_2.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    force: Force = False,
) -> None:
    """Generate RULER tasks at any length.

    \b
    Examples:
      palimpsest data ruler --tokenizer Qwen/Qwen3-4B --lengths 4096,131072 --out sets/ruler
      palimpsest data ruler --tasks niah_multiquery,qa_2 --tokenizer models/mine --lengths 8192 --problems 16 \\
        --haystack essays.txt --hotpot hotpot_dev.json --out sets/ruler-8k
    """
    from palimpsest.app.datasets.ruler_sets import TaskTexts, make_ruler

    made = make_ruler(
        tasks.split(","),
        numbers("--lengths", "numbers of tokens", lengths),
        tokenizer=tokenizer,
        count=problems,
        out=out,
        seed=seed,
        texts=TaskTexts(haystack, squad, hotpot),
        force=force,
        progress=Terminal(),
    )
    print_made(made, (f"omitted: {task} (needs {option} FILE)" for task, option in made.left_out.items()))
