"""`palimpsest data download`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force


def download(
    name: Annotated[str, typer.Argument(help="memagent-train, hotpotqa-dev...; or OWNER/NAME/FILE of the hub.")],
    out: Annotated[Path, typer.Option(help="Folder to write the file to.")] = Path("data"),
    sha256: Annotated[str | None, typer.Option(help="Digest that the file must have.")] = None,
    force: Force = False,
) -> None:
    """Fetch a published data set's file, or go on with one that broke off; its SHA-256 is printed.

    \b
    Examples:
      palimpsest data download hotpotqa-dev --out data
      palimpsest data download BytedTsinghua-SIA/hotpotqa/eval_6400.json --out data
    """
    from palimpsest.data.published import find
    from palimpsest.jobs.downloading import download as fetch
    from palimpsest.progress.terminal import Terminal

    published = find(name)
    done = fetch(published, out / published.file, sha256=sha256, force=force, progress=Terminal())
    typer.echo(f"{done.path}: {done.size:,} bytes; licence: {published.licence}")
    typer.echo(f"SHA-256 {done.sha256}{' (as expected)' if done.checked else ' (nothing to compare it with)'}")
