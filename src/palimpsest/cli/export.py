"""`palimpsest export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    to: Annotated[Path, typer.Option(help="Folder to write the Hugging Face model to.")],
    step: Annotated[int | None, typer.Option(help="Of this step; without it the newest checkpoint.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; without it as it is.")] = None,
) -> None:
    """Copy the model of a run's checkpoint into a folder of its own.

    \b
    Examples:
      palimpsest export runs/quickstart --to my-agent
      palimpsest export runs/quickstart --step 40 --dtype bfloat16 --to my-agent
    """
    from palimpsest.jobs.exporting import export as export_model

    done = export_model(run, to, step=step, dtype=dtype, warn=lambda text: typer.echo(text, err=True))
    typer.echo(f"{done.path}: the model after step {done.step}, {done.size:,} bytes")
