"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[a.b=c ...]", help="Configuration keys to change, values as YAML."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
Force = Annotated[bool, typer.Option("--force", help="Start anew where the folder already holds something.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of every random draw.")]
