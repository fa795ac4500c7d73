"""`palimpsest eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import (
    RERUN,
    ApiKeyEnv,
    BaseUrl,
    Columns,
    Force,
    Tokenizer,
    going_on,
    named_columns,
    numbers,
)
from palimpsest.config.presets import load_preset, preset_names, preset_text
from palimpsest.progress.displays import Terminal
from palimpsest.text.display_text import printable

if TYPE_CHECKING:
    from palimpsest.app.evaluate.evaluation_plan import Agents, Sweep
    from palimpsest.app.evaluate.rescoring import Rescoring


# ---- Presets of evaluations as text --------------------------------------------------------------------------


def show_presets(name: str | None) -> None:
    """Print a preset whole, or a line on each."""
    if name is None:
        width = max(map(len, preset_names()))
        for each in preset_names():
            typer.echo(f"{each.ljust(width)}  {load_preset(each).about}")
        return
    preset = load_preset(name)  # refuses one that isn't right before it is shown
    typer.echo(preset_text(name).rstrip())
    typer.echo(f"\n{name} differs from the published protocol:")
    for difference in preset.differences:
        typer.echo(f"- {difference}")


# ---- palimpsest eval -----------------------------------------------------------------------------------------


def evaluate(
    policy: Annotated[
        str | None,
        typer.Option(
            help="A shipped policy, or my_module:MyPolicy; several as overwrite,recall; default: the recipe's or the "
            "run's, else overwrite."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="`embedded`, the default, a Hugging Face folder, a run, which brings its configuration, or a hub id; "
            "repeated: an evaluation each and one report."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A data file (HotpotQA, MemAgent, RULER, MemAct...), a folder that palimpsest data wrote, synthetic, "
            "synthetic_search; may be repeated; default: the recipe's or the run's, else synthetic."
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
    preset: Annotated[
        str | None, typer.Option(help="A published protocol by name, on the folder of its files: --data DIR.")
    ] = None,
    presets: Annotated[bool, typer.Option("--presets", help="List the presets.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the preset and how it differs from what is published.")
    ] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe that gives policy, budgets, reward and sampling; default: the run's, else what fits the model."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A policy option (chunk_size=2048) or a dotted recipe key."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws and of the assembly of contexts.")] = 0,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    tokenizer: Tokenizer = None,
    force: Force = False,
) -> None:
    """Play every problem with a memory policy, grade the answers, print a table; with baselines.

    Several policies, files and numbers of documents are played in every combination, a row each. With --out, one line
    an episode goes to samples.jsonl as it finishes, and the figures to summary.json and report.html; run again, it
    plays only what has no grade yet. Episodes that went wrong are kept token for token in episodes.jsonl.zst
    (--set evaluation.record=none|wrong|all).

    With --model repeated every one is evaluated so in a folder of its own in --out, beside them compare.html, which has
    all of them side by side.

    \b
    Examples:
      palimpsest eval --model runs/a --model runs/b --data dev.jsonl --set reward.name=fraction --out evals/both
      palimpsest eval --data hotpot_dev.json --documents 50,100,200 --out evals/hotpot
      palimpsest eval --preset ruler-hqa --model Qwen/Qwen3-4B --data data --out evals/ruler-hqa
      palimpsest eval --policy overwrite,recall --data sets/hotpot --data dev.jsonl --out evals/both
      palimpsest eval --model runs/first/checkpoints/step-000100 --data synthetic --chunks 4,64,256
      palimpsest eval --policy prune --model runs/first --data synthetic_search --objectives 1,2,4,8
      palimpsest eval --model Qwen/Qwen3-4B --data eval_200.json --limit 32 --set chunk_size=2048
      palimpsest eval --data dev.jsonl --samples 4 --set eval_sampling.temperature=0.7
      palimpsest eval --policy my_module:MyPolicy --data dev.jsonl --set notebook_lines=8
      palimpsest eval --policy full_context --data hotpot_dev.json --set reward.name=f1
      palimpsest eval --base-url http://127.0.0.1:8000/v1 --model Qwen/Qwen3-4B --data eval_200.json --out evals/qwen
      palimpsest eval --base-url https://api.openai.com/v1 --model gpt-4.1-mini --api-key-env OPENAI_API_KEY --limit 8
    """
    from palimpsest.app.config_resolution import Remote
    from palimpsest.app.evaluate.comparison_report import agents_of, check_alike, report
    from palimpsest.app.evaluate.evaluation_plan import Agents, choose

    if presets or show:
        show_presets(preset)
        return
    chosen = None if preset is None else choose(preset, data)
    remote = Remote.named(base_url, api_key_env, tokenizer)
    first, *others = model or ["embedded"]
    agents = Agents.of(first, policy, recipe, settings or (), seed, chosen, remote)
    asked = {
        "objectives": None if objectives is None else numbers("--objectives", "numbers", objectives),
        "corpus": corpus,
        "limit": limit,
        "columns": None if columns is None else named_columns(columns),
    }
    lengths = None if chunks is None else numbers("--chunks", "lengths", chunks)
    placed = agents_of([first, *others], agents, out) if others else {out: agents}
    sweeps = [
        each.sweep(
            data=None if not data else data[0] if len(data) == 1 else tuple(data),
            documents=None if documents is None else numbers("--documents", "numbers", documents),
            asked=asked,
            chunks=lengths,
            samples=samples,
            baselines=baselines,
        )
        for each in placed.values()
    ]
    check_alike(sweeps)
    for (place, each), sweep in zip(placed.items(), sweeps, strict=True):
        _play(each, sweep, place, force=force)
    if others and out is not None:
        Terminal().message(str(report([place for place in placed if place is not None], out)[0]))


def _play(agents: Agents, sweep: Sweep, out: Path | None, *, force: bool) -> None:
    from palimpsest.app.evaluate.evaluation_run import evaluate_sweep
    from palimpsest.cli.evaluation_output import show_evaluation

    terminal = Terminal()
    for line in agents.told(sweep.config):
        terminal.message(line)
    with going_on(
        lambda: "nothing is kept without --out" if out is None else RERUN + (", without --force" if force else "")
    ):
        evaluation = evaluate_sweep(sweep, out=out, force=force, progress=terminal)
    show_evaluation(evaluation)


# ---- palimpsest rescore --------------------------------------------------------------------------------------


def rescore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What palimpsest eval --out wrote.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A dotted key of reward: reward.name=f1.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the folder under DIR/rescored; default: the reward's.")] = None,
) -> None:
    """Grade an evaluation's answers anew, without its model; the new grades stand beside the old ones.

    What is there stays as it is: DIR/rescored/NAME is an evaluation of its own, which palimpsest compare takes.

    \b
    Examples:
      palimpsest rescore evals/first --set reward.name=f1
      palimpsest rescore evals/first --set reward.name=boxed --set reward.strict=true --name published
    """
    from palimpsest.app.evaluate.rescoring import rescore as rescore_folder
    from palimpsest.cli.output import stdout, table

    done = rescore_folder(folder, settings or (), name=name)
    columns = ["", "problems", "ungraded", "logged", done.reward.name, "95%"]
    console = stdout()
    console.print(table(str(folder), columns, _rows(done)))
    for line in done.told:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    typer.echo(str(done.out), err=True)


def _rows(done: Rescoring) -> list[list[str]]:
    from palimpsest.cli.output import interval, percent

    rows = []
    for old, new in zip(done.before, done.summaries, strict=True):
        row = [new.name, str(new.problems), str(new.ungraded), percent(old.accuracy.mean)]
        rows.append([*row, percent(new.accuracy.mean), interval(new.accuracy)])
    return rows
