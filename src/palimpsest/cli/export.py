"""`palimpsest export`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[str, typer.Argument(help="Folder of a run, or of a model.")],
    to: Annotated[Path, typer.Option(help="Folder to write the Hugging Face model to.")],
    step: Annotated[int | None, typer.Option(help="Of this step; without it the newest checkpoint.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; without it as it is.")] = None,
    untied: Annotated[bool, typer.Option("--untied", help="Write out a tied output projection, for vLLM.")] = False,
    adapter: Annotated[bool, typer.Option("--adapter", help="Adapters alone, not merged into their model.")] = False,
) -> None:
    """Write the model of a run's checkpoint into a folder of its own; adapters are merged.

    \b
    Examples:
      palimpsest export runs/quickstart --to my-agent
      palimpsest export runs/quickstart --step 40 --dtype bfloat16 --to my-agent
      palimpsest export runs/quickstart --untied --to served
    """
    from palimpsest.jobs.exporting import export as export_model

    warn = partial(typer.echo, err=True)
    done = export_model(run, to, step=step, dtype=dtype, untied=untied, adapter=adapter, warn=warn)
    after = "" if done.step is None else f" after step {done.step}"
    typer.echo(f"{done.path}: the model{after}, {done.size:,} bytes")
