"""`palimpsest base-model`, `palimpsest check` and `palimpsest export`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import Force
from palimpsest.errors import RunError

if TYPE_CHECKING:
    from palimpsest.app.model_export_job import Exported


def base_model(
    out: Annotated[Path, typer.Option(help="Folder to write the Hugging Face model to.")],
    seed: Annotated[int, typer.Option(help="Seed of initialisation and data.")] = 0,
    force: Force = False,
) -> None:
    """Make the embedded base model again from scratch.

    \b
    Example:
      palimpsest base-model --out my-base-model
      palimpsest quickstart memagent model.path=my-base-model
    """
    from palimpsest.base_model.pretraining import make_base_model
    from palimpsest.progress.displays import Terminal

    make_base_model(out, seed=seed, force=force, progress=Terminal())


def check(
    name: Annotated[
        str, typer.Argument(help="A policy, or my_module:MyThing: policy, reward, layer of a reward, credit rule.")
    ],
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of it.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="What it is, if that doesn't show: policy, reward, layer, rule, format, sink, engine."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="With --kind format: a file that it reads.")] = None,
) -> None:
    """Hold what a recipe names of one's own against its contract and say in words what it breaks.

    Exits with 1 if anything is broken.

    \b
    Examples:
      palimpsest check my_module:MyPolicy
      palimpsest check overwrite --set chunk_size=48
      palimpsest check my_module:my_reward
      palimpsest check my_module:MyRule --set decay=0.8
      palimpsest check my_module:MyFormat --kind format --file questions.csv
      palimpsest check my_module:MyEngine --kind engine
    """
    from palimpsest.app.plugin_checks import check as check_contract
    from palimpsest.cli.output import stdout
    from palimpsest.config.load import split_override

    options = dict(split_override(setting) for setting in settings or ())
    findings = check_contract(name, options, kind, file)
    console = stdout()
    for finding in findings:
        mark = "[green]ok   [/green]" if finding.passed else "[red]FAILS[/red]"
        console.print(f"{mark} ", end="")
        console.print(f"{finding.name}: {finding.message}", markup=False, highlight=False, soft_wrap=True)
    failed = sum(not finding.passed for finding in findings)
    console.print(f"{len(findings) - failed} of {len(findings)} points hold", highlight=False)
    raise typer.Exit(int(failed > 0))


# ---- palimpsest export ---------------------------------------------------------------------------------------


def export(
    run: Annotated[str, typer.Argument(help="Folder of a run, or of a model.")],
    to: Annotated[Path, typer.Option(help="Folder to write the Hugging Face model to.")],
    step: Annotated[int | None, typer.Option(help="Of this step; without it the newest checkpoint.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; without it as it is.")] = None,
    untied: Annotated[bool, typer.Option("--untied", help="Write out a tied output projection, for vLLM.")] = False,
    adapter: Annotated[bool, typer.Option("--adapter", help="Adapters alone, not merged into their model.")] = False,
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="Folder of palimpsest eval whose figures go into the model card too.")
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload it to this repository of the Hugging Face hub.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="A new repository is public instead of private.")] = False,
) -> None:
    """Write the model of a run's checkpoint into a folder of its own, with a model card; adapters are merged.

    The card, README.md, holds the accuracy of every evaluation of these weights in the run's folder. Uploading needs
    a token of the hub in HF_TOKEN or from `hf auth login`; HF_ENDPOINT names another hub.

    \b
    Examples:
      palimpsest export runs/quickstart --to my-agent
      palimpsest export runs/quickstart --step 40 --dtype bfloat16 --to my-agent
      palimpsest export runs/first --evaluation evals/hotpot --to my-agent --push-to-hub me/my-agent
      palimpsest export runs/quickstart --untied --to served
    """
    from palimpsest.app.model_card import Card
    from palimpsest.app.model_export_job import export as export_model
    from palimpsest.app.model_export_job import ready_to_push

    if public and push_to_hub is None:
        raise RunError("--public: says how a repository is made; give --push-to-hub OWNER/NAME too")
    push = None if push_to_hub is None else ready_to_push(push_to_hub, public=public)
    warn = partial(typer.echo, err=True)
    card = Card(push_to_hub or to.resolve().name, tuple(evaluation or ()))
    done = export_model(run, to, step=step, dtype=dtype, untied=untied, adapter=adapter, card=card, warn=warn)
    _show(done)
    if push is not None:
        typer.echo(push.upload(done.path))


def _show(done: Exported) -> None:
    """Print where the files are, and how to load them."""
    after = "" if done.step is None else f" after step {done.step}"
    typer.echo(f"{done.path.resolve()}: the model{after}, {done.size:,} bytes")
    for name, size in done.files.items():
        typer.echo(f"  {size:>15,}  {name}")
    typer.echo("to load it:")
    for program, line in done.loading.items():
        typer.echo(f"  {program:<16}  {line}")
