"""`palimpsest data ruler`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force, Out, numbers, tell_made


def ruler(
    tokenizer: Annotated[str, typer.Option(help="Folder or hub id of the model whose tokens are counted.")],
    lengths: Annotated[str, typer.Option(help="In tokens, the answer's room included, e.g. 4096,8192.")],
    out: Out,
    tasks: Annotated[
        str, typer.Option(help="Of RULER's thirteen, e.g. vt,cwe; all: those whose files are given.")
    ] = "all",
    n: Annotated[int, typer.Option("--n", min=1, help="Problems of each task and length.")] = 100,
    haystack: Annotated[Path | None, typer.Option(help="Text file in which needles of five tasks are hidden.")] = None,
    squad: Annotated[Path | None, typer.Option(help="SQuAD's file, for qa_1.")] = None,
    hotpot: Annotated[Path | None, typer.Option(help="HotpotQA's file, for qa_2.")] = None,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    force: Force = False,
) -> None:
    """Generate RULER's tasks at any length of any tokenizer.

    \b
    Examples:
      palimpsest data ruler --tokenizer Qwen/Qwen3-4B --lengths 4096,131072 --out sets/ruler
      palimpsest data ruler --tasks niah_multiquery,qa_2 --tokenizer models/mine --lengths 8192 --n 16 \\
        --haystack essays.txt --hotpot hotpot_dev.json --out sets/ruler-8k
    """
    from palimpsest.jobs.ruler import Texts, make_ruler
    from palimpsest.progress.terminal import Terminal

    made = make_ruler(
        tasks.split(","),
        numbers("--lengths", "numbers of tokens", lengths),
        tokenizer=tokenizer,
        count=n,
        out=out,
        seed=seed,
        texts=Texts(haystack, squad, hotpot),
        force=force,
        progress=Terminal(),
    )
    tell_made(made, (_lacks(*each) for each in made.left_out.items()))


def _lacks(task: str, option: str) -> str:
    return f"left out: {task}, which is made of a file of yours ({option} FILE)"
