"""`palimpsest bench`: the measurements behind the figures in the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(help="Measure speed on this machine.", invoke_without_command=True, rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]

BENCHES = (
    ("rollout", "2 minutes", "sampling beside transformers and vLLM"),
    ("train-step", "20 seconds", "one optimiser step beside padded training, with peak memory"),
    ("retrieval", "1 minute", "the retrieval server under 32 clients beside its index called directly"),
    ("forest", "4 minutes", "shared prefixes trained and sampled once beside one by one, and beside TRL"),
    ("all", "8 minutes", "every one of them, and forests on a GPU where there is one"),
)

Model = Annotated[str, typer.Option(help="`embedded`, a Hugging Face folder or a hub id.")]


@app.callback()
def every(context: typer.Context) -> None:
    """Measure speed on this machine. Without a name: list the benchmarks.

    \b
    Examples:
      palimpsest bench
      palimpsest bench all --size small
      palimpsest bench forest --plot scaling.png
    """
    if context.invoked_subcommand is None:
        from palimpsest.cli.output import stdout, table

        stdout().print(table("palimpsest bench NAME", ["name", "takes about", "measures"], [list(r) for r in BENCHES]))


@app.command("all")
def everything(
    json: Json = False,
    model: Model = "embedded",
    size: Annotated[
        Literal["small", "full"],
        typer.Option(help="`small`: whether it runs, in a minute or two; `full`: the figures."),
    ] = "full",
) -> None:
    """Every benchmark in turn. One that fails or lacks what it needs says so, and the others go on.

    \b
    Examples:
      palimpsest bench all
      palimpsest bench all --size small --json
    """
    from palimpsest.bench.measurements import all_benches
    from palimpsest.cli.output import show_figures, show_measured
    from palimpsest.progress.displays import Terminal

    done = {}
    for name, run in all_benches(model=model, small=size == "small"):
        Terminal().message(f"bench {name}")
        done[name] = run()
        if not json:
            show_measured(name, done[name])
    if json:
        shown = {name: {"status": m.status, "notes": list(m.notes), "figures": m.figures} for name, m in done.items()}
        show_figures("all", shown, json=True)
    raise typer.Exit(int(any(measured.status == "failed" for measured in done.values())))


@app.command("rollout")
def rollout(json: Json = False, model: Model = "embedded") -> None:
    """Episodes and tokens per second of the embedded sampler beside transformers and vLLM, where installed.

    \b
    Examples:
      palimpsest bench rollout
      palimpsest bench rollout --json
      PALIMPSEST_VLLM_PYTHON=/opt/vllm/bin/python palimpsest bench rollout
    """
    from palimpsest.bench.measurements import measure
    from palimpsest.cli.output import show_figures

    show_figures("rollout", measure("rollout", model=model), json)


@app.command("train-step")
def train_step(json: Json = False, model: Model = "embedded") -> None:
    """The embedded learner beside padded training of every segment by itself, with peak memory.

    \b
    Examples:
      palimpsest bench train-step
      palimpsest bench train-step --json
    """
    from palimpsest.bench.measurements import measure
    from palimpsest.cli.output import show_figures

    show_figures("train-step", measure("train-step", model=model), json)


@app.command("retrieval")
def retrieval(
    json: Json = False,
    size: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of bench.retrieval.Sizes; repeatable.")] = None,
) -> None:
    """The retrieval server under concurrent clients beside its index called directly.

    \b
    Examples:
      palimpsest bench retrieval
      palimpsest bench retrieval --json --size passages=10000 --size clients=8
    """
    from palimpsest.bench.measurements import measure_retrieval
    from palimpsest.cli.output import show_figures

    show_figures("retrieval", measure_retrieval(size=tuple(size or ())), json)


@app.command("forest")
def forest(
    json: Json = False,
    model: Annotated[
        str, typer.Option(help="Its size is taken; weights are random, the window is longer.")
    ] = "embedded",
    size: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of bench.forest.Sizes; repeatable.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write cost over work to this PNG.")] = None,
) -> None:
    """Training every shared token once beside training segments one by one, and beside TRL, where installed.

    \b
    Examples:
      palimpsest bench forest
      palimpsest bench forest --json --plot scaling.png
      palimpsest bench forest --size group=8 --size section=500
      PALIMPSEST_TRL_PYTHON=/opt/trl/bin/python palimpsest bench forest
    """
    from palimpsest.bench.measurements import measure_forest
    from palimpsest.cli.output import show_figures

    show_figures("forest", measure_forest(model=model, size=tuple(size or ()), plot=plot), json)
