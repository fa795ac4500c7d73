"""`palimpsest check` and `palimpsest export`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from palimpsest.app.model_export_job import ExportedModel


def check(
    name: Annotated[
        str, typer.Argument(help="A shipped policy or credit rule, my_module:MyThing, or path/file.py:MyThing.")
    ],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE ...]", help="Options of it, values as YAML.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="What it is, if that doesn't show: policy, reward, layer, rule, tool, format, sink, engine."),
    ] = None,
) -> None:
    """Check a policy, reward, layer, credit rule or another plugin against its contract.

    Exits with 1 if anything is broken.

    \b
    Examples:
      palimpsest check my_module:MyPolicy
      palimpsest check overwrite chunk_size=48
      palimpsest check rewards/mine.py:my_reward
      palimpsest check my_module:MyRule decay=0.8
    """
    from palimpsest.app.plugin_checks import check as check_contract
    from palimpsest.cli.options import stdout
    from palimpsest.config.load import split_override

    findings = check_contract(name, dict(map(split_override, options or ())), kind)
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
        list[Path] | None, typer.Option(help="Folder of palimpsest eval whose figures go into README.md too.")
    ] = None,
) -> None:
    """Write the model of a run's checkpoint into a folder of its own; adapters are merged.

    README.md in it holds the accuracy of every evaluation of these weights in the run's folder. `hf upload` puts the
    folder on the Hugging Face hub.

    \b
    Examples:
      palimpsest export runs/quickstart --to my-agent
      palimpsest export runs/quickstart --step 40 --dtype bfloat16 --to my-agent
      palimpsest export runs/first --evaluation evals/hotpot --to my-agent
      palimpsest export runs/quickstart --untied --to served
    """
    from palimpsest.app.model_export_job import export as export_model

    warn, places = partial(typer.echo, err=True), evaluation or ()
    _show(export_model(run, to, step=step, dtype=dtype, untied=untied, adapter=adapter, evaluations=places, warn=warn))


def _show(done: ExportedModel) -> None:
    """Print where the files are, and how to load them."""
    after = "" if done.step is None else f" after step {done.step}"
    typer.echo(f"{done.path.resolve()}: the model{after}, {done.size:,} bytes")
    for name, size in done.files.items():
        typer.echo(f"  {size:>15,}  {name}")
    typer.echo("to load it:")
    for program, line in done.loading.items():
        typer.echo(f"  {program:<16}  {line}")
