"""`palimpsest compare`, `palimpsest league` and `palimpsest probe`."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palimpsest.cli.options import (
    OUTPUT,
    RERUN,
    ApiKeyEnv,
    BaseUrl,
    Json,
    Overrides,
    Tokenizer,
    Words,
    interval,
    models_and_overrides,
    numbers,
    percent,
    resuming,
    stdout,
    table,
)
from palimpsest.config.load import shipped
from palimpsest.errors import ConfigError
from palimpsest.progress.displays import Terminal
from palimpsest.text.display_text import cost_text, p_text, printable

if TYPE_CHECKING:
    from palimpsest.app.evaluate.run_comparison import Comparison
    from palimpsest.evaluation.comparison import Pairing
    from palimpsest.evaluation.sample_log import Cell
    from palimpsest.evaluation.statistics import Difference
    from palimpsest.text.display_text import Table as FigureTable


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR DIR...", help="Evaluations or quickstart runs; two or more.")
    ],
    changed: Annotated[int, typer.Option(min=0, help="Print N changed answers per side.")] = 0,
    diff: Annotated[bool, typer.Option("--diff", help="Print the configuration keys that differ.")] = False,
    plot: Annotated[
        Path | None, OUTPUT(help="Plot accuracy by length to this .svg or .png, and by cost to NAME-cost.")
    ] = None,
    out: Annotated[Path | None, OUTPUT(help="Folder for compare.html, compare.json and both plots.")] = None,
    json: Json = False,
) -> None:
    """Compare evaluations: accuracy and cost by task and length, and paired differences.

    Differences are against the first folder, over the problems that both sides graded: same set, id, question and gold
    answers. Each has a 95% confidence interval and a p-value. Problems of one side only are counted, not compared.

    \b
    Examples:
      palimpsest compare evals/before evals/after --changed 10
      palimpsest compare evals/seed-0 evals/seed-1 evals/seed-2 --plot seeds.svg
      palimpsest compare runs/quickstart runs/other --out comparison
      palimpsest compare evals/a evals/b --json
    """
    from palimpsest.app.evaluate.comparison_report import check_plot, write_folder, write_plots
    from palimpsest.app.evaluate.run_comparison import compare as compare_folders

    if plot is not None:
        check_plot(plot)
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: this is a file; give a folder")
    comparison = compare_folders(*folders)
    written = [*(write_plots(comparison, plot) if plot else ()), *(write_folder(comparison, out) if out else ())]
    if json:
        print(dumps(comparison.to_json(changed or None)))
        return
    _show(comparison, changed, diff=diff)
    for path in written:
        typer.echo(str(path), err=True)


_COLUMNS = ["", "side", "problems", "ungraded", "accuracy", "95%", "difference", "95%", "p", "turns", "tokens/problem"]


def _show(comparison: Comparison, flips: int, *, diff: bool) -> None:
    from palimpsest.evaluation.summary import cost_columns

    title = ", ".join(side.name for side in comparison.sides)
    rows = [_row(comparison, cell, name) for cell, sides in comparison.figures.items() for name in sides]
    made = table(title, _COLUMNS, rows)
    made.columns[0].min_width = min(30, max(len(row[0]) for row in rows))  # the name of a side gives way first
    made.columns[1].no_wrap = False
    stdout(160).print(made)
    cells = [(cell, name, row) for cell, sides in comparison.figures.items() for name, row in sides.items()]
    if len(columns := cost_columns(row for *_, row in cells)) > 1:
        costs = [[comparison.label(c), n, *(cost_text(row.costs.get(one)) for one in columns)] for c, n, row in cells]
        stdout(160).print(table("costs", ["", "side", *columns], costs))
    for name, pairing in comparison.pairings.items():
        typer.echo(printable(_sentence(name, comparison.sides[0].name, pairing)))
    for note in comparison.notes:
        typer.echo(printable(note))
    _show_bands(comparison)
    _show_differs(comparison, all_keys=diff)
    for name in comparison.flips if flips else ():
        _show_flips(comparison, name, flips)


def _row(comparison: Comparison, cell: Cell, name: str) -> list[str]:
    figures = comparison.figures[cell][name]
    pairing = comparison.cell_pairings.get(cell, {}).get(name)
    difference = pairing.difference if pairing else None
    return [
        comparison.label(cell),
        name,
        str(figures.problems),
        str(figures.ungraded),
        percent(figures.accuracy.mean),
        interval(figures.accuracy),
        *(["", "", ""] if difference is None else _difference(difference)),
        f"{figures.turns_per_document:.1f}",
        f"{figures.tokens_per_document:,.0f}",
    ]


def _difference(difference: Difference) -> list[str]:
    """Points, the ends of the interval, p."""
    ends = f"{100 * difference.low:+.0f} to {100 * difference.high:+.0f}"
    return [f"{100 * difference.mean:+.1f}", ends, p_text(difference.p)]


def _sentence(name: str, first: str, pairing: Pairing) -> str:
    """The difference over all problems."""
    difference = pairing.difference
    if difference is None:
        return f"{name} compared with {first}: nothing to compare"
    mean, ends, p = _difference(difference)
    tests = {"mcnemar": "McNemar's exact test", "sign_flip": "sign flips"}
    return (
        f"{name} compared with {first}: {mean} points ({ends}) over {pairing.counted}, p {p} "
        f"({tests[difference.test]}); {difference.better} better, {difference.worse} worse"
    )


def _show_bands(comparison: Comparison) -> None:
    rows = [
        [comparison.label(b.cell), str(len(b.sides)), *map(percent, (b.mean, b.low, b.high, b.deviation))]
        for b in comparison.bands
    ]
    if rows:
        stdout().print("\nover sides that differ only in their seed", style="bold")
        stdout().print(table("", ["", "seeds", "mean", "lowest", "highest", "deviation"], rows))


def _show_differs(comparison: Comparison, *, all_keys: bool) -> None:
    if comparison.differs and not all_keys:
        stdout().print(f"\nconfiguration keys that differ: {len(comparison.differs)} (--diff prints them)")
        return
    rows = [[key, *(printable(f"{value!s:.40}") for value in values)] for key, values in comparison.differs.items()]
    if rows:
        stdout().print("\nconfiguration keys that differ", style="bold")  # as a title it would wrap
        stdout().print(table("", ["", *(side.name for side in comparison.sides)], rows))


def _show_flips(comparison: Comparison, name: str, most: int) -> None:
    from palimpsest.text.answers import unboxed

    flipped = comparison.flips[name]
    typer.secho(f"\n{printable(name)}: {len(flipped)} changed, {min(most, len(flipped))} shown", bold=True)
    for flip in flipped[:most]:
        lines = [
            f"{comparison.label(flip.cell)}, {flip.id}: {flip.first_value:g} to {flip.second_value:g}; "
            f"gold {', '.join(flip.golds)}",
            f"  {flip.question}",
            f"  - {unboxed(flip.first)}",
            f"  + {unboxed(flip.second)}",
        ]
        for line in lines:
            typer.echo(printable(f"{line:.400}"))


# ---- palimpsest league ---------------------------------------------------------------------------------------


def league(
    name: Annotated[str, typer.Argument(metavar="LEAGUE", help=f"{' or '.join(shipped('leagues'))}, or a YAML file.")],
    settings: Overrides = None,
    out: Annotated[Path | None, OUTPUT(help="Folder of runs, evaluations and table; default: leagues/NAME.")] = None,
    json: Json = False,
) -> None:
    """Train and evaluate memory methods under equal conditions, and tabulate them.

    Every method gets the same problems, seeds and training tokens. The table is OUT/league.html, its figures are in
    OUT/league.json; both grow while the league runs. The same command continues an interrupted league, and a file that
    extends a league adds methods to it.

    \b
    Examples:
      palimpsest league small --out leagues/small
      palimpsest league small seeds=[0] problems=16 train.max_steps=40 --out leagues/try
      palimpsest league mine.yaml --out leagues/small
      palimpsest league laptop --out leagues/laptop
    """
    with resuming(lambda: RERUN):
        from palimpsest.app.league.league_page import PAGE, RESULTS, family_table, mean_table
        from palimpsest.app.league.league_run import league as run
        from palimpsest.app.league.league_run import league_folder

        folder = out or league_folder(name)
        made = run(name, settings or (), out=folder)
    if json:
        typer.echo((folder / RESULTS).read_text("utf-8"), nl=False)
    else:
        for title, each in (("means over families", mean_table(made)), ("accuracy by family", family_table(made))):
            stdout(200).print(_printed(title, each))
        for line in made.notes():
            typer.echo(printable(line))
        typer.echo(str(folder / PAGE), err=True)
    if made.incomplete:
        raise typer.Exit(1)


def _printed(title: str, made: FigureTable) -> object:
    return table(title, list(made.columns), [[str(row.get(name, "")) for name in made.columns] for row in made])


# ---- palimpsest probe ----------------------------------------------------------------------------------------


def probe(
    words: Words = None,
    chunks: Annotated[int, typer.Option(min=1, help="Paragraphs per document.")] = 64,
    limit: Annotated[int, typer.Option(min=1, help="Number of documents.")] = 64,
    predict: Annotated[
        str, typer.Option(metavar="N,N...", help="Paragraphs per document to predict accuracy for.")
    ] = "4,64,256,1024",
    recipe: Annotated[str | None, typer.Option(help="Recipe with policy and budgets; default: the run's.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of documents and random draws.")] = 0,
    json: Json = False,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Measure how single reads change a fact in memory, and predict accuracy at other lengths.

    Predictions have a 95% confidence interval. A length whose interval is wider than 50 points is not predicted; the
    command prints the number of reads that it needs and the --limit that gives them.

    \b
    Examples:
      palimpsest probe runs/quickstart
      palimpsest probe Qwen/Qwen3-4B --base-url http://127.0.0.1:8000/v1
    """
    from palimpsest.app.config_resolution import Agent
    from palimpsest.app.evaluate.length_probe import probe as probe_reads

    models, overrides = models_and_overrides(words)
    if len(models) != 1:
        raise ConfigError(f"probe takes one model, not {len(models)}; give a run or embedded")
    agent = Agent(models[0], None, recipe, overrides, seed, base_url, api_key_env, tokenizer)
    sizes = numbers("--predict", "lengths", predict)
    result = probe_reads(agent, chunks=chunks, lengths=sizes, limit=limit, progress=Terminal())
    if json:
        print(dumps(result))
        return
    for name in ("states", "expected", "measured"):
        columns, rows = list(result[name][0]), [[_in_percent(value) for value in row.values()] for row in result[name]]
        stdout().print(table(name, columns, rows))


def _in_percent(value: Any) -> str:
    return "–" if value is None else f"{100 * value:.2f}" if isinstance(value, float) else str(value)
